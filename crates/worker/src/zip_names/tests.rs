//! What becomes of names that a guest sends.

use super::*;

#[test]
fn hostile_names_are_changed_or_refused() {
    for (path, expected) in [
        ("a/b.txt", Some("a/b.txt")),
        ("C:\\windows\\x", Some("C__windows_x")),
        ("line\nbreak", Some("line_break")),
        ("what?<*>|\"", Some("what______")),
        ("ünï/文件", Some("ünï/文件")),
        ("con", Some("_con")),
        ("sub/NUL.txt", Some("sub/_NUL.txt")),
        ("Lpt1/x", Some("_Lpt1/x")),
        ("com9 .tar.gz", Some("_com9 .tar.gz")),
        ("console", Some("console")),
        ("com10", Some("com10")),
        ("COM", Some("COM")),
        ("con.", Some("con_")),
        ("end. .", Some("end___")),
        ("...", Some("___")),
        ("a /b.", Some("a_/b_")),
        (".hidden", Some(".hidden")),
        ("../x", None),
        ("a/../../x", None),
        ("/etc/passwd", None),
        ("a//b", None),
        ("", None),
        (".", None),
    ] {
        let name = ZipNames::default().admit(path, false);
        assert_eq!(name.ok().as_deref(), expected, "{path}");
    }
}

#[test]
fn nothing_is_written_through_a_symlink_or_twice() {
    let mut names = ZipNames::default();
    assert!(names.admit("link", true).is_ok());
    assert!(names.admit("link/passwd", false).is_err());
    assert!(names.admit("linked", false).is_ok());
    assert!(names.admit("linked", false).is_err());
    assert_eq!(names.admit_first(&["linked", "link/x", "new"]).as_deref(), Some("new"));
    assert_eq!(names.admit_first(&["new", "link/x"]), None);
}

/// Each row is a ZIP: what a guest calls things, and what they are called there.
#[test]
fn names_that_would_become_the_same_stay_apart() {
    for row in [
        &[("a:b", "a_b"), ("a_b", "a_b~2"), ("a?b", "a_b~3"), ("a_b~4", "a_b~4")][..],
        // One that is taken already is passed over.
        &[("x_~2", "x_~2"), ("x:", "x_"), ("x?", "x_~3"), ("x*", "x_~4")],
        &[("a?.tar.gz", "a_.tar.gz"), ("a*.tar.gz", "a_.tar~2.gz"), (".:", "._"), (".?", "._~2")],
        // What lies in a folder goes with it, whichever is named first.
        &[("d:", "d_"), ("d:/f", "d_/f"), ("d_", "d_~2"), ("d_/f", "d_~2/f"), ("d:/g", "d_/g")],
        &[("e?/f", "e_/f"), ("e_/f", "e_~2/f"), ("e_", "e_~2"), ("e?", "e_")],
        &[("con", "_con"), ("_con", "_con~2"), ("end.", "end_"), ("end_", "end_~2")],
    ] {
        let mut names = ZipNames::default();
        for (path, expected) in row {
            assert_eq!(names.admit(path, false).as_deref(), Ok(*expected), "{path} in {row:?}");
        }
        for (path, _) in row {
            assert!(names.admit(path, false).is_err(), "{path} came twice in {row:?}");
        }
    }
    let mut names = ZipNames::default();
    assert_eq!(names.admit("l:", true).as_deref(), Ok("l_"));
    assert!(names.admit("l:/x", false).is_err(), "it lies below a symlink");
    assert_eq!(names.admit("l_/x", false).as_deref(), Ok("l_~2/x"));
}

/// Otherwise the last of them would look at all those before it.
#[test]
fn many_names_that_would_become_the_same_take_no_time_to_tell_apart() {
    let mut names = ZipNames::default();
    let odd = |n: u32| -> String {
        (0..17).map(|bit| if n >> bit & 1 == 0 { '?' } else { '*' }).collect()
    };
    let last = (0..100_000).map(|n| names.admit(&odd(n), false).unwrap()).last();
    assert_eq!(last.as_deref(), Some("_________________~100000"));
}

/// Each row is a ZIP: names, `@` before a symlink's, and whether each is let in.
#[test]
fn case_makes_no_way_through_a_symlink() {
    for row in [
        &[("@link", true), ("LINK/passwd", false), ("Link", false), ("@LINK", false)][..],
        &[("d", true), ("@d/Über", true), ("D/üBER/x", false), ("D/x", true)],
        // The same letter, composed and not.
        &[("@\u{e9}", true), ("e\u{301}/x", false)],
        // A folder that is there only because something lies in it.
        &[("LINK/a", true), ("@link", false), ("LINK/passwd", true)],
        &[("Makefile", true), ("makefile", true), ("@MAKEFILE", false)],
        &[("src/A", true), ("SRC/a", true), ("src/a", true), ("src/a", false)],
    ] {
        let mut names = ZipNames::default();
        for (name, expected) in row {
            let (path, is_symlink) =
                name.strip_prefix('@').map_or((*name, false), |path| (path, true));
            assert_eq!(names.admit(path, is_symlink).is_ok(), *expected, "{name} in {row:?}");
        }
    }
}
