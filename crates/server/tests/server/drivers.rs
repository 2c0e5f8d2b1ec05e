//! The Postgres wire as drivers use it: tokio-postgres over real sockets, and raw messages where a
//! driver hides the order of things.

use std::time::Duration;

use crate::support::{Node, PATIENCE, Raw, bind, error_field, execute, frame, parse, query, sync};
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _, TryStreamExt as _, pin_mut};
use telesto_server::ServerConfig;
use tokio_postgres::error::SqlState;
use tokio_postgres::{NoTls, SimpleQueryMessage};

async fn node() -> Node {
    Node::start(ServerConfig::default()).await
}

#[tokio::test]
async fn values_of_every_common_type_round_trip_in_binary() {
    let node = node().await;
    let client = node.client().await;
    client
        .batch_execute(
            "create table v (id int primary key, s smallint, b bigint, f real, d double precision, \
             t text, o boolean, y bytea)",
        )
        .await
        .expect("created");
    client
        .execute(
            "insert into v values ($1, $2, $3, $4, $5, $6, $7, $8)",
            &[&1i32, &-2i16, &i64::MIN, &1.5f32, &f64::MAX, &"é\n", &true, &&b"\x00\xff"[..]],
        )
        .await
        .expect("inserted");
    client
        .execute(
            "insert into v values ($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                &2i32,
                &None::<i16>,
                &None::<i64>,
                &None::<f32>,
                &None::<f64>,
                &None::<&str>,
                &None::<bool>,
                &None::<Vec<u8>>,
            ],
        )
        .await
        .expect("inserted");
    let rows = client.query("select * from v order by id", &[]).await.expect("selected");
    let row = &rows[0];
    assert_eq!(row.get::<_, i16>("s"), -2);
    assert_eq!(row.get::<_, i64>("b"), i64::MIN);
    assert_eq!(row.get::<_, f32>("f"), 1.5);
    assert_eq!(row.get::<_, f64>("d"), f64::MAX);
    assert_eq!(row.get::<_, &str>("t"), "é\n");
    assert!(row.get::<_, bool>("o"));
    assert_eq!(row.get::<_, &[u8]>("y"), b"\x00\xff");
    assert_eq!(rows[1].get::<_, Option<&str>>("t"), None);
    assert_eq!(rows[1].get::<_, Option<i64>>("b"), None);
}

#[tokio::test]
async fn values_come_in_text_over_the_simple_protocol() {
    let node = node().await;
    let client = node.client().await;
    let messages = client
        .simple_query("select 1 as one, true as t, null as n, 'x''y' as s; select 2.50::numeric")
        .await
        .expect("answers");
    let rows: Vec<_> = messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        })
        .collect();
    assert_eq!(rows[0].get("one"), Some("1"));
    assert_eq!(rows[0].get("t"), Some("t"));
    assert_eq!(rows[0].get("n"), None);
    assert_eq!(rows[0].get("s"), Some("x'y"));
    assert_eq!(rows[1].get(0), Some("2.50"));
}

#[tokio::test]
async fn errors_carry_sqlstate_position_and_constraint() {
    let node = node().await;
    let client = node.client().await;
    let syntax = client.simple_query("selec 1").await.expect_err("syntax");
    assert_eq!(syntax.code(), Some(&SqlState::SYNTAX_ERROR));
    let missing = client.query("select * from nowhere", &[]).await.expect_err("no table");
    assert_eq!(missing.code(), Some(&SqlState::UNDEFINED_TABLE));
    client.batch_execute("create table u (id int primary key)").await.expect("created");
    client.execute("insert into u values (1)", &[]).await.expect("inserted");
    let twice = client.execute("insert into u values (1)", &[]).await.expect_err("twice");
    let twice = twice.as_db_error().expect("from the server");
    assert_eq!(twice.code(), &SqlState::UNIQUE_VIOLATION);
    assert_eq!(twice.constraint(), Some("u_pkey"));
    assert_eq!(twice.table(), Some("u"));
    assert_eq!(twice.severity(), "ERROR");
    // The connection goes on.
    let row = client.query_one("select 1 as x", &[]).await.expect("still works");
    assert_eq!(row.get::<_, i32>("x"), 1);
}

