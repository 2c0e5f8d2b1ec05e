//! Operators that are kept from one execution to the next (`sql-datafusion/keeping`): each
//! execution has its own answer.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it runs a session on a runtime of its own"
)]

mod support;

use std::sync::Arc;

use support::{Collected, engine, session};
use telesto_sql::{Datum, Session, SessionOptions, SqlEngine, SqlOptions, StatementResult};
use telesto_txn::memory::MemoryDatabase;

/// The last statement's rows, columns parted by `|`, rows by blanks; or its error's code.
async fn ask(session: &mut Session, sql: &str) -> String {
    let mut sink = Collected::default();
    match session.execute_simple(sql, &mut sink).await {
        Err(error) => error.code().0.to_owned(),
        Ok(()) => {
            let rows = sink.table.unwrap_or_default().rows.into_iter().map(|row| {
                row.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().join("|")
            });
            rows.collect::<Vec<_>>().join(" ")
        }
    }
}

/// How often the statement was executed by operators that were there already.
async fn kept(session: &mut Session, name: &str) -> u64 {
    let sql = format!("select generic_plans from pg_prepared_statements where name = '{name}'");
    ask(session, &sql).await.parse().expect("a number")
}

/// Ten rows of three groups, an index, and a table of their parts. Operators are for any values
/// from the first execution on, however long they take.
async fn tables(session: &mut Session) {
    for sql in [
        "set plan_cache_mode = force_generic_plan",
        "create table item (id int primary key, kind int, price numeric(10,2), at timestamptz)",
        "create index on item (kind)",
        "create table part (item int references item, n int, primary key (item, n))",
        "insert into item select g, g % 3, g * 1.5, timestamptz '2024-01-01' + g * interval '1 day' from generate_series(1, 10) g",
        "insert into part select g, n from generate_series(1, 10) g, generate_series(1, 2) n",
    ] {
        assert_eq!(ask(session, sql).await, "", "{sql}");
    }
}

/// Needs a window, which is DataFusion's.
const RANKED: &str = "prepare ranked (int) as select id, row_number() over (order by price desc) from item where kind = $1 order by id";

#[tokio::test]
async fn each_execution_has_its_own_values() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    ask(&mut session, RANKED).await;
    for (given, expected) in [
        ("0", "3|3 6|2 9|1"),
        ("1", "1|4 4|3 7|2 10|1"),
        ("2", "2|3 5|2 8|1"),
        ("null", ""),
        ("0", "3|3 6|2 9|1"),
    ] {
        assert_eq!(ask(&mut session, &format!("execute ranked ({given})")).await, expected);
    }
    assert_eq!(kept(&mut session, "ranked").await, 4, "from the second time on");
}

#[tokio::test]
async fn each_execution_reads_its_own_transaction() {
    let engine = engine().await.expect("opens");
    let mut session = engine.session(SessionOptions::default()).await.expect("opens");
    let mut other = engine.session(SessionOptions::default()).await.expect("opens");
    tables(&mut session).await;
    ask(&mut session, RANKED).await;
    for _ in 0..3 {
        assert_eq!(ask(&mut session, "execute ranked (0)").await, "3|3 6|2 9|1");
    }
    ask(&mut session, "begin").await;
    ask(&mut session, "insert into item values (0, 0, 100, now())").await;
    assert_eq!(ask(&mut session, "execute ranked (0)").await, "0|1 3|4 6|3 9|2");
    ask(&mut session, "rollback").await;
    assert_eq!(ask(&mut session, "execute ranked (0)").await, "3|3 6|2 9|1");
    ask(&mut other, "delete from part where item = 3; delete from item where id = 3").await;
    assert_eq!(ask(&mut session, "execute ranked (0)").await, "6|2 9|1");
    // What is read is validated at commit, as ever.
    ask(&mut session, "begin; select random()").await;
    assert_eq!(ask(&mut session, "execute ranked (0)").await, "6|2 9|1");
    ask(&mut other, "update item set price = 1000 where id = 6").await;
    ask(&mut session, "insert into item values (20, 1, 1, now())").await;
    assert_eq!(ask(&mut session, "commit").await, "40001");
    assert_eq!(ask(&mut session, "execute ranked (0)").await, "6|1 9|2");
    assert!(kept(&mut session, "ranked").await >= 6);
}

