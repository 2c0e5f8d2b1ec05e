//! SQL text: parsed, bound and planned, never run (a statement may rightly run for ever).
//!
//! # Invariants
//! Any text gives a plan or an error that names a SQLSTATE, in bounded memory and stack.
//!
//! # On failure
//! Panics: the finding.

use std::cell::RefCell;
use std::sync::Arc;

use telesto_sql::expr::type_name::parse_type_name;
use telesto_sql::{
    ResultSink, Session, SessionOptions, SqlEngine, SqlOptions, SqlState, StatementResult,
};
use telesto_txn::memory::MemoryDatabase;
use tokio::runtime::Runtime;

use crate::Target;

pub(crate) fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "sql",
            run: sql,
            seeds: || SEEDS.iter().map(|text| text.as_bytes().to_vec()).collect(),
            words: WORDS,
            memory_bytes: 64 << 20,
            runs: 600,
        },
        Target {
            name: "type_name",
            run: |bytes| {
                if let Ok(text) = std::str::from_utf8(bytes)
                    && let Ok(ty) = parse_type_name(text)
                {
                    let again = parse_type_name(&ty.to_string());
                    assert_eq!(again.ok(), Some(ty), "{text:?}");
                }
            },
            seeds: || {
                [
                    "int4",
                    "numeric(10,2)[]",
                    "timestamp(3) with time zone",
                    "varchar(20)",
                    "\"char\"",
                    "int[3][4]",
                ]
                .map(|text| text.as_bytes().to_vec())
                .to_vec()
            },
            words: &[
                "int",
                "[]",
                "(",
                ")",
                ",",
                "\"",
                "character varying",
                "interval",
                "99999999999",
                ".",
            ],
            memory_bytes: 1 << 20,
            runs: 10_000,
        },
    ]
}

const TABLES: &str = "
    create table t (id bigint primary key, a int default 7, b text not null, c numeric(10,2), d jsonb,
        e int[], f timestamptz, g bytea, check (a > 0));
    create table u (id int primary key, t_id bigint references t, name varchar(20) unique);
    create index u_t on u (t_id);
    create view v as select u.name, t.b from u join t on t.id = u.t_id;
    create sequence s;";

const SEEDS: &[&str] = &[
    "select 1",
    "select a, b || 'x', c * 2.5 from t where id = $1 and a between 1 and 10 order by b desc limit 5",
    "select t.b, count(*) filter (where u.id > 3) from t left join u on u.t_id = t.id group by 1 having count(*) > 1",
    "with recursive r(n) as (select 1 union all select n + 1 from r where n < 10) select sum(n) from r",
    "select *, row_number() over (partition by t_id order by id) from u where name like 'a%' and exists (select 1 from t)",
    "insert into t (id, b, e) values (1, 'x', array[1,2,null]), ($1, $2, $3) on conflict (id) do update set b = excluded.b returning *",
    "update t set a = a + 1, d = d || '{\"k\": [1, 2]}' where d->>'k' = 'v' and e @> array[1]",
    "delete from u using t where u.t_id = t.id and t.f < now() - interval '1 day' returning u.*",
    "create table w (x int primary key, y text collate \"C\" default 'z', foreign key (x) references t (id) on delete cascade)",
    "alter table t add column h numeric(5) not null default 3, drop column c, alter a type bigint using a::bigint",
    "create unique index concurrently i on t (lower(b), a desc nulls last) where a is not null",
    "begin isolation level serializable; set local search_path = public; commit",
    "copy t (id, b) from stdin with (format csv, header, delimiter ';')",
    "explain (analyze, format json) select case when a = any(e) then b else coalesce(b, '') end from t",
    "select cast('2024-01-01' as date) + 1, extract(epoch from f), to_char(f, 'YYYY-MM-DD') from t",
    "select '{\"a\":1}'::jsonb -> 'a', E'\\n\\x41', $q$text$q$, U&'\\0041', b'101', x'ff', 1e10, .5, 0x1f from v",
    "select distinct on (a) a, (select max(id) from u) from t union select 1, 2 intersect select 3, 4 except values (5, 6)",
    "select sum(a) over w, lag(b, 1) over w from t window w as (order by id rows between 1 preceding and current row)",
    "declare c cursor for select 1; fetch 5 from c; close c",
    "prepare p (int) as select $1; execute p (3); deallocate p",
    "select nextval('s'), generate_series(1, 3), unnest(e) from t, lateral (select a) as l",
];

