//! The bucket against real S3 servers: races, lost servers, listings, the probe, wrong credentials.
//!
//! Run by `tests/e2e/s3.sh`. A missing server fails the test with what to run; nothing is skipped.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMode};
use telesto_bucket::keyring::{self, NoRing};
use telesto_bucket::turning::{self, How};
use telesto_bucket::{
    Bucket, BucketOptions, Cause, Class, Error, OpenBucket, PutOutcome, open, probe_conditional_put,
};
use telesto_cipher::{KeyFile, KeyService};
use tokio::process::{Child, Command};

struct Server {
    child: Child,
    kind: &'static str,
    folder: tempfile::TempDir,
    port: u16,
}

impl Server {
    async fn start(kind: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        std::fs::create_dir(folder.path().join("telesto")).expect("bucket folder");
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("address").port();
        drop(free);
        let child = Self::spawn(kind, folder.path(), port);
        let server = Self { child, kind, folder, port };
        server.wait_until_it_answers().await;
        server
    }

    fn spawn(kind: &str, folder: &std::path::Path, port: u16) -> Child {
        let home = std::env::var("HOME").expect("HOME");
        let binary = PathBuf::from(home).join(".cache/telesto/bin").join(kind);
        assert!(
            binary.exists(),
            "{} is missing: run tests/servers/ensure.sh, then this test again",
            binary.display()
        );
        let address = format!("127.0.0.1:{port}");
        let folder = folder.display().to_string();
        let mut command = Command::new(binary);
        match kind {
            "versitygw" => {
                command.env("ROOT_ACCESS_KEY", "admin").env("ROOT_SECRET_KEY", "adminadmin");
                command.args(["--port", &address, "--keep-alive", "--quiet", "posix", &folder]);
            }
            _ => {
                command.env("MINIO_ROOT_USER", "admin").env("MINIO_ROOT_PASSWORD", "adminadmin");
                command.env("MINIO_BROWSER", "off");
                command.args(["server", "--quiet", "--address", &address, &folder]);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.kill_on_drop(true).spawn().expect("the S3 server runs")
    }

    async fn wait_until_it_answers(&self) {
        let bucket = self.open("telesto/hello", BucketOptions::default());
        let answered = async {
            while bucket.get(Cause::Admin, "nothing", None).await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, answered).await.expect("the S3 server answers");
    }

    fn open(&self, place: &str, mut options: BucketOptions) -> Arc<OpenBucket> {
        options.environment = false;
        for (key, value) in [
            ("aws_endpoint_url", format!("http://127.0.0.1:{}", self.port)),
            ("aws_access_key_id", "admin".to_owned()),
            ("aws_secret_access_key", "adminadmin".to_owned()),
            ("aws_region", "us-east-1".to_owned()),
        ] {
            options.settings.entry(key.to_owned()).or_insert(value);
        }
        open(&format!("s3://{place}"), &options, telesto_runtime::env()).expect("opens")
    }

    async fn kill(&mut self) {
        self.child.kill().await.expect("SIGKILL");
    }

    async fn restart(&mut self) {
        self.child = Self::spawn(self.kind, self.folder.path(), self.port);
    }
}

async fn races_have_one_winner(server: &Server) {
    let buckets: Vec<_> =
        (0..4).map(|_| server.open("telesto/races", BucketOptions::default())).collect();
    for round in 0..25 {
        let key = format!("slot/{round:020}");
        let racers = (0..16_usize).map(|racer| {
            let (bucket, key) = (Arc::clone(&buckets[racer % 4]), key.clone());
            async move {
                let body = Bytes::from(format!("racer {racer} of round {round}"));
                (body.clone(), bucket.put_if_absent(Cause::Commit, &key, body).await.expect("put"))
            }
        });
        let outcomes = join_all(racers).await;
        let winners: Vec<_> =
            outcomes.iter().filter(|(_, outcome)| *outcome == PutOutcome::Created).collect();
        assert_eq!(winners.len(), 1, "round {round}");
        let held = buckets[0].get(Cause::Read, &key, None).await.expect("get").expect("there");
        assert_eq!(held.body, winners[0].0, "round {round}");
    }
    let listed = buckets[1].list_after(Cause::Read, "slot", Some("slot/00000000000000000009"), 5);
    let keys: Vec<_> = listed.await.expect("list").into_iter().map(|o| o.key).collect();
    let expected: Vec<_> = (10..15).map(|n| format!("slot/{n:020}")).collect();
    assert_eq!(keys, expected);
    probe_conditional_put(&*buckets[0], &telesto_runtime::env()).await.expect("one winner");
}

async fn engine_store_works(server: &Server) {
    let bucket = server.open("telesto/engine", BucketOptions::default());
    let store = bucket.object_store(Cause::Checkpoint);
    let key = Path::from("db/manifest/1");
    let created = store.put_opts(&key, "1".into(), PutMode::Create.into()).await.expect("create");
    let taken = store.put_opts(&key, "2".into(), PutMode::Create.into()).await;
    assert!(matches!(taken, Err(object_store::Error::AlreadyExists { .. })), "{taken:?}");
    let update = PutMode::Update(created.clone().into());
    store.put_opts(&key, "2".into(), update.into()).await.expect("matches");
    let stale = PutMode::Update(created.into());
    let stale = store.put_opts(&key, "3".into(), stale.into()).await;
    assert!(matches!(stale, Err(object_store::Error::Precondition { .. })), "{stale:?}");
    let large = Path::from("db/compacted/x.sst");
    let mut upload = store.put_multipart(&large).await.expect("starts");
    upload.put_part(vec![1_u8; 5 << 20].into()).await.expect("part");
    upload.put_part(vec![2_u8; 100].into()).await.expect("part");
    upload.complete().await.expect("completes");
    let tail = store.get_range(&large, (5 << 20) - 1..(5 << 20) + 1).await.expect("range");
    assert_eq!(&tail[..], [1, 2]);
    bucket.delete(Cause::Gc, "db/compacted/x.sst").await.expect("delete");
    bucket.delete(Cause::Gc, "db/compacted/x.sst").await.expect("deleting again succeeds");
    let past =
        bucket.get(Cause::Read, "db/manifest/1", Some(5..9)).await.expect_err("past the end");
    assert!(matches!(past, Error::Refused { .. }), "{past}");
    assert_eq!(bucket.meter().snapshot().requests(Class::Delete), 2);
}

/// A database in clear becomes encrypted in place: these servers keep to the condition of an
/// overwrite.
async fn database_is_turned_over(server: &Server) {
    let env = telesto_runtime::env();
    let clear = server.open("telesto/turned", BucketOptions::default());
    let body = |at: usize| Bytes::from(vec![at as u8; 1 + at * 9000]);
    for at in 0..8 {
        let put = clear.put_if_absent(Cause::Commit, &format!("shards/1/{at}"), body(at)).await;
        assert_eq!(put.expect("put"), PutOutcome::Created);
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("keys");
    KeyFile::add_key(&file, "one", &*env.random).expect("made");
    let keys: Arc<dyn KeyService> =
        Arc::new(KeyFile::read(&file, Arc::clone(&env.random)).expect("reads"));
    turning::begin(&clear, &*keys, false).await.expect("begins");
    let open = async || {
        let unlocked = keyring::unlock(Arc::clone(&clear), Some(Arc::clone(&keys)), NoRing::Refuse);
        unlocked.await.expect("opens")
    };
    let knowing = open().await;
    let part = knowing.get(Cause::Read, "shards/1/7", Some(10..20)).await.expect("read");
    assert_eq!(part.expect("there").body, body(7).slice(10..20));
    let done = turning::turn(&*open().await, How::default(), &|_| ()).await.expect("turns");
    assert_eq!(done.objects, 8);
    turning::finish(&clear, &*keys).await.expect("ends");
    for bucket in [knowing, open().await] {
        for at in 0..8 {
            let key = format!("shards/1/{at}");
            let whole = bucket.get(Cause::Read, &key, None).await.expect("read").expect("there");
            assert_eq!(whole.body, body(at));
            let raw = clear.get(Cause::Read, &key, None).await.expect("read").expect("there");
            assert!(raw.body.starts_with(b"TLE"));
        }
        let part = bucket.get(Cause::Read, "shards/1/7", Some(10..20)).await.expect("read");
        assert_eq!(part.expect("there").body, body(7).slice(10..20));
    }
}

async fn refusals_are_clear_and_quick(server: &Server) {
    let mut options = BucketOptions::default();
    options.settings.insert("aws_secret_access_key".to_owned(), "wrong-hush-hush".to_owned());
    let wrong = server.open("telesto/x", options);
    let body = Bytes::from_static(b"x");
    let error = wrong.put_if_absent(Cause::Commit, "k", body.clone()).await.expect_err("refused");
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!error.to_string().contains("hush"), "{error}");
    let nowhere = server.open("no-such-bucket/x", BucketOptions::default());
    let error = nowhere.get(Cause::Read, "k", None).await.expect_err("refused");
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    let error = nowhere.put_if_absent(Cause::Commit, "k", body).await.expect_err("refused");
    assert!(matches!(error, Error::Refused { .. }), "{error}");
}

async fn killed_server_loses_nothing_acknowledged(server: &mut Server) {
    let options = BucketOptions {
        request_timeout: Duration::from_millis(500),
        operation_timeout: Duration::from_secs(2),
        ..BucketOptions::default()
    };
    let bucket = server.open("telesto/killed", options);
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let writer = {
            let bucket = Arc::clone(&bucket);
            tokio::spawn(async move {
                let mut written = Vec::new();
                for n in 0..10_000 {
                    let key = format!("log/{round}-{n}");
                    let body = Bytes::from(key.clone());
                    match bucket.put_if_absent(Cause::Commit, &key, body).await {
                        Ok(PutOutcome::Created) => written.push(key),
                        Ok(PutOutcome::Exists) => panic!("{key} is nobody else's"),
                        Err(Error::Unavailable { .. } | Error::Indeterminate { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                written
            })
        };
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.kill().await;
        let written = tokio::time::timeout(Duration::from_secs(20), writer).await;
        acknowledged.extend(written.expect("bounded").expect("no panic"));
        server.restart().await;
        server.wait_until_it_answers().await;
    }
    assert!(acknowledged.len() > 20, "{}", acknowledged.len());
    for key in acknowledged {
        let object = bucket.get(Cause::Read, &key, None).await.expect("get").expect("kept");
        assert_eq!(object.body, key.as_bytes());
    }
}

async fn everything(kind: &'static str) {
    let mut server = Server::start(kind).await;
    races_have_one_winner(&server).await;
    engine_store_works(&server).await;
    database_is_turned_over(&server).await;
    refusals_are_clear_and_quick(&server).await;
    killed_server_loses_nothing_acknowledged(&mut server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versitygw_serves_as_a_bucket() {
    everything("versitygw").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minio_serves_as_a_bucket() {
    everything("minio").await;
}
