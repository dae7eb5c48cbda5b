//! What is heard from a cage that is being built, and from one that was made ahead when it becomes a job's: lines
//! that a process inside may have written.

#![no_main]

use bellglass_protocol::launch::{Adopted, LaunchFailure, LaunchWord};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        if let Ok(word) = serde_json::from_slice::<LaunchWord>(line) {
            // Whatever it says, saying it again is one line that means the same.
            let said = word.line();
            assert_eq!(said.find('\n'), Some(said.len() - 1));
            assert_eq!(serde_json::from_str::<LaunchWord>(&said).unwrap(), word);
        }
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let adopted = serde_json::from_str::<Adopted>(line);
        let failure = serde_json::from_str::<LaunchFailure>(line);
        if let Ok(adopted) = &adopted {
            let said = serde_json::to_string(adopted).unwrap();
            assert_eq!(serde_json::from_str::<Adopted>(&said).unwrap(), *adopted);
        }
        if let Ok(failure) = &failure {
            let said = serde_json::to_string(failure).unwrap();
            assert_eq!(serde_json::from_str::<LaunchFailure>(&said).unwrap(), *failure);
        }
    }
});
