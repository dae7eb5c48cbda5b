//! What single messages of a server mean. Pure; a message may be any JSON.

use serde_json::{Value, json};

use super::McpError;

/// The result in an answer, or why there is none.
pub fn outcome(mut answer: Value) -> Result<Value, McpError> {
    match answer.get("error") {
        Some(error) if !error.is_null() => {
            let words = error["message"].as_str().unwrap_or("no reason is given");
            let words: String = words.chars().take(1000).collect();
            Err(McpError::Refused(words))
        }
        _ => Ok(answer.get_mut("result").map(Value::take).unwrap_or_default()),
    }
}

/// What to answer when a server asks something itself: that it is there, and nothing else.
pub fn answer_to(request: &Value) -> Option<Value> {
    let (id, method) = (request.get("id")?, request.get("method")?.as_str()?);
    Some(match method {
        "ping" => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
        _ => json!({
            "jsonrpc": "2.0", "id": id,
            "error": { "code": -32601, "message": "this client offers nothing to servers" },
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_results_or_reasons_whatever_they_are() {
        for (answer, expected) in [
            (json!({ "result": { "a": 1 } }), Ok(json!({ "a": 1 }))),
            (json!({ "error": null, "result": 1 }), Ok(json!(1))),
            (json!({ "error": { "message": "no" } }), Err("it answers with an error: no")),
            (json!({ "error": 1 }), Err("it answers with an error: no reason is given")),
            (json!({}), Ok(Value::Null)),
            (json!([1]), Ok(Value::Null)),
            (json!("text"), Ok(Value::Null)),
            (Value::Null, Ok(Value::Null)),
        ] {
            let found = outcome(answer.clone()).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(String::from), "{answer}");
        }
        assert_eq!(answer_to(&json!([])), None);
        assert_eq!(answer_to(&json!({ "id": 1, "method": "ping" })).unwrap()["id"], 1);
    }
}
