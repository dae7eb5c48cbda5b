//! Races against whoever reads the workspace from outside: folders that become symlinks, files that
//! become others, while they are read, written, deleted and packed.

use reqwest::Method;
use serde_json::{Value, json};

use crate::attempt::{found, looking};
use crate::support::{TestServer, archive, shell, step, text};

/// Swaps a folder with a symlink to another place, as fast as it can, until there is a file `go`.
/// Daemons do it, so that no end of a step ends them.
fn swapping(other: &str) -> Value {
    let code = format!(
        r"
os.makedirs('/tmp/outside', exist_ok=True)
pathlib.Path('/tmp/outside/file').write_text('outside')
for n in range(3):
    os.mkdir(f'dir{{n}}')
    pathlib.Path(f'dir{{n}}/file').write_text('mine')
    os.symlink({other:?}, f'link{{n}}')
    if os.fork() == 0:
        os.setsid()
        for fd in range(3): os.close(fd)
        swaps = 0
        while not os.path.exists('go'):
            call('renameat2', -100, f'dir{{n}}'.encode(), -100, f'link{{n}}'.encode(), 2)
            swaps += 1
        pathlib.Path(f'/tmp/swaps{{n}}').write_text(str(swaps))
        os._exit(0)
print(json.dumps('swapping'))
"
    );
    looking(&code)
}

/// Waits until all swappers have said how often they swapped.
fn counting() -> Value {
    looking(
        "places = [pathlib.Path(f'/tmp/swaps{n}') for n in range(3)]\n\
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
        swapping("/proc/self"),
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
        for name in ["file", "environ", "cmdline", "maps"] {
            for place in ["dir", "link"] {
                let response =
                    server.get(&format!("/jobs/{job}/files/{place}{}/{name}", round % 3)).await;
                if response.status().is_success() {
                    let content = response.text().await.unwrap();
                    assert_eq!(content.trim(), "mine", "{place}/{name}");
                    read += 1;
                }
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
    let steps = [swapping("/tmp/outside"), hold(), counting(), looking(look)];
    let job = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&job, "step.output", 2).await;
    let mut written = 0;
    for round in 0..60 {
        let place = format!("dir{}", round % 3);
        let put = server.put_file(&job, &format!("{place}/new{round}"), "from outside").await;
        written += usize::from(put.status().is_success());
        let put = server.put_file(&job, &format!("{place}/file"), "from outside").await;
        written += usize::from(put.status().is_success());
        let delete = server.request(Method::DELETE, &format!("/jobs/{job}/files/{place}/file"));
        delete.send().await.unwrap();
    }
    server.let_go(&job).await;
    let job = server.wait_for_end(&job).await;
    assert_swapped(&job, 3);
    assert!(written > 0, "something was written");
    // All of it stayed within the workspace.
    assert_eq!(found(&job, 4), json!([["file"], "outside"]));
}

#[tokio::test]
async fn packing_what_changes() {
    let server = TestServer::start();
    // The swappers go on when the last step is over, and are there when the packing begins.
    let steps = [
        swapping("/proc/self"),
        shell(
            "ln -s /etc/passwd passwd; ln -s ../../../../etc absolute; ln -s /proc/self/environ environ; \
             mkfifo pipe; ln dir0/file hard 2>/dev/null || ln link0/file hard; mkdir -p deep/er; \
             ln -s ../../.. deep/er/up; printf x > $'..\\\\..\\\\evil'; printf x > 'C:drive'; echo last > last",
        ),
    ];
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
    assert_eq!(step(&job, 2)["exit_code"], 0, "{job:#}");
}
