//! Pictures of a job as a model is shown them: looked at whole, and made smaller where providers would.
//!
//! They come from a sandbox, so what they are is found out here, within bounds, and what is no picture
//! is not passed on: a provider would refuse the whole conversation because of it.

use std::io::Cursor;

use bellglass_agent::model::pictures::{LoadedPicture, MOST_BYTES};
use bellglass_protocol::picture::fitting;
use bellglass_protocol::step::encode_base64;
use bytes::Bytes;
use image::codecs::jpeg::JpegEncoder;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};

/// The longest edge of a picture that is looked at.
const LONGEST_EDGE: u32 = 16_384;

/// The most memory that looking at one may take.
const MOST_MEMORY: u64 = 256 << 20;

/// Makes a picture ready; nothing if it is none.
pub(crate) async fn load(content: Bytes) -> Option<LoadedPicture> {
    let made = tokio::task::spawn_blocking(move || {
        let (media_type, content) = made_to_fit(&content)?;
        Some(LoadedPicture { media_type, base64: encode_base64(&content) })
    });
    made.await.ok().flatten()
}

fn made_to_fit(content: &Bytes) -> Option<(&'static str, Bytes)> {
    let mut reader = ImageReader::new(Cursor::new(content)).with_guessed_format().ok()?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(LONGEST_EDGE);
    limits.max_image_height = Some(LONGEST_EDGE);
    limits.max_alloc = Some(MOST_MEMORY);
    reader.limits(limits);
    let format = reader.format()?;
    let picture = reader.decode().ok()?;
    let size = (picture.width(), picture.height());
    let fitting = fitting(size.0, size.1);
    let as_it_is = match format {
        ImageFormat::Png => Some("image/png"),
        ImageFormat::Jpeg => Some("image/jpeg"),
        ImageFormat::WebP => Some("image/webp"),
        // Some providers take no pictures that move, so it is its first that is shown.
        _ => None,
    };
    match as_it_is {
        Some(media_type) if fitting == size && content.len() <= MOST_BYTES => {
            Some((media_type, content.clone()))
        }
        _ if fitting == size => encoded(&picture),
        _ => encoded(&picture.thumbnail_exact(fitting.0, fitting.1)),
    }
}

/// Without loss, unless that takes too many bytes.
fn encoded(picture: &DynamicImage) -> Option<(&'static str, Bytes)> {
    let mut bytes = Cursor::new(Vec::new());
    // What is deeper than eight bits is nothing that a model sees.
    let plain = DynamicImage::ImageRgba8(picture.to_rgba8());
    plain.write_to(&mut bytes, ImageFormat::Png).ok()?;
    if bytes.get_ref().len() <= MOST_BYTES {
        return Some(("image/png", bytes.into_inner().into()));
    }
    let mut bytes = Vec::new();
    picture.to_rgb8().write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, 85)).ok()?;
    (bytes.len() <= MOST_BYTES).then(|| ("image/jpeg", bytes.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{Rgb, RgbImage, RgbaImage};

    /// A picture that cannot be packed well.
    fn noise(width: u32, height: u32) -> DynamicImage {
        let mut state = 1_u32;
        DynamicImage::ImageRgb8(RgbImage::from_fn(width, height, |_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Rgb([(state >> 24) as u8, (state >> 16) as u8, (state >> 8) as u8])
        }))
    }

    fn written(picture: &DynamicImage, format: ImageFormat) -> Bytes {
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, format).unwrap();
        bytes.into_inner().into()
    }

    fn size_of(content: &[u8]) -> (u32, u32) {
        let picture = image::load_from_memory(content).unwrap();
        (picture.width(), picture.height())
    }

    #[test]
    fn what_fits_is_passed_on_byte_for_byte() {
        let small = noise(300, 200);
        for (format, media_type) in [
            (ImageFormat::Png, "image/png"),
            (ImageFormat::Jpeg, "image/jpeg"),
            (ImageFormat::WebP, "image/webp"),
        ] {
            let content = written(&small, format);
            assert_eq!(made_to_fit(&content), Some((media_type, content)));
        }
    }

    #[test]
    fn what_is_too_large_is_made_smaller() {
        let (media_type, content) =
            made_to_fit(&written(&DynamicImage::new_rgb8(3000, 1500), ImageFormat::Png)).unwrap();
        assert_eq!((media_type, size_of(&content)), ("image/png", fitting(3000, 1500)));
        // One that cannot be packed well, in four colours, has too many bytes without loss.
        let quarters = noise(1200 * 4 / 3, 950).to_rgb8().into_raw();
        let heavy = RgbaImage::from_raw(1200, 950, quarters).unwrap();
        let (media_type, content) =
            made_to_fit(&written(&DynamicImage::ImageRgba8(heavy), ImageFormat::Png)).unwrap();
        assert_eq!((media_type, size_of(&content)), ("image/jpeg", (1200, 950)));
        assert!(content.len() <= MOST_BYTES);
        let (media_type, content) =
            made_to_fit(&written(&noise(30, 20), ImageFormat::Gif)).unwrap();
        assert_eq!((media_type, size_of(&content)), ("image/png", (30, 20)));
    }

    #[test]
    fn what_is_no_picture_is_not_passed_on() {
        let whole = written(&noise(100, 100), ImageFormat::Png);
        let mut vast = written(&DynamicImage::new_rgb8(1, 1), ImageFormat::Png).to_vec();
        // The header alone says that it is vast.
        vast[16..20].copy_from_slice(&1_000_000_u32.to_be_bytes());
        for content in [
            Bytes::new(),
            Bytes::from_static(b"<svg/>"),
            Bytes::from_static(b"\x89PNG\r\n\x1a\nnothing"),
            whole.slice(..whole.len() / 2),
            vast.into(),
        ] {
            assert_eq!(made_to_fit(&content), None, "{} bytes", content.len());
        }
    }
}