#[tokio::test]
async fn time_goes_on_between_executions() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    let clocked = "prepare clocked as select now() = transaction_timestamp(), now(), count(*) over () from item limit 1";
    ask(&mut session, clocked).await;
    let mut before = String::new();
    for _ in 0..4 {
        let now = ask(&mut session, "execute clocked").await;
        assert!(now.starts_with("t|") && now.ends_with("|10"), "{now}");
        assert_ne!(now, before);
        before = now;
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    // Compared with a column of an index too.
    ask(&mut session, "create index on item (at)").await;
    let recent = "prepare recent (interval) as select count(*), count(*) over () from item where at > now() - $1 group by kind";
    ask(&mut session, recent).await;
    for _ in 0..3 {
        assert_eq!(ask(&mut session, "execute recent ('1 hour')").await, "");
    }
    ask(&mut session, "insert into item values (11, 7, 1, now())").await;
    assert_eq!(ask(&mut session, "execute recent ('1 hour')").await, "1|1");
    assert_eq!(kept(&mut session, "recent").await, 3);
    // Words that are another time whenever they are read.
    ask(
        &mut session,
        "prepare words as select 'now'::timestamptz::text, count(*) over () from item limit 1",
    )
    .await;
    let mut before = String::new();
    for _ in 0..4 {
        let now = ask(&mut session, "execute words").await;
        assert_ne!(now, before);
        before = now;
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn settings_of_the_execution_count() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    ask(
        &mut session,
        "prepare shown as select at::text, current_setting('app.x', true), count(*) over () from item order by id limit 1",
    )
    .await;
    for _ in 0..3 {
        assert_eq!(ask(&mut session, "execute shown").await, "2024-01-02 00:00:00+00||10");
    }
    ask(&mut session, "set timezone = 'Asia/Tokyo'; set app.x = 'one'").await;
    for _ in 0..3 {
        assert_eq!(ask(&mut session, "execute shown").await, "2024-01-02 09:00:00+09|one|10");
    }
    ask(&mut session, "set app.x = 'two'").await;
    assert_eq!(ask(&mut session, "execute shown").await, "2024-01-02 09:00:00+09|two|10");
}

#[tokio::test]
async fn what_has_to_be_constant_is() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    ask(
        &mut session,
        "prepare page (int, int, int) as select id, sum(id) over (order by id rows $3 preceding) from item order by id limit $1 offset $2",
    )
    .await;
    for (given, expected) in [
        ("2, 0, 1", "1|1 2|3"),
        ("2, 0, 1", "1|1 2|3"),
        ("2, 0, 1", "1|1 2|3"),
        ("3, 1, 1", "2|3 3|5 4|7"),
        ("3, 1, 2", "2|3 3|6 4|9"),
        ("2, 0, 1", "1|1 2|3"),
        ("null, 8, 0", "9|9 10|10"),
        ("-1, 0, 1", "2201W"),
        ("1, -1, 1", "2201X"),
        ("2, 0, 1", "1|1 2|3"),
    ] {
        assert_eq!(
            ask(&mut session, &format!("execute page ({given})")).await,
            expected,
            "{given}"
        );
    }
    ask(
        &mut session,
        "prepare listed (int) as select g, count(*) over () from generate_series(1, $1) g where g % 2 = 0",
    )
    .await;
    for (given, expected) in [("4", "2|2 4|2"), ("4", "2|2 4|2"), ("6", "2|3 4|3 6|3"), ("1", "")] {
        assert_eq!(ask(&mut session, &format!("execute listed ({given})")).await, expected);
    }
}

