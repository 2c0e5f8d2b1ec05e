//! Requests and replies over the simulated network and over byte streams.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use parking_lot::Mutex;
use telesto_common::{Deadline, Env, Incarnation, NodeId};
use telesto_net::sim::{SimNet, Weather};
use telesto_net::{
    CallLimits, Caller, Class, Client, Error, Handler, MAX_FRAME_BYTES, MAX_RUNNING, Peer, Router,
    Service, VERSIONS, Versions, framed, serve,
};
use telesto_testkit::World;

const ECHO: Service = Service(1);

fn node(id: u128, life: u64) -> Caller {
    Caller { node: NodeId(id), incarnation: Incarnation(life) }
}

/// Answers with what it was asked after a drawn time, and remembers the order.
#[derive(Debug)]
struct Echo {
    env: Env,
    longest: Duration,
    begun: Mutex<Vec<Bytes>>,
}

#[async_trait::async_trait]
impl Handler for Echo {
    async fn handle(&self, _: Caller, _: Class, request: Bytes, _: Deadline) -> Bytes {
        self.begun.lock().push(request.clone());
        self.env.clock.sleep(self.env.jitter(self.longest)).await;
        request
    }
}

/// A process at `address` that echoes.
fn start(net: &SimNet, env: &Env, address: &str, me: Caller, versions: Versions) -> Arc<Echo> {
    let longest = Duration::from_millis(50);
    let echo = Arc::new(Echo { env: env.clone(), longest, begun: Mutex::default() });
    listen(net, env, address, (me, versions), Arc::clone(&echo) as Arc<dyn Handler>);
    echo
}

fn listen(
    net: &SimNet,
    env: &Env,
    address: &str,
    (me, versions): (Caller, Versions),
    handler: Arc<dyn Handler>,
) {
    let router = Router::default().with(ECHO, handler);
    let mut incoming = net.listen(address);
    let on = env.clone();
    env.spawn("accepting", async move {
        while let Some(pipe) = incoming.recv().await {
            let (router, env) = (router.clone(), on.clone());
            on.spawn("serving", async move {
                let _ = serve(&env, pipe, me, versions, &router).await;
            });
        }
    });
}

/// Answers as a bucket does that has a bad day.
#[derive(Debug)]
struct Slow(Env);

#[async_trait::async_trait]
impl Handler for Slow {
    async fn handle(&self, _: Caller, _: Class, request: Bytes, _: Deadline) -> Bytes {
        self.0.clock.sleep(Duration::from_secs(15)).await;
        request
    }
}

#[test]
fn connection_stays_while_as_many_requests_run_as_may() {
    World::run(3, false, async |world| {
        let net = SimNet::new(world.env.clone());
        let server = world.process("b", 1);
        let slow = Arc::new(Slow(server.env.clone())) as Arc<dyn Handler>;
        listen(&net, &server.env, "b", (node(2, 1), VERSIONS), slow);
        let asking = world.process("a", 1);
        let client = client(&net, &asking.env);
        let calls: Vec<_> = (0..MAX_RUNNING as u32 + 50)
            .map(|n| {
                let (client, env) = (client.clone(), asking.env.clone());
                asking.run(async move {
                    let by = env.deadline(Duration::from_secs(60));
                    let body = Bytes::copy_from_slice(&n.to_le_bytes());
                    client.call(ECHO, body, by).await.map(|_| ())
                })
            })
            .collect();
        for answer in futures::future::join_all(calls).await {
            assert_eq!(answer, Some(Ok(())));
        }
    });
}

fn client(net: &SimNet, env: &Env) -> Client {
    let peer = Peer { node: NodeId(2), address: "b".into() };
    Client::new(env, net.transport("a"), peer, node(1, 1), Class::Append, CallLimits::default())
}

fn soon(env: &Env) -> Deadline {
    env.deadline(Duration::from_secs(5))
}

#[test]
fn many_calls_at_a_time_get_each_its_own_answer_and_begin_in_order() {
    World::run(1, false, async |world| {
        let net = SimNet::new(world.env.clone());
        let server = world.process("b", 1);
        let echo = start(&net, &server.env, "b", node(2, 7), VERSIONS);
        let asking = world.process("a", 1);
        let client = client(&net, &asking.env);
        let calls: Vec<_> = (0..500_u32)
            .map(|n| {
                let (client, env) = (client.clone(), asking.env.clone());
                asking.run(async move {
                    let body = Bytes::copy_from_slice(&n.to_le_bytes());
                    client.call(ECHO, body.clone(), soon(&env)).await == Ok(body)
                })
            })
            .collect();
        assert!(futures::future::join_all(calls).await.into_iter().all(|ok| ok == Some(true)));
        let begun = echo.begun.lock();
        assert_eq!(begun.len(), 500);
        assert!(begun.iter().enumerate().all(|(n, b)| b[..] == (n as u32).to_le_bytes()));
        assert_eq!(client.life(), Some(Incarnation(7)));
    });
}