#[tokio::test]
async fn transaction_status_follows_begin_failure_and_rollback() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    for (sql, kinds) in [
        ("begin", "CZT"),
        ("select 1", "TDCZT"),
        ("nonsense", "EZE"),
        ("select 1", "EZE"),
        ("rollback", "CZI"),
        ("", "IZI"),
        ("select 1; select 2", "TDCTDCZI"),
    ] {
        raw.send(&query(sql)).await;
        assert_eq!(raw.kinds().await, kinds, "{sql}");
    }
}

#[tokio::test]
async fn transaction_rolled_back_leaves_nothing() {
    let node = node().await;
    let mut client = node.client().await;
    client.batch_execute("create table r (id int primary key)").await.expect("created");
    let transaction = client.transaction().await.expect("begun");
    transaction.execute("insert into r values (1)", &[]).await.expect("inserted");
    transaction.rollback().await.expect("rolled back");
    let transaction = client.transaction().await.expect("begun");
    transaction.execute("insert into r values (2)", &[]).await.expect("inserted");
    transaction.commit().await.expect("committed");
    let ids: Vec<i32> = client
        .query("select id from r", &[])
        .await
        .expect("read")
        .iter()
        .map(|r| r.get(0))
        .collect();
    assert_eq!(ids, [2]);
}

#[tokio::test]
async fn pipeline_without_sync_is_one_implicit_transaction() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    raw.send(&query("create table p (id int primary key)")).await;
    raw.until(b'Z').await;
    // The second statement fails: the first must not stay.
    let mut batch = Vec::new();
    for sql in ["insert into p values (1)", "insert into p values (1)", "insert into p values (2)"]
    {
        batch.extend([parse("", sql), bind("", ""), execute("", 0)].concat());
    }
    batch.extend(sync());
    raw.send(&batch).await;
    assert_eq!(raw.kinds().await, "12C12EZI");
    raw.send(&query("select count(*) from p")).await;
    let messages = raw.until(b'Z').await;
    assert_eq!(messages[1].1, b"\0\x01\0\0\0\x010");
}

#[tokio::test]
async fn error_in_the_extended_protocol_skips_to_sync_exactly() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    let batch = [
        parse("", "select nonsense from nowhere"),
        bind("", ""),
        execute("", 0),
        frame(b'H', b""),
        sync(),
        parse("", "select 1"),
        bind("", ""),
        execute("", 0),
        sync(),
    ];
    raw.send(&batch.concat()).await;
    assert_eq!(raw.kinds().await, "EZI");
    assert_eq!(raw.kinds().await, "12DCZI");
}

#[tokio::test]
async fn portal_is_suspended_at_max_rows_and_resumed() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    let values = "select * from (values (1), (2), (3), (4), (5)) v(x)";
    let batch = [
        parse("s", values),
        bind("p", "s"),
        execute("p", 2),
        execute("p", 2),
        execute("p", 2),
        execute("p", 2),
        sync(),
        execute("p", 2),
        sync(),
    ];
    raw.send(&batch.concat()).await;
    assert_eq!(raw.kinds().await, "12DDsDDsDCCZI");
    // The implicit transaction is over, and with it the portal.
    let messages = raw.until(b'E').await;
    assert_eq!(error_field(&messages[0].1, b'C').as_deref(), Some("34000"));
    raw.until(b'Z').await;
    // In a transaction block it lives on, other statements in between.
    let batch = [query("begin"), bind("q", "s"), execute("q", 2), sync()];
    raw.send(&batch.concat()).await;
    assert_eq!(raw.kinds().await, "CZT");
    assert_eq!(raw.kinds().await, "2DDsZT");
    let batch = [
        parse("", "select 7"),
        bind("", ""),
        execute("", 0),
        execute("q", 0),
        sync(),
        query("commit"),
    ];
    raw.send(&batch.concat()).await;
    assert_eq!(raw.kinds().await, "12DCDDDCZT");
    assert_eq!(raw.kinds().await, "CZI");
}