#[tokio::test]
async fn definitions_and_rights_make_them_anew() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    ask(&mut session, RANKED).await;
    for _ in 0..3 {
        ask(&mut session, "execute ranked (0)").await;
    }
    ask(&mut session, "alter table item rename column price to cost; alter table item add column price int default 1").await;
    ask(&mut session, "update item set price = -id").await;
    assert_eq!(ask(&mut session, "execute ranked (0)").await, "3|1 6|2 9|3");
    ask(&mut session, "create index on item (price)").await;
    assert_eq!(ask(&mut session, "execute ranked (0)").await, "3|1 6|2 9|3");
    ask(&mut session, "create role reader; grant select on part to reader; set role reader").await;
    assert_eq!(ask(&mut session, "execute ranked (0)").await, "42501");
    ask(&mut session, "reset role; alter table item enable row level security").await;
    ask(&mut session, "grant select on item to reader").await;
    assert_eq!(ask(&mut session, "execute ranked (0)").await, "3|1 6|2 9|3");
    ask(&mut session, "set role reader").await;
    for _ in 0..3 {
        assert_eq!(
            ask(&mut session, "execute ranked (0)").await,
            "",
            "no policy lets a row through"
        );
    }
    ask(&mut session, "reset role; create policy p on item using (id > 3); set role reader").await;
    for _ in 0..3 {
        assert_eq!(ask(&mut session, "execute ranked (0)").await, "6|1 9|2");
    }
}

/// Joins tell scans their keys in every execution, and keep none of those before.
#[tokio::test]
async fn joins_and_subqueries_start_anew() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    for (name, sql) in [
        (
            "joined",
            "select i.id, count(*), sum(count(*)) over () from item i join part p on p.item = i.id where i.kind = $1 group by i.id order by 1",
        ),
        (
            "outer_join",
            "select i.id, count(p.n), sum(count(*)) over () from item i left join part p on p.item = i.id and p.n > 5 where i.kind = $1 group by i.id order by 1",
        ),
        (
            "nested",
            "select i.id, count(*), sum(count(*)) over () from item i join part p on p.item <= i.id and p.item >= i.id where i.kind = $1 group by i.id order by 1",
        ),
        (
            "crossed",
            "select i.id, count(*), sum(count(*)) over () from item i, (select n from part where item = 1) p where i.kind = $1 group by i.id order by 1",
        ),
        (
            "scalar",
            "select i.id, (select max(id) from item where kind = $1), row_number() over (order by id) from item i where kind = $1 and id < (select max(id) from item where kind = $1) order by 1",
        ),
        (
            "within",
            "select i.id, count(*) over () from item i where kind = $1 and id in (select item from part where n = 2 and item > $1) order by 1",
        ),
        (
            "both",
            "select id, count(*) over () from item where kind = $1 union all select item, n from part where item = $1 order by 1, 2",
        ),
        (
            "topped",
            "select id, row_number() over (order by price) from item where kind = $1 order by id desc limit 2",
        ),
        (
            "union_window",
            "select c, row_number() over (partition by c order by x), (select max(id) from item where id > $1) from (select kind as c, id as x from item where kind = 1 union all select item, n from part where item = 1) u order by 1, 2",
        ),
        (
            "union_twice",
            "select c, row_number() over (partition by c order by x) from (select kind as c, id as x from item where kind = 1 union all select item, n from part where item = 1) u where x > $1 union all select 1, 2 order by 1, 2",
        ),
        (
            "grouped",
            "select kind, sum(price), count(distinct id), row_number() over (order by kind) from item where kind >= $1 group by rollup (kind) order by 1, 2",
        ),
    ] {
        ask(&mut session, &format!("prepare {name} (int) as {sql}")).await;
        for given in [0, 1, 2, 0, 5, 1] {
            let plain = sql.replace("$1", &given.to_string());
            ask(&mut session, "set telesto.text_cache = off").await;
            let expected = ask(&mut session, &plain).await;
            ask(&mut session, "reset telesto.text_cache").await;
            let got = ask(&mut session, &format!("execute {name} ({given})")).await;
            assert_eq!(got, expected, "{name} ({given})");
        }
        assert!(kept(&mut session, name).await >= 1, "{name}");
    }
}

