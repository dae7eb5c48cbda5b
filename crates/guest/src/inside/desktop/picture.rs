//! Pictures of the screen, and where a point of one is on the screen.

use std::io::Cursor;

use bellglass_protocol::picture::fitting;
use x11rb::protocol::xproto::{ConnectionExt as _, ImageFormat};

use super::display::Display;
use super::{Broken, Done};

/// More pixels than any screen has: what a picture of somebody else's may have at the most.
const MOST_PIXELS: u64 = 1 << 26;

/// A part of the screen, in its pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) x: i32,
    pub(super) y: i32,
    pub(super) width: u32,
    pub(super) height: u32,
}

impl Area {
    /// The part of an area that is on the screen; nothing if none is.
    pub(super) fn within(self, screen: Self) -> Option<Self> {
        let edge = |start: i32, length: u32| i64::from(start) + i64::from(length);
        let right = edge(self.x, self.width).min(screen.width.into());
        let bottom = edge(self.y, self.height).min(screen.height.into());
        let (x, y) = (self.x.max(0), self.y.max(0));
        let width = u32::try_from(right - i64::from(x)).ok().filter(|width| *width > 0)?;
        let height = u32::try_from(bottom - i64::from(y)).ok().filter(|height| *height > 0)?;
        Some(Self { x, y, width, height })
    }
}

/// The last picture that was given: what it showed, and how large it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) number: u64,
    pub(super) area: Area,
    pub(super) width: u32,
    pub(super) height: u32,
}

impl View {
    /// Before the first picture, a point is one of the screen itself, however large that is.
    pub(super) const BEFORE_THE_FIRST: Self =
        Self { number: 0, area: Area { x: 0, y: 0, width: 1, height: 1 }, width: 1, height: 1 };

    /// Where a point of the picture is on the screen: the middle of what it stands for.
    pub(super) fn on_screen(&self, x: i32, y: i32) -> (i16, i16) {
        let place = |at: i32, start: i32, whole: u32, shown: u32| {
            let scale = f64::from(whole) / f64::from(shown.max(1));
            let within = if whole == shown { f64::from(at) } else { (f64::from(at) + 0.5) * scale };
            (f64::from(start) + within).floor().clamp(0.0, f64::from(i16::MAX)) as i16
        };
        (
            place(x, self.area.x, self.area.width, self.width),
            place(y, self.area.y, self.area.height, self.height),
        )
    }

    /// Where a point of the screen is in the picture.
    pub(super) fn in_picture(&self, x: i16, y: i16) -> (i32, i32) {
        let place = |at: i16, start: i32, whole: u32, shown: u32| {
            let scale = f64::from(shown) / f64::from(whole.max(1));
            (f64::from(i32::from(at) - start) * scale).floor() as i32
        };
        (
            place(x, self.area.x, self.area.width, self.width),
            place(y, self.area.y, self.area.height, self.height),
        )
    }

    /// What every picture says about itself.
    pub(super) fn words(&self) -> String {
        let Area { x, y, width, .. } = self.area;
        let scale = f64::from(self.width) / f64::from(width.max(1));
        format!(
            "screenshot {}: {}x{} pixels, scale {scale:.3}, origin {x},{y} of the screen; coordinates \
             of later actions are in this picture",
            self.number, self.width, self.height
        )
    }
}

/// How large the picture of an area is made: not wider than that, and if it is to fit, of a size that
/// models are shown as it is.
pub(super) fn size(area: Area, max_width: Option<u32>, fit: bool) -> (u32, u32) {
    let Area { width, height, .. } = area;
    let (width, height) = match max_width.filter(|most| (1..width).contains(most)) {
        Some(most) => {
            let scaled = u64::from(height) * u64::from(most) / u64::from(width);
            (most, scaled.max(1) as u32)
        }
        None => (width, height),
    };
    if fit { fitting(width, height) } else { (width, height) }
}

/// Takes an area of the screen as red, green and blue.
pub(super) fn pixels(display: &Display, area: Area) -> Done<Vec<u8>> {
    let wanted = area.width as usize * area.height as usize * 4;
    let data = match &mut *display.shared_pixels(area) {
        Some(shared) => shared.take(&display.connection, display.root, area)?,
        None => over_the_socket(display, area)?,
    };
    if data.len() < wanted {
        return Err(Broken("the screen is not one of 24 bits".into()));
    }
    let mut colours = vec![0; wanted / 4 * 3];
    for (colour, pixel) in colours.chunks_exact_mut(3).zip(data.chunks_exact(4)) {
        colour.copy_from_slice(&[pixel[2], pixel[1], pixel[0]]);
    }
    Ok(colours)
}

fn over_the_socket(display: &Display, area: Area) -> Done<Vec<u8>> {
    let image = display
        .connection
        .get_image(
            ImageFormat::Z_PIXMAP,
            display.root,
            area.x as i16,
            area.y as i16,
            area.width as u16,
            area.height as u16,
            u32::MAX,
        )?
        .reply()?;
    Ok(image.data)
}

