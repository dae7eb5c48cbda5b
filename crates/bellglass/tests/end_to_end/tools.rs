//! Each tool as a step of a real job.

use serde_json::{Value, json};

use crate::support::{TestServer, archive, python, shell, step, text, wait_for_go};

#[tokio::test]
async fn a_shell_step_has_a_folder_an_environment_and_a_time_limit() {
    let server = TestServer::start();
    let job = server
        .run(&json!({ "steps": [
            shell("mkdir -p sub/deep; pwd"),
            { "tool": "shell", "command": "pwd", "cwd": "sub/deep" },
            { "tool": "shell", "command": "echo \"$GREETING\" $HOME", "env": { "GREETING": "a  b" } },
            { "tool": "shell", "command": "echo begun; sleep 1000", "timeout": 0.5 },
            { "tool": "shell", "command": "pwd", "cwd": "not/there" },
            shell("kill -TERM $$"),
        ]}))
        .await;
    assert_eq!(step(&job, 1)["stdout"], "/workspace\n");
    assert_eq!(step(&job, 2)["stdout"], "/workspace/sub/deep\n");
    assert_eq!(step(&job, 3)["stdout"], "a  b /home/agent\n");
    let slow = step(&job, 4);
    assert_eq!((text(slow, "status"), text(slow, "stdout")), ("timed_out", "begun\n"));
    assert_eq!(slow["exit_code"], Value::Null);
    assert_eq!(step(&job, 5)["error"]["code"], "folder_not_found");
    assert_eq!((&step(&job, 6)["signal"], text(step(&job, 6), "status")), (&json!(15), "failed"));
    assert_eq!(job["failed_steps"], json!([4, 5, 6]));
}

#[tokio::test]
async fn python_and_typescript_run_as_programs_of_their_own() {
    let server = TestServer::start();
    let typescript = |code: &str| json!({ "tool": "typescript", "fresh": true, "code": code });
    let job = server
        .run(&json!({ "steps": [
            python("import sys, os\nprint(sum(range(10)), os.getcwd())\nopen('p.txt', 'w').write('from python')"),
            python("def broken():\n    raise ValueError('oh no')\nbroken()"),
            typescript(
                "interface Point { x: number }\nconst p: Point = { x: 4 };\n\
                 const text: string = await Deno.readTextFile('p.txt');\nconsole.log(p.x, text);",
            ),
            typescript("throw new Error('oh no');"),
            python("import time\nprint('begun')\ntime.sleep(1000)").as_object().map(|step| {
                let mut step = step.clone();
                step.insert("timeout".into(), json!(1));
                step
            }),
        ]}))
        .await;
    assert_eq!(step(&job, 1)["stdout"], "45 /workspace\n");
    assert_eq!(step(&job, 2)["exit_code"], 1);
    let trace = text(step(&job, 2), "stderr");
    assert!(
        trace.contains("line 2, in broken") && trace.ends_with("ValueError: oh no\n"),
        "{trace}"
    );
    assert_eq!(step(&job, 3)["stdout"], "4 from python\n", "{:#}", step(&job, 3));
    assert_eq!(step(&job, 4)["exit_code"], 1);
    assert!(text(step(&job, 4), "stderr").contains("oh no"));
    assert_eq!(text(step(&job, 5), "status"), "timed_out");
    assert_eq!(step(&job, 5)["stdout"], "begun\n");
}

#[tokio::test]
async fn every_file_tool_does_its_work() {
    let server = TestServer::start();
    let job = server
        .run(&json!({ "steps": [
            { "tool": "write_file", "path": "src/a.txt", "content": "one\ntwo\nthree\n" },
            { "tool": "write_file", "path": "tool", "content": "IyEvYmluL3NoCmVjaG8gcmFuCg==", "encoding": "base64", "executable": true },
            { "tool": "read_file", "path": "src/a.txt", "offset": 2, "limit": 1 },
            { "tool": "edit_file", "path": "src/a.txt", "old": "two", "new": "2" },
            { "tool": "edit_file", "path": "src/a.txt", "old": "e", "new": "E" },
            { "tool": "edit_file", "path": "src/a.txt", "old": "e", "new": "E", "replace_all": true },
            { "tool": "move_file", "from": "src/a.txt", "to": "lib/b.txt" },
            { "tool": "search_files", "pattern": "^on.$", "glob": "**/*.txt" },
            { "tool": "list_files" },
            { "tool": "delete_file", "path": "lib" },
            { "tool": "delete_file", "path": "lib", "recursive": true },
            shell("./tool; find . -type f | sort"),
        ]}))
        .await;
    assert_eq!(job["failed_steps"], json!([5, 10]), "{job:#}");
    let read = text(step(&job, 3), "output");
    assert!(read.contains("two") && !read.contains("one") && !read.contains("three"), "{read}");
    assert!(step(&job, 5)["error"]["code"].is_string(), "`e` occurs more than once");
    let found = text(step(&job, 8), "output");
    assert!(found.contains("lib/b.txt") && found.contains("onE"), "{found}");
    let listed = text(step(&job, 9), "output");
    assert!(listed.contains("lib") && listed.contains("b.txt") && !listed.contains("src/a"));
    assert!(step(&job, 10)["error"]["code"].is_string(), "the folder is not empty");
    assert_eq!(step(&job, 12)["stdout"], "ran\n./tool\n");
}

