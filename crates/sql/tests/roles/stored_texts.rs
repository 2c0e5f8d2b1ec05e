//! What a stored text means is not for its reader to say: neither by a time zone nor by a type of
//! its own that is called like another.

use std::sync::Arc;

use telesto_sql::Session;
use telesto_sql::catalog::store::{CatalogChange, Object};
use telesto_txn::TxnOptions;

use super::{Town, as_role, run, told, town};

const SETUP: &[&str] = &[
    "CREATE SCHEMA lair AUTHORIZATION mallory",
    "CREATE TYPE desk.lvl AS ENUM ('low', 'mid', 'high')",
    "CREATE TABLE desk.doc (id int PRIMARY KEY, l desk.lvl, ts timestamptz, d date)",
    "INSERT INTO desk.doc VALUES (1, 'low', '2020-06-01 01:00+00', '2020-01-01'), (2, 'mid', '2020-06-01 03:00+00', '2020-01-01'), (3, 'high', '2020-06-01 05:00+00', (now() AT TIME ZONE 'America/New_York')::date)",
    "CREATE TABLE desk.entry (LIKE desk.doc INCLUDING ALL)",
    "SET search_path = desk, public",
    "SET timezone = 'America/New_York'",
    "CREATE POLICY by_level ON doc FOR SELECT USING (l::text::lvl >= 'high'::lvl)",
    "CREATE POLICY by_array ON doc AS RESTRICTIVE FOR SELECT USING (l::text::lvl = ANY (ARRAY['high']::lvl[]) AND l::text::lvl = CAST('high' AS lvl))",
    "CREATE POLICY by_time ON doc AS RESTRICTIVE FOR SELECT USING (ts >= '2020-06-01 00:00')",
    "CREATE POLICY by_query ON doc AS RESTRICTIVE FOR SELECT USING (EXISTS (SELECT 1 FROM (VALUES (timestamptz '2020-06-01 00:00')) v (at) WHERE at <= ts AND 'doc'::regclass = 'desk.doc'::regclass))",
    "CREATE POLICY by_day ON doc AS RESTRICTIVE FOR SELECT USING (d = 'today')",
    "CREATE POLICY writes ON entry FOR INSERT WITH CHECK (ts >= '2020-06-01 00:00' AND l::text::lvl = 'high'::lvl)",
    "CREATE POLICY writes_too ON entry AS RESTRICTIVE FOR INSERT WITH CHECK ((SELECT l::text::lvl) = 'high'::lvl)",
    "CREATE VIEW wall WITH (security_barrier) AS SELECT * FROM (SELECT * FROM doc) q WHERE l::text::lvl >= 'high'::lvl AND ts >= '2020-06-01 00:00'",
    "CREATE VIEW gate AS SELECT id, l, ts, d FROM entry WHERE l::text::lvl = 'high'::lvl AND ts >= '2020-06-01 00:00' WITH CHECK OPTION",
    "ALTER TABLE doc ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE entry ENABLE ROW LEVEL SECURITY",
    "GRANT SELECT ON doc, wall TO mallory",
    "GRANT INSERT ON entry, gate TO mallory",
    "RESET search_path",
    "RESET timezone",
];

