//! Artifacts are whole or not there, and read the same in every way, wherever they are kept.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::Duration;

use bellglass_protocol::id::JobId;
use bellglass_store::artifacts::{
    ArtifactBody, ArtifactError, ArtifactKey, Artifacts, S3Credentials, S3Settings, run_apart,
};
use bytes::Bytes;
use futures::TryStreamExt as _;
use tempfile::TempDir;

/// More than two parts of an upload, with an odd rest.
const LARGE: usize = (11 << 20) + 12_345;

fn fresh() -> (Artifacts, TempDir) {
    let dir = TempDir::new().unwrap();
    (Artifacts::local(&dir.path().join("artifacts")).unwrap(), dir)
}

/// Artifacts in a bucket, below a prefix of the test's own.
fn in_bucket(presigned: Option<Duration>) -> Artifacts {
    let variable = |name: &str| {
        std::env::var(name)
            .unwrap_or_else(|_| panic!("{name} is not set: run the tests with `cargo nextest run`"))
    };
    let credentials = S3Credentials {
        access_key_id: variable("BELLGLASS_TEST_S3_KEY"),
        secret_access_key: variable("BELLGLASS_TEST_S3_SECRET"),
        session_token: None,
    };
    let settings = S3Settings {
        bucket: "bellglass".into(),
        prefix: format!("tests/{}", JobId::generate()),
        endpoint: Some(variable("BELLGLASS_TEST_S3")),
        region: None,
        credentials: Some(credentials),
        presigned,
    };
    Artifacts::s3(&settings).unwrap()
}

macro_rules! in_every_place {
    ($($behaviour:ident,)*) => {
        mod local {
            $(
                #[tokio::test]
                async fn $behaviour() {
                    let (artifacts, _dir) = super::fresh();
                    super::$behaviour(artifacts).await;
                }
            )*
        }
        mod s3 {
            $(
                #[tokio::test]
                async fn $behaviour() {
                    super::$behaviour(super::in_bucket(None)).await;
                }
            )*
        }
    };
}

in_every_place! {
    what_is_written_is_read_whole,
    a_put_replaces_what_was_there,
    ranges_are_exact,
    a_missing_artifact_is_said_to_be_missing,
    an_artifact_can_be_read_here_and_there,
    a_replaced_artifact_is_never_mixed_with_its_successor,
    deleting_a_job_deletes_all_of_it_and_nothing_else,
}

#[tokio::test]
async fn a_bucket_gives_links_and_a_folder_does_not() {
    let (folder, _dir) = fresh();
    let key = ArtifactKey::result(JobId::generate());
    assert_eq!(folder.link(&key, "x.zip").await.unwrap(), None);
    let bucket = in_bucket(Some(Duration::from_secs(60)));
    bucket.put(&key, Bytes::from_static(b"the result")).await.unwrap();
    let link = bucket.link(&key, "work.zip").await.unwrap().unwrap();
    let answer = reqwest::get(&link).await.unwrap().error_for_status().unwrap();
    assert_eq!(answer.headers()["content-disposition"], "attachment; filename=\"work.zip\"");
    assert_eq!(answer.bytes().await.unwrap(), "the result");
    let forged = link.replace("output.zip", "memory.json");
    assert_eq!(reqwest::get(&forged).await.unwrap().status(), 403);
}

#[tokio::test]
async fn wrong_credentials_are_found_out_by_a_ping() {
    in_bucket(None).ping().await.unwrap();
    let (folder, _dir) = fresh();
    folder.ping().await.unwrap();
    let credentials = S3Credentials {
        access_key_id: "nobody".into(),
        secret_access_key: "nothing".into(),
        session_token: None,
    };
    let endpoint = std::env::var("BELLGLASS_TEST_S3").unwrap();
    let settings = S3Settings {
        bucket: "bellglass".into(),
        prefix: String::new(),
        endpoint: Some(endpoint),
        region: None,
        credentials: Some(credentials),
        presigned: None,
    };
    let refused = Artifacts::s3(&settings).unwrap().ping().await.unwrap_err();
    assert!(!format!("{refused:?}").contains("nothing"), "{refused:?}");
}

/// Bytes that differ from place to place, so that a mix-up shows.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

