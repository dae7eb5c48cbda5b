//! What a guest says has changed, as the worker reads it, and the tree that it adds up to; then the
//! indexes of checkpoints, which are ours but lie in a store that others may reach.

#![no_main]

use bellglass_protocol::checkpoint::{
    Change, ChangeReply, CheckpointNumber, DEEPEST, Index, MOST_ENTRIES, Node, Tree, What,
    WorkspacePath,
};
use bellglass_protocol::wire::FrameCodec;
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tokio_util::codec::Decoder as _;

fuzz_target!(|input: &[u8]| {
    let mut tree = Tree::default();
    let mut codec = FrameCodec::for_worker();
    let mut arrived = BytesMut::from(input);
    while let Ok(Some(frame)) = codec.decode(&mut arrived) {
        if let Ok(ChangeReply::Change(change)) = ChangeReply::read(frame) {
            take(&mut tree, change);
        }
    }
    look_at(&tree);
    if let Ok(index) = serde_json::from_slice::<Index>(input) {
        let mut other = Tree::default();
        if other.apply(index).is_ok() {
            look_at(&other);
            // Whatever the two are, an index leads from one to the other.
            let changes = other.changes_since(&tree, CheckpointNumber(1));
            tree.apply(changes).expect("both are trees");
            assert_eq!(tree, other);
        }
    }
});

fn take(tree: &mut Tree, Change { path, what }: Change) {
    check(&path);
    let node = match what {
        What::Gone => {
            tree.remove(&path);
            return;
        }
        What::Folder { mode } => Node::Folder { mode },
        What::Symlink { target } => Node::Symlink { target },
        What::File { mode, modified, .. } => Node::File { mode, modified, content: None },
    };
    let _ = tree.put(path, node);
}

/// A tree is one that a file system could hold, and it reads back.
fn look_at(tree: &Tree) {
    assert!(tree.len() <= MOST_ENTRIES);
    for (path, _) in tree.iter() {
        check(path);
        if let Some(parent) = path.parent() {
            assert!(matches!(tree.get(&parent), Some(Node::Folder { .. })));
        }
    }
    let text = serde_json::to_vec(&tree.whole()).expect("it can be written");
    let mut again = Tree::default();
    again.apply(serde_json::from_slice(&text).expect("it reads back")).expect("it is a tree");
    assert_eq!(&again, tree);
}

fn check(path: &WorkspacePath) {
    let parts: Vec<&[u8]> = path.as_bytes().split(|byte| *byte == b'/').collect();
    assert!(parts.len() <= DEEPEST && !path.as_bytes().contains(&0));
    assert!(parts.iter().all(|part| !part.is_empty() && part != b"." && part != b".."));
}