/// Scales down by averaging: small text stays as readable as it can.
pub(super) fn scaled(colours: &[u8], from: (u32, u32), to: (u32, u32)) -> Vec<u8> {
    let (width, height) = (from.0 as usize, from.1 as usize);
    let mut small = Vec::with_capacity(to.0 as usize * to.1 as usize * 3);
    let span = |at: u32, to: u32, whole: usize| {
        let start = at as usize * whole / to as usize;
        let end = ((at as usize + 1) * whole).div_ceil(to as usize);
        start..end.clamp(start + 1, whole)
    };
    for row in 0..to.1 {
        let rows = span(row, to.1, height);
        for column in 0..to.0 {
            let columns = span(column, to.0, width);
            let mut sums = [0usize; 3];
            for y in rows.clone() {
                let line = &colours[(y * width + columns.start) * 3..(y * width + columns.end) * 3];
                for pixel in line.chunks_exact(3) {
                    sums.iter_mut().zip(pixel).for_each(|(sum, part)| *sum += usize::from(*part));
                }
            }
            let count = rows.len() * columns.len();
            small.extend(sums.map(|sum| (sum / count) as u8));
        }
    }
    small
}

pub(super) fn png(colours: &[u8], (width, height): (u32, u32)) -> Done<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    // On what a screen shows, trying several ways for each line costs far more than it saves.
    encoder.set_compression(png::Compression::Fastest);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(colours)?;
        writer.finish()
    });
    written.map_err(|error| Broken(error.to_string()))?;
    Ok(bytes)
}

/// A picture of eight bits as red, green and blue, and its size.
pub(super) fn unpacked(png: &[u8]) -> Done<(Vec<u8>, (u32, u32))> {
    let broken = |error: png::DecodingError| Broken(error.to_string());
    let mut reader = png::Decoder::new(Cursor::new(png)).read_info().map_err(broken)?;
    let (width, height) = reader.info().size();
    let parts = match reader.output_color_type() {
        (png::ColorType::Rgb, png::BitDepth::Eight) => 3,
        (png::ColorType::Rgba, png::BitDepth::Eight) => 4,
        other => return Err(Broken(format!("a picture of {other:?} is not known"))),
    };
    let pixels = u64::from(width) * u64::from(height);
    if pixels > MOST_PIXELS {
        return Err(Broken("the picture is too large".into()));
    }
    let mut content = vec![0; pixels as usize * parts];
    reader.next_frame(&mut content).map_err(broken)?;
    if parts == 4 {
        let colours = content.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]);
        content = colours.collect();
    }
    Ok((content, (width, height)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_go_there_and_back() {
        let area = Area { x: 100, y: 50, width: 800, height: 400 };
        let view = View { number: 1, area, width: 400, height: 200 };
        assert_eq!(view.on_screen(0, 0), (101, 51));
        assert_eq!(view.on_screen(399, 199), (899, 449));
        assert_eq!(view.in_picture(101, 51), (0, 0));
        let same = View::BEFORE_THE_FIRST;
        assert_eq!((same.on_screen(7, 9), same.in_picture(7, 9)), ((7, 9), (7, 9)));
    }

    #[test]
    fn areas_are_cut_to_the_screen() {
        let area = |x, y, width, height| Area { x, y, width, height };
        let screen = area(0, 0, 100, 100);
        assert_eq!(area(-5, 90, 20, 20).within(screen), Some(area(0, 90, 15, 10)));
        assert_eq!(area(100, 0, 5, 5).within(screen), None);
        assert_eq!(area(i32::MAX, 0, u32::MAX, 5).within(screen), None);
    }

    #[test]
    fn pictures_are_as_large_as_they_may_be() {
        let area = |width, height| Area { x: 0, y: 0, width, height };
        for (of, max_width, fit, made) in [
            (area(1280, 800), None, true, (1280, 800)),
            (area(2560, 1600), None, false, (2560, 1600)),
            (area(2560, 1600), None, true, (1356, 847)),
            (area(2560, 1600), Some(640), true, (640, 400)),
            (area(2560, 1600), Some(5000), true, (1356, 847)),
            // A high window is narrower than anything that limits widths would touch.
            (area(900, 1600), None, true, (804, 1429)),
            (area(900, 1600), Some(850), true, (804, 1429)),
            (area(2000, 1), Some(1), false, (1, 1)),
            (area(20, 10), Some(0), false, (20, 10)),
        ] {
            assert_eq!(size(of, max_width, fit), made, "{of:?} {max_width:?} {fit}");
        }
    }

    #[test]
    fn what_is_packed_can_be_unpacked() {
        let colours: Vec<u8> = (0..2 * 3 * 3).collect();
        let packed = png(&colours, (2, 3)).unwrap();
        assert_eq!(unpacked(&packed).unwrap(), (colours, (2, 3)));
        assert!(unpacked(&packed[..packed.len() / 2]).is_err());
        assert!(unpacked(b"no picture").is_err());
    }

    #[test]
    fn scaling_averages() {
        let four = [0, 0, 0, 200, 200, 200, 100, 100, 100, 100, 100, 100];
        assert_eq!(scaled(&four, (2, 2), (1, 1)), [100, 100, 100]);
        assert_eq!(scaled(&four, (2, 2), (2, 2)), four);
        assert_eq!(scaled(&four, (4, 1), (3, 1)).len(), 9);
    }
}
