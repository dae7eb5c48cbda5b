//! How a word is cut into tokens that a model knows: the three ways that tokenizers have. Pure.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Cuts words into tokens.
#[derive(Debug)]
pub(super) enum Pieces {
    WordPiece(WordPiece),
    Unigram(Unigram),
    Bpe(Bpe),
}

/// The longest beginning that is known, again and again.
#[derive(Debug)]
pub(super) struct WordPiece {
    pub(super) vocabulary: HashMap<String, u32>,
    /// What stands before a piece that does not begin its word.
    pub(super) prefix: String,
    /// Words with more characters are not known.
    pub(super) longest_word: usize,
}

/// The most likely of all ways to cut.
#[derive(Debug)]
pub(super) struct Unigram {
    pub(super) vocabulary: HashMap<String, (u32, f64)>,
    /// The characters of the longest piece.
    pub(super) longest: usize,
    /// What a character costs that no piece has.
    pub(super) unknown: f64,
}

/// Neighbours are put together, the most frequent pair first.
#[derive(Debug)]
pub(super) struct Bpe {
    pub(super) vocabulary: HashMap<String, u32>,
    /// Of two tokens: which pair goes first, and what it becomes.
    pub(super) merges: HashMap<(u32, u32), (u32, u32)>,
    pub(super) unknown_bytes: UnknownBytes,
}

/// What becomes of characters that no token has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownBytes {
    AreTokens,
    LeftOut,
}

impl Pieces {
    /// The tokens of a word. What is not known is left out.
    pub(super) fn cut(&self, word: &str) -> Vec<u32> {
        match self {
            Self::WordPiece(pieces) => pieces.cut(word),
            Self::Unigram(pieces) => pieces.cut(word),
            Self::Bpe(pieces) => pieces.cut(word),
        }
    }
}

impl WordPiece {
    fn cut(&self, word: &str) -> Vec<u32> {
        if word.chars().count() > self.longest_word {
            return Vec::new();
        }
        let mut tokens = Vec::new();
        let mut rest = word;
        while !rest.is_empty() {
            let prefix = if tokens.is_empty() { "" } else { &*self.prefix };
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let found = ends.into_iter().find_map(|end| {
                let token = self.vocabulary.get(&format!("{prefix}{}", &rest[..end]));
                token.map(|token| (*token, end))
            });
            // A word of which a part is unknown is unknown.
            let Some((token, end)) = found else { return Vec::new() };
            tokens.push(token);
            rest = &rest[end..];
        }
        tokens
    }
}

impl Unigram {
    fn cut(&self, word: &str) -> Vec<u32> {
        let places: Vec<usize> =
            word.char_indices().map(|(at, _)| at).chain([word.len()]).collect();
        // For each place: the best sum so far, where its last piece began, and that piece's token.
        let mut best: Vec<Option<(f64, usize, Option<u32>)>> = vec![None; places.len()];
        best[0] = Some((0.0, 0, None));
        for start in 0..places.len() - 1 {
            let Some((sum, ..)) = best[start] else { continue };
            for end in start + 1..places.len().min(start + self.longest.max(1) + 1) {
                let piece = &word[places[start]..places[end]];
                let (token, score) = match self.vocabulary.get(piece) {
                    Some((token, score)) => (Some(*token), *score),
                    None if end == start + 1 => (None, self.unknown),
                    None => continue,
                };
                if best[end].is_none_or(|(known, ..)| known < sum + score) {
                    best[end] = Some((sum + score, start, token));
                }
            }
        }
        let mut tokens = Vec::new();
        let mut at = places.len() - 1;
        while at > 0 {
            let Some((_, start, token)) = best[at] else { break };
            tokens.extend(token);
            at = start;
        }
        tokens.reverse();
        tokens
    }
}

/// A part of a word on its way to a token, with its neighbours.
#[derive(Clone, Copy)]
struct Part {
    /// Nothing for a character that is no token, which stays apart.
    token: Option<u32>,
    before: Option<usize>,
    after: Option<usize>,
    is_gone: bool,
}

