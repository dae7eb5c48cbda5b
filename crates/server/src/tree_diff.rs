//! How two workspaces differ, as text that people and `git apply` read. Everything about it is bounded:
//! what is compared, how long, and what is written.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bellglass_protocol::checkpoint::{Node, Tree, WorkspacePath};
use bellglass_protocol::id::JobId;
use bellglass_store::artifacts::Artifacts;
use bellglass_store::checkpoints::{CheckpointError, Contents};
use similar::TextDiff;

/// The longest diff that is given.
const LONGEST: usize = 1 << 20;
/// Larger files are only named.
const LARGEST_FILE: u64 = 1 << 20;
/// After so long files are only named.
const TIME: Duration = Duration::from_secs(5);

/// What leads from one workspace of a job to another.
pub(crate) async fn diff(
    artifacts: &Artifacts,
    job: JobId,
    before: &Tree,
    after: &Tree,
) -> Result<String, CheckpointError> {
    let begun = Instant::now();
    let mut contents = Contents::of(artifacts, job);
    let mut text = String::new();
    let paths: BTreeSet<&WorkspacePath> =
        before.iter().chain(after.iter()).map(|(path, _)| path).collect();
    let changed: Vec<&WorkspacePath> =
        paths.into_iter().filter(|path| differ(before.get(path), after.get(path))).collect();
    for (at, path) in changed.iter().enumerate() {
        let (old, new) = (before.get(path), after.get(path));
        let old_side = Side::of(old, &mut contents).await?;
        let new_side = Side::of(new, &mut contents).await?;
        let left = TIME.saturating_sub(begun.elapsed());
        let shown = path.to_string();
        let part = tokio::task::spawn_blocking(move || part(&shown, &old_side, &new_side, left));
        text.push_str(&part.await.unwrap_or_default());
        if text.len() > LONGEST {
            text.truncate(text.floor_char_boundary(LONGEST));
            let more = changed.len() - at - 1;
            text.push_str(&format!("\n[the rest is left out, and {more} more files]\n"));
            break;
        }
    }
    Ok(text)
}

/// A file that was only touched is the same.
fn differ(old: Option<&Node>, new: Option<&Node>) -> bool {
    match (old, new) {
        (
            Some(Node::File { mode, content, .. }),
            Some(Node::File { mode: new_mode, content: new_content, .. }),
        ) => {
            let hash = |content: &Option<_>| {
                content.as_ref().map(|c: &bellglass_protocol::checkpoint::Content| c.sha256)
            };
            mode != new_mode || hash(content) != hash(new_content)
        }
        (old, new) => old != new,
    }
}

/// One file before or after.
#[derive(Debug, PartialEq)]
enum Side {
    Nothing,
    /// With the mode as git writes it, and the bytes if they can be compared.
    Something {
        mode: u32,
        content: Option<Vec<u8>>,
    },
}

impl Side {
    async fn of(node: Option<&Node>, contents: &mut Contents<'_>) -> Result<Self, CheckpointError> {
        Ok(match node {
            None => Self::Nothing,
            Some(Node::Folder { mode }) => {
                Self::Something { mode: 0o040_000 | mode, content: Some(Vec::new()) }
            }
            Some(Node::Symlink { target }) => {
                Self::Something { mode: 0o120_000, content: Some(target.as_bytes().to_vec()) }
            }
            Some(Node::File { mode, content, .. }) => {
                let content = match content {
                    Some(content) if content.bytes <= LARGEST_FILE => {
                        let bytes = contents.read_whole(content, LARGEST_FILE).await?;
                        (!bytes.iter().take(8 << 10).any(|byte| *byte == 0)).then_some(bytes)
                    }
                    _ => None,
                };
                Self::Something { mode: 0o100_000 | mode, content }
            }
        })
    }
}

fn part(path: &str, old: &Side, new: &Side, time: Duration) -> String {
    let (from, to) = (format!("a/{path}"), format!("b/{path}"));
    let mut text = format!("diff --git {from} {to}\n");
    let (old_mode, old_content, new_mode, new_content) = match (old, new) {
        (Side::Nothing, Side::Nothing) => return String::new(),
        (Side::Nothing, Side::Something { mode, content }) => {
            text.push_str(&format!("new file mode {mode:06o}\n"));
            (None, Some(Vec::new()), None, content.clone())
        }
        (Side::Something { mode, content }, Side::Nothing) => {
            text.push_str(&format!("deleted file mode {mode:06o}\n"));
            (None, content.clone(), None, Some(Vec::new()))
        }
        (
            Side::Something { mode, content },
            Side::Something { mode: new_mode, content: new_content },
        ) => (Some(*mode), content.clone(), Some(*new_mode), new_content.clone()),
    };
    if let (Some(old), Some(new)) = (old_mode, new_mode)
        && old != new
    {
        text.push_str(&format!("old mode {old:06o}\nnew mode {new:06o}\n"));
    }
    let from = if *old == Side::Nothing { "/dev/null" } else { &from };
    let to = if *new == Side::Nothing { "/dev/null" } else { &to };
    let (Some(old_content), Some(new_content)) = (old_content, new_content) else {
        text.push_str(&format!("Binary files {from} and {to} differ\n"));
        return text;
    };
    if old_content == new_content {
        return text;
    }
    if time.is_zero() {
        text.push_str("[not compared: the whole took too long]\n");
        return text;
    }
    let diff = TextDiff::configure()
        .timeout(time)
        .diff_lines(old_content.as_slice(), new_content.as_slice());
    let mut unified = diff.unified_diff();
    let mut bytes = Vec::new();
    if unified.context_radius(3).header(from, to).to_writer(&mut bytes).is_ok() {
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(mode: u32, content: &[u8]) -> Side {
        Side::Something { mode, content: Some(content.to_vec()) }
    }

    #[test]
    fn each_kind_of_change_reads_as_git_writes_it() {
        let time = Duration::from_secs(1);
        let file = |text: &str| side(0o100_644, text.as_bytes());
        let changed = part("f", &file("a\nb\n"), &file("a\nc\n"), time);
        assert_eq!(changed, "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n");
        let new = part("f", &Side::Nothing, &file("x\n"), time);
        assert!(new.contains("new file mode 100644\n--- /dev/null\n+++ b/f\n"), "{new}");
        let gone = part("f", &file("x\n"), &Side::Nothing, time);
        assert!(gone.contains("deleted file mode 100644\n--- a/f\n+++ /dev/null\n"), "{gone}");
        let mode = part("f", &file("x\n"), &side(0o100_755, b"x\n"), time);
        assert_eq!(mode, "diff --git a/f b/f\nold mode 100644\nnew mode 100755\n");
        let binary = Side::Something { mode: 0o100_644, content: None };
        let binary = part("f", &file("x\n"), &binary, time);
        assert!(binary.ends_with("Binary files a/f and b/f differ\n"), "{binary}");
        let late = part("f", &file("a\n"), &file("b\n"), Duration::ZERO);
        assert!(late.contains("not compared"), "{late}");
    }
}
