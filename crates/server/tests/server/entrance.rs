//! Who is let in, how often may be guessed, and what is written down of it: with real sockets.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use telesto_server::access_rules::AccessRules;
use telesto_server::attempts::USER_BURST;
use telesto_server::audit::{AuditLog, Classes, Target};
use telesto_server::auth::{Users, Verifier};
use telesto_server::{Auth, ProberKey, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};

use crate::support::Node;

fn scram() -> Auth {
    let env = telesto_runtime::env();
    let verifier = Verifier::of_password(&env, "pencil");
    Auth::Scram(Arc::new(Users::new(&env, BTreeMap::from([("telesto".to_owned(), verifier)]))))
}

/// A client that comes from an address of this machine.
async fn from(
    node: &Node,
    source: &str,
    user: &str,
    password: &str,
) -> Result<Client, tokio_postgres::Error> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(format!("{source}:0").parse().expect("an address")).expect("bound");
    let stream = socket.connect(node.address).await.expect("connects");
    let mut config = Config::new();
    config.user(user).password(password).dbname("telesto").application_name("entrance");
    let (client, connection) = config.connect_raw(stream, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn code(node: &Node, source: &str, user: &str, password: &str) -> Option<SqlState> {
    from(node, source, user, password).await.err().map(|error| error.code().expect("told").clone())
}

#[tokio::test]
async fn guesser_is_refused_and_the_same_user_from_elsewhere_is_not() {
    let metrics = telesto_server::metrics::install().expect("installed");
    let node = Node::start(ServerConfig { auth: scram(), ..ServerConfig::default() }).await;
    let guesses = |user: &'static str| {
        let node = &node;
        async move {
            let mut told = Vec::new();
            for _ in 0..=USER_BURST {
                told.push(code(node, "127.0.0.1", user, "wrong").await);
            }
            told
        }
    };
    let (known, unknown) = tokio::join!(guesses("telesto"), guesses("nobody"));
    let mut expected = vec![Some(SqlState::INVALID_PASSWORD); USER_BURST as usize];
    expected.push(Some(SqlState::INVALID_AUTHORIZATION_SPECIFICATION));
    assert_eq!((&known, &unknown), (&expected, &expected));
    let right = code(&node, "127.0.0.1", "telesto", "pencil").await;
    assert_eq!(right, Some(SqlState::INVALID_AUTHORIZATION_SPECIFICATION), "no look at it");
    assert_eq!(code(&node, "127.0.0.2", "telesto", "pencil").await, None, "another address");
    let metrics = metrics.render();
    for reason in ["password", "limited"] {
        let line = format!("telesto_log_ins_failed_total{{door=\"sql\",reason=\"{reason}\"}}");
        assert!(metrics.contains(&line), "{metrics}");
    }
}

#[tokio::test]
async fn client_without_a_password_at_hand_is_no_guesser() {
    let node = Node::start(ServerConfig { auth: scram(), ..ServerConfig::default() }).await;
    // As psql does before it asks for one.
    for _ in 0..3 * USER_BURST {
        let mut raw = crate::support::Raw::connect(&node).await;
        let start = crate::support::startup(&[("user", "telesto"), ("database", "telesto")]);
        raw.send(&start).await;
        raw.until(b'R').await;
    }
    assert_eq!(code(&node, "127.0.0.1", "telesto", "pencil").await, None);
}

#[tokio::test]
async fn pool_that_connects_at_once_is_let_in_and_guesses_at_once_are_told_of_few() {
    let node = Node::start(ServerConfig { auth: scram(), ..ServerConfig::default() }).await;
    let at_once = async |password: &'static str| {
        let all = (0..40).map(|_| code(&node, "127.0.0.1", "telesto", password));
        futures::future::join_all(all).await
    };
    for _ in 0..2 {
        assert!(at_once("pencil").await.iter().all(Option::is_none));
    }
    let told = at_once("wrong").await;
    let judged = told.iter().filter(|code| **code == Some(SqlState::INVALID_PASSWORD)).count();
    // Time gives one back now and then.
    assert!((USER_BURST as usize..10).contains(&judged), "{judged}");
    let refused = Some(SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
    assert!(told.iter().all(|code| *code == refused || *code == Some(SqlState::INVALID_PASSWORD)));
}

