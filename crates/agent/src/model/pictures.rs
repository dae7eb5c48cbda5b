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

/// The longer edge of a picture that models are given. Providers scale down what is larger, and then
/// the points that a model names are not those of the picture that we know.
pub const LONGEST_EDGE: u32 = 1568;

/// How many pixels such a picture has at the most.
pub const MOST_PIXELS: u32 = 1_150_000;

/// The most bytes of such a picture; providers take five million as base64.
pub const MOST_BYTES: usize = 3_500_000;

/// A size of the same shape that models are given as it is.
pub fn fitting(width: u32, height: u32) -> (u32, u32) {
    let (wide, high) = (f64::from(width.max(1)), f64::from(height.max(1)));
    let by_edge = f64::from(LONGEST_EDGE) / wide.max(high);
    let by_pixels = (f64::from(MOST_PIXELS) / (wide * high)).sqrt();
    let scale = by_edge.min(by_pixels);
    if scale >= 1.0 {
        return (width, height);
    }
    let scaled = |edge: f64| ((edge * scale).floor() as u32).max(1);
    (scaled(wide), scaled(high))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pictures_are_made_to_fit_and_keep_their_shape() {
        assert_eq!(fitting(1280, 800), (1280, 800));
        assert_eq!(fitting(2560, 1600), (1356, 847));
        assert_eq!(fitting(4096, 320), (1568, 122));
        assert_eq!(fitting(1, 20_000), (1, 1568));
        for (width, height) in [(1568, 1568), (4096, 4096), (3000, 1), (1569, 1)] {
            let (width, height) = fitting(width, height);
            assert!(width.max(height) <= LONGEST_EDGE && width * height <= MOST_PIXELS);
        }
    }
}
