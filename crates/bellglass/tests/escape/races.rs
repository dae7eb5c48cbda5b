//! Races against whoever reads the workspace from outside: folders and files that become symlinks while they
//! are read, written, deleted and kept. When a workspace is packed nothing runs in it any more, but what lies
//! there may be made to mislead.

use std::io::Read as _;

use reqwest::Method;
use serde_json::{Value, json};

use crate::attempt::{found, looking};
use crate::support::{TestServer, archive, shell, step, text};

/// Swaps folders with symlinks to another place, and a hard link with a symlink to a file there, as fast as it
/// can, until there is a file `go`. Daemons do it, so that no end of a step ends them.
fn swapping(other: &str, file: &str) -> Value {
    let code = format!(
        r"
os.makedirs('/tmp/outside', exist_ok=True)
pathlib.Path('/tmp/outside/file').write_text('outside')
def repeat(name, swap):
    if os.fork() == 0:
        os.setsid()
        for fd in range(3): os.close(fd)
        swaps = 0
        while not os.path.exists('go'):
            swap()
            swaps += 1
        pathlib.Path(f'/tmp/swaps{{name}}').write_text(str(swaps))
        os._exit(0)
for n in range(3):
    os.mkdir(f'dir{{n}}')
    pathlib.Path(f'dir{{n}}/file').write_text('mine')
    os.symlink({other:?}, f'link{{n}}')
    names = f'dir{{n}}'.encode(), f'link{{n}}'.encode()
    repeat(n, lambda: call('renameat2', -100, names[0], -100, names[1], 2))
pathlib.Path('linked').write_text('mine')
os.link('linked', 'hard')
def swap():
    for make, target in [(os.symlink, {other:?} + '/' + {file:?}), (os.link, 'linked')]:
        make(target, 'hard.new')
        os.rename('hard.new', 'hard')
        # The same file under two names stays there under both.
        if make is os.link and os.path.lexists('hard.new'): os.remove('hard.new')
repeat(3, swap)
print(json.dumps('swapping'))
"
    );
    looking(&code)
}

/// Waits until all swappers have said how often they swapped.
fn counting() -> Value {
    looking(
        "places = [pathlib.Path(f'/tmp/swaps{n}') for n in range(4)]\n\
         while not all(place.exists() and place.read_text() for place in places): time.sleep(0.01)\n\
         print(json.dumps([int(place.read_text()) for place in places]))",
    )
}

fn assert_swapped(job: &Value, n: usize) {
    let swaps = found(job, n);
    assert!(swaps.as_array().unwrap().iter().all(|count| count.as_u64() > Some(100)), "{swaps}");
}

/// A step that goes on while files are asked for. Steps after it start once `go` is there.
fn hold() -> Value {
    shell("echo holding; until [ -e go ]; do sleep 0.02; done")
}

#[tokio::test]
async fn reading_through_a_changing_symlink() {
    let server = TestServer::start();
    // What the guest itself would see there is its own environment, arguments and memory.
    let steps = [
        shell(
            "mkdir own; echo mine > own/file; for n in environ cmdline maps; do echo mine > own/$n; done",
        ),
        swapping("/proc/self", "environ"),
        shell(
            "cp own/* dir0/ 2>/dev/null; cp own/* dir1/ 2>/dev/null; cp own/* link2/ 2>/dev/null; true",
        ),
        hold(),
        counting(),
    ];
    let job = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&job, "step.output", 4).await;
    let mut read = 0;
    for round in 0..60 {
        let names = ["file", "environ", "cmdline", "maps"];
        let places = names
            .iter()
            .flat_map(|name| ["dir", "link"].map(|place| format!("{place}{}/{name}", round % 3)));
        for path in places.chain(["hard".to_owned()]) {
            let response = server.get(&format!("/jobs/{job}/files/{path}")).await;
            if response.status().is_success() {
                let content = response.text().await.unwrap();
                assert_eq!(content.trim(), "mine", "{path}");
                read += 1;
            }
        }
    }
    server.let_go(&job).await;
    let job = server.wait_for_end(&job).await;
    assert_swapped(&job, 5);
    assert!(read > 0, "something was read");
}

