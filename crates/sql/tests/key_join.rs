//! Key joins: the same answers as the other executor, requests level by level, phantoms as
//! conflicts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use proptest::prelude::*;
use telesto_common::key::KeyRange;
use telesto_common::{Lsn, Timestamp, TxnId};
use telesto_sql::{
    ResultSink, Session, SessionOptions, SqlEngine, SqlOptions, StatementResult, types::TextStyle,
};
use telesto_txn::memory::MemoryDatabase;
use telesto_txn::{
    Committed, Database, LogKind, Outcome, ReadFor, Savepoint, Scan, ScanOptions, Transaction,
    TryClaim, TxnOptions,
};

#[derive(Default)]
struct Collect {
    lines: Vec<String>,
}

#[async_trait]
impl ResultSink for Collect {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        let StatementResult::Rows { columns, rows, .. } = result else { return Ok(()) };
        for row in rows.collect().await? {
            let shown: Vec<String> = row
                .iter()
                .zip(columns.iter())
                .map(|(value, column)| {
                    if value.is_null() {
                        "NULL".to_owned()
                    } else {
                        value.to_text(&column.ty, &TextStyle::default())
                    }
                })
                .collect();
            self.lines.push(shown.join("|"));
        }
        Ok(())
    }
}

/// Requests of the transactions of a database.
#[derive(Debug, Default)]
struct Counts {
    gets: AtomicUsize,
    batches: AtomicUsize,
    keys: AtomicUsize,
    scans: AtomicUsize,
    rows: AtomicUsize,
}

struct CountingScan(Box<dyn Scan>, Arc<Counts>);

#[async_trait]
impl Scan for CountingScan {
    async fn next_batch(&mut self, max_rows: usize) -> telesto_txn::Result<Vec<(Bytes, Bytes)>> {
        let rows = self.0.next_batch(max_rows).await?;
        self.1.rows.fetch_add(rows.len(), Ordering::Relaxed);
        Ok(rows)
    }
}

#[derive(Debug)]
struct Counting(MemoryDatabase, Arc<Counts>);

#[async_trait]
impl Database for Counting {
    async fn begin(&self, options: TxnOptions) -> telesto_txn::Result<Arc<dyn Transaction>> {
        Ok(Arc::new(CountingTransaction(self.0.begin(options).await?, Arc::clone(&self.1))))
    }

    async fn outcome(&self, txn: TxnId) -> telesto_txn::Result<Outcome> {
        self.0.outcome(txn).await
    }

    fn hear(&self, sink: std::sync::Weak<dyn telesto_txn::MessageSink>) {
        self.0.hear(sink);
    }

    fn applied(&self) -> (Lsn, Timestamp) {
        self.0.applied()
    }

    fn cluster(&self) -> telesto_txn::ClusterView {
        self.0.cluster()
    }

    async fn space(&self) -> telesto_txn::Result<telesto_txn::Space> {
        self.0.space().await
    }

    async fn switch_log(&self, to: LogKind) -> telesto_txn::Result<()> {
        self.0.switch_log(to).await
    }

    async fn shutdown(&self) -> telesto_txn::Result<()> {
        self.0.shutdown().await
    }
}

#[derive(Debug)]
struct CountingTransaction(Arc<dyn Transaction>, Arc<Counts>);

#[async_trait]
impl Transaction for CountingTransaction {
    fn id(&self) -> TxnId {
        self.0.id()
    }

    fn options(&self) -> &TxnOptions {
        self.0.options()
    }

    fn snapshot(&self) -> Timestamp {
        self.0.snapshot()
    }

    async fn next_statement(&self) -> telesto_txn::Result<()> {
        self.0.next_statement().await
    }

    async fn claim(&self, keys: &[Bytes]) -> telesto_txn::Result<()> {
        self.0.claim(keys).await
    }

    fn try_claim(&self, keys: &[Bytes]) -> telesto_txn::Result<Vec<TryClaim>> {
        self.0.try_claim(keys)
    }

    async fn get(&self, key: &[u8], read_for: ReadFor) -> telesto_txn::Result<Option<Bytes>> {
        self.1.gets.fetch_add(1, Ordering::Relaxed);
        self.0.get(key, read_for).await
    }

    async fn get_many(
        &self,
        keys: &[Bytes],
        read_for: ReadFor,
    ) -> telesto_txn::Result<Vec<Option<Bytes>>> {
        self.1.batches.fetch_add(1, Ordering::Relaxed);
        self.1.keys.fetch_add(keys.len(), Ordering::Relaxed);
        self.0.get_many(keys, read_for).await
    }

    // Nothing is in memory: what would be a request is one.
    fn try_get(&self, _: &[u8], _: ReadFor) -> Option<telesto_txn::Result<Option<Bytes>>> {
        None
    }

    fn scan(&self, range: KeyRange, options: ScanOptions) -> Box<dyn Scan> {
        self.1.scans.fetch_add(1, Ordering::Relaxed);
        Box::new(CountingScan(self.0.scan(range, options), Arc::clone(&self.1)))
    }

    fn view(&self) -> Arc<dyn Transaction> {
        Arc::new(Self(self.0.view(), Arc::clone(&self.1)))
    }

    async fn put(&self, key: Bytes, value: Bytes) -> telesto_txn::Result<()> {
        self.0.put(key, value).await
    }

    async fn delete(&self, key: Bytes) -> telesto_txn::Result<()> {
        self.0.delete(key).await
    }

    fn savepoint(&self) -> telesto_txn::Result<Savepoint> {
        self.0.savepoint()
    }

    fn rollback_to(&self, savepoint: Savepoint) -> telesto_txn::Result<()> {
        self.0.rollback_to(savepoint)
    }

    fn has_written(&self) -> bool {
        self.0.has_written()
    }

    async fn confirm(&self) -> telesto_txn::Result<()> {
        self.0.confirm().await
    }

    fn tell(&self, messages: Vec<Bytes>) -> telesto_txn::Result<()> {
        self.0.tell(messages)
    }

