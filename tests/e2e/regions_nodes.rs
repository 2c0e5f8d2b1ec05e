//! A region of several nodes, of which one carries the streams: sessions of the other one write and
//! read in another region through it, move there, and see how the streams stand. When it is killed
//! or frozen, another node that could carry them goes on. Clients of HTTP move between nodes and
//! regions with their tokens.
//!
//! # Invariants
//! Nothing is asked of the node that carries the streams by a client, but definitions.
//!
//! # Limits
//! About 15 s each.

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "../../demo/cli/src/link.rs"]
#[allow(dead_code)]
mod link;

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{Node, PATIENCE, Place, free_port, program};
use link::{Link, Proxy};
use tokio_postgres::{Client, Error, SimpleQueryMessage};

fn region(arguments: &[&str]) -> String {
    let output = Command::new(program()).arg("region").args(arguments).output();
    let output = output.expect("the telesto binary runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

async fn rows(client: &Client, sql: &str) -> Result<Vec<String>, Error> {
    let answer = client.simple_query(sql).await?;
    let rows = answer.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            let cells = (0..row.len()).map(|cell| row.get(cell).unwrap_or("NULL"));
            Some(cells.collect::<Vec<_>>().join("|"))
        }
        _ => None,
    });
    Ok(rows.collect())
}

