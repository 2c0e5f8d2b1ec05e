//! Certificates: clients that show who they are by one, and HTTP over TLS.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use telesto_server::access_rules::AccessRules;
use telesto_server::audit::{AuditLog, Classes, Target};
use telesto_server::auth::{Users, Verifier};
use telesto_server::{Auth, Server, ServerConfig, tls};
use telesto_sql::{SqlEngine, SqlOptions};
use telesto_txn::memory::MemoryDatabase;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_postgres::NoTls;
use tokio_postgres::error::SqlState;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::Node;

/// An authority in a folder: its certificate, and those that it gives.
struct Authority {
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        Self::called("/CN=authority")
    }

    fn called(subject: &str) -> Self {
        let authority = Self { folder: tempfile::tempdir().expect("directory") };
        authority.openssl(&["req", "-x509", "-subj", subject], "ca", &[]);
        authority
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, begin: &[&str], name: &str, extensions: &[&str]) {
        let mut command = std::process::Command::new("openssl");
        command.args(begin).args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        command.args(["-nodes", "-days", "2"]);
        for extension in extensions {
            command.args(["-addext", extension]);
        }
        command.arg("-keyout").arg(self.path(&format!("{name}.key")));
        command.arg("-out").arg(self.path(&format!("{name}.pem")));
        let made = command.output().expect("openssl 3 runs; install it");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// A certificate of this subject, for that use.
    fn gives(&self, name: &str, subject: &str, usage: &str) {
        let (ca, key) = (self.path("ca.pem"), self.path("ca.key"));
        let (ca, key) = (ca.to_str().expect("text"), key.to_str().expect("text"));
        let usage = format!("extendedKeyUsage={usage}");
        let begin = ["req", "-x509", "-subj", subject, "-CA", ca, "-CAkey", key];
        let plain = "basicConstraints=critical,CA:FALSE";
        self.openssl(&begin, name, &["subjectAltName=DNS:localhost", plain, &usage]);
    }

    fn server(&self, client_ca: Option<&Path>) -> tls::Tls {
        tls::load(self.files(client_ca, None)).expect("loads")
    }

    fn files(&self, client_ca: Option<&Path>, client_crl: Option<&Path>) -> tls::Files {
        self.gives("server", "/CN=localhost", "serverAuth");
        tls::Files {
            certificate: self.path("server.pem"),
            key: self.path("server.key"),
            client_ca: client_ca.map(Path::to_owned),
            client_crl: client_crl.map(Path::to_owned),
        }
    }

    fn ca(&self, arguments: &[&str]) {
        let folder = self.folder.path();
        let config = "[ca]\ndefault_ca=own\n[own]\ndatabase=index\ncrlnumber=number\ndefault_md=sha256\n\
                      unique_subject=no\ndefault_crl_days=2\n";
        if !self.path("index").exists() {
            for (name, text) in [("ca.cnf", config), ("index", ""), ("number", "01\n")] {
                std::fs::write(self.path(name), text).expect("written");
            }
        }
        let mut command = std::process::Command::new("openssl");
        command.current_dir(folder).args(["ca", "-config", "ca.cnf"]);
        command.args(["-keyfile", "ca.key", "-cert", "ca.pem"]).args(arguments);
        let made = command.output().expect("openssl 3 runs; install it");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Writes the list of those that were revoked.
    fn lists(&self, more: &[&str]) -> PathBuf {
        self.ca(&[&["-gencrl", "-out", "crl.pem"][..], more].concat());
        self.path("crl.pem")
    }

    /// What a client needs that believes this authority, and shows `identity`, one of `other`'s.
    fn client(&self, identity: Option<(&Self, &str)>) -> TlsConnector {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).expect("reads")).expect("in");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((of, name)) => {
                let own = CertificateDer::from_pem_file(of.path(&format!("{name}.pem")));
                let key = PrivateKeyDer::from_pem_file(of.path(&format!("{name}.key")));
                config
                    .with_client_auth_cert(vec![own.expect("reads")], key.expect("reads"))
                    .expect("fits")
            }
        };
        TlsConnector::from(Arc::new(config))
    }
}

async fn shake(
    connector: &TlsConnector,
    socket: TcpStream,
) -> std::io::Result<TlsStream<TcpStream>> {
    connector.connect(ServerName::try_from("localhost").expect("a name"), socket).await
}

