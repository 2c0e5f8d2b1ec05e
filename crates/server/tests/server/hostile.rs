//! Bytes that no honest client sends: nothing may panic, hang, or take memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{
    Node, PATIENCE, Raw, bind, error_field, execute, frame, parse, query, startup, sync,
};
use bytes::BufMut as _;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use telesto_server::{Limits, ServerConfig};
use telesto_sql::SqlOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_postgres::error::SqlState;

static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // Another test of this program has a session panic.
        if !info.payload_as_str().is_some_and(|text| text.starts_with("meant")) {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        before(info);
    }));
}

fn limits() -> Limits {
    Limits {
        startup: Duration::from_millis(400),
        stall: Duration::from_millis(400),
        idle_in_transaction: Some(Duration::from_millis(400)),
        idle: Some(Duration::from_millis(400)),
        max_message_bytes: 1 << 20,
        ..Limits::default()
    }
}

/// Sends bytes, closes the sending half, and reads until the server ends the connection.
async fn throw(node: &Node, bytes: &[u8]) {
    let mut socket = TcpStream::connect(node.address).await.expect("connects");
    // The server may close while we still send.
    let _ = socket.write_all(bytes).await;
    let _ = socket.shutdown().await;
    let mut rest = Vec::new();
    let ended = socket.read_to_end(&mut rest);
    let _ = tokio::time::timeout(PATIENCE, ended).await.expect("the server ends it in time");
}

