//! Tables with keys of their own: what leaves memory is sealed, also in a database without
//! encryption; who has no key serves the other tables; what is dropped is gone; damage and exchange
//! are noticed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use telesto::open::{Opened, Options, open};
use telesto::{Durability, LogKind};
use telesto_bucket::table_keys;
use telesto_cipher::{KeyFile, KeyService};
use telesto_common::key::{KeyRange, KeyWriter};
use telesto_sql::catalog::{CatalogCache, DEFAULT_DATABASE_ID};
use telesto_sql::{ResultSink, SessionOptions, StatementResult};
use telesto_txn::{Database as _, ScanOptions, TxnOptions};

/// In values of keyed tables.
const MARK: &str = "Xq7Zmarker";
/// In values of other tables: what the search must find.
const OTHER: &str = "Yw8Vmarker";
const BOTH: [&str; 2] = ["auto", "datafusion"];

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().expect("folder") };
        let random = telesto_runtime::env().random;
        for name in ["group_a", "group_b"] {
            KeyFile::add_table_key(&place.path("all"), name, &*random).expect("made");
        }
        KeyFile::add_table_key(&place.path("only_b"), "other", &*random).expect("made");
        let text = std::fs::read_to_string(place.path("all")).expect("reads");
        let line = text.lines().find(|line| line.starts_with("group_b")).expect("there");
        std::fs::write(place.path("only_b"), format!("{line}\n")).expect("written");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn open(&self, keys: Option<&str>) -> Opened {
        let mut options = Options::new(format!("file://{}", self.path("bucket").display()));
        options.log = Some(LogKind::Quorum);
        options.durability = Some(Durability::Bucket);
        options.data_dir = Some(self.path("node"));
        options.memory_bytes = 64 << 20;
        options.checkpoint_interval = Some(Duration::from_millis(200));
        options.encryption_key_file = keys.map(|name| self.path(name));
        open(&telesto_runtime::env(), &options).await.expect("opens")
    }

    fn service(&self) -> Arc<dyn KeyService> {
        let random = telesto_runtime::env().random;
        Arc::new(KeyFile::read(&self.path("all"), random).expect("reads"))
    }

    /// Files below a folder in which `text` stands.
    fn files_with(&self, folder: &str, text: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.path(folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("lists").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if has(&path, text) {
                    found.push(path);
                }
            }
        }
        found
    }
}

fn has(path: &Path, text: &str) -> bool {
    // One that is collected meanwhile has nothing.
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
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
    let done = session.execute_simple(sql, &mut answers).await;
    done.map_err(|error| format!("{} {error} {error:?}", error.code()))?;
    Ok(answers.0)
}

