//! `telesto dump` and `telesto restore`: from Telesto to PostgreSQL 15 and back without a
//! difference, pg_dump's own files, one snapshot under concurrent writes, and errors told by their
//! line.
//!
//! Needs `TELESTO_POSTGRES_URL` (tests/servers/postgres.sh), psql and pg_dump.
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

#[path = "harness.rs"]
#[allow(dead_code, reason = "shared with the other tests of real processes")]
mod harness;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use harness::{Node, Place};
use tokio_postgres::{Client, NoTls};

const SCHEMA: &str = include_str!("dump.sql");

/// What two databases must have alike, beside the rows of [`ROWS`].
const CATALOG: [&str; 12] = [
    "SELECT table_schema, table_name, column_name, data_type, is_nullable, column_default IS NULL, is_identity, identity_generation, identity_start, \
     identity_increment, is_generated FROM information_schema.columns WHERE table_schema IN ('public', 'Odd Schema') ORDER BY 1, 2, ordinal_position",
    "SELECT conrelid::regclass::text, conname, contype, condeferrable, condeferred, confupdtype, confdeltype FROM pg_constraint \
     WHERE connamespace IN (SELECT oid FROM pg_namespace WHERE nspname IN ('public', 'Odd Schema')) ORDER BY 1, 2",
    "SELECT schemaname, tablename, indexname, indexdef FROM pg_indexes WHERE schemaname IN ('public', 'Odd Schema') ORDER BY 1, 2, 3",
    "SELECT c.relname, s.seqtypid::regtype::text, seqstart, seqincrement, seqmin, seqmax, seqcycle FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid ORDER BY 1",
    "SELECT t.typname, e.enumlabel FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid ORDER BY 1, e.enumsortorder",
    "SELECT typname FROM pg_type WHERE typtype IN ('e', 'd') AND typname IN ('mood', 'nothing', 'numbered') ORDER BY 1",
    "SELECT table_name, column_name, column_default FROM information_schema.columns WHERE table_name IN ('moved', 'early', 'late') ORDER BY 1, 2",
    "SELECT c.relname, d.objsubid, d.description FROM pg_description d JOIN pg_class c ON c.oid = d.objoid WHERE d.classoid = 'pg_class'::regclass \
     AND c.relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname IN ('public', 'Odd Schema')) ORDER BY 1, 2",
    "SELECT viewname FROM pg_views WHERE schemaname IN ('public', 'Odd Schema') ORDER BY 1",
    "SELECT tablename, policyname, permissive, roles::text, cmd, qual IS NULL, with_check IS NULL FROM pg_policies ORDER BY 1, 2",
    "SELECT relname, relrowsecurity, relforcerowsecurity FROM pg_class WHERE relrowsecurity ORDER BY 1",
    "SELECT relname, reloptions::text FROM pg_class WHERE relkind = 'v' AND reloptions IS NOT NULL AND relname NOT LIKE 'pg\\_%' ORDER BY 1",
];

const ROWS: [&str; 14] = [
    "SELECT * FROM parent ORDER BY a",
    "SELECT * FROM \"Odd Schema\".\"select\" ORDER BY \"Id\"",
    "SELECT * FROM things ORDER BY id",
    "SELECT * FROM empty_one",
    "SELECT * FROM computed ORDER BY a",
    "SELECT * FROM round_a",
    "SELECT * FROM round_b",
    "SELECT * FROM secured ORDER BY id",
    "SELECT * FROM rich ORDER BY id",
    "SELECT * FROM \"Odd Schema\".richest ORDER BY who",
    "SELECT * FROM moved ORDER BY id",
    "SELECT count(*) FROM columnless",
    "SELECT g FROM all_generated",
    // By key: DataFusion has neither value.
    "SELECT * FROM extremes WHERE id = 1",
];

fn postgres() -> String {
    std::env::var("TELESTO_POSTGRES_URL")
        .expect("TELESTO_POSTGRES_URL is not set: start one with tests/servers/postgres.sh")
}

/// The URL of a fresh database there.
async fn fresh(name: &str) -> String {
    let client = connect(&postgres()).await;
    client.batch_execute(&format!("DROP DATABASE IF EXISTS {name}")).await.expect("drops");
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("creates");
    postgres().replace("/postgres?", &format!("/{name}?"))
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    client.batch_execute("SET timezone = 'UTC'").await.expect("sets");
    client
}

async fn answers(client: &Client, questions: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for question in questions {
        let answer = client.simple_query(question).await;
        for message in answer.unwrap_or_else(|error| panic!("{question}: {error:?}")) {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                let cells: Vec<&str> =
                    (0..row.len()).map(|i| row.get(i).unwrap_or("NULL")).collect();
                all.push(cells.join("|"));
            }
        }
        all.push((*question).to_owned());
    }
    all
}

