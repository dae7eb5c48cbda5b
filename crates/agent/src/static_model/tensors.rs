//! Tensors in a file of the format safetensors: a header in JSON, then the numbers. Believes nothing of
//! what the header says, and reads no more of the numbers than is asked for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::StaticModelError;

pub(super) const FILE: &str = "model.safetensors";

/// The longest header, which names a handful of tensors.
const LONGEST_HEADER: u64 = 1 << 20;

/// The most numbers of a tensor that is read as a whole: one for each token.
const MOST_NUMBERS: usize = 4_000_000;

/// The most numbers in a row.
const MOST_COLUMNS: usize = 16_384;

#[derive(Debug)]
pub(super) struct Tensors {
    file: Arc<File>,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    kind: Kind,
    shape: Vec<usize>,
    /// Where its numbers begin in the file.
    start: u64,
}

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Kind {
    F64,
    F32,
    F16,
    #[serde(rename = "BF16")]
    Bf16,
    I64,
    I32,
    I8,
}

#[derive(Deserialize)]
struct Described {
    dtype: Kind,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// A tensor of rows, of which each is read when it is needed.
#[derive(Debug)]
pub(super) struct Matrix {
    file: Arc<File>,
    kind: Kind,
    rows: usize,
    columns: usize,
    start: u64,
}

impl Tensors {
    pub(super) fn open(path: &Path) -> Result<Self, StaticModelError> {
        let mut file = File::open(path).map_err(not_read)?;
        let bytes = file.metadata().map_err(not_read)?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(not_read)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER || length + 8 > bytes {
            return Err(unusable("its header has an impossible length".into()));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(not_read)?;
        let header: BTreeMap<String, Value> = serde_json::from_slice(&header)
            .map_err(|error| unusable(format!("its header makes no sense: {error}")))?;
        let mut tensors = BTreeMap::new();
        for (name, described) in header {
            // Tensors of kinds that are unknown here may be there and are not used.
            let Ok(described) = serde_json::from_value::<Described>(described) else { continue };
            let (start, end) = described.data_offsets;
            let numbers = described
                .shape
                .iter()
                .try_fold(1_u64, |product, length| product.checked_mul(*length as u64));
            let wanted =
                numbers.and_then(|numbers| numbers.checked_mul(described.dtype.bytes() as u64));
            let room = bytes - 8 - length;
            if end > room || end.checked_sub(start) != wanted {
                return Err(unusable(format!("its tensor {name} has impossible bounds")));
            }
            let start = 8 + length + start;
            tensors.insert(name, Tensor { kind: described.dtype, shape: described.shape, start });
        }
        Ok(Self { file: Arc::new(file), tensors })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub(super) fn matrix(&self, name: &str) -> Result<Matrix, StaticModelError> {
        let no_matrix = || unusable(format!("its tensor {name} is no matrix"));
        let tensor = self.tensors.get(name).ok_or_else(no_matrix)?;
        let [rows, columns] = tensor.shape[..] else { return Err(no_matrix()) };
        if rows == 0 || !(1..=MOST_COLUMNS).contains(&columns) {
            return Err(no_matrix());
        }
        let (file, kind, start) = (self.file.clone(), tensor.kind, tensor.start);
        Ok(Matrix { file, kind, rows, columns, start })
    }

    /// All numbers of a tensor that has one for each token, if there is such a tensor.
    pub(super) fn numbers(&self, name: &str) -> Result<Option<Vec<f32>>, StaticModelError> {
        let Some(tensor) = self.tensors.get(name) else { return Ok(None) };
        let [count] = tensor.shape[..] else {
            return Err(unusable(format!("its tensor {name} is no list")));
        };
        if count > MOST_NUMBERS {
            return Err(unusable(format!("its tensor {name} is too long")));
        }
        read(&self.file, tensor.kind, tensor.start, count).map(Some)
    }
}

impl Matrix {
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// One row; nothing if there is no such row.
    pub(super) fn row(&self, at: u32) -> Result<Option<Vec<f32>>, StaticModelError> {
        if at as usize >= self.rows {
            return Ok(None);
        }
        let width = self.columns * self.kind.bytes();
        let start = self.start + u64::from(at) * width as u64;
        read(&self.file, self.kind, start, self.columns).map(Some)
    }
}

fn read(file: &File, kind: Kind, start: u64, count: usize) -> Result<Vec<f32>, StaticModelError> {
    let mut bytes = vec![0; count * kind.bytes()];
    file.read_exact_at(&mut bytes, start).map_err(not_read)?;
    Ok(bytes.chunks_exact(kind.bytes()).map(|bytes| kind.number(bytes)).collect())
}

impl Kind {
    fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I8 => 1,
        }
    }

