//! Which right each address needs: one table for all of them.
//!
//! An address that is not in it is open to administrators alone, and a test holds the table against
//! the routes, so a new route must say here whom it is for.

use axum::http::Method;

/// What somebody must be allowed to do before a handler hears of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Nothing at all, under whatever host name: for machines that look after machines.
    Probe,
    /// Nothing: these pages hold nothing of anybody's.
    Public,
    /// Nothing, but it must be one of our own pages that asks: logging in and out.
    LogIn,
    /// To look at what is one's own. The handlers leave out what is not.
    Look,
    /// To schedule jobs and write what is one's own.
    Work,
    /// To do something with one job, which then must be one's own.
    Job(JobRight),
    /// To look after the server.
    Administer,
}

/// What may be done with a job. A share link gives some of these for one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobRight {
    /// See how it stands and what happens.
    See,
    /// Read its files.
    Files,
    /// Download all that it made.
    Result,
    /// See what its model is told.
    Mind,
    /// Steer it, and write into it.
    Change,
}

/// What a request needs; `None` if the table does not say.
pub(crate) fn needed(method: &Method, template: &str) -> Option<Right> {
    use JobRight::{Change, Files, Mind, Result, See};
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    Some(match (method, template) {
        ("GET", "/healthz" | "/readyz") => Right::Probe,

        ("GET", "/" | "/memory" | "/watch/{id}" | "/assets/{*path}" | "/share/{link}") => {
            Right::Public
        }
        ("GET", "/docs" | "/docs/docs.js" | "/docs/pages.css" | "/openapi.json") => Right::Public,
        ("GET", "/notices.txt") => Right::Public,
        ("POST" | "DELETE", "/session") => Right::LogIn,

        ("GET", "/session" | "/offer" | "/jobs" | "/changes" | "/status") => Right::Look,
        ("GET", "/memories" | "/metrics") => Right::Look,
        ("POST", "/schedule" | "/submit" | "/memories") => Right::Work,
        ("PUT" | "DELETE", "/memories/{memory}") => Right::Work,

        ("GET", "/status/{id}" | "/jobs/{id}" | "/jobs/{id}/events") => Right::Job(See),
        ("GET", "/jobs/{id}/steps/{n}/output") => Right::Job(See),
        ("GET", "/jobs/{id}/steps/{n}/attachments/{k}") => Right::Job(See),
        ("GET", "/jobs/{id}/files" | "/jobs/{id}/files/" | "/jobs/{id}/files/{*path}") => {
            Right::Job(Files)
        }
        ("GET", "/jobs/{id}/output.zip") => Right::Job(Result),
        // Earlier files may hold what was taken out since, so no link shows them.
        ("GET", "/jobs/{id}/steps/{n}/diff" | "/jobs/{id}/steps/{n}/files.tar") => Right::Job(Mind),
        ("GET", "/jobs/{id}/memory.json" | "/jobs/{id}/context") => Right::Job(Mind),
        ("POST", "/jobs/{id}/cancel" | "/jobs/{id}/pause" | "/jobs/{id}/resume") => {
            Right::Job(Change)
        }
        ("POST", "/jobs/{id}/messages" | "/jobs/{id}/approvals/{approval}") => Right::Job(Change),
        ("POST", "/jobs/{id}/mcp" | "/jobs/{id}/restore") => Right::Job(Change),
        // The new job is the caller's own, and has all that was in the other one.
        ("POST", "/jobs/{id}/fork") => Right::Job(Change),
        ("PUT", "/jobs/{id}/network") => Right::Job(Change),
        ("PUT" | "DELETE", "/jobs/{id}/files/{*path}") => Right::Job(Change),
        ("POST" | "DELETE", "/jobs/{id}/share") => Right::Job(Change),
        // Whoever sees these can also type, click or call something in them.
        ("GET", "/jobs/{id}/ports" | "/jobs/{id}/ports/{port}" | "/jobs/{id}/ports/{port}/") => {
            Right::Job(Change)
        }
        ("GET", "/jobs/{id}/ports/{port}/{*path}" | "/jobs/{id}/terminal") => Right::Job(Change),
        ("GET", "/jobs/{id}/desktop" | "/jobs/{id}/desktop/" | "/jobs/{id}/desktop/websocket") => {
            Right::Job(Change)
        }
        ("GET", "/jobs/{id}/jupyter" | "/jobs/{id}/jupyter/" | "/jobs/{id}/jupyter/{*path}") => {
            Right::Job(Change)
        }

        ("GET" | "POST", "/tokens") => Right::Administer,
        ("DELETE", "/tokens/{token}") | ("GET", "/audit") => Right::Administer,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_says_which_right_it_needs() {
        let (_, document) = crate::router::api().split_for_parts();
        let document = serde_json::to_value(document).unwrap();
        let mut missing = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys() {
                let method: Method = method.to_ascii_uppercase().parse().unwrap();
                if needed(&method, path).is_none() {
                    missing.push(format!("{method} {path}"));
                }
            }
        }
        assert!(missing.is_empty(), "say in rights.rs whom these are for: {missing:#?}");
    }

    #[test]
    fn what_is_not_in_the_table_has_no_right_that_could_be_had() {
        assert_eq!(needed(&Method::PATCH, "/jobs/{id}"), None);
        assert_eq!(needed(&Method::GET, "/jobs/{id}/cancel"), None);
        assert_eq!(needed(&Method::HEAD, "/jobs"), Some(Right::Look));
    }
}
