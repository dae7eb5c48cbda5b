//! What reading from either database has in common: what rows and events mean, patterns to look for.

use bellglass_protocol::event::EventBody;

use crate::index::IndexRow;
use crate::{JobOutline, StoreError};

/// Where a job stands, by its row and by the events that this names: that its result was stored, and
/// that it ended.
pub(crate) fn outline(
    row: IndexRow,
    result: Option<EventBody>,
    end: Option<EventBody>,
) -> Result<JobOutline, StoreError> {
    let job = row.id;
    let unexpected = |body: &EventBody| {
        let kind = body.kind();
        StoreError::Corrupt(format!("`{kind}` of job {job} is not the event that its row names"))
    };
    let result = match result {
        Some(EventBody::ResultStored { result }) => Some(result),
        Some(other) => return Err(unexpected(&other)),
        None => None,
    };
    let error = match end {
        Some(EventBody::Finished { end }) => end.error,
        Some(other) => return Err(unexpected(&other)),
        None => None,
    };
    Ok(JobOutline {
        id: row.id,
        name: row.name,
        status: row.status,
        cancel_requested: row.cancel_requested,
        scheduled_at: row.scheduled_at,
        started_at: row.started_at,
        finished_at: row.finished_at,
        steps_done: row.steps_done,
        steps_total: row.steps_total,
        failed_steps: row.failed_steps,
        result,
        error,
        last_seq: row.last_seq,
    })
}

/// A pattern for LIKE that matches whatever contains the text, taken literally.
pub(crate) fn contains_pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 2);
    pattern.push('%');
    for c in text.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}

#[cfg(test)]
mod tests {
    use super::contains_pattern;

    #[test]
    fn patterns_take_text_literally() {
        for (text, pattern) in
            [("abc", "%abc%"), ("50%", r"%50\%%"), ("a_b", r"%a\_b%"), (r"c:\", r"%c:\\%")]
        {
            assert_eq!(contains_pattern(text), pattern);
        }
    }
}
