//! `pg_proc` lists what can be called: each function binds with arguments of the types it lists,
//! which `pg_type` has.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it starts processes, threads and tasks of its own"
)]

mod support;

use std::collections::BTreeSet;

use support::{Collected, session};

/// Types that values of some other type are taken for.
fn stand_in(ty: &str) -> &str {
    match ty {
        "\"any\"" | "anyelement" | "anynonarray" | "anycompatible" | "anycompatiblenonarray" => {
            "int4"
        }
        "anyarray" | "anycompatiblearray" => "int4[]",
        "anyrange" => "int4range",
        "anymultirange" => "int4multirange",
        ty => ty,
    }
}

#[tokio::test]
async fn each_function_that_pg_proc_lists_binds_with_the_types_it_lists() {
    let mut session = session().await.expect("session");
    let mut collected = Collected::default();
    let sql = "SELECT p.oid, proname, prokind, prosrc, pg_get_function_arguments(p.oid) FROM pg_proc p \
               JOIN pg_type r ON r.oid = prorettype WHERE NOT 2281 = ANY (proargtypes) AND NOT 2275 = ANY (proargtypes) \
               AND NOT 1263 = ANY (proargtypes) AND NOT prorettype = ANY (ARRAY[2275, 2281])";
    session.execute_simple(sql, &mut collected).await.expect("a query");
    let rows = collected.table.take().expect("rows").rows;
    assert!(rows.len() > 600, "{} functions", rows.len());
    let mut refused = Vec::new();
    for row in rows {
        let cell = |at: usize| row[at].clone().unwrap_or_default();
        let (name, kind, listed) = (cell(1), cell(2), cell(4));
        // Of types that Telesto has not, or of a type itself and never called by its name.
        let own = ["send", "out", "_canonical", "_subdiff"].iter().any(|end| name.ends_with(end));
        if listed.contains("???") || own {
            continue;
        }
        // Any number of ranges: a call without VARIADIC gives them one by one.
        let listed = match name.ends_with("multirange") {
            true => listed.replace("[]", ""),
            false => listed,
        };
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

/// Tools that load both (sqlsmith) stop at a type they cannot find.
#[tokio::test]
async fn each_type_that_pg_proc_names_is_in_pg_type() {
    let mut session = session().await.expect("session");
    let mut collected = Collected::default();
    let mut read = async |sql: &str| {
        session.execute_simple(sql, &mut collected).await.expect("a query");
        collected.table.take().expect("rows").rows
    };
    let types = read("SELECT oid FROM pg_type").await;
    let types: BTreeSet<String> = types.into_iter().filter_map(|mut row| row.remove(0)).collect();
    let mut named = 0;
    for row in read("SELECT proname, prorettype, proargtypes FROM pg_proc").await {
        let cell = |at: usize| row[at].clone().unwrap_or_default();
        for oid in cell(2).split(' ').filter(|oid| !oid.is_empty()).chain([cell(1).as_str()]) {
            assert!(types.contains(oid), "{}: type {oid}", cell(0));
            named += 1;
        }
    }
    assert!(named > 1500, "{named} types are named");
}
