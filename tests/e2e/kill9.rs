//! SIGKILL at random moments under write load: every acknowledged transaction is there, no
//! unacknowledged one half there. A client that had asked for its transaction's id before COMMIT
//! learns from it afterwards what became of the transaction, as [`outcomes`] says.
//! `TELESTO_KILLS=50` for the long run.

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness::{Node, Place, S3Server, rounds};
use rand::Rng as _;

const WRITERS: i64 = 4;
const ACCOUNTS: i64 = 20;
const START_BALANCE: i64 = 1000;

/// What is known of a transaction whose COMMIT was sent.
#[derive(Clone, Default)]
struct Told {
    acknowledged: bool,
    /// What `telesto_txn_id()` said, by half of the transactions: one that has shown its id is not
    /// repeated unseen.
    id: Option<String>,
}

/// (writer, sequence) of what was sent.
type Sent = Arc<Mutex<BTreeMap<(i64, i64), Told>>>;

async fn set_up(node: &Node) {
    let client = node.connect().await.expect("connects");
    client
        .batch_execute(
            "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL);
             CREATE TABLE ledger (writer bigint, seq bigint, side text, account bigint NOT NULL REFERENCES account,
                 amount bigint NOT NULL, PRIMARY KEY (writer, seq, side));
             CREATE INDEX ledger_by_account ON ledger (account);
             CREATE TABLE hot (id int PRIMARY KEY, transfers bigint NOT NULL CHECK (transfers >= 0), left_over bigint CHECK (left_over >= 0));
             INSERT INTO hot VALUES (1, 0, 1000000000);",
        )
        .await
        .expect("tables");
    let rows: Vec<String> = (0..ACCOUNTS).map(|id| format!("({id}, {START_BALANCE})")).collect();
    client
        .batch_execute(&format!("INSERT INTO account VALUES {}", rows.join(",")))
        .await
        .expect("accounts");
}

