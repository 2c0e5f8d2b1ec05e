//! Settings that sessions begin with: in which order, for whom, and what RESET goes back to.

use std::sync::Arc;

use telesto_sql::catalog::store::{CatalogChange, Object};
use telesto_sql::{Session, SessionOptions, SqlEngine};
use telesto_txn::TxnOptions;

use super::{as_role, engine, run, told};

const SETUP: &str = "
CREATE ROLE ann LOGIN;
CREATE ROLE bob LOGIN;
CREATE ROLE staff NOLOGIN;
GRANT staff TO bob;
ALTER ROLE ALL SET work_mem = '1MB';
ALTER ROLE ALL SET app.tenant = 'all';
ALTER ROLE ALL SET search_path = nowhere;
ALTER DATABASE telesto SET work_mem = '2MB';
ALTER DATABASE telesto SET app.tenant = 'database';
ALTER DATABASE telesto SET telesto.text_cache = 'eager';
ALTER ROLE ann SET work_mem = '3MB';
ALTER ROLE ann SET search_path TO \"$user\", \"A b\";
ALTER ROLE ann SET statement_timeout = '90s';
ALTER ROLE ann SET log_statement = 'all';
ALTER ROLE ann SET default_transaction_read_only = on;
ALTER ROLE ann SET timezone = 'europe/berlin';
ALTER ROLE ann SET application_name = 'of ann';
ALTER ROLE ann IN DATABASE telesto SET work_mem = '4MB';
";

