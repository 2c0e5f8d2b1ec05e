//! One byte changed in any stored object or file of a real database: right answers, or an error
//! that names the object and says what to do. Never a wrong row, a panic or a wait without end.

use std::collections::BTreeMap;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use telesto::open::{Opened, Options, open};
use telesto::{Condition, Durability, LogKind, ReadOptions};
use telesto_common::Label;
use telesto_server::kv::Kv;
use telesto_sql::{ResultSink, SessionOptions, StatementResult};
use telesto_txn::Database as _;

/// Panics since they were last looked at, those of background tasks too.
static PANICS: AtomicUsize = AtomicUsize::new(0);
static HOOK: Once = Once::new();

/// Bound on one look at a damaged database; it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Places tried in each file beside its first, middle and last byte.
const RANDOM_PLACES: usize = 2;
const ROWS: i64 = 400;
/// Past what travels inside a log entry: written as part objects.
const LARGE_ROWS: i64 = 3_000;

fn options(dir: &Path, log: LogKind, durability: Durability) -> Options {
    let mut options = Options::new(format!("file://{}", dir.join("bucket").display()));
    options.log = Some(log);
    options.durability = Some(durability);
    options.data_dir = Some(dir.join("node"));
    options.memory_bytes = 64 << 20;
    options
}

#[derive(Default)]
struct Answers(Vec<String>);

#[async_trait::async_trait]
impl ResultSink for Answers {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        if let StatementResult::Rows { rows, .. } = result {
            self.0.extend(rows.collect().await?.iter().map(|row| format!("{row:?}")));
        }
        Ok(())
    }
}

async fn ask(opened: &Opened, sql: &str) -> Result<Vec<String>, String> {
    let session = opened.sql.session(SessionOptions::default()).await;
    let mut session = session.map_err(|error| error.to_string())?;
    let mut answers = Answers::default();
    session.execute_simple(sql, &mut answers).await.map_err(|error| full(&error))?;
    Ok(answers.0)
}

/// Everything a client would be shown.
fn full(error: &telesto_sql::Error) -> String {
    format!("{error:?} {error}")
}

/// Makes a database with a checkpoint, history, part objects, and entries after the checkpoint.
async fn fill(dir: &Path, log: LogKind) {
    let env = telesto_runtime::env();
    let opened = open(&env, &options(dir, log, Durability::Bucket)).await.expect("opens");
    let run = |sql: String| {
        let opened = &opened;
        async move { ask(opened, &sql).await.unwrap_or_else(|error| panic!("{sql}: {error}")) }
    };
    run("create table account (id bigint primary key, owner text not null, cents bigint not null);
         create index account_owner on account (owner);
         create table large (id bigint primary key, body text not null);
         create sequence counter"
        .to_owned())
    .await;
    run(format!("insert into account select n, 'owner ' || n % 17, n * 100 from generate_series(1, {ROWS}) n")).await;
    run(format!("insert into large select n, repeat('body ' || n, 60) from generate_series(1, {LARGE_ROWS}) n")).await;
    run("select nextval('counter'), nextval('counter')".to_owned()).await;
    opened.engine.fold().await.expect("folds");
    run("update account set cents = cents + 1 where id % 5 = 0; delete from account where id = 7"
        .to_owned())
    .await;
    opened.engine.fold().await.expect("folds");
    opened.engine.shutdown().await.expect("ends");
    drop(opened);

    // Another life; what it writes is in the log only (and on a quorum log, only on this machine).
    let here = if log == LogKind::Quorum { Durability::Quorum } else { Durability::Bucket };
    let opened = open(&env, &options(dir, log, here)).await.expect("opens again");
    let kv = Kv::new(env.clone(), opened.sql.database().clone());
    for i in 0..8 {
        let sql = format!("update account set owner = 'late {i}' where id = {}", 20 + i);
        ask(&opened, &sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let key = format!("key {i}");
        kv.put(key.as_bytes(), b"value", Condition::Always, Label::default()).await.expect("put");
    }
    let large = format!(
        "insert into large select n, repeat('late ' || n, 60) from generate_series({}, {}) n",
        LARGE_ROWS + 1,
        2 * LARGE_ROWS
    );
    ask(&opened, &large).await.unwrap_or_else(|error| panic!("{large}: {error}"));
    // As after a crash: the tail is not folded. Files are copied while nothing is written.
    copy(dir, &dir.with_extension("image"));
    opened.engine.shutdown().await.expect("ends");
}

/// All that can be read of the database in `dir`.
async fn read(dir: &Path, log: LogKind) -> Result<Vec<String>, String> {
    let env = telesto_runtime::env();
    let here = if log == LogKind::Quorum { Durability::Quorum } else { Durability::Bucket };
    let opened = open(&env, &options(dir, log, here)).await.map_err(|error| error.to_string())?;
    let answers = read_opened(&opened).await;
    // The end writes (a checkpoint); it may meet the damage too.
    let ended = opened.engine.shutdown().await.map_err(|error| error.to_string());
    let answers = answers?;
    ended.map(|()| answers)
}

async fn read_opened(opened: &Opened) -> Result<Vec<String>, String> {
    let mut answers = Vec::new();
    for sql in [
        "select id, owner, cents from account order by id",
        "select id from account where owner = 'owner 3' order by id",
        "select id, length(body), md5(body) from large order by id",
        "select body from large where id = 1500",
        "select nextval('counter')",
        "select relname, relkind from pg_class where relnamespace = 2200 order by 1",
        "insert into account values (100000, 'new', 1)",
        "select count(*), sum(cents) from account",
    ] {
        answers.extend(ask(opened, sql).await?);
    }
    let kv = Kv::new(opened.sql.env().clone(), opened.sql.database().clone());
    for i in 0..8 {
        let key = format!("key {i}");
        let got = kv.get(key.as_bytes(), ReadOptions::default()).await;
        let (value, _) = got.map_err(|error| error.to_string())?;
        answers.push(format!("{:?}", value.map(|value| value.value)));
    }
    Ok(answers)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { out.extend(files(&path)) } else { out.push(path) }
    }
    out.sort();
    out
}