async fn write(artifacts: &Artifacts, key: ArtifactKey, content: Vec<u8>) -> u64 {
    let mut writer = artifacts.writer(key);
    run_apart(move || {
        for piece in content.chunks(100_000) {
            writer.write_all(piece).unwrap();
        }
        writer.finish().unwrap()
    })
    .await
    .unwrap()
}

async fn whole(body: ArtifactBody) -> Vec<u8> {
    body.stream.try_collect::<Vec<Bytes>>().await.unwrap().concat()
}

/// Every file below a folder.
fn files_in(dir: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_in(&path));
        } else {
            files.push(path.display().to_string());
        }
    }
    files
}

async fn what_is_written_is_read_whole(artifacts: Artifacts) {
    let job = JobId::generate();
    for (n, length) in [0, 1, 1000, 5 << 20, LARGE].into_iter().enumerate() {
        let key = ArtifactKey::step_output(job, n as u32);
        let content = pattern(length);
        assert_eq!(write(&artifacts, key.clone(), content.clone()).await, length as u64);
        assert_eq!(artifacts.size(&key).await.unwrap(), length as u64);
        let body = artifacts.get(&key, None).await.unwrap();
        assert_eq!(body.bytes_total, length as u64);
        assert!(whole(body).await == content);
    }
}

async fn a_put_replaces_what_was_there(artifacts: Artifacts) {
    let key = ArtifactKey::memory(JobId::generate());
    for content in ["first", "second, longer", "3"] {
        artifacts.put(&key, Bytes::from(content)).await.unwrap();
        assert_eq!(whole(artifacts.get(&key, None).await.unwrap()).await, content.as_bytes());
    }
}

async fn ranges_are_exact(artifacts: Artifacts) {
    let key = ArtifactKey::result(JobId::generate());
    let content = pattern(1000);
    artifacts.put(&key, content.clone().into()).await.unwrap();
    for (range, given) in
        [(0..1000, 0..1000), (0..1, 0..1), (10..20, 10..20), (990..5000, 990..1000)]
    {
        let body = artifacts.get(&key, Some(range)).await.unwrap();
        assert_eq!(body.bytes_total, 1000);
        assert_eq!(body.range, given);
        let bytes = given.start as usize..given.end as usize;
        assert_eq!(whole(body).await, content[bytes]);
    }
    for beyond in [1000..1001, 5000..6000, 7..7] {
        let refused = artifacts.get(&key, Some(beyond)).await.err().unwrap();
        assert!(matches!(refused, ArtifactError::OutOfRange { bytes_total: 1000 }), "{refused}");
    }
}

async fn a_missing_artifact_is_said_to_be_missing(artifacts: Artifacts) {
    let key = ArtifactKey::result(JobId::generate());
    let is_missing = |error| matches!(error, ArtifactError::NotFound(missing) if missing == key);
    assert!(is_missing(artifacts.size(&key).await.unwrap_err()));
    assert!(is_missing(artifacts.get(&key, None).await.err().unwrap()));
    assert!(is_missing(artifacts.get(&key, Some(0..1)).await.err().unwrap()));
    assert!(is_missing(artifacts.open_seekable(&key).await.unwrap_err()));
}

#[tokio::test]
async fn an_unfinished_artifact_leaves_nothing() {
    let (artifacts, dir) = fresh();
    let key = ArtifactKey::result(JobId::generate());
    let mut writer = artifacts.writer(key.clone());
    let artifacts_dir = dir.path().to_path_buf();
    run_apart(move || {
        writer.write_all(&pattern(LARGE)).unwrap();
        // It is on the disk already, but not under its name.
        assert_eq!(files_in(&artifacts_dir).len(), 1);
        drop(writer);
    })
    .await
    .unwrap();
    assert!(matches!(artifacts.size(&key).await, Err(ArtifactError::NotFound(_))));
    // The runtime cleans up behind the drop; a time-out of the test is the only way to fail.
    while !files_in(dir.path()).is_empty() {
        tokio::task::yield_now().await;
    }
}