    /// A number from exactly as many bytes as it has. Whole numbers are those of rows, which are few
    /// enough to be exact.
    fn number(self, bytes: &[u8]) -> f32 {
        let word = |length: usize| {
            bytes[..length].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte))
        };
        match self {
            Self::F64 => f64::from_bits(word(8)) as f32,
            Self::F32 => f32::from_bits(word(4) as u32),
            Self::F16 => half(word(2) as u16),
            Self::Bf16 => f32::from_bits((word(2) as u32) << 16),
            Self::I64 => word(8) as i64 as f32,
            Self::I32 => word(4) as u32 as i32 as f32,
            Self::I8 => f32::from(bytes[0] as i8),
        }
    }
}

/// A number of sixteen bits: one for the sign, five for the exponent, ten for the rest.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let fraction = f32::from(bits & 0x3ff);
    match i32::from(bits >> 10 & 0x1f) {
        0 => sign * fraction * 2.0_f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        exponent => sign * (1.0 + fraction / 1024.0) * 2.0_f32.powi(exponent - 15),
    }
}

fn not_read(source: std::io::Error) -> StaticModelError {
    StaticModelError::NotRead { file: FILE, source }
}

pub(super) fn unusable(why: String) -> StaticModelError {
    StaticModelError::Unusable { file: FILE, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(header: &str, data: &[u8]) -> Result<Tensors, StaticModelError> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(data);
        opened_bytes(&file)
    }

    fn opened_bytes(bytes: &[u8]) -> Result<Tensors, StaticModelError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, bytes).unwrap();
        Tensors::open(&path)
    }

    #[test]
    fn numbers_of_all_kinds_are_read() {
        for (kind, bytes, number) in [
            (Kind::F64, &(-2.5_f64).to_le_bytes()[..], -2.5),
            (Kind::F32, &0.25_f32.to_le_bytes()[..], 0.25),
            (Kind::F16, &[0x00, 0x3c], 1.0),
            (Kind::F16, &[0x00, 0xc1], -2.5),
            (Kind::F16, &[0x01, 0x00], 2.0_f32.powi(-24)),
            (Kind::F16, &[0x00, 0xfc], f32::NEG_INFINITY),
            (Kind::Bf16, &[0x20, 0xc0], -2.5),
            (Kind::I64, &(-3_i64).to_le_bytes()[..], -3.0),
            (Kind::I32, &70_000_i32.to_le_bytes()[..], 70_000.0),
            (Kind::I8, &[0xff], -1.0),
        ] {
            assert_eq!(kind.number(bytes), number, "{kind:?} {bytes:?}");
        }
    }

    #[test]
    fn headers_that_lie_are_refused() {
        assert!(
            opened(r#"{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#, &[0; 8]).is_ok()
        );
        for header in [
            "",
            "[]",
            "{",
            r#"{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,9]}}"#,
            r#"{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[8,0]}}"#,
            r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,8]}}"#,
            r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#,
            r#"{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[18446744073709551608,18446744073709551615]}}"#,
        ] {
            assert!(opened(header, &[0; 8]).is_err(), "{header}");
        }
        for bytes in [&b""[..], b"1234567", &u64::MAX.to_le_bytes(), &9_u64.to_le_bytes()] {
            assert!(opened_bytes(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn only_a_matrix_is_a_matrix() {
        let header = r#"{"a":{"dtype":"I8","shape":[2,2],"data_offsets":[0,4]},
            "b":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},
            "c":{"dtype":"I8","shape":[0,4],"data_offsets":[0,0]}}"#;
        let tensors = opened(header, &[1, 2, 3, 4]).unwrap();
        let matrix = tensors.matrix("a").unwrap();
        assert_eq!(matrix.row(1).unwrap(), Some(vec![3.0, 4.0]));
        assert_eq!(matrix.row(2).unwrap(), None);
        assert!(tensors.matrix("b").is_err() && tensors.matrix("c").is_err());
        assert_eq!(tensors.numbers("b").unwrap(), Some(vec![1.0, 2.0, 3.0, 4.0]));
        assert!(tensors.numbers("a").is_err());
        assert_eq!(tensors.numbers("d").unwrap(), None);
    }
}
