//! What an MCP server in a sandbox writes, in whatever pieces, up to what a model is shown of it.

#![no_main]
#![allow(dead_code, reason = "the files taken in have more than is used here")]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/worker/src/mcp_lines.rs"]
mod mcp_lines;
#[path = "../../crates/agent/src/mcp/messages.rs"]
mod messages;
#[path = "../../crates/agent/src/mcp/tools.rs"]
mod tools;

// What these files know from the crates around them.
mod drive {
    pub struct OtherResult {
        pub text: String,
        pub failed: bool,
    }
}
mod model {
    pub struct ToolDefinition {
        pub name: String,
        pub description: String,
        pub parameters: serde_json::Value,
    }
}
pub enum McpError {
    Refused(String),
}

const LONGEST_LINE: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut lines = mcp_lines::Lines::up_to(LONGEST_LINE);
    let mut found = Vec::new();
    for piece in rest.chunks(usize::from(*first).max(1)) {
        for message in lines.take(piece) {
            if let Some(answer) = messages::answer_to(&message) {
                assert!(answer.to_string().len() <= LONGEST_LINE + 200);
            }
            let result = match messages::outcome(message) {
                Ok(result) => result,
                Err(McpError::Refused(words)) => {
                    assert!(words.chars().count() <= 1000);
                    continue;
                }
            };
            tools::add_page("server", &result, &mut found);
            assert!(tools::result(&result).text.len() <= (256 << 10) + 100);
        }
        if lines.is_too_long() {
            break;
        }
    }
    assert!(found.len() <= 128);
    for (at, (tool, _)) in found.iter().enumerate() {
        assert!(tool.name.len() <= 64 && tool.description.len() <= 4100);
        assert!(
            tool.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        );
        assert!(found[..at].iter().all(|(other, _)| other.name != tool.name));
        assert_eq!(tool.parameters["type"], "object");
    }
});