impl Bpe {
    fn cut(&self, word: &str) -> Vec<u32> {
        let mut parts = self.characters(word);
        let mut pairs = BinaryHeap::new();
        let offer = |parts: &[Part], left: usize, pairs: &mut BinaryHeap<_>| {
            let right = parts[left].after?;
            let pair = (parts[left].token?, parts[right].token?);
            let (rank, _) = self.merges.get(&pair)?;
            pairs.push(Reverse((*rank, left, pair)));
            Some(())
        };
        for left in 0..parts.len() {
            offer(&parts, left, &mut pairs);
        }
        while let Some(Reverse((_, left, pair))) = pairs.pop() {
            let Some(right) = parts[left].after.filter(|_| !parts[left].is_gone) else { continue };
            // What has changed since the pair was found is another pair.
            if (parts[left].token, parts[right].token) != (Some(pair.0), Some(pair.1)) {
                continue;
            }
            parts[left].token = self.merges.get(&pair).map(|(_, token)| *token);
            parts[right].is_gone = true;
            let after = parts[right].after;
            parts[left].after = after;
            if let Some(after) = after {
                parts[after].before = Some(left);
            }
            offer(&parts, left, &mut pairs);
            if let Some(before) = parts[left].before {
                offer(&parts, before, &mut pairs);
            }
        }
        parts.iter().filter(|part| !part.is_gone).filter_map(|part| part.token).collect()
    }

    fn characters(&self, word: &str) -> Vec<Part> {
        let mut tokens: Vec<Option<u32>> = Vec::new();
        let mut buffer = [0; 4];
        for c in word.chars() {
            let text = c.encode_utf8(&mut buffer);
            match (self.vocabulary.get(&*text), self.unknown_bytes) {
                (Some(token), _) => tokens.push(Some(*token)),
                (None, UnknownBytes::AreTokens) => tokens.extend(
                    text.bytes()
                        .map(|byte| self.vocabulary.get(&format!("<0x{byte:02X}>")).copied()),
                ),
                (None, UnknownBytes::LeftOut) => tokens.push(None),
            }
        }
        let last = tokens.len().saturating_sub(1);
        let part = |(at, token): (usize, Option<u32>)| Part {
            token,
            before: at.checked_sub(1),
            after: (at < last).then_some(at + 1),
            is_gone: false,
        };
        tokens.into_iter().enumerate().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(words: &[&str]) -> HashMap<String, u32> {
        words.iter().zip(0..).map(|(word, token)| ((*word).to_owned(), token)).collect()
    }

    #[test]
    fn the_longest_beginning_counts() {
        let vocabulary = vocabulary(&["un", "##aff", "##able", "##a", "unaff"]);
        let pieces = WordPiece { vocabulary, prefix: "##".into(), longest_word: 20 };
        assert_eq!(pieces.cut("unaffable"), [4, 2]);
        assert_eq!(pieces.cut("una"), [0, 3]);
        assert_eq!(pieces.cut("unb"), [] as [u32; 0]);
        assert_eq!(pieces.cut(&"un".repeat(50)), [] as [u32; 0]);
    }

    #[test]
    fn the_most_likely_cut_counts() {
        let scored = [("ab", -1.0), ("c", -1.0), ("a", -0.1), ("bc", -0.5), ("é", -3.0)];
        let vocabulary = scored.iter().zip(0..);
        let vocabulary =
            vocabulary.map(|((piece, score), token)| ((*piece).to_owned(), (token, *score)));
        let pieces = Unigram { vocabulary: vocabulary.collect(), longest: 2, unknown: -10.0 };
        assert_eq!(pieces.cut("abc"), [2, 3]);
        assert_eq!(pieces.cut("abéc"), [0, 4, 1]);
        // What is unknown is left out, and what is around it is not.
        assert_eq!(pieces.cut("abxc"), [0, 1]);
        assert_eq!(pieces.cut(""), [] as [u32; 0]);
    }

    #[test]
    fn pairs_are_put_together_in_their_order() {
        let vocabulary = vocabulary(&["a", "b", "c", "ab", "bc", "abc", "<0xC3>", "<0xA9>"]);
        let merges = HashMap::from([((1, 2), (0, 4)), ((0, 1), (1, 3)), ((0, 4), (2, 5))]);
        let mut pieces = Bpe { vocabulary, merges, unknown_bytes: UnknownBytes::AreTokens };
        assert_eq!(pieces.cut("abc"), [5]);
        assert_eq!(pieces.cut("abab"), [3, 3]);
        assert_eq!(pieces.cut("bbc"), [1, 4]);
        assert_eq!(pieces.cut("aéb"), [0, 6, 7, 1]);
        pieces.unknown_bytes = UnknownBytes::LeftOut;
        // What is left out still keeps its neighbours apart.
        assert_eq!(pieces.cut("aéb"), [0, 1]);
        assert_eq!(pieces.cut(&"abc".repeat(5000)).len(), 5000);
    }
}