/// Two portals of one statement are open at once: the second is planned for itself.
#[tokio::test]
async fn one_execution_at_a_time_has_them() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    let sql = "select id, count(*) over () from item where kind = $1 order by id";
    let prepared = session.prepare(sql, &[]).await.expect("prepares");
    for kind in [0, 1, 0] {
        let given = vec![Datum::Int4(kind)];
        let Ok(StatementResult::Rows { rows, .. }) = session.execute(&prepared, given).await else {
            panic!("rows");
        };
        assert_eq!(rows.collect().await.expect("rows").len(), if kind == 0 { 3 } else { 4 });
        session.sync().await.expect("ends");
    }
    ask(&mut session, "begin").await;
    let begun = async |session: &mut Session, kind: i32| match session
        .execute(&prepared, vec![Datum::Int4(kind)])
        .await
    {
        Ok(StatementResult::Rows { rows, .. }) => rows,
        other => panic!("{other:?}"),
    };
    let first = begun(&mut session, 0).await;
    let second = begun(&mut session, 1).await;
    let second = second.collect().await.expect("rows");
    let first = first.collect().await.expect("rows");
    let ids = |rows: Vec<telesto_sql::types::Row>| {
        rows.into_iter().map(|row| row[0].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(first), [3, 6, 9].map(Datum::Int4));
    assert_eq!(ids(second), [1, 4, 7, 10].map(Datum::Int4));
}

#[tokio::test]
async fn what_fails_leaves_nothing_behind() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    ask(
        &mut session,
        "prepare divided (int) as select id, count(*) over (), 10 / (id - $1) from item where kind = 1 order by id",
    )
    .await;
    let good = "1|4|-10 4|4|5 7|4|2 10|4|1";
    for (given, expected) in [
        ("2", good),
        ("2", good),
        ("2", good),
        ("4", "22012"),
        ("2", good),
        ("4", "22012"),
        ("2", good),
    ] {
        assert_eq!(ask(&mut session, &format!("execute divided ({given})")).await, expected);
    }
    assert!(kept(&mut session, "divided").await >= 4);
    // A branch that is not taken is not computed, whatever the parameters.
    ask(
        &mut session,
        "prepare guarded (int) as select id, count(*) over (), case when $1 = 0 then 0 else 10 / $1 end from item where id = 1",
    )
    .await;
    for (given, expected) in [("5", "1|1|2"), ("5", "1|1|2"), ("0", "1|1|0"), ("2", "1|1|5")] {
        assert_eq!(ask(&mut session, &format!("execute guarded ({given})")).await, expected);
    }
}

#[tokio::test]
async fn modes_are_those_of_postgres() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    ask(&mut session, "set plan_cache_mode = force_custom_plan").await;
    ask(&mut session, RANKED).await;
    for _ in 0..4 {
        ask(&mut session, "execute ranked (0)").await;
    }
    assert_eq!(kept(&mut session, "ranked").await, 0);
    ask(&mut session, "set plan_cache_mode = force_generic_plan").await;
    for _ in 0..4 {
        assert_eq!(ask(&mut session, "execute ranked (1)").await, "1|4 4|3 7|2 10|1");
    }
    assert_eq!(kept(&mut session, "ranked").await, 3);
    ask(&mut session, "reset plan_cache_mode").await;
    for _ in 0..40 {
        assert_eq!(ask(&mut session, "execute ranked (1)").await, "1|4 4|3 7|2 10|1");
        assert_eq!(ask(&mut session, "execute ranked (2)").await, "2|3 5|2 8|1");
    }
    assert!(kept(&mut session, "ranked").await > 3, "by itself, too");
}

