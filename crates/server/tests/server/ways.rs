//! Ways by which an ordinary role tries to reach another's data, or more power, by the protocol and
//! over HTTP. Those of SQL alone are in `crates/sql/tests/roles.rs`, those of the console in
//! `crates/console/tests/console.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use telesto_server::access_rules::AccessRules;
use telesto_server::auth::{Users, Verifier};
use telesto_server::{Auth, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_postgres::{Client, NoTls};

use crate::support::{Node, Raw, bind, error_field, execute, frame, parse, query, startup, sync};

/// What nobody but alice may see.
const GOLD: &str = "gold-of-alice";

/// A node where mallory needs no password: these are ways of somebody who is in.
struct Town {
    node: Node,
    boss: Client,
    alice: Client,
    _folder: tempfile::TempDir,
}

impl Town {
    async fn new() -> Self {
        let env = telesto_runtime::env();
        let folder = tempfile::tempdir().expect("directory");
        let path = folder.path().join("access");
        let lines =
            "host all mallory 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
        std::fs::write(&path, lines).expect("written");
        let verifier = Verifier::of_password(&env, "pencil");
        let users = Users::new(&env, BTreeMap::from([("telesto".to_owned(), verifier)]));
        let node = Node::start(ServerConfig {
            auth: Auth::Scram(Arc::new(users)),
            access: Some(AccessRules::read(&path, false).expect("reads")),
            http: Some("127.0.0.1:0".parse().expect("an address")),
            ..ServerConfig::default()
        })
        .await;
        let boss = log_in(&node, "telesto").await;
        let setup = format!(
            "CREATE ROLE alice LOGIN PASSWORD 'pencil'; CREATE ROLE mallory LOGIN PASSWORD 'pencil';
             CREATE SCHEMA vault AUTHORIZATION alice; CREATE SCHEMA desk;
             GRANT USAGE, CREATE ON SCHEMA desk TO PUBLIC;
             CREATE TABLE desk.secret (id int PRIMARY KEY, hidden text);
             INSERT INTO desk.secret VALUES (1, '{GOLD}'), (2, '{GOLD}');
             ALTER TABLE desk.secret OWNER TO alice;
             CREATE TABLE vault.safe AS SELECT * FROM desk.secret; ALTER TABLE vault.safe OWNER TO alice;
             CREATE TABLE desk.lent AS SELECT * FROM desk.secret; GRANT SELECT ON desk.lent TO mallory;
             CREATE TABLE desk.mine (v text); ALTER TABLE desk.mine OWNER TO mallory"
        );
        boss.batch_execute(&setup).await.expect("made");
        let alice = log_in(&node, "alice").await;
        Self { node, boss, alice, _folder: folder }
    }

    /// A session of mallory: the messages up to the first ReadyForQuery, or to the end.
    async fn begin(&self, parameters: &[(&str, &str)]) -> (Raw, Vec<(u8, Vec<u8>)>) {
        let mut raw = Raw::connect(&self.node).await;
        let mut all = vec![("user", "mallory"), ("database", "telesto")];
        all.extend(parameters);
        raw.send(&startup(&all)).await;
        let told = rest(&mut raw).await;
        (raw, told)
    }

    async fn http(&self, request: &str) -> (u16, String) {
        let address = self.node.server.http_address().expect("listens");
        let mut socket = TcpStream::connect(address).await.expect("connects");
        socket.write_all(request.as_bytes()).await.expect("sent");
        let mut raw = Vec::new();
        let _ = socket.read_to_end(&mut raw).await;
        let raw = String::from_utf8_lossy(&raw).into_owned();
        let status = raw.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        (status, raw)
    }
}

async fn log_in(node: &Node, user: &str) -> Client {
    let url = format!(
        "host=127.0.0.1 port={} user={user} password=pencil dbname=telesto",
        node.address.port()
    );
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("let in");
    tokio::spawn(connection);
    client
}

/// The messages up to ReadyForQuery, a question for a password, or the end.
async fn rest(raw: &mut Raw) -> Vec<(u8, Vec<u8>)> {
    let mut told = Vec::new();
    while let Some(message) = raw.message().await {
        let asks = message.0 == b'R' && message.1[..4] != [0, 0, 0, 0];
        let done = message.0 == b'Z' || asks;
        told.push(message);
        if done {
            break;
        }
    }
    told
}

/// SQLSTATEs of the errors among messages.
fn codes(told: &[(u8, Vec<u8>)]) -> Vec<String> {
    let errors = told.iter().filter(|(kind, _)| *kind == b'E');
    errors.filter_map(|(_, body)| error_field(body, b'C')).collect()
}

fn text_of(told: &[(u8, Vec<u8>)]) -> String {
    told.iter().map(|(_, body)| String::from_utf8_lossy(body).into_owned()).collect()
}

/// Values of the rows among messages, one value a row.
fn values(told: &[(u8, Vec<u8>)]) -> Vec<String> {
    let rows = told.iter().filter(|(kind, body)| *kind == b'D' && body.len() > 6);
    rows.map(|(_, body)| String::from_utf8_lossy(&body[6..]).into_owned()).collect()
}

#[tokio::test]
async fn nobody_becomes_another_by_what_a_connection_begins_with() {
    let town = Town::new().await;
    // Whoever is let in is mallory and nobody else, without power.
    let ways: &[&[(&str, &str)]] = &[
        &[("options", "-c role=alice")],
        &[("options", "-crole=telesto")],
        &[("options", "--role=alice")],
        &[("options", "-c session_authorization=alice")],
        &[("options", "--session-authorization=telesto")],
        &[("options", "-c is_superuser=on")],
        &[("options", "-c session_replication_role=replica")],
        &[("options", "-c ROLE=alice")],
        &[("options", r"-c role\=alice")],
        &[("options", "-c search_path=vault -c row_security=off")],
        &[("role", "alice")],
        &[("session_authorization", "telesto")],
        &[("is_superuser", "on")],
        &[("_pq_.role", "alice")],
        &[("_pq_.session_authorization", "telesto")],
        &[("search_path", "vault")],
        &[("replication", "true")],
        &[("replication", "database")],
        &[("database", "alice")],
    ];
    for way in ways {
        let (mut raw, told) = town.begin(way).await;
        if told.last().is_none_or(|(kind, _)| *kind != b'Z') {
            let codes = codes(&told);
            assert!(!codes.is_empty(), "{way:?}: {told:?}");
            continue;
        }
        raw.send(&query("SELECT concat_ws(',', session_user, current_user, rolsuper) FROM pg_roles WHERE rolname = current_user")).await;
        assert_eq!(values(&rest(&mut raw).await), ["mallory,mallory,f"], "{way:?}");
        for reads in
            ["SELECT hidden FROM desk.secret", "SELECT hidden FROM safe", "TABLE vault.safe"]
        {
            raw.send(&query(reads)).await;
            let told = rest(&mut raw).await;
            assert!(!text_of(&told).contains(GOLD), "{way:?}, {reads}: {told:?}");
            let codes = codes(&told);
            assert!(["42501", "42P01"].contains(&codes[0].as_str()), "{way:?}, {reads}: {codes:?}");
        }
    }
    // Nobody is let in as another, whatever comes in the place of the password.
    let named: &[&[(&str, &str)]] = &[
        &[("user", "alice"), ("database", "telesto")],
        &[("user", "telesto"), ("database", "telesto"), ("application_name", "telesto_prober")],
        &[("user", "mallory"), ("user", "telesto"), ("database", "telesto")],
        &[("user", "alice"), ("database", "telesto"), ("options", "-c role=mallory")],
    ];
    let instead: &[Vec<u8>] = &[
        query("SELECT hidden FROM desk.secret"),
        frame(b'p', b"pencil\0"),
        frame(b'p', b"\0"),
        frame(b'p', b"SCRAM-SHA-256\0\0\0\0\0"),
        frame(b'p', b"SCRAM-SHA-256-PLUS\0\0\0\0\x08n,,n=,r="),
        [parse("", "TABLE desk.secret"), bind("", ""), execute("", 0), sync()].concat(),
    ];
    for parameters in named {
        for bytes in instead {
            let mut raw = Raw::connect(&town.node).await;
            raw.send(&startup(parameters)).await;
            let asked = rest(&mut raw).await;
            if !codes(&asked).is_empty() {
                // Too many were wrong by now: it is not asked any more.
                continue;
            }
            assert_eq!(asked[0].0, b'R', "{parameters:?}: {asked:?}");
            assert_ne!(asked[0].1[..4], [0, 0, 0, 0], "{parameters:?}: nobody asked");
            raw.send(bytes).await;
            while let Some((kind, body)) = raw.message().await {
                assert!(kind == b'E' || kind == b'R', "{parameters:?}, {bytes:?}: {kind}");
                assert!(kind == b'E' || body[..4] != [0, 0, 0, 0], "{parameters:?}, {bytes:?}: in");
            }
        }
    }
}

#[tokio::test]
async fn session_reaches_nothing_of_another_by_messages() {
    let town = Town::new().await;
    // What alice has open.
    let held = town.alice.prepare("SELECT hidden FROM desk.secret").await.expect("prepared");
    town.alice
        .batch_execute("PREPARE alices AS SELECT hidden FROM desk.secret; BEGIN; DECLARE alices CURSOR FOR SELECT hidden FROM desk.secret")
        .await
        .expect("opened");
    let (mut raw, _) = town.begin(&[]).await;
    // A role that it had, and has no more: what was prepared before is asked about anew.
    raw.send(&[parse("lent", "SELECT hidden FROM desk.lent"), sync()].concat()).await;
    assert!(codes(&rest(&mut raw).await).is_empty());
    town.boss.batch_execute("REVOKE SELECT ON desk.lent FROM mallory").await.expect("revoked");
    raw.send(&[bind("", "lent"), execute("", 0), sync()].concat()).await;
    assert_eq!(codes(&rest(&mut raw).await), ["42501"], "what was revoked");
    let describe =
        |kind: u8, name: &str| frame(b'D', &[&[kind][..], name.as_bytes(), b"\0"].concat());
    let pid = backend_pid(&town.alice).await;
    let call = |oid: u32| {
        let argument = pid.to_be_bytes();
        let oid = oid.to_be_bytes();
        frame(b'F', &[&oid[..], &[0, 1, 0, 1, 0, 1, 0, 0, 0, 4], &argument, &[0, 1]].concat())
    };
    let data = |sql: &str| [query(sql), frame(b'd', b"9\tmine\n"), frame(b'c', b"")].concat();
    let ways: Vec<(&str, Vec<u8>)> = vec![
        ("another's statement", [bind("", "alices"), execute("", 0), sync()].concat()),
        ("another's portal", [execute("alices", 0), sync()].concat()),
        ("what another's statement gives", [describe(b'S', "alices"), sync()].concat()),
        ("what another's portal gives", [describe(b'P', "alices"), sync()].concat()),
        ("a driver's statement", [bind("", "s0"), execute("", 0), sync()].concat()),
        ("EXECUTE of another's", query("EXECUTE alices")),
        ("FETCH of another's", query("FETCH ALL FROM alices")),
        ("CLOSE of another's", query("CLOSE alices")),
        ("MOVE of another's", query("MOVE ALL IN alices")),
        (
            "messages behind a failure",
            [
                parse("", "SET ROLE alice"),
                bind("", ""),
                execute("", 0),
                parse("", "SELECT hidden FROM desk.secret"),
                bind("", ""),
                execute("", 0),
                sync(),
            ]
            .concat(),
        ),
        ("Parse", [parse("", "SELECT hidden FROM desk.secret"), sync()].concat()),
        (
            "a long Parse",
            [
                parse("", &format!("SELECT hidden, '{}' FROM desk.secret", "x".repeat(1 << 20))),
                sync(),
            ]
            .concat(),
        ),
        ("COPY out", query("COPY desk.secret TO STDOUT")),
        ("COPY out in binary", query("COPY desk.secret TO STDOUT (FORMAT binary)")),
        (
            "COPY out, extended",
            [parse("", "COPY (TABLE desk.secret) TO STDOUT"), bind("", ""), execute("", 0), sync()]
                .concat(),
        ),
        ("COPY in", data("COPY desk.secret FROM STDIN")),
        ("COPY in of columns", data("COPY desk.secret (id, hidden) FROM STDIN")),
        ("a file of the server", query("COPY desk.mine FROM '/etc/passwd'")),
        ("a file on the server", query("COPY desk.mine TO '/tmp/mallory'")),
        ("a program in", query("COPY desk.mine FROM PROGRAM 'id'")),
        ("a program out", query("COPY desk.mine TO PROGRAM 'cat'")),
        ("a function call that ends another", call(2096)),
        ("a function call that cancels another", call(2171)),
        ("another's end", query(&format!("SELECT pg_terminate_backend({pid})"))),
        ("another's cancelling", query(&format!("SELECT pg_cancel_backend({pid})"))),
        ("the replication protocol", query("IDENTIFY_SYSTEM")),
        ("a base backup", query("BASE_BACKUP")),
        ("a slot", query("START_REPLICATION 0/0")),
        ("text behind a zero", frame(b'Q', b"SELECT 1\0; TABLE desk.secret\0")),
    ];
    assert!(ways.len() >= 15);
    for (name, bytes) in &ways {
        let mut raw = town.begin(&[]).await.0;
        raw.send(bytes).await;
        let told = rest(&mut raw).await;
        assert!(!text_of(&told).contains(GOLD), "{name}: {told:?}");
        assert!(!codes(&told).is_empty(), "{name} was not refused: {told:?}");
        assert!(values(&told).is_empty(), "{name}: {told:?}");
    }
    // Ways back to a power that never was, and what others do is theirs.
    for sql in [
        "RESET ROLE",
        "RESET SESSION AUTHORIZATION",
        "DISCARD ALL",
        "SET SESSION AUTHORIZATION DEFAULT",
    ] {
        raw.send(&query(sql)).await;
        rest(&mut raw).await;
        raw.send(&query("SELECT concat_ws(',', session_user, current_user)")).await;
        assert_eq!(values(&rest(&mut raw).await), ["mallory,mallory"], "{sql}");
    }
    raw.send(&query(&format!("SELECT query FROM pg_stat_activity WHERE pid = {pid}"))).await;
    assert_eq!(values(&rest(&mut raw).await), ["<insufficient privilege>"]);
    raw.send(&query(&format!("SELECT count(*) FROM pg_stat_ssl WHERE pid = {pid}"))).await;
    assert_eq!(values(&rest(&mut raw).await), ["0"]);
    // All that alice had is there, and as it was.
    town.alice.batch_execute("FETCH 1 FROM alices; COMMIT").await.expect("still open");
    assert_eq!(town.alice.query(&held, &[]).await.expect("runs").len(), 2);
}

async fn backend_pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.expect("told").get(0)
}

