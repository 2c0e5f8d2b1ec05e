//! Real processes and the rules over tables: clients hammer unique and foreign keys while
//! definitions change and processes die by SIGKILL; afterwards every index is its table's, every
//! rule holds for the rows as they are read without indexes, both executors agree, and every
//! transaction is there or not as its client was told. Statements that change definitions, killed
//! in their middle, have happened wholly or not at all. `TELESTO_KILLS=50` for the long run.

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::{Node, Place, rounds};
use rand::Rng as _;
use tokio_postgres::{Client, Error, NoTls, SimpleQueryMessage};

const CLIENTS_A_NODE: u64 = 4;

type Row = Vec<Option<String>>;

/// Transactions that were acknowledged, and those that certainly failed.
type Fates = Arc<Mutex<BTreeMap<(u64, u64), bool>>>;

async fn rows(client: &Client, sql: &str) -> Result<Vec<Row>, Error> {
    let messages = client.simple_query(sql).await?;
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect())
        }
        _ => None,
    };
    Ok(messages.into_iter().filter_map(row).collect())
}

async fn sure(client: &Client, sql: &str) -> Vec<Row> {
    rows(client, sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

async fn connect(port: u16) -> Option<Client> {
    let url = format!("host=127.0.0.1 port={port} user=telesto dbname=telesto");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

const SCHEMA: &str = "
BEGIN;
CREATE TABLE account (
    id bigint PRIMARY KEY, email text NOT NULL CONSTRAINT account_email UNIQUE, tenant bigint, code bigint, nick text,
    active boolean NOT NULL, parent bigint CONSTRAINT account_parent REFERENCES account ON DELETE SET NULL,
    CONSTRAINT account_code UNIQUE NULLS NOT DISTINCT (tenant, code));
CREATE UNIQUE INDEX account_nick ON account (lower(nick));
CREATE UNIQUE INDEX account_active ON account (tenant) WHERE active;
CREATE TABLE product (id bigint PRIMARY KEY, sku text UNIQUE);
CREATE TABLE purchase (
    id bigint PRIMARY KEY, account bigint NOT NULL CONSTRAINT purchase_account REFERENCES account ON DELETE CASCADE,
    product bigint CONSTRAINT purchase_product REFERENCES product ON DELETE RESTRICT, quantity bigint NOT NULL);
CREATE INDEX purchase_by_account ON purchase (account, quantity);
CREATE TABLE done (client bigint, seq bigint, PRIMARY KEY (client, seq));
COMMIT";

/// A random statement; keys are few, so that clients meet.
fn statement() -> String {
    let mut rng = rand::rng();
    let account = rng.random_range(0..12);
    let product = rng.random_range(0..5);
    let purchase = rng.random_range(0..20);
    let small = |n: i64| if n == 4 { "NULL".to_owned() } else { n.to_string() };
    let (tenant, code) = (small(rng.random_range(0..5)), small(rng.random_range(0..5)));
    let email = rng.random_range(0..15);
    let nick = format!("{}ick{}", ["n", "N"][rng.random_range(0..2)], rng.random_range(0..9));
    let active = rng.random_bool(0.5);
    match rng.random_range(0..40) {
        0..=5 => format!("INSERT INTO account VALUES ({account}, 'e{email}', {tenant}, {code}, '{nick}', {active}, {purchase} % 12) ON CONFLICT DO NOTHING"),
        6..=8 => format!("INSERT INTO account (id, email, tenant, code, active) VALUES ({account}, 'e{email}', {tenant}, {code}, false) ON CONFLICT (email) DO UPDATE SET tenant = EXCLUDED.tenant, code = EXCLUDED.code"),
        9 | 10 => format!("UPDATE account SET email = 'e{email}' WHERE id = {account}"),
        11 | 12 => format!("UPDATE account SET nick = '{nick}', active = NOT active WHERE id = {account}"),
        13 => format!("UPDATE account SET code = code + 1 WHERE tenant = {tenant}"),
        14 => format!("UPDATE account SET parent = {purchase} % 12 WHERE id = {account}"),
        15..=17 => format!("DELETE FROM account WHERE id = {account}"),
        18 => format!("MERGE INTO account a USING (VALUES ({account}::bigint, 'e{email}')) v (id, email) ON a.id = v.id WHEN MATCHED THEN UPDATE SET email = v.email WHEN NOT MATCHED THEN INSERT (id, email, code, active) VALUES (v.id, v.email, v.id, false)"),
        19..=21 => format!("INSERT INTO product VALUES ({product}, 's{product}') ON CONFLICT DO NOTHING"),
        22 | 23 => format!("DELETE FROM product WHERE id = {product}"),
        24..=30 => format!("INSERT INTO purchase VALUES ({purchase}, {account}, {product}, 1) ON CONFLICT (id) DO UPDATE SET quantity = purchase.quantity + 1"),
        31 => format!("UPDATE purchase SET account = {account}, product = {product} WHERE id = {purchase}"),
        32 | 33 => format!("DELETE FROM purchase WHERE account = {account}"),
        34 => "CREATE INDEX IF NOT EXISTS account_by_tenant ON account (tenant, email)".to_owned(),
        35 => "DROP INDEX IF EXISTS account_by_tenant".to_owned(),
        36 => "ALTER TABLE account ADD COLUMN IF NOT EXISTS extra bigint DEFAULT 7".to_owned(),
        37 => "ALTER TABLE account DROP COLUMN IF EXISTS extra".to_owned(),
        38 => "ALTER TABLE purchase DROP CONSTRAINT IF EXISTS purchase_product".to_owned(),
        _ => "ALTER TABLE purchase ADD CONSTRAINT purchase_product FOREIGN KEY (product) REFERENCES product ON DELETE RESTRICT".to_owned(),
    }
}

/// Transactions until the connection breaks or the time is up.
async fn hammer(port: u16, number: u64, until: Instant, fates: Fates) {
    let Some(client) = connect(port).await else { return };
    let mut seq = 0;
    while Instant::now() < until {
        seq += 1;
        let level =
            ["SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"][rand::rng().random_range(0..3)];
        let mut texts = vec![
            format!("BEGIN ISOLATION LEVEL {level}"),
            format!("INSERT INTO done VALUES ({number}, {seq})"),
        ];
        texts.extend((0..rand::rng().random_range(1..4)).map(|_| statement()));
        let mut failed = None;
        for text in &texts {
            if let Err(error) = client.simple_query(text).await {
                failed = Some((text.clone(), error));
                break;
            }
        }
        if let Some((text, error)) = failed {
            // Nothing was committed, whatever the reason: COMMIT was never sent.
            fates.lock().expect("no panic").insert((number, seq), false);
            let Some(told) = error.as_db_error() else { return };
            let code = told.code().code();
            assert!(
                !code.starts_with("XX") && code != "42601" && code != "0A000",
                "{text}: {told:?}"
            );
            if client.simple_query("ROLLBACK").await.is_err() {
                return;
            }
            continue;
        }
        match client.simple_query("COMMIT").await {
            Ok(_) => {
                fates.lock().expect("no panic").insert((number, seq), true);
            }
            Err(error) if error.code().is_some_and(|code| code.code() == "40001") => {
                fates.lock().expect("no panic").insert((number, seq), false);
            }
            // It may have happened.
            Err(_) => return,
        }
    }
}

fn key(row: &Row, at: &[usize]) -> Option<Vec<String>> {
    at.iter().map(|at| row[*at].clone()).collect()
}

fn no_duplicates<'a>(rule: &str, rows: impl Iterator<Item = &'a Row>, at: &[usize]) {
    let mut seen = BTreeSet::new();
    for row in rows {
        if let Some(key) = key(row, at) {
            assert!(seen.insert(key), "{rule} does not hold: {row:?} is there twice");
        }
    }
}

fn has_parents(rule: &str, children: &[Row], at: usize, parents: &[Row]) {
    let parents: BTreeSet<_> = parents.iter().filter_map(|row| key(row, &[0])).collect();
    for row in children {
        if let Some(key) = key(row, &[at]) {
            assert!(parents.contains(&key), "{rule} does not hold: {row:?} has no parent");
        }
    }
}

/// Compares everything on one node; the number of acknowledged transactions.
async fn verify(node: &Node, fates: &Fates) -> usize {
    let client = node.connect().await.expect("connects");
    for table in ["account", "product", "purchase", "done"] {
        sure(&client, &format!("SELECT telesto_check_table('{table}')")).await;
    }
    sure(&client, "SET telesto.executor = datafusion").await;
    let account =
        sure(&client, "SELECT id, email, tenant, code, lower(nick), active, parent FROM account")
            .await;
    let product = sure(&client, "SELECT id, sku FROM product").await;
    let purchase = sure(&client, "SELECT id, account, product FROM purchase").await;
    let t = Some("t".to_owned());
    no_duplicates("account_pkey", account.iter(), &[0]);
    no_duplicates("account_email", account.iter(), &[1]);
    no_duplicates("account_nick", account.iter(), &[4]);
    no_duplicates("account_active", account.iter().filter(|row| row[5] == t), &[2]);
    let nulls_too: BTreeSet<_> = account.iter().map(|row| (&row[2], &row[3])).collect();
    assert_eq!(nulls_too.len(), account.len(), "account_code does not hold: {account:?}");
    no_duplicates("product_sku_key", product.iter(), &[1]);
    no_duplicates("purchase_pkey", purchase.iter(), &[0]);
    has_parents("account_parent", &account, 6, &account);
    has_parents("purchase_account", &purchase, 1, &account);
    let there = "SELECT 1 FROM pg_constraint WHERE conname = 'purchase_product' AND convalidated";
    if !sure(&client, there).await.is_empty() {
        has_parents("purchase_product", &purchase, 2, &product);
    }
    for (query, plain) in [
        (
            "SELECT id FROM account WHERE email IN ('e1', 'e4', 'e9') ORDER BY id",
            "SELECT id FROM account WHERE email || '' IN ('e1', 'e4', 'e9') ORDER BY id",
        ),
        (
            "SELECT id FROM account WHERE lower(nick) = 'nick3'",
            "SELECT id FROM account WHERE lower(nick) || '' = 'nick3'",
        ),
        (
            "SELECT p.id, a.email FROM purchase p JOIN account a ON a.id = p.account WHERE p.id BETWEEN 3 AND 15 ORDER BY p.id",
            "SELECT p.id, a.email FROM purchase p JOIN account a ON a.id + 0 = p.account + 0 WHERE p.id + 0 BETWEEN 3 AND 15 ORDER BY p.id",
        ),
        (
            "SELECT id, quantity FROM purchase WHERE account = 4 ORDER BY quantity, id",
            "SELECT id, quantity FROM purchase WHERE account + 0 = 4 ORDER BY quantity, id",
        ),
    ] {
        let truth = sure(&client, plain).await;
        for executor in ["key", "datafusion"] {
            sure(&client, &format!("SET telesto.executor = {executor}")).await;
            assert_eq!(sure(&client, query).await, truth, "{executor}: {query}");
        }
    }
    let number = |cell: &Option<String>| cell.as_deref().expect("a key").parse().expect("a number");
    let done: BTreeSet<(u64, u64)> = sure(&client, "SELECT client, seq FROM done")
        .await
        .iter()
        .map(|row| (number(&row[0]), number(&row[1])))
        .collect();
    let fates = fates.lock().expect("no panic");
    for (transaction, committed) in fates.iter() {
        assert_eq!(done.contains(transaction), *committed, "transaction {transaction:?}");
    }
    fates.values().filter(|committed| **committed).count()
}

async fn rounds_of_kills(place: &Place, locals: &[PathBuf], count: usize) {
    let fates = Fates::default();
    let start = |at: usize| Node::start(place, &locals[at], &[]);
    let mut nodes: Vec<Node> = (0..locals.len()).map(start).collect();
    sure(&nodes[0].connect().await.expect("connects"), SCHEMA).await;
    let mut acknowledged = 0;
    for round in 0..count {
        let until = Instant::now() + Duration::from_millis(2500);
        let mut tasks = Vec::new();
        for (at, node) in nodes.iter().enumerate() {
            for client in 0..CLIENTS_A_NODE {
                let number = (round as u64 * 10 + at as u64) * 10 + client;
                tasks.push(tokio::spawn(hammer(node.port, number, until, Arc::clone(&fates))));
            }
        }
        let pause = rand::rng().random_range(300..2300);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        // The others work on.
        let victim = round % nodes.len();
        nodes.remove(victim).kill();
        for task in tasks {
            task.await.expect("client");
        }
        nodes.insert(victim, start(victim));
        for node in &nodes {
            acknowledged = verify(node, &fates).await;
        }
    }
    assert!(acknowledged > 0, "nothing was ever acknowledged: the test tested nothing");
    println!(
        "{} process(es), {} log: {count} kills, {acknowledged} acknowledged transactions, every rule holds",
        nodes.len(),
        place.log
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_hold_on_one_process_with_a_local_log_that_is_killed() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    rounds_of_kills(&place, &[dir.path().join("local")], rounds(4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_hold_on_two_processes_on_one_bucket_one_of_them_killed() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "bucket", "bucket");
    let locals = [dir.path().join("one"), dir.path().join("two")];
    rounds_of_kills(&place, &locals, rounds(4)).await;
}

/// Rows of the table whose definition changes.
const ROWS: usize = 4000;

/// A change of definitions, and what shows whether it happened. Each can be made again after
/// `undo`.
struct Change {
    sql: &'static str,
    undo: &'static str,
    /// One row: whether it happened wholly, whether it did not happen at all.
    seen: &'static str,
}

const CHANGES: &[Change] = &[
    Change {
        sql: "CREATE TABLE copied AS SELECT id, n, name FROM big",
        undo: "DROP TABLE IF EXISTS copied",
        seen: "SELECT to_regclass('copied') IS NOT NULL, to_regclass('copied') IS NULL",
    },
    Change {
        sql: "ALTER TABLE big ALTER COLUMN n TYPE text",
        undo: "ALTER TABLE big ALTER COLUMN n TYPE bigint USING n::bigint",
        seen: "SELECT atttypid = 'text'::regtype, atttypid = 'bigint'::regtype FROM pg_attribute WHERE attrelid = 'big'::regclass AND attname = 'n'",
    },
    Change {
        sql: "CREATE UNIQUE INDEX big_more ON big (n, lower(name))",
        undo: "DROP INDEX IF EXISTS big_more",
        seen: "SELECT count(*) = 1, count(*) = 0 FROM pg_index WHERE indexrelid = to_regclass('big_more')",
    },
    Change {
        sql: "DROP TABLE spare",
        undo: "DROP TABLE IF EXISTS spare; CREATE TABLE spare AS SELECT id, n, name FROM big; CREATE INDEX spare_n ON spare (n)",
        seen: "SELECT to_regclass('spare') IS NULL AND to_regclass('spare_n') IS NULL, to_regclass('spare') IS NOT NULL AND to_regclass('spare_n') IS NOT NULL",
    },
    Change {
        sql: "BEGIN; CREATE TABLE other (id bigint PRIMARY KEY); INSERT INTO other SELECT id FROM big; ALTER TABLE big ADD COLUMN more text DEFAULT 'm'; CREATE INDEX big_lower ON big (lower(more), id); COMMIT",
        undo: "DROP TABLE IF EXISTS other; ALTER TABLE big DROP COLUMN IF EXISTS more",
        seen: "SELECT sum(there) = 3, sum(there) = 0 FROM (SELECT count(*) AS there FROM pg_class WHERE relname IN ('other', 'big_lower') UNION ALL SELECT count(*) FROM pg_attribute WHERE attrelid = 'big'::regclass AND attname = 'more') t",
    },
];

/// Every table that is there: whole, and its indexes its own.
async fn verify_tables(client: &Client) {
    for table in ["big", "copied", "spare", "other"] {
        let there = format!("SELECT 1 FROM pg_class WHERE relname = '{table}'");
        if sure(client, &there).await.is_empty() {
            continue;
        }
        let checked = sure(client, &format!("SELECT telesto_check_table('{table}')")).await;
        assert_eq!(checked, [[Some(ROWS.to_string())]], "rows of {table}");
        if table == "other" {
            continue;
        }
        let sums = format!(
            "SELECT count(*), sum(n::text::bigint - id * 3), sum(length(name)), count(DISTINCT id) FROM {table}"
        );
        let expected: usize = (0..ROWS).map(|id| format!("name {id}").len()).sum();
        let rows = ROWS.to_string();
        let expected =
            [Some(rows.clone()), Some("0".into()), Some(expected.to_string()), Some(rows)];
        assert_eq!(sure(client, &sums).await, [expected], "contents of {table}");
    }
}

/// Kills a process in the middle of each change, at several moments of it.
async fn kill_in_definitions(place: &Place, local: &Path, moments: &[f64]) {
    let mut node = Node::start(place, local, &[]);
    let client = node.connect().await.expect("connects");
    sure(&client, "CREATE TABLE big (id bigint PRIMARY KEY, n bigint, name text)").await;
    let fill = format!(
        "INSERT INTO big SELECT i, i * 3, 'name ' || i FROM generate_series(0, {}) i",
        ROWS - 1
    );
    sure(&client, &fill).await;
    sure(&client, "CREATE INDEX big_n ON big (n)").await;
    let (mut whole, mut nothing, mut interrupted) = (0, 0, 0);
    for change in CHANGES {
        let client = node.connect().await.expect("connects");
        sure(&client, change.undo).await;
        let began = Instant::now();
        sure(&client, change.sql).await;
        let takes = began.elapsed();
        verify_tables(&client).await;
        for moment in moments {
            let client = node.connect().await.expect("connects");
            sure(&client, change.undo).await;
            let running =
                tokio::spawn(async move { client.simple_query(change.sql).await.is_ok() });
            tokio::time::sleep(takes.mul_f64(*moment)).await;
            node.kill();
            let acknowledged = running.await.expect("client");
            node = Node::start(place, local, &[]);
            let client = node.connect().await.expect("connects");
            let seen = sure(&client, change.seen).await;
            let is = |at: usize| seen[0][at].as_deref() == Some("t");
            assert!(is(0) != is(1), "{} happened in part: {seen:?}", change.sql);
            assert!(is(0) || !acknowledged, "{} was acknowledged and is lost", change.sql);
            verify_tables(&client).await;
            whole += usize::from(is(0));
            nothing += usize::from(is(1));
            interrupted += usize::from(!acknowledged);
        }
    }
    assert!(interrupted > 0 && nothing > 0, "no change was ever interrupted");
    println!(
        "{} log: {interrupted} interrupted, {nothing} as if never begun, {whole} whole",
        place.log
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definition_killed_in_its_middle_has_happened_wholly_or_not_at_all() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("quorum"), "quorum", "quorum");
    kill_in_definitions(&place, &dir.path().join("local"), &[0.1, 0.6, 0.97]).await;
    let place = Place::folder(&dir.path().join("bucket"), "bucket", "bucket");
    kill_in_definitions(&place, &dir.path().join("other"), &[0.4, 1.0]).await;
}