/// Moves money until the connection breaks; each transfer changes two accounts, adds two ledger
/// rows, and counts itself on the one row that all writers add to.
async fn write(node_port: u16, writer: i64, mut seq: i64, sent: Sent) {
    let url = format!("host=127.0.0.1 port={node_port} user=telesto dbname=telesto");
    let Ok((mut client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await
    else {
        return;
    };
    tokio::spawn(connection);
    loop {
        seq += 1;
        let (from, to, amount) = {
            let mut rng = rand::rng();
            let from = rng.random_range(0..ACCOUNTS);
            (from, (from + rng.random_range(1..ACCOUNTS)) % ACCOUNTS, rng.random_range(1..50_i64))
        };
        let Ok(transaction) = client.transaction().await else { return };
        let work = async {
            for (account, change, side) in [(from, -amount, "from"), (to, amount, "to")] {
                transaction
                    .execute(
                        "UPDATE account SET balance = balance + $2 WHERE id = $1",
                        &[&account, &change],
                    )
                    .await?;
                transaction
                    .execute(
                        "INSERT INTO ledger VALUES ($1, $2, $3, $4, $5)",
                        &[&writer, &seq, &side, &account, &change],
                    )
                    .await?;
            }
            let count =
                "UPDATE hot SET transfers = transfers + 1, left_over = left_over - 1 WHERE id = 1";
            transaction.execute(count, &[]).await?;
            if seq % 2 == 1 {
                return Ok(None);
            }
            let row = transaction.query_one("SELECT telesto_txn_id()", &[]).await?;
            Ok::<Option<String>, tokio_postgres::Error>(Some(row.get(0)))
        };
        let id = match work.await {
            Ok(id) => id,
            Err(error) if error.as_db_error().is_none() => return,
            Err(_) => continue,
        };
        let told = Told { acknowledged: false, id };
        sent.lock().expect("no panic").insert((writer, seq), told);
        match transaction.commit().await {
            Ok(()) => {
                if let Some(told) = sent.lock().expect("no panic").get_mut(&(writer, seq)) {
                    told.acknowledged = true;
                }
            }
            // Refused for certain (a conflict): it must not be there, which `verify` checks as
            // "never sent".
            Err(error) if error.code().is_some_and(|code| code.code() == "40001") => {
                sent.lock().expect("no panic").remove(&(writer, seq));
            }
            Err(_) => return,
        }
    }
}

async fn verify(node: &Node, sent: &Sent) -> usize {
    let client = node.connect().await.expect("connects");
    let rows =
        client.query("SELECT writer, seq, side, amount FROM ledger", &[]).await.expect("reads");
    let mut found: BTreeMap<(i64, i64), Vec<(String, i64)>> = BTreeMap::new();
    for row in rows {
        found.entry((row.get(0), row.get(1))).or_default().push((row.get(2), row.get(3)));
    }
    let sent = sent.lock().expect("no panic").clone();
    outcomes(&client, &sent, &found).await;
    let mut acknowledged = 0;
    for (key, told) in &sent {
        if told.acknowledged {
            acknowledged += 1;
            assert!(found.contains_key(key), "acknowledged transaction {key:?} is lost");
        }
    }
    for (key, sides) in &found {
        assert!(
            sent.contains_key(key),
            "transaction {key:?} is there but was refused or never sent"
        );
        assert_eq!(sides.len(), 2, "transaction {key:?} is half there: {sides:?}");
        assert_eq!(sides.iter().map(|(_, amount)| amount).sum::<i64>(), 0, "{key:?}: {sides:?}");
    }
    let total: i64 = client
        .query_one("SELECT sum(balance)::bigint FROM account", &[])
        .await
        .expect("sum")
        .get(0);
    assert_eq!(total, ACCOUNTS * START_BALANCE, "money appeared or vanished");
    let row = client.query_one("SELECT transfers, left_over FROM hot", &[]).await.expect("one row");
    let (transfers, left_over): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!(transfers, found.len() as i64, "transfers are not counted once each");
    assert_eq!(left_over, 1_000_000_000 - transfers);
    let differing = client
        .query(
            "SELECT a.id FROM account a LEFT JOIN (SELECT account, sum(amount) AS moved FROM ledger GROUP BY account) l \
             ON l.account = a.id WHERE a.balance <> 1000 + coalesce(l.moved, 0)",
            &[],
        )
        .await
        .expect("join");
    assert!(differing.is_empty(), "{} accounts differ from their ledger", differing.len());
    acknowledged
}

/// A transaction is `committed` when its rows are there, and `aborted` or `unknown` when they are
/// not.
async fn outcomes(
    client: &tokio_postgres::Client,
    sent: &BTreeMap<(i64, i64), Told>,
    found: &BTreeMap<(i64, i64), Vec<(String, i64)>>,
) {
    // All in doubt, and some of the others: each question may look at the log.
    let asked = sent.iter().filter(|((_, seq), told)| !told.acknowledged || seq % 16 == 0);
    for (key, told) in asked {
        let Some(id) = &told.id else { continue };
        let row = client.query_one("SELECT telesto_txn_status($1)", &[id]).await.expect("answers");
        let status: String = row.get(0);
        let there = found.contains_key(key);
        let right = if there { status == "committed" } else { status != "committed" };
        assert!(right, "{key:?}, {id}: {status}, and its rows are there: {there}");
    }
}

async fn kill_rounds(place: &Place, local: &std::path::Path, count: usize) {
    let sent = Sent::default();
    let mut node = Node::start(place, local, &[]);
    set_up(&node).await;
    let mut acknowledged = 0;
    for round in 0..count {
        let tasks: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let seq = i64::try_from(round).expect("small") * 1_000_000;
                tokio::spawn(write(node.port, writer, seq, Arc::clone(&sent)))
            })
            .collect();
        let pause = rand::rng().random_range(100..1500);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        node.kill();
        for task in tasks {
            task.await.expect("writer");
        }
        node = Node::start(place, local, &[]);
        acknowledged = verify(&node, &sent).await;
    }
    assert!(acknowledged > 0, "nothing was ever acknowledged: the test tested nothing");
    println!(
        "{} {}: {count} kills, {acknowledged} acknowledged transactions, all there",
        place.bucket, place.log
    );
    assert!(node.stop(), "a clean stop ends with exit code 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill9_on_a_folder_with_quorum_log_loses_nothing() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    kill_rounds(&place, &dir.path().join("local"), rounds(4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill9_on_a_folder_with_bucket_log_loses_nothing() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "bucket", "bucket");
    kill_rounds(&place, &dir.path().join("local"), rounds(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill9_on_s3_with_bucket_durability_loses_nothing() {
    let server = S3Server::start("versitygw");
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::s3(&server, "kill9-bucket", "bucket", "bucket");
    kill_rounds(&place, dir.path(), rounds(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill9_on_s3_with_quorum_durability_loses_nothing() {
    let server = S3Server::start("versitygw");
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::s3(&server, "kill9-quorum", "quorum", "quorum");
    kill_rounds(&place, dir.path(), rounds(3)).await;
}