async fn town() -> (Arc<SqlEngine>, Session) {
    let engine = engine().await.expect("an engine");
    let mut boss = as_role(&engine, "telesto").await;
    for statement in SETUP.split(";\n").map(str::trim).filter(|text| !text.is_empty()) {
        run(&mut boss, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    (engine, boss)
}

async fn settings(session: &mut Session, names: &[&str]) -> Vec<String> {
    let mut values = Vec::new();
    for name in names {
        values.push(told(session, &format!("SHOW {name}")).await);
    }
    values
}

/// Value, source and value after RESET, as pg_settings says.
async fn shown(session: &mut Session, name: &str) -> String {
    let sql = format!(
        "SELECT setting, source, reset_val FROM pg_settings WHERE lower(name) = lower('{name}')"
    );
    told(session, &sql).await
}

const NAMES: [&str; 6] = [
    "work_mem",
    "app.tenant",
    "search_path",
    "statement_timeout",
    "TimeZone",
    "telesto.text_cache",
];

#[tokio::test]
async fn nearest_setting_is_in_force_and_sessions_under_way_keep_theirs() {
    let (engine, mut boss) = town().await;
    let built_in = ["4MB", "\"$user\", public", "0", "UTC", "on"];
    let names = ["work_mem", "search_path", "statement_timeout", "TimeZone", "telesto.text_cache"];
    assert_eq!(settings(&mut boss, &names).await, built_in);
    let mut ann = as_role(&engine, "ann").await;
    let of_ann = ["4MB", "database", "\"$user\", \"A b\"", "90s", "Europe/Berlin", "eager"];
    assert_eq!(settings(&mut ann, &NAMES).await, of_ann);
    let mut bob = as_role(&engine, "bob").await;
    let of_bob = ["2MB", "database", "nowhere", "0", "UTC", "eager"];
    assert_eq!(settings(&mut bob, &NAMES).await, of_bob);
    // The first role and names that nobody has begin with what is for all.
    for user in ["telesto", "stranger"] {
        let mut session = as_role(&engine, user).await;
        assert_eq!(settings(&mut session, &NAMES).await, of_bob, "{user}");
    }
    assert_eq!(told(&mut ann, "CREATE TABLE t (a int)").await.split(' ').next(), Some("!25006"));
    for (name, expected) in [
        ("work_mem", "4MB|database user|4MB"),
        ("statement_timeout", "90s|user|90s"),
        ("telesto.text_cache", "eager|database|eager"),
        ("enable_sort", "on|default|on"),
        ("log_statement", "all|user|all"),
        ("application_name", "of ann|user|of ann"),
    ] {
        assert_eq!(shown(&mut ann, name).await, expected, "{name}");
    }
    assert_eq!(shown(&mut bob, "search_path").await, "nowhere|global|nowhere");
    // SET ROLE and SET SESSION AUTHORIZATION bring none.
    run(&mut boss, "SET SESSION AUTHORIZATION ann").await.expect("set");
    assert_eq!(settings(&mut boss, &names).await, built_in);
}

#[tokio::test]
async fn reset_goes_back_to_what_the_session_began_with() {
    let (engine, _boss) = town().await;
    let mut ann = as_role(&engine, "ann").await;
    run(&mut ann, "SET default_transaction_read_only = off").await.expect("set");
    for (name, begun) in NAMES.into_iter().zip([
        "4MB",
        "database",
        "\"$user\", \"A b\"",
        "90s",
        "Europe/Berlin",
        "eager",
    ]) {
        let other = match name {
            "TimeZone" => "Asia/Tokyo",
            "telesto.text_cache" => "off",
            "work_mem" => "7MB",
            _ => "7",
        };
        for back in [
            format!("RESET {name}"),
            format!("SET {name} TO DEFAULT"),
            "RESET ALL".to_owned(),
            "DISCARD ALL".to_owned(),
            "ROLLBACK".to_owned(),
        ] {
            if back == "ROLLBACK" {
                run(&mut ann, "BEGIN").await.expect("begun");
            }
            run(&mut ann, &format!("SET {name} = '{other}'")).await.expect(name);
            assert_ne!(told(&mut ann, &format!("SHOW {name}")).await, begun);
            run(&mut ann, &back).await.unwrap_or_else(|error| panic!("{back}: {error}"));
            assert_eq!(told(&mut ann, &format!("SHOW {name}")).await, begun, "{back}");
        }
    }
    assert_eq!(shown(&mut ann, "work_mem").await, "4MB|database user|4MB");
    run(&mut ann, "SET work_mem = '4MB'").await.expect("set");
    assert_eq!(shown(&mut ann, "work_mem").await, "4MB|session|4MB");
    run(&mut ann, "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE").await.expect("set");
    let read_only = shown(&mut ann, "default_transaction_read_only").await;
    assert_eq!(read_only, "off|session|on");
    // A superuser's to reset, too.
    assert!(told(&mut ann, "RESET log_statement").await.starts_with("!42501"));
}

#[tokio::test]
async fn what_the_client_asks_for_goes_over_what_is_stored() {
    let (engine, _boss) = town().await;
    let options = SessionOptions {
        user: "ann".to_owned(),
        application_name: "client".to_owned(),
        parameters: vec![("work_mem".to_owned(), "9MB".to_owned())],
        ..SessionOptions::default()
    };
    let mut ann = engine.session(options).await.expect("a session");
    assert_eq!(shown(&mut ann, "work_mem").await, "9MB|client|9MB");
    assert_eq!(shown(&mut ann, "application_name").await, "client|client|client");
    run(&mut ann, "SET work_mem = '1MB'").await.expect("set");
    run(&mut ann, "RESET work_mem").await.expect("reset");
    assert_eq!(shown(&mut ann, "work_mem").await, "9MB|client|9MB");
    // What is stored for a superuser's parameter does not let the role ask for it.
    let options = SessionOptions {
        user: "ann".to_owned(),
        parameters: vec![("log_statement".to_owned(), "none".to_owned())],
        ..SessionOptions::default()
    };
    assert_eq!(engine.session(options).await.expect_err("refused").code().0, "42501");
    // The server's own sessions have none.
    let options = SessionOptions { bare: true, ..SessionOptions::default() };
    let mut own = engine.session(options).await.expect("a session");
    assert_eq!(told(&mut own, "SHOW telesto.text_cache").await, "on");
}

#[tokio::test]
async fn renamed_role_keeps_its_settings_and_a_new_one_of_its_name_has_none() {
    let (engine, mut boss) = town().await;
    run(&mut boss, "ALTER ROLE ann RENAME TO eve").await.expect("renamed");
    let mut eve = as_role(&engine, "eve").await;
    assert_eq!(told(&mut eve, "SHOW work_mem").await, "4MB");
    eve.close();
    run(&mut boss, "DROP ROLE eve").await.expect("dropped");
    let left = "SELECT count(*) FROM pg_db_role_setting WHERE setrole <> 0";
    assert_eq!(told(&mut boss, left).await, "0");
    run(&mut boss, "CREATE ROLE eve LOGIN").await.expect("made");
    let mut eve = as_role(&engine, "eve").await;
    assert_eq!(told(&mut eve, "SHOW work_mem").await, "2MB");
    for statement in ["ALTER ROLE ALL RESET ALL", "ALTER DATABASE telesto RESET ALL"] {
        run(&mut boss, statement).await.expect(statement);
    }
    let mut eve = as_role(&engine, "eve").await;
    let names = ["work_mem", "search_path", "telesto.text_cache"];
    assert_eq!(settings(&mut eve, &names).await, ["4MB", "\"$user\", public", "on"]);
    assert!(told(&mut eve, "SHOW app.tenant").await.starts_with("!42704"));
}

#[tokio::test]
async fn setting_that_is_none_any_more_is_told_and_keeps_nobody_out() {
    let (engine, _boss) = town().await;
    // As a version stored it that knew more.
    let txn = engine.database().begin(TxnOptions::default()).await.expect("begun");
    let catalog = telesto_sql::catalog::CatalogCache::default();
    let catalog =
        catalog.read(&txn, telesto_sql::catalog::DEFAULT_DATABASE_ID).await.expect("read");
    let ann = catalog.role_named("ann").expect("there").oid;
    let mut stored = (**catalog.settings_of(ann, false).expect("stored")).clone();
    stored.values.insert(0, ("gone".to_owned(), "1".to_owned()));
    stored.values.insert(1, ("enable_sort".to_owned(), "perhaps".to_owned()));
    let mut change = CatalogChange::new(Arc::clone(&txn), &catalog);
    change.put(Object::Settings(stored));
    change.finish(engine.env()).await.expect("written");
    txn.commit().await.expect("committed");

    let mut ann = as_role(&engine, "ann").await;
    let notices: Vec<_> = ann.take_notices().into_iter().collect();
    let told_of: Vec<_> =
        notices.iter().map(|n| (n.severity, n.code.0, n.message.as_str())).collect();
    let expected = [
        ("WARNING", "42704", "unrecognized configuration parameter \"gone\""),
        ("WARNING", "22023", "parameter \"enable_sort\" requires a Boolean value"),
    ];
    assert_eq!(told_of, expected);
    assert_eq!(told(&mut ann, "SHOW statement_timeout").await, "90s", "the others are in force");
    assert_eq!(told(&mut ann, "SHOW enable_sort").await, "on");
    let mut boss = as_role(&engine, "telesto").await;
    run(&mut boss, "ALTER ROLE ann RESET ALL").await.expect("all goes");
    let config = "SELECT rolconfig IS NULL FROM pg_roles WHERE rolname = 'ann'";
    assert_eq!(told(&mut boss, config).await, "t");
}

#[tokio::test]
async fn session_begins_with_another_role_where_it_may_become_that() {
    let (engine, mut boss) = town().await;
    for role in ["ann", "bob"] {
        let statement = format!("ALTER ROLE {role} SET role = staff");
        run(&mut boss, &statement).await.expect("stored");
    }
    let who = "SELECT current_user, session_user";
    let mut ann = as_role(&engine, "ann").await;
    assert_eq!(told(&mut ann, who).await, "ann|ann");
    let notices = ann.take_notices();
    assert_eq!(notices[0].message, "permission denied to set role \"staff\"");
    let mut bob = as_role(&engine, "bob").await;
    assert!(bob.take_notices().is_empty());
    for (statement, current) in [
        ("SHOW work_mem", "staff"),
        ("SET ROLE NONE", "bob"),
        ("RESET ROLE", "staff"),
        ("SET ROLE bob", "bob"),
        ("SET role = DEFAULT", "staff"),
        ("SET ROLE bob", "bob"),
        ("RESET ALL", "bob"),
        ("DISCARD ALL", "staff"),
        ("SET SESSION AUTHORIZATION bob", "bob"),
        ("SET SESSION AUTHORIZATION DEFAULT", "staff"),
        ("SET ROLE NONE", "bob"),
        ("RESET SESSION AUTHORIZATION", "staff"),
        ("SET ROLE NONE", "bob"),
        ("DISCARD ALL", "staff"),
        ("SET SESSION AUTHORIZATION DEFAULT", "staff"),
    ] {
        run(&mut bob, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
        assert_eq!(told(&mut bob, who).await, format!("{current}|bob"), "{statement}");
    }
    // Not any more: only sessions to come are told.
    run(&mut boss, "REVOKE staff FROM bob").await.expect("revoked");
    assert!(told(&mut bob, "RESET ROLE").await.starts_with("!42501"));
    assert!(told(&mut bob, "RESET SESSION AUTHORIZATION").await.starts_with("!42501"));
    let bob = as_role(&engine, "bob").await;
    assert_eq!(bob.take_notices().len(), 1);
}

#[tokio::test]
async fn way_back_from_another_session_authorization_is_to_the_role_that_was_stored() {
    let (engine, mut boss) = town().await;
    for statement in ["CREATE ROLE chief LOGIN SUPERUSER", "ALTER ROLE chief SET role = staff"] {
        run(&mut boss, statement).await.expect(statement);
    }
    let who = "SELECT session_user, current_user, current_setting('role'), current_setting('is_superuser')";
    let mut chief = as_role(&engine, "chief").await;
    assert_eq!(told(&mut chief, who).await, "chief|staff|staff|off");
    // As PostgreSQL 15.20 answers them.
    for (statements, answer) in [
        (&["SET SESSION AUTHORIZATION ann"][..], "ann|ann|none|off"),
        (&["RESET ROLE"], "ann|staff|staff|off"),
        (&["SET ROLE NONE"], "ann|ann|none|off"),
        (&["RESET SESSION AUTHORIZATION"], "chief|staff|staff|off"),
        (&["SET ROLE NONE"], "chief|chief|none|on"),
        (&["BEGIN", "SET LOCAL session_authorization = ann"], "ann|ann|none|off"),
        (&["COMMIT"], "chief|chief|none|on"),
        (&["BEGIN", "SET LOCAL session_authorization = DEFAULT"], "chief|staff|staff|off"),
        (&["COMMIT"], "chief|chief|none|on"),
        (&["RESET ALL"], "chief|chief|none|on"),
        (&["SET SESSION AUTHORIZATION chief"], "chief|chief|none|on"),
    ] {
        for statement in statements {
            run(&mut chief, statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        assert_eq!(told(&mut chief, who).await, answer, "{statements:?}");
    }
}

#[tokio::test]
async fn what_no_session_begins_with_is_refused() {
    let (_engine, mut boss) = town().await;
    for name in
        ["session_authorization", "transaction_isolation", "transaction_read_only", "telesto.cost"]
    {
        let answer = told(&mut boss, &format!("ALTER ROLE ann SET {name} = 'x'")).await;
        let code = if name == "telesto.cost" { "!42704" } else { "!0A000" };
        assert!(answer.starts_with(code), "{name}: {answer}");
    }
    assert!(
        told(&mut boss, "ALTER DATABASE postgres SET work_mem = 64").await.starts_with("!3D000")
    );
    assert!(told(&mut boss, "ALTER DATABASE telesto SET TABLESPACE x").await.starts_with("!0A000"));
}
