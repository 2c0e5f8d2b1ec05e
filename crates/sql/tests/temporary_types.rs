//! Temporary tables with columns of types that another session drops: whoever has them is told
//! which type is gone.
#![allow(clippy::disallowed_methods, reason = "the support serves sessions on the real runtime")]

mod support;

use support::Collected;
use telesto_sql::{Session, SessionOptions};

/// What a statement gives, or its error.
async fn run(session: &mut Session, sql: &str) -> Result<Vec<String>, String> {
    let mut sink = Collected::default();
    session
        .execute_simple(sql, &mut sink)
        .await
        .map_err(|error| format!("{}: {}", error.code(), error.message()))?;
    let rows = sink.table.map(|table| table.rows).unwrap_or_default();
    let cells = |row: Vec<Option<String>>| row.into_iter().flatten().collect::<Vec<_>>().join("|");
    Ok(rows.into_iter().map(cells).collect())
}

fn gone(ty: &str) -> Result<Vec<String>, String> {
    Err(format!("42704: type \"{ty}\" does not exist"))
}

#[tokio::test]
async fn a_type_that_another_session_drops_is_named_to_whoever_has_a_temporary_column_of_it() {
    let engine = support::engine().await.expect("an engine");
    let mut a = engine.session(SessionOptions::default()).await.expect("a session");
    let mut b = engine.session(SessionOptions::default()).await.expect("a session");
    let done = Ok(Vec::new());
    let types = "create type mood as enum ('x'); create type pair as (p int, q int)";
    assert_eq!(run(&mut a, types).await, done);
    assert_eq!(run(&mut b, "create temp table tt (id int, m mood, ps pair[])").await, done);
    let row = "insert into tt values (1, 'x', array[row(1, 2)::pair])";
    assert_eq!(run(&mut b, row).await, done);
    assert_eq!(run(&mut a, "drop type mood; drop type pair").await, done);
    assert_eq!(run(&mut b, "select id from tt").await, Ok(vec!["1".to_owned()]));
    assert_eq!(run(&mut b, "select m from tt").await, gone("mood"));
    assert_eq!(run(&mut b, "select ps from tt").await, gone("pair"));
    assert_eq!(run(&mut b, "select * from tt where id = 1").await, gone("mood"));
    assert_eq!(run(&mut b, "insert into tt (id) values (2)").await, gone("mood"));
    assert_eq!(run(&mut b, "alter table tt drop column m").await, done);
    assert_eq!(run(&mut b, "update tt set id = 3").await, gone("pair"));
    assert_eq!(run(&mut b, "alter table tt drop column ps").await, done);
    assert_eq!(run(&mut b, "update tt set id = 3").await, done);
    assert_eq!(run(&mut b, "select * from tt").await, Ok(vec!["3".to_owned()]));
}
