//! tokio-postgres: binary types, statements with inferred parameters, pipelines, portals, binary
//! COPY, savepoints, cancellation.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, Utc};
use futures_util::{SinkExt, StreamExt, TryStreamExt};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use tokio_postgres::binary_copy::{BinaryCopyInWriter, BinaryCopyOutStream};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{Kind, ToSql, Type};
use tokio_postgres::{Client, Error, IsolationLevel, NoTls, Row, SimpleQueryMessage};
use uuid::Uuid;

use crate::check;

type Outcome = Result<(), Box<dyn std::error::Error>>;

async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn code<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => "no error".to_owned(),
        Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()),
    }
}

pub async fn run(url: &str) -> Outcome {
    let mut client = connect(url).await?;
    client.batch_execute("drop table if exists tp_line; drop table if exists tp_kinds").await?;
    client
        .batch_execute(
            "create table tp_kinds (id serial primary key, b boolean, i2 smallint, i4 integer, i8 bigint, n numeric, f4 real, f8 double precision, t text,
             v varchar(20), y bytea, u uuid, d date, tm time, ts timestamp, tz timestamptz, j json, jb jsonb, ai int[], at text[], au uuid[]);
             create table tp_line (id bigint generated always as identity primary key, kind int references tp_kinds on delete cascade, q int not null)",
        )
        .await?;
    types(&client).await?;
    statements(&client).await?;
    transactions(&mut client).await?;
    pipelines(&client).await?;
    copies(&client).await?;
    cancellation(url).await?;
    client.batch_execute("drop table tp_line; drop table tp_kinds").await?;
    Ok(())
}

async fn types(client: &Client) -> Outcome {
    let at: DateTime<Utc> = "2024-02-29T12:30:15.123456Z".parse()?;
    let insert = client
        .prepare("insert into tp_kinds (b,i2,i4,i8,n,f4,f8,t,v,y,u,d,tm,ts,tz,j,jb,ai,at,au) values ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20) returning id")
        .await?;
    check("parameter types", insert.params().iter().map(Type::name).collect::<Vec<_>>().join(" "),
        "bool int2 int4 int8 numeric float4 float8 text varchar bytea uuid date time timestamp timestamptz json jsonb _int4 _text _uuid");
    let values: [&(dyn ToSql + Sync); 20] = [
        &true, &i16::MIN, &i32::MAX, &i64::MIN, &Decimal::from_str_exact("-12345.670")?, &1.5f32, &0.1f64, &"tab\t'quote' \\ æ 🎉", &"short", &[0u8, 1, 255].as_slice(),
        &Uuid::from_u128(7), &NaiveDate::from_ymd_opt(1999, 12, 31), &NaiveTime::from_hms_micro_opt(1, 2, 3, 4), &at.naive_utc(), &at,
        &json!({"a": [1, null]}), &json!({"b": true}), &vec![Some(1), None, Some(-3)], &vec!["x", "with \"quotes\", commas", ""], &vec![Uuid::from_u128(8)],
    ];
    let id: i32 = client.query_one(&insert, &values).await?.get(0);
    let row = client.query_one("select * from tp_kinds where id = $1", &[&id]).await?;
    check("numbers", (row.get::<_, bool>("b"), row.get::<_, i16>("i2"), row.get::<_, i32>("i4"), row.get::<_, i64>("i8"), row.get::<_, f32>("f4"), row.get::<_, f64>("f8")), (true, i16::MIN, i32::MAX, i64::MIN, 1.5, 0.1));
    check("numeric", row.get::<_, Decimal>("n").to_string(), "-12345.670");
    check("texts", (row.get::<_, String>("t"), row.get::<_, &str>("v"), row.get::<_, &[u8]>("y")), ("tab\t'quote' \\ æ 🎉".to_owned(), "short", [0u8, 1, 255].as_slice()));
    check("times", (row.get::<_, NaiveDate>("d"), row.get::<_, NaiveTime>("tm"), row.get::<_, NaiveDateTime>("ts"), row.get::<_, DateTime<Utc>>("tz")),
        (NaiveDate::from_ymd_opt(1999, 12, 31).expect("date"), NaiveTime::from_hms_micro_opt(1, 2, 3, 4).expect("time"), at.naive_utc(), at));
    check("others", (row.get::<_, Uuid>("u"), row.get::<_, Value>("j"), row.get::<_, Value>("jb")), (Uuid::from_u128(7), json!({"a": [1, null]}), json!({"b": true})));
    check("arrays", (row.get::<_, Vec<Option<i32>>>("ai"), row.get::<_, Vec<String>>("at"), row.get::<_, Vec<Uuid>>("au")),
        (vec![Some(1), None, Some(-3)], vec!["x".to_owned(), "with \"quotes\", commas".to_owned(), String::new()], vec![Uuid::from_u128(8)]));
    let nulls = client.query_one("insert into tp_kinds (i4) values ($1) returning *", &[&None::<i32>]).await?;
    check("nulls", (1..nulls.len()).all(|at| is_null(&nulls, at)), true);
    // A type that the driver does not know is looked up in the catalog by the driver itself.
    let looked_up = client.prepare("select typname, 'pg_class'::regclass::oid from pg_type where oid = $1").await?;
    check("catalog", (looked_up.columns()[0].type_().name().to_owned(), matches!(looked_up.params()[0].kind(), Kind::Simple)), ("name".to_owned(), true));
    Ok(())
}

