//! What drivers are told of a statement before it runs: types of its parameters, and which table
//! its columns are of.

use telesto_server::ServerConfig;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::support::Node;

async fn client() -> (Node, Client) {
    let node = Node::start(ServerConfig::default()).await;
    let client = node.client().await;
    (node, client)
}

/// One column of all rows, as text.
async fn column(client: &Client, sql: &str) -> Vec<String> {
    let rows = client.query(sql, &[]).await.expect("rows");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn table_is_made_of_a_query_with_parameters() {
    let (_node, client) = client().await;
    client
        .batch_execute("create type mood as enum ('sad', 'ok'); create table t (n int, m mood)")
        .await
        .expect("tables");
    let sql = "create table made as select $1::int as n, $2 as s, m, $3::numeric as d from t \
               where m = $4 or $5 is null";
    client.batch_execute("insert into t values (1, 'ok'), (2, 'sad')").await.expect("rows");
    let refused = client.prepare(sql).await.expect_err("of no type");
    assert_eq!(refused.code().map(|code| code.code()), Some("42P18"));
    let made = client
        .prepare("create table made as select $1::int as n, $2 as s, m from t where n < $3")
        .await
        .expect("prepares");
    assert_eq!(made.params(), [Type::INT4, Type::TEXT, Type::INT4]);
    assert!(made.columns().is_empty());
    let count = client.execute(&made, &[&7, &"it's $1\\", &2]).await.expect("makes it");
    assert_eq!(count, 1);
    assert_eq!(
        column(&client, "select concat_ws('|', n, s, m, pg_typeof(s)) from made").await,
        ["7|it's $1\\|ok|text"]
    );
    // The values are of each execution.
    client.batch_execute("drop table made").await.expect("drops");
    client.execute(&made, &[&8, &None::<String>, &5]).await.expect("makes it again");
    assert_eq!(
        column(&client, "select concat_ws('|', n, s, m) from made order by m").await,
        ["8|sad", "8|ok"]
    );
    let again = client.execute(&made, &[&8, &"", &5]).await.expect_err("is there");
    assert_eq!(again.code().map(|code| code.code()), Some("42P07"));
    let bytes: &[u8] = &[0, 255];
    for (sql, rows) in [
        ("select $1::bytea as b, $2::float8 as f into into_it", 1),
        ("create temp table a (b, f) as select $1::bytea, $2::float8 with no data", 0),
        ("create table if not exists b as select $1::bytea as b, $2::float8 as f", 1),
        ("create table v (b, f) as values ($1::bytea, $2::float8)", 1),
    ] {
        let count = client.execute(sql, &[&bytes, &0.1_f64]).await.expect(sql);
        assert_eq!(count, rows, "{sql}");
    }
    assert_eq!(
        column(
            &client,
            "select concat(b, f) from into_it union all select concat(b, f) from a \
             union all select concat(b, f) from b union all select concat(b, f) from v",
        )
        .await,
        vec!["\\x00ff0.1"; 3]
    );
}

/// The table that each column of a query is said to be of, and its number there.
async fn told(client: &Client, sql: &str) -> Vec<(Option<u32>, Option<i16>)> {
    let statement = client.prepare(sql).await.expect(sql);
    statement.columns().iter().map(|column| (column.table_oid(), column.column_id())).collect()
}

#[tokio::test]
async fn columns_are_told_to_be_of_the_relation_that_the_query_names() {
    let (_node, client) = client().await;
    client
        .batch_execute(
            "create table t (n int primary key, s text); \
             create view v as select s as vs, n as vn, n + 1 as more from t; \
             create view w as select vn from v",
        )
        .await
        .expect("a view");
    let oid = async |name: &str| {
        let sql = "select $1::text::regclass::oid";
        let row = client.query_one(sql, &[&name]).await.expect("an OID");
        row.get::<_, u32>(0)
    };
    let (t, v, w) = (oid("t").await, oid("v").await, oid("w").await);
    let of = |table: u32, number: i16| (Some(table), Some(number));
    let none = (None, None);
    for (sql, columns) in [
        ("select * from v", vec![of(v, 1), of(v, 2), of(v, 3)]),
        ("select more, vn as x from v where vn = 1", vec![of(v, 3), of(v, 2)]),
        (
            "select w.vn, v.vs, t.s, upper(v.vs) from w, v, t",
            vec![of(w, 1), of(v, 1), of(t, 2), none],
        ),
        ("select q.vs, q.vn + 1 from (select * from v limit 1) q", vec![of(v, 1), none]),
        ("select vn, count(*) from v group by vn", vec![of(v, 2), none]),
        ("select s from t union all select s from t", vec![none]),
        ("select s from t union select vs from v", vec![none]),
        ("select n, s from t intersect select n, s from t", vec![none, none]),
        ("select vn from v except all select n from t", vec![none]),
        ("(select s from t)", vec![of(t, 2)]),
    ] {
        assert_eq!(told(&client, sql).await, columns, "{sql}");
    }
    // A key determines the columns of its table, not those of a view or of a union.
    for sql in [
        "select vs from v group by vn",
        "select s from (select n, s from t union all select n, s from t) q group by n",
    ] {
        let refused = client.prepare(sql).await.expect_err(sql);
        assert_eq!(refused.code().map(|code| code.code()), Some("42803"), "{sql}");
    }
}

#[tokio::test]
async fn lengths_are_told_of_columns_and_not_of_what_functions_give() {
    let (_node, client) = client().await;
    client
        .batch_execute("create table t (k int, s varchar(5), n numeric(8, 2), c char(3))")
        .await
        .expect("a table");
    for (sql, told) in [
        ("select s, n, c from t", vec![9, 524_294, 7]),
        ("select max(n), min(c), max(s) from t", vec![-1, -1, -1]),
        (
            "select max(n), min(c), n from t group by n, k having count(*) > 1",
            vec![-1, -1, 524_294],
        ),
        ("select lag(n) over (), first_value(s) over (), lead(c, 1) over () from t", vec![-1; 3]),
        ("select max(n) over (), n from t", vec![-1, 524_294]),
        ("select coalesce(n, n), greatest(n, n), nullif(s, s) from t", vec![524_294, 524_294, -1]),
    ] {
        let statement = client.prepare(sql).await.expect(sql);
        let found: Vec<i32> =
            statement.columns().iter().map(|column| column.type_modifier()).collect();
        assert_eq!(found, told, "{sql}");
    }
}
