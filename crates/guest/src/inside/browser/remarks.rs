//! What pages say and what goes wrong with them, kept until somebody asks for it.

use std::collections::HashMap;

use serde_json::Value;

use super::dialogs;

/// Remarks that are kept.
const MOST_REMARKS: usize = 200;
const LONGEST_REMARK: usize = 1000;
/// What pages load at the same time, and the longest address that is kept of it.
const MOST_REQUESTS: usize = 1000;
const LONGEST_ADDRESS: usize = 500;

#[derive(Default)]
pub(super) struct Remarks {
    remarks: Vec<String>,
    /// Addresses of what is being loaded: what fails says only its number.
    addresses: HashMap<String, String>,
    /// By its number, the frame that waits for what is being loaded to be shown in it.
    coming: HashMap<String, String>,
}

impl Remarks {
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Whether a frame waits for the next thing to show. That of a page is called as its target.
    pub(super) fn is_coming(&self, frame: &str) -> bool {
        self.coming.values().any(|waiting| waiting == frame)
    }

    pub(super) fn hear(&mut self, method: &str, event: &Value) {
        self.note_frame(method, event);
        if let Some(mut remark) = self.remark(method, event)
            && self.remarks.len() < MOST_REMARKS
        {
            remark.truncate(remark.floor_char_boundary(LONGEST_REMARK));
            self.remarks.push(remark);
        }
    }

    fn note_frame(&mut self, method: &str, event: &Value) {
        let id = word(&event["requestId"]);
        match method {
            "Network.requestWillBeSent" if event["type"] == "Document" => {
                if self.coming.len() >= MOST_REQUESTS {
                    self.coming.clear();
                }
                self.coming.insert(id.into(), word(&event["frameId"]).into());
            }
            "Network.responseReceived" | "Network.loadingFinished" | "Network.loadingFailed" => {
                self.coming.remove(id);
            }
            _ => {}
        }
    }

    /// What an event means to whoever looks for what is wrong with a page.
    fn remark(&mut self, method: &str, event: &Value) -> Option<String> {
        let id = || event["requestId"].as_str().unwrap_or_default();
        Some(match method {
            "Page.javascriptDialogOpening" => dialogs::words(event),
            "Network.requestWillBeSent" => {
                if self.addresses.len() >= MOST_REQUESTS {
                    self.addresses.clear();
                }
                let address = word(&event["request"]["url"]);
                let end = address.floor_char_boundary(LONGEST_ADDRESS);
                self.addresses.insert(id().into(), address[..end].into());
                return None;
            }
            "Network.loadingFinished" => {
                self.addresses.remove(id());
                return None;
            }
            "Network.loadingFailed" => {
                let address = self.addresses.remove(id()).unwrap_or_default();
                // So ends what becomes a download instead of a page; that is told elsewhere.
                if event["type"] == "Document" && event["errorText"] == "net::ERR_ABORTED" {
                    return None;
                }
                format!("network: {} for {address}", word(&event["errorText"]))
            }
            "Network.responseReceived" if event["response"]["status"].as_u64()? >= 400 => {
                let response = &event["response"];
                format!("network: {} for {}", response["status"], word(&response["url"]))
            }
            "Runtime.consoleAPICalled" => {
                let arguments = event["args"].as_array().into_iter().flatten();
                let words: Vec<String> = arguments
                    .map(|argument| match &argument["value"] {
                        Value::Null => word(&argument["description"]).into(),
                        Value::String(text) => text.clone(),
                        other => other.to_string(),
                    })
                    .collect();
                format!("console {}: {}", word(&event["type"]), words.join(" "))
            }
            "Runtime.exceptionThrown" => {
                let details = &event["exceptionDetails"];
                let described = word(&details["exception"]["description"]);
                let text = if described.is_empty() { word(&details["text"]) } else { described };
                format!("exception: {text}")
            }
            "Log.entryAdded" => {
                let entry = &event["entry"];
                let (level, text, url) =
                    (word(&entry["level"]), word(&entry["text"]), word(&entry["url"]));
                format!("log {level}: {text} {url}")
            }
            _ => return None,
        })
    }
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_goes_wrong_on_a_page_is_noted_and_the_rest_is_not() {
        let mut remarks = Remarks::default();
        for (method, event) in [
            (
                "Runtime.consoleAPICalled",
                json!({ "type": "error", "args": [{ "value": "no" }, { "value": 3 }] }),
            ),
            ("Network.responseReceived", json!({ "response": { "status": 200, "url": "a" } })),
            ("Network.responseReceived", json!({ "response": { "status": 404, "url": "b" } })),
            ("Network.requestWillBeSent", json!({ "requestId": "1", "request": { "url": "c" } })),
            ("Network.requestWillBeSent", json!({ "requestId": "2", "request": { "url": "d" } })),
            ("Network.loadingFinished", json!({ "requestId": "1" })),
            ("Network.loadingFailed", json!({ "requestId": "2", "errorText": "net::ERR_FAILED" })),
            (
                "Network.loadingFailed",
                json!({ "requestId": "3", "type": "Document", "errorText": "net::ERR_ABORTED" }),
            ),
            ("Page.loadEventFired", json!({})),
        ] {
            remarks.hear(method, &event);
        }
        assert!(remarks.addresses.is_empty());
        assert_eq!(
            remarks.take(),
            ["console error: no 3", "network: 404 for b", "network: net::ERR_FAILED for d"]
        );
        assert!(remarks.take().is_empty());
    }

    #[test]
    fn a_frame_waits_until_what_it_shows_next_has_come() {
        let mut remarks = Remarks::default();
        let asked = |kind: &str| json!({ "requestId": kind, "type": kind, "frameId": "a" });
        remarks.hear("Network.requestWillBeSent", &asked("Image"));
        assert!(!remarks.is_coming("a"));
        for end in ["Network.responseReceived", "Network.loadingFailed"] {
            remarks.hear("Network.requestWillBeSent", &asked("Document"));
            assert!(remarks.is_coming("a") && !remarks.is_coming("b"));
            remarks.hear(end, &asked("Document"));
            assert!(!remarks.is_coming("a"));
        }
    }

    #[test]
    fn a_page_that_never_stops_fills_no_memory() {
        let mut remarks = Remarks::default();
        for n in 0..5 * MOST_REQUESTS {
            let url = "x".repeat(2 * LONGEST_ADDRESS);
            remarks.hear(
                "Network.requestWillBeSent",
                &json!({ "requestId": n.to_string(), "request": { "url": url } }),
            );
            remarks
                .hear("Runtime.exceptionThrown", &json!({ "exceptionDetails": { "text": url } }));
        }
        assert!(remarks.addresses.len() <= MOST_REQUESTS);
        assert!(remarks.addresses.values().all(|address| address.len() == LONGEST_ADDRESS));
        let kept = remarks.take();
        assert_eq!(kept.len(), MOST_REMARKS);
        assert!(kept.iter().all(|remark| remark.len() <= LONGEST_REMARK));
    }
}
