//! sqlx: migrations (which it guards by an advisory lock), typed queries, describe, nested
//! transactions, a pool, LISTEN.

use chrono::{DateTime, NaiveDate, Utc};
use futures_util::TryStreamExt;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use sqlx::postgres::{PgConnection, PgListener, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Column, Connection, Executor, FromRow, Row, SqlStr, SqlSafeStr, Statement, TypeInfo};
use uuid::Uuid;

use crate::check;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[derive(Debug, FromRow, PartialEq)]
struct Person {
    id: i64,
    name: String,
    balance: Decimal,
    token: Option<Uuid>,
    born: Option<NaiveDate>,
    at: DateTime<Utc>,
    tags: Vec<String>,
    body: Option<Value>,
    photo: Option<Vec<u8>>,
    score: f64,
    active: bool,
}

fn code<T>(result: Result<T, sqlx::Error>) -> String {
    match result {
        Ok(_) => "no error".to_owned(),
        Err(error) => match error.as_database_error() {
            Some(database) => database.code().map_or_else(|| database.to_string(), |code| code.into_owned()),
            None => error.to_string(),
        },
    }
}

pub async fn run(url: &str) -> Outcome {
    let pool = PgPoolOptions::new().max_connections(4).connect(url).await?;
    pool.execute("drop table if exists sx_order, sx_person, _sqlx_migrations").await?;
    let migrator = sqlx::migrate!("./migrations");
    // Two processes start at once: the advisory lock lets one migrate while the other waits.
    let (one, two) = tokio::join!(migrator.run(&pool), migrator.run(&pool));
    one?;
    two?;
    check("migrations", sqlx::query_scalar::<_, i64>("select count(*) from _sqlx_migrations where success").fetch_one(&pool).await?, 2);
    migrator.undo(&pool, 1).await?;
    check("undone", sqlx::query_scalar::<_, i64>("select count(*) from information_schema.tables where table_name = 'sx_order'").fetch_one(&pool).await?, 0);
    migrator.run(&pool).await?;
    people(&pool).await?;
    described(&pool).await?;
    users_types(&pool).await?;
    transactions(&pool).await?;
    listening(&pool).await?;
    let mut connection = PgConnection::connect(url).await?;
    connection.ping().await?;
    connection.close().await?;
    pool.execute("drop table sx_order, sx_person, _sqlx_migrations").await?;
    pool.close().await;
    Ok(())
}

async fn people(pool: &PgPool) -> Outcome {
    let at: DateTime<Utc> = "2024-02-29T12:30:15.123456Z".parse()?;
    let expected = Person {
        id: 1, name: "Ada".to_owned(), balance: Decimal::from_str_exact("12.50")?, token: Some(Uuid::from_u128(7)), born: NaiveDate::from_ymd_opt(1815, 12, 10), at,
        tags: vec!["x".to_owned(), "y, z".to_owned()], body: Some(json!({"a": [1, null]})), photo: Some(vec![0, 255]), score: 1.25, active: true,
    };
    let inserted: Person = sqlx::query_as("insert into sx_person (name, balance, token, born, at, tags, body, photo, score) values ($1, $2, $3, $4, $5, $6, $7, $8, $9) returning *")
        .bind("Ada").bind(expected.balance).bind(expected.token).bind(expected.born).bind(at).bind(&expected.tags).bind(&expected.body).bind(&expected.photo).bind(1.25)
        .fetch_one(pool).await?;
    check("types", inserted, expected);
    let empty: Person = sqlx::query_as("insert into sx_person (name) values ('Nobody') returning *").fetch_one(pool).await?;
    check("nulls and defaults", (empty.token, empty.body, empty.tags.len(), empty.balance), (None, None, 0, Decimal::ZERO));
    let names: Vec<String> = (0..500).map(|n| format!("p{n}")).collect();
    check("unnest", sqlx::query("insert into sx_person (name, score) select * from unnest($1::text[], $2::float8[])").bind(&names).bind(vec![2.5f64; 500]).execute(pool).await?.rows_affected(), 500);
    let mut builder = sqlx::QueryBuilder::new("insert into sx_order (person, item) ");
    builder.push_values(0..50i64, |mut row, n| { row.push_bind(n % 2 + 1).push_bind(format!("item {n}")); });
    check("built", builder.build().execute(pool).await?.rows_affected(), 50);
    let mut sum = 0.0;
    let mut rows = sqlx::query("select score from sx_person where name like $1").bind("p%").fetch(pool);
    while let Some(row) = rows.try_next().await? {
        sum += row.try_get::<f64, _>("score")?;
    }
    check("streamed", sum, 1250.0);
    check("tuple", sqlx::query_as::<_, (String, i64)>("select p.name, count(o.*) from sx_person p join sx_order o on o.person = p.id group by p.id order by p.name").fetch_all(pool).await?,
        vec![("Ada".to_owned(), 25), ("Nobody".to_owned(), 25)]);
    check("optional", sqlx::query("select 1 where false").fetch_optional(pool).await?.is_none(), true);
    let duplicate = sqlx::query("insert into sx_order (person, item) values (1, 'item 0')").execute(pool).await.expect_err("unique");
    let database = duplicate.as_database_error().expect("from the server");
    check("unique", (database.is_unique_violation(), database.constraint(), database.table()), (true, Some("sx_order_once"), Some("sx_order")));
    check("foreign key", code(sqlx::query("insert into sx_order (person, item) values (-1, 'x')").execute(pool).await), "23503");
    Ok(())
}