#[test]
fn calls_in_foul_weather_end_by_their_deadline_with_their_own_answer_or_an_error() {
    for seed in 0..20 {
        World::run(seed, false, async |world| {
            let net = SimNet::new(world.env.clone());
            net.set_weather(Weather { lost: 200, repeated: 200, ..Weather::FOUL });
            let server = world.process("b", 1);
            start(&net, &server.env, "b", node(2, 1), VERSIONS);
            let asking = world.process("a", 1);
            let client = client(&net, &asking.env);
            let mut answered = 0;
            for n in 0..200_u32 {
                let body = Bytes::copy_from_slice(&n.to_le_bytes());
                let started = world.now();
                let by = world.env.deadline(Duration::from_millis(400));
                let result = client.call(ECHO, body.clone(), by).await;
                assert!(world.now() - started <= Duration::from_millis(402), "seed {seed}");
                if let Ok(answer) = result {
                    assert_eq!(answer, body, "seed {seed}");
                    answered += 1;
                }
                world.sleep(Duration::from_millis(50)).await;
            }
            assert!(answered > 20, "seed {seed}: {answered}");
        });
    }
}

#[test]
fn way_back_that_is_cut_breaks_the_connection_and_a_healed_one_serves_again() {
    World::run(1, false, async |world| {
        let net = SimNet::new(world.env.clone());
        let server = world.process("b", 1);
        start(&net, &server.env, "b", node(2, 1), VERSIONS);
        let asking = world.process("a", 1);
        let client = client(&net, &asking.env);
        let ask = || client.call(ECHO, Bytes::from_static(b"x"), soon(&asking.env));
        assert!(ask().await.is_ok());
        net.cut("b", "a");
        let started = world.now();
        let error = ask().await.expect_err("no answer can come");
        assert!(matches!(error, Error::Broken { .. }), "{error}");
        let took = world.now() - started;
        assert!(took < Duration::from_millis(1500), "{took:?}");
        net.heal();
        world.sleep(Duration::from_secs(1)).await;
        assert!(ask().await.is_ok());
    });
}

/// Calls that come faster than the client would otherwise look keep nobody from seeing that no
/// answer comes.
#[test]
fn connection_in_steady_use_is_found_dead_as_soon_as_an_idle_one() {
    World::run(1, false, async |world| {
        let net = SimNet::new(world.env.clone());
        let server = world.process("b", 1);
        start(&net, &server.env, "b", node(2, 1), VERSIONS);
        let asking = world.process("a", 1);
        let client = client(&net, &asking.env);
        let ask = || client.call(ECHO, Bytes::from_static(b"x"), soon(&asking.env));
        assert!(ask().await.is_ok());
        net.cut("b", "a");
        let started = world.now();
        let (env, ask) = (&asking.env, &ask);
        let calls = (0..60).map(|n| async move {
            env.clock.sleep(Duration::from_millis(50) * n).await;
            let error = ask().await.expect_err("no answer can come");
            matches!(error, Error::Broken { .. }).then(|| env.clock.monotonic())
        });
        let broken = futures::future::join_all(calls).await.into_iter().flatten();
        let first = broken.min().expect("the connection breaks").saturating_sub(started);
        assert!(first < Duration::from_millis(1500), "{first:?}");
    });
}

#[test]
fn process_that_was_started_again_answers_with_its_new_life_and_the_old_connection_is_gone() {
    World::run(1, false, async |world| {
        let net = SimNet::new(world.env.clone());
        let server = world.process("b", 1);
        start(&net, &server.env, "b", node(2, 1), VERSIONS);
        let asking = world.process("a", 1);
        let client = client(&net, &asking.env);
        let ask = || client.call(ECHO, Bytes::from_static(b"x"), soon(&asking.env));
        assert!(ask().await.is_ok());
        server.kill();
        let again = world.process("b", 2);
        start(&net, &again.env, "b", node(2, 2), VERSIONS);
        while ask().await.is_err() {
            world.sleep(Duration::from_millis(100)).await;
            assert!(world.now() < Duration::from_secs(5));
        }
        assert_eq!(client.life(), Some(Incarnation(2)));
    });
}