#[tokio::test]
async fn several_edits_copies_globs_and_diffs_work_in_a_sandbox() {
    let server = TestServer::start();
    let source = "def f():\r\n\tif a:\r\n\t\tone()  \r\n\ttwo()\r\n";
    let job = server
        .submit(&json!({
            "files": [{ "path": "src/old.py", "content": source }],
            "steps": [
                { "tool": "copy_file", "from": "src/old.py", "to": "src/new.py" },
                // As a model writes it that saw neither tabs nor carriage returns.
                { "tool": "multi_edit", "path": "src/new.py", "edits": [
                    { "old": "f()", "new": "g()" },
                    { "old": "    if a:\n        one()\n", "new": "    if a:\n        if b:\n            one()\n" },
                ]},
                { "tool": "edit_file", "path": "src/new.py", "old": "\t", "new": "x" },
                { "tool": "copy_file", "from": "src", "to": "kept" },
                { "tool": "copy_file", "from": "src", "to": "src/in" },
                { "tool": "find_files", "glob": "*.py" },
                { "tool": "diff_files", "from": "src/old.py", "to": "src/new.py" },
                wait_for_go(),
                shell("patch --binary -s src/old.py < the.diff && cmp src/old.py src/new.py && cmp kept/new.py src/new.py && echo alike"),
            ],
        }))
        .await;
    server.wait_for_step(&job, "step.output", 8).await;
    // By way of whoever reads the answer, since that is who would give it to `patch`.
    let diff = text(step(&server.job(&job).await, 7), "output").to_owned();
    assert_eq!(server.put_file(&job, "the.diff", diff).await.status(), 204);
    server.let_go(&job).await;
    let job = server.wait_for_end(&job).await;
    assert_eq!(job["failed_steps"], json!([3, 5]), "{job:#}");
    assert!(text(step(&job, 2), "output").contains("edit 2: "), "{:#}", step(&job, 2));
    assert_eq!(step(&job, 3)["error"]["code"], "not_unique");
    assert_eq!(step(&job, 5)["error"]["code"], "into_itself");
    let found = "kept/new.py\nkept/old.py\nsrc/new.py\nsrc/old.py\n";
    assert_eq!(text(step(&job, 6), "output"), found);
    assert_eq!(step(&job, 9)["stdout"], "alike\n", "{:#}", step(&job, 9));
    let mut left = server.archive(text(&job, "job_id")).await;
    let edited = "def g():\r\n\tif a:\r\n\t\tif b:\r\n\t\t\tone()\r\n\ttwo()\r\n";
    assert_eq!(archive::text(&mut left, "src/new.py"), edited);
}

#[tokio::test]
async fn file_tools_stay_inside_whatever_symlinks_say() {
    let server = TestServer::start();
    let links = "ln -s /etc etc; ln -s /etc/passwd passwd; ln -s .. up; ln -s loop loop; \
                 ln -s /proc/1/root root; ln -s /tmp/outside new; touch mine";
    let job = server
        .run(&json!({ "steps": [
            shell(links),
            { "tool": "read_file", "path": "etc/passwd" },
            { "tool": "read_file", "path": "passwd" },
            { "tool": "read_file", "path": "up/etc/passwd" },
            { "tool": "read_file", "path": "loop" },
            { "tool": "read_file", "path": "root/etc/passwd" },
            { "tool": "read_file", "path": "../etc/passwd" },
            { "tool": "read_file", "path": "/etc/passwd" },
            { "tool": "write_file", "path": "up/tmp/evil", "content": "x" },
            { "tool": "write_file", "path": "etc/evil", "content": "x" },
            { "tool": "edit_file", "path": "passwd", "old": "root", "new": "toor" },
            { "tool": "move_file", "from": "mine", "to": "up/tmp/mine" },
            { "tool": "move_file", "from": "etc/hostname", "to": "hostname" },
            { "tool": "copy_file", "from": "etc", "to": "copied" },
            { "tool": "copy_file", "from": "mine", "to": "up/tmp/mine" },
            { "tool": "multi_edit", "path": "passwd", "edits": [{ "old": "root", "new": "toor" }] },
            { "tool": "diff_files", "from": "mine", "to": "passwd" },
            { "tool": "find_files", "glob": "passwd", "path": "etc" },
            { "tool": "delete_file", "path": "up/tmp", "recursive": true },
            { "tool": "list_files", "path": "etc" },
            { "tool": "search_files", "pattern": "root:", "path": "passwd" },
            shell("ls -d /tmp/evil /tmp/outside /tmp/mine hostname copied 2>/dev/null; ls -d /tmp mine"),
        ]}))
        .await;
    for n in 2..=21 {
        let refused = step(&job, n);
        assert_eq!(text(refused, "status"), "failed", "{refused:#}");
        assert!(!text(refused, "output").contains("root:x"), "{refused:#}");
    }
    assert_eq!(step(&job, 22)["stdout"], "/tmp\nmine\n");
}