const WORDS: &[&str] = &[
    "select ",
    " from ",
    " where ",
    "(",
    ")",
    ",",
    "*",
    "'",
    "\"",
    "$1",
    "$2",
    "::",
    "::int",
    "::jsonb",
    "::text[]",
    " union all ",
    " order by ",
    " group by ",
    " join ",
    " left join ",
    " on ",
    " as ",
    " is null ",
    " in (",
    " and ",
    " or ",
    " not ",
    " null ",
    " case when ",
    " then ",
    " end ",
    " exists (",
    " any(",
    " limit ",
    " offset ",
    " with ",
    " returning *",
    " insert into t ",
    " values (",
    " update t set ",
    " delete from t ",
    "create table ",
    "alter table t ",
    "drop table ",
    " default ",
    " primary key",
    " references t",
    " check (",
    "array[",
    "[1:2]",
    "->",
    "->>",
    "@>",
    "||",
    " ~ ",
    " like ",
    " between ",
    " over (",
    "count(*)",
    "sum(a)",
    "coalesce(",
    "now()",
    "generate_series(",
    "repeat('x', ",
    "9999999999",
    "1e400",
    "0.1",
    ";",
    "--",
    "/*",
    "*/",
    "t.",
    "u.",
    "id",
    "a",
    "b",
    "interval '1 day'",
    " filter (where ",
    " distinct ",
    "row(",
    " collate \"C\"",
    " at time zone 'UTC'",
];

struct Planner {
    runtime: Runtime,
    session: Session,
}

/// Statements planned before a session is replaced, so that one keeps no more than a client's
/// would.
const PLANNED: u32 = 200;

thread_local! {
    static PLANNER: RefCell<Option<(Arc<SqlEngine>, Planner, u32)>> = const { RefCell::new(None) };
}

/// Takes what a statement gives and drops it.
struct Nowhere;

#[async_trait::async_trait]
impl ResultSink for Nowhere {
    async fn result(&mut self, _: StatementResult) -> Result<(), telesto_sql::Error> {
        Ok(())
    }
}

fn planner() -> (Arc<SqlEngine>, Planner, u32) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let (engine, session) = runtime.block_on(async {
        let env = telesto_runtime::env();
        let database = Arc::new(MemoryDatabase::new(env.clone()));
        let engine = SqlEngine::open(database, env, SqlOptions::default()).await.expect("opens");
        let mut session = engine.session(SessionOptions::default()).await.expect("a session");
        session.execute_simple(TABLES, &mut Nowhere).await.expect("tables");
        (engine, session)
    });
    (engine, Planner { runtime, session }, 0)
}

fn sql(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    PLANNER.with_borrow_mut(|slot| {
        let (engine, planner, planned) = slot.get_or_insert_with(self::planner);
        *planned += 1;
        if planned.is_multiple_of(PLANNED) {
            let session = planner.runtime.block_on(engine.session(SessionOptions::default()));
            planner.session = session.expect("a session");
        }
        planner.runtime.block_on(async {
            match planner.session.prepare(text, &[]).await {
                Ok(prepared) => assert!(prepared.parameter_types.len() <= 65_535, "{text:?}"),
                Err(error) => {
                    assert_ne!(error.code(), SqlState::INTERNAL_ERROR, "{text:?}: {error}");
                    planner.session.sync().await.expect("the session goes on");
                }
            }
        });
    });
}
