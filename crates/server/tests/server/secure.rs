//! SCRAM and TLS, with real drivers.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::{Node, Raw, error_field, frame, query, startup};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use telesto_server::auth::{Users, Verifier};
use telesto_server::{Auth, ServerConfig, tls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_postgres::NoTls;
use tokio_postgres::error::SqlState;

fn scram() -> Auth {
    let env = telesto_runtime::env();
    let verifier = Verifier::of_password(&env, "pencil");
    Auth::Scram(Arc::new(Users::new(&env, BTreeMap::from([("telesto".to_owned(), verifier)]))))
}

/// A self-signed certificate for localhost and its key.
fn certificate(directory: &std::path::Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let (certificate, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .expect("openssl runs; install it");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (certificate, key)
}

#[tokio::test]
async fn scram_lets_in_only_who_knows_the_password() {
    let node = Node::start(ServerConfig { auth: scram(), ..ServerConfig::default() }).await;
    let with = |user: &str, password: &str| {
        format!(
            "host=127.0.0.1 port={} user={user} password={password} dbname=telesto",
            node.address.port()
        )
    };
    let (client, connection) =
        tokio_postgres::connect(&with("telesto", "pencil"), NoTls).await.expect("let in");
    tokio::spawn(connection);
    client.simple_query("").await.expect("works");
    for (user, password) in [("telesto", "pencils"), ("telesto", "Pencil"), ("nobody", "pencil")] {
        let error = tokio_postgres::connect(&with(user, password), NoTls).await.err();
        let error = error.expect("refused");
        assert_eq!(error.code(), Some(&SqlState::INVALID_PASSWORD), "{user} {password}");
    }
}

#[tokio::test]
async fn scram_dialogue_out_of_order_is_refused() {
    let node = Node::start(ServerConfig { auth: scram(), ..ServerConfig::default() }).await;
    let plain = |data: &[u8]| {
        let mut body = b"SCRAM-SHA-256\0".to_vec();
        body.extend((data.len() as u32).to_be_bytes());
        body.extend(data);
        frame(b'p', &body)
    };
    for (n, message) in [
        plain(b""),
        plain(b"p=tls-unique,,n=x,r=abc"),
        plain(b"\xff\xfe"),
        frame(b'p', b"SCRAM-SHA-1\0\0\0\0\0"),
        frame(b'p', b"no end"),
        [plain(b"n,,n=x,r=abcdef"), frame(b'p', b"c=biws,r=abcdef,p=AAAA")].concat(),
    ]
    .into_iter()
    .enumerate()
    {
        let mut raw = Raw::connect(&node).await;
        // Each counts as a wrong password of its user.
        let user = if n % 2 == 0 { "telesto" } else { "nobody" };
        raw.send(&startup(&[("user", user), ("database", "telesto")])).await;
        raw.send(&message).await;
        let messages = raw.until(b'E').await;
        let (_, error) = messages.last().expect("an error");
        assert_eq!(error_field(error, b'C').as_deref(), Some("28P01"));
        assert!(messages.iter().all(|(kind, body)| *kind != b'R' || body[..4] != [0, 0, 0, 0]));
    }
    // A statement instead of a password.
    let mut raw = Raw::connect(&node).await;
    raw.send(&startup(&[("user", "telesto"), ("database", "telesto")])).await;
    raw.send(&query("select 1")).await;
    while let Some((kind, _)) = raw.message().await {
        assert!(kind == b'R' || kind == b'E', "{kind}");
    }
}

fn files(certificate: &std::path::Path, key: &std::path::Path) -> tls::Files {
    tls::Files { certificate: certificate.to_owned(), key: key.to_owned(), ..tls::Files::default() }
}

#[tokio::test]
async fn tls_carries_a_session_with_channel_binding() {
    let directory = tempfile::tempdir().expect("directory");
    let (certificate, key) = certificate(directory.path());
    let tls = tls::load(files(&certificate, &key)).expect("loads");
    let node =
        Node::start(ServerConfig { auth: scram(), tls: Some(tls), ..ServerConfig::default() })
            .await;

    let mut socket = TcpStream::connect(node.address).await.expect("connects");
    socket.write_all(&[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]).await.expect("sent");
    assert_eq!(socket.read_u8().await.expect("an answer"), b'S');
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificate).expect("reads")).expect("added");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = connector.connect(name, socket).await.expect("a handshake");
    stream
        .write_all(&startup(&[("user", "telesto"), ("database", "telesto")]))
        .await
        .expect("sent");
    let mut answer = vec![0; 512];
    let read = stream.read(&mut answer).await.expect("an answer");
    let offered = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(offered.contains("SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0"), "{offered:?}");

    // A driver without TLS gets no further than its driver allows: plain SCRAM still works.
    let url = format!("{} password=pencil sslmode=disable", node.url());
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("let in");
    tokio::spawn(connection);
    client.simple_query("").await.expect("works");
}

#[tokio::test]
async fn bytes_sent_before_the_handshake_end_the_connection() {
    let directory = tempfile::tempdir().expect("directory");
    let (certificate, key) = certificate(directory.path());
    let tls = tls::load(files(&certificate, &key)).expect("loads");
    let node = Node::start(ServerConfig { tls: Some(tls), ..ServerConfig::default() }).await;
    let mut socket = TcpStream::connect(node.address).await.expect("connects");
    let mut early = vec![0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
    early.extend(query("drop table secrets"));
    socket.write_all(&early).await.expect("sent");
    let mut rest = Vec::new();
    // A reset is as good as an end.
    let _ = socket.read_to_end(&mut rest).await;
    assert!(rest.is_empty() || rest == b"S", "{rest:?}");
}

#[tokio::test]
async fn certificate_that_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().expect("directory");
    let (certificate, key) = certificate(directory.path());
    let missing = directory.path().join("missing.pem");
    assert!(
        tls::load(files(&missing, &key)).expect_err("missing").to_string().contains("missing.pem")
    );
    assert!(
        tls::load(files(&key, &key)).expect_err("no certificate").to_string().contains("key.pem")
    );
    assert!(
        tls::load(files(&certificate, &certificate))
            .expect_err("no key")
            .to_string()
            .contains("cert.pem")
    );
}
