//! Names that change their mind: public when they are judged, private when they are connected to.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{bellglass, shell};

/// A network with nothing in it but a name server, a public address and a private one.
const STAGE: &str = include_str!("rebinding_stage.py");

#[test]
fn dns_rebinding() {
    let is_root = rustix::process::geteuid().is_root();
    assert!(is_root, "only root can make such a network; `make test` leaves this out for others");
    let folder = tempfile::tempdir().unwrap();
    // Standard error is not shown: curl's own words differ from version to version.
    let ask =
        |name: &str| shell(&format!("curl -s -m 60 -w ' %{{http_code}}' http://{name}:8080/"));
    let names = [
        "rebind.test",
        "rebind.test",
        "private.test",
        "metadata.test",
        "mapped.test",
        "both.test",
        "half.test",
    ];
    let job = json!({
        "network": "open",
        "on_error": "continue",
        "steps": names.map(ask),
    });
    let file = folder.path().join("job.json");
    fs::write(&file, job.to_string()).unwrap();
    fs::write(folder.path().join("stage.py"), STAGE).unwrap();
    // On this stage the public address is the machine's own, and those are refused too.
    let config = "[network]\nprivate_exceptions = [\"93.184.215.14\"]\n";
    fs::write(folder.path().join("bellglass.toml"), config).unwrap();
    let inner = bellglass(folder.path());
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "python3", "stage.py"]).arg(inner.get_program());
    command.args(["run", "--json", "job.json"]).current_dir(folder.path());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    let output = command.output().expect("unshare is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    let staged: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let steps = staged["steps"].as_array().unwrap();
    let answer = |n: usize| steps[n].as_str().unwrap().to_owned();
    assert_eq!(answer(0), "public 200", "{staged:#}");
    for n in 1..=4 {
        assert!(
            answer(n).ends_with("other addresses 403") || answer(n).ends_with(" 403"),
            "{staged:#}"
        );
    }
    // With both kinds of addresses, the public one alone is tried.
    assert_eq!(answer(5), "public 200", "{staged:#}");
    assert!(answer(6).ends_with(" 502"), "{staged:#}");
    // Nobody came to the private side, and each connection asked for its name once.
    assert_eq!(staged["private_connections"], 0, "{staged:#}");
    assert_eq!(staged["public_connections"], 2, "{staged:#}");
    assert_eq!(staged["questions"]["rebind.test"], 2, "{staged:#}");
}
