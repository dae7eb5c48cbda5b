//! The checkpoints of one job: after each step what it changed, and the way back.
//!
//! The worker holds the workspace as a tree of names and hashes, so that it can tell what a guest
//! sends again from what is new. Contents pass through and are stored once.

mod gather;
mod restore;
mod spool;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

use bellglass_protocol::checkpoint::{
    Changes, CheckpointNumber, Content, Index, Node, Tree, TreeFault,
};
use bellglass_protocol::event::{EventBody, RestoreCause};
use bellglass_protocol::job::Limits;
use bellglass_sandbox::client::{ClientError, GuestClient};
use bellglass_store::artifacts::{ArtifactKey, Artifacts};
use bellglass_store::checkpoints::{self as stored, CheckpointError, LONGEST_CHAIN};

use self::gather::{GatherError, Gathered, gather};
pub(crate) use self::restore::{RestoreError, restore};
use crate::hands::{HandsError, describe, from_client};
use crate::job_log::JobLog;

/// What is known of a job's workspace outside of its sandbox.
pub(crate) struct Checkpoints<'a> {
    artifacts: &'a Artifacts,
    log: JobLog,
    spools: PathBuf,
    /// Bytes that all checkpoints may hold together.
    limit: u64,
    held: u64,
    tree: Tree,
    /// Where each content of the tree lies that was seen so far.
    contents: HashMap<[u8; 32], Content>,
    newest: Option<CheckpointNumber>,
    /// Checkpoints that the newest one builds on.
    chain: usize,
    /// Why the last one could not be kept, which need not be said again.
    said: Option<String>,
}

impl<'a> Checkpoints<'a> {
    /// As the job's log tells of them.
    pub(crate) async fn of_job(
        log: &JobLog,
        artifacts: &'a Artifacts,
        spools: PathBuf,
        limits: &Limits,
    ) -> Result<Self, CheckpointError> {
        let (newest, held) = log.look(|view| (view.kept.newest(), view.kept.bytes));
        let mut checkpoints = Self {
            artifacts,
            log: log.clone(),
            spools,
            limit: limits.checkpoints.0,
            held,
            tree: Tree::default(),
            contents: HashMap::new(),
            newest,
            chain: 0,
            said: None,
        };
        let _ = std::fs::create_dir_all(&checkpoints.spools);
        if let Err(error) = checkpoints.load().await {
            if log.look(|view| view.kept.pending.is_some()) {
                return Err(error);
            }
            // The workspace itself is there, so it is kept anew.
            tracing::warn!(job = %log.job, %error, "the job's checkpoints cannot be read");
            checkpoints.newest = None;
        }
        Ok(checkpoints)
    }

    async fn load(&mut self) -> Result<(), CheckpointError> {
        (self.tree, self.chain) = match self.newest {
            Some(newest) => stored::read_chain(self.artifacts, self.log.job, newest).await?,
            None => (Tree::default(), 0),
        };
        self.contents = contents_of(&self.tree);
        Ok(())
    }

    pub(crate) fn newest(&self) -> Option<CheckpointNumber> {
        self.newest
    }

    /// The workspace at the newest checkpoint.
    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Keeps what a step did to the workspace. Tells what came of it, if there is anything to tell.
    pub(crate) async fn take(
        &mut self,
        guest: &GuestClient,
        step: u32,
    ) -> Result<Option<EventBody>, HandsError> {
        if self.limit == 0 {
            return Ok(self.skip(step, "the job's limit `checkpoints` is 0".into()));
        }
        let begun = Instant::now();
        let number = self.log.next_checkpoint();
        let room = self.limit.saturating_sub(self.held);
        let gathered = gather(guest, self, number, room).await;
        let gathered = match gathered {
            Ok(None) => return Ok(None),
            Ok(Some(gathered)) => gathered,
            Err(GatherError::Guest(ClientError::Refused(error))) => {
                return Ok(self.skip(step, error.message));
            }
            Err(GatherError::Guest(error)) => return Err(from_client(error)),
            Err(error) => return Ok(self.skip(step, error.to_string())),
        };
        match self.store(step, number, gathered, begun).await {
            Ok(event) => Ok(Some(event)),
            Err(reason) => Ok(self.skip(step, reason)),
        }
    }

    /// A reason that was said and still holds is not said again.
    pub(crate) fn skip(&mut self, step: u32, reason: String) -> Option<EventBody> {
        let is_news = self.said.as_ref() != Some(&reason);
        self.said = Some(reason.clone());
        is_news.then_some(EventBody::CheckpointSkipped { step, reason })
    }

