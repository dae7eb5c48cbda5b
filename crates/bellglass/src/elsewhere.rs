//! What a server answers about sandboxes that only others make: which images there are and how strongly
//! sandboxes are separated is known where they are made. A job that no worker can run fails there, and
//! says why.

use async_trait::async_trait;
use bellglass_protocol::job::IsolationLevel;
use bellglass_server::{Images, Isolation};

pub(crate) struct Elsewhere;

#[async_trait]
impl Images for Elsewhere {
    async fn exists(&self, _: &str) -> bool {
        true
    }

    async fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

#[async_trait]
impl Isolation for Elsewhere {
    async fn lacks(&self, _: IsolationLevel) -> Option<String> {
        None
    }
}
