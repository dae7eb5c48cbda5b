//! The OpenAPI document: what the routes say about themselves, and what they all have in common.

use std::sync::LazyLock;

use bellglass_protocol::event::Event;
use serde_json::{Map, Value, json};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use crate::problem::{KINDS, PROBLEM_JSON, Problem};

/// The document, complete.
pub fn openapi() -> OpenApi {
    let (_, document) = crate::router::api().split_for_parts();
    let mut document = serde_json::to_value(document).expect("a document is writable as JSON");
    plain_paths(&mut document);
    common_problems(&mut document);
    exact_schemas(&mut document);
    serde_json::from_value(document).expect("what was written reads back")
}

/// The document as it is served: made once.
pub(crate) fn openapi_text() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| openapi().to_json().expect("a document is writable as JSON"));
    &TEXT
}

/// The document's frame, to which the routes are added.
pub(crate) fn frame() -> OpenApi {
    #[derive(utoipa::OpenApi)]
    #[openapi(
        info(
            title = "Bellglass",
            description = "Runs coding agents under glass: hand it a task or a list of steps, watch it work in a sandbox of its own, download what it made. Errors are problem documents (RFC 9457) with a stable `code`.",
            license(name = "Apache-2.0", identifier = "Apache-2.0"),
        ),
        tags(
            (name = "jobs", description = "Schedule jobs and see where they stand"),
            (name = "events", description = "The history of a job"),
            (name = "results", description = "What a job made"),
            (name = "files", description = "The workspace, while the job runs and after"),
            (name = "memories", description = "What tasks left for later ones"),
            (name = "access", description = "Who may use the server"),
            (name = "operations", description = "For operators and their tools"),
        ),
        components(schemas(Problem, Event)),
    )]
    struct Frame;
    let mut frame = Frame::openapi();
    frame.info.contact = None;
    frame
}

/// The router writes a path parameter that spans slashes as `{*path}`; OpenAPI has no such form.
fn plain_paths(document: &mut Value) {
    let Some(paths) = document["paths"].as_object_mut() else { return };
    let renamed: Map<String, Value> = std::mem::take(paths)
        .into_iter()
        .map(|(path, item)| (path.replace("{*", "{"), item))
        .collect();
    *paths = renamed;
}

/// What every operation may answer: the guard's refusals and a failure of the server itself.
fn common_problems(document: &mut Value) {
    let problem = |description: &str| {
        json!({
            "description": description,
            "content": { PROBLEM_JSON: { "schema": { "$ref": "#/components/schemas/Problem" } } },
        })
    };
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, item) in paths {
        let guarded = !matches!(path.as_str(), "/healthz" | "/readyz");
        for (_, operation) in item.as_object_mut().into_iter().flatten() {
            let responses = &mut operation["responses"];
            if guarded {
                responses["401"] = problem("A token is needed.");
                responses["403"] =
                    problem("Not allowed, an unknown host name, or called from another site.");
                responses["429"] = problem("As much as one user may use.");
            }
            responses["500"] = problem("The server failed.");
        }
    }
    let scheme = json!({ "type": "http", "scheme": "bearer", "description": "Where the server has a token." });
    document["components"]["securitySchemes"] = json!({ "token": scheme });
    document["security"] = json!([{}, { "token": [] }]);
    document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"] =
        KINDS.iter().map(|kind| kind.code).collect();
    // The documentation page explains each kind under the address that `type` names.
    document["x-problems"] = KINDS
        .iter()
        .map(|kind| json!({ "code": kind.code, "status": kind.status.as_u16(), "title": kind.title }))
        .collect();
}

/// Says exactly what the hand-written readers and writers of the protocol take and give, where the
/// derived schemas cannot know it.
fn exact_schemas(document: &mut Value) {
    let schemas = &mut document["components"]["schemas"];
    schemas["ByteSize"] = json!({
        "description": "A number of bytes; a request may also write it as a text such as \"512MiB\".",
        "oneOf": [{ "type": "integer", "minimum": 0 }, { "type": "string" }],
        "example": "512MiB",
    });
    schemas["HostRule"] = json!({
        "description": "A host, with `*.` for all names below it, with a port if only that is meant.",
        "type": "string",
        "example": "*.example.com:443",
    });
    schemas["NetworkPolicy"] = json!({
        "description": "What a sandbox may reach.",
        "oneOf": [
            { "type": "string", "enum": ["none", "registries", "open"] },
            {
                "type": "object",
                "required": ["allow"],
                "properties": {
                    "allow": { "type": "array", "items": { "$ref": "#/components/schemas/HostRule" } },
                },
                "additionalProperties": false,
            },
        ],
    });
    schemas["Seconds"] = json!({
        "description": "A number of seconds; a request may also write it as a text such as \"10m\".",
        "oneOf": [{ "type": "number", "exclusiveMinimum": 0 }, { "type": "string" }],
        "example": 60,
    });
    for answered in ["JobView", "StepView"] {
        // What may be null is still always there.
        let fields =
            schemas[answered]["properties"].as_object().map(|fields| fields.keys().cloned());
        schemas[answered]["required"] = fields.into_iter().flatten().collect();
    }
    known_events(schemas);
    tagged_calls(schemas);
    unsigned_numbers(document);
}

/// The kinds of events that this program knows. What it cannot read may be of any kind, and a client that tells
/// kinds apart by their `type` could tell none of them from that.
fn known_events(schemas: &mut Value) {
    if let Some(kinds) = schemas["EventBody"]["oneOf"].as_array_mut() {
        kinds.retain(|kind| kind["allOf"][0]["$ref"] != "#/components/schemas/UnknownRecord");
    }
    if let Some(schemas) = schemas.as_object_mut() {
        schemas.remove("UnknownRecord");
    }
}

/// A number that cannot be negative has one bit more than the format of signed ones says.
fn unsigned_numbers(document: &mut Value) {
    let least = document.get("minimum").and_then(Value::as_i64);
    let format = match document.get("format").and_then(Value::as_str) {
        Some("int32") => Some("uint32"),
        Some("int64") => Some("uint64"),
        _ => None,
    };
    if let (Some(0..), Some(format)) = (least, format) {
        document["format"] = format.into();
    }
    match document {
        Value::Object(fields) => fields.values_mut().for_each(unsigned_numbers),
        Value::Array(items) => items.iter_mut().for_each(unsigned_numbers),
        _ => {}
    }
}

/// A tool call is one flat object. The derived schema puts the arguments and the tool's name into
/// two objects of which neither allows the other's fields, so nothing would match it.
fn tagged_calls(schemas: &mut Value) {
    let Some(variants) = schemas["ToolCall"]["oneOf"].as_array().cloned() else { return };
    let flat = variants.into_iter().map(|mut variant| {
        let Some(parts) = variant["allOf"].as_array() else { return variant };
        let mut whole = json!({ "type": "object", "properties": {}, "required": [] });
        for part in parts {
            let name = part["$ref"].as_str().and_then(|at| at.rsplit('/').next());
            let part = name.map_or(part, |name| &schemas[name]);
            for (name, property) in part["properties"].as_object().into_iter().flatten() {
                whole["properties"][name] = property.clone();
            }
            let required = part["required"].as_array().cloned().unwrap_or_default();
            whole["required"].as_array_mut().expect("made above").extend(required);
        }
        whole["additionalProperties"] = false.into();
        if let Some(description) = variant.get_mut("description") {
            whole["description"] = description.take();
        }
        whole
    });
    schemas["ToolCall"]["oneOf"] = flat.collect();
}