/// What becomes of a log-in over TLS: `None`: let in; an empty text: the handshake ended it.
async fn log_in(node: &Node, connector: &TlsConnector, user: &str) -> Option<(String, String)> {
    enter(node, connector, user).await.err()
}

/// A session over TLS, or why there is none; an empty text: the handshake ended it.
async fn enter(
    node: &Node,
    connector: &TlsConnector,
    user: &str,
) -> Result<tokio_postgres::Client, (String, String)> {
    let mut socket = TcpStream::connect(node.address).await.expect("connects");
    socket.write_all(&[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]).await.expect("sent");
    assert_eq!(socket.read_u8().await.expect("an answer"), b'S');
    let ended = || Err((String::new(), String::new()));
    let Ok(stream) = shake(connector, socket).await else { return ended() };
    let mut config = tokio_postgres::Config::new();
    config.user(user).password("pencil").dbname("telesto");
    match config.connect_raw(stream, NoTls).await {
        Ok((client, connection)) => {
            tokio::spawn(connection);
            client.simple_query("SELECT 1").await.expect("works");
            Ok(client)
        }
        Err(error) => match error.as_db_error() {
            Some(told) => Err((told.code().code().to_owned(), told.message().to_owned())),
            None => ended(),
        },
    }
}

fn scram(users: &[&str]) -> Auth {
    let env = telesto_runtime::env();
    let verifier = Verifier::of_password(&env, "pencil");
    let users = users.iter().map(|user| ((*user).to_owned(), verifier.clone()));
    Auth::Scram(Arc::new(Users::new(&env, users.collect::<BTreeMap<_, _>>())))
}

fn rules(folder: &Path, lines: &str) -> Option<Arc<AccessRules>> {
    let path = folder.join("access");
    std::fs::write(&path, lines).expect("written");
    Some(AccessRules::read(&path, true).expect("reads"))
}

#[tokio::test]
async fn certificate_lets_in_the_user_it_names_and_nobody_else() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    ours.gives("telesto", "/CN=telesto", "clientAuth");
    ours.gives("ada", "/O=telesto/CN=ada", "clientAuth");
    ours.gives("two", "/CN=telesto/CN=ada", "clientAuth");
    ours.gives("none", "/O=telesto", "clientAuth");
    ours.gives("machine", "/CN=telesto", "serverAuth");
    ours.gives("nobody", "/CN=nobody", "clientAuth");
    theirs.gives("telesto", "/CN=telesto", "clientAuth");
    let log = ours.path("audit");
    let audit = AuditLog::open(
        &telesto_runtime::env(),
        Target::File(log.clone()),
        "connection".parse::<Classes>().expect("a class"),
    );
    let lines = "hostssl all bob all scram-sha-256\nhostssl all all all cert\n";
    let node = Node::start(ServerConfig {
        auth: scram(&["telesto", "ada", "bob"]),
        access: rules(ours.folder.path(), lines),
        tls: Some(ours.server(Some(&ours.path("ca.pem")))),
        audit: Some(audit.expect("opens")),
        ..ServerConfig::default()
    })
    .await;
    let by = async |identity: Option<(&Authority, &str)>, user: &str| {
        log_in(&node, &ours.client(identity), user).await.map(|(code, _)| code)
    };
    let refused = Some("28000".to_owned());
    let ended = Some(String::new());
    assert_eq!(by(Some((&ours, "telesto")), "telesto").await, None);
    assert_eq!(by(Some((&ours, "ada")), "ada").await, None);
    assert_eq!(by(Some((&ours, "ada")), "telesto").await, refused, "another's name");
    assert_eq!(by(Some((&ours, "two")), "telesto").await, refused, "two names");
    assert_eq!(by(Some((&ours, "two")), "ada").await, refused, "two names");
    assert_eq!(by(Some((&ours, "none")), "telesto").await, refused, "no name");
    assert_eq!(
        by(None, "telesto").await,
        refused,
        "no certificate; the right password is no way in"
    );
    assert_eq!(by(None, "bob").await, None, "a rule before asks for his password");
    assert_eq!(by(Some((&ours, "nobody")), "nobody").await, refused, "no role");
    assert_eq!(by(Some((&theirs, "telesto")), "telesto").await, ended, "another authority");
    assert_eq!(by(Some((&ours, "machine")), "telesto").await, ended, "for servers");
    // Without TLS no line fits.
    let url = format!("{} password=pencil sslmode=disable", node.url());
    let error = tokio_postgres::connect(&url, NoTls).await.err().expect("refused");
    assert_eq!(error.code(), Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION));
    node.server.stop(Duration::from_secs(20)).await;
    let told = std::fs::read_to_string(log).expect("read");
    assert!(told.contains("the certificate names another") && told.contains("no certificate"));
}