    async fn store(
        &mut self,
        step: u32,
        number: CheckpointNumber,
        gathered: Gathered,
        begun: Instant,
    ) -> Result<EventBody, String> {
        let Gathered { gone, nodes, data, left_out } = gathered;
        let before = self.newest.filter(|_| self.chain + 1 < LONGEST_CHAIN);
        // The tree is what it will be from here on; what goes wrong after this undoes it.
        let index = Index { base: self.newest, gone, nodes };
        let applied = self.apply(&index);
        let bytes = data.bytes();
        let stored = match &applied {
            Err(fault) => Err(fault.to_string()),
            Ok(_) => {
                let index = match before {
                    Some(_) => index,
                    None => self.tree.whole(),
                };
                let key = ArtifactKey::checkpoint(self.log.job, number);
                data.store(self.artifacts, key, stored::ending(&index)).await
            }
        };
        match (stored, applied) {
            (Ok(()), Ok(changes)) => {
                self.chain = before.map_or(0, |_| self.chain + 1);
                self.newest = Some(number);
                self.held += bytes;
                self.said = None;
                metrics::histogram!("bellglass_checkpoint_seconds").record(begun.elapsed());
                let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                let checkpoint = number;
                Ok(EventBody::CheckpointStored {
                    step,
                    checkpoint,
                    changes,
                    bytes,
                    took_us,
                    left_out,
                })
            }
            (stored, _) => {
                let reason = stored.err().unwrap_or_default();
                match self.load().await {
                    Ok(()) => Err(reason),
                    Err(error) => {
                        // Without what there was, the next one has to stand for itself.
                        self.newest = None;
                        (self.tree, self.chain) = (Tree::default(), 0);
                        self.contents.clear();
                        Err(format!("{reason}; {}", describe(&error)))
                    }
                }
            }
        }
    }

    fn apply(&mut self, index: &Index) -> Result<Changes, TreeFault> {
        let mut changes = Changes::default();
        for path in &index.gone {
            changes.deleted += self.tree.remove(path);
        }
        for (path, node) in &index.nodes {
            let change = self.tree.put(path.clone(), node.clone())?;
            changes.added += change.added;
            changes.changed += change.changed;
            changes.deleted += change.deleted;
            if let Node::File { content: Some(content), .. } = node {
                self.contents.insert(content.sha256, content.clone());
            }
        }
        Ok(changes)
    }

    /// Makes the workspace of a running sandbox what it was at an earlier checkpoint of the job.
    pub(crate) async fn go_back(
        &mut self,
        guest: &GuestClient,
        step: u32,
        to: Option<CheckpointNumber>,
    ) -> Result<EventBody, HandsError> {
        let failed = |reason: String| Ok(EventBody::RestoreFailed { step, reason });
        let tree = match to {
            Some(to) => stored::read_tree(self.artifacts, self.log.job, to).await,
            None => Ok(Tree::default()),
        };
        let tree = match tree {
            Ok(tree) => tree,
            Err(error) => return failed(describe(&error)),
        };
        let number = self.log.next_checkpoint();
        let key = ArtifactKey::checkpoint(self.log.job, number);
        let kept = self.artifacts.put(&key, stored::ending(&tree.whole()).into()).await;
        if let Err(error) = kept {
            return failed(describe(&error));
        }
        match restore(guest, self.artifacts, self.log.job, &tree, number).await {
            Ok(()) => {}
            Err(RestoreError::Guest(error)) if !matches!(error, ClientError::Refused(_)) => {
                return Err(from_client(error));
            }
            Err(error) => return failed(describe(&error)),
        }
        let entries = tree.len() as u64;
        self.contents.extend(contents_of(&tree));
        (self.tree, self.newest, self.chain) = (tree, Some(number), 0);
        // The workspace is kept again, so what could not be kept since is news.
        self.said = None;
        let why = RestoreCause::Request;
        let checkpoint = Some(number);
        Ok(EventBody::WorkspaceRestored { from: None, step, why, checkpoint, entries })
    }
}

fn contents_of(tree: &Tree) -> HashMap<[u8; 32], Content> {
    let files = tree.iter().filter_map(|(_, node)| match node {
        Node::File { content: Some(content), .. } => Some((content.sha256, content.clone())),
        _ => None,
    });
    files.collect()
}
