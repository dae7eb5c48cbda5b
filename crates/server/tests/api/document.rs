//! The OpenAPI document: that the copy in the repository is current, and that answers keep to it.

use std::sync::LazyLock;

use axum::http::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Harness};

static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::to_value(bellglass_server::openapi()).unwrap());

/// Holds an answer against what the document says about its operation.
pub(crate) fn check(method: &Method, path: &str, answer: &Answer) {
    let method = if method == Method::HEAD { Method::GET } else { method.clone() };
    let Some(operation) = operation(&method, path) else { return };
    let at = format!("{method} {path}: {}", answer.status);
    let response = &operation["responses"][answer.status.as_str()];
    assert!(response.is_object(), "{at} is not documented");
    let content_type = answer.header("content-type");
    let Some(content) = response.get("content") else {
        assert!(answer.body.is_empty(), "{at} has a body that is not documented");
        return;
    };
    let schema = &content[content_type]["schema"];
    assert!(schema.is_object(), "{at} is not documented as {content_type}");
    let is_json = content_type == "application/json" || content_type.ends_with("+json");
    if is_json && !answer.body.is_empty() {
        let whole = json!({ "components": DOCUMENT["components"], "allOf": [schema] });
        let validator = jsonschema::validator_for(&whole).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(&answer.json())
            .map(|error| format!("{} at {}", error, error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{at} is not as documented: {errors:#?}\n{}", answer.text());
    }
}

/// Checks a request's body against the document.
pub(crate) fn accepts(schema: &str, body: &Value) -> bool {
    let reference = format!("#/components/schemas/{schema}");
    let whole = json!({ "components": DOCUMENT["components"], "$ref": reference });
    jsonschema::validator_for(&whole).unwrap().is_valid(body)
}

fn operation(method: &Method, path: &str) -> Option<&'static Value> {
    let matches = |template: &str| {
        if let Some(prefix) = template.strip_suffix("{id}/files/{path}") {
            let rest = path.strip_prefix(prefix);
            return rest.is_some_and(|rest| {
                rest.split_once("/files/").is_some_and(|(_, p)| !p.is_empty())
            });
        }
        let (wanted, found) = (template.split('/'), path.split('/'));
        wanted.clone().count() == found.clone().count()
            && wanted.zip(found).all(|(part, text)| part.starts_with('{') || part == text)
    };
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let item = paths.iter().find(|(template, _)| matches(template)).map(|(_, item)| item)?;
    item.get(method.as_str().to_ascii_lowercase())
}

#[test]
fn the_copy_in_the_repository_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    let text = bellglass_server::openapi().to_pretty_json().unwrap() + "\n";
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == text,
        "the OpenAPI document has changed; write it anew with UPDATE_OPENAPI=1 cargo test -p bellglass-server"
    );
}

#[test]
fn request_schemas_agree_with_the_reader() {
    for (body, fits) in [
        (json!({"steps": [{"tool": "shell", "command": "ls"}]}), true),
        (json!({"steps": [{"tool": "shell", "command": "ls", "timeout": "10s"}]}), true),
        (json!({"task": "x", "limits": {"memory": "1GiB", "time": 5}}), true),
        (json!({"task": "x", "limits": {"memory": 1_000_000}}), true),
        (json!({"steps": [{"tool": "write_file", "path": "a", "content": "b"}]}), true),
        (json!({"steps": [{"tool": "shell", "command": "ls", "sudo": true}]}), false),
        (json!({"steps": [{"tool": "fly"}]}), false),
        (json!({"steps": [{"command": "ls"}]}), false),
        (json!({"task": 7}), false),
        (json!({"stepz": []}), false),
    ] {
        assert_eq!(accepts("JobRequest", &body), fits, "{body}");
    }
}

#[test]
fn every_operation_has_a_name_of_its_own() {
    let mut names: Vec<&str> = DOCUMENT["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|item| item.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
}

#[tokio::test]
async fn the_document_is_served_and_its_references_hold() {
    let server = Harness::new().await;
    let answer = server.get("/openapi.json").await;
    let document = answer.json();
    assert_eq!(document, *DOCUMENT);
    let text = answer.text();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name} is missing");
    }
    assert!(!text.contains("{*"));
}

/// Every operation there is: its method and the template of its address.
pub(crate) fn operations() -> Vec<(Method, String)> {
    let paths = DOCUMENT["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().keys();
            methods.map(move |method| (method.to_ascii_uppercase().parse().unwrap(), path.clone()))
        })
        .collect()
}
