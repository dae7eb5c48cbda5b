//! A workspace as its checkpoints tell it: which paths there are, and where their bytes lie.
//!
//! A tree is always one that a file system could hold: everything is in a folder that is there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Changes, CheckpointNumber, LinkTarget, MOST_ENTRIES, MOST_NAME_BYTES, WorkspacePath};

/// Something in a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Node {
    Folder {
        mode: u32,
    },
    Symlink {
        target: LinkTarget,
    },
    File {
        mode: u32,
        /// Nanoseconds since 1970.
        modified: i64,
        /// `None` for a file that could not be kept.
        content: Option<Content>,
    },
}

/// The bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    #[serde(with = "hex")]
    pub sha256: [u8; 32],
    pub bytes: u64,
    pub at: Spot,
}

/// Where bytes lie: in the data of a checkpoint of the same job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Spot {
    pub checkpoint: CheckpointNumber,
    pub offset: u64,
}

/// What one checkpoint says: what is other than in the checkpoint before it, or all there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// The checkpoint that this one builds on; `None` if it stands for itself.
    pub base: Option<CheckpointNumber>,
    /// Taken away first, with all below.
    pub gone: Vec<WorkspacePath>,
    /// Put in then, in the order of paths.
    pub nodes: Vec<(WorkspacePath, Node)>,
}

/// Why a change cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeFault {
    #[error("something lies where no folder is")]
    NoFolder,
    #[error("the workspace has more than {MOST_ENTRIES} files and folders")]
    TooMany,
    #[error("the names in the workspace are longer than {MOST_NAME_BYTES} bytes")]
    NamesTooLong,
}

/// All that is in a workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: BTreeMap<WorkspacePath, Node>,
    name_bytes: usize,
}

impl Tree {
    pub fn get(&self, path: &WorkspacePath) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// Everything, each folder before what is in it.
    pub fn iter(&self) -> impl Iterator<Item = (&WorkspacePath, &Node)> {
        self.nodes.iter()
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Puts something in. What is no folder any more has nothing below it.
    pub fn put(&mut self, path: WorkspacePath, node: Node) -> Result<Changes, TreeFault> {
        if let Some(parent) = path.parent()
            && !matches!(self.nodes.get(&parent), Some(Node::Folder { .. }))
        {
            return Err(TreeFault::NoFolder);
        }
        let mut changes = Changes::default();
        let is_folder = matches!(node, Node::Folder { .. });
        let old = self.nodes.get(&path);
        if matches!(old, Some(Node::Folder { .. })) && !is_folder {
            changes.deleted = self.remove_below(&path);
        }
        let names = name_bytes(&path, &node);
        let old_names = match self.nodes.get(&path) {
            Some(old) if *old == node => return Ok(changes),
            Some(old) => {
                changes.changed = 1;
                name_bytes(&path, old)
            }
            None => {
                changes.added = 1;
                0
            }
        };
        if self.nodes.len() + changes.added as usize > MOST_ENTRIES {
            return Err(TreeFault::TooMany);
        }
        if self.name_bytes - old_names + names > MOST_NAME_BYTES {
            return Err(TreeFault::NamesTooLong);
        }
        self.name_bytes -= old_names;
        self.name_bytes += names;
        self.nodes.insert(path, node);
        Ok(changes)
    }

    /// Takes something away, with all below it. Returns how much that was.
    pub fn remove(&mut self, path: &WorkspacePath) -> u64 {
        match self.nodes.remove(path) {
            None => 0,
            Some(node) => {
                self.name_bytes -= name_bytes(path, &node);
                1 + self.remove_below(path)
            }
        }
    }

    fn remove_below(&mut self, path: &WorkspacePath) -> u64 {
        let (first, end) = path.below();
        let below: Vec<WorkspacePath> =
            self.nodes.range(first..end).map(|(path, _)| path.clone()).collect();
        for path in &below {
            if let Some(node) = self.nodes.remove(path) {
                self.name_bytes -= name_bytes(path, &node);
            }
        }
        below.len() as u64
    }

    /// Becomes what it is after a checkpoint that builds on this tree.
    pub fn apply(&mut self, index: Index) -> Result<(), TreeFault> {
        if index.base.is_none() {
            *self = Self::default();
        }
        for path in &index.gone {
            self.remove(path);
        }
        for (path, node) in index.nodes {
            self.put(path, node)?;
        }
        Ok(())
    }

    /// The tree as an index that stands for itself.
    pub fn whole(&self) -> Index {
        let nodes = self.nodes.iter().map(|(path, node)| (path.clone(), node.clone())).collect();
        Index { base: None, gone: Vec::new(), nodes }
    }

    /// What leads from this tree to another that `base` names.
    pub fn changes_since(&self, earlier: &Self, base: CheckpointNumber) -> Index {
        let is_gone = |path: &WorkspacePath| !self.nodes.contains_key(path);
        let gone = earlier.nodes.keys().filter(|path| {
            // What is below something that is gone goes with it.
            is_gone(path) && path.parent().is_none_or(|parent| !is_gone(&parent))
        });
        let gone = gone.cloned().collect();
        let nodes = self.nodes.iter().filter(|(path, node)| earlier.get(path) != Some(node));
        let nodes = nodes.map(|(path, node)| (path.clone(), node.clone())).collect();
        Index { base: Some(base), gone, nodes }
    }
}

fn name_bytes(path: &WorkspacePath, node: &Node) -> usize {
    let target = match node {
        Node::Symlink { target } => target.as_bytes().len(),
        Node::Folder { .. } | Node::File { .. } => 0,
    };
    path.as_bytes().len() + target
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::new(text.into()).unwrap()
    }

