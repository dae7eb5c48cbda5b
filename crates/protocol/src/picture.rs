//! How large a picture may be that models are shown as it is.
//!
//! Both sides of the glass must agree on it: a screenshot is taken in such a size, so that nobody has
//! to change it afterwards.

/// The longer edge of a picture that models are given. Providers scale down what is larger, and then
/// the points that a model names are not those of the picture that we know.
pub const LONGEST_EDGE: u32 = 1568;

/// How many pixels such a picture has at the most.
pub const MOST_PIXELS: u32 = 1_150_000;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pictures_are_made_to_fit_and_keep_their_shape() {
        assert_eq!(fitting(1280, 800), (1280, 800));
        assert_eq!(fitting(2560, 1600), (1356, 847));
        assert_eq!(fitting(4096, 320), (1568, 122));
        assert_eq!(fitting(1, 20_000), (1, 1568));
        for (width, height) in [(1568, 1568), (4096, 4096), (3000, 1), (1569, 1), (1900, 1060)] {
            let (width, height) = fitting(width, height);
            assert!(width.max(height) <= LONGEST_EDGE && width * height <= MOST_PIXELS);
            assert_eq!(fitting(width, height), (width, height), "what fits is left as it is");
        }
    }
}