    async fn commit(&self) -> telesto_txn::Result<Committed> {
        self.0.commit().await
    }

    fn rollback(&self) {
        self.0.rollback();
    }
}

async fn engine(database: Arc<dyn Database>) -> Arc<SqlEngine> {
    SqlEngine::open(database, telesto_runtime::env(), SqlOptions::default()).await.expect("opens")
}

async fn open(engine: &Arc<SqlEngine>) -> Session {
    engine.session(SessionOptions::default()).await.expect("a session")
}

async fn session() -> Session {
    open(&engine(Arc::new(MemoryDatabase::new(telesto_runtime::env()))).await).await
}

/// The rows; an error as `SQLSTATE message`.
async fn ask(session: &mut Session, sql: &str) -> Result<Vec<String>, String> {
    let mut sink = Collect::default();
    match session.execute_simple(sql, &mut sink).await {
        Ok(()) => Ok(sink.lines),
        Err(error) => Err(format!("{} {}", error.code(), error.message())),
    }
}

async fn must(session: &mut Session, sql: &str) -> Vec<String> {
    ask(session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The rows by the executor; unordered ones sorted, so that they compare as multisets.
async fn by(session: &mut Session, executor: &str, sql: &str) -> Result<Vec<String>, String> {
    must(session, &format!("set telesto.executor = {executor}")).await;
    let mut rows = ask(session, sql).await?;
    if !sql.contains("order by") {
        rows.sort();
    }
    Ok(rows)
}

const SHOP: &str = "\
    create table customer (id int primary key, email text unique, city text, boss int); \
    create index customer_boss on customer (boss); \
    create table item (isbn varchar(8) primary key, title text, price numeric(8,2)); \
    create table orders (id bigint primary key, customer_id int references customer, placed date, note text); \
    create index orders_customer on orders (customer_id, placed); \
    create table line (order_id bigint, n smallint, isbn varchar(8), qty int, primary key (order_id, n)); \
    create index line_isbn on line (isbn); \
    insert into customer values (1, 'a@x', 'Bern', null), (2, 'b@x', 'Rome', 1), (3, null, 'Bern', 1), (4, 'd@x', null, 2); \
    insert into item values ('A', 'Alpha', 10.00), ('B', 'Beta', 5.50), ('C', 'Gamma', null); \
    insert into orders values (10, 1, '2024-01-01', 'x'), (11, 1, '2024-02-01', null), (12, 2, '2024-01-15', 'y'), \
        (13, null, '2024-03-01', 'z'), (14, 1, null, 'w'); \
    insert into line values (10, 1, 'A', 2), (10, 2, 'B', 1), (11, 1, 'A', 5), (12, 1, 'C', 1), (12, 2, null, 7), (14, 1, 'Z', 1);";

/// Queries the key path takes.
const TAKEN: &[&str] = &[
    "select o.id, c.email from orders o join customer c on c.id = o.customer_id where o.id = 10",
    "select c.id, o.id from customer c join orders o on o.customer_id = c.id where c.id = 1 order by o.id",
    "select c.id, o.id from customer c, orders o where o.customer_id = c.id and c.email = 'a@x'",
    "select c.id, o.id, l.n, i.title from customer c join orders o on o.customer_id = c.id join line l on l.order_id = o.id \
     join item i on i.isbn = l.isbn where c.id = 1 order by o.id desc, l.n",
    "select c.id, o.id from customer c left join orders o on o.customer_id = c.id where c.id in (1, 2, 3, 4) order by c.id, o.id",
    "select c.id, o.id from customer c left join orders o on o.customer_id = c.id and o.note = 'x' where c.id in (1, 2, 3)",
    "select c.id, o.id from customer c left join orders o on o.customer_id = c.id where c.id in (1, 2, 3) and o.note is null",
    "select c.id from customer c left join orders o on o.customer_id = c.id where c.id in (1, 2, 3, 4) and o.id is null",
    "select o.id, l.n, i.title from orders o left join line l on l.order_id = o.id left join item i on i.isbn = l.isbn \
     where o.id between 10 and 14 order by o.id, l.n",
    "select o.id, l.n, i.title from orders o left join line l on l.order_id = o.id join item i on i.isbn = l.isbn \
     where o.id between 10 and 14",
    "select * from orders o join customer c on c.id = o.customer_id where o.id = 12",
    "select c.*, o.note from orders o join customer c on c.id = o.customer_id where o.id = 12",
    "select * from customer a join customer b on b.boss = a.id where a.id = 1 order by b.id",
    "select a.id, b.id, d.id from customer a join customer b on b.boss = a.id join customer d on d.boss = b.id where a.id = 1",
    "select * from item join line using (isbn) where item.isbn = 'A' order by order_id",
    "select id, a.n, isbn from line a join line b using (isbn) join orders o on o.id = a.order_id where a.order_id = 10",
    "select isbn, a.n, b.order_id from line a left join line b using (isbn) where a.order_id = 10 order by isbn, b.order_id",
    "select count(*), sum(l.qty), min(i.price), max(i.title), avg(l.qty) from line l join item i on i.isbn = l.isbn where l.order_id = 10",
    "select count(*), max(o.id) from customer c join orders o on o.customer_id = c.id where c.id = 3",
    "select c.city || '/' || o.id as k, l.qty * i.price as cost from customer c join orders o on o.customer_id = c.id \
     join line l on l.order_id = o.id join item i on i.isbn = l.isbn where c.id = 1 and l.qty > 1 order by cost",
    "select o.id from orders o where o.customer_id in (select c.id from customer c where c.city = 'Bern') and o.id between 10 and 20",
    "select c.id from customer c where c.id in (1, 2, 3, 4) and exists (select 1 from orders o where o.customer_id = c.id)",
    "select c.id from customer c where c.id in (1, 2, 3, 4) and not exists (select * from orders o where o.customer_id = c.id and o.note = 'y')",
    "select id from customer where id in (1, 2, 3, 4) and exists (select id from orders where customer_id = customer.id and id > 10)",
    "select i.title from item i where i.isbn in ('A', 'B', 'C') and exists (select 1 from line where line.isbn = i.isbn and qty > 4)",
    "select o.id, c.id from orders o join customer c on c.id = o.customer_id order by o.id limit 3",
    "select o.id, c.id from orders o join customer c on c.id = o.customer_id order by o.id desc limit 2 offset 1",
    "select o.id, c.id from orders o left join customer c on c.id = o.customer_id order by o.id desc limit 3",
    "select o.id, o.placed from customer c join orders o on o.customer_id = c.id where c.id = 1 order by o.placed desc nulls last, o.id limit 2",
    "select o.id from customer c join orders o on o.customer_id = c.id and o.placed > '2024-01-10' where c.id = 1",
    "select o.id from customer c join orders o on o.customer_id = c.id where c.id = 1 and o.placed = '2024-02-01'",
    "select a.id, b.id from orders a join orders b on b.customer_id = a.customer_id and b.placed >= a.placed where a.id = 10 order by b.id",
    "select l.n, o.id from line l join orders o on o.id = l.order_id where l.isbn = 'A'",
    "select o.id, c.id from orders o join customer c on o.customer_id = c.id and c.city = 'Rome' where o.id = any('{10,12,99}')",
    "select o.id, c.id from orders o, customer c where o.id = 10 and c.id = 2",
    "select c.id, o.id from customer c left join orders o on o.customer_id = c.id and c.city = 'Bern' where c.id in (1, 2)",
    "select l.order_id, o.note from line l join orders o on o.id = l.order_id where l.order_id = 10 and l.n = 2",
    "select l.n, c.id from line l join customer c on c.id = l.n where l.order_id = 10",
    "select l.order_id, c.id from line l left join customer c on c.id = l.order_id + 3000000000 where l.order_id = 10",
    "select c.id, i.isbn from customer c join item i on i.isbn = upper('a') where c.id = 1",
    "select o.id from orders o join customer c on c.id = o.customer_id where o.id = 10 and 1 = 2",
    "select o.id from orders o join customer c on c.id = o.customer_id where c.id = 1 and o.note is not null order by 1 desc",
    "select o.id as placed, c.id from orders o join customer c on c.id = o.customer_id where c.id = 1 order by placed",
];

/// Queries it declines, with the reason.
const DECLINED: &[(&str, &str)] = &[
    (
        "select * from orders o join customer c on c.id = o.customer_id",
        "no table of the join has a condition on a key",
    ),
    (
        "select * from orders o join item i on i.title = o.note where o.id = 10",
        "no key leads to \"i\"",
    ),
    (
        "select * from orders o right join customer c on c.id = o.customer_id where c.id = 1",
        "a join other than INNER, CROSS and LEFT",
    ),
    (
        "select * from customer join orders using (id) where customer.id = 1",
        "USING over columns of different types",
    ),
    ("select * from orders natural join customer where orders.id = 10", "NATURAL JOIN"),
    (
        "select * from orders o join customer c on c.id = o.customer_id where o.id > 1",
        "all rows of an open range are joined",
    ),
    (
        "select * from (select 1 as id) s join customer c on c.id = s.id",
        "something other than a plain table in FROM",
    ),
    (
        "select random() from orders o join customer c on c.id = o.customer_id where o.id = 10",
        "a volatile function in a join",
    ),
    (
        "select id from customer c where id in (1, 2) and id not in (select customer_id from orders o where o.customer_id = c.id)",
        "a subquery in WHERE",
    ),
    (
        "select c.id from customer c where c.id = 1 and exists (select count(*) from orders o where o.customer_id = c.id)",
        "a subquery of this kind",
    ),
    (
        "select distinct on (c.id) c.id from customer c join orders o on o.customer_id = c.id where c.id in (1, 2)",
        "DISTINCT with groups, DISTINCT ON, or HAVING without groups",
    ),
];

#[tokio::test]
async fn joins_along_keys_answer_as_the_other_executor() {
    let mut s = session().await;
    must(&mut s, SHOP).await;
    for sql in TAKEN {
        let (key, other) = (by(&mut s, "key", sql).await, by(&mut s, "datafusion", sql).await);
        assert!(key.is_ok(), "{sql}: {key:?}");
        assert_eq!(key, other, "{sql}");
    }
}

#[tokio::test]
async fn joins_that_no_key_serves_are_declined_with_the_reason() {
    let mut s = session().await;
    must(&mut s, SHOP).await;
    for (sql, reason) in DECLINED {
        let error = by(&mut s, "key", sql).await.expect_err(sql);
        assert_eq!(error, format!("0A000 the key path cannot take this query: {reason}"), "{sql}");
        must(&mut s, "set telesto.executor = auto").await;
        let told = must(&mut s, &format!("explain {sql}")).await;
        assert_eq!(told[1], format!("Why not key: {reason}"), "{sql}");
        must(&mut s, sql).await;
    }
}

#[tokio::test]
async fn errors_in_a_join_are_those_of_the_other_executor() {
    let mut s = session().await;
    must(&mut s, SHOP).await;
    for sql in [
        "select id from orders o join customer c on c.id = o.customer_id where o.id = 10",
        "select o.nope from orders o join customer c on c.id = o.customer_id where o.id = 10",
        "select o.id from orders o join customer c on c.id = x.customer_id where o.id = 10",
        "select o.id from orders o join customer c on c.id = o.note where o.id = 10",
        "select o.id from orders o join customer c on c.id = o.customer_id where o.id = 10 and count(*) > 1",
        "select o.id from orders o join customer c on c.id = o.customer_id where o.id = 'x'",
        "select 1 / (o.id - 10) from orders o join customer c on c.id = o.customer_id where o.id = 10",
    ] {
        let auto = by(&mut s, "auto", sql).await;
        assert!(auto.is_err(), "{sql}: {auto:?}");
        assert_eq!(auto, by(&mut s, "datafusion", sql).await, "{sql}");
    }
}

#[tokio::test]
async fn ranges_longer_than_a_batch_are_joined_whole_and_in_order() {
    let mut s = session().await;
    must(
        &mut s,
        "create table p (id int primary key, g int); create table c (id int primary key, p int, v int); \
         create index c_p on c (p); insert into p select n, n % 2 from generate_series(1, 700) n; \
         create index p_g on p (g); \
         insert into c select n, n % 5, n from generate_series(1, 3000) n",
    )
    .await;
    for sql in [
        "select count(*), sum(c.v) from p join c on c.p = p.id where p.id in (1, 2, 3)",
        "select p.id, c.id from p join c on c.p = p.id where p.id in (0, 1, 4) order by p.id, c.id",
        "select p.id, c.id from p left join c on c.p = p.id where p.id between 1 and 20",
        "select a.id, b.id from p a join p b on b.g = a.g where a.id in (1, 2)",
        "select count(*) from p a join p b on b.g = a.g join c on c.id = b.id where a.g = 1 and a.id < 5",
        "select p.id from p where p.g = 1 and exists (select 1 from c where c.p = p.id and c.v > 2990)",
        "select p.id from p where p.g = 1 and not exists (select 1 from c where c.p = p.id and c.v > 2998)",
    ] {
        let key = by(&mut s, "key", sql).await;
        assert!(key.is_ok(), "{sql}: {key:?}");
        assert_eq!(key, by(&mut s, "datafusion", sql).await, "{sql}");
    }
    must(&mut s, "set telesto.executor = key").await;
    let limited = must(
        &mut s,
        "select p.id, c.id from p join c on c.p = p.id where p.id in (1, 2, 3) order by p.id limit 4 offset 599",
    )
    .await;
    assert_eq!(limited.iter().map(|l| &l[..2]).collect::<Vec<_>>(), ["1|", "2|", "2|", "2|"]);
}

#[tokio::test]
async fn level_of_a_join_makes_one_batch_of_requests() {
    let counts = Arc::new(Counts::default());
    let memory = MemoryDatabase::new(telesto_runtime::env());
    let mut s = open(&engine(Arc::new(Counting(memory, Arc::clone(&counts)))).await).await;
    must(
        &mut s,
        "create table p (id int primary key, a int); create table c (id int primary key, p int references p, note text); \
         create index c_p on c (p); \
         insert into p select n, n + 100 from generate_series(1, 60) n; \
         insert into c select n, n % 60 + 1, 'n' from generate_series(1, 120) n",
    )
    .await;
    // A text that comes again is learned, which reads the stamp once more.
    must(&mut s, "set telesto.text_cache = off").await;
    let mut cost = async |sql: &str| {
        must(&mut s, "set telesto.executor = key").await;
        must(&mut s, sql).await;
        let all = [&counts.gets, &counts.batches, &counts.keys, &counts.scans];
        for count in all {
            count.store(0, Ordering::Relaxed);
        }
        let rows = must(&mut s, sql).await.len();
        let [gets, batches, keys, scans] = all.map(|count| count.load(Ordering::Relaxed));
        (rows, gets, batches, keys, scans)
    };
    // The catalog's stamp is one get of every statement.
    let nothing = cost("select 1").await;
    assert_eq!(nothing, (1, nothing.1, 0, 0, 0));
    let stamp = nothing.1;
    // Forward: one scan of 50 rows of c (their keys are the primary one), one batch of their
    // parents.
    let forward = "select c.id, p.a from c join p on p.id = c.p where c.id between 1 and 50";
    assert_eq!(cost(forward).await, (50, stamp, 1, 50, 1));
    // Twice the same parents are asked for once.
    let shared = "select c.id, p.a from c join p on p.id = c.p where c.id between 1 and 120";
    assert_eq!(cost(shared).await, (120, stamp, 1, 60, 1));
    // Backward: the 20 keys, a scan for each, and one batch for all rows their entries name.
    let keys: Vec<String> = (1..=20).map(|n| n.to_string()).collect();
    let keys = keys.join(",");
    let backward =
        format!("select p.id, c.note from p join c on c.p = p.id where p.id in ({keys})");
    assert_eq!(cost(&backward).await, (40, stamp, 2, 60, 20));
    // Nor that, where the entries have all that is wanted of them.
    let entries = format!("select p.id, c.id from p join c on c.p = p.id where p.id in ({keys})");
    assert_eq!(cost(&entries).await, (40, stamp, 1, 20, 20));
    assert_eq!(cost(&format!("{entries} for update")).await, (40, stamp, 2, 60, 20));
    for (alone, gets) in [
        ("select count(*) from c where p = 7", 0),
        ("select id, p from c where p > 55 order by p desc, id", 0),
        ("select count(note) from c where p = 7", 2),
    ] {
        let (rows, asked, batches, keys, scans) = cost(alone).await;
        assert_eq!((asked, batches, keys, scans), (stamp, gets.min(1), gets, 1), "{alone}: {rows}");
    }
    // LIMIT reads no further.
    let limited = "select c.id, p.a from c join p on p.id = c.p order by c.id limit 5";
    assert_eq!(cost(limited).await, (5, stamp, 1, 5, 1));
}

/// Values of each type that comes back from a key as it was, in an order in which they are not.
const IN_ENTRIES: &[(&str, &[&str])] = &[
    ("bool", &["true", "false"]),
    ("int2", &["0", "-32768", "32767", "-1"]),
    ("int4", &["7", "-2147483648", "0"]),
    ("int8", &["9223372036854775807", "-5", "0"]),
    ("date", &["2024-02-29", "infinity", "-infinity", "0001-01-01 BC"]),
    ("time(3)", &["23:59:59.9999", "00:00", "24:00"]),
    (
        "timestamp",
        &["2024-01-01 10:00:00.123456", "infinity", "-infinity", "1969-12-31 23:59:59.9"],
    ),
    ("timestamptz(2)", &["2024-01-01 10:00:00.126+05", "-infinity", "1900-01-01 00:00+00"]),
    ("uuid", &["ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000"]),
    ("bytea", &["\\xff00", "\\x", "\\x00", "\\x0000"]),
    ("text", &["b", "", " b ", "B", "\u{e9}t\u{e9}", "b "]),
    ("varchar(6)", &["long  ", "", "x"]),
    ("name", &["n", "", "N"]),
    ("oid", &["4294967295", "0", "17"]),
    ("\"char\"", &["a", "", "Z"]),
    ("mood", &["sad", "ok", "a happy one"]),
];

/// What entries give equals what rows have, whatever the index is like; no row is fetched for it.
#[tokio::test]
async fn rows_made_of_entries_are_the_rows() {
    let counts = Arc::new(Counts::default());
    let memory = MemoryDatabase::new(telesto_runtime::env());
    let mut s = open(&engine(Arc::new(Counting(memory, Arc::clone(&counts)))).await).await;
    must(&mut s, "create type mood as enum ('sad', 'ok', 'a happy one')").await;
    for (ty, values) in IN_ENTRIES {
        for order in ["", "desc", "nulls first", "desc nulls last"] {
            let create = format!(
                "create table e (w text, id int, v {ty}, k int, primary key (id, k)); \
                 create index e_plain on e (v {order}, k); \
                 create unique index e_unique on e (k, v {order}); \
                 create unique index e_all on e (k desc, id, v {order}); \
                 insert into e values ('w', 90, null, 1), ('w', 91, null, 1), ('w', 92, null, null::int + 1)"
            );
            // The last row has no key: it is refused, and so is everything with it.
            assert!(ask(&mut s, &create).await.is_err());
            must(&mut s, &create.replace(", ('w', 92, null, null::int + 1)", "")).await;
            for (at, value) in values.iter().enumerate() {
                let rows = format!(
                    "insert into e select 'w', g, '{value}', g % 2 + {at} * 2 from generate_series({at} * 10, {at} * 10 + 1) g"
                );
                must(&mut s, &rows).await;
            }
            for value in *values {
                for query in [
                    format!("select id, v, k from e where v = '{value}' order by id, k"),
                    format!("select k, v from e where v >= '{value}' order by k, v"),
                    format!("select v, id from e where k = 1 and v < '{value}' order by id"),
                    "select v, k, id from e where k = 1 order by id".to_owned(),
                    format!("select count(*), min(id), max(k) from e where v > '{value}'"),
                ] {
                    let plan =
                        must(&mut s, &format!("set telesto.executor = key; explain {query}")).await;
                    assert!(
                        plan.join("\n").contains("index only"),
                        "{ty} {order}: {query}: {plan:?}"
                    );
                    counts.keys.store(0, Ordering::Relaxed);
                    let entries = by(&mut s, "key", &query).await;
                    assert_eq!(counts.keys.load(Ordering::Relaxed), 0, "{ty} {order}: {query}");
                    let rows = by(&mut s, "datafusion", &query).await;
                    assert_eq!(entries, rows, "{ty} {order}: {query}");
                    assert!(entries.is_ok());
                }
            }
            must(&mut s, "drop table e").await;
        }
    }
}

/// One session reads `query` in a transaction and writes; another commits `change` in between. What
/// the first is told.
async fn interleaved(level: &str, query: &str, change: &str) -> Result<Vec<String>, String> {
    let engine = engine(Arc::new(MemoryDatabase::new(telesto_runtime::env()))).await;
    let (mut first, mut second) = (open(&engine).await, open(&engine).await);
    must(&mut first, SHOP).await;
    must(&mut first, "create table done (id int primary key); set telesto.executor = key").await;
    must(&mut first, &format!("begin isolation level {level}")).await;
    must(&mut first, query).await;
    must(&mut first, "insert into done values (1)").await;
    must(&mut second, change).await;
    ask(&mut first, "commit").await
}

/// What is read of entries alone conflicts with changes of what they hold, and with no others. A
/// block that drew a random number cannot be executed again without a word.
#[tokio::test]
async fn rows_made_of_entries_conflict_by_what_entries_hold() {
    let alone = "select random(); select count(*), min(placed) from orders where customer_id = 1";
    let joined = "select random(); select c.id, o.placed from customer c join orders o on o.customer_id = c.id where c.id = 1";
    let rows = "select random(); select count(note) from orders where customer_id = 1";
    let aside = "update orders set note = 'changed' where id = 10";
    for query in [alone, joined] {
        for change in [
            "insert into orders values (20, 1, null, null)",
            "delete from orders where id = 11",
            "update orders set placed = '2025-01-01' where id = 10",
            "update orders set customer_id = 1 where id = 12",
            "update orders set customer_id = null where id = 10",
        ] {
            let told = interleaved("serializable", query, change).await;
            assert!(told.is_err_and(|e| e.starts_with("40001")), "{query}; {change}");
        }
        assert_eq!(interleaved("serializable", query, aside).await, Ok(vec![]), "{query}");
    }
    let told = interleaved("serializable", rows, aside).await;
    assert!(told.is_err_and(|e| e.starts_with("40001")), "{rows}");
}

#[tokio::test]
async fn row_that_appears_where_a_join_found_none_is_a_conflict() {
    let orphans = "select c.id, o.id from customer c left join orders o on o.customer_id = c.id where c.id = 3";
    let missing = "select l.isbn, i.title from line l left join item i on i.isbn = l.isbn where l.order_id = 14";
    let none = "select c.id from customer c where c.id = 3 and not exists (select 1 from orders o where o.customer_id = c.id)";
    let email =
        "select a.id, b.id from orders a left join customer b on b.email = a.note where a.id = 10";
    let own = "insert into orders values (20, 3, null, null)";
    for (query, change) in [
        (orphans, own),
        (none, own),
        (missing, "insert into item values ('Z', 'Zeta', 1)"),
        (email, "insert into customer values (9, 'x', null, null)"),
        (missing, "update line set isbn = 'A' where order_id = 14"),
        (orphans, "update orders set customer_id = 3 where id = 12"),
    ] {
        let told = interleaved("serializable", query, change).await.expect_err(query);
        assert!(told.starts_with("40001"), "{query} beside {change}: {told}");
        // It is the reads that conflict: a level that does not validate them lets both commit.
        interleaved("read committed", query, change).await.expect(query);
    }
    for (query, change) in [
        (orphans, "insert into orders values (20, 2, null, null)"),
        (missing, "insert into item values ('Y', 'Ypsilon', 1)"),
        (email, "insert into customer values (9, 'y', null, null)"),
    ] {
        interleaved("serializable", query, change).await.expect(query);
    }
}

#[tokio::test]
async fn prepared_join_takes_parameters_without_a_new_plan_and_follows_ddl() {
    let mut s = session().await;
    must(&mut s, SHOP).await;
    must(
        &mut s,
        "set telesto.executor = key; prepare q (int, date) as select o.id from customer c join orders o on o.customer_id = c.id \
         where c.id = $1 and o.placed > $2 order by o.id",
    )
    .await;
    assert_eq!(must(&mut s, "execute q (1, '2023-01-01')").await, ["10", "11"]);
    assert_eq!(must(&mut s, "execute q (1, '2024-01-10')").await, ["11"]);
    assert_eq!(must(&mut s, "execute q (null, '2024-01-10')").await, Vec::<String>::new());
    must(&mut s, "drop index orders_customer").await;
    let error = ask(&mut s, "execute q (1, '2023-01-01')").await.expect_err("no key any more");
    assert_eq!(error, "0A000 the key path cannot take this query: no key leads to \"o\"");
    must(&mut s, "create index again on orders (customer_id)").await;
    assert_eq!(must(&mut s, "execute q (1, '2023-01-01')").await, ["10", "11"]);
}

// A random database: small domains, so that values meet, and NULLs everywhere.

const RANDOM: &str = "\
    create table a (id int primary key, x int, y bigint, s text); create index a_x on a (x); create index a_ys on a (y desc, s); \
    create table b (id bigint primary key, x smallint, y int, s varchar(4)); create index b_x on b (x, y); create unique index b_s on b (s, x); \
    create table c (x int, y int, s text, primary key (x, y)); create index c_s on c (s desc);";

fn cell(null_in: u32, values: std::ops::Range<i32>) -> impl Strategy<Value = Option<i32>> {
    (0..null_in, values).prop_map(|(null, value)| (null > 0).then_some(value))
}

fn number(value: Option<i32>) -> String {
    value.map_or_else(|| "null".to_owned(), |v| v.to_string())
}

fn text(value: Option<i32>) -> String {
    value.map_or_else(
        || "null".to_owned(),
        |v| format!("'{}'", ["", "a", "b", "ab"][v as usize % 4]),
    )
}

fn rows() -> impl Strategy<Value = String> {
    let row = || (0..8_i32, cell(4, 0..5), cell(4, 0..5), cell(4, 0..4));
    let many = || proptest::collection::vec(row(), 0..9);
    (many(), many(), many()).prop_map(|(a, b, c)| {
        let mut sql = String::new();
        for (id, x, y, s) in a {
            let (x, y, s) = (number(x), number(y), text(s));
            sql.push_str(&format!(
                "insert into a values ({id},{x},{y},{s}) on conflict do nothing;"
            ));
        }
        for (id, x, y, s) in b {
            let (x, y, s) = (number(x), number(y), text(s));
            sql.push_str(&format!(
                "insert into b values ({id},{x},{y},{s}) on conflict do nothing;"
            ));
        }
        for (x, y, _, s) in c {
            let (y, s) = (number(Some(y.unwrap_or(0))), text(s));
            sql.push_str(&format!("insert into c values ({x},{y},{s}) on conflict do nothing;"));
        }
        sql
    })
}

const TABLES: [(&str, &[&str]); 3] =
    [("a", &["id", "x", "y"]), ("b", &["id", "x", "y"]), ("c", &["x", "y"])];

fn pick<'t>(table: usize, column: usize) -> &'t str {
    let columns = TABLES[table].1;
    columns[column % columns.len()]
}

/// A join of two to four tables: `t0`, `t1`, …
fn queries() -> impl Strategy<Value = String> {
    let step = (0..3_usize, 0..6_u8, any::<(usize, usize, usize, u8)>());
    (
        0..3_usize,
        any::<usize>(),
        proptest::collection::vec(step, 1..4),
        0..6_i32,
        0..6_u8,
        0..8_u8,
        0..4_u8,
    )
        .prop_map(|(first, column, steps, value, driver, shape, filter)| {
            let mut kinds = vec![first];
            let mut from = format!("{} t0", TABLES[first].0);
            let mut condition = match driver {
                0 => format!("t0.{} in ({value}, 1, 3)", pick(first, column)),
                1 => format!("t0.{} between 1 and {value}", pick(first, column)),
                2 => format!("t0.s = 'a' and t0.x = {value}"),
                3 => format!("t0.{} = {value}", pick(first, column)),
                4 => format!("t0.{} > 0", pick(first, column)),
                _ => format!("t0.{0} = {value} and t0.{0} is not null", pick(first, column)),
            };
            for (table, kind, (own, before, other, extra)) in steps {
                let at = kinds.len();
                let (name, before) = (TABLES[table].0, before % at);
                let outer = format!("t{before}.{}", pick(kinds[before], other));
                let mut on = format!("t{at}.{} = {outer}", pick(table, own));
                match extra % 6 {
                    0 => on.push_str(&format!(" and t{at}.s = t{before}.s")),
                    1 => on.push_str(&format!(" and t{at}.y >= t{before}.x")),
                    2 => on.push_str(&format!(" and t{at}.x = {}", extra % 5)),
                    3 => on.push_str(&format!(" and t{before}.s is not null")),
                    _ => {}
                }
                match kind {
                    0 | 1 => from.push_str(&format!(" join {name} t{at} on {on}")),
                    2 | 3 => from.push_str(&format!(" left join {name} t{at} on {on}")),
                    4 => condition.push_str(&format!(" and exists (select 1 from {name} t{at} where {on})")),
                    _ => condition.push_str(&format!(" and not exists (select 1 from {name} t{at} where {on})")),
                }
                // Its name is gone for what would follow.
                if kind >= 4 {
                    break;
                }
                kinds.push(table);
            }
            let last = kinds.len() - 1;
            match filter {
                0 => condition.push_str(&format!(" and t{last}.x is null")),
                1 => condition.push_str(&format!(" and (t{last}.y > 1 or t{last}.s = 'b')")),
                _ => {}
            }
            let all: Vec<String> = (0..=last)
                .flat_map(|at| ["x", "y", "s"].map(|column| format!("t{at}.{column}")))
                .collect();
            let all = all.join(", ");
            match shape {
                0 => format!("select count(*), sum(t0.x), max(t{last}.s) from {from} where {condition}"),
                1 => format!("select {all} from {from} where {condition} order by {all}"),
                2 => format!("select {all} from {from} where {condition} order by {all} desc limit 3 offset 1"),
                3 => format!("select * from {from} where {condition}"),
                4 => format!("select t0.x from {from} where {condition} order by t0.x limit 4"),
                _ => format!("select {all}, t0.x + t{last}.y from {from} where {condition}"),
            }
        })
}

#[test]
fn random_joins_answer_as_the_other_executor() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runs");
    let taken = AtomicUsize::new(0);
    let asked = AtomicUsize::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(40));
    let many = proptest::collection::vec(queries(), 12);
    runner
        .run(&(rows(), many), |(rows, queries)| {
            runtime.block_on(async {
                let mut s = session().await;
                must(&mut s, RANDOM).await;
                must(&mut s, &rows).await;
                for sql in &queries {
                    asked.fetch_add(1, Ordering::Relaxed);
                    let key = match by(&mut s, "key", sql).await {
                        Err(error) if error.starts_with("0A000 the key path cannot") => continue,
                        key => key,
                    };
                    taken.fetch_add(1, Ordering::Relaxed);
                    let other = by(&mut s, "datafusion", sql).await;
                    prop_assert_eq!(key, other, "{}\n{}", sql, rows);
                }
                Ok(())
            })
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let (taken, asked) = (taken.into_inner(), asked.into_inner());
    assert!(taken * 3 > asked, "the key path took only {taken} of {asked} joins");
}

/// What DataFusion joins is read by the keys of the smaller side, wherever it stands, and with the
/// answers of a whole scan.
#[tokio::test]
async fn join_by_datafusion_reads_what_the_keys_of_its_smaller_side_lead_to() {
    let counts = Arc::new(Counts::default());
    let memory = MemoryDatabase::new(telesto_runtime::env());
    let mut s = open(&engine(Arc::new(Counting(memory, Arc::clone(&counts)))).await).await;
    must(
        &mut s,
        "create table big (id int primary key, a int, b text, u text unique); create index big_a on big (a); \
         create table pair (x int, y text, v int, primary key (x, y)); \
         create table small (k int primary key, w bigint, t text, x int); \
         insert into big select n, n % 500, 'b' || n, 'u' || n from generate_series(1, 4000) n; \
         insert into pair select n / 10, 'y' || n % 10, n from generate_series(0, 3999) n; \
         insert into small values (1, 7, 'u9', 3), (2, 8, 'u10', 4), (3999, 5000000000, 'no', null), (5000, null, null, 5)",
    )
    .await;
    must(&mut s, "set telesto.executor = datafusion").await;
    for (sql, most) in [
        ("select k, b from small join big on id = k order by 1, 2", 10),
        ("select k, b from big join small on id = k order by 1, 2", 10),
        ("select k, b from big, small where id = w order by 1, 2", 10),
        ("select k, b from small left join big on id = k order by 1, 2", 10),
        ("select k, b from big right join small on id = k order by 1, 2", 10),
        ("select k, b from small join big on u = t order by 1, 2", 10),
        ("select k, b from small join big on a = w order by 1, 2", 50),
        ("select k, v from small join pair on pair.x = small.x order by 1, 2", 50),
        ("select k, v from small join pair on pair.x = small.x and y = 'y' || k order by 1, 2", 50),
        ("select b from big where id in (select w from small where w > 7) order by 1", 10),
        ("select b from big where exists (select from small where k = big.id) order by 1", 10),
        (
            "select b.b, c.b from small join big b on b.id = k join big c on c.id = b.a order by 1, 2",
            20,
        ),
        (
            "select k, n from small join (select id, count(*) n from big group by id) g on g.id = k order by 1",
            4100,
        ),
        // Which of the rows a limit lets through is not for the join to say.
        ("select k, b from small join (select * from big limit 3) big on id = k order by 1, 2", 10),
        (
            "with recursive r (id, n) as (select 1, 0 union all select big.id * 2, n + 1 from r join big using (id) where n < 6) \
          select * from r order by 1",
            100_000,
        ),
        ("update big set b = 'new' from small where id = k returning k, b", 20),
    ] {
        let all = [&counts.gets, &counts.keys, &counts.rows];
        // Sizes are known once they were read.
        must(
            &mut s,
            "select count(*) from big; select count(*) from small; select count(*) from pair",
        )
        .await;
        for count in all {
            count.store(0, Ordering::Relaxed);
        }
        let rows = must(&mut s, sql).await;
        let read: usize = all.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        assert!(read <= most, "{sql}: {read} reads");
        // The same with the keys hidden in expressions, so that everything is read.
        let hidden = sql
            .replace("id = k", "id + 0 = k")
            .replace("id = w", "id + 0 = w")
            .replace("u = t", "u || '' = t")
            .replace("a = w", "a + 0 = w")
            .replace("pair.x = small.x", "pair.x + 0 = small.x")
            .replace("id in (", "id + 0 in (")
            .replace("k = big.id", "k = big.id + 0")
            .replace("c.id = b.a", "c.id + 0 = b.a")
            .replace("from r join big using (id)", "from r join big on big.id + 0 = r.id");
        assert_ne!(hidden, sql, "{sql}");
        assert_eq!(rows, must(&mut s, &hidden).await, "{sql}");
    }
}

/// Every country leads to every address: that is read whole, and not address by address; few
/// countries lead to few.
#[tokio::test]
async fn join_by_datafusion_looks_nothing_up_where_the_keys_are_most_of_a_foreign_keys() {
    let counts = Arc::new(Counts::default());
    let memory = MemoryDatabase::new(telesto_runtime::env());
    let mut s = open(&engine(Arc::new(Counting(memory, Arc::clone(&counts)))).await).await;
    must(
        &mut s,
        "create table country (id int primary key, name text); create table status (id int primary key, name text); \
         create table address (id int primary key, country int references country, status int references status, area int, v numeric); \
         create index address_country on address (country); create index address_status on address (status); \
         create index address_area on address (area, country); \
         insert into country select n, 'c' || n from generate_series(1, 40) n; \
         insert into status values (1, 'done'), (2, 'pending'); \
         insert into address select n, n % 40 + 1, case when n % 400 = 0 then 2 else 1 end, n / 1000, n / 10.0 from generate_series(1, 4000) n; \
         set telesto.executor = datafusion; select count(*) from country; select count(*) from status; select count(*) from address",
    )
    .await;
    let all = [&counts.gets, &counts.keys, &counts.rows];
    let columns = "country.name, count(*), sum(v)";
    for (from, condition, least, most) in [
        ("country join address on country.id = country", "true", 4000, 4100),
        ("country join address on country.id = country", "name in ('c3', 'c7')", 200, 600),
        // One of two may be the rare one.
        ("status country join address on country.id = status", "name = 'pending'", 10, 40),
        // Behind another column they are ranges of an index that is read anyway.
        ("country join address on country.id = country", "area = 2 and country.id <= 12", 600, 750),
    ] {
        for count in all {
            count.store(0, Ordering::Relaxed);
        }
        let sql = format!("select {columns} from {from} where {condition} group by 1 order by 1");
        let rows = must(&mut s, &sql).await;
        let read: usize = all.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        assert!((least..=most).contains(&read), "{sql}: {read} reads");
        let hidden = sql.replace("on country.id =", "on country.id + 0 =");
        assert_eq!(rows, must(&mut s, &hidden).await, "{sql}");
    }
}

/// What the primary key behind an index's entries, a list over a value, and an order known before a
/// join save.
#[tokio::test]
async fn conditions_and_orders_read_only_the_entries_they_need() {
    let counts = Arc::new(Counts::default());
    let memory = MemoryDatabase::new(telesto_runtime::env());
    let mut s = open(&engine(Arc::new(Counting(memory, Arc::clone(&counts)))).await).await;
    must(
        &mut s,
        "create table part (a int, b int, c int, d int, primary key (a, b)); create index part_c on part (c); create index part_a on part (a); \
         create table kind (id int primary key, t text); \
         insert into kind select n, 'k' || n from generate_series(0, 1999) n; \
         insert into part select n / 10, n % 10, n % 5, n % 2000 from generate_series(0, 3999) n",
    )
    .await;
    for (executor, sql, most) in [
        ("key", "select a, b from part where c = 3 and a > 390 order by 1, 2", 60),
        ("datafusion", "select a, b from part where c = 3 and a > 390 order by 1, 2", 60),
        ("key", "select a, b from part where c = 3 and a = 17 and b > 4", 10),
        ("datafusion", "select a, b from part where c = 3 and a = 17 and b > 4", 10),
        ("key", "select a, b from part where c in (1, 3) and a in (3, 300) order by 1, 2", 30),
        (
            "datafusion",
            "select a, b from part where c in (1, 3) and a in (3, 300) order by 1, 2",
            30,
        ),
        ("key", "select a, b from part where c = 3 order by a desc, b desc limit 2", 20),
        (
            "key",
            "select a, b from part where c = 3 and a < 100 order by a desc, b desc limit 2",
            20,
        ),
        ("key", "select c, a, b from part order by c, a, b limit 2", 20),
        ("key", "select max(a) from part where c = 3", 10),
        (
            "key",
            "select d, t from part join kind on id = d where c = 3 and a >= 300 order by d desc limit 2",
            420,
        ),
        (
            "key",
            "select d, t from part join kind on id = d and id < 1990 where c = 3 and a >= 390 order by d desc limit 2",
            70,
        ),
        // The primary key serves what an index holds twice.
        ("key", "select b, c from part where a = 17 and c = 3 order by 1", 10),
        (
            "key",
            "select a, b from part where c = 3 and d > 1990 order by a desc, b desc limit 1",
            900,
        ),
        (
            "auto",
            "select d from part where a in (select p.a from part p join kind on id = p.d where p.a > (select max(a) - 2 from part) and p.c = 1) order by 1",
            40,
        ),
    ] {
        must(&mut s, &format!("set telesto.executor = {executor}")).await;
        // What is known of the tables is read before.
        must(&mut s, sql).await;
        let all = [&counts.gets, &counts.keys, &counts.rows];
        for count in all {
            count.store(0, Ordering::Relaxed);
        }
        let rows = must(&mut s, sql).await;
        let read: usize = all.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        assert!(read <= most, "{executor}: {sql}: {read} reads");
        // The same where no condition leads to an index.
        must(&mut s, "set telesto.executor = datafusion").await;
        let hidden = sql
            .replace("c = ", "c + 0 = ")
            .replace("c in (", "c + 0 in (")
            .replace("from part order by c", "from part where c + 0 > 0 or c = 0 order by c + 0");
        assert_ne!(hidden, sql);
        assert_eq!(rows, must(&mut s, &hidden).await, "{executor}: {sql}");
        assert!(!rows.is_empty(), "{sql}");
    }
    // What the filter rejects is read in larger and larger steps, not row by row as the limit would
    // have it.
    must(&mut s, "set telesto.executor = key").await;
    counts.batches.store(0, Ordering::Relaxed);
    let found =
        must(&mut s, "select a from part where c = 3 and d = 3 order by a desc, b desc limit 1")
            .await;
    assert_eq!(found, ["200"]);
    let batches = counts.batches.load(Ordering::Relaxed);
    assert!(batches <= 12, "{batches} batches");
}