    fn file(mode: u32) -> Node {
        Node::File { mode, modified: 0, content: None }
    }

    const FOLDER: Node = Node::Folder { mode: 0o755 };

    fn tree(entries: &[(&str, Node)]) -> Tree {
        let mut tree = Tree::default();
        for (name, node) in entries {
            tree.put(path(name), node.clone()).unwrap();
        }
        tree
    }

    fn names(tree: &Tree) -> Vec<String> {
        tree.iter().map(|(path, _)| path.to_string()).collect()
    }

    #[test]
    fn everything_is_in_a_folder() {
        let mut tree = tree(&[("a", FOLDER), ("a/b", file(1)), ("f", file(1))]);
        for bad in ["x/y", "f/y", "a/b/c"] {
            assert_eq!(tree.put(path(bad), file(1)), Err(TreeFault::NoFolder), "{bad}");
        }
    }

    #[test]
    fn what_is_below_goes_along_and_what_only_looks_alike_stays() {
        let entries =
            [("a", FOLDER), ("a/b", FOLDER), ("a/b/c", file(1)), ("a-b", file(1)), ("a0", file(1))];
        let mut gone = tree(&entries);
        assert_eq!(gone.remove(&path("a")), 3);
        assert_eq!(names(&gone), ["a-b", "a0"]);
        let mut replaced = tree(&entries);
        let changes = replaced.put(path("a"), file(1)).unwrap();
        assert_eq!(changes, Changes { added: 0, changed: 1, deleted: 2 });
        assert_eq!(names(&replaced), ["a", "a-b", "a0"]);
    }

    #[test]
    fn what_is_the_same_is_no_change() {
        let mut tree = tree(&[("f", file(1))]);
        assert_eq!(tree.put(path("f"), file(1)).unwrap(), Changes::default());
        assert_eq!(tree.put(path("f"), file(2)).unwrap().changed, 1);
        assert_eq!(tree.remove(&path("g")), 0);
    }

    #[test]
    fn an_index_leads_from_one_tree_to_the_other() {
        let one = tree(&[("a", FOLDER), ("a/b", file(1)), ("c", file(1)), ("d", FOLDER)]);
        let two = tree(&[("a", file(3)), ("c", file(2)), ("d", FOLDER), ("d/e", file(1))]);
        for (from, to) in [(&one, &two), (&two, &one), (&one, &one)] {
            let mut tree = from.clone();
            tree.apply(to.changes_since(from, CheckpointNumber(1))).unwrap();
            assert_eq!(&tree, to);
            tree.apply(from.whole()).unwrap();
            assert_eq!(&tree, from);
            let text = serde_json::to_vec(&to.whole()).unwrap();
            assert_eq!(serde_json::from_slice::<Index>(&text).unwrap(), to.whole());
        }
    }

    #[test]
    fn names_have_a_bound() {
        let mut tree = Tree::default();
        let long = |n: usize| {
            let target = LinkTarget::new(vec![b'x'; 4095]).unwrap();
            (path(&format!("{n}")), Node::Symlink { target })
        };
        let refused = (0..MOST_ENTRIES).find_map(|n| {
            let (path, node) = long(n);
            tree.put(path, node).err()
        });
        assert_eq!(refused, Some(TreeFault::NamesTooLong));
    }
}