#[tokio::test]
async fn statements_and_portals_are_described_and_closed() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    let describe = |target: &str| frame(b'D', format!("{target}\0").as_bytes());
    let batch = [
        parse("s", "select 1 as x"),
        describe("Ss"),
        bind("p", "s"),
        describe("Pp"),
        frame(b'C', b"Ps\0"),
        frame(b'C', b"Ss\0"),
        frame(b'C', b"Snever\0"),
        sync(),
        parse("t", "begin"),
        describe("St"),
        sync(),
        describe("Ss"),
        sync(),
        parse("t", "select 1"),
        sync(),
    ];
    raw.send(&batch.concat()).await;
    assert_eq!(raw.kinds().await, "1tT2T333ZI");
    assert_eq!(raw.kinds().await, "1tnZI");
    for code in ["26000", "42P05"] {
        let messages = raw.until(b'Z').await;
        assert_eq!(error_field(&messages[0].1, b'C').as_deref(), Some(code));
    }
}

#[tokio::test]
async fn bind_that_does_not_fit_is_a_protocol_violation() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    let one = frame(b'B', b"\0\0\0\0\0\x01\0\0\0\x011\0\0");
    let formats = frame(b'B', b"\0\0\0\0\0\0\0\x02\0\0\0\x01");
    let unknown = frame(b'B', b"\0\0\0\0\0\0\0\x01\0\x07");
    for (bind, code) in [(one, "08P01"), (formats, "08P01"), (unknown, "22023")] {
        raw.send(&[parse("", "select 1"), bind, sync()].concat()).await;
        let messages = raw.until(b'Z').await;
        assert_eq!(error_field(&messages[1].1, b'C').as_deref(), Some(code));
    }
}

#[tokio::test]
async fn deallocate_reaches_statements_prepared_by_parse() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    raw.send(&[parse("_pg3_0", "select 1"), sync()].concat()).await;
    raw.until(b'Z').await;
    raw.send(&query("DEALLOCATE _pg3_0")).await;
    assert_eq!(raw.kinds().await, "CZI");
    raw.send(&[bind("", "_pg3_0"), sync()].concat()).await;
    assert_eq!(raw.kinds().await, "EZI");
}

#[tokio::test]
async fn names_of_parse_and_of_prepare_are_the_same() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    raw.send(&[parse("s1", "select $1::int + 1"), parse("self", "execute self"), sync()].concat())
        .await;
    raw.until(b'Z').await;
    // What Parse prepared: executed, explained and shown to be taken.
    raw.send(&query("execute s1(41)")).await;
    let rows = raw.until(b'Z').await;
    assert!(rows.iter().any(|(kind, body)| *kind == b'D' && body.ends_with(b"42")), "{rows:?}");
    raw.send(&query("explain (verbose, format json) execute s1(null)")).await;
    assert_eq!(raw.kinds().await, "TDCZI");
    let code = |messages: Vec<(u8, Vec<u8>)>| {
        messages
            .iter()
            .find(|(kind, _)| *kind == b'E')
            .and_then(|(_, body)| error_field(body, b'C'))
    };
    for (sql, expected) in [
        ("prepare s1 as select 1", "42P05"),
        ("execute s1", "42601"),
        ("execute self", "0A000"),
        ("explain execute self", "0A000"),
        ("execute nothing", "26000"),
    ] {
        raw.send(&query(sql)).await;
        assert_eq!(code(raw.until(b'Z').await).as_deref(), Some(expected), "{sql}");
    }
    // What PREPARE did: bound, and its name taken for Parse until it is closed.
    raw.send(&query("prepare p2 as select 7")).await;
    raw.until(b'Z').await;
    raw.send(&[bind("", "p2"), execute("", 0), sync()].concat()).await;
    assert_eq!(raw.kinds().await, "2DCZI");
    raw.send(&[parse("p2", "select 8"), sync()].concat()).await;
    assert_eq!(code(raw.until(b'Z').await).as_deref(), Some("42P05"));
    raw.send(&[frame(b'C', b"Sp2\0"), parse("p2", "select 8"), sync()].concat()).await;
    assert_eq!(raw.kinds().await, "31ZI");
    raw.send(&query("deallocate all")).await;
    raw.until(b'Z').await;
    raw.send(&[bind("", "p2"), sync()].concat()).await;
    assert_eq!(code(raw.until(b'Z').await).as_deref(), Some("26000"));
}

