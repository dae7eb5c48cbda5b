//! Texts in other blanks: which are found, and what is put in their place.

use super::*;

/// The file after a replacement, or in short why there is none.
fn replaced(content: &str, old: &str, new: &str) -> Result<String, String> {
    assert!(!content.contains(old), "{old:?} is there exactly");
    match find(content.as_bytes(), old, new, || false) {
        Sought::Once(near) => {
            let text = String::from_utf8(near.replacement).unwrap();
            Ok([&content[..near.range.start], &text, &content[near.range.end..]].concat())
        }
        Sought::Nowhere => Err("nowhere".into()),
        Sought::Often(lines) => Err(format!("{lines:?}")),
        Sought::Unclear(line, _) => Err(format!("unclear at {line}")),
    }
}

fn check(cases: &[(&str, &str, &str, Result<&str, &str>)]) {
    for (content, old, new, expected) in cases {
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(replaced(content, old, new), expected, "{content:?} {old:?}");
    }
}

#[test]
fn ends_of_lines_do_not_count() {
    check(&[
        ("a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", Ok("x\r\ny\r\nz\r\nc\r\n")),
        ("a\nb\nc\n", "a\r\nb\r\n", "x\r\ny\r\n", Ok("x\ny\nc\n")),
        // In the middle of lines.
        ("f(one,\r\n  two);\r\n", "one,\n  two", "1,\n  2", Ok("f(1,\r\n  2);\r\n")),
        ("a  \nb\n", "a\nb", "a\nc", Ok("a  \nc\n")),
        ("a\nb\n", "a  \nb", "c\nb", Ok("c\nb\n")),
        ("x a\ny", "a \ny", "b\nz", Ok("x b\nz")),
        ("one\r\ntwo\r\n", "one ", "1\n2", Ok("1\r\n2\r\ntwo\r\n")),
        ("a\t\nb\n", "a\nb\n", "", Ok("")),
        ("a\r\nb\r\n", " \nb", "\nc", Ok("a\r\nc\r\n")),
        ("a\r\n\r\nb", "a\n\nb", "a\nc\nb", Ok("a\r\nc\r\nb")),
        ("a\r\nb\nc\n", "a\nb\nc", "x", Err("unclear at 1")),
        // A line break that is not there is more than a blank.
        ("a \nb", "a\nb\n", "x", Err("nowhere")),
        ("a b", "a  b", "x", Err("nowhere")),
        ("a\n \n", "\n\n", "x", Err("nowhere")),
    ]);
}

#[test]
fn indentation_does_not_count_for_whole_lines() {
    check(&[
        (
            "fn f() {\n\tif a {\n\t\tb();\n\t}\n}\n",
            "    if a {\n        b();\n    }",
            "    if a {\n        if c {\n            b();\n        }\n    }",
            Ok("fn f() {\n\tif a {\n\t\tif c {\n\t\t\tb();\n\t\t}\n\t}\n}\n"),
        ),
        ("  a\n    b\n", "a\n  b\n", "c\n  d\n\n    e\n", Ok("  c\n    d\n\n      e\n")),
        ("\ta\r\n\tb\r\n", "  a\n  b", "  a\n  c\n  b", Ok("\ta\r\n\tc\r\n\tb\r\n")),
        ("\ta\n", "  a\n", "", Ok("")),
        ("\tx\n\ty\n", "x\ny", "x\n    y", Err("unclear at 1")),
        // Another nesting is another text.
        ("if a:\n    b()\nc()\n", "    b()\n    c()", "x", Err("unclear at 2")),
        ("    a\nb\n", "a\n    b", "x", Err("unclear at 1")),
        // Only whole lines, and nothing but their indentation.
        ("\tlet a = 1;\n", "  a = 1;", "x", Err("nowhere")),
        ("\ta  b\n", "  a b", "x", Err("nowhere")),
    ]);
}

#[test]
fn one_of_several_is_not_chosen() {
    check(&[
        ("a\r\nb\r\na\r\nb\r\n", "a\nb", "x", Err("[1, 3]")),
        ("a\r\na\r\na\r\n", "a\na", "x", Err("[1, 2]")),
        ("\ta\n  a\n", "    a\n", "x", Err("[1, 2]")),
        // But one that differs less is the one that was meant.
        ("  a \n\ta\n", "  a\n", "  b\n", Ok("  b\n\ta\n")),
    ]);
}

#[test]
fn what_differs_is_told() {
    for (content, old, expected) in [
        ("a\r\nb", "a\nb", &["line breaks (\\r\\n)"][..]),
        ("a \nb", "a\nb", &["spaces at the ends of lines"]),
        (
            "\ta \r\n\tb",
            "  a\n  b",
            &["indentations", "spaces at the ends of lines", "line breaks (\\r\\n)"],
        ),
    ] {
        let Sought::Once(near) = find(content.as_bytes(), old, "", || false) else {
            panic!("{old:?} is not found");
        };
        assert_eq!((near.differs.as_slice(), near.line), (expected, 1));
    }
}
