//! What holds up to Sync, as whom a session goes on, and what the protocol says beside rows.

use telesto_server::ServerConfig;

use crate::support::{Node, Raw, bind, error_field, execute, frame, parse, query, startup, sync};

/// The messages that run a statement, without Sync.
fn run(sql: &str) -> Vec<u8> {
    [parse("", sql), bind("", ""), execute("", 0)].concat()
}

fn row(body: &[u8]) -> String {
    let mut rest = &body[2..];
    let mut cells = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        cells.push(String::from_utf8_lossy(&after[..length]).into_owned());
        rest = &after[length..];
    }
    cells.join("|")
}

/// Rows and codes of errors up to ReadyForQuery.
async fn told(raw: &mut Raw) -> Vec<String> {
    let messages = raw.until(b'Z').await;
    messages
        .iter()
        .filter_map(|(kind, body)| match kind {
            b'D' => Some(row(body)),
            b'E' => error_field(body, b'C'),
            _ => None,
        })
        .collect()
}

/// What statements before one Sync tell.
async fn pipeline(raw: &mut Raw, statements: &[&str]) -> Vec<String> {
    let mut bytes: Vec<u8> = statements.iter().flat_map(|sql| run(sql)).collect();
    bytes.extend(sync());
    raw.send(&bytes).await;
    told(raw).await
}

async fn simple(raw: &mut Raw, sql: &str) -> Vec<String> {
    raw.send(&query(sql)).await;
    told(raw).await
}

async fn with_table() -> (Node, Raw) {
    let node = Node::start(ServerConfig::default()).await;
    let mut raw = Raw::ready(&node).await;
    assert!(simple(&mut raw, "create table t (n int primary key)").await.is_empty());
    (node, raw)
}

#[tokio::test]
async fn what_is_local_holds_up_to_sync_and_no_further() {
    let (_node, mut raw) = with_table().await;
    let tenant = "select current_setting('app.tenant', true)";
    assert_eq!(pipeline(&mut raw, &["set local app.tenant = 'b'", tenant]).await, ["b"]);
    assert_eq!(pipeline(&mut raw, &[tenant]).await, [""]);
    let timeout = "show statement_timeout";
    let set = "set local statement_timeout = '5s'";
    assert_eq!(pipeline(&mut raw, &["select 1", set, timeout]).await, ["1", "5s"]);
    assert_eq!(pipeline(&mut raw, &[timeout]).await, ["0"]);
    // A statement that writes behind it is of the same transaction.
    let writes = [set, "select count(*) from t", "insert into t values (1)", timeout];
    assert_eq!(pipeline(&mut raw, &writes).await, ["0", "5s"]);
    assert_eq!(simple(&mut raw, "select n from t; show statement_timeout").await, ["1", "0"]);
    // BEGIN makes the transaction that it was set in a block.
    let begins = ["set local app.tenant = 'c'", "begin isolation level repeatable read"];
    assert!(pipeline(&mut raw, &begins).await.is_empty());
    assert_eq!(simple(&mut raw, tenant).await, ["c"]);
    assert_eq!(
        simple(&mut raw, "rollback; select current_setting('app.tenant', true)").await,
        [""]
    );
    // Outside of a pipeline it is local to nothing.
    assert!(simple(&mut raw, "set local statement_timeout = '5s'").await.is_empty());
    assert_eq!(simple(&mut raw, timeout).await, ["0"]);
}