#[tokio::test]
async fn prepared_statements_with_parameters_run_many_times() {
    let node = node().await;
    let client = node.client().await;
    client.batch_execute("create table n (id int primary key, t text)").await.expect("created");
    let insert = client.prepare("insert into n values ($1, $2)").await.expect("prepared");
    assert_eq!(insert.params().len(), 2);
    for id in 0..50i32 {
        client.execute(&insert, &[&id, &format!("t{id}")]).await.expect("inserted");
    }
    let select = client.prepare("select t from n where id = $1").await.expect("prepared");
    let lookups = (0..50i32).map(|id| {
        let (client, select) = (&client, &select);
        async move { client.query_one(select, &[&id]).await.map(|row| row.get::<_, String>(0)) }
    });
    // All in flight at once: a pipeline.
    let texts = futures::future::try_join_all(lookups).await.expect("found");
    assert_eq!(texts[49], "t49");
}

#[tokio::test]
async fn copy_in_and_out_move_rows_and_errors_end_them() {
    let node = node().await;
    let client = node.client().await;
    client.batch_execute("create table c (id int primary key, t text)").await.expect("created");
    let sink = client.copy_in("copy c from stdin").await.expect("begun");
    pin_mut!(sink);
    // Cut anywhere, also inside a row.
    for part in ["1\ton", "e\n2\t\\N\n", "3\tthr", "ee\n"] {
        sink.send(Bytes::from_static(part.as_bytes())).await.expect("sent");
    }
    assert_eq!(sink.finish().await.expect("copied"), 3);
    let out = client.copy_out("copy c to stdout").await.expect("begun");
    let rows: Vec<Bytes> = out.try_collect().await.expect("copied");
    assert_eq!(rows.concat(), b"1\tone\n2\t\\N\n3\tthree\n");
    // A bad row: nothing of the COPY stays, and the connection goes on.
    let sink = client.copy_in("copy c from stdin").await.expect("begun");
    pin_mut!(sink);
    sink.send(Bytes::from_static(b"4\tfour\nx\ty\n")).await.expect("sent");
    let error = sink.finish().await.expect_err("not a number");
    assert_eq!(error.code(), Some(&SqlState::INVALID_TEXT_REPRESENTATION));
    // A client that gives up.
    let sink = client.copy_in::<_, Bytes>("copy c from stdin").await.expect("begun");
    drop(sink);
    let count = client.query_one("select count(*) from c", &[]).await.expect("counted");
    assert_eq!(count.get::<_, i64>(0), 3);
}

#[tokio::test]
async fn copy_over_the_simple_protocol_fails_and_ends_in_order() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    raw.send(&query("create table k (id int primary key)")).await;
    raw.until(b'Z').await;
    let batch = [query("copy k from stdin"), frame(b'd', b"1\n"), frame(b'f', b"enough\0")];
    raw.send(&batch.concat()).await;
    let messages = raw.until(b'Z').await;
    assert_eq!(messages[0].0, b'G');
    assert_eq!(error_field(&messages[1].1, b'C').as_deref(), Some("57014"));
    let batch = [query("copy k from stdin"), frame(b'd', b"1\n2\n"), frame(b'c', b"")];
    raw.send(&batch.concat()).await;
    assert_eq!(raw.kinds().await, "GCZI");
    raw.send(&query("copy k to stdout")).await;
    assert_eq!(raw.kinds().await, "HddcCZI");
}

