//! The ZIP of a workspace: everything as it was, and nothing that could hurt whoever unpacks it.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{TestServer, archive, python, shell, step, text};

/// Runs commands and returns the job and its ZIP.
async fn result_of(server: &TestServer, commands: &str) -> (Value, archive::Archive) {
    let job = server.run(&json!({ "steps": [shell(commands)] })).await;
    assert_eq!(job["failed_steps"], json!([]), "{job:#}");
    let result = server.archive(text(&job, "job_id")).await;
    (job, result)
}

fn skipped(job: &Value) -> Vec<String> {
    let skipped = job["result"]["skipped"].as_array().cloned().unwrap_or_default();
    skipped.iter().map(|reason| reason.as_str().unwrap().to_owned()).collect()
}

/// Checks a ZIP with programs that people have.
fn assert_readable_by_others(zip: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.zip");
    fs::write(&file, zip).unwrap();
    let python = "import sys, zipfile; bad = zipfile.ZipFile(sys.argv[1]).testzip(); \
                  assert bad is None, bad";
    for (program, arguments) in [("unzip", vec!["-tqq"]), ("python3", vec!["-c", python])] {
        let output = Command::new(program).args(arguments).arg(&file).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&said));
    }
}

#[tokio::test]
async fn files_folders_modes_and_names_are_kept() {
    let server = TestServer::start();
    let (job, mut result) = result_of(
        &server,
        "printf x > plain; chmod 640 plain; \
         printf '#!/bin/sh\\n' > run.sh; chmod 755 run.sh; \
         printf s > suid; chmod 4755 suid; \
         mkdir -p empty/inner full/of; printf f > full/of/files; chmod 700 full; \
         printf u > 'ünï 文件 😀.txt'; printf h > .hidden; : > nothing; ln plain hard; \
         touch -d 2001-02-03T04:05:06Z run.sh; touch -d 1970-01-01 nothing",
    )
    .await;
    assert_eq!(skipped(&job), Vec::<String>::new());
    assert_eq!(
        archive::names(&result),
        [
            ".hidden",
            "agent.log",
            "empty/",
            "empty/inner/",
            "full/",
            "full/of/",
            "full/of/files",
            "hard",
            "memory.json",
            "nothing",
            "plain",
            "run.sh",
            "suid",
            "ünï 文件 😀.txt",
        ]
    );
    for (name, mode) in
        [("plain", 0o640), ("run.sh", 0o755), ("suid", 0o755), ("full/", 0o700), ("empty/", 0o755)]
    {
        assert_eq!(archive::mode(&mut result, name), mode, "{name}");
    }
    assert_eq!(archive::text(&mut result, "hard"), "x");
    assert_eq!(archive::text(&mut result, "ünï 文件 😀.txt"), "u");
    assert_eq!(archive::content(&mut result, "nothing"), b"");
    let time = result.by_name("run.sh").unwrap().last_modified().unwrap();
    assert_eq!((time.year(), time.month(), time.day(), time.hour()), (2001, 2, 3, 4));
    assert_eq!(job["result"]["entries"], 12);
    let zip = server.download(text(&job, "job_id")).await;
    assert_eq!(job["result"]["bytes"], zip.len());
    assert_eq!(job["result"]["sha256"], hex(&Sha256::digest(&zip)));
    assert_readable_by_others(&zip);
}

#[tokio::test]
async fn symlinks_stay_symlinks_and_are_never_followed() {
    let server = TestServer::start();
    let links = [
        ("passwd", "/etc/passwd"),
        ("up", ".."),
        ("far", "../../../etc/shadow"),
        ("self", "self"),
        ("there", "back"),
        ("back", "there"),
        ("dangling", "nowhere"),
        ("guest", "/proc/1/root/etc/passwd"),
        ("inside", "real.txt"),
    ];
    let commands: String =
        links.iter().map(|(name, target)| format!("ln -s {target} {name}; ")).collect();
    let (job, mut result) = result_of(&server, &format!("{commands} echo real > real.txt")).await;
    assert_eq!(skipped(&job), Vec::<String>::new());
    for (name, target) in links {
        assert!(archive::is_symlink(&mut result, name), "{name}");
        assert_eq!(archive::text(&mut result, name), target);
    }
    let zip = server.download(text(&job, "job_id")).await;
    assert_readable_by_others(&zip);
    let raw = String::from_utf8_lossy(&zip);
    assert!(!raw.contains("root:x:0:0"));
}

#[tokio::test]
async fn what_is_no_file_is_left_out_and_named() {
    let server = TestServer::start();
    let (job, result) = result_of(
        &server,
        "mkfifo pipe; echo kept > kept; mkdir d; mkfifo d/other; \
         python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"",
    )
    .await;
    assert_eq!(archive::names(&result), ["agent.log", "d/", "kept", "memory.json"]);
    let skipped = skipped(&job);
    for name in ["pipe", "d/other", "sock"] {
        assert!(skipped.iter().any(|reason| reason.starts_with(name)), "{name}: {skipped:?}");
    }
    assert_eq!(skipped.len(), 3);
}