fn is_null(row: &Row, at: usize) -> bool {
    struct Any;
    impl<'a> tokio_postgres::types::FromSql<'a> for Any {
        fn from_sql(_: &Type, _: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
            Ok(Self)
        }
        fn accepts(_: &Type) -> bool {
            true
        }
    }
    row.get::<_, Option<Any>>(at).is_none()
}

async fn statements(client: &Client) -> Outcome {
    let select = client.prepare("select id, upper(v) as up, n * $2 from tp_kinds where id = $1 or i8 = any($3)").await?;
    check("columns", select.columns().iter().map(|c| format!("{} {} {:?}", c.name(), c.type_().name(), c.column_id())).collect::<Vec<_>>(), vec!["id int4 Some(1)", "up text None", "?column? numeric None"]);
    for n in 0..8 {
        let rows = client.query(&select, &[&1, &Decimal::from(n), &Vec::<i64>::new()]).await?;
        check("prepared", rows[0].get::<_, &str>("up"), "SHORT");
    }
    check("rows affected", client.execute("insert into tp_line (kind, q) select 1, g from generate_series(1, $1::int) g", &[&10]).await?, 10);
    let messages = client.simple_query("select 1 as one; update tp_line set q = q where q > 8; select null as nothing").await?;
    let shown: Vec<String> = messages
        .iter()
        .map(|message| match message {
            SimpleQueryMessage::Row(row) => format!("row {:?}", row.get(0)),
            SimpleQueryMessage::CommandComplete(rows) => format!("complete {rows}"),
            SimpleQueryMessage::RowDescription(columns) => format!("columns {}", columns.len()),
            _ => "other".to_owned(),
        })
        .collect();
    check("simple query", shown, vec!["columns 1", "row Some(\"1\")", "complete 1", "complete 2", "columns 1", "row None", "complete 1"]);
    let unique = client.execute("insert into tp_kinds (id) values (1)", &[]).await.expect_err("unique");
    let fields = unique.as_db_error().expect("from the server");
    check("unique", (fields.code(), fields.constraint(), fields.table(), fields.detail(), fields.severity()), (&SqlState::UNIQUE_VIOLATION, Some("tp_kinds_pkey"), Some("tp_kinds"), Some("Key (id)=(1) already exists."), "ERROR"));
    check("generated always", code(client.execute("insert into tp_line (id, q) values (1, 1)", &[]).await), "428C9");
    check("undefined column", code(client.prepare("select nonsense from tp_kinds").await), "42703");
    check("undefined parameter type", code(client.prepare("select $1 + $2").await), "42725");
    check("division", code(client.query("select 1 / $1::int4", &[&0]).await), "22012");
    let stream = client.query_raw("select generate_series(1, 3000)", Vec::<&(dyn ToSql + Sync)>::new()).await?;
    let mut stream = pin!(stream);
    let mut sum = 0i64;
    while let Some(row) = stream.try_next().await? {
        sum += i64::from(row.get::<_, i32>(0));
    }
    check("streamed", sum, 4_501_500);
    Ok(())
}