#[tokio::test]
async fn cancel_request_without_the_key_of_the_session_stops_nothing() {
    let town = Town::new().await;
    let pid = backend_pid(&town.alice).await;
    let (_mallory, told) = town.begin(&[]).await;
    let (_, key) = told.iter().find(|(kind, _)| *kind == b'K').expect("a key");
    let (own_pid, own_key) = (&key[..4], &key[4..]);
    let long = town.alice.query_one("SELECT pg_sleep(2)", &[]);
    let attacks = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let named = pid.to_be_bytes();
        for secret in [
            &[0; 4][..],
            &[0xff; 4],
            &[0; 32],
            own_key,
            &[own_key, &[0; 4][..]].concat(),
            &[0; 252],
        ] {
            for pid in [&named[..], &[0, 0, 0, 0], &[0xff; 4], own_pid] {
                if pid == own_pid && secret == own_key {
                    continue;
                }
                let body = [&[0x04, 0xd2, 0x16, 0x2e][..], pid, secret].concat();
                let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
                let mut raw = Raw::connect(&town.node).await;
                raw.send(&[&length[..], &body].concat()).await;
                // Whether it was right is not told.
                assert_eq!(raw.message().await, None);
            }
        }
    };
    let (ended, ()) = tokio::join!(long, attacks);
    ended.expect("runs to its end");
}

