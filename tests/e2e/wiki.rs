//! A real Wikipedia dump imported by the command line into Telesto and into PostgreSQL gives the
//! same answers; an import that was killed goes on where it stopped. Both wikis are read and edited
//! then: every acknowledged edit is there, with its links and categories.
//!
//! Needs `TELESTO_WIKI_DUMP` (scripts/fetch_dump.sh) and `TELESTO_POSTGRES_URL`
//! (tests/servers/postgres.sh).

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::process::Command;
use std::time::Duration;

use harness::{Node, Place, demo};
use tokio_postgres::{Client, NoTls};

const QUESTIONS: [&str; 9] = [
    "SELECT count(*), min(page_id), max(page_id) FROM wiki_page",
    "SELECT page_id, namespace, title, redirect_to, latest_revision FROM wiki_page ORDER BY page_id",
    "SELECT revision_id, page_id, parent_id, made_at::text, contributor, comment, length(content) FROM wiki_revision ORDER BY 1",
    "SELECT from_page, count(*) FROM wiki_link GROUP BY from_page ORDER BY from_page",
    "SELECT to_title, count(*) FROM wiki_link GROUP BY to_title ORDER BY 2 DESC, 1 LIMIT 100",
    "SELECT p.title FROM wiki_link l JOIN wiki_page p ON p.page_id = l.from_page WHERE l.to_title = 'Aristotle' ORDER BY 1",
    "SELECT category, count(*) FROM wiki_category GROUP BY category HAVING count(*) > 1 ORDER BY 2 DESC, 1",
    "SELECT p.title FROM wiki_page p LEFT JOIN wiki_link l ON l.to_title = p.title WHERE l.from_page IS NULL ORDER BY 1",
    "SELECT pages, finished FROM wiki_import",
];

async fn answers(client: &Client) -> Vec<String> {
    let mut all = Vec::new();
    for question in QUESTIONS {
        let messages =
            client.simple_query(question).await.unwrap_or_else(|e| panic!("{question}: {e:?}"));
        let mut text = format!("{question}\n");
        for message in messages {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                let cells: Vec<&str> =
                    (0..row.len()).map(|i| row.get(i).unwrap_or("NULL")).collect();
                text.push_str(&cells.join("|"));
                text.push('\n');
            }
        }
        all.push(text);
    }
    all
}

fn import(dump: &str, url: &str) -> Command {
    demo(&["import", "mediawiki", dump, "--url", url, "--batch-pages", "10"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_import_goes_on_and_answers_as_postgres_does() {
    let dump = std::env::var("TELESTO_WIKI_DUMP").expect(
        "TELESTO_WIKI_DUMP is not set: run scripts/fetch_dump.sh and set it to the path it prints",
    );
    let postgres = std::env::var("TELESTO_POSTGRES_URL")
        .expect("TELESTO_POSTGRES_URL is not set: start one with tests/servers/postgres.sh");
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    let local = dir.path().join("local");
    let node = Node::start(&place, &local, &[]);
    let url = format!("postgres://telesto@127.0.0.1:{}/telesto", node.port);
    let mut running = import(&dump, &url).spawn().expect("import runs");
    let client = node.connect().await.expect("connects");
    loop {
        let pages = client.query_opt("SELECT pages FROM wiki_import", &[]).await;
        if let Ok(Some(row)) = pages
            && row.get::<_, i64>(0) >= 20
        {
            break;
        }
        if running.try_wait().expect("import").is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.kill().expect("kill");
    running.wait().expect("import");
    node.kill();
    let node = Node::start(&place, &local, &[]);
    let url = format!("postgres://telesto@127.0.0.1:{}/telesto", node.port);
    assert!(import(&dump, &url).status().expect("import runs").success());
    let (theirs, connection) = tokio_postgres::connect(&postgres, NoTls).await.expect("PostgreSQL");
    tokio::spawn(connection);
    theirs
        .batch_execute("DROP TABLE IF EXISTS wiki_category, wiki_link, wiki_revision, wiki_page, wiki_import CASCADE; SET timezone = 'UTC'")
        .await
        .expect("clean");
    assert!(import(&dump, &postgres).status().expect("import runs").success());
    let ours = answers(&node.connect().await.expect("connects")).await;
    for (our, their) in ours.iter().zip(answers(&theirs).await) {
        assert_eq!(*our, their);
        assert!(our.lines().count() > 1, "no rows: {our}");
    }
    for url in [&url, &postgres] {
        let edits = ["bench", "wiki", "--url", url, "--time", "2s", "--edits", "40"];
        let told = demo(&edits).output().expect("it runs");
        let said = String::from_utf8_lossy(&told.stdout);
        assert!(told.status.success(), "{said}{}", String::from_utf8_lossy(&told.stderr));
        assert!(
            said.contains("acknowledged edits are there") && !said.contains("\n0 ack"),
            "{said}"
        );
    }
    // A link that its page does not have, as an edit of half a transaction would leave it.
    let client = node.connect().await.expect("connects");
    let planted = "INSERT INTO wiki_link SELECT min(page_id), 'Nowhere' FROM wiki_page";
    client.batch_execute(planted).await.expect("planted");
    let reads = ["bench", "wiki", "--url", &url, "--time", "0s", "--edits", "0"];
    let told = demo(&reads).output().expect("it runs");
    assert!(String::from_utf8_lossy(&told.stderr).contains("are not those of its newest text"));
}

/// What Scalaris measured, and a node killed under the same load; the command looks for every
/// acknowledged increment itself.
#[test]
fn increments_of_scalaris_survive_a_node_that_is_killed() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let out = dir.path().join("figures");
    let few = ["--nodes", "1,3", "--read-clients", "1,2", "--modify-clients", "4"];
    let short = ["--reads", "100", "--modifies", "20", "--keys", "50", "--kill-time", "3s"];
    let mut command = demo(&["bench", "scalaris"]);
    let told = command.args(few).args(short).arg("--out").arg(&out).output().expect("it runs");
    let said = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success(), "{said}{}", String::from_utf8_lossy(&told.stderr));
    // Four clients at one node and at each of three, 20 times.
    assert!(said.contains("320 increments are there, each once."), "{said}");
    assert!(said.contains("Nothing that was acknowledged is missing."), "{said}");
    for (figure, paper, rows) in [("figure-3a", "| 1250 |", 4), ("figure-3b", "| 344 |", 2)] {
        let table = std::fs::read_to_string(out.join(format!("{figure}.md"))).expect("a table");
        assert_eq!(table.matches(paper).count(), rows, "{table}");
        assert!(out.join(format!("{figure}.svg")).is_file(), "{figure}");
    }
}