async fn must(client: &Client, sql: &str) -> Vec<String> {
    rows(client, sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

/// Waits until `sql` answers `wanted`.
async fn until(client: &Client, sql: &str, wanted: &str) {
    let patience = Instant::now() + PATIENCE;
    loop {
        let found = rows(client, sql).await;
        if found.as_ref().is_ok_and(|found| found.join(",") == wanted) {
            return;
        }
        assert!(Instant::now() < patience, "{sql}: {found:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn code(error: &Error) -> String {
    error.code().map(|code| code.code().to_owned()).unwrap_or_default()
}

struct World {
    us: Place,
    eu: Place,
    streams: [String; 2],
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let place = |name: &str| Place::folder(&folder.path().join(name), "quorum", "quorum");
        let (us, eu) = (place("us"), place("eu"));
        let streams = [0, 1].map(|_| format!("127.0.0.1:{}", free_port()));
        Self { us, eu, streams, folder }
    }

    fn local(&self, name: &str) -> std::path::PathBuf {
        Path::join(self.folder.path(), name)
    }

    fn carrier(&self) -> Node {
        let extra =
            ["--cluster", "127.0.0.1:0", "--region", &self.streams[0], "--memory", "128MiB"];
        Node::start(&self.us, &self.local("us-1"), &extra)
    }

    fn other(&self, name: &str) -> Node {
        let extra = ["--cluster", "127.0.0.1:0", "--memory", "128MiB"];
        Node::start(&self.us, &self.local(name), &extra)
    }

    fn far(&self) -> Node {
        let extra = ["--region", &self.streams[1], "--memory", "128MiB"];
        Node::start(&self.eu, &self.local("eu-1"), &extra)
    }
}

/// Both say the same of `sql`, as soon as nothing happens any more.
async fn agree(one: &Client, other: &Client, sql: &str) {
    let patience = Instant::now() + PATIENCE;
    loop {
        let (this, that) = (must(one, sql).await, must(other, sql).await);
        if this == that {
            return;
        }
        assert!(Instant::now() < patience, "{sql}: {this:?}, {that:?}");
    }
}

/// What a node that carries no streams (`client`) shows of them is what the one that carries them
/// (`first`) shows.
async fn shows_how_the_streams_stand(client: &Client, first: &Client, there: &Client) {
    let peer = "SELECT name, connected, filling, sent_transactions > 0, applied_transactions > 0, passed IS NOT NULL, trouble \
                FROM telesto_regions WHERE NOT is_self";
    until(client, peer, "eu|t|f|t|t|t|NULL").await;
    let own = "SELECT name, connected, plane, tree FROM telesto_regions WHERE is_self";
    assert_eq!(must(client, own).await, ["us|NULL|matrix|NULL"]);
    let counts =
        "SELECT name, sent_transactions, applied_transactions FROM telesto_regions ORDER BY id";
    agree(client, first, counts).await;
    let links = "SELECT from_region, to_region, sent_transactions > 0, round_trip_ms > 0 FROM telesto_links WHERE from_region = 'us'";
    until(client, links, "us|eu|t|t").await;

    // Both write one row at once, until that was seen.
    must(first, "CREATE TABLE m (id int PRIMARY KEY, n int)").await;
    must(first, "INSERT INTO m VALUES (1, 0)").await;
    must(first, "ALTER TABLE m SET (telesto.home = 'any')").await;
    until(
        there,
        "SELECT count(*) FROM m JOIN telesto_placement ON table_name = 'm' AND home = 'any'",
        "1",
    )
    .await;
    let seen = "SELECT DISTINCT table_name, type FROM telesto_conflicts";
    let patience = Instant::now() + PATIENCE;
    while must(client, seen).await.is_empty() {
        assert!(Instant::now() < patience, "no conflict was seen");
        let write = "UPDATE m SET n = n + 1 WHERE id = 1";
        // One that loses against what came is tried again by who asked.
        let _ = tokio::join!(rows(client, write), rows(there, write));
    }
    assert_eq!(must(client, seen).await, ["m|update_origin_differs"]);
    agree(client, first, "SELECT * FROM telesto_conflicts ORDER BY kept_at").await;
}

/// What eu executes for a session of us is among its sessions, and is cancelled there.
async fn is_stopped_where_it_is_executed(client: &Client, there: &Client) {
    must(client, "SET application_name = 'shop'").await;
    let stops = async {
        let shown = "SELECT usename || ' ' || state FROM pg_stat_activity WHERE application_name = 'shop' AND wait_event = 'PgSleep'";
        until(there, shown, "telesto active").await;
        let cancel =
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'shop'";
        assert_eq!(must(there, cancel).await, ["t"]);
    };
    let (ended, ()) = tokio::join!(rows(client, "SELECT pg_sleep(100) FROM e WHERE id = 1"), stops);
    assert_eq!(code(&ended.expect_err("cancelled")), "57014");
    let none = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shop'";
    until(there, none, "0").await;
    must(client, "RESET application_name").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn node_that_carries_no_streams_reaches_other_regions_through_the_one_that_does() {
    let world = World::new();
    let us = &world.us.bucket;
    region(&["init", "us", "--bucket", us, "--address", &world.streams[0]]);
    let carrier = world.carrier();
    let text = region(&["invite", "eu", "--bucket", us]);
    let eu = &world.eu.bucket;
    region(&["join", &text, "--bucket", eu, "--address", &world.streams[1]]);
    let far = world.far();
    let first = carrier.connect().await.expect("connects");
    until(&first, "SELECT count(*) FROM telesto_regions", "2").await;
    for sql in [
        "CREATE TABLE y (id int PRIMARY KEY, n int NOT NULL)",
        "CREATE TABLE e (id int PRIMARY KEY, v text)",
        "ALTER TABLE y SET (telesto.home = 'eu')",
        "ALTER TABLE e SET (telesto.home = 'eu')",
        "ALTER TABLE e SET (telesto.regions = 'eu')",
        "CREATE TABLE p (place text, id int, n int, PRIMARY KEY (place, id))",
        "ALTER TABLE p SET (telesto.regions = 'by row (place)')",
    ] {
        must(&first, sql).await;
    }
    let there = far.connect().await.expect("connects");
    until(&there, "SELECT regions FROM telesto_placement WHERE table_name = 'e'", "eu").await;
    until(&there, "INSERT INTO e SELECT g, 'row ' || g FROM generate_series(1, 5000) g", "").await;
    until(&there, "INSERT INTO y VALUES (1, 0)", "").await;
    let other = world.other("us-2");
    // Two of three keep the log when one goes.
    let third = world.other("us-3");
    let client = other.connect().await.expect("connects");
    until(&client, "SELECT n FROM y", "0").await;

    // Writes, which it reads at once.
    for n in 1..=5 {
        must(&client, &format!("UPDATE y SET n = {n}")).await;
        assert_eq!(must(&client, "SELECT n FROM y").await, [n.to_string()]);
    }
    assert_eq!(must(&there, "SELECT n FROM y").await, ["5"]);
    // A conflict there is one here.
    must(&client, "BEGIN; SELECT n FROM y").await;
    must(&there, "UPDATE y SET n = 6").await;
    let lost = rows(&client, "UPDATE y SET n = n + 10; COMMIT").await;
    match lost {
        Err(error) => assert_eq!(code(&error), "40001", "{error:?}"),
        Ok(_) => {
            panic!("what it had read was changed: {:?}", must(&there, "SELECT n FROM y").await)
        }
    }
    must(&client, "ROLLBACK").await;
    // Reads of what this region does not have, by both protocols, in many pieces.
    let count = must(&client, "SELECT count(*), max(v) FROM e").await;
    assert_eq!(count, ["5000|row 999"]);
    let all = client.query("SELECT id, v FROM e WHERE id > $1 ORDER BY id", &[&10]).await;
    let ids: Vec<i32> = all.expect("reads").iter().map(|row| row.get(0)).collect();
    assert!(ids.into_iter().eq(11..=5000));
    must(&there, "UPDATE e SET v = 'new' WHERE id = 1; UPDATE y SET n = 7").await;
    assert_eq!(must(&client, "SELECT v FROM e WHERE id = 1").await, ["new"]);
    assert_eq!(must(&client, "SELECT n FROM y").await, ["7"], "it came before what was shown");
    must(&client, "SET statement_timeout = '1s'").await;
    let stopped = rows(&client, "SELECT pg_sleep(100) FROM e WHERE id = 1").await;
    assert_eq!(code(&stopped.expect_err("stopped")), "57014");
    must(&client, "RESET statement_timeout").await;
    // Rows that this region does not have are added, and changed as they are there.
    until(&client, "INSERT INTO p SELECT 'eu', g, 0 FROM generate_series(1, 300) g", "").await;
    let taken = rows(&client, "INSERT INTO p VALUES ('eu', 300, 1)").await.expect_err("taken");
    assert_eq!(code(&taken), "23505", "{taken:?}");
    must(&there, "UPDATE p SET n = n + 1 WHERE place = 'eu' AND id = 7").await;
    let changed = must(
        &client,
        "UPDATE p SET n = n + 10 WHERE place = 'eu' AND id BETWEEN 6 AND 8 RETURNING n",
    );
    assert_eq!(changed.await, ["10", "11", "10"]);
    must(&client, "DELETE FROM p WHERE place = 'eu' AND n = 0").await;
    assert_eq!(must(&there, "SELECT count(*), sum(n) FROM p WHERE place = 'eu'").await, ["3|31"]);
    must(&client, "BEGIN; UPDATE p SET n = n + 1 WHERE place = 'eu' AND id = 7 RETURNING n").await;
    must(&there, "UPDATE p SET n = n + 1 WHERE place = 'eu' AND id = 7").await;
    let lost = rows(&client, "COMMIT").await.expect_err("somebody else was first");
    assert_eq!(code(&lost), "40001", "{lost:?}");
    // Sessions move, either way.
    must(&client, "UPDATE y SET n = 8").await;
    let token = must(&client, "SELECT telesto_migrate('eu')").await.remove(0);
    must(&there, &format!("SET telesto.session_token = '{token}'")).await;
    assert_eq!(must(&there, "SELECT n FROM y").await, ["8"]);
    must(&there, "UPDATE y SET n = 9").await;
    let token = must(&there, "SHOW telesto.session_token").await.remove(0);
    must(&client, &format!("SET telesto.session_token = '{token}'")).await;
    assert_eq!(must(&client, "SELECT n FROM y").await, ["9"]);
    assert_eq!(must(&client, "SHOW telesto.session_token").await[0].len(), 54);

    shows_how_the_streams_stand(&client, &first, &there).await;
    is_stopped_where_it_is_executed(&client, &there).await;

    // Without a node that carries the streams it says so, and goes on when there is one again.
    drop(first);
    assert!(carrier.stop(), "it hands over what it owns");
    // A session that waits for nothing of another region.
    let fresh = other.connect().await.expect("connects");
    for table in ["telesto_regions", "telesto_links", "telesto_conflicts"] {
        let asked = Instant::now();
        let refused = rows(&fresh, &format!("SELECT * FROM {table}")).await;
        let refused = refused.expect_err("nobody can tell");
        assert_eq!(code(&refused), "08006", "{refused:?}");
        let said = refused.as_db_error().map(|error| error.message().to_owned());
        assert!(said.as_ref().is_some_and(|said| said.contains("--region")), "{said:?}");
        assert!(asked.elapsed() < Duration::from_secs(10), "{table}: {:?}", asked.elapsed());
    }
    let names = "SELECT name, address, is_self, defines FROM telesto_regions ORDER BY id";
    let [us, eu] = &world.streams;
    let known = [format!("us|{us}|t|t"), format!("eu|{eu}|f|f")];
    assert_eq!(must(&fresh, names).await, known, "names are known everywhere");
    // The session that has seen another region may first be told that this has not come here.
    for (session, sql) in [&fresh, &client].into_iter().flat_map(|session| {
        ["UPDATE y SET n = 10", "SELECT count(*) FROM e"].map(|sql| (session, sql))
    }) {
        let refused = rows(session, sql).await.expect_err("nobody carries it");
        let allowed: &[&str] =
            if std::ptr::eq(session, &fresh) { &["08006"] } else { &["08006", "55000"] };
        assert!(allowed.contains(&code(&refused).as_str()), "{refused:?}");
        let said = refused.as_db_error().map(|error| error.message().to_owned());
        assert!(
            said.as_ref().is_some_and(|said| said.contains("streams") || said.contains("region")),
            "{said:?}"
        );
    }
    assert_eq!(must(&fresh, "SELECT n FROM y").await, ["9"], "reads here go on");
    let again = world.carrier();
    until(&client, "SELECT count(*) FROM e", "5000").await;
    until(&client, "UPDATE y SET n = 11 RETURNING n", "11").await;
    drop((again, other, third, far));
}

fn verified(bucket: &str) -> String {
    let output = Command::new(program()).args(["verify", "--regions", "--bucket", bucket]).output();
    let output = output.expect("the telesto binary runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Whether a node listens for other regions at `address`, waited for.
async fn listens(address: &str, wanted: bool) {
    let patience = Instant::now() + PATIENCE;
    loop {
        let found = tokio::net::TcpStream::connect(address).await.is_ok();
        if found == wanted {
            return;
        }
        assert!(Instant::now() < patience, "listening at {address}: {found}, not {wanted}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until the log has three copies that follow, which its owner knows: then one may go.
async fn three_copies(nodes: &[&Node]) {
    let patience = Instant::now() + PATIENCE;
    loop {
        for node in nodes {
            let Ok(client) = node.connect().await else { continue };
            let copies = rows(&client, "SELECT copies_following FROM telesto_logs").await;
            if copies.is_ok_and(|copies| copies == ["3"]) {
                return;
            }
        }
        assert!(Instant::now() < patience, "the log does not get three copies");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A change of each region comes to the other one.
async fn both_ways(here: &Client, there: &Client, n: u32) {
    until(here, &format!("UPDATE h SET n = {n} RETURNING n"), &n.to_string()).await;
    until(there, &format!("UPDATE y SET n = {n} RETURNING n"), &n.to_string()).await;
    until(there, "SELECT n FROM h", &n.to_string()).await;
    until(here, "SELECT n FROM y", &n.to_string()).await;
    // Here by a session of a node that may carry nothing, to the other region.
    until(here, &format!("UPDATE y SET n = {} RETURNING n", n + 1), &(n + 1).to_string()).await;
    until(there, "SELECT n FROM y", &(n + 1).to_string()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn another_node_carries_the_streams_when_the_one_that_did_is_gone() {
    let world = World::new();
    let (us, eu) = (&world.us.bucket, &world.eu.bucket);
    let first_at = &world.streams[0];
    let second_at = format!("127.0.0.1:{}", free_port());
    let both = format!("{first_at},{second_at}");
    region(&["init", "us", "--bucket", us, "--address", &both]);
    let first = world.carrier();
    let extra = ["--cluster", "127.0.0.1:0", "--region", &second_at, "--memory", "128MiB"];
    let second = Node::start(&world.us, &world.local("us-2"), &extra);
    let third = world.other("us-3");
    let text = region(&["invite", "eu", "--bucket", us]);
    region(&["join", &text, "--bucket", eu, "--address", &world.streams[1]]);
    let far = world.far();
    let (here, there) =
        (third.connect().await.expect("connects"), far.connect().await.expect("connects"));
    until(&here, "CREATE TABLE h (id int PRIMARY KEY, n int)", "").await;
    must(&here, "CREATE TABLE y (id int PRIMARY KEY, n int)").await;
    must(&here, "ALTER TABLE y SET (telesto.home = 'eu')").await;
    until(&here, "INSERT INTO h VALUES (1, 0)", "").await;
    until(&there, "INSERT INTO y VALUES (1, 0)", "").await;
    both_ways(&here, &there, 10).await;
    listens(first_at, true).await;
    listens(&second_at, false).await;

    // Killed: the other one goes on, and it stands by when it comes back.
    three_copies(&[&first, &second, &third]).await;
    first.kill();
    both_ways(&here, &there, 20).await;
    listens(&second_at, true).await;
    let first = world.carrier();
    listens(first_at, false).await;
    both_ways(&here, &there, 30).await;
    listens(&second_at, true).await;

    // Frozen: the first one goes on, and the other one notices when it is thawed.
    three_copies(&[&first, &second, &third]).await;
    second.freeze();
    both_ways(&here, &there, 40).await;
    listens(first_at, true).await;
    second.thaw();
    listens(&second_at, false).await;
    both_ways(&here, &there, 50).await;

    // Stopped in order.
    three_copies(&[&first, &second, &third]).await;
    assert!(first.stop(), "it stops");
    both_ways(&here, &there, 60).await;
    listens(&second_at, true).await;
    verified(us);
    drop((second, third, far));
}

/// A client of HTTP, with the token of its last reply.
#[derive(Clone, Debug, Default)]
struct Caller {
    token: Option<String>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    /// `Telesto-Session`.
    token: Option<String>,
    body: String,
}

impl Caller {
    /// One request to the node that serves HTTP on `port`.
    fn ask(&mut self, port: u16, method: &str, target: &str, body: &str) -> Answer {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
        let token = self.token.as_ref().map(|token| format!("Telesto-Session: {token}\r\n"));
        write!(
            stream,
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            token.unwrap_or_default(),
            body.len()
        )
        .expect("sent");
        let mut raw = String::new();
        stream.read_to_string(&mut raw).expect("answered");
        let (head, body) = raw.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let token = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("telesto-session").then(|| value.trim().to_owned())
        });
        if token.is_some() {
            self.token.clone_from(&token);
        }
        Answer { status: status.expect("a status"), token, body: body.to_owned() }
    }

    fn put(&mut self, port: u16, key: &str, value: &str) -> Answer {
        let body = format!("{{\"value\": \"{value}\"}}");
        let answer = self.ask(port, "PUT", &format!("/v1/kv/{key}"), &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer
    }

    fn get(&mut self, port: u16, key: &str) -> Answer {
        self.ask(port, "GET", &format!("/v1/kv/{key}?consistency=session"), "")
    }
}

/// The same request, on a thread of its own.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("it ends")
}

/// What `caller` finds at `port` of what it has written elsewhere; it is asked for again as long as
/// it is told that that is not here yet.
fn moved(caller: &mut Caller, port: u16, key: &str) -> Answer {
    let patience = Instant::now() + PATIENCE;
    loop {
        let answer = caller.get(port, key);
        if answer.status != 503 || Instant::now() > patience {
            return answer;
        }
        assert!(answer.body.contains("not_here_yet"), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn client_of_http_that_moves_between_regions_with_its_token_sees_what_it_wrote() {
    let world = World::new();
    let (us, eu) = (&world.us.bucket, &world.eu.bucket);
    // What us sends to eu goes through this; eu's way to us is its own.
    let port = world.streams[1].rsplit(':').next().and_then(|port| port.parse().ok());
    let link = Proxy::start(port.expect("a port"), Duration::ZERO).await.expect("a free port");
    region(&["init", "us", "--bucket", us, "--address", &world.streams[0]]);
    let carrier = world.carrier();
    let text = region(&["invite", "eu", "--bucket", us]);
    region(&["join", &text, "--bucket", eu, "--address", &format!("127.0.0.1:{}", link.port)]);
    let far = world.far();
    let other = world.other("us-2");
    let third = world.other("us-3");
    let first = carrier.connect().await.expect("connects");
    let filled =
        "SELECT count(*) FROM telesto_regions WHERE NOT is_self AND connected AND NOT filling";
    until(&first, filled, "1").await;
    until(&far.connect().await.expect("connects"), filled, "1").await;

    for (number, here) in [carrier.http, other.http].into_iter().enumerate() {
        let key = format!("moved-{number}");
        let before = format!("before-{number}");
        let mut caller = Caller::default();
        caller.put(here, &before, "old");
        let there = far.http;
        let seen = moved(&mut caller, there, &before);
        assert_eq!(seen.status, 200, "{seen:?}");
        // Back, with the token of the other region.
        let written = caller.put(here, &key, "mine");
        assert_eq!(written.token.map(|token| token.len()), Some(54), "the region signs it");
        assert_eq!(caller.get(other.http, &key).status, 200, "in one region it is there at once");
        link.set(Link::Silent);
        let written = caller.put(here, &key, "newer");
        let token = written.token.expect("a token");
        let mut without = Caller::default();
        let stale = without.get(there, &key);
        assert!(!stale.body.contains("newer"), "the link is not held back: {stale:?}");
        let waits = tokio::spawn({
            let (mut caller, key) = (caller.clone(), key.clone());
            apart(move || moved(&mut caller, there, &key))
        });
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!waits.is_finished(), "it is answered before what it has written is there");
        link.set(Link::Up);
        let seen = waits.await.expect("it ends");
        assert!(seen.status == 200 && seen.body.contains("newer"), "{seen:?}");
        assert_ne!(seen.token, Some(token.clone()), "the session goes on with a token of eu");

        // Strict reads and writes wait alike, and what no region has signed is refused by all
        // nodes.
        let strict = caller.ask(there, "GET", &format!("/v1/kv/{key}"), "");
        assert!(strict.status == 200 && strict.body.contains("newer"), "{strict:?}");
        let mut digits = token.into_bytes();
        digits[20] = if digits[20] == b'0' { b'1' } else { b'0' };
        let forged = String::from_utf8(digits).expect("digits");
        for port in [there, here, other.http] {
            let mut forger = Caller { token: Some(forged.clone()) };
            let refused = forger.get(port, &key);
            assert!(refused.status == 400 && refused.body.contains("bad_session"), "{refused:?}");
            let refused = forger.ask(port, "PUT", &format!("/v1/kv/{key}"), "{\"value\": \"x\"}");
            assert!(refused.status == 400 && refused.body.contains("bad_session"), "{refused:?}");
        }
    }

    // Without a node that carries the streams a client goes on in its region, and is told in
    // another one that its token is not for there.
    drop(first);
    let mut caller = Caller::default();
    caller.put(other.http, "alone", "1");
    assert!(carrier.stop(), "it hands over what it owns");
    let patience = Instant::now() + PATIENCE;
    while caller.ask(other.http, "PUT", "/v1/kv/alone", "{\"value\": \"2\"}").status != 200 {
        assert!(Instant::now() < patience, "nobody takes over the log");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let read = caller.get(third.http, "alone");
    assert!(read.status == 200 && read.body.contains("\"2\""), "{read:?}");
    let refused = caller.get(far.http, "alone");
    assert!(refused.status == 400 && refused.body.contains("bad_session"), "{refused:?}");
    drop((other, third, far));
}