/// What a text says of a time is read when it is computed, whatever it is inside of.
#[tokio::test]
async fn words_of_time_are_read_each_time() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    for (name, value) in [
        ("plain", "'now'::text::timestamp"),
        ("made", "('no' || 'w')::timestamp"),
        ("listed", "array['now']::timestamp[]"),
        ("text_of_array", "'{now}'::text::timestamptz[]"),
        ("bounded", "'[now,]'::text::tsrange"),
        ("literal", "timestamp 'now'"),
    ] {
        let sql = format!("prepare {name} as select {value}, count(*) over () from item limit 1");
        assert_eq!(ask(&mut session, &sql).await, "");
        let mut before = String::new();
        for _ in 0..3 {
            let now = ask(&mut session, &format!("execute {name}")).await;
            assert!(now.ends_with("|10"), "{name}: {now}");
            assert_ne!(now, before, "{name}");
            before = now;
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
}

/// Values that are equal and not the same make other frames, and look different.
#[tokio::test]
async fn constants_are_compared_to_the_bit() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    ask(&mut session, "create table m (d date, n int)").await;
    ask(&mut session, "insert into m values ('2024-01-31', 1), ('2024-02-29', 2), ('2024-03-01', 4), ('2024-03-31', 8)").await;
    ask(&mut session, "prepare framed (interval) as select sum(n) over (order by d range between $1 preceding and current row) from m order by d").await;
    for (given, expected) in [
        ("30 days", "1 3 7 12"),
        ("30 days", "1 3 7 12"),
        ("1 month", "1 3 6 14"),
        ("30 days", "1 3 7 12"),
    ] {
        assert_eq!(ask(&mut session, &format!("execute framed ('{given}')")).await, expected);
    }
    ask(&mut session, "prepare before (numeric) as select lag(n::numeric, 1, $1) over (order by d) from m order by d limit 1").await;
    for given in ["1.0", "1.0", "1.00", "1.0"] {
        assert_eq!(ask(&mut session, &format!("execute before ({given})")).await, given);
    }
}

/// What the first execution asks for does not decide what later ones may read.
#[tokio::test]
async fn null_at_first_leaves_the_index_to_others() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    ask(&mut session, "create table wide (id int primary key, k int)").await;
    ask(&mut session, "create index on wide (k)").await;
    ask(&mut session, "insert into wide select g, g from generate_series(1, 3000) g; analyze wide")
        .await;
    for (name, condition) in [
        ("equal", "k = $1"),
        ("optional", "($1::int is null or k = $1) and id > 0 and $1 is not null"),
        ("coalesced", "k = coalesce($1, -1)"),
    ] {
        let sql = format!(
            "prepare {name} (int) as select id, count(*) over () from wide where {condition}"
        );
        assert_eq!(ask(&mut session, &sql).await, "");
        assert_eq!(ask(&mut session, &format!("execute {name} (null)")).await, "");
        let read = "select seq_scan from pg_stat_user_tables where relname = 'wide'";
        let before = ask(&mut session, read).await;
        for n in [7, 8, 9] {
            assert_eq!(ask(&mut session, &format!("execute {name} ({n})")).await, format!("{n}|1"));
        }
        assert_eq!(ask(&mut session, read).await, before, "{name}: led by an index");
        assert!(kept(&mut session, name).await >= 2, "{name}");
    }
}

/// Numbers of another width than the column's, and types that are compared by sort keys, find their
/// ranges.
#[tokio::test]
async fn parameters_lead_to_ranges_of_indexes() {
    let mut session = session().await.expect("opens");
    ask(&mut session, "create table wide (id int primary key, code numeric(10,2), name text)")
        .await;
    ask(&mut session, "create index on wide (code); create index on wide (name)").await;
    ask(
        &mut session,
        "insert into wide select g, g * 0.5, 'n' || g from generate_series(1, 3000) g; analyze wide",
    )
    .await;
    for (name, types, condition) in [
        ("by_id", "bigint", "id = $1"),
        ("by_code", "numeric", "code = $1"),
        ("by_name", "text", "name = 'n' || $1"),
        ("between_ids", "int", "id between $1 and $1 + 1"),
    ] {
        let sql = format!(
            "prepare {name} ({types}) as select id, count(*) over () from wide where {condition} order by id"
        );
        ask(&mut session, &sql).await;
        let given = |n: i32| match types {
            "text" => format!("'{n}'"),
            _ => n.to_string(),
        };
        for n in [10, 20, 30, 40, 4] {
            let rows = ask(&mut session, &format!("execute {name} ({})", given(n))).await;
            let expected = match name {
                "by_code" => format!("{}|1", n * 2),
                "between_ids" => format!("{n}|2 {}|2", n + 1),
                _ => format!("{n}|1"),
            };
            assert_eq!(rows, expected, "{name} ({n})");
        }
        // Statistics that become known make them anew.
        assert!(kept(&mut session, name).await >= 3, "{name}");
    }
    let read = "select idx_scan from pg_stat_user_tables where relname = 'wide'";
    let scans: u64 = ask(&mut session, read).await.parse().expect("a number");
    assert!(scans >= 20, "{scans}: each execution is led by an index");
}