#[tokio::test]
async fn portals_give_nothing_in_failed_blocks_and_end_with_their_transaction() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    let open = [
        query("begin"),
        parse("p", "select i from generate_series(1, 5) i"),
        bind("one", "p"),
        bind("two", "p"),
        execute("one", 2),
        execute("two", 0),
        sync(),
    ];
    raw.send(&open.concat()).await;
    assert_eq!(raw.kinds().await, "CZT");
    assert_eq!(raw.kinds().await, "122DDsDDDDDCZT");
    raw.send(&[bind("three", "nothing"), sync()].concat()).await;
    assert_eq!(raw.kinds().await, "EZE");
    for portal in ["one", "two"] {
        raw.send(&[execute(portal, 1), sync()].concat()).await;
        let messages = raw.until(b'Z').await;
        assert_eq!(error_field(&messages[0].1, b'C').as_deref(), Some("25P02"), "{portal}");
    }
    for end in ["commit and chain", "rollback and chain"] {
        raw.send(&[query("rollback"), query("begin")].concat()).await;
        assert_eq!((raw.kinds().await, raw.kinds().await), ("CZI".into(), "CZT".into()));
        raw.send(&[bind("", "p"), parse(end, end), bind("e", end), execute("e", 0)].concat()).await;
        raw.send(&[execute("", 1), sync()].concat()).await;
        let messages = raw.until(b'Z').await;
        let kinds: String = messages.iter().map(|m| char::from(m.0)).collect();
        assert_eq!(kinds, "212CEZ", "{end}");
        assert_eq!(error_field(&messages[4].1, b'C').as_deref(), Some("34000"), "{end}");
    }
}

/// Who is told that a statement is complete takes it for done, and for more than one message that
/// ends a statement some drivers have no place.
#[tokio::test]
async fn a_statement_whose_commit_fails_is_not_told_as_complete() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    let tables = "create table parent (id int primary key); create table child (id int primary key,
        parent int references parent deferrable initially deferred)";
    raw.send(&query(tables)).await;
    assert_eq!(raw.kinds().await, "CCZI");
    let orphan = frame(b'd', b"1\t5\n");
    let batch = [query("copy child from stdin"), orphan.clone(), frame(b'c', b"")];
    raw.send(&batch.concat()).await;
    let messages = raw.until(b'Z').await;
    assert_eq!(messages.iter().map(|m| char::from(m.0)).collect::<String>(), "GEZ");
    assert_eq!(error_field(&messages[1].1, b'C').as_deref(), Some("23503"));
    // The last statement alone is not told: that the ones before were executed is so, whatever the
    // commit says.
    raw.send(&query("insert into child values (1, 5); insert into parent values (7)")).await;
    assert_eq!(raw.kinds().await, "CEZI");
    raw.send(&query("insert into child values (1, 5); select 1")).await;
    assert_eq!(raw.kinds().await, "CTDEZI");
    raw.send(&query("insert into child values (1, 5)")).await;
    assert_eq!(raw.kinds().await, "EZI");
    raw.send(&query("insert into parent values (5); select 1 / 0; select 2")).await;
    assert_eq!(raw.kinds().await, "CEZI");
    let first = [query("copy child from stdin; select 1"), orphan, frame(b'c', b"")];
    raw.send(&first.concat()).await;
    assert_eq!(raw.kinds().await, "GCTDEZI");
    raw.send(&query("begin; insert into child values (1, 5)")).await;
    assert_eq!(raw.kinds().await, "CCZT");
    raw.send(&query("commit")).await;
    assert_eq!(raw.kinds().await, "EZI");
    raw.send(&query("select count(*) from child where id = 1; select count(*) from parent")).await;
    assert_eq!(raw.kinds().await, "TDCTDCZI");
}

#[tokio::test]
async fn statement_cancelled_by_its_key_fails_and_the_session_goes_on() {
    let node = node().await;
    let client = node.client().await;
    let token = client.cancel_token();
    let canceller = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            token.cancel_query(NoTls).await.expect("sent");
        }
    };
    let slow = client.query_one(
        "select count(*) from generate_series(1, 1000000) a, generate_series(1, 1000000) b",
        &[],
    );
    let cancelled = async {
        tokio::select! {
            biased;
            result = slow => result,
            () = canceller => unreachable!("it never ends"),
        }
    };
    let error =
        tokio::time::timeout(PATIENCE, cancelled).await.expect("in time").expect_err("cancelled");
    assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
    // A late cancel request may still be under way; it must not hit what never ran.
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.query_one("select 1", &[]).await.expect("the session goes on");
}

