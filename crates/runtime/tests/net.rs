//! Nodes that speak over real sockets, with and without certificates.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::{Deadline, Env, Incarnation, NodeId};
use telesto_net::{
    CallLimits, Caller, Class, Client, Error, Handler, Peer, Result, Router, Service, Transport,
};
use telesto_runtime::net::{Certificates, JoinToken, MAX_STRANGERS, Tcp};
use tokio::net::{TcpListener, TcpStream};

const ECHO: Service = Service(1);

#[derive(Debug)]
struct Echo;

#[async_trait::async_trait]
impl Handler for Echo {
    async fn handle(&self, _: Caller, _: Class, request: Bytes, _: Deadline) -> Bytes {
        request
    }
}

fn node(id: u128) -> Caller {
    Caller { node: NodeId(id), incarnation: Incarnation(1) }
}

fn token(text: &str) -> JoinToken {
    JoinToken::new(&text.repeat(32)).expect("long enough")
}

/// Node 2, which serves; gives its address.
async fn start(env: &Env, certificates: Option<Certificates>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let tcp = Tcp::new(env.clone(), certificates);
    let router = Router::default().with(ECHO, Arc::new(Echo));
    env.spawn("serving nodes", async move { tcp.serve(listener, node(2), router).await });
    address
}

async fn ask(
    env: &Env,
    certificates: Option<Certificates>,
    address: &str,
    me: u128,
) -> Result<Bytes> {
    let transport: Arc<dyn Transport> = Arc::new(Tcp::new(env.clone(), certificates));
    let peer = Peer { node: NodeId(2), address: address.to_owned() };
    let limits = CallLimits { silence: Duration::from_secs(60), ..CallLimits::default() };
    let client = Client::new(env, transport, peer, node(me), Class::Control, limits);
    let by = env.deadline(Duration::from_secs(120));
    client.call(ECHO, Bytes::from_static(b"hello"), by).await
}

#[tokio::test]
async fn nodes_with_the_same_join_token_speak_and_others_do_not() {
    let env = telesto_runtime::env();
    let of =
        |text: &str, id| Some(Certificates::from_token(&token(text), NodeId(id)).expect("made"));
    let address = start(&env, of("a", 2)).await;
    let answer = ask(&env, of("a", 1), &address, 1).await.expect("one of the cluster");
    assert_eq!(&answer[..], b"hello");
    let other = ask(&env, of("b", 1), &address, 1).await;
    assert!(other.is_err(), "another cluster's token: {other:?}");
    let none = ask(&env, None, &address, 1).await;
    assert!(none.is_err(), "no certificate: {none:?}");
    // It has a certificate of the cluster, but says that it is another node.
    let disguised = ask(&env, of("a", 1), &address, 3).await;
    assert!(
        matches!(&disguised, Err(Error::Refused { reason, .. }) if reason.contains("certificate")),
        "{disguised:?}"
    );
    // The node at the address is not the one that was called.
    let address = start(&env, of("a", 7)).await;
    let wrong = ask(&env, of("a", 1), &address, 1).await;
    assert!(matches!(wrong, Err(Error::Unreachable { .. })), "{wrong:?}");
}

#[tokio::test]
async fn nodes_speak_without_certificates_on_a_trusted_network() {
    let env = telesto_runtime::env();
    let address = start(&env, None).await;
    assert_eq!(&ask(&env, None, &address, 1).await.expect("answered")[..], b"hello");
}

#[test]
fn join_token_that_is_too_short_and_certificates_that_are_none_are_refused() {
    assert!(matches!(JoinToken::new("secret"), Err(Error::Certificates { .. })));
    assert!(!format!("{:?}", token("x")).contains("xx"), "it is not shown");
    let error = Certificates::given(b"", b"", b"").expect_err("nothing in them");
    assert!(matches!(error, Error::Certificates { .. }), "{error}");
}

/// Of a node with several addresses the first is taken at which somebody greets: not one where
/// nobody listens, nor one where connections are taken and nothing is said.
#[tokio::test]
async fn addresses_of_a_node_are_tried_in_turn() {
    let env = telesto_runtime::env();
    let of = |id| Some(Certificates::from_token(&token("a"), NodeId(id)).expect("made"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let closed = listener.local_addr().expect("bound");
    drop(listener);
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mute = silent.local_addr().expect("bound");
    let open = start(&env, of(2)).await;
    let all = format!("{closed}, {mute},{open}");
    // Within the two seconds that a connection may take.
    let answer = ask(&env, of(1), &all, 1).await.expect("the third one answers");
    assert_eq!(&answer[..], b"hello");
    let none = ask(&env, of(1), &closed.to_string(), 1).await;
    assert!(matches!(none, Err(Error::Unreachable { .. })), "{none:?}");
}

#[tokio::test]
async fn connections_end_with_what_serves_them() {
    let env = telesto_runtime::env();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let tcp = Tcp::new(env.clone(), None);
    let router = Router::default().with(ECHO, Arc::new(Echo));
    let serving = env.spawn("serving nodes", {
        let tcp = tcp.clone();
        async move { tcp.serve(listener, node(2), router).await }
    });
    let peer = Peer { node: NodeId(2), address };
    let limits = CallLimits { silence: Duration::from_secs(60), ..CallLimits::default() };
    let client = Client::new(&env, Arc::new(tcp), peer, node(1), Class::Control, limits);
    let by = || env.deadline(Duration::from_secs(60));
    client.call(ECHO, Bytes::from_static(b"hello"), by()).await.expect("answered");
    serving.abort();
    let until = by();
    // The connection that is there is not used any more, and no new one is made.
    while client.call(ECHO, Bytes::from_static(b"again"), by()).await.is_ok() {
        assert!(!until.passed(env.clock.monotonic()), "it goes on to answer");
        env.clock.sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn strangers_who_say_nothing_make_room_for_others() {
    let env = telesto_runtime::env();
    let of = |id| Some(Certificates::from_token(&token("a"), NodeId(id)).expect("made"));
    let address = start(&env, of(2)).await;
    let mut strangers = Vec::new();
    for _ in 0..MAX_STRANGERS * 3 {
        strangers.push(TcpStream::connect(&address).await.expect("connects"));
    }
    let answer = ask(&env, of(1), &address, 1).await.expect("a node is served");
    assert_eq!(&answer[..], b"hello");
    let is_open = |stranger: &TcpStream| {
        let read = stranger.try_read(&mut [0]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    // All together they are given up after ten seconds; the oldest ones at once.
    let until = env.deadline(Duration::from_secs(60));
    loop {
        let open: Vec<bool> = strangers.iter().map(is_open).collect();
        assert!(!until.passed(env.clock.monotonic()), "{open:?}");
        assert!(open[open.len() - 1], "the newest one has time: {open:?}");
        if open.iter().filter(|open| **open).count() <= MAX_STRANGERS {
            assert!(!open[..MAX_STRANGERS].contains(&true), "the oldest ones went: {open:?}");
            return;
        }
        env.clock.sleep(Duration::from_millis(1)).await;
    }
}