#[tokio::test]
async fn modes_of_a_transaction_hold_up_to_sync() {
    let (_node, mut raw) = with_table().await;
    let (only, insert) = ("set transaction read only", "insert into t values (1)");
    assert_eq!(pipeline(&mut raw, &[only, insert]).await, ["25006"]);
    assert_eq!(pipeline(&mut raw, &["select n from t", only, insert]).await, ["25006"]);
    assert_eq!(pipeline(&mut raw, &["set transaction_read_only = on", insert]).await, ["25006"]);
    assert_eq!(simple(&mut raw, &format!("{only}; {insert}")).await, ["25006"]);
    let shown = "show transaction_read_only";
    assert_eq!(pipeline(&mut raw, &[only, shown]).await, ["on"]);
    // A transaction that has only read so far is none that only reads.
    assert_eq!(pipeline(&mut raw, &["select count(*) from t", shown, insert]).await, ["0", "off"]);
    let level = "show transaction_isolation";
    let set = "set transaction isolation level repeatable read";
    assert_eq!(pipeline(&mut raw, &[set, level]).await, ["repeatable read"]);
    let writes = [set, "insert into t values (2)", level];
    assert_eq!(pipeline(&mut raw, &writes).await, ["repeatable read"]);
    assert_ne!(pipeline(&mut raw, &[level]).await, ["repeatable read"]);
    assert_eq!(simple(&mut raw, "select n from t order by n").await, ["1", "2"]);
}

#[tokio::test]
async fn what_a_failed_pipeline_set_is_undone() {
    let (_node, mut raw) = with_table().await;
    let (set, shown) = ("set application_name = 'zz'", "show application_name");
    assert_eq!(pipeline(&mut raw, &[set, shown, "select 1 / 0"]).await, ["zz", "22012"]);
    assert_eq!(pipeline(&mut raw, &[shown]).await, [""]);
    assert!(pipeline(&mut raw, &[set, "insert into t values (1)"]).await.is_empty());
    assert_eq!(pipeline(&mut raw, &[shown]).await, ["zz"]);
    assert_eq!(
        pipeline(&mut raw, &["reset application_name", shown, "nonsense"]).await,
        ["", "42601"]
    );
    assert_eq!(pipeline(&mut raw, &[shown]).await, ["zz"]);
}

#[tokio::test]
async fn set_config_of_the_role_is_set_role() {
    let (node, mut raw) = with_table().await;
    assert!(simple(&mut raw, "create role web login; create role other").await.is_empty());
    let (local, who) = ("select set_config('role', 'web', true)", "select current_user");
    assert_eq!(pipeline(&mut raw, &[local, who, "select n from t"]).await, ["web", "web", "42501"]);
    assert_eq!(simple(&mut raw, who).await, ["telesto"]);
    assert_eq!(
        simple(&mut raw, &format!("begin; {local}; {who}; show role; commit; {who}")).await,
        ["web", "web", "web", "telesto"]
    );
    // What is called beside it is asked of who calls.
    let both = "select set_config('role', 'web', false), set_config('log_statement', 'all', false)";
    assert_eq!(simple(&mut raw, both).await, ["web|all"]);
    assert_eq!(simple(&mut raw, "show log_statement; select current_user").await, ["all", "web"]);
    assert_eq!(simple(&mut raw, "set log_statement = 'none'").await, ["42501"]);
    assert_eq!(simple(&mut raw, "select set_config('role', 'none', false)").await, ["none"]);
    assert_eq!(simple(&mut raw, who).await, ["telesto"]);
    assert_eq!(simple(&mut raw, "select set_config('role', 'nobody', true)").await, ["22023"]);
    let mut web = Raw::connect(&node).await;
    web.send(&startup(&[("user", "web"), ("database", "telesto")])).await;
    web.until(b'Z').await;
    for role in ["other", "telesto"] {
        let asked = format!("select set_config('role', '{role}', false)");
        assert_eq!(simple(&mut web, &asked).await, ["42501"], "{role}");
    }
    assert_eq!(simple(&mut web, who).await, ["web"]);
    assert_eq!(simple(&mut web, "select n from t").await, ["42501"]);
}

