//! Latency inside the server: from bound parameters to the encoded reply, without the socket.
//!
//! # Purpose
//! What a prepared statement costs between Bind and ReadyForQuery: transaction, plan from its
//! cache, execution, encoding of the rows in binary, end of the transaction. A point read, and key
//! joins. `cargo bench -p telesto-bench --bench latency`.
//!
//! # Limits
//! One session on one thread; rows are in the caches. A local folder with a quorum log of one
//! server, the default of `telesto start`.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    missing_docs,
    reason = "the outermost layer: it measures real time and may stop at the first error"
)]

#[path = "../../crates/telesto/src/allocator.rs"]
mod allocator;
mod server;

use criterion::{Criterion, criterion_group, criterion_main};
use telesto::open::Opened;
use telesto_server::wire::backend::Output;
use telesto_sql::{Datum, Session, SessionOptions};
use telesto_txn::Database as _;
use tokio::runtime::Runtime;

use server::{database, reply, run};

/// Customers; each has 4 orders of 3 lines.
const CUSTOMERS: i64 = 10_000;

async fn load(opened: &Opened) -> Session {
    let mut session = opened.sql.session(SessionOptions::default()).await.unwrap();
    run(
        &mut session,
        "create table customer (id int primary key, name text not null, city text, balance numeric(12,2)); \
         create table orders (id int primary key, customer_id int not null references customer, placed timestamptz, total int); \
         create index orders_customer on orders (customer_id); \
         create table line (order_id int references orders, n int, item text, qty int, primary key (order_id, n))",
    )
    .await;
    let fill = [
        format!(
            "insert into customer select n, 'customer ' || n, 'city ' || n % 100, n from generate_series(1, {CUSTOMERS}) n"
        ),
        format!(
            "insert into orders select n, n % {CUSTOMERS} + 1, '2026-01-01', n from generate_series(1, {CUSTOMERS} * 4) n"
        ),
        format!(
            "insert into line select n / 3 + 1, n % 3, 'item ' || n, n % 7 from generate_series(0, {CUSTOMERS} * 12 - 1) n"
        ),
    ];
    for sql in fill {
        run(&mut session, &sql).await;
    }
    opened.engine.fold().await.unwrap();
    session
}

struct Case {
    name: &'static str,
    sql: &'static str,
    rows: usize,
}

const CASES: &[Case] = &[
    Case {
        name: "point read",
        sql: "select name, city, balance from customer where id = $1",
        rows: 1,
    },
    Case {
        name: "key join, depth 1, 4 rows",
        sql: "select c.name, o.id, o.total from customer c join orders o on o.customer_id = c.id where c.id = $1",
        rows: 4,
    },
    Case {
        name: "key join, depth 2, 12 rows",
        sql: "select c.name, o.id, l.n, l.item, l.qty from customer c join orders o on o.customer_id = c.id \
              join line l on l.order_id = o.id where c.id = $1",
        rows: 12,
    },
];

fn latency(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (opened, mut session) = runtime.block_on(async {
        let opened = database(folder.path(), 1 << 30).await;
        let session = load(&opened).await;
        (opened, session)
    });
    let mut output = Output::default();
    for case in CASES {
        // `key` refuses what would not be measured here.
        for executor in ["key", "datafusion"] {
            if executor == "datafusion" && case.rows != 12 {
                continue;
            }
            let prepared = runtime.block_on(async {
                run(&mut session, &format!("set telesto.executor = {executor}")).await;
                session.prepare(case.sql, &[]).await.unwrap()
            });
            let name = if executor == "key" { case.name } else { "the same by DataFusion" };
            let mut key = 0;
            c.bench_function(name, |b| {
                b.iter(|| {
                    key = key % CUSTOMERS + 1;
                    let parameters = vec![Datum::Int4(i32::try_from(key).unwrap())];
                    let work = reply(&mut session, &prepared, parameters, &mut output);
                    assert_eq!(runtime.block_on(work), case.rows, "{name}");
                });
            });
        }
    }
    runtime.block_on(run(&mut session, "set telesto.executor = key"));
    let mut key = 0;
    c.bench_function("point read, simple protocol", |b| {
        b.iter(|| {
            key = key % CUSTOMERS + 1;
            let sql = format!("select name, city, balance from customer where id = {key}");
            runtime.block_on(run(&mut session, &sql));
        });
    });
    session.close();
    runtime.block_on(opened.engine.shutdown()).unwrap();
}

criterion_group!(benches, latency);
criterion_main!(benches);