async fn described(pool: &PgPool) -> Outcome {
    let mut connection = pool.acquire().await?;
    // What the query macros ask when a program is compiled: types of parameters and columns, and
    // which may be NULL.
    let sql: SqlStr = AssertSqlSafe("select p.id, p.token, o.item, count(*) over () as n from sx_person p left join sx_order o on o.person = p.id where p.score > $1 and p.name = any($2)").into_sql_str();
    let described = Executor::describe(&mut *connection, sql).await?;
    check("columns", described.columns().iter().map(|c| format!("{} {}", c.name(), c.type_info().name())).collect::<Vec<_>>(), vec!["id INT8", "token UUID", "item TEXT", "n INT8"]);
    let parameters = described.parameters().and_then(sqlx::Either::left).unwrap_or_default();
    check("parameters", parameters.iter().map(|p| p.name().to_owned()).collect::<Vec<_>>(), vec!["FLOAT8", "TEXT[]"]);
    check("nullable", [described.nullable(0), described.nullable(1)], [Some(false), Some(true)]);
    let statement = (&mut *connection).prepare(AssertSqlSafe("select $1::int4 + 1").into_sql_str()).await?;
    check("prepared", statement.query_scalar::<i32>().bind(41).fetch_one(&mut *connection).await?, 42);
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, sqlx::Type)]
#[sqlx(type_name = "sx_mood", rename_all = "lowercase")]
enum Mood {
    Sad,
    Happy,
}

/// Types it does not know it looks up, with rows in arrays; columns of a described query too.
async fn users_types(pool: &PgPool) -> Outcome {
    pool.execute("drop table if exists sx_day; drop type if exists sx_mood; drop domain if exists sx_positive").await?;
    pool.execute("create type sx_mood as enum ('sad', 'happy'); create domain sx_positive as int check (value > 0); create table sx_day (day date primary key, mood sx_mood not null, n sx_positive)").await?;
    // The types were made after these connections were: each looks them up anew.
    let day: NaiveDate = "2024-02-29".parse()?;
    let back: (Mood, i32) = sqlx::query_as("insert into sx_day values ($1, $2, $3) returning mood, n").bind(day).bind(Mood::Happy).bind(7).fetch_one(pool).await?;
    check("enum and domain", back, (Mood::Happy, 7));
    check("enum array", sqlx::query_scalar::<_, Vec<Mood>>("select array_agg(m order by m desc) from unnest($1::sx_mood[]) m").bind(vec![Mood::Sad, Mood::Happy]).fetch_one(pool).await?, vec![Mood::Happy, Mood::Sad]);
    check("bad label", code(sqlx::query("insert into sx_day values (now(), 'glad')").execute(pool).await), "22P02");
    check("records", sqlx::query_scalar::<_, Vec<(i32, String)>>("select array_agg((n, t)) from (select n, 'row ' || n as t from generate_series(1, 3) n order by n desc) r").fetch_one(pool).await?,
        vec![(3, "row 3".to_owned()), (2, "row 2".to_owned()), (1, "row 1".to_owned())]);
    check("record", sqlx::query_scalar::<_, (i64, Option<String>, bool, Option<Decimal>)>("select (1::int8, null::text, true, 2.50)").fetch_one(pool).await?, (1, None, true, Some(Decimal::from_str_exact("2.50")?)));
    let mut connection = pool.acquire().await?;
    let described = Executor::describe(&mut *connection, AssertSqlSafe("select mood, n, day from sx_day where mood = $1").into_sql_str()).await?;
    check("described", described.columns().iter().map(|c| format!("{} {}", c.name(), c.type_info().name())).collect::<Vec<_>>(), vec!["mood sx_mood", "n INT4", "day DATE"]);
    check("where from", described.columns().iter().map(|c| format!("{:?}", c.origin())).collect::<Vec<_>>().join(" ").matches("sx_day").count(), 3);
    check("not null", [described.nullable(0), described.nullable(1), described.nullable(2)], [Some(false), Some(true), Some(false)]);
    drop(connection);
    pool.execute("drop table sx_day; drop type sx_mood; drop domain sx_positive").await?;
    Ok(())
}

async fn transactions(pool: &PgPool) -> Outcome {
    let count = || async { sqlx::query_scalar::<_, i64>("select count(*) from sx_order").fetch_one(pool).await };
    let mut outer = pool.begin().await?;
    sqlx::query("insert into sx_order (person, item) values (1, 'outer')").execute(&mut *outer).await?;
    let mut inner = outer.begin().await?;
    check("inside", code(sqlx::query("insert into sx_order (person, item) values (1, 'outer')").execute(&mut *inner).await), "23505");
    inner.rollback().await?;
    outer.commit().await?;
    check("committed", count().await?, 51);
    let mut dropped = pool.begin().await?;
    sqlx::query("delete from sx_order").execute(&mut *dropped).await?;
    drop(dropped);
    check("dropped", count().await?, 51);
    let mut lock = pool.begin_with("begin isolation level serializable read only").await?;
    check("read only", code(sqlx::query("delete from sx_order").execute(&mut *lock).await), "25006");
    lock.rollback().await?;
    Ok(())
}

async fn listening(pool: &PgPool) -> Outcome {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen("sx_news").await?;
    sqlx::query("select pg_notify('sx_news', $1)").bind("hello").execute(pool).await?;
    let news = listener.recv().await?;
    check("notification", (news.channel(), news.payload()), ("sx_news", "hello"));
    Ok(())
}