fn node(dir: &Path, name: &str) -> (Node, String) {
    let place = Place::folder(&dir.join(name), "quorum", "quorum");
    let node = Node::start(&place, &dir.join(format!("{name}-local")), &[]);
    let url = format!("postgres://telesto@127.0.0.1:{}/telesto", node.port);
    (node, url)
}

fn telesto(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_telesto")).args(arguments).output().expect("telesto runs")
}

fn well(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn psql(url: &str, file: &str) {
    let run =
        Command::new("psql").args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file, url]).output();
    well(&run.expect("psql runs"));
}

fn same(left: &[String], right: &[String]) {
    for (left, right) in left.iter().zip(right) {
        assert_eq!(left, right);
    }
    assert_eq!(left.len(), right.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dump_goes_to_postgres_and_back_without_a_difference() {
    let dir = tempfile::tempdir().expect("folder");
    let file = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (_first, first) = node(dir.path(), "first");
    let (_second, second) = node(dir.path(), "second");
    let ours = connect(&first).await;
    ours.batch_execute(SCHEMA).await.expect("the schema");
    let (a, b, c) = (file("a.sql"), file("b.sql"), file("c.sql"));
    well(&telesto(&["dump", "--url", &first, "--file", &a]));
    let there = fresh("dump_of_telesto").await;
    psql(&there, &a);
    let theirs = connect(&there).await;
    let questions: Vec<&str> = ROWS.into_iter().chain(CATALOG).collect();
    let before = answers(&ours, &questions).await;
    assert!(before.len() > 100, "{before:?}");
    same(&before, &answers(&theirs, &questions).await);
    // The sequences go on where they were: what is given out next was given out nowhere.
    let next =
        "SELECT nextval('counter') > 25, nextval('untouched') >= 1, nextval('things_id_seq') > 3";
    assert_eq!(answers(&theirs, &[next]).await[0], "t|t|t");

    well(&telesto(&["dump", "--url", &there, "--file", &b]));
    let said = well(&telesto(&["restore", &b, "--url", &second]));
    assert!(said.contains("restored"), "{said}");
    let back = connect(&second).await;
    same(&before, &answers(&back, &questions).await);
    for (broken, code) in [
        ("INSERT INTO parent VALUES (1, 'x')", "23505"),
        ("INSERT INTO round_b VALUES (2, 77)", "23503"),
        ("INSERT INTO things (id, s) VALUES (50, -1)", "23514"),
        ("INSERT INTO \"Odd Schema\".\"select\" (\"Id\") VALUES (1)", "428C9"),
    ] {
        let refused = back.batch_execute(broken).await.expect_err(broken);
        assert_eq!(refused.code().map(|code| code.code()), Some(code), "{broken}");
    }
    well(&telesto(&["dump", "--url", &second, "--file", &c, "--data-only"]));
    let third = fresh("dump_of_dump").await;
    well(&telesto(&["dump", "--url", &second, "--file", &b, "--schema-only"]));
    psql(&third, &b);
    assert_eq!(answers(&connect(&third).await, &["SELECT count(*) FROM things"]).await[0], "0");
    let keyless = "ALTER TABLE round_a DROP CONSTRAINT to_b; ALTER TABLE things DROP CONSTRAINT things_parent_fkey";
    connect(&third).await.batch_execute(keyless).await.expect("circles are taken out");
    well(&telesto(&["restore", &c, "--url", &third, "--single-transaction"]));
    same(&answers(&back, &ROWS).await, &answers(&connect(&third).await, &ROWS).await);
    // Ids go on in the sequences that the defaults name, on both.
    for goes_on in [
        "INSERT INTO moved (v) VALUES ('c') RETURNING id > 1001",
        "INSERT INTO early DEFAULT VALUES RETURNING id > 0 AND n > 0",
        "INSERT INTO by_domain (n) VALUES (1) RETURNING id > 1002",
    ] {
        assert_eq!(answers(&back, &[goes_on]).await[0], "t", "{goes_on}");
        assert_eq!(answers(&theirs, &[goes_on]).await[0], "t", "{goes_on}");
    }
    assert!(!Path::new(&format!("{a}.part")).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pg_dumps_own_file_is_restored() {
    let dir = tempfile::tempdir().expect("folder");
    let there = fresh("dump_of_postgres").await;
    let theirs = connect(&there).await;
    theirs.batch_execute(SCHEMA).await.expect("the schema");
    let file = dir.path().join("pg.sql");
    let dumped = Command::new("pg_dump").arg(&there).arg("-f").arg(&file).output();
    well(&dumped.expect("pg_dump runs"));
    let (_node, ours) = node(dir.path(), "node");
    well(&telesto(&["restore", file.to_str().expect("UTF-8"), "--url", &ours]));
    let questions: Vec<&str> = ROWS.into_iter().chain(CATALOG).collect();
    let ours = connect(&ours).await;
    same(&answers(&theirs, &questions).await, &answers(&ours, &questions).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dump_is_one_snapshot_while_others_write() {
    let dir = tempfile::tempdir().expect("folder");
    let (_node, url) = node(dir.path(), "node");
    let client = connect(&url).await;
    // Money goes from the table dumped first to the one dumped last, and back; in between lie rows
    // enough to take time.
    let made = "CREATE TABLE first (id integer PRIMARY KEY, money bigint); CREATE TABLE middle (id integer PRIMARY KEY, t text); \
        CREATE TABLE second (id integer PRIMARY KEY, money bigint); INSERT INTO first VALUES (1, 1000); INSERT INTO second VALUES (1, 1000); \
        INSERT INTO middle SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i";
    client.batch_execute(made).await.expect("tables");
    let (stop, moved) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = {
        let (stop, moved, url) = (Arc::clone(&stop), Arc::clone(&moved), url.clone());
        tokio::spawn(async move {
            let mut client = connect(&url).await;
            while !stop.load(Ordering::Relaxed) {
                let transaction = client.transaction().await.expect("begins");
                transaction
                    .batch_execute("UPDATE first SET money = money - 1")
                    .await
                    .expect("takes");
                transaction
                    .batch_execute("UPDATE second SET money = money + 1")
                    .await
                    .expect("gives");
                transaction.commit().await.expect("commits");
                moved.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    while moved.load(Ordering::Relaxed) < 5 {
        tokio::task::yield_now().await;
    }
    let before = moved.load(Ordering::Relaxed);
    let file = dir.path().join("dump.sql");
    let file_name = file.to_str().expect("UTF-8").to_owned();
    let dump = tokio::task::spawn_blocking(move || {
        telesto(&["dump", "--url", &url, "--file", &file_name])
    });
    well(&dump.await.expect("ends"));
    let after = moved.load(Ordering::Relaxed);
    stop.store(true, Ordering::Relaxed);
    writer.await.expect("the writer");
    assert!(after > before, "nobody wrote meanwhile");
    let text = std::fs::read_to_string(&file).expect("the dump");
    let money = |table: &str| -> i64 {
        let rows = text.split_once(&format!("COPY public.{table} (id, money)")).expect(table).1;
        let line = rows.lines().nth(1).expect("a row");
        line.split('\t').nth(1).and_then(|cell| cell.parse().ok()).expect("money")
    };
    assert_eq!(money("first") + money("second"), 2000, "two states in one dump");
    assert!(money("first") < 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_error_ends_restoring_and_names_its_line() {
    let dir = tempfile::tempdir().expect("folder");
    let (_node, url) = node(dir.path(), "node");
    let client = connect(&url).await;
    let file = dir.path().join("bad.sql");
    let name = file.to_str().expect("UTF-8");
    for (text, said) in [
        (
            "CREATE TABLE t1 (a integer);\n\nSELECT 1;\nCREATE TABLE\n  t1 (b integer);\n",
            "line 4: relation \"t1\" already exists (42P07)",
        ),
        (
            "CREATE TABLE t2 (a integer);\nCOPY t2 (a) FROM stdin;\n1\n2\nx\n\\.\nSELECT 1;\n",
            "line 5: invalid input syntax for type integer",
        ),
        ("SELECT 1;\nSELECT 1\n  );\n", "line 3: syntax error at or near \")\" (42601)"),
        ("SELECT 1;\n\\i other.sql\n", "line 2: \\i is a command of psql"),
        ("SELECT 1;\nSELECT 'cut", "is it cut short?"),
        ("", "the file ends before its first statement"),
        ("--\n-- PostgreSQL databa", "the file ends before its first statement"),
    ] {
        std::fs::write(&file, text).expect("writes");
        let refused = telesto(&["restore", name, "--url", &url]);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && error.contains(said), "{text}: {error}");
    }
    assert_eq!(
        answers(&client, &["SELECT count(*) FROM t2"]).await[0],
        "0",
        "a COPY is all or nothing"
    );
    std::fs::write(
        &file,
        "CREATE TABLE t3 (a integer);\nINSERT INTO t3 VALUES (1);\nSELECT 1/0;\n",
    )
    .expect("writes");
    assert!(!telesto(&["restore", name, "--url", &url, "-1"]).status.success());
    assert!(client.simple_query("SELECT * FROM t3").await.is_err(), "all or nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_written_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("folder");
    let there = fresh("dump_refused").await;
    let theirs = connect(&there).await;
    let file = dir.path().join("never.sql");
    for (make, drop, said) in [
        (
            "CREATE FUNCTION f() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
            "DROP FUNCTION f",
            "functions and procedures (f)",
        ),
        ("CREATE TABLE p (a integer) PARTITION BY RANGE (a)", "DROP TABLE p", "(p)"),
        ("CREATE TYPE pair AS RANGE (subtype = integer)", "DROP TYPE pair", "pair"),
        ("CREATE MATERIALIZED VIEW m AS SELECT 1 AS x", "DROP MATERIALIZED VIEW m", "(m)"),
        (
            "CREATE TABLE r (a integer); CREATE RULE gone AS ON DELETE TO r DO INSTEAD NOTHING",
            "DROP TABLE r",
            "rules (gone)",
        ),
        (
            "CREATE TABLE r (a integer); CREATE VIEW v AS SELECT a FROM r; ALTER VIEW v ALTER a SET DEFAULT 1",
            "DROP TABLE r CASCADE",
            "defaults of views' columns (v)",
        ),
        ("CREATE COLLATION mine FROM \"C\"", "DROP COLLATION mine", "collations (mine)"),
        (
            "CREATE TYPE one AS (a text COLLATE \"C\")",
            "DROP TYPE one",
            "composite types with collations of their own (one)",
        ),
        (
            "CREATE OPERATOR === (FUNCTION = int4eq, LEFTARG = integer, RIGHTARG = integer)",
            "DROP OPERATOR === (integer, integer)",
            "operators and their classes (===)",
        ),
        (
            "CREATE TYPE a AS ENUM ('x'); CREATE CAST (a AS integer) WITH INOUT",
            "DROP TYPE a CASCADE",
            "casts (public.a)",
        ),
        (
            "CREATE TEXT SEARCH CONFIGURATION mine (COPY = simple)",
            "DROP TEXT SEARCH CONFIGURATION mine",
            "parts of text search (mine)",
        ),
        (
            "CREATE PUBLICATION all_of_it FOR ALL TABLES",
            "DROP PUBLICATION all_of_it",
            "(all_of_it)",
        ),
        ("SELECT lo_create(4711)", "SELECT lo_unlink(4711)", "large objects (4711)"),
        (
            "CREATE FOREIGN DATA WRAPPER far",
            "DROP FOREIGN DATA WRAPPER far",
            "foreign servers and their wrappers (far)",
        ),
    ] {
        theirs.batch_execute(make).await.expect(make);
        let refused = telesto(&["dump", "--url", &there, "--file", file.to_str().expect("UTF-8")]);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && error.contains(said), "{make}: {error}");
        assert!(!file.exists(), "{make}: a dump that is not whole has its name");
        theirs.batch_execute(drop).await.expect(drop);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_out_is_told_in_the_dump_and_beside_it() {
    let there = fresh("dump_left_out").await;
    let theirs = connect(&there).await;
    let make = "CREATE TABLE \"t\nDROP TABLE t\" (a integer PRIMARY KEY, b text COLLATE \"C\") WITH (fillfactor = 50); \
        ALTER TABLE \"t\nDROP TABLE t\" REPLICA IDENTITY FULL; ALTER TABLE \"t\nDROP TABLE t\" ALTER a SET STATISTICS 7; \
        CREATE TABLE u (a integer CONSTRAINT u_pkey PRIMARY KEY, b integer); ALTER TABLE u CLUSTER ON u_pkey; \
        CREATE STATISTICS both_of ON a, b FROM u; CREATE POLICY p ON u USING (true); COMMENT ON POLICY p ON u IS 'all'; \
        CREATE DOMAIN exact AS text COLLATE \"POSIX\"";
    theirs.batch_execute(make).await.expect(make);
    let output = telesto(&["dump", "--url", &there]);
    let written = well(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for (what, names) in [
        ("extended statistics", "both_of"),
        ("storage parameters of tables", "t\\nDROP TABLE t"),
        ("replica identities", "t\\nDROP TABLE t"),
        ("indexes that tables are clustered on", "u_pkey"),
        ("statistics targets, storage and compression of columns", "a"),
        ("comments on policies and on domains' constraints", "p"),
    ] {
        let told = format!("not in this dump: {what} ({names})\n");
        assert!(said.contains(&told), "{told}{said}");
        assert!(written.contains(&format!("\n-- not in this dump: {what} (1)\n")), "{written}");
    }
    assert_eq!(said.lines().count(), 6, "{said}");
    let domain = "CREATE DOMAIN public.exact AS text COLLATE pg_catalog.\"POSIX\";";
    assert!(written.contains(domain), "{written}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pg_dump_writes_some_tables_and_inserts() {
    let dir = tempfile::tempdir().expect("folder");
    let (first_node, first) = node(dir.path(), "first");
    let (_second, second) = node(dir.path(), "second");
    let ours = connect(&first).await;
    let made = "CREATE TABLE one (id integer PRIMARY KEY, t text); INSERT INTO one VALUES (1, 'it''s'), (2, NULL); \
        CREATE TABLE two (id integer PRIMARY KEY); INSERT INTO two VALUES (7)";
    ours.batch_execute(made).await.expect("tables");
    let pg_dump = |options: &[&str]| {
        let run = Command::new("pg_dump")
            .args(["-O", "-x", "-h", "127.0.0.1", "-U", "telesto", "-d", "telesto"])
            .args(["-p", &first_node.port.to_string()])
            .args(options)
            .env("PGSSLMODE", "disable")
            .output();
        run.expect("pg_dump runs")
    };
    for (options, one, two, rows_of_two) in [
        (&["-t", "one"][..], true, false, false),
        (&["-T", "one"], false, true, true),
        (&["-t", "public.t*"], false, true, true),
        (&["--exclude-table-data", "two"], true, true, false),
    ] {
        let written = well(&pg_dump(options));
        let has = |text: &str| written.contains(text);
        assert_eq!(has("CREATE TABLE public.one "), one, "{options:?}");
        assert_eq!(has("CREATE TABLE public.two "), two, "{options:?}");
        assert_eq!(has("COPY public.two "), rows_of_two, "{options:?}");
    }
    let file = dir.path().join("inserts.sql");
    let name = file.to_str().expect("UTF-8");
    well(&pg_dump(&["--column-inserts", "--rows-per-insert", "5", "-f", name]));
    let text = std::fs::read_to_string(&file).expect("the dump");
    assert!(text.contains("INSERT INTO public.one (id, t) VALUES"), "{text}");
    well(&telesto(&["restore", name, "--url", &second]));
    let rows = ["SELECT * FROM one ORDER BY id", "SELECT * FROM two"];
    same(&answers(&ours, &rows).await, &answers(&connect(&second).await, &rows).await);
    // Several sessions would need one snapshot.
    let folder = dir.path().join("folder");
    let refused = pg_dump(&["-Fd", "-j", "2", "-f", folder.to_str().expect("UTF-8")]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("pg_export_snapshot"), "{said}");
}

/// Settings that change what is read or how it is written, as they may be stored for the role that
/// dumps.
const HOSTILE: [&str; 20] = [
    "telesto.executor = key",
    "telesto.consistency = eventual",
    "bytea_output = escape",
    "timezone = 'Asia/Kathmandu'",
    "datestyle = 'SQL, DMY'",
    "intervalstyle = iso_8601",
    "extra_float_digits = -10",
    "search_path = \"Odd Schema\", nowhere",
    "row_security = on",
    "statement_timeout = 50",
    "lock_timeout = 1",
    "idle_in_transaction_session_timeout = 1",
    "quote_all_identifiers = on",
    "standard_conforming_strings = off",
    "client_min_messages = error",
    "default_transaction_isolation = 'read committed'",
    "default_transaction_read_only = on",
    "transform_null_equals = on",
    "application_name = 'x'",
    "role = nobody_much",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_settings_change_no_byte_of_a_dump() {
    let dir = tempfile::tempdir().expect("folder");
    let file = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (node, ours) = node(dir.path(), "node");
    let theirs = fresh("dump_hostile").await;
    let undo = "DROP ROLE IF EXISTS dumper, nobody_much";
    connect(&postgres()).await.batch_execute(undo).await.expect("a server without them");
    for (url, mine) in [(&ours, true), (&theirs, false)] {
        let client = connect(url).await;
        client.batch_execute(SCHEMA).await.expect("the schema");
        let more = "CREATE ROLE dumper LOGIN SUPERUSER; CREATE ROLE nobody_much; \
            CREATE TABLE texts (b bytea, d date, z timestamptz DEFAULT '2024-05-06 07:08:09+00', i interval, f float8, s text DEFAULT 'a\\b'); \
            INSERT INTO texts VALUES ('\\x00ff41', '2024-02-03', '2024-02-03 04:05:06+00', '1 mon -2 days 03:04:05.6', 0.1::float8 + 0.2::float8, 'c\\d')";
        client.batch_execute(more).await.expect("more");
        let url = url.replace("telesto@", "dumper@").replace("postgres@", "dumper@");
        let (before, after) = (file("before.sql"), file("after.sql"));
        well(&telesto(&["dump", "--roles", "--url", &url, "--file", &before]));
        let mut refused = Vec::new();
        for setting in HOSTILE {
            let stored = format!("ALTER ROLE dumper SET {setting}");
            if client.batch_execute(&stored).await.is_err() {
                refused.push(setting);
            }
        }
        // Telesto has DateStyle ISO alone, strings as the standard has them, and NULLs that equal
        // nothing.
        let known: &[&str] = match mine {
            true => &[
                "datestyle = 'SQL, DMY'",
                "standard_conforming_strings = off",
                "transform_null_equals = on",
            ],
            false => &[],
        };
        assert_eq!(refused, known);
        well(&telesto(&["dump", "--roles", "--url", &url, "--file", &after]));
        let read = |name: &str| std::fs::read_to_string(name).expect("the dump");
        let without = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with("ALTER ROLE dumper SET "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        same(&without(&read(&before)), &without(&read(&after)));
        assert!(read(&after).contains("ALTER ROLE dumper SET "), "nothing was stored");
        // As another role it has that one's rights alone.
        let lesser = telesto(&["dump", "--url", &url, "--role", "nobody_much", "--file", &before]);
        let said = String::from_utf8_lossy(&lesser.stderr).into_owned();
        assert!(!lesser.status.success() && said.contains("permission denied"), "{said}");
    }
    drop(node);
    let admin = connect(&postgres()).await;
    admin.batch_execute("DROP DATABASE dump_hostile").await.expect("drops");
    admin.batch_execute(undo).await.expect("drops");
}

/// Roles, what they may do, and whose what is. Default privileges are kept by the OIDs of roles,
/// which are made in the order in which they are dumped.
const ROLES: &str = "
CREATE ROLE \"Odd \"\"one\" LOGIN CONNECTION LIMIT 7 PASSWORD 'secret' VALID UNTIL '2031-05-06 07:08:09+00';
CREATE ROLE clerk LOGIN BYPASSRLS;
CREATE ROLE reader REPLICATION;
CREATE ROLE staff CREATEDB CREATEROLE NOINHERIT;
GRANT staff TO clerk WITH ADMIN OPTION;
SET SESSION AUTHORIZATION clerk;
GRANT staff TO \"Odd \"\"one\";
RESET SESSION AUTHORIZATION;
GRANT pg_read_all_data TO reader;
ALTER ROLE ALL SET work_mem = '5MB';
ALTER ROLE clerk SET search_path = \"$user\", \"A b\", public;
ALTER ROLE clerk SET app.tenant = 'it''s, \"x\"';
ALTER ROLE clerk SET \"TimeZone\" = 'Europe/Berlin';
ALTER ROLE clerk SET role = 'staff';
ALTER ROLE reader SET search_path = '';
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN small AS integer CHECK (VALUE < 100);
CREATE SCHEMA closed;
CREATE TABLE closed.t (id serial PRIMARY KEY, a integer, b small, m mood);
CREATE VIEW closed.v AS SELECT id, a FROM closed.t;
CREATE SEQUENCE closed.free;
INSERT INTO closed.t (a, b, m) VALUES (1, 2, 'ok'), (3, 4, 'sad');
ALTER SCHEMA closed OWNER TO staff;
ALTER TABLE closed.t OWNER TO staff;
ALTER VIEW closed.v OWNER TO clerk;
ALTER TYPE mood OWNER TO clerk;
ALTER DOMAIN small OWNER TO staff;
GRANT USAGE ON SCHEMA closed TO clerk, reader;
GRANT SELECT, UPDATE ON closed.t TO clerk WITH GRANT OPTION;
GRANT SELECT ON closed.t TO reader WITH GRANT OPTION;
SET SESSION AUTHORIZATION reader;
GRANT SELECT ON closed.t TO \"Odd \"\"one\";
RESET SESSION AUTHORIZATION;
REVOKE DELETE, TRUNCATE ON closed.t FROM staff;
GRANT UPDATE (a), REFERENCES (id) ON closed.t TO \"Odd \"\"one\";
GRANT SELECT ON closed.v TO PUBLIC;
GRANT USAGE ON SEQUENCE closed.free TO reader;
REVOKE USAGE ON TYPE mood FROM PUBLIC;
REVOKE USAGE ON SCHEMA public FROM PUBLIC;
GRANT CREATE ON SCHEMA public TO clerk;
ALTER DEFAULT PRIVILEGES FOR ROLE staff GRANT SELECT ON TABLES TO reader;
ALTER DEFAULT PRIVILEGES FOR ROLE staff REVOKE USAGE ON TYPES FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE clerk IN SCHEMA closed GRANT USAGE ON SEQUENCES TO reader WITH GRANT OPTION;
CREATE POLICY own ON closed.t TO clerk, reader USING (a > 0);
ALTER TABLE closed.t ENABLE ROW LEVEL SECURITY;
";

/// What two servers must have alike of that. The first superuser has another name on each.
const RIGHTS: [&str; 9] = [
    "SELECT rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolbypassrls, rolconnlimit, rolvaliduntil, \
     rolpassword FROM pg_authid WHERE rolname IN ('Odd \"one', 'staff', 'clerk', 'reader') ORDER BY 1",
    "SELECT pg_get_userbyid(roleid), pg_get_userbyid(member), replace(pg_get_userbyid(grantor), 'postgres', 'telesto'), admin_option \
     FROM pg_auth_members WHERE pg_get_userbyid(member) IN ('Odd \"one', 'clerk', 'reader') ORDER BY 1, 2",
    "SELECT setdatabase = 0, CASE setrole WHEN 0 THEN '' ELSE pg_get_userbyid(setrole) END, setconfig::text FROM pg_db_role_setting ORDER BY 1, 2",
    "SELECT nspname, replace(pg_get_userbyid(nspowner), 'postgres', 'telesto'), nspacl::text FROM pg_namespace WHERE nspname IN ('closed', 'public') ORDER BY 1",
    "SELECT relname, pg_get_userbyid(relowner), relacl::text FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'closed') \
     AND relkind IN ('r', 'v', 'S') AND relname <> 'free' ORDER BY 1",
    "SELECT relname, replace(relacl::text, 'postgres', 'telesto') FROM pg_class WHERE relname = 'free'",
    "SELECT attname, attacl::text FROM pg_attribute WHERE attacl IS NOT NULL AND attrelid = 'closed.t'::regclass ORDER BY 1",
    "SELECT typname, pg_get_userbyid(typowner), typacl::text FROM pg_type WHERE typname IN ('mood', 'small') ORDER BY 1",
    "SELECT pg_get_userbyid(defaclrole), defaclnamespace = 0, defaclobjtype, defaclacl::text FROM pg_default_acl ORDER BY 1, 2, 3",
];

/// A Telesto as it was before, all but `public`.
const UNDO: &str = "RESET ROLE; ALTER ROLE ALL RESET ALL; DROP OWNED BY \"Odd \"\"one\", staff, clerk, reader CASCADE; \
    DROP ROLE \"Odd \"\"one\", staff, clerk, reader";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_and_rights_go_to_postgres_and_back() {
    let dir = tempfile::tempdir().expect("folder");
    let file = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (_first, first) = node(dir.path(), "first");
    let (_second, second) = node(dir.path(), "second");
    let ours = connect(&first).await;
    ours.batch_execute(ROLES).await.expect("roles");
    let before = answers(&ours, &RIGHTS).await;
    assert_eq!(before.len(), 32, "{before:?}");
    let (a, b) = (file("a.sql"), file("b.sql"));
    well(&telesto(&["dump", "--roles", "--url", &first, "--file", &a]));
    let there = fresh("dump_roles").await;
    // Of a run before that failed.
    let left = "DROP ROLE IF EXISTS \"Odd \"\"one\", clerk, reader, staff, telesto";
    connect(&postgres()).await.batch_execute(left).await.expect("a server without them");
    psql(&there, &a);
    let theirs = connect(&there).await;
    same(&before, &answers(&theirs, &RIGHTS).await);
    well(&telesto(&["dump", "--roles", "--url", &there, "--file", &b]));
    // Roles are a whole server's: they go with the database that has what is theirs.
    drop(theirs);
    let admin = connect(&postgres()).await;
    for statement in ["ALTER ROLE ALL RESET ALL", "DROP DATABASE dump_roles WITH (FORCE)", left] {
        admin.batch_execute(statement).await.expect(statement);
    }
    // Twice: the second time into one transaction, where the first superuser is there as well.
    for restore in
        [&["restore", &b, "--url", &second][..], &["restore", &b, "--url", &second, "-1"]]
    {
        let output = telesto(restore);
        well(&output);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("role \"telesto\" was here already"), "{said}");
        let back = connect(&second).await;
        same(&before, &answers(&back, &RIGHTS).await);
        let row = answers(&back, &["SELECT count(*) FROM closed.t"]).await;
        assert_eq!(row[0], "2");
        back.batch_execute(UNDO).await.expect("empty again");
        let public = "DROP TYPE IF EXISTS mood CASCADE; DROP DOMAIN IF EXISTS small CASCADE; GRANT USAGE ON SCHEMA public TO PUBLIC";
        back.batch_execute(public).await.expect("empty again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_byte_of_a_name_or_a_setting_becomes_another_right_or_setting() {
    let dir = tempfile::tempdir().expect("folder");
    let (_first, first) = node(dir.path(), "first");
    let (_second, second) = node(dir.path(), "second");
    let ours = connect(&first).await;
    let made = "CREATE ROLE mal LOGIN; CREATE SCHEMA inj; CREATE TABLE inj.secret (a integer); \
        CREATE ROLE \"a\u{1}=arwdDxt/telesto\u{1}b\"; CREATE ROLE \"x,=arwdDxt/telesto,{y}\"; \
        GRANT SELECT ON inj.secret TO \"a\u{1}=arwdDxt/telesto\u{1}b\", \"x,=arwdDxt/telesto,{y}\"; \
        GRANT SELECT (a) ON inj.secret TO \"a\u{1}=arwdDxt/telesto\u{1}b\"; \
        ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO \"a\u{1}=arwdDxt/telesto\u{1}b\"";
    ours.batch_execute(made).await.expect("roles");
    // What anybody may store for themselves.
    let mal = connect(&first.replace("telesto@", "mal@")).await;
    for value in ["a\u{1}session_replication_role=replica\u{1}b", "a, {x}\nb"] {
        let stored = format!("ALTER ROLE mal SET search_path = '{value}'");
        mal.batch_execute(&stored).await.expect("its own");
        let questions = [
            "SELECT r.rolname, s.setconfig::text FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole ORDER BY 1",
            "SELECT relacl::text FROM pg_class WHERE relname = 'secret'",
            "SELECT attacl::text FROM pg_attribute WHERE attacl IS NOT NULL AND attrelid = 'inj.secret'::regclass",
            "SELECT pg_get_userbyid(defaclrole), defaclacl::text FROM pg_default_acl",
        ];
        let file = dir.path().join("roles.sql");
        let name = file.to_str().expect("UTF-8");
        well(&telesto(&["dump", "--roles", "--url", &first, "--file", name]));
        let written = std::fs::read_to_string(&file).expect("the dump");
        assert_eq!(written.matches("ALTER ROLE mal SET ").count(), 1, "{written}");
        assert!(!written.contains("TO PUBLIC"), "{written}");
        well(&telesto(&["restore", name, "--url", &second]));
        let back = connect(&second).await;
        same(&answers(&ours, &questions).await, &answers(&back, &questions).await);
        back.batch_execute("DROP SCHEMA inj CASCADE").await.expect("again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_alone_are_those_that_pg_dumpall_reads_and_restores() {
    let dir = tempfile::tempdir().expect("folder");
    let file = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (first_node, first) = node(dir.path(), "first");
    let (_second, second) = node(dir.path(), "second");
    let (_third, third) = node(dir.path(), "third");
    let ours = connect(&first).await;
    ours.batch_execute(ROLES).await.expect("roles");
    let more = "ALTER DATABASE telesto SET statement_timeout = '90s'; ALTER ROLE clerk IN DATABASE telesto SET work_mem = '6MB'";
    ours.batch_execute(more).await.expect("settings");
    let roles = &RIGHTS[..3];
    let before = answers(&ours, roles).await;
    let (a, b) = (file("roles.sql"), file("all.sql"));
    well(&telesto(&["dump", "--roles-only", "--url", &first, "--file", &a]));
    well(&telesto(&["restore", &a, "--url", &second]));
    same(&before, &answers(&connect(&second).await, roles).await);

    // The real tool, of Telesto: what it writes of roles is loaded unmodified. It has no ALTER ROLE
    // ALL, and settings of databases elsewhere.
    let dumped = Command::new("pg_dumpall")
        .args(["--globals-only", "-h", "127.0.0.1", "-U", "telesto", "-l", "telesto", "-f", &b])
        .args(["-p", &first_node.port.to_string()])
        .env("PGSSLMODE", "disable")
        .output();
    well(&dumped.expect("pg_dumpall runs"));
    well(&telesto(&["restore", &b, "--url", &third]));
    let back = connect(&third).await;
    same(&answers(&ours, &roles[..2]).await, &answers(&back, &roles[..2]).await);
    let of_roles =
        ["SELECT rolname, rolconfig::text FROM pg_roles WHERE rolconfig IS NOT NULL ORDER BY 1"];
    same(&answers(&ours, &of_roles).await, &answers(&back, &of_roles).await);

    // Passwords are for superusers.
    ours.batch_execute("ALTER ROLE clerk RESET ALL").await.expect("no other role");
    let clerk = first.replace("telesto@", "clerk@");
    let refused = telesto(&["dump", "--roles-only", "--url", &clerk]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("--no-role-passwords"), "{said}");
    let written = well(&telesto(&["dump", "--roles-only", "--no-role-passwords", "--url", &clerk]));
    assert!(
        written.contains("ALTER ROLE \"Odd \"\"one\" WITH") && !written.contains("PASSWORD"),
        "{written}"
    );
}