fn copy(from: &Path, to: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).expect("removed");
    }
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).expect("inside"));
        fs::create_dir_all(target.parent().expect("a folder")).expect("made");
        fs::copy(&file, &target).expect("copied");
    }
}

/// What an error may call the object: the end of its path, with enough of it to find it.
fn named(error: &str, file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).expect("text");
    // SlateDB's tables are called by their number or id, without the ending.
    let stem = file.file_stem().and_then(|name| name.to_str()).expect("text");
    error.contains(name) || error.contains(stem)
}

/// Whether the error says what to do.
fn helps(error: &str) -> bool {
    ["restore", "remove it", "choose another", "upgrade", "start Telesto", "keep it for inspection"]
        .iter()
        .any(|step| error.contains(step))
}

async fn any_byte_changed(log: LogKind, seed: u64) {
    let home = tempfile::tempdir().expect("a folder");
    let dir = home.path().join("db");
    fill(&dir, log).await;
    let image = dir.with_extension("image");
    copy(&image, &dir);
    let expected = read(&dir, log).await.expect("the undamaged database opens");
    assert!(expected.len() as i64 > ROWS + 2 * LARGE_ROWS, "{} answers", expected.len());

    HOOK.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            shown(panic);
        }));
    });
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut kinds: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    let mut findings = Vec::new();
    for file in files(&image) {
        let relative = file.strip_prefix(&image).expect("inside").to_owned();
        let body = fs::read(&file).expect("read");
        if body.is_empty() {
            continue;
        }
        let mut places = vec![0, body.len() / 2, body.len() - 1];
        places.extend((0..RANDOM_PLACES).map(|_| rng.random_range(0..body.len())));
        places.sort_unstable();
        places.dedup();
        for at in places {
            copy(&image, &dir);
            let mut damaged = body.clone();
            damaged[at] ^= 1_u8 << rng.random_range(0..8);
            fs::write(dir.join(&relative), damaged).expect("written");
            let env = telesto_runtime::env();
            let look = AssertUnwindSafe(read(&dir, log)).catch_unwind();
            let looked = env.within(env.deadline(PATIENCE), "a look", look).await;
            let kind = relative.parent().expect("a folder").display().to_string();
            let (right, errors) = kinds.entry(kind).or_default();
            let place = format!("byte {at} of {}", relative.display());
            if PANICS.swap(0, Ordering::SeqCst) > 0 {
                findings.push(format!("{place}: a task panicked"));
            }
            match looked {
                Err(_) => findings.push(format!("{place}: no end after {PATIENCE:?}")),
                Ok(Err(_)) => findings.push(format!("{place}: a panic")),
                Ok(Ok(Ok(answers))) if answers == expected => *right += 1,
                Ok(Ok(Ok(answers))) => {
                    let wrong = answers.iter().zip(&expected).find(|(a, b)| a != b);
                    findings.push(format!("{place}: wrong answers: {wrong:?}"));
                }
                Ok(Ok(Err(error))) => {
                    *errors += 1;
                    if !named(&error, &relative) || !helps(&error) {
                        findings.push(format!("{place}: not named, or no next step: {error}"));
                    }
                }
            }
        }
    }
    eprintln!("folder: looks that gave right answers, looks that gave an error: {kinds:#?}");
    assert!(
        findings.is_empty(),
        "seed {seed}: {} findings\n{}",
        findings.len(),
        findings.join("\n")
    );
    let of = |part: &str| kinds.keys().any(|kind| kind.contains(part));
    for part in ["chain", "parts", "checkpoint/manifest", "checkpoint/compacted"] {
        assert!(of(part), "the database has no {part}: {:?}", kinds.keys());
    }
    match log {
        LogKind::Bucket => assert!(of("shards/0/log"), "{:?}", kinds.keys()),
        LogKind::Quorum => assert!(of("archive") && of("node/log"), "{:?}", kinds.keys()),
    }
    let errors: u32 = kinds.values().map(|(_, errors)| errors).sum();
    assert!(errors > 20, "damage is hardly ever met: {kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_log_database_with_any_byte_changed_tells_it_or_answers_rightly() {
    any_byte_changed(LogKind::Bucket, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_log_database_with_any_byte_changed_tells_it_or_answers_rightly() {
    any_byte_changed(LogKind::Quorum, 2).await;
}