async fn made() -> Town {
    let mut town = town().await;
    for sql in SETUP {
        run(&mut town.boss, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    town
}

/// What mallory reads and writes, with a type and a table of its own before all others and in
/// several zones.
async fn tries_to_get_by(mallory: &mut Session) {
    for sql in [
        "CREATE TYPE lair.lvl AS ENUM ('high', 'mid', 'low')",
        "CREATE TABLE lair.doc (id int)",
        "SET search_path = lair, public",
    ] {
        run(mallory, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    for zone in ["UTC", "America/New_York", "Asia/Tokyo"] {
        run(mallory, &format!("SET timezone = '{zone}'")).await.expect("a zone");
        for executor in ["auto", "datafusion"] {
            run(mallory, &format!("SET telesto.executor = {executor}")).await.expect("set");
            assert_eq!(told(mallory, "SELECT id FROM desk.doc ORDER BY id").await, "3");
            assert_eq!(told(mallory, "SELECT id FROM desk.doc WHERE id = 1").await, "");
            assert_eq!(told(mallory, "SELECT id FROM desk.wall ORDER BY id").await, "3");
        }
        run(mallory, "RESET telesto.executor").await.expect("reset");
        for into in ["entry", "gate"] {
            for (l, ts) in [("low", "2020-06-01 05:00+00"), ("high", "2020-06-01 03:00+00")] {
                let sql = format!("INSERT INTO desk.{into} VALUES (1, '{l}', '{ts}')");
                let answer = told(mallory, &sql).await;
                assert!(answer.starts_with("!42501") || answer.starts_with("!44000"), "{answer}");
            }
        }
    }
    for into in ["entry (id, l, ts)", "gate (id, l, ts)"] {
        let id = into.len();
        let sql = format!("INSERT INTO desk.{into} VALUES ({id}, 'high', '2020-06-01 05:00+00')");
        assert_eq!(told(mallory, &sql).await, "INSERT 0 1");
    }
}

#[tokio::test]
async fn a_reader_neither_shadows_a_type_nor_sets_a_zone_for_a_stored_text() {
    let town = made().await;
    tries_to_get_by(&mut as_role(&town.engine, "mallory").await).await;
}

#[tokio::test]
async fn texts_of_older_versions_go_by_their_owner() {
    let mut town = made().await;
    run(&mut town.boss, "ALTER ROLE telesto SET search_path = desk").await.expect("set");
    run(&mut town.boss, "ALTER ROLE telesto SET timezone = 'America/New_York'").await.expect("set");
    // As a version stored them that left names and zones open.
    let older = |text: &mut String| {
        let constant = "'2020-06-01 04:00:00+00'";
        let typed = format!("{constant}::TIMESTAMP WITH TIME ZONE");
        let open = text.replace("desk.lvl", "lvl").replace(&typed, "'2020-06-01 00:00'");
        let open = open.replace(constant, "'2020-06-01 00:00'");
        std::mem::replace(text, open) != *text
    };
    let txn = town.engine.database().begin(TxnOptions::default()).await.expect("begun");
    let cache = telesto_sql::catalog::CatalogCache::default();
    let database = telesto_sql::catalog::DEFAULT_DATABASE_ID;
    let catalog = cache.read(&txn, database).await.expect("read");
    let mut change = CatalogChange::new(Arc::clone(&txn), &catalog);
    let mut opened = 0;
    for table in catalog.tables() {
        let mut table = (**table).clone();
        for policy in &mut table.row_security.policies {
            for text in policy.using.iter_mut().chain(&mut policy.check) {
                opened += usize::from(older(text));
            }
        }
        change.put(Object::Table(table));
    }
    for view in catalog.views() {
        let mut view = (**view).clone();
        opened += usize::from(older(&mut view.query));
        change.put(Object::View(view));
    }
    assert_eq!(opened, 8);
    change.finish(town.engine.env()).await.expect("written");
    txn.commit().await.expect("committed");
    tries_to_get_by(&mut as_role(&town.engine, "mallory").await).await;
}

#[tokio::test]
async fn a_policy_is_shown_with_the_types_and_constants_it_has() {
    let mut town = made().await;
    run(&mut town.boss, "SET search_path = ''").await.expect("set");
    let shown = told(
        &mut town.boss,
        "SELECT policyname, qual FROM pg_catalog.pg_policies WHERE policyname IN ('by_level', 'by_time', 'by_array') ORDER BY 1",
    )
    .await;
    assert_eq!(
        shown,
        "by_array|l::TEXT::desk.lvl = ANY(ARRAY['high']::desk.lvl[]) AND l::TEXT::desk.lvl = CAST('high' AS desk.lvl)\n\
         by_level|l::TEXT::desk.lvl >= 'high'::desk.lvl\n\
         by_time|ts >= '2020-06-01 04:00:00+00'::TIMESTAMP WITH TIME ZONE"
    );
    let named = told(
        &mut town.boss,
        "SELECT qual LIKE '%''desk.doc''::regclass = ''desk.doc''::regclass%' FROM pg_catalog.pg_policies WHERE policyname = 'by_query'",
    )
    .await;
    assert_eq!(named, "t");
    // What is shown makes the same policies.
    let again = told(
        &mut town.boss,
        "SELECT 'CREATE POLICY ' || policyname || '_again ON desk.doc USING (' || qual || ')' FROM pg_catalog.pg_policies WHERE tablename = 'doc'",
    )
    .await;
    for sql in again.lines() {
        assert_eq!(told(&mut town.boss, sql).await, "CREATE POLICY", "{sql}");
    }
    let differ = "SELECT a.policyname FROM pg_catalog.pg_policies a JOIN pg_catalog.pg_policies b ON b.policyname = a.policyname || '_again' WHERE a.qual <> b.qual";
    assert_eq!(told(&mut town.boss, differ).await, "");
    // A view that is kept as text, too.
    let view =
        told(&mut town.boss, "SELECT pg_catalog.pg_get_viewdef('desk.wall'::regclass)").await;
    assert!(
        view.contains("'high'::desk.lvl") && view.contains("'2020-06-01 04:00:00+00'"),
        "{view}"
    );
}

#[tokio::test]
async fn types_that_policies_name_are_renamed_in_them_and_not_dropped() {
    let mut town = made().await;
    for sql in ["DROP VIEW desk.wall", "DROP VIEW desk.gate", "DROP TABLE desk.entry"] {
        run(&mut town.boss, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let mut mallory = as_role(&town.engine, "mallory").await;
    run(&mut town.boss, "ALTER TYPE desk.lvl RENAME TO grade").await.expect("renamed");
    assert_eq!(told(&mut mallory, "SELECT id FROM desk.doc").await, "3");
    let rename = "ALTER TYPE desk.grade RENAME VALUE 'high' TO 'top'";
    run(&mut town.boss, rename).await.expect("renamed");
    assert_eq!(told(&mut mallory, "SELECT id FROM desk.doc").await, "3");
    let refused = told(&mut town.boss, "DROP TYPE desk.grade").await;
    assert!(refused.starts_with("!2BP01"), "{refused}");
}
