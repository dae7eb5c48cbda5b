//! Pictures on their way to a model: named in a conversation by the artifacts that hold them, and
//! loaded by whoever can, right before the model is asked.
//!
//! So a conversation stays small and is the same for everybody who hears the same log.

use std::collections::HashMap;
use std::sync::Arc;

/// A picture that a tool made, by the artifact that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub artifact: Arc<str>,
    /// The size of the artifact.
    pub bytes: u64,
}

/// A picture as a model is sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedPicture {
    /// Such as `image/png`.
    pub media_type: &'static str,
    pub base64: String,
}

/// Whether a model can be shown pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    Sees,
    Blind,
}

/// The most bytes of a picture that models are given; providers take five million as base64.
pub const MOST_BYTES: usize = 3_500_000;

/// The pictures of a request: those that it names, and those of them that are loaded.
#[derive(Clone, Debug, Default)]
pub struct Pictures {
    named: Arc<Vec<Picture>>,
    loaded: Arc<HashMap<Arc<str>, Arc<LoadedPicture>>>,
}

impl Pictures {
    /// Pictures that are yet to be loaded.
    pub fn named(named: Arc<Vec<Picture>>) -> Self {
        Self { named, loaded: Arc::default() }
    }

    pub(crate) fn names(&self) -> Arc<Vec<Picture>> {
        self.named.clone()
    }

    /// The same pictures, with those that could be loaded.
    pub fn with(self, loaded: Arc<HashMap<Arc<str>, Arc<LoadedPicture>>>) -> Self {
        Self { loaded, ..self }
    }

    pub(super) fn loaded(&self, picture: &Picture) -> Option<&LoadedPicture> {
        self.loaded.get(&picture.artifact).map(|loaded| &**loaded)
    }
}