#[tokio::test]
async fn revoked_certificate_ends_the_handshake_from_the_next_reading_of_the_list_on() {
    let (ours, theirs) = (Authority::new(), Authority::called("/CN=another"));
    ours.gives("telesto", "/CN=telesto", "clientAuth");
    ours.gives("ada", "/CN=ada", "clientAuth");
    theirs.gives("ada", "/CN=ada", "clientAuth");
    let both = ours.path("both.pem");
    let read = |authority: &Authority| std::fs::read(authority.path("ca.pem")).expect("read");
    std::fs::write(&both, [read(&ours), read(&theirs)].concat()).expect("written");
    let list = ours.lists(&[]);
    let tls = tls::load(ours.files(Some(&both), Some(&list))).expect("loads");
    let lines = "hostssl all bob all scram-sha-256\nhostssl all all all cert\n";
    let node = Node::start(ServerConfig {
        auth: scram(&["telesto", "ada", "bob"]),
        access: rules(ours.folder.path(), lines),
        tls: Some(tls.clone()),
        ..ServerConfig::default()
    })
    .await;
    // The same connectors all along: what they remember of a session is no way around the list.
    let (ada, telesto) = (ours.client(Some((&ours, "ada"))), ours.client(Some((&ours, "telesto"))));
    let (other, nobody) = (ours.client(Some((&theirs, "ada"))), ours.client(None));
    let by = async |connector: &TlsConnector, user: &str| {
        log_in(&node, connector, user).await.map(|(code, _)| code)
    };
    let ended = Some(String::new());
    assert_eq!(by(&ada, "ada").await, None);
    assert_eq!(by(&other, "ada").await, ended, "of an authority without a list nothing is known");
    ours.ca(&["-revoke", "ada.pem"]);
    ours.lists(&[]);
    assert_eq!(by(&ada, "ada").await, None, "the list was not read again");
    tls.reload().expect("reads");
    assert_eq!(by(&ada, "ada").await, ended, "revoked");
    assert_eq!(by(&telesto, "telesto").await, None, "another's certificate stands");
    assert_eq!(by(&nobody, "bob").await, None, "who shows none has none that was revoked");
    // A wrong file leaves the list that was.
    for wrong in
        [&b""[..], &read(&ours), b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"]
    {
        std::fs::write(&list, wrong).expect("written");
        let told = tls.reload().expect_err("refused").to_string();
        assert!(told.contains("crl.pem") && told.contains("--tls-client-crl"), "{told}");
    }
    assert_eq!(by(&ada, "ada").await, ended, "still revoked");
    assert_eq!(by(&telesto, "telesto").await, None);
    // A list that nobody renewed says nothing of now.
    ours.lists(&["-crl_lastupdate", "20200101000000Z", "-crl_nextupdate", "20200102000000Z"]);
    tls.reload().expect("reads");
    assert_eq!(by(&telesto, "telesto").await, ended, "the list is past its end");
    ours.lists(&[]);
    tls.reload().expect("reads");
    assert_eq!(by(&telesto, "telesto").await, None);
}

#[tokio::test]
async fn renewed_certificate_is_shown_from_the_next_reading_on() {
    let (old, new) = (Authority::new(), Authority::new());
    let files = old.files(None, None);
    let (certificate, key) = (files.certificate.clone(), files.key.clone());
    let tls = tls::load(files).expect("loads");
    let auth = scram(&["telesto"]);
    let config = ServerConfig { auth, tls: Some(tls.clone()), ..ServerConfig::default() };
    let node = Node::start(config).await;
    let (before, after) = (old.client(None), new.client(None));
    let stands = enter(&node, &before, "telesto").await.expect("let in");
    let next = new.files(None, None);
    std::fs::copy(next.certificate, &certificate).expect("copied");
    assert!(tls.reload().is_err(), "a certificate without its key");
    assert_eq!(log_in(&node, &before, "telesto").await, None);
    std::fs::copy(next.key, &key).expect("copied");
    tls.reload().expect("reads");
    assert_eq!(log_in(&node, &after, "telesto").await, None);
    // It believes the old authority alone, and is not resumed.
    let mut socket = TcpStream::connect(node.address).await.expect("connects");
    socket.write_all(&[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]).await.expect("sent");
    assert_eq!(socket.read_u8().await.expect("an answer"), b'S');
    assert!(shake(&before, socket).await.is_err());
    stands.simple_query("SELECT 1").await.expect("goes on");
}

/// Rows of a query, as text.
async fn rows(client: &tokio_postgres::Client, sql: &str) -> Vec<String> {
    use tokio_postgres::SimpleQueryMessage as Message;
    let messages = client.simple_query(sql).await.expect(sql).into_iter();
    let rows = messages.filter_map(|message| match message {
        Message::Row(row) => {
            let values: Vec<_> = (0..row.len()).map(|at| row.get(at).unwrap_or("NULL")).collect();
            Some(values.join("|"))
        }
        _ => None,
    });
    rows.collect()
}

#[tokio::test]
async fn pg_stat_ssl_shows_how_clients_came_in_to_those_who_may_see_them() {
    let ours = Authority::new();
    ours.gives("telesto", "/O=A, B\\+C/CN=telesto/emailAddress=t@db.example", "clientAuth");
    ours.gives("ada", "/CN=ada", "clientAuth");
    let lines = "hostssl all bob all scram-sha-256\nhostssl all all all cert\n\
                 host all all all scram-sha-256\n";
    let node = Node::start(ServerConfig {
        auth: scram(&["telesto", "ada", "bob"]),
        access: rules(ours.folder.path(), lines),
        tls: Some(ours.server(Some(&ours.path("ca.pem")))),
        ..ServerConfig::default()
    })
    .await;
    let by = async |identity: &str, user: &str| {
        enter(&node, &ours.client(Some((&ours, identity))), user).await.expect("let in")
    };
    let boss = by("telesto", "telesto").await;
    // Users of the file are superusers, until they are not.
    boss.simple_query("ALTER ROLE ada NOSUPERUSER; ALTER ROLE bob NOSUPERUSER")
        .await
        .expect("altered");
    let ada = by("ada", "ada").await;
    let bob = enter(&node, &ours.client(None), "bob").await.expect("let in");
    let url = format!("{} password=pencil sslmode=disable", node.url());
    let (plain, connection) = tokio_postgres::connect(&url, NoTls).await.expect("let in");
    tokio::spawn(connection);
    let serial = |name: &str| {
        let mut command = std::process::Command::new("openssl");
        command.args(["x509", "-noout", "-serial", "-in"]).arg(ours.path(name));
        let told = String::from_utf8(command.output().expect("runs").stdout).expect("text");
        let digits = told.trim().strip_prefix("serial=").expect("a serial number").to_owned();
        digits.chars().fold("0".to_owned(), |sum, digit| times16_plus(&sum, digit))
    };
    let (telesto_serial, ada_serial) = (serial("telesto.pem"), serial("ada.pem"));
    let sql = "SELECT usename, ssl, s.version, cipher, bits, client_dn, client_serial, issuer_dn \
               FROM pg_stat_ssl s JOIN pg_stat_activity USING (pid) ORDER BY 1, 2";
    let tls = "t|TLSv1.3|TLS_AES_256_GCM_SHA384|256";
    let of_ada = format!("ada|{tls}|/CN=ada|{ada_serial}|/CN=authority");
    let named = "/O=A\\, B\\+C/CN=telesto/emailAddress=t@db.example";
    assert_eq!(
        rows(&boss, sql).await,
        [
            of_ada.clone(),
            format!("bob|{tls}|NULL|NULL|NULL"),
            "telesto|f|NULL|NULL|NULL|NULL|NULL|NULL".to_owned(),
            format!("telesto|{tls}|{named}|{telesto_serial}|/CN=authority"),
        ]
    );
    assert_eq!(
        rows(&ada, sql).await,
        std::slice::from_ref(&of_ada),
        "an ordinary role sees its own"
    );
    let counted = "SELECT count(*), (SELECT count(*) FROM pg_stat_gssapi) FROM pg_stat_ssl";
    assert_eq!(rows(&bob, counted).await, ["1|1"]);
    assert_eq!(rows(&boss, counted).await, ["4|4"]);
    let gss = "SELECT gss_authenticated, principal, encrypted FROM pg_stat_gssapi";
    assert_eq!(rows(&bob, gss).await, ["f|NULL|f"]);
    boss.simple_query("GRANT pg_read_all_stats TO bob").await.expect("granted");
    assert_eq!(rows(&bob, counted).await, ["4|4"]);
    drop((ada, plain));
}

/// A decimal number, sixteen times and a hexadecimal digit more.
fn times16_plus(decimal: &str, digit: char) -> String {
    let mut carry = digit.to_digit(16).expect("a digit");
    let mut digits = Vec::new();
    for digit in decimal.bytes().rev() {
        let value = u32::from(digit - b'0') * 16 + carry;
        digits.push(char::from_digit(value % 10, 10).expect("a digit"));
        carry = value / 10;
    }
    while carry > 0 {
        digits.push(char::from_digit(carry % 10, 10).expect("a digit"));
        carry /= 10;
    }
    digits.iter().rev().collect()
}

/// What HTTP answers to a request of `user`: its status and its text.
async fn asks(mut stream: impl AsyncReadWrite, user: &str, path: &str) -> (u16, String) {
    use base64::Engine as _;
    let credentials = base64::engine::general_purpose::STANDARD.encode(format!("{user}:pencil"));
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: db.example\r\nconnection: close\r\nauthorization: Basic {credentials}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut raw = Vec::new();
    // A server that is cut off inside of TLS says no goodbye.
    let _ = stream.read_to_end(&mut raw).await;
    let raw = String::from_utf8_lossy(&raw).into_owned();
    let status = raw.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, raw)
}