async fn an_artifact_can_be_read_here_and_there(artifacts: Artifacts) {
    let key = ArtifactKey::result(JobId::generate());
    let content = pattern(LARGE);
    write(&artifacts, key.clone(), content.clone()).await;
    let mut file = artifacts.open_seekable(&key).await.unwrap();
    run_apart(move || {
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        assert!(all == content);

        let mut piece = [0; 1000];
        for start in [0, 5, LARGE - 1000, 3 << 20, (3 << 20) + 10, (256 << 10) - 500, 100] {
            assert_eq!(file.seek(SeekFrom::Start(start as u64)).unwrap(), start as u64);
            file.read_exact(&mut piece).unwrap();
            assert_eq!(piece, content[start..start + 1000]);
        }
        file.seek(SeekFrom::End(-3)).unwrap();
        file.seek(SeekFrom::Current(1)).unwrap();
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, content[LARGE - 2..]);
        file.seek(SeekFrom::End(10)).unwrap();
        assert_eq!(file.read(&mut piece).unwrap(), 0);
        assert!(file.seek(SeekFrom::Current(-(LARGE as i64) - 11)).is_err());
    })
    .await
    .unwrap();
}

async fn a_replaced_artifact_is_never_mixed_with_its_successor(artifacts: Artifacts) {
    let key = ArtifactKey::result(JobId::generate());
    artifacts.put(&key, pattern(1 << 20).into()).await.unwrap();
    let mut file = artifacts.open_seekable(&key).await.unwrap();
    artifacts.put(&key, vec![0; 1 << 20].into()).await.unwrap();
    run_apart(move || assert!(file.read(&mut [0; 10]).is_err())).await.unwrap();
}

async fn deleting_a_job_deletes_all_of_it_and_nothing_else(artifacts: Artifacts) {
    let (doomed, spared) = (JobId::generate(), JobId::generate());
    let keys = |job| [ArtifactKey::result(job), ArtifactKey::step_output(job, 3)];
    for key in keys(doomed).iter().chain(&keys(spared)) {
        artifacts.put(key, Bytes::from_static(b"x")).await.unwrap();
    }
    artifacts.delete_job(doomed).await.unwrap();
    artifacts.delete_job(doomed).await.unwrap();
    for key in keys(doomed) {
        assert!(matches!(artifacts.size(&key).await, Err(ArtifactError::NotFound(_))));
    }
    for key in keys(spared) {
        assert_eq!(artifacts.size(&key).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn deleting_a_job_leaves_no_trace_in_the_folder() {
    let (artifacts, dir) = fresh();
    let (doomed, spared) = (JobId::generate(), JobId::generate());
    for job in [doomed, spared] {
        for key in [ArtifactKey::result(job), ArtifactKey::step_output(job, 3)] {
            artifacts.put(&key, Bytes::from_static(b"x")).await.unwrap();
        }
    }
    // What an upload leaves when the process is killed in the middle of it.
    let folder = dir.path().join(format!("artifacts/jobs/{doomed}"));
    std::fs::write(folder.join("output.zip#1"), "half").unwrap();

    artifacts.delete_job(doomed).await.unwrap();
    artifacts.delete_job(doomed).await.unwrap();
    assert!(!folder.exists());
    assert_eq!(files_in(dir.path()).len(), 2);
    assert_eq!(artifacts.size(&ArtifactKey::result(spared)).await.unwrap(), 1);
}

/// The object store needs a blocking thread for each piece of its work. Whoever waits for an
/// artifact must not hold one, or this would never end.
#[test]
fn a_single_blocking_thread_is_enough() {
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let (artifacts, _dir) = fresh();
        let key = ArtifactKey::result(JobId::generate());
        write(&artifacts, key.clone(), pattern(LARGE)).await;
        let mut file = artifacts.open_seekable(&key).await.unwrap();
        let mut all = Vec::new();
        let all = run_apart(move || file.read_to_end(&mut all).map(|_| all)).await.unwrap();
        assert!(all.unwrap() == pattern(LARGE));
    });
}

#[tokio::test]
async fn a_thread_of_the_runtime_is_refused() {
    let (artifacts, _dir) = fresh();
    let key = ArtifactKey::result(JobId::generate());
    artifacts.put(&key, Bytes::from_static(b"x")).await.unwrap();
    let mut file = artifacts.open_seekable(&key).await.unwrap();
    let mut writer = artifacts.writer(key);
    let refused = tokio::task::spawn_blocking(move || {
        let reading = file.read(&mut [0]).unwrap_err().kind();
        let writing = writer.write(b"y").unwrap_err().kind();
        assert!(matches!(writer.finish(), Err(ArtifactError::NoThread(_))));
        (reading, writing)
    });
    let deadlock = std::io::ErrorKind::Deadlock;
    assert_eq!(refused.await.unwrap(), (deadlock, deadlock));
}
