//! How bytes from a sandbox are handed to a browser: as something that cannot act.
//!
//! Every file of a workspace may have been written by an attacker who knows that the reader is
//! logged in here. Pictures and plain text are shown; all else is a download; nothing may run.

use axum::http::{HeaderMap, HeaderValue, header};

/// Puts the headers on that describe a file named `path` and take its teeth out.
pub(crate) fn put_headers_for(headers: &mut HeaderMap, path: &str) {
    let name = path.rsplit('/').next().unwrap_or(path);
    let (content_type, shown) = match shown_as(name) {
        Some(content_type) => (content_type, "inline"),
        None => ("application/octet-stream", "attachment"),
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CONTENT_DISPOSITION, disposition(shown, name));
    put_harmless(headers);
}

/// For an answer whose content a sandbox wrote, whatever its type.
pub(crate) fn put_harmless(headers: &mut HeaderMap) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'self'"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
}

/// The type of a file that is safe to show. Markup, scripts and documents are not among them: a
/// script's source is shown as plain text, but HTML, SVG and XML are never shown.
fn shown_as(name: &str) -> Option<&'static str> {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    Some(match extension?.as_str() {
        "txt" | "md" | "log" | "csv" | "tsv" | "json" | "jsonl" | "toml" | "yaml" | "yml"
        | "py" | "rs" | "ts" | "tsx" | "go" | "c" | "h" | "sh" | "sql" | "css" | "diff"
        | "patch" => "text/plain; charset=utf-8",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        _ => return None,
    })
}

/// A Content-Disposition with a name that no reader can misunderstand: an ASCII form for old ones
/// and the exact name, percent-encoded, for the others.
pub(crate) fn disposition(shown: &str, name: &str) -> HeaderValue {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let plain: String = name.chars().take(150).map(|c| if is_plain(c) { c } else { '_' }).collect();
    let exact: String = name
        .chars()
        .take(150)
        .flat_map(|c| c.to_string().into_bytes())
        .map(|byte| {
            if is_plain(char::from(byte)) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect();
    let text = if plain == name {
        format!("{shown}; filename=\"{plain}\"")
    } else {
        format!("{shown}; filename=\"{plain}\"; filename*=UTF-8''{exact}")
    };
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_types_are_shown() {
        for (name, shown) in [
            ("a.txt", true),
            ("A.PNG", true),
            ("main.py", true),
            ("x.html", false),
            ("x.HTM", false),
            ("x.svg", false),
            ("x.xml", false),
            ("x.js", false),
            ("x.mjs", false),
            ("x.pdf", false),
            ("noextension", false),
            (".html", false),
        ] {
            assert_eq!(shown_as(name).is_some(), shown, "{name}");
        }
    }

    #[test]
    fn names_cannot_break_out_of_the_header() {
        for (name, header) in [
            ("plain-1.zip", "attachment; filename=\"plain-1.zip\""),
            (
                "a\"b\r\nX: y",
                "attachment; filename=\"a_b__X__y\"; filename*=UTF-8''a%22b%0D%0AX%3A%20y",
            ),
            ("é", "attachment; filename=\"_\"; filename*=UTF-8''%C3%A9"),
        ] {
            assert_eq!(disposition("attachment", name), header);
        }
    }
}
