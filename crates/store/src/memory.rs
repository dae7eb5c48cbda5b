//! Memories across jobs: what is kept, what may be asked, and how two ways of looking are put together.

use std::collections::HashMap;

use bellglass_protocol::id::JobId;
use jiff::Timestamp;

/// Something worth knowing in later tasks of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    pub id: i64,
    /// Whose memory it is; nobody's where the server has no users.
    pub owner: Option<String>,
    pub project: String,
    pub text: String,
    /// The job that left it; none if somebody wrote it by hand.
    pub job: Option<JobId>,
    pub at: Timestamp,
}

/// A memory that is to be kept.
#[derive(Clone, Debug)]
pub struct NewMemory {
    pub owner: Option<String>,
    pub project: String,
    pub text: String,
    pub job: Option<JobId>,
    /// Where it lies for those who look by meaning.
    pub vector: Option<Vec<f32>>,
}

/// Which memories to find.
#[derive(Clone, Debug, Default)]
pub struct MemoryQuery {
    pub whose: Whose,
    /// Of this project only.
    pub project: Option<String>,
    /// The best for these words come first; without them the newest.
    pub words: Option<String>,
    /// The best for this meaning come first too.
    pub vector: Option<Vec<f32>>,
    pub limit: u32,
}

/// What may happen to memories. The answer is the memory as it then is; nothing if there is none, or
/// none was added because the same text is kept already.
#[derive(Debug)]
pub(crate) enum MemoryChange {
    Add(NewMemory),
    Edit { id: i64, text: String, vector: Option<Vec<f32>> },
    Delete { id: i64 },
}

/// Memories that are compared by meaning. A project has a few hundred.
pub(crate) const MOST_COMPARED: u32 = 20_000;

/// Which of the vectors lie nearest, best first: four times as many as are asked for.
pub(crate) fn by_nearness(vector: &[f32], kept: &[(i64, Vec<u8>)], limit: u32) -> Vec<i64> {
    let mut near: Vec<(i64, f32)> = kept
        .iter()
        .filter_map(|(id, bytes)| Some((*id, nearness(vector, &vector_of(bytes))?)))
        .collect();
    near.sort_by(|one, other| other.1.total_cmp(&one.1));
    near.truncate(limit.saturating_mul(4) as usize);
    near.into_iter().map(|(id, _)| id).collect()
}

/// Whose memories are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Whose {
    #[default]
    Anybodys,
    /// Those of one user, or those that are nobody's.
    Of(Option<String>),
}

impl Whose {
    /// What the keys of such projects begin with, up to the `/`.
    pub(crate) fn prefix(&self) -> Option<String> {
        match self {
            Self::Anybodys => None,
            Self::Of(None) => Some(String::new()),
            Self::Of(Some(owner)) => Some(format!("{owner}/")),
        }
    }
}

/// A project as it is kept: two users' projects of one name are two. No name has a `/` in it.
pub(crate) fn project_key(owner: Option<&str>, project: &str) -> String {
    match owner {
        Some(owner) => format!("{owner}/{project}"),
        None => project.to_owned(),
    }
}

/// The owner and the name of a project as it is kept.
pub(crate) fn owner_and_project(key: String) -> (Option<String>, String) {
    match key.split_once('/') {
        Some((owner, project)) => (Some(owner.to_owned()), project.to_owned()),
        None => (None, key),
    }
}

/// Puts two orders of the same things together: what is high in both comes first.
///
/// Each place counts the inverse of its number, moved so that the first places do not drown all
/// others (reciprocal rank fusion).
pub(crate) fn fused(by_words: &[i64], by_meaning: &[i64]) -> Vec<i64> {
    const MOVED: f64 = 60.0;
    let mut scores: HashMap<i64, f64> = HashMap::new();
    for order in [by_words, by_meaning] {
        for (place, id) in order.iter().enumerate() {
            *scores.entry(*id).or_default() += 1.0 / (MOVED + place as f64);
        }
    }
    let mut ids: Vec<(i64, f64)> = scores.into_iter().collect();
    ids.sort_by(|one, other| other.1.total_cmp(&one.1).then(other.0.cmp(&one.0)));
    ids.into_iter().map(|(id, _)| id).collect()
}

/// How near two meanings are, from -1 to 1; nothing for vectors that cannot be compared.
fn nearness(one: &[f32], other: &[f32]) -> Option<f32> {
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let lengths = length(one) * length(other);
    if one.len() != other.len() || lengths.is_nan() || lengths <= 0.0 {
        return None;
    }
    Some(one.iter().zip(other).map(|(x, y)| x * y).sum::<f32>() / lengths)
}

/// A query of FTS5 that finds texts with any of the words. Whatever is in it, it is no syntax.
pub(crate) fn any_of(words: &str) -> Option<String> {
    let words: Vec<String> = words_of(words).iter().map(|word| format!("\"{word}\"")).collect();
    (!words.is_empty()).then(|| words.join(" OR "))
}

/// The words of a text that are worth looking for: letters and digits only.
pub(crate) fn words_of(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| word.chars().count() > 1)
        .take(64)
        .collect()
}

pub(crate) fn vector_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn vector_of(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_high_in_both_orders_comes_first() {
        assert_eq!(fused(&[1, 2, 3], &[2, 4]), [2, 1, 4, 3]);
        assert_eq!(fused(&[], &[5, 6]), [5, 6]);
    }

    #[test]
    fn words_are_never_syntax() {
        assert_eq!(
            any_of("a NEAR(x y) \"drop* OR").as_deref(),
            Some("\"NEAR\" OR \"drop\" OR \"OR\"")
        );
        assert_eq!(any_of("?! -"), None);
    }

    #[test]
    fn vectors_are_compared_only_where_that_makes_sense() {
        assert_eq!(nearness(&[1.0, 0.0], &[2.0, 0.0]), Some(1.0));
        assert_eq!(nearness(&[1.0, 0.0], &[0.0, 3.0]), Some(0.0));
        assert_eq!(nearness(&[1.0], &[1.0, 0.0]), None);
        assert_eq!(nearness(&[0.0], &[0.0]), None);
        let vector = vec![0.5, -3.25];
        assert_eq!(vector_of(&vector_bytes(&vector)), vector);
    }
}