fn records(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn of<'a>(records: &'a [Value], class: &str) -> Vec<(&'a str, &'a str)> {
    let own = records.iter().filter(|record| record["class"] == class);
    own.map(|r| (r["what"].as_str().expect("text"), r["sqlstate"].as_str().unwrap_or("none")))
        .collect()
}

async fn audited(target: Target, classes: &str) -> Node {
    let env = telesto_runtime::env();
    let log = AuditLog::open(&env, target, classes.parse::<Classes>().expect("classes"));
    let audit = Some(log.expect("opens"));
    Node::start(ServerConfig { auth: scram(), audit, ..ServerConfig::default() }).await
}

#[tokio::test]
async fn what_is_refused_and_defined_is_written_down_without_passwords() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("audit.jsonl");
    let node = audited(Target::File(path.clone()), "connection,denied,definition,role").await;
    let mode = std::fs::metadata(&path).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let owner = from(&node, "127.0.0.1", "telesto", "pencil").await.expect("let in");
    let script = "CREATE TABLE secrets (a int); CREATE ROLE app LOGIN PASSWORD 'hush-1'";
    owner.batch_execute(script).await.expect("defined");
    owner.execute("CREATE TABLE more (a int)", &[]).await.expect("defined");
    owner.batch_execute("ALTER ROLE app PASSWORD 'hush-2'").await.expect("changed");
    owner.batch_execute("CREATE TABLE more (a int)").await.expect_err("exists");
    owner.batch_execute("SELECT 1; INSERT INTO secrets VALUES (1)").await.expect("written");
    assert!(from(&node, "127.0.0.2", "app", "hush-1").await.is_err());
    let app = from(&node, "127.0.0.2", "app", "hush-2").await.expect("let in");
    app.batch_execute("SELECT a FROM secrets").await.expect_err("refused");
    app.query("SELECT max(a) FROM secrets", &[]).await.expect_err("refused");
    app.batch_execute("DROP TABLE secrets").await.expect_err("refused");
    node.server.stop(Duration::from_secs(20)).await;

    let all = records(&path);
    let (ok, denied) = ("00000", "42501");
    assert_eq!(
        of(&all, "definition"),
        [
            ("CREATE TABLE secrets (a INT)", ok),
            ("CREATE TABLE more (a int)", ok),
            ("CREATE TABLE more (a int)", "42P07"),
            ("DROP TABLE secrets", denied),
        ]
    );
    assert_eq!(
        of(&all, "role"),
        [("CREATE ROLE app LOGIN PASSWORD '***'", ok), ("ALTER ROLE app PASSWORD '***'", ok)]
    );
    assert_eq!(
        of(&all, "denied"),
        [
            ("SELECT a FROM secrets", denied),
            ("SELECT max(a) FROM secrets", denied),
            ("DROP TABLE secrets", denied),
        ]
    );
    let log_ins = of(&all, "connection");
    assert!(log_ins.contains(&("log-in refused: wrong password, or no such user", "28P01")));
    assert_eq!(log_ins.iter().filter(|(what, _)| *what == "log-in").count(), 2);
    assert!(log_ins.contains(&("session ended", ok)));
    let refused = all.iter().find(|record| record["class"] == "denied").expect("one");
    assert_eq!((&refused["user"], &refused["role"]), (&"app".into(), &"app".into()));
    assert_eq!(
        (&refused["application"], &refused["database"]),
        (&"entrance".into(), &"telesto".into())
    );
    assert!(refused["client"].as_str().expect("an address").starts_with("127.0.0.2:"));
    assert!(!std::fs::read_to_string(&path).expect("read").contains("hush"));
}

#[tokio::test]
async fn renamed_audit_log_is_made_anew_and_classes_that_are_not_wanted_stay_out() {
    let directory = tempfile::tempdir().expect("directory");
    let (path, old) = (directory.path().join("audit"), directory.path().join("audit.1"));
    let node = audited(Target::File(path.clone()), "definition").await;
    let client = from(&node, "127.0.0.1", "telesto", "pencil").await.expect("let in");
    client.batch_execute("CREATE TABLE a (a int)").await.expect("defined");
    std::fs::rename(&path, &old).expect("renamed");
    client.batch_execute("CREATE TABLE b (a int); CREATE ROLE r").await.expect("defined");
    assert_eq!(of(&records(&old), "definition"), [("CREATE TABLE a (a int)", "00000")]);
    assert_eq!(of(&records(&path), "definition"), [("CREATE TABLE b (a INT)", "00000")]);
    assert_eq!((records(&old).len(), records(&path).len()), (1, 1));
}