#[tokio::test]
async fn keys_and_values_over_http_are_for_those_who_may() {
    let town = Town::new().await;
    let basic = |text: &str| format!("authorization: Basic {}\r\n", STANDARD.encode(text));
    let boss = basic("telesto:pencil");
    let request = |line: &str, headers: &str, body: &str| {
        format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let value = format!("{{\"value\": \"{GOLD}\"}}");
    let json = "content-type: application/json\r\n";
    let put = request("PUT /v1/kv/treasure", &format!("{boss}{json}"), &value);
    let (status, raw) = town.http(&put).await;
    assert!((200..300).contains(&status), "{raw}");
    let reads = request("GET /v1/kv/treasure", &boss, "");
    assert!(town.http(&reads).await.1.contains(GOLD), "who may sees it");
    let mallory = basic("mallory:pencil");
    let mut ways: Vec<String> = Vec::new();
    // As mallory, whose password is right.
    for line in [
        "GET /v1/kv/treasure",
        "HEAD /v1/kv/treasure",
        "GET /v1/kv",
        "GET /v1/kv?prefix=t",
        "GET /v1/kv?start=&limit=1000",
        "DELETE /v1/kv/treasure",
        "POST /v1/kv/treasure",
        "PATCH /v1/kv/treasure",
        "OPTIONS /v1/kv/treasure",
        "GET /metrics",
        "GET //v1/kv/treasure",
        "GET /v1//kv/treasure",
        "GET /v1/kv//treasure",
        "GET /v1/./kv/treasure",
        "GET /health/../v1/kv/treasure",
        "GET /health/..%2fv1/kv/treasure",
        "GET /v1/%6bv/treasure",
        "GET /v1/kv/%74reasure",
        "GET /V1/KV/treasure",
        "GET /v1/kv/treasure/",
        "GET /v1/kv/treasure%00",
        "GET /v1/kv/treasure;/health",
        "GET /v1/kv/treasure?/health",
        "GET /v1/kv/treasure#/health",
        "GET http://localhost/v1/kv/treasure",
    ] {
        ways.push(request(line, &mallory, ""));
    }
    ways.push(request("PUT /v1/kv/treasure", &format!("{mallory}{json}"), "{\"value\": \"tin\"}"));
    for more in [
        "x-http-method-override: GET\r\n",
        "x-original-url: /v1/kv/treasure\r\n",
        "x-rewrite-url: /v1/kv/treasure\r\n",
        "x-forwarded-user: telesto\r\n",
        "x-remote-user: telesto\r\n",
        "x-forwarded-for: 127.0.0.1\r\n",
        "forwarded: for=127.0.0.1;by=telesto\r\n",
    ] {
        ways.push(request("GET /v1/kv/treasure", &format!("{mallory}{more}"), ""));
    }
    // As the superuser, whose password is not known; and two names at once.
    for credentials in [
        String::new(),
        basic("telesto:"),
        basic("telesto"),
        basic(":pencil"),
        basic("telesto\0:pencil"),
        basic("TELESTO:pencil"),
        basic("telesto :pencil"),
        basic("pg_read_all_data:"),
        "authorization: Bearer telesto\r\n".to_owned(),
        "authorization: Basic ====\r\n".to_owned(),
        format!("{mallory}{}", basic("telesto:wrong")),
    ] {
        ways.push(request("GET /v1/kv/treasure", &credentials, ""));
    }
    // A second request inside of the first one's body.
    let inner = request("GET /v1/kv/treasure", &mallory, "");
    ways.push(format!(
        "POST /health HTTP/1.1\r\nhost: localhost\r\n{mallory}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{inner}"
    ));
    for way in &ways {
        let (status, raw) = town.http(way).await;
        assert!(!raw.contains(GOLD), "{way}\n{raw}");
        let harmless = [0, 204, 400, 401, 403, 404, 405, 414, 429, 431].contains(&status);
        assert!(harmless, "{way}\n{raw}");
    }
    let (status, raw) = town.http(&reads).await;
    assert!(status == 200 && raw.contains(GOLD), "it is there, and as it was: {raw}");
}

#[tokio::test]
async fn keys_and_values_over_http_are_not_for_those_who_may_not_connect() {
    let town = Town::new().await;
    let boss = log_in(&town.node, "telesto").await;
    let granted = "GRANT pg_read_all_data, pg_write_all_data, pg_monitor TO mallory";
    boss.batch_execute(granted).await.expect("granted");
    let credentials = STANDARD.encode("mallory:pencil");
    let ask = |line: &str, body: &str| {
        format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Basic {credentials}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let value = format!("{{\"value\": \"{GOLD}\"}}");
    let ways = [
        ask("PUT /v1/kv/treasure", &value),
        ask("GET /v1/kv/treasure", ""),
        ask("GET /v1/kv?prefix=t", ""),
        ask("DELETE /v1/kv/other", ""),
    ];
    for way in &ways {
        let (status, raw) = town.http(way).await;
        assert!((200..300).contains(&status), "{way}\n{raw}");
    }
    boss.batch_execute("REVOKE CONNECT ON DATABASE telesto FROM PUBLIC").await.expect("revoked");
    for way in &ways {
        let (status, raw) = town.http(way).await;
        assert!(status == 403 && !raw.contains(GOLD) && raw.contains("CONNECT"), "{way}\n{raw}");
    }
    boss.batch_execute("GRANT CONNECT ON DATABASE telesto TO mallory").await.expect("granted");
    let (status, raw) = town.http(&ways[1]).await;
    assert!(status == 200 && raw.contains(GOLD), "{raw}");
}
