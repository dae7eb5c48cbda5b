//! Downloads: which have begun, how far they are, and what is told of them.
//!
//! The browser downloads on its own. Without a word on it, a caller could not tell a file that has
//! come from one that is half there, nor know its name.

use std::path::Path;

use bellglass_protocol::quantity::ByteSize;
use serde_json::Value;

/// Downloads that are known at once; of more, the oldest are forgotten.
const MOST: usize = 20;
/// What is shown of a name, which may be as long as a file name can be.
const LONGEST_NAME: usize = 255;

/// Those that somebody is still to be told of.
#[derive(Default)]
pub(super) struct Downloads {
    known: Vec<Download>,
    /// How many there have been.
    begun: u64,
}

struct Download {
    id: String,
    /// Which one it is, counted from the first.
    number: u64,
    /// The frame that it was begun in.
    frame: String,
    name: String,
    received: u64,
    total: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Running,
    Completed,
    Cancelled,
}

impl Downloads {
    pub(super) fn hear(&mut self, method: &str, event: &Value) {
        let id = event["guid"].as_str().unwrap_or_default();
        match method {
            "Browser.downloadWillBegin" => {
                self.begun += 1;
                if self.known.len() >= MOST {
                    self.known.remove(0);
                }
                self.known.push(Download {
                    id: id.into(),
                    number: self.begun,
                    frame: event["frameId"].as_str().unwrap_or_default().into(),
                    name: shown(event["suggestedFilename"].as_str().unwrap_or_default()),
                    received: 0,
                    total: 0,
                    state: State::Running,
                });
            }
            "Browser.downloadProgress" => {
                if let Some(known) = self.known.iter_mut().find(|known| known.id == id) {
                    known.hear(event);
                }
            }
            _ => {}
        }
    }

    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Whether one began in this frame after so many others.
    pub(super) fn begun_in(&self, frame: &str, before: u64) -> bool {
        self.known.iter().any(|known| known.number > before && known.frame == frame)
    }

    /// Whether one still runs that began after so many others.
    pub(super) fn run_since(&self, before: u64) -> bool {
        self.known.iter().any(|known| known.number > before && known.state == State::Running)
    }

    /// A line for each. Those that have ended are told once, the others until they have.
    pub(super) fn take_words(&mut self) -> Vec<String> {
        let words = self.known.iter().map(Download::words).collect();
        self.known.retain(|known| known.state == State::Running);
        words
    }
}

impl Download {
    fn hear(&mut self, event: &Value) {
        let bytes = |name: &str| event[name].as_f64().unwrap_or_default() as u64;
        (self.received, self.total) = (bytes("receivedBytes"), bytes("totalBytes"));
        self.state = match event["state"].as_str() {
            Some("completed") => State::Completed,
            Some("canceled") => State::Cancelled,
            _ => State::Running,
        };
        // It need not be called what was suggested.
        let path = event["filePath"].as_str().map(Path::new);
        if let Some(name) = path.and_then(Path::file_name).filter(|_| self.is_completed()) {
            self.name = shown(&name.to_string_lossy());
        }
    }

    fn is_completed(&self) -> bool {
        self.state == State::Completed
    }

    fn words(&self) -> String {
        let (name, received) = (&self.name, ByteSize(self.received));
        match self.state {
            State::Completed => format!("downloaded downloads/{name}, {received}"),
            State::Cancelled => {
                format!("the download of {name} was cancelled or broke off after {received}")
            }
            State::Running if self.total > 0 => {
                let total = ByteSize(self.total);
                format!("the download of {name} still runs: {received} of {total} so far")
            }
            State::Running => format!("the download of {name} still runs: {received} so far"),
        }
    }
}

/// A name as it can stand in a line.
fn shown(name: &str) -> String {
    let name = &name[..name.floor_char_boundary(LONGEST_NAME)];
    name.chars().map(|each| if each.is_control() { '\u{fffd}' } else { each }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn begin(downloads: &mut Downloads, id: &str) {
        let name = format!("{id}.bin");
        let event = json!({ "guid": id, "frameId": "page", "suggestedFilename": name });
        downloads.hear("Browser.downloadWillBegin", &event);
    }

    fn progress(downloads: &mut Downloads, id: &str, state: &str, received: u64) {
        let path = (state == "completed").then(|| format!("/workspace/downloads/{id} (1).bin"));
        let event = json!({
            "guid": id, "state": state, "receivedBytes": received, "totalBytes": 50,
            "filePath": path,
        });
        downloads.hear("Browser.downloadProgress", &event);
    }

    #[test]
    fn a_download_is_told_until_it_has_ended() {
        let mut downloads = Downloads::default();
        begin(&mut downloads, "a");
        begin(&mut downloads, "b");
        assert!(downloads.run_since(0) && downloads.run_since(1) && !downloads.run_since(2));
        assert!(downloads.begun_in("page", 1) && !downloads.begun_in("page", 2));
        assert!(!downloads.begun_in("another", 0));
        progress(&mut downloads, "a", "inProgress", 20);
        progress(&mut downloads, "b", "canceled", 3);
        progress(&mut downloads, "unknown", "completed", 50);
        assert_eq!(
            downloads.take_words(),
            [
                "the download of a.bin still runs: 20 B of 50 B so far",
                "the download of b.bin was cancelled or broke off after 3 B"
            ]
        );
        progress(&mut downloads, "a", "completed", 50);
        assert!(!downloads.run_since(0));
        assert_eq!(downloads.take_words(), ["downloaded downloads/a (1).bin, 50 B"]);
        assert!(downloads.take_words().is_empty());
    }

    #[test]
    fn a_page_that_downloads_without_end_fills_no_memory() {
        let mut downloads = Downloads::default();
        for n in 0..5 * MOST {
            begin(&mut downloads, &format!("{n}{}", "x".repeat(2 * LONGEST_NAME)));
        }
        assert_eq!(downloads.begun(), 5 * MOST as u64);
        assert_eq!(downloads.known.len(), MOST);
        assert!(downloads.known.iter().all(|known| known.name.len() <= LONGEST_NAME));
    }
}