/// Of many statements the first ones are kept, until their memory is used up: the answers are those
/// of any execution.
#[tokio::test]
async fn what_comes_when_the_memory_is_full_is_planned_each_time() {
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let options = SqlOptions { memory_bytes: 8 << 20, ..SqlOptions::default() };
    let engine = SqlEngine::open(database, env, options).await.expect("opens");
    let mut session = engine.session(SessionOptions::default()).await.expect("opens");
    tables(&mut session).await;
    for n in 0..60 {
        ask(&mut session, &RANKED.replace("ranked", &format!("ranked_{n}"))).await;
        for (given, expected) in [("0", "3|3 6|2 9|1"), ("1", "1|4 4|3 7|2 10|1")] {
            let sql = format!("execute ranked_{n} ({given})");
            assert_eq!(ask(&mut session, &sql).await, expected, "{sql}");
        }
    }
    assert_eq!(kept(&mut session, "ranked_0").await, 1);
    assert_eq!(kept(&mut session, "ranked_59").await, 0, "there was no room any more");
    ask(&mut session, "deallocate ranked_0").await;
    ask(&mut session, RANKED).await;
    for _ in 0..3 {
        assert_eq!(ask(&mut session, "execute ranked (2)").await, "2|3 5|2 8|1");
    }
    assert_eq!(kept(&mut session, "ranked").await, 2, "it has the room of the one that is gone");
}

/// A cancel in the middle of an execution ends it, and the next has the operators again.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_execution_leaves_nothing_behind() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    ask(
        &mut session,
        "prepare crossed (int) as select count(*), count(*) over () from part a, part b, part c, part d, part e, part f where a.item > $1 and b.n + c.n + d.n + e.n + f.n > 0",
    )
    .await;
    for _ in 0..2 {
        assert_eq!(ask(&mut session, "execute crossed (10)").await, "0|1");
        let handle = session.cancel_handle();
        let cancel = tokio::spawn(async move {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            handle.cancel();
        });
        assert_eq!(ask(&mut session, "execute crossed (0)").await, "57014");
        cancel.await.expect("cancels");
        assert_eq!(ask(&mut session, "execute crossed (10)").await, "0|1");
    }
    assert!(kept(&mut session, "crossed").await >= 4, "they serve on");
}

/// A session's own tables beside the database's: what is kept goes by what they hold now, and by
/// another table of the name.
#[tokio::test]
async fn temporary_tables_are_read_as_they_are() {
    let mut session = session().await.expect("opens");
    tables(&mut session).await;
    ask(&mut session, "create temp table chosen (id int)").await;
    ask(
        &mut session,
        "prepare chosen (int) as select id, count(*) over () from chosen join item using (id) where id > $1 order by id",
    )
    .await;
    for (change, expected) in [
        ("insert into chosen values (1), (2)", "1|2 2|2"),
        ("insert into chosen values (3)", "1|3 2|3 3|3"),
        ("delete from chosen where id = 1", "2|2 3|2"),
        ("truncate chosen", ""),
        ("insert into chosen values (7)", "7|1"),
    ] {
        assert_eq!(ask(&mut session, change).await, "");
        for _ in 0..2 {
            assert_eq!(ask(&mut session, "execute chosen (0)").await, expected, "{change}");
        }
    }
    ask(&mut session, "drop table chosen").await;
    assert_eq!(ask(&mut session, "execute chosen (0)").await, "42P01");
    ask(&mut session, "create temp table chosen as select 9 as id").await;
    assert_eq!(ask(&mut session, "execute chosen (0)").await, "9|1");
}