#[tokio::test]
async fn cancel_with_a_wrong_key_does_nothing() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    let mut request = vec![0, 0, 0, 16];
    request.extend(((1234u32 << 16) | 5678).to_be_bytes());
    request.extend(1i32.to_be_bytes());
    request.extend([9, 9, 9, 9]);
    let mut other = Raw::connect(&node).await;
    other.send(&request).await;
    assert_eq!(other.message().await, None);
    raw.send(&query("select 1")).await;
    assert_eq!(raw.kinds().await, "TDCZI");
}

#[tokio::test]
async fn settings_reach_the_session_and_changes_are_reported() {
    let node = node().await;
    let config = format!("{} application_name=probe options='-c TimeZone=Asia/Tokyo'", node.url());
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("connects");
    tokio::spawn(connection);
    for (name, value) in [("application_name", "probe"), ("timezone", "Asia/Tokyo")] {
        let messages = client.simple_query(&format!("show {name}")).await.expect("shown");
        let shown = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        assert_eq!(shown, Some(value));
    }
    let mut raw = Raw::ready(&node).await;
    raw.send(&query("set timezone = 'Europe/Berlin'")).await;
    let messages = raw.until(b'Z').await;
    let status = messages.iter().find(|(kind, _)| *kind == b'S').expect("reported");
    assert_eq!(status.1, b"TimeZone\0Europe/Berlin\0");
}

#[tokio::test]
async fn unknown_database_is_refused_by_name() {
    let node = node().await;
    let config = format!("host=127.0.0.1 port={} user=telesto dbname=nowhere", node.address.port());
    let error = tokio_postgres::connect(&config, NoTls).await.err().expect("refused");
    assert_eq!(error.code(), Some(&SqlState::INVALID_CATALOG_NAME));
}

#[tokio::test]
async fn client_that_hangs_up_frees_its_session() {
    let node = node().await;
    let mut raw = Raw::ready(&node).await;
    raw.send(&query("create table h (id int primary key)")).await;
    raw.until(b'Z').await;
    raw.send(&query("begin; insert into h values (1)")).await;
    raw.until(b'Z').await;
    let slow = "select count(*) from generate_series(1, 1000000) a, generate_series(1, 1000000) b";
    raw.send(&query(slow)).await;
    drop(raw);
    // The drain waits for sessions: it ends soon only if the abandoned one has ended.
    assert!(node.server.stop(PATIENCE).await);
}

#[tokio::test]
async fn drain_lets_a_statement_finish_and_dismisses_idle_sessions() {
    let node = node().await;
    let mut idle = Raw::ready(&node).await;
    let mut busy = Raw::ready(&node).await;
    busy.send(&query("begin")).await;
    busy.until(b'Z').await;
    let stopping = tokio::spawn(node.server.stop(PATIENCE));
    let messages = idle.until(b'E').await;
    assert_eq!(error_field(&messages[0].1, b'C').as_deref(), Some("57P01"));
    busy.send(&query("select 1")).await;
    assert_eq!(busy.kinds().await, "TDCZT");
    busy.send(&query("commit")).await;
    assert_eq!(busy.kinds().await, "CZI");
    let messages = busy.until(b'E').await;
    assert_eq!(error_field(&messages[0].1, b'C').as_deref(), Some("57P01"));
    assert!(stopping.await.expect("ran"));
}

#[tokio::test]
async fn large_result_arrives_whole() {
    let node = node().await;
    let client = node.client().await;
    let rows = client
        .query_raw(
            "select x, repeat('x', 100) from generate_series(1, 100000) g(x)",
            Vec::<i32>::new(),
        )
        .await
        .expect("begun");
    pin_mut!(rows);
    let mut count = 0;
    while let Some(row) = rows.next().await {
        row.expect("a row");
        count += 1;
    }
    assert_eq!(count, 100_000);
}