#[tokio::test]
async fn session_begins_as_the_role_that_its_packet_asks_for() {
    let (node, mut raw) = with_table().await;
    assert!(simple(&mut raw, "create role web login").await.is_empty());
    let mut begun = Raw::connect(&node).await;
    let options = ("options", "-c role=web -c application_name=o");
    let packet = [("user", "telesto"), ("database", "telesto"), options, ("application_name", "p")];
    begun.send(&startup(&packet)).await;
    begun.until(b'Z').await;
    let shown = "select current_user, session_user; show application_name";
    assert_eq!(simple(&mut begun, shown).await, ["web|telesto", "p"]);
    assert_eq!(simple(&mut begun, "select n from t").await, ["42501"]);
    assert_eq!(simple(&mut begun, "set role none; reset role; select current_user").await, ["web"]);
    for (user, role, code) in [("web", "telesto", "42501"), ("telesto", "nobody", "22023")] {
        let mut refused = Raw::connect(&node).await;
        let role = format!("-c role={role}");
        refused
            .send(&startup(&[("user", user), ("database", "telesto"), ("options", &role)]))
            .await;
        let messages = refused.until(b'E').await;
        let (_, body) = messages.last().expect("an error");
        assert_eq!(error_field(body, b'C').as_deref(), Some(code), "{user}, {role}");
    }
}

#[tokio::test]
async fn rows_that_changed_are_told_by_the_routine_that_drivers_look_for() {
    let (_node, mut raw) = with_table().await;
    raw.send(&[parse("s", "select * from t"), bind("", "s"), execute("", 0), sync()].concat())
        .await;
    assert!(told(&mut raw).await.is_empty());
    assert!(simple(&mut raw, "alter table t add column x int").await.is_empty());
    raw.send(&[bind("", "s"), execute("", 0), sync()].concat()).await;
    let messages = raw.until(b'Z').await;
    let (_, body) = messages.iter().find(|(kind, _)| *kind == b'E').expect("an error");
    assert_eq!(error_field(body, b'C').as_deref(), Some("0A000"));
    assert_eq!(error_field(body, b'R').as_deref(), Some("RevalidateCachedQuery"));
}

#[tokio::test]
async fn session_that_idles_longer_than_it_asked_for_is_ended() {
    let (node, _raw) = with_table().await;
    for (sql, code) in [
        ("set idle_session_timeout = 50", "57P05"),
        ("begin; set local idle_in_transaction_session_timeout = '50ms'", "25P03"),
    ] {
        let mut raw = Raw::ready(&node).await;
        raw.send(&query(sql)).await;
        let messages = raw.until(b'E').await;
        let (_, body) = messages.last().expect("an error");
        assert_eq!(error_field(body, b'C').as_deref(), Some(code), "{sql}");
        assert!(raw.message().await.is_none(), "{sql}: it goes on");
    }
    // In a transaction the other bound is asked, and none is none.
    let mut raw = Raw::ready(&node).await;
    simple(&mut raw, "begin; set idle_session_timeout = 20").await;
    tokio::time::sleep(std::time::Duration::from_millis(120)).await;
    assert_eq!(simple(&mut raw, "select 1").await, ["1"]);
}

#[tokio::test]
async fn messages_that_are_not_served_are_answered_as_their_protocol_demands() {
    let (_node, mut raw) = with_table().await;
    raw.send(&frame(b'F', &[0, 0, 4, 210, 0, 0, 0, 0, 0, 0])).await;
    assert_eq!(told(&mut raw).await, ["0A000"]);
    assert_eq!(simple(&mut raw, "begin; select 1").await, ["1"]);
    raw.send(&frame(b'F', &[0, 0, 4, 210, 0, 0, 0, 0, 0, 0])).await;
    assert_eq!(raw.kinds().await, "EZE");
    raw.send(&frame(b'p', b"pencil\0")).await;
    let messages = raw.until(b'E').await;
    let (_, body) = messages.last().expect("an error");
    let fields = (error_field(body, b'S'), error_field(body, b'C'));
    assert_eq!(fields, (Some("FATAL".to_owned()), Some("08P01".to_owned())));
    assert!(raw.message().await.is_none(), "it goes on");
}