#[tokio::test]
async fn what_its_owner_has_closed_is_packed_all_the_same() {
    let server = TestServer::start();
    let (job, mut result) = result_of(
        &server,
        "echo s > secret; chmod 0 secret; mkdir shut; chmod 0 shut; echo o > open",
    )
    .await;
    assert_eq!(archive::text(&mut result, "open"), "o\n");
    assert_eq!(archive::text(&mut result, "secret"), "s\n");
    assert_eq!(archive::mode(&mut result, "secret") & 0o777, 0);
    assert!(archive::names(&result).contains(&"shut/".to_owned()));
    assert_eq!(skipped(&job), Vec::<String>::new());
}

#[tokio::test]
async fn hostile_names_are_harmless() {
    let server = TestServer::start();
    let (job, result) = result_of(
        &server,
        "printf 1 > 'back\\slash'; printf 2 > 'C:evil'; printf 3 > $'new\\nline'; \
         printf 4 > $'not\\xfftext'; printf 5 > '...'; printf 6 > ' '; printf 7 > '-rf'; \
         printf 8 > $'\\e[31mred'; mkdir -p '..\\..'; printf 9 > '..\\../x'",
    )
    .await;
    let names = archive::names(&result);
    assert_eq!(names.len(), 10 + 2, "{names:?}");
    for name in &names {
        let bad = name.contains(['\\', ':']) || name.chars().any(char::is_control);
        let leads_out = name.starts_with('/') || name.split('/').any(|part| part == "..");
        assert!(!bad && !leads_out, "{name:?}");
    }
    let zip = server.download(text(&job, "job_id")).await;
    assert_readable_by_others(&zip);
    let folder = tempfile::tempdir().unwrap();
    let (file, target) = (folder.path().join("r.zip"), folder.path().join("target"));
    fs::write(&file, &zip).unwrap();
    let unpacked = Command::new("unzip").arg("-qq").arg(&file).arg("-d").arg(&target).status();
    assert!(unpacked.unwrap().success());
    let outside: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(outside.len(), 2, "{outside:?}");
}

/// A workspace may hold files with the names of ours, and prepare a way out for them.
#[tokio::test]
async fn the_log_cannot_be_made_to_write_through_a_symlink() {
    let server = TestServer::start();
    let (_, mut result) = result_of(
        &server,
        "echo mine > agent.log; ln -s /tmp .bellglass; echo also mine > memory.json",
    )
    .await;
    assert_eq!(archive::text(&mut result, "agent.log"), "mine\n");
    assert_eq!(archive::text(&mut result, "memory.json"), "also mine\n");
    assert!(archive::is_symlink(&mut result, ".bellglass"));
    let below: Vec<String> = archive::names(&result)
        .into_iter()
        .filter(|name| name.starts_with(".bellglass/"))
        .collect();
    assert_eq!(below, Vec::<String>::new());

    let (_, mut result) = result_of(&server, "echo mine > agent.log").await;
    assert_eq!(archive::text(&mut result, "agent.log"), "mine\n");
    assert!(archive::text(&mut result, ".bellglass/agent.log").contains("\"type\":\"scheduled\""));
}

#[tokio::test]
async fn a_large_file_arrives_whole() {
    let server = TestServer::start();
    let code = "import hashlib, os\ndata = os.urandom(50_000_000)\n\
                open('large', 'wb').write(data)\nprint(hashlib.sha256(data).hexdigest(), end='')";
    let job = server.run(&json!({ "steps": [python(code)] })).await;
    let id = text(&job, "job_id");
    let mut result = server.archive(id).await;
    let large = archive::content(&mut result, "large");
    assert_eq!(large.len(), 50_000_000);
    assert_eq!(hex(&Sha256::digest(&large)), text(step(&job, 1), "stdout"));
    let zip = server.download(id).await;
    assert_readable_by_others(&zip);

    // An interrupted download goes on where it stopped.
    let request = server.request(reqwest::Method::GET, &format!("/jobs/{id}/output.zip"));
    let rest = request.header("range", "bytes=1000000-").send().await.unwrap();
    assert_eq!(rest.status(), 206);
    assert!(rest.bytes().await.unwrap() == zip.slice(1_000_000..));
}

#[tokio::test]
async fn many_files_are_packed() {
    let server = TestServer::start();
    let commands = "mkdir -p d/{1..30}; for d in d/*; do touch $d/{1..100}; done";
    let (job, result) = result_of(&server, commands).await;
    assert_eq!(job["result"]["entries"], 1 + 30 + 3000);
    assert_eq!(result.len(), 1 + 30 + 3000 + 2);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