#[tokio::test]
async fn writing_and_deleting_through_a_changing_symlink() {
    let server = TestServer::start();
    let look = "print(json.dumps([sorted(os.listdir('/tmp/outside')), pathlib.Path('/tmp/outside/file').read_text()]))";
    let steps = [swapping("/tmp/outside", "file"), hold(), counting(), looking(look)];
    let job = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&job, "step.output", 2).await;
    let mut written = 0;
    for round in 0..60 {
        let place = format!("dir{}", round % 3);
        let put = server.put_file(&job, &format!("{place}/new{round}"), "from outside").await;
        written += usize::from(put.status().is_success());
        let put = server.put_file(&job, &format!("{place}/file"), "from outside").await;
        written += usize::from(put.status().is_success());
        let put = server.put_file(&job, "hard", "from outside").await;
        written += usize::from(put.status().is_success());
        for path in [format!("{place}/file"), "hard".into()] {
            let delete = server.request(Method::DELETE, &format!("/jobs/{job}/files/{path}"));
            delete.send().await.unwrap();
        }
    }
    server.let_go(&job).await;
    let job = server.wait_for_end(&job).await;
    assert_swapped(&job, 3);
    assert!(written > 0, "something was written");
    // All of it stayed within the workspace.
    assert_eq!(found(&job, 4), json!([["file"], "outside"]));
}

/// What is kept after a step is read while programs of the step go on.
#[tokio::test]
async fn keeping_what_changes() {
    const CHECKPOINTS: usize = 12;
    let server = TestServer::start();
    let mut steps = vec![swapping("/proc/self", "environ")];
    steps.extend((0..CHECKPOINTS).map(|n| shell(&format!("printf mine > {n}"))));
    steps.extend([shell("printf mine > go"), counting()]);
    let job = server.run(&json!({ "steps": steps })).await;
    assert_eq!(job["status"], "completed", "{job:#}");
    assert_swapped(&job, steps.len());
    let mut kept = 0;
    for n in 1..=CHECKPOINTS {
        let path = format!("/jobs/{}/steps/{n}/files.tar", text(&job, "job_id"));
        let response = server.get(&path).await;
        assert_eq!(response.status(), 200, "{path}");
        let bytes = response.bytes().await.unwrap();
        for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            assert_eq!(content, "mine", "{name} after step {n}");
            kept += usize::from(name.ends_with("/file"));
        }
    }
    assert!(kept > 0, "what was swapped was kept");
}

#[tokio::test]
async fn packing_what_misleads() {
    let server = TestServer::start();
    let steps = [shell(
        "ln -s /etc/passwd passwd; ln -s ../../../../etc absolute; ln -s /proc/self/environ environ; \
         mkfifo pipe; echo mine > own; ln own hard; mkdir -p deep/er; ln -s ../../.. deep/er/up; \
         printf x > $'..\\\\..\\\\evil'; printf x > 'C:drive'; echo last > last",
    )];
    let job = server.run(&json!({ "steps": steps })).await;
    assert_eq!(job["status"], "completed", "{job:#}");
    let mut archive = server.archive(text(&job, "job_id")).await;
    let names = archive::names(&archive);
    assert!(names.contains(&"last".to_owned()), "{names:?}");
    for name in &names {
        // A folder's name ends with a slash.
        let mut parts = name.strip_suffix('/').unwrap_or(name).split('/');
        assert!(parts.all(|part| !["", ".", ".."].contains(&part)), "{name}");
        assert!(!name.contains(['\\', ':']), "{name}");
        let below_link = names.iter().any(|link| {
            name.starts_with(&format!("{link}/")) && archive::is_symlink(&mut archive, link)
        });
        assert!(!below_link, "{name} lies below a symlink");
        let content = archive::content(&mut archive, name);
        let content = String::from_utf8_lossy(&content);
        assert!(!content.contains("root:") && !content.contains("PATH="), "{name}: {content}");
    }
    assert!(archive::is_symlink(&mut archive, "passwd"));
    assert_eq!(archive::text(&mut archive, "hard"), "mine\n");
    assert_eq!(step(&job, 1)["exit_code"], 0, "{job:#}");
}
