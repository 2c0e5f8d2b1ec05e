//! SIGKILL while an index is built: another process, or the same one started again, goes on where
//! it was.

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::time::Duration;

use harness::{Node, Place};

const ROWS: i64 = 60_000;

async fn number(client: &tokio_postgres::Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// Builds an index, kills the process in the middle, and waits on `survivor` (or the process
/// started again) for the index.
async fn killed(place: &Place, local: &std::path::Path, survivor: Option<&Node>) {
    let mut node = Node::start(place, &local.join("killed"), &[]);
    let client = node.connect().await.expect("connects");
    client
        .batch_execute(&format!(
            "create table l (id int primary key, a int, b text);
             insert into l select g, g, 'x' || g from generate_series(1, {ROWS}) g"
        ))
        .await
        .expect("rows");
    let builder = node.connect().await.expect("connects");
    let built = tokio::spawn(async move {
        builder.batch_execute("create unique index concurrently l_b on l (b)").await
    });
    let done = "select coalesce(max(tuples_done), 0) from pg_stat_progress_create_index";
    let before = loop {
        let done = number(&client, done).await;
        if done > 0 {
            break done;
        }
        assert!(!built.is_finished(), "the build was over before it was seen: nothing is tested");
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    node.kill();
    built.await.expect("no panic").expect_err("its process was killed");
    if survivor.is_none() {
        node = Node::start(place, &local.join("killed"), &[]);
    } else {
        node = Node::start(place, &local.join("another"), &[]);
    }
    let on = survivor.unwrap_or(&node);
    let client = on.connect().await.expect("connects");
    let now = number(&client, done).await;
    assert!(now >= before, "{before} rows were done, {now} are");
    assert!(now < ROWS, "the build was over before the kill: nothing is tested");
    // Who writes meanwhile keeps the index up.
    client.batch_execute("insert into l values (-1, 1, 'one'); delete from l where id = 7; update l set b = 'new' where id > 59990 and id < 59992").await.expect("writes");
    let mut least = now;
    let valid = "select count(*) from pg_index where indexrelid = 'l_b'::regclass and indisvalid";
    while number(&client, valid).await == 0 {
        let done = number(&client, done).await;
        // 0: it has ended in between.
        assert!(
            done == 0 || done >= least,
            "the build began again: {least} rows were done, {done} are"
        );
        least = least.max(done);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(number(&client, "select telesto_check_table('l')").await, ROWS);
    assert_eq!(number(&client, "select count(*) from l where b = 'x777'").await, 1);
    let error = client.batch_execute("insert into l values (-2, 1, 'x777')").await;
    let code = error.expect_err("a duplicate").code().map(|code| code.code().to_owned());
    assert_eq!(code.as_deref(), Some("23505"));
    node.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn build_of_a_killed_process_is_finished_by_the_process_started_again() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    killed(&place, &dir.path().join("local"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn build_of_a_killed_process_is_finished_by_another_process() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "bucket", "bucket");
    let survivor = Node::start(&place, &dir.path().join("survivor"), &[]);
    killed(&place, &dir.path().join("local"), Some(&survivor)).await;
    survivor.stop();
}
