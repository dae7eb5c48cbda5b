//! How a file's indentation is other than that of a text which stands in it, and how a replacement of
//! the text is indented as the file is. Where that cannot be told for sure, nothing is.

use std::collections::BTreeMap;

/// Which indentation of a text became which of the file.
#[derive(Default)]
pub(super) struct Indentation(BTreeMap<Vec<u8>, Vec<u8>>);

impl Indentation {
    /// Notes how one line is indented in the text and in the file. Says whether that goes together with
    /// the lines before: what is indented alike in the text must be so in the file.
    pub(super) fn learn(&mut self, text: &[u8], file: &[u8]) -> bool {
        self.0.entry(text.to_vec()).or_insert_with(|| file.to_vec()) == file
    }

    pub(super) fn is_the_same(&self) -> bool {
        self.0.iter().all(|(text, file)| text == file)
    }

    /// Whether what is deeper in the text is deeper in the file: otherwise they say different things.
    pub(super) fn keeps_its_shape(&self) -> bool {
        let mut levels: Vec<_> = self.0.iter().collect();
        levels.sort_by_key(|(text, _)| text.len());
        levels.windows(2).all(|pair| {
            let ((text, file), (deeper_text, deeper_file)) = (pair[0], pair[1]);
            deeper_text.starts_with(text)
                && deeper_file.starts_with(file)
                && deeper_file.len() > file.len()
        })
    }

    /// How a line of the replacement is indented in the file, if that follows from what is known.
    pub(super) fn of(&self, line: &[u8]) -> Option<Vec<u8>> {
        if self.is_the_same() {
            return Some(line.to_vec());
        }
        let known = self.0.get(line).cloned();
        known.or_else(|| self.shifted(line)).or_else(|| self.scaled(line))
    }

    /// Where the whole text is only further in or out.
    fn shifted(&self, line: &[u8]) -> Option<Vec<u8>> {
        let (text, file) = self.0.first_key_value()?;
        if let Some(more) = file.strip_suffix(text.as_slice()) {
            let further_in = |(text, file): (&Vec<u8>, &Vec<u8>)| [more, text].concat() == *file;
            // Spaces behind tabs would be neither the file's way nor the text's.
            let is_used =
                |blank| self.0.keys().chain(self.0.values()).any(|each| each.contains(blank));
            return (self.0.iter().all(further_in) && line.iter().all(is_used))
                .then(|| [more, line].concat());
        }
        let less = text.strip_suffix(file.as_slice())?;
        let further_out = |(text, file): (&Vec<u8>, &Vec<u8>)| [less, file].concat() == *text;
        self.0.iter().all(further_out).then(|| line.strip_prefix(less))?.map(<[u8]>::to_vec)
    }

    /// Where a level is so many spaces in the text, and so many or a tab in the file.
    fn scaled(&self, line: &[u8]) -> Option<Vec<u8>> {
        let (of_text, of_file) = (only_blank(self.0.keys())?, only_blank(self.0.values())?);
        if line.iter().any(|blank| *blank != of_text) {
            return None;
        }
        let mut points: Vec<(i64, i64)> =
            self.0.iter().map(|(text, file)| (text.len() as i64, file.len() as i64)).collect();
        if points.len() == 1 && of_text != of_file {
            // One level tells how many spaces a tab stands for, since no indentation is none.
            points.insert(0, (0, 0));
        }
        let (&(x, y), &(next_x, next_y)) = (points.first()?, points.get(1)?);
        let (run, rise) = (next_x - x, next_y - y);
        let is_even = |&(at, is): &(i64, i64)| (is - y) * run == (at - x) * rise;
        let climbed = (line.len() as i64 - x) * rise;
        if run == 0 || !points.iter().all(is_even) || climbed % run != 0 {
            return None;
        }
        let length = usize::try_from(y + climbed / run).ok()?;
        Some(vec![of_file; length])
    }
}

/// The one kind of blank that all of these consist of.
fn only_blank<'a>(mut indentations: impl Iterator<Item = &'a Vec<u8>>) -> Option<u8> {
    let mut kind = None;
    let is_one =
        indentations.all(|each| each.iter().all(|blank| *kind.get_or_insert(*blank) == *blank));
    kind.filter(|_| is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(pairs: &[(&str, &str)]) -> Indentation {
        let mut indentation = Indentation::default();
        for (text, file) in pairs {
            assert!(indentation.learn(text.as_bytes(), file.as_bytes()));
        }
        indentation
    }

    #[test]
    fn a_replacement_follows_the_file_or_is_not_made() {
        for (pairs, line, expected) in [
            // Tabs for spaces: by one level, and by two.
            (&[("    ", "\t")][..], "        ", Some("\t\t")),
            (&[("  ", "\t"), ("    ", "\t\t")], "      ", Some("\t\t\t")),
            (&[("", "\t"), ("    ", "\t\t")], "        ", Some("\t\t\t")),
            (&[("\t", "    "), ("\t\t", "        ")], "\t\t\t", Some("            ")),
            (&[("    ", "\t")], "      ", None),
            (&[("    ", "\t")], "", Some("")),
            // Levels of another width.
            (&[("  ", "    "), ("    ", "        ")], "      ", Some("            ")),
            // Further in and further out.
            (&[("", "    ")], "    ", Some("        ")),
            (&[("", "\t")], "\t", Some("\t\t")),
            (&[("        ", "    ")], "            ", Some("        ")),
            (&[("        ", "    ")], "  ", None),
            (&[("    ", "")], "        ", Some("    ")),
            // Nothing says how many spaces a tab is.
            (&[("", "\t")], "    ", None),
            // Not a line through these points.
            (&[("", "\t"), ("  ", "\t\t"), ("   ", "\t\t\t")], "     ", None),
            (&[("", ""), ("\t", "\t")], "   ", Some("   ")),
        ] {
            let found = learnt(pairs).of(line.as_bytes());
            let expected = expected.map(|text| text.as_bytes().to_vec());
            assert_eq!(found, expected, "{pairs:?} {line:?}");
        }
    }

    #[test]
    fn other_nesting_is_another_text() {
        let mut indentation = learnt(&[("", "")]);
        assert!(!indentation.learn(b"", b"  "), "alike in the text, not in the file");
        assert!(!learnt(&[("", "  "), ("  ", "")]).keeps_its_shape());
        assert!(!learnt(&[("", "  "), ("  ", "  ")]).keeps_its_shape());
        assert!(!learnt(&[("  ", " "), ("\t", "  ")]).keeps_its_shape());
        assert!(learnt(&[("", "  "), ("  ", "    ")]).keeps_its_shape());
    }
}
