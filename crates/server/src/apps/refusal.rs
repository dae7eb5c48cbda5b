//! What people see at an app's address when there is no app to see.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::name::{AppName, Service};
use crate::live::LiveError;

/// Why an app is not shown.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The browser has shown no ticket here, or one that no longer holds.
    NotAdmitted,
    BadTicket,
    /// A page of another origin made the request.
    OtherOrigin,
    HeadersTooLarge,
    /// A page wants a program of its own between the browser and us.
    ServiceWorker,
    NothingListens,
    NotRunning,
    Busy,
    /// What answered was not HTTP, or broke off.
    BadAnswer,
    /// The sandbox's own words.
    Sandbox(String),
}

impl From<LiveError> for Refusal {
    fn from(error: LiveError) -> Self {
        match error {
            LiveError::NotRunning => Self::NotRunning,
            LiveError::Tool(error) if error.code == "nothing_listens" => Self::NothingListens,
            LiveError::Busy => Self::Busy,
            LiveError::Tool(error) => Self::Sandbox(error.message),
            error @ (LiveError::Broken(_) | LiveError::Taken(_)) => {
                Self::Sandbox(error.to_string())
            }
        }
    }
}

impl Refusal {
    pub(super) fn page(&self, app: &AppName) -> Response {
        let what = match app.service {
            Service::Port(port) => format!("Port {port}"),
            Service::Jupyter => "JupyterLab".into(),
        };
        let (status, title, words): (_, _, String) = match self {
            Self::NotAdmitted => (
                StatusCode::UNAUTHORIZED,
                "Open this app from its job",
                "This browser has not been let in here. Open the app from the page of its job.".into(),
            ),
            Self::BadTicket => (
                StatusCode::FORBIDDEN,
                "This link was used already",
                "A link to an app is good once and for a minute. Open the app again from the page \
                 of its job."
                    .into(),
            ),
            Self::OtherOrigin => (
                StatusCode::FORBIDDEN,
                "Called from another site",
                "Pages of other sites may not use this app.".into(),
            ),
            Self::HeadersTooLarge => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "The request's headers are too large",
                "The headers of a request to an app may have 64 KiB; clear this site's cookies.".into(),
            ),
            Self::ServiceWorker => (
                StatusCode::FORBIDDEN,
                "No service workers here",
                "Pages of sandboxes may not have service workers: what one answers would not be kept \
                 from reaching other hosts."
                    .into(),
            ),
            Self::NothingListens => (
                StatusCode::BAD_GATEWAY,
                "Nothing listens here",
                format!("{what} of this job's sandbox: no program listens there now. This page tries again."),
            ),
            Self::NotRunning => (
                StatusCode::GONE,
                "The sandbox does not run",
                "The job has ended or has not begun, so there is nothing to show.".into(),
            ),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many connections",
                "As many connections lead into this sandbox as may be at once. This page tries again."
                    .into(),
            ),
            Self::BadAnswer => (
                StatusCode::BAD_GATEWAY,
                "The app gave no answer that can be shown",
                format!("{what} of this job's sandbox: what listens there broke off, or speaks no HTTP."),
            ),
            Self::Sandbox(words) => (StatusCode::BAD_GATEWAY, "The app cannot be reached", words.clone()),
        };
        let mut response = (status, page(title, &words)).into_response();
        let headers = response.headers_mut();
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, html);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let policy = "default-src 'none'; style-src 'unsafe-inline'";
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
        if matches!(self, Self::NothingListens | Self::Busy) {
            headers.insert(header::REFRESH, HeaderValue::from_static("2"));
        }
        response
    }
}

fn page(title: &str, words: &str) -> String {
    let (title, words) = (escaped(title), escaped(words));
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>\
         <meta name=viewport content=\"width=device-width\"><style>\
         :root{{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}}\
         body{{display:grid;min-height:90vh;place-content:center;padding:1rem;text-align:center}}\
         h1{{font-size:1.15rem;margin:0}}p{{max-width:28rem;margin:.5rem 0;opacity:.75}}\
         </style><h1>{title}</h1><p>{words}</p></html>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_sandbox_are_text() {
        let shown = page("t", "<script>alert(1)</script>&");
        assert!(shown.contains("&lt;script&gt;alert(1)&lt;/script&gt;&amp;"));
    }
}