trait AsyncReadWrite: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> AsyncReadWrite for T {}

#[tokio::test]
async fn http_over_tls_serves_nothing_in_clear_and_keeps_the_rules_of_entrance() {
    let authority = Authority::new();
    let lines = "hostssl telesto ada 127.0.0.1/32 scram-sha-256\nhostssl all cert all cert\n\
                 host all bob all reject\nhostnossl all all all scram-sha-256\n";
    let env = telesto_runtime::env();
    let database = Arc::new(MemoryDatabase::new(env.clone()));
    let engine =
        SqlEngine::open(database, env.clone(), SqlOptions::default()).await.expect("opens");
    let config = ServerConfig {
        // Open to the network: passwords are not readable there.
        http: Some("0.0.0.0:0".parse().expect("an address")),
        auth: scram(&["ada", "bob", "cert", "eve"]),
        access: rules(authority.folder.path(), lines),
        tls: Some(authority.server(Some(&authority.path("ca.pem")))),
        http_tls: true,
        ..ServerConfig::default()
    };
    let echo = axum::Router::new().route(
        "/scheme",
        axum::routing::get(|headers: axum::http::HeaderMap| async move {
            format!("scheme={:?}", headers.get("x-forwarded-proto"))
        }),
    );
    let mount: telesto_server::Mount = Box::new(move |_| echo);
    let server = Server::start(env, engine, config, None, Some(mount)).await.expect("starts");
    let port = server.http_address().expect("listens").port();
    let socket = async || TcpStream::connect(("127.0.0.1", port)).await.expect("connects");
    // Clients are asked for no certificate here.
    let connector = authority.client(None);
    for (user, status, text) in [
        ("ada", 200, "openapi"),
        ("cert", 403, "which HTTP does not take"),
        ("bob", 403, "a rule rejects it"),
        ("eve", 403, "no rule fits"),
    ] {
        let stream = shake(&connector, socket().await).await.expect("a handshake");
        let (told, raw) = asks(stream, user, "/openapi.json").await;
        assert_eq!(told, status, "{user}: {raw}");
        assert!(raw.contains(text), "{user}: {raw}");
    }
    let stream = shake(&connector, socket().await).await.expect("a handshake");
    let (_, raw) = asks(stream, "ada", "/scheme").await;
    assert!(raw.contains("scheme=Some(\"https\")"), "cookies are for TLS only: {raw}");
    let (told, raw) = asks(socket().await, "ada", "/openapi.json").await;
    assert_eq!((told, raw.contains("openapi")), (0, false), "in clear: {raw}");
    // A client that says nothing holds up neither the others nor the end.
    let silent = socket().await;
    let stream = shake(&connector, socket().await).await.expect("a handshake");
    assert_eq!(asks(stream, "ada", "/openapi.json").await.0, 200);
    assert!(server.stop(Duration::from_secs(20)).await, "ends in time");
    drop(silent);
}
