//! `pg_proc` lists what can be called: each function binds with arguments of the types it lists.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it starts processes, threads and tasks of its own"
)]

mod support;

use support::{Collected, session};

/// Types that values of some other type are taken for.
fn stand_in(ty: &str) -> &str {
    match ty {
        "\"any\"" | "anyelement" | "anynonarray" | "anycompatible" | "anycompatiblenonarray" => {
            "int4"
        }
        "anyarray" | "anycompatiblearray" => "int4[]",
        ty => ty,
    }
}

#[tokio::test]
async fn each_function_that_pg_proc_lists_binds_with_the_types_it_lists() {
    let mut session = session().await.expect("session");
    let mut collected = Collected::default();
    let sql = "SELECT p.oid, proname, prokind, prosrc, pg_get_function_arguments(p.oid) FROM pg_proc p \
               JOIN pg_type r ON r.oid = prorettype WHERE NOT 2281 = ANY (proargtypes) AND NOT 2275 = ANY (proargtypes) \
               AND NOT prorettype = ANY (ARRAY[2275, 2281])";
    session.execute_simple(sql, &mut collected).await.expect("a query");
    let rows = collected.table.take().expect("rows").rows;
    assert!(rows.len() > 600, "{} functions", rows.len());
    let mut refused = Vec::new();
    for row in rows {
        let cell = |at: usize| row[at].clone().unwrap_or_default();
        let (name, kind, listed) = (cell(1), cell(2), cell(4));
        // Of types that Telesto has not.
        if listed.contains("???") || name.ends_with("send") || name.ends_with("out") {
            continue; // of a type, never called by its name
        }
        let arguments = listed.split(", ").filter(|ty| !ty.is_empty());
        let arguments: Vec<String> =
            arguments.map(|ty| format!("NULL::{}", stand_in(ty))).collect();
        let over = if kind == "w" { " OVER ()" } else { "" };
        let call = format!("pg_catalog.\"{name}\"({}){over}", arguments.join(", "));
        let prepare = format!("PREPARE p AS SELECT {call}; DEALLOCATE p");
        if let Err(error) = session.execute_simple(&prepare, &mut collected).await {
            refused.push(format!("{call}: {error}"));
        }
    }
    assert!(refused.is_empty(), "{} do not bind:\n{}", refused.len(), refused.join("\n"));
}