async fn run(opened: &Opened, sql: &str) -> Vec<String> {
    ask(opened, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

async fn refused(opened: &Opened, sql: &str, code: &str, words: &[&str]) {
    let error = match ask(opened, sql).await {
        Ok(rows) => panic!("{sql} was not refused: {rows:?}"),
        Err(error) => error,
    };
    assert!(error.starts_with(code), "{sql}: {error}");
    for word in words {
        assert!(error.contains(word), "{sql}: no {word:?} in {error}");
    }
    assert!(!error.contains(MARK), "{sql} shows a value: {error}");
}

async fn close(opened: Opened) {
    opened.engine.shutdown().await.expect("shut down");
}

async fn fill(opened: &Opened) {
    run(
        opened,
        &format!(
            "create table secret (id int primary key, note text, n int) with (telesto.key = 'group_a', fillfactor = 70);
             create table open_one (id int primary key, note text);
             create table other (id int primary key, note text);
             alter table other set (telesto.key = 'group_b');
             insert into secret select g, '{MARK}' || g, g from generate_series(1, 3000) g;
             update secret set note = note || '-again', n = n + 1 where id % 7 = 0;
             update secret set n = n + 1 where id = 1;
             insert into other select g, '{MARK}' || g from generate_series(1, 50) g;
             insert into open_one select g, '{OTHER}' || g from generate_series(1, 3000) g"
        ),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_value_of_a_keyed_table_is_in_any_file_and_both_executors_read_it() {
    let place = Place::new();
    let opened = place.open(Some("all")).await;
    fill(&opened).await;
    for executor in BOTH {
        let set = format!("set telesto.executor = {executor};");
        let found = run(&opened, &format!("{set} select note, n from secret where id = 7")).await;
        assert_eq!(found.len(), 1);
        assert!(found[0].contains(&format!("{MARK}7-again")), "{found:?}");
    }
    let joined =
        "select count(*) from open_one o join secret s on s.id = o.id where s.note like '%again'";
    assert_eq!(run(&opened, joined).await.len(), 1);
    // A sort of more than fits is spilled.
    run(&opened, "select note from secret a, generate_series(1, 20) order by note desc").await;
    // As it runs: local log, archive; and folded.
    for folded in [false, true] {
        for _ in 0..100 {
            let there = if folded { "bucket" } else { "node" };
            if !place.files_with(there, OTHER).is_empty() {
                break;
            }
            telesto_runtime::env().clock.sleep(Duration::from_millis(100)).await;
        }
        for folder in ["bucket", "node"] {
            let found = place.files_with(folder, MARK);
            assert!(found.is_empty(), "a marker is in clear in {found:?}");
        }
    }
    assert!(!place.files_with("node", OTHER).is_empty(), "the search finds nothing");
    close(opened).await;
    assert!(!place.files_with("bucket", OTHER).is_empty(), "the search finds nothing");
    assert!(place.files_with("bucket", MARK).is_empty());
    let again = place.open(Some("all")).await;
    let sum = run(&again, "select sum(n), count(*) from secret").await;
    let expected = (1..=3000).sum::<i64>() + 3000 / 7 + 1;
    assert!(sum[0].contains(&expected.to_string()), "{sum:?}");
    close(again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_without_the_key_serves_the_other_tables_and_refuses_this_one() {
    let place = Place::new();
    let opened = place.open(Some("all")).await;
    fill(&opened).await;
    close(opened).await;
    for keys in [Some("only_b"), None] {
        let node = place.open(keys).await;
        let open = run(&node, "select note from open_one where id = 5").await;
        assert!(open[0].contains(OTHER), "{open:?}");
        run(&node, "insert into open_one values (10000, 'x') on conflict do nothing").await;
        let other = ask(&node, "select note from other where id = 5").await;
        assert_eq!(other.is_ok(), keys.is_some(), "{other:?}");
        let told = &["\"secret\"", "\"group_a\"", "key file"];
        for executor in BOTH {
            for sql in [
                "select note from secret where id = 5",
                "select * from secret order by id limit 3",
                "select max(note) from secret",
                "select count(*) from secret where n > 3",
                "select s.note from open_one o join secret s on s.id = o.id where o.id = 3",
            ] {
                refused(&node, &format!("set telesto.executor = {executor}; {sql}"), "55000", told)
                    .await;
            }
        }
        for sql in [
            "insert into secret values (10000, 'x', 1)",
            "update secret set n = n + 1 where id = 3",
            "update secret set note = 'x'",
            "delete from secret where id = 3",
            "create index on secret (n)",
            "alter table secret reset (telesto.key)",
            "insert into open_one select id + 20000, note from secret",
        ] {
            refused(&node, sql, "55000", told).await;
        }
        refused(
            &node,
            "alter table open_one set (telesto.key = 'group_a')",
            "55000",
            &["for-tables"],
        )
        .await;
        close(node).await;
    }
    // Nothing was lost, and who has the key goes on.
    let node = place.open(Some("all")).await;
    let count = run(&node, "select count(*) from secret where n is not null").await;
    assert!(count[0].contains("3000"), "{count:?}");
    close(node).await;
    let node = place.open(None).await;
    run(&node, "truncate secret; drop table secret; drop table other").await;
    close(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_key_is_gone_for_ever_and_the_rest_goes_on() {
    let place = Place::new();
    let opened = place.open(Some("all")).await;
    fill(&opened).await;
    let wrapped = place.path("bucket/keyring/tables/group_a/0000000001");
    let copy = std::fs::read(&wrapped).expect("the wrapped key is an object of its own");
    let env = telesto_runtime::env();
    table_keys::drop_key(&*opened.bucket, "group_a", &env).await.expect("dropped");
    assert!(!wrapped.exists());
    close(opened).await;
    // The provider, or an operator, puts it back from a copy.
    std::fs::write(&wrapped, copy).expect("put back");
    let node = place.open(Some("all")).await;
    for executor in BOTH {
        let sql =
            format!("set telesto.executor = {executor}; select note from secret where id = 1");
        refused(&node, &sql, "55000", &["\"secret\"", "dropped"]).await;
    }
    refused(&node, "insert into secret values (10000, 'x', 1)", "55000", &["dropped"]).await;
    refused(&node, "alter table open_one set (telesto.key = 'group_a')", "55000", &["dropped"])
        .await;
    assert!(run(&node, "select note from other where id = 1").await[0].contains(MARK));
    run(&node, "truncate secret").await;
    run(&node, "alter table secret set (telesto.key = 'group_b')").await;
    run(&node, "insert into secret values (1, 'new', 1)").await;
    assert_eq!(run(&node, "select note from secret where id = 1").await.len(), 1);
    close(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rotation_counts_for_new_rows_and_old_ones_stay_readable() {
    let place = Place::new();
    let opened = place.open(Some("all")).await;
    fill(&opened).await;
    let env = telesto_runtime::env();
    let rotated = table_keys::rotate(&*opened.bucket, &*place.service(), "group_a", &env).await;
    assert_eq!(rotated.expect("rotates"), 2);
    let epochs = || async {
        let mut epochs: Vec<u8> =
            stored(&opened, "secret").await.iter().map(|(_, v)| v[4]).collect();
        epochs.sort_unstable();
        epochs.dedup();
        epochs
    };
    run(&opened, "insert into secret values (5000, 'x', 1)").await;
    assert_eq!(epochs().await, [1], "nothing changes without a definition");
    run(&opened, "alter table secret set (telesto.key = 'group_a')").await;
    run(&opened, "insert into secret values (5001, 'x', 1)").await;
    run(&opened, "update secret set n = 0 where id = 1").await;
    assert_eq!(epochs().await, [1, 2]);
    assert!(run(&opened, "select note from secret where id = 2").await[0].contains(MARK));
    run(&opened, "update secret set n = n").await;
    assert_eq!(epochs().await, [2], "written anew by an update");
    run(&opened, "alter table secret reset (telesto.key)").await;
    assert_eq!(stored(&opened, "secret").await[0].1[0], 1, "in clear again");
    run(&opened, "alter table secret set (telesto.key = 'group_b')").await;
    assert_eq!(epochs().await, [1]);
    let count = run(&opened, "select count(*) from secret where note is not null").await;
    assert!(count[0].contains("3002"), "{count:?}");
    close(opened).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_wait_for_a_curator_are_sealed_shown_and_approved() {
    let place = Place::new();
    let opened = place.open(Some("all")).await;
    run(
        &opened,
        "create role curators; create role author;
         create table wiki (id int primary key, page text, length int generated always as (length(page)) stored)
             with (telesto.key = 'group_a');
         insert into wiki values (1, 'first');
         grant all on wiki to author;
         alter table wiki set (telesto.curated = curators)",
    )
    .await;
    let change = format!(
        "set role author; insert into wiki values (2, '{MARK}'); update wiki set page = page || '!' where id = 1"
    );
    run(&opened, &change).await;
    assert_eq!(run(&opened, "select * from wiki").await.len(), 1, "it waits");
    let shown = run(&opened, "select changes::text from telesto_pending").await.join(" ");
    assert!(shown.contains(MARK) && shown.contains("first!"), "{shown}");
    run(&opened, "select telesto_approve(id) from telesto_pending").await;
    let pages = run(&opened, "select page from wiki order by id").await.join(" ");
    assert!(pages.contains("first!") && pages.contains(MARK), "{pages}");
    close(opened).await;
    for folder in ["bucket", "node"] {
        assert_eq!(place.files_with(folder, MARK), Vec::<PathBuf>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_wait_are_refused_once_their_table_has_another_key() {
    let place = Place::new();
    let opened = place.open(Some("all")).await;
    run(
        &opened,
        "create role curators; create role author;
         create table z (id int primary key, page text); create table free (id int primary key);
         insert into z values (1, 'first');
         grant all on z, free to author;
         alter table z set (telesto.curated = curators)",
    )
    .await;
    // In clear, sealed with one key, with another, and in clear again.
    for (at, next) in
        ["set (telesto.key = 'group_a')", "set (telesto.key = 'group_b')", "reset (telesto.key)"]
            .into_iter()
            .enumerate()
    {
        let id = at + 10;
        let change = format!(
            "set role author; insert into z values ({id}, 'new'); update z set page = page || '!' where id = 1"
        );
        run(&opened, &change).await;
        let seen = run(&opened, "set role author; select * from z").await;
        assert_eq!(seen.len(), 2, "{seen:?}");
        run(&opened, &format!("alter table z {next}")).await;
        // Its author goes on, in this table and in others.
        run(&opened, &format!("set role author; insert into free values ({id})")).await;
        let seen = run(&opened, "set role author; select * from z").await;
        assert_eq!(seen.len(), 1, "{seen:?}");
        let pending = run(&opened, "select changes is null from telesto_pending").await;
        assert_eq!(pending.len(), 1);
        assert!(pending[0].contains("true"), "{pending:?}");
        let approve = "select telesto_approve(id) from telesto_pending";
        refused(&opened, approve, "55000", &["are of another key"]).await;
        run(&opened, "select telesto_reject(id, 'a key') from telesto_pending").await;
    }
    close(opened).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sums_are_right_where_the_owner_cannot_add() {
    let place = Place::new();
    let opened = place.open(Some("all")).await;
    run(&opened, "create table hot (id int primary key, n int) with (telesto.key = 'group_a'); insert into hot values (1, 0)").await;
    let plan = run(&opened, "explain update hot set n = n + 1 where id = 1").await.join(" ");
    assert!(!plan.contains("by addition"), "{plan}");
    let add = || async {
        for _ in 0..10 {
            run(&opened, "update hot set n = n + 1 where id = 1").await;
        }
    };
    futures::join!(add(), add(), add(), add());
    let sum = run(&opened, "select n from hot").await;
    assert!(sum[0].contains("40"), "{sum:?}");
    close(opened).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_several_regions_exclude_each_other() {
    let place = Place::new();
    let opened = place.open(Some("all")).await;
    fill(&opened).await;
    let regions =
        [(0, "one".to_owned(), "a:1".to_owned()), (1, "two".to_owned(), "b:1".to_owned())];
    let error = opened.sql.name_regions(&regions, &[]).await.expect_err("refused").to_string();
    assert!(error.contains("telesto.key") && error.contains("secret"), "{error}");
    run(&opened, "drop table other; alter table secret reset (telesto.key)").await;
    opened.sql.name_regions(&regions, &[]).await.expect("named");
    let set = "alter table secret set (telesto.key = 'group_a')";
    refused(&opened, set, "0A000", &["several regions"]).await;
    close(opened).await;
}

type Pair = (bytes::Bytes, bytes::Bytes);

/// Keys and values of a table's rows as they are stored.
async fn stored(opened: &Opened, table: &str) -> Vec<Pair> {
    let txn = opened.engine.begin(TxnOptions::default()).await.expect("begins");
    let catalog = CatalogCache::default().read(&txn, DEFAULT_DATABASE_ID).await.expect("reads");
    let found = catalog.tables().find(|known| known.name == table);
    let table = found.expect("the table").storage;
    let prefix = KeyWriter::prefix(DEFAULT_DATABASE_ID, table, 0);
    let mut scan = txn.scan(KeyRange::with_prefix(prefix.as_slice()), ScanOptions::default());
    let mut out = Vec::new();
    loop {
        let batch = scan.next_batch(1000).await.expect("scans");
        if batch.is_empty() {
            txn.rollback();
            return out;
        }
        out.extend(batch);
    }
}

async fn put(opened: &Opened, rows: Vec<Pair>) {
    let txn = opened.engine.begin(TxnOptions::default()).await.expect("begins");
    for (key, value) in rows {
        txn.put(key, value).await.expect("put");
    }
    txn.commit().await.expect("commits");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_exchanged_moved_and_made_up_values_are_errors_that_name_the_table() {
    let place = Place::new();
    let opened = place.open(Some("all")).await;
    fill(&opened).await;
    run(
        &opened,
        "create table twin (id int primary key, note text, n int) with (telesto.key = 'group_a');
                  insert into twin select * from secret where id < 10",
    )
    .await;
    let (rows, twins) = (stored(&opened, "secret").await, stored(&opened, "twin").await);
    let open_rows = stored(&opened, "open_one").await;
    let ((one, value), (two, second)) = (rows[0].clone(), rows[1].clone());
    for at in [0, 1, 4, 5, 17, value.len() / 2, value.len() - 1] {
        let mut damaged = value.to_vec();
        damaged[at] ^= 1;
        put(&opened, vec![(one.clone(), damaged.into())]).await;
        for executor in BOTH {
            let sql =
                format!("set telesto.executor = {executor}; select * from secret where id = 1");
            refused(&opened, &sql, "XX001", &["\"secret\""]).await;
        }
    }
    put(&opened, vec![(one.clone(), second), (two.clone(), value.clone())]).await;
    refused(&opened, "select * from secret where id = 1", "XX001", &["secret", "exchanged"]).await;
    refused(&opened, "select * from secret where id = 2", "XX001", &["secret", "exchanged"]).await;
    put(&opened, vec![(one.clone(), twins[0].1.clone())]).await;
    refused(&opened, "select * from secret where id = 1", "XX001", &["secret"]).await;
    put(&opened, vec![(one.clone(), open_rows[0].1.clone())]).await;
    refused(&opened, "select * from secret where id = 1", "XX001", &["in clear", "secret"]).await;
    put(&opened, vec![(open_rows[0].0.clone(), value.clone())]).await;
    refused(&opened, "select * from open_one where id = 1", "XX001", &["sealed"]).await;
    put(&opened, vec![(one, value)]).await;
    assert!(run(&opened, "select note from secret where id = 1").await[0].contains(MARK));
    close(opened).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_keys_indexes_and_definitions_work_with_keys_and_what_is_no_key_is_refused() {
    let place = Place::new();
    let opened = place.open(Some("all")).await;
    run(
        &opened,
        "create table parent (id int primary key, name text) with (telesto.key = 'group_a');
         create table child (id int primary key, parent int references parent on delete cascade, note text) with (telesto.key = 'group_b');
         create index on child (parent);
         create unique index on parent (name);
         insert into parent values (1, 'one'), (2, 'two');
         insert into child select g, g % 2 + 1, 'note' || g from generate_series(1, 20) g;
         insert into parent values (2, 'zwei') on conflict (id) do update set name = excluded.name;
         delete from parent where id = 1",
    )
    .await;
    let left = run(&opened, "select count(*) from child where note is not null").await;
    assert!(left[0].contains("10"), "{left:?}");
    refused(&opened, "insert into parent values (3, 'zwei')", "23505", &[]).await;
    refused(&opened, "insert into child values (100, 7, 'x')", "23503", &[]).await;
    run(&opened, "alter table child add column more text default 'default'; alter table child alter column note type varchar(50)").await;
    let more = run(&opened, "select more, note from child where parent = 2 limit 1").await;
    assert!(more[0].contains("default"), "{more:?}");
    refused(
        &opened,
        "create temp table mine (id int) with (telesto.key = 'group_a')",
        "0A000",
        &["temporary"],
    )
    .await;
    for (name, code) in [("a/b", "22023"), ("..", "22023"), ("", "22023")] {
        let sql = format!("alter table child set (telesto.key = '{name}')");
        refused(&opened, &sql, code, &[]).await;
    }
    refused(&opened, "alter table child set (telesto.kez = 'a')", "22023", &["telesto.key"]).await;
    let from_query = "create table x with (telesto.key = 'group_a') as select 1 as one";
    refused(&opened, from_query, "0A000", &["INSERT"]).await;
    let other = "create table x (id int) with (fillfactor = 70, telesto.home = 'any')";
    refused(&opened, other, "0A000", &["ALTER TABLE"]).await;
    let indexed = "alter index child_pkey set (telesto.key = 'group_a')";
    refused(&opened, indexed, "42809", &["telesto.key"]).await;
    // As pg_dump writes it.
    run(&opened, "create table quoted (id int, note text) with (\"telesto.key\"='group_b')").await;
    run(&opened, "insert into quoted values (1, 'x')").await;
    assert_eq!(stored(&opened, "quoted").await[0].1[0], 3, "sealed");
    let options = run(&opened, "select reloptions from pg_class where relname = 'parent'").await;
    assert!(options[0].contains("telesto.key=group_a"), "{options:?}");
    close(opened).await;
}