#[tokio::test]
async fn full_disk_refuses_definitions_and_log_ins_and_loses_no_record() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("audit");
    std::os::unix::fs::symlink("/dev/full", &path).expect("linked");
    let node = audited(Target::File(path.clone()), "definition").await;
    let client = from(&node, "127.0.0.1", "telesto", "pencil").await.expect("let in");
    // The disk is not known to be full yet: this one is done, and its record kept.
    client.batch_execute("CREATE TABLE a (a int)").await.expect("defined");
    for _ in 0..2 {
        let error = client.batch_execute("CREATE TABLE b (a int)").await.expect_err("refused");
        assert_eq!(error.code(), Some(&SqlState::IO_ERROR), "{error:?}");
    }
    client.batch_execute("INSERT INTO a VALUES (1)").await.expect("data goes on");
    let found = client.query_one("SELECT to_regclass('b')::text IS NULL", &[]).await.expect("read");
    assert!(found.get::<_, bool>(0), "nothing was done");
    // There is room again.
    std::fs::remove_file(&path).expect("removed");
    let mut done = client.batch_execute("CREATE TABLE b (a int)").await;
    for _ in 0..100 {
        if done.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        done = client.batch_execute("CREATE TABLE b (a int)").await;
    }
    done.expect("goes on");
    let texts = [("CREATE TABLE a (a int)", "00000"), ("CREATE TABLE b (a int)", "00000")];
    assert_eq!(of(&records(&path), "definition"), texts);
}

#[tokio::test]
async fn nobody_comes_in_whose_log_in_cannot_be_recorded() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("audit");
    std::os::unix::fs::symlink("/dev/full", &path).expect("linked");
    let env = telesto_runtime::env();
    let log = AuditLog::open(&env, Target::File(path), "connection".parse().expect("a class"));
    let audit = log.expect("opens");
    let config = ServerConfig {
        auth: scram(),
        http: Some("127.0.0.1:0".parse().expect("an address")),
        audit: Some(Arc::clone(&audit)),
        ..ServerConfig::default()
    };
    let node = Node::start(config).await;
    // The first finds out; its record waits.
    let _ = from(&node, "127.0.0.1", "telesto", "wrong").await;
    while audit.trouble().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(code(&node, "127.0.0.1", "telesto", "pencil").await, Some(SqlState::IO_ERROR));
    let http = node.server.http_address().expect("listens");
    let mut socket = tokio::net::TcpStream::connect(http).await.expect("connects");
    // telesto:pencil
    let request = "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                   authorization: Basic dGVsZXN0bzpwZW5jaWw=\r\n\r\n";
    socket.write_all(request.as_bytes()).await.expect("sent");
    let mut reply = String::new();
    socket.read_to_string(&mut reply).await.expect("an answer");
    assert!(reply.starts_with("HTTP/1.1 503") && reply.contains("not_recorded"), "{reply}");
}

#[tokio::test]
async fn rules_of_entrance_decide_before_a_password_is_asked_for() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("access");
    let lines = "host telesto telesto 127.0.0.1/32 trust\nhost telesto all 127.0.0.2/32 scram-sha-256\n\
                 hostssl all all all scram-sha-256\nhost all all 127.0.0.3/32 reject\n\
                 host all nobody 127.0.0.1/32 trust\n";
    std::fs::write(&path, lines).expect("written");
    let rules = AccessRules::read(&path, false).expect("reads");
    let access = Some(Arc::clone(&rules));
    let node = Node::start(ServerConfig { auth: scram(), access, ..ServerConfig::default() }).await;
    let refused = Some(SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
    let wrong = Some(SqlState::INVALID_PASSWORD);
    for (source, user, password, told) in [
        ("127.0.0.1", "telesto", "wrong", &None),
        ("127.0.0.2", "telesto", "wrong", &wrong),
        ("127.0.0.2", "telesto", "pencil", &None),
        // A rule rejects, no rule fits: the right password does not help.
        ("127.0.0.3", "telesto", "pencil", &refused),
        ("127.0.0.4", "telesto", "pencil", &refused),
        // Whoever is trusted must be a role all the same.
        ("127.0.0.1", "nobody", "pencil", &refused),
    ] {
        assert_eq!(&code(&node, source, user, password).await, told, "{source} {user} {password}");
    }
    let standing = from(&node, "127.0.0.1", "telesto", "wrong").await.expect("let in");
    std::fs::write(&path, "host all all 127.0.0.1/32 reject\n").expect("written");
    rules.reload().expect("reads");
    assert_eq!(code(&node, "127.0.0.1", "telesto", "pencil").await, refused);
    standing.batch_execute("SELECT 1").await.expect("a session that stands goes on");
}