#[test]
fn node_without_a_common_version_and_another_node_at_the_address_are_refused() {
    World::run(1, false, async |world| {
        let net = SimNet::new(world.env.clone());
        let server = world.process("b", 1);
        let newer = Versions { oldest: VERSIONS.newest + 1, newest: VERSIONS.newest + 2 };
        start(&net, &server.env, "b", node(2, 1), newer);
        let asking = world.process("a", 1);
        let first = client(&net, &asking.env);
        let error = first.call(ECHO, Bytes::new(), soon(&asking.env)).await.expect_err("refused");
        assert!(matches!(&error, Error::Refused { reason, .. } if reason.contains("versions")));
        start(&net, &server.env, "b", node(3, 1), VERSIONS);
        let second = client(&net, &asking.env);
        let error = second.call(ECHO, Bytes::new(), soon(&asking.env)).await.expect_err("refused");
        assert!(matches!(&error, Error::Refused { reason, .. } if reason.contains("not")));
    });
}

#[test]
fn request_for_a_service_that_is_not_there_and_one_that_is_too_large_are_refused() {
    World::run(1, false, async |world| {
        let net = SimNet::new(world.env.clone());
        let server = world.process("b", 1);
        start(&net, &server.env, "b", node(2, 1), VERSIONS);
        let asking = world.process("a", 1);
        let client = client(&net, &asking.env);
        let unknown = client.call(Service(9), Bytes::new(), soon(&asking.env)).await;
        assert!(matches!(unknown, Err(Error::NotServed { .. })), "{unknown:?}");
        let large = Bytes::from(vec![0; MAX_FRAME_BYTES]);
        let large = client.call(ECHO, large, soon(&asking.env)).await;
        assert!(matches!(large, Err(Error::TooLarge { .. })));
    });
}

#[tokio::test]
async fn large_and_small_requests_pass_over_a_stream_of_bytes() {
    let env = telesto_runtime::env();
    let (here, there) = tokio::io::duplex(64 << 10);
    let longest = Duration::from_millis(1);
    let echo = Arc::new(Echo { env: env.clone(), longest, begun: Mutex::default() });
    let router = Router::default().with(ECHO, echo as Arc<dyn Handler>);
    let on = env.clone();
    env.spawn("serving", async move {
        let pipe = framed(there, "a".into(), None);
        let _ = serve(&on, pipe, node(2, 1), VERSIONS, &router).await;
    });
    #[derive(Debug)]
    struct Once(Mutex<Option<telesto_net::Pipe>>);
    #[async_trait::async_trait]
    impl telesto_net::Transport for Once {
        async fn connect(
            &self,
            peer: &Peer,
            _: Class,
            _: Deadline,
        ) -> telesto_net::Result<telesto_net::Pipe> {
            let gone = || Error::Unreachable { peer: peer.address.clone(), reason: "once".into() };
            self.0.lock().take().ok_or_else(gone)
        }
    }
    let transport = Arc::new(Once(Mutex::new(Some(framed(here, "b".into(), None)))));
    let peer = Peer { node: NodeId(2), address: "b".into() };
    let client = Client::new(&env, transport, peer, node(1, 1), Class::Read, CallLimits::default());
    let by = env.deadline(Duration::from_secs(120));
    let calls = (0..40_usize).map(|n| {
        let body = Bytes::from(vec![n as u8; (n % 5) * 300_000 + n]);
        let client = client.clone();
        async move { client.call(ECHO, body.clone(), by).await == Ok(body) }
    });
    assert!(futures::future::join_all(calls).await.into_iter().all(|ok| ok));
}

#[tokio::test]
async fn bytes_that_are_no_hello_end_the_connection() {
    let env = telesto_runtime::env();
    let (here, there) = tokio::io::duplex(1 << 10);
    let mut pipe = framed(here, "b".into(), None);
    pipe.sender.send(Bytes::from_static(b"GET / HTTP/1.1")).await.expect("sent");
    let served = framed(there, "a".into(), None);
    let error = serve(&env, served, node(2, 1), VERSIONS, &Router::default()).await;
    assert!(matches!(error, Err(Error::Malformed { .. })), "{error:?}");
    assert!(pipe.receiver.next().await.is_none());
}