/// A conversation that uses every message.
fn conversation() -> Vec<Vec<u8>> {
    vec![
        query("select 1; select 2"),
        parse("s", "select 1"),
        frame(b'D', b"Ss\0"),
        bind("p", "s"),
        frame(b'D', b"Pp\0"),
        execute("p", 1),
        frame(b'H', b""),
        execute("p", 0),
        frame(b'C', b"Pp\0"),
        frame(b'C', b"Ss\0"),
        sync(),
        frame(b'd', b"1\t2\n"),
        frame(b'c', b""),
        frame(b'f', b"no\0"),
        frame(b'p', b"password\0"),
        query("begin"),
        query("nonsense"),
        query("rollback"),
        frame(b'X', b""),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_and_mutated_messages_never_panic_or_hang_the_server() {
    count_panics();
    let node = Node::start(ServerConfig { limits: limits(), ..ServerConfig::default() }).await;
    let seed = rand::rng().random::<u64>();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    for round in 0..300 {
        let mut bytes = Vec::new();
        if round % 3 == 0 {
            // Anything at all, some of it after a good start.
            if random.random() {
                bytes.extend(startup(&[("user", "telesto"), ("database", "telesto")]));
            }
            let length = random.random_range(0..200);
            bytes.extend((0..length).map(|_| random.random::<u8>()));
        } else {
            bytes.extend(startup(&[("user", "telesto"), ("database", "telesto")]));
            let mut messages = conversation();
            for _ in 0..random.random_range(1..8) {
                let at = random.random_range(0..messages.len());
                match random.random_range(0..4) {
                    0 => {
                        let other = random.random_range(0..messages.len());
                        messages.swap(at, other);
                    }
                    1 => {
                        messages.remove(at);
                    }
                    2 if !messages[at].is_empty() => {
                        let byte = random.random_range(0..messages[at].len());
                        messages[at][byte] = random.random();
                    }
                    _ => {
                        let cut = random.random_range(0..=messages[at].len());
                        messages[at].truncate(cut);
                    }
                }
            }
            bytes.extend(messages.concat());
            if round % 5 == 0 {
                // The startup message too.
                let byte = random.random_range(0..40);
                bytes[byte] = random.random();
            }
        }
        throw(&node, &bytes).await;
    }
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "seed {seed}");
    let mut raw = Raw::ready(&node).await;
    raw.send(&query("")).await;
    assert_eq!(raw.kinds().await, "IZI");
}

#[tokio::test]
async fn clients_that_stall_are_told_and_dropped() {
    let node = Node::start(ServerConfig { limits: limits(), ..ServerConfig::default() }).await;
    // Before the startup message, and in the middle of it: no protocol to say anything in.
    for sent in [&b""[..], &startup(&[("user", "x")])[..7]] {
        let mut socket = TcpStream::connect(node.address).await.expect("connects");
        socket.write_all(sent).await.expect("sent");
        let mut rest = Vec::new();
        let ended = socket.read_to_end(&mut rest);
        tokio::time::timeout(PATIENCE, ended).await.expect("dropped in time").expect("an end");
    }
    // Idle, and in the middle of a message.
    for sent in [&b""[..], b"Q\0\0\0\x20sel"] {
        let mut raw = Raw::ready(&node).await;
        raw.send(sent).await;
        let messages = raw.until(b'E').await;
        let (_, error) = messages.last().expect("an error");
        assert_eq!(error_field(error, b'C').as_deref(), Some("57P05"));
        assert_eq!(raw.message().await, None);
    }
}

#[tokio::test]
async fn message_that_claims_too_much_is_refused_without_memory_for_it() {
    let node = Node::start(ServerConfig { limits: limits(), ..ServerConfig::default() }).await;
    for header in [&b"Q\x7f\xff\xff\xff"[..], b"S\x00\x01\x00\x00", b"d\x40\x00\x00\x00"] {
        let mut raw = Raw::ready(&node).await;
        raw.send(header).await;
        let messages = raw.until(b'E').await;
        let (_, error) = messages.last().expect("an error");
        assert_eq!(error_field(error, b'C').as_deref(), Some("54000"));
        assert_eq!(error_field(error, b'S').as_deref(), Some("FATAL"));
        assert_eq!(raw.message().await, None);
    }
}

#[tokio::test]
async fn messages_of_many_clients_share_one_memory_bound() {
    let limits = Limits { wire_memory_bytes: 300_000, ..Limits::default() };
    let node = Node::start(ServerConfig { limits, ..ServerConfig::default() }).await;
    let mut header = vec![b'Q'];
    header.put_u32(200_000);
    let mut first = Raw::ready(&node).await;
    first.send(&header).await;
    // The server has surely read it when it has answered others meanwhile.
    for _ in 0..20 {
        drop(Raw::ready(&node).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut second = Raw::ready(&node).await;
    second.send(&header).await;
    let messages = second.until(b'E').await;
    let (_, error) = messages.last().expect("an error");
    assert_eq!(error_field(error, b'C').as_deref(), Some("53200"));
    // What the first one took comes back when it leaves.
    drop(first);
    for _ in 0..500 {
        let mut third = Raw::ready(&node).await;
        third.send(&header).await;
        third.send(&[b' '; 199_995]).await;
        third.send(b"\0").await;
        let mut refused = false;
        while let Some((kind, body)) = third.message().await {
            refused |= kind == b'E' && error_field(&body, b'C').as_deref() == Some("53200");
            if kind == b'Z' {
                break;
            }
        }
        if !refused {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the memory was never given back");
}

#[tokio::test]
async fn connections_over_the_limit_are_refused_by_name() {
    let limits = Limits { max_connections: 2, ..Limits::default() };
    let node = Node::start(ServerConfig { limits, ..ServerConfig::default() }).await;
    let (first, _second) = (Raw::ready(&node).await, Raw::ready(&node).await);
    let mut third = Raw::connect(&node).await;
    third.send(&startup(&[("user", "telesto"), ("database", "telesto")])).await;
    let messages = third.until(b'E').await;
    let (_, error) = messages.last().expect("an error");
    assert_eq!(error_field(error, b'C').as_deref(), Some("53300"));
    drop(first);
    // The place is free again as soon as the server has noticed.
    for _ in 0..100 {
        let mut again = Raw::connect(&node).await;
        again.send(&startup(&[("user", "telesto"), ("database", "telesto")])).await;
        let mut last = 0;
        while let Some((kind, _)) = again.message().await {
            last = kind;
            if kind == b'Z' {
                return;
            }
        }
        assert_eq!(last, b'E');
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the place was never given back");
}

#[tokio::test]
async fn startup_requests_are_answered_as_postgres_does() {
    let node = Node::start(ServerConfig::default()).await;
    // SSL and GSS refused, then plain startup on the same connection.
    let mut raw = Raw::connect(&node).await;
    for code in [5679u32, 5680] {
        let mut request = Vec::new();
        request.put_u32(8);
        request.put_u32((1234 << 16) | code);
        raw.send(&request).await;
        assert_eq!(raw.socket.read_u8().await.expect("an answer"), b'N');
    }
    raw.send(&startup(&[("user", "telesto"), ("database", "telesto")])).await;
    let greeting = raw.until(b'Z').await;
    let statuses: Vec<String> = greeting
        .iter()
        .filter(|(kind, _)| *kind == b'S')
        .map(|(_, body)| String::from_utf8_lossy(body).replace('\0', "="))
        .collect();
    for expected in ["server_version=15.", "client_encoding=UTF8=", "integer_datetimes=on="] {
        assert!(statuses.iter().any(|status| status.starts_with(expected)), "{statuses:?}");
    }
    assert!(greeting.iter().any(|(kind, _)| *kind == b'K'));
    // A newer minor version and an unknown protocol option are negotiated.
    let mut raw = Raw::connect(&node).await;
    let mut newer = startup(&[("user", "telesto"), ("database", "telesto"), ("_pq_.magic", "1")]);
    newer[7] = 9;
    raw.send(&newer).await;
    assert_eq!(raw.message().await.map(|(kind, _)| kind), Some(b'v'));
    raw.until(b'Z').await;
    // Protocol 2 and a missing user are refused in words.
    let mut raw = Raw::connect(&node).await;
    raw.send(&[0, 0, 0, 8, 0, 2, 0, 0]).await;
    assert_eq!(raw.until(b'E').await.len(), 1);
    let mut raw = Raw::connect(&node).await;
    raw.send(&startup(&[])).await;
    let messages = raw.until(b'E').await;
    assert_eq!(error_field(&messages[0].1, b'C').as_deref(), Some("28000"));
}

/// Bind of one parameter of `length` bytes, in text.
fn bind_long(portal: &str, statement: &str, length: usize) -> Vec<u8> {
    let mut body = format!("{portal}\0{statement}\0\0\0").into_bytes();
    body.put_u16(1);
    body.put_u32(length as u32);
    body.resize(body.len() + length, b'x');
    body.put_u16(0);
    frame(b'B', &body)
}

/// A node whose statements have 24 MiB.
async fn node_with_little_memory() -> Node {
    let options = SqlOptions { memory_bytes: 24 << 20, ..SqlOptions::default() };
    Node::start_with(ServerConfig::default(), options).await
}

#[tokio::test]
async fn portals_of_one_client_take_no_more_than_the_memory_of_statements() {
    let node = node_with_little_memory().await;
    let mut raw = Raw::ready(&node).await;
    raw.send(&parse("s", "select length($1::text)")).await;
    raw.send(&sync()).await;
    assert_eq!(raw.kinds().await, "1ZI");
    for at in 0..40 {
        raw.send(&bind_long(&format!("p{at}"), "s", 1 << 20)).await;
    }
    raw.send(&sync()).await;
    let messages = raw.until(b'Z').await;
    let refused = messages.iter().find(|(kind, _)| *kind == b'E').expect("forty MiB are too many");
    assert_eq!(error_field(&refused.1, b'C').as_deref(), Some("53200"));
    // What they took has come back with the transaction's end; one after the other is no matter at
    // all.
    for _ in 0..40 {
        raw.send(&bind_long("", "s", 1 << 20)).await;
        raw.send(&execute("", 0)).await;
    }
    raw.send(&sync()).await;
    assert_eq!(raw.kinds().await, format!("{}ZI", "2DC".repeat(40)));
}

#[tokio::test]
async fn portals_of_a_long_statement_are_charged_for_their_copies_of_its_text() {
    let node = node_with_little_memory().await;
    let mut raw = Raw::ready(&node).await;
    raw.send(&parse("s", &format!("select '{}'", "x".repeat(1 << 20)))).await;
    for at in 0..40 {
        raw.send(&bind(&format!("p{at}"), "s")).await;
    }
    raw.send(&sync()).await;
    let messages = raw.until(b'Z').await;
    let refused =
        messages.iter().find(|(kind, _)| *kind == b'E').expect("forty copies are too many");
    assert_eq!(error_field(&refused.1, b'C').as_deref(), Some("53200"));
}

#[tokio::test]
async fn prepared_statements_of_one_client_take_no_more_than_the_memory_of_statements() {
    let node = node_with_little_memory().await;
    let client = node.client().await;
    // By PREPARE one long literal each; by Parse ones of many words that are short enough not to be
    // weighed alone.
    let long = "x".repeat(1 << 20);
    let words = |at: usize| {
        let columns: Vec<_> =
            (0..1000).map(|column| format!("$1::int as c{at}x{column}")).collect();
        format!("select {}", columns.join(", "))
    };
    for protocol in [false, true] {
        let mut kept = Vec::new();
        let mut refused = None;
        for at in 0..100 {
            let done = if protocol {
                client.prepare(&words(at)).await.map(|statement| kept.push(statement))
            } else {
                client.batch_execute(&format!("prepare s{at} as select '{long}'")).await
            };
            if let Err(error) = done {
                refused = error.code().cloned();
                break;
            }
        }
        assert_eq!(refused, Some(SqlState::OUT_OF_MEMORY), "by the protocol: {protocol}");
        drop(kept);
        client.batch_execute("deallocate all").await.expect("forgotten");
        client.batch_execute(&format!("prepare s as select '{long}'")).await.expect("room again");
        client.batch_execute("deallocate all").await.expect("forgotten");
    }
}

#[tokio::test]
async fn replies_of_a_pipeline_are_sent_before_they_fill_the_memory() {
    let node = Node::start(ServerConfig::default()).await;
    let holder = node.client().await;
    holder.batch_execute("select pg_advisory_lock(1)").await.expect("locked");
    let mut raw = Raw::ready(&node).await;
    let columns: Vec<String> = (0..500).map(|at| format!("{at} as c{at}")).collect();
    raw.send(&parse("wide", &format!("select {}", columns.join(", ")))).await;
    raw.send(&parse("waits", "select pg_advisory_lock(1)")).await;
    raw.send(&sync()).await;
    assert_eq!(raw.kinds().await, "11ZI");
    // All of it at once, with a statement behind it that waits for what this client's reader does
    // next.
    let mut pipeline = frame(b'D', b"Swide\0").repeat(400);
    pipeline.extend([bind("", "waits"), execute("", 0), sync()].concat());
    raw.send(&pipeline).await;
    for _ in 0..100 {
        let (kind, _) = raw.message().await.expect("descriptions come before the lock does");
        assert!(matches!(kind, b't' | b'T'), "{:?}", char::from(kind));
    }
    holder.batch_execute("select pg_advisory_unlock(1)").await.expect("unlocked");
    raw.until(b'Z').await;
}

#[tokio::test]
async fn client_that_starts_a_byte_at_a_time_gives_its_place_back() {
    let node = Node::start(ServerConfig { limits: limits(), ..ServerConfig::default() }).await;
    let mut socket = TcpStream::connect(node.address).await.expect("connects");
    let long = startup(&[("user", &"x".repeat(9_000))]);
    for byte in long.chunks(1).take(200) {
        // Each comes well before the limit of one wait.
        let sent = socket.write_all(byte).await;
        let mut end = [0];
        let read = tokio::time::timeout(Duration::from_millis(50), socket.read(&mut end)).await;
        if sent.is_err() || read.is_ok() {
            return;
        }
    }
    panic!("the server still waits for the rest");
}