#[tokio::test]
async fn rules_know_an_ipv4_client_by_its_address_on_a_socket_of_ipv6() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("access");
    let lines = "host all all ::/0 scram-sha-256\nhost all all 127.0.0.2/32 scram-sha-256\n";
    std::fs::write(&path, lines).expect("written");
    let access = Some(AccessRules::read(&path, false).expect("reads"));
    let listen = Some("[::]:0".parse().expect("an address"));
    let config = ServerConfig { listen, auth: scram(), access, ..ServerConfig::default() };
    let mut node = Node::start(config).await;
    node.address.set_ip([127, 0, 0, 1].into());
    assert_eq!(code(&node, "127.0.0.2", "telesto", "pencil").await, None);
    let refused = from(&node, "127.0.0.1", "telesto", "pencil").await.expect_err("no rule");
    let told = refused.as_db_error().expect("told");
    assert_eq!(
        told.message(),
        "no access rule for host \"127.0.0.1\", user \"telesto\", database \"telesto\", no encryption"
    );
    assert_eq!(told.code(), &SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
    assert!(told.hint().expect("a hint").contains("--access-file"));
    // As many wrong ones over IPv6 are another address's.
    let six =
        format!("host=::1 port={} user=telesto password=x dbname=telesto", node.address.port());
    for _ in 0..USER_BURST {
        let error = tokio_postgres::connect(&six, NoTls).await.err().expect("wrong");
        assert_eq!(error.code(), Some(&SqlState::INVALID_PASSWORD));
    }
    assert_eq!(code(&node, "127.0.0.2", "telesto", "pencil").await, None);
}

#[tokio::test]
async fn prober_of_the_node_is_kept_out_by_no_guesser_and_no_rule_and_lets_nobody_in() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("access");
    std::fs::write(&path, "host all telesto all reject\nhost all all all scram-sha-256\n")
        .expect("written");
    let verifier = Verifier::of_password(&telesto_runtime::env(), "drawn");
    let config = ServerConfig {
        auth: scram(),
        access: Some(AccessRules::read(&path, false).expect("reads")),
        prober: Some(ProberKey { user: "telesto".to_owned(), verifier }),
        ..ServerConfig::default()
    };
    let node = Node::start(config).await;
    let probes = async |password: &str, application: &str| {
        let url = format!("{} password={password} application_name={application}", node.url());
        match tokio_postgres::connect(&url, NoTls).await {
            Ok(_) => None,
            Err(error) => Some(error.code().expect("told").clone()),
        }
    };
    for _ in 0..=USER_BURST {
        let told = probes("pencil", ProberKey::APPLICATION).await;
        assert_eq!(told, Some(SqlState::INVALID_PASSWORD), "the user's own is not the prober's");
    }
    assert_eq!(probes("drawn", ProberKey::APPLICATION).await, None);
    let other = probes("drawn", "psql").await;
    assert_eq!(other, Some(SqlState::INVALID_AUTHORIZATION_SPECIFICATION));
}

#[tokio::test]
async fn hostile_names_are_one_record_each_and_names_tell_nothing() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("audit.jsonl");
    let node = audited(Target::File(path.clone()), "connection").await;
    let hostile = "x\n{\"class\":\"role\"}\u{1b}[2J\u{9b}31m\u{202e}";
    let told = |error: tokio_postgres::Error, user: &str| {
        error.as_db_error().expect("told").message().replace(user, "?")
    };
    let of_hostile = from(&node, "127.0.0.1", hostile, "wrong").await.expect_err("refused");
    let of_known = from(&node, "127.0.0.1", "telesto", "wrong").await.expect_err("refused");
    assert_eq!(told(of_hostile, hostile), told(of_known, "telesto"));
    node.server.stop(Duration::from_secs(20)).await;
    let text = std::fs::read_to_string(&path).expect("read");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control() && c.is_ascii()), "{text:?}");
    let all = records(&path);
    assert_eq!(all.len(), 2, "{text}");
    assert_eq!(all[0]["user"], hostile);
}
