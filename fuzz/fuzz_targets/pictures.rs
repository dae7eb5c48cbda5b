//! A file of a workspace that is to be a picture, up to what a model is sent.

#![no_main]

// The worker's file asks another crate for two names, which stand below.
extern crate self as bellglass_agent;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/worker/src/pictures.rs"]
mod pictures;

pub mod model {
    pub mod pictures {
        pub struct LoadedPicture {
            pub media_type: &'static str,
            pub base64: String,
        }

        pub const MOST_BYTES: usize = 3_500_000;
    }
}

fuzz_target!(|input: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let Some(made) = runtime.block_on(pictures::load(Bytes::copy_from_slice(input))) else {
        return;
    };
    assert!(["image/png", "image/jpeg", "image/webp"].contains(&made.media_type));
    assert!(!made.base64.is_empty());
    assert!(made.base64.len() <= model::pictures::MOST_BYTES.div_ceil(3) * 4);
});