async fn transactions(client: &mut Client) -> Outcome {
    let mut outer = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await?;
    outer.execute("insert into tp_line (q) values (100)", &[]).await?;
    {
        let inner = outer.savepoint("one").await?;
        check("inside", code(inner.execute("insert into tp_line (kind, q) values (-1, 1)", &[]).await), "23503");
        inner.rollback().await?;
    }
    let inner = outer.transaction().await?;
    inner.execute("insert into tp_line (q) values (101)", &[]).await?;
    inner.commit().await?;
    outer.commit().await?;
    let count = |row: Row| row.get::<_, i64>(0);
    check("committed", count(client.query_one("select count(*) from tp_line where q >= 100", &[]).await?), 2);
    let dropped = client.transaction().await?;
    dropped.execute("delete from tp_line", &[]).await?;
    drop(dropped);
    check("rolled back", count(client.query_one("select count(*) from tp_line", &[]).await?), 12);
    let reading = client.build_transaction().read_only(true).start().await?;
    check("read only", code(reading.execute("delete from tp_line", &[]).await), "25006");
    check("failed block", code(reading.query("select 1", &[]).await), "25P02");
    reading.rollback().await?;
    let portals = client.transaction().await?;
    let portal = portals.bind("select q from tp_line where q <= 10 order by q", &[]).await?;
    let mut pieces = Vec::new();
    loop {
        let rows = portals.query_portal(&portal, 4).await?;
        pieces.push(rows.len());
        if rows.len() < 4 {
            break;
        }
    }
    check("portal in pieces", pieces, vec![4, 4, 2]);
    portals.commit().await?;
    Ok(())
}

async fn pipelines(client: &Client) -> Outcome {
    let statement = client.prepare("select 10 / $1::int4").await?;
    let all = futures_util::future::join_all([1, 0, 5].iter().map(|n| { let statement = &statement; async move { client.query_one(statement, &[n]).await.map(|row| row.get::<_, i32>(0)) } })).await;
    check("pipelined", all.into_iter().map(|one| one.map_or_else(|error| code::<()>(Err(error)), |n| n.to_string())).collect::<Vec<_>>(), vec!["10", "22012", "2"]);
    Ok(())
}

async fn copies(client: &Client) -> Outcome {
    let sink = client.copy_in("copy tp_line (kind, q) from stdin with (format binary)").await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &[Type::INT4, Type::INT4]));
    for n in 1000..3000 {
        writer.as_mut().write(&[&1, &n]).await?;
    }
    check("binary copy in", writer.finish().await?, 2000);
    let stream = client.copy_out("copy (select q, kind from tp_line where q >= 1000 order by q) to stdout with (format binary)").await?;
    let rows: Vec<_> = BinaryCopyOutStream::new(stream, &[Type::INT4, Type::INT4]).try_collect().await?;
    check("binary copy out", (rows.len(), rows[1999].get::<i32>(0)), (2000, 2999));
    let sink = client.copy_in("copy tp_line (q) from stdin").await?;
    let mut sink = pin!(sink);
    sink.send(Bytes::from_static(b"5000\n5001\nnot a number\n")).await?;
    check("copy, bad row", code(sink.finish().await), "22P02");
    let mut text = Vec::new();
    let mut stream = pin!(client.copy_out("copy (select q, kind from tp_line where q > 99 and q < 102 order by q) to stdout").await?);
    while let Some(piece) = stream.next().await {
        text.extend_from_slice(&piece?);
    }
    check("copy out", String::from_utf8(text)?, "100\t\\N\n101\t\\N\n");
    Ok(())
}

async fn cancellation(url: &str) -> Outcome {
    let client = connect(url).await?;
    client.batch_execute("set statement_timeout = '150ms'").await?;
    check("statement_timeout", code(client.query("select pg_sleep(30)", &[]).await), "57014");
    client.batch_execute("reset statement_timeout").await?;
    let token = client.cancel_token();
    let canceller = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        token.cancel_query(NoTls).await
    });
    check("cancelled", code(client.query("select pg_sleep(30)", &[]).await), "57014");
    canceller.await??;
    check("afterwards", client.query_one("select 1", &[]).await?.get::<_, i32>(0), 1);
    Ok(())
}
