//! TPC-W's bookstore in Telesto and in PostgreSQL: the same rows after loading (also after a load
//! that was cut off), the same pages from every interaction, every mix, and a shop that adds up.
//! Then the command line on top of it.
//!
//! Needs `TELESTO_POSTGRES_URL` (tests/servers/postgres.sh).
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

#[path = "harness.rs"]
#[allow(dead_code, reason = "shared with the other tests of real processes")]
mod harness;
#[path = "bookstore_in_two_regions.rs"]
mod in_two_regions;

use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use harness::{Node, Place, demo};
use serde_json::Value;
use telesto_bookstore::browser::Browser;
use telesto_bookstore::drive::{self, Live, Load};
use telesto_bookstore::generate::Scale;
use telesto_bookstore::interactions::Placed;
use telesto_bookstore::load::{self, load};
use telesto_bookstore::mix::{Interaction, Mix};
use telesto_bookstore::page::Page;
use telesto_bookstore::{Error, check, connect};
use tokio_postgres::Client;

const SCALE: Scale = Scale { customers: 120, items: 100, seed: 7 };

/// Whole tables, but for what is the time of day.
const TABLES: [&str; 10] = [
    "SELECT * FROM country ORDER BY co_id",
    "SELECT * FROM author ORDER BY a_id",
    "SELECT * FROM item ORDER BY i_id",
    "SELECT * FROM address ORDER BY addr_id",
    "SELECT c_id, c_uname, c_passwd, c_fname, c_lname, c_addr_id, c_phone, c_email, c_discount, c_balance, c_ytd_pmt, c_birthdate, c_data \
     FROM customer ORDER BY c_id",
    "SELECT o_id, o_c_id, o_sub_total, o_tax, o_total, o_ship_type, o_ship_date - o_date < interval '8 days', o_bill_addr_id, o_ship_addr_id, \
     o_status FROM orders ORDER BY o_id",
    "SELECT * FROM order_line ORDER BY ol_o_id, ol_id",
    "SELECT cx_o_id, cx_type, cx_num, cx_name, cx_auth_id, cx_xact_amt, cx_co_id FROM cc_xacts ORDER BY cx_o_id",
    "SELECT sc_id, sc_c_id, sc_sub_total, sc_tax, sc_ship_cost, sc_total FROM shopping_cart ORDER BY sc_id",
    "SELECT * FROM shopping_cart_line ORDER BY scl_sc_id, scl_i_id",
];

async fn rows(client: &Client, question: &str) -> Vec<String> {
    let answer = client.simple_query(question).await;
    let answer = answer.unwrap_or_else(|error| panic!("{question}: {error:?}"));
    let row = |message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => {
            let cells: Vec<&str> = (0..row.len()).map(|i| row.get(i).unwrap_or("NULL")).collect();
            Some(cells.join("|"))
        }
        _ => None,
    };
    answer.into_iter().filter_map(row).collect()
}

async fn assert_same_rows(ours: &Client, theirs: &Client) {
    for question in TABLES {
        let (our, their) = (rows(ours, question).await, rows(theirs, question).await);
        assert_eq!(our.len(), their.len(), "{question}");
        for (our, their) in our.iter().zip(&their) {
            assert_eq!(our, their, "{question}");
        }
    }
}

fn postgres() -> String {
    std::env::var("TELESTO_POSTGRES_URL")
        .expect("TELESTO_POSTGRES_URL is not set: start one with tests/servers/postgres.sh")
}

fn url(node: &Node) -> String {
    format!("postgres://telesto@127.0.0.1:{}/telesto", node.port)
}

fn run(arguments: &[&str]) -> Output {
    demo(arguments).output().expect("telesto-demo runs")
}

fn well(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{error}");
    said
}

/// A shop in both, and clean before.
async fn shops(dir: &std::path::Path) -> (Node, Client, Client) {
    let place = Place::folder(&dir.join("bucket"), "quorum", "quorum");
    let node = Node::start(&place, &dir.join("local"), &[]);
    let mut theirs = connect(&postgres()).await.expect("PostgreSQL");
    load::remove(&theirs).await.expect("clean");
    load(&mut theirs, SCALE, |_| {}).await.expect("loads");
    let mut ours = connect(&url(&node)).await.expect("connects");
    load(&mut ours, SCALE, |_| {}).await.expect("loads");
    (node, ours, theirs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_that_was_cut_off_goes_on_and_another_shop_is_refused() {
    let dir = tempfile::tempdir().expect("folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    let node = Node::start(&place, &dir.path().join("local"), &[]);
    for at in ["address", "orders", "item_title", "order_line_order_fk"] {
        let mut client = connect(&url(&node)).await.expect("connects");
        let (cut, mut reached) = tokio::sync::mpsc::unbounded_channel();
        tokio::select! {
            biased;
            _ = reached.recv() => {}
            loaded = load(&mut client, SCALE, |progress| {
                if progress.part == at {
                    cut.send(()).expect("listening");
                }
            }) => panic!("loaded before {at}: {loaded:?}"),
        }
        assert_eq!(
            load::found(&connect(&url(&node)).await.expect("connects")).await.expect("asks"),
            None
        );
    }
    let mut ours = connect(&url(&node)).await.expect("connects");
    assert!(load(&mut ours, SCALE, |_| {}).await.expect("loads"));
    assert!(!load(&mut ours, SCALE, |_| {}).await.expect("is there"), "nothing was missing");
    let other = Scale { seed: 8, ..SCALE };
    let refused = load(&mut ours, other, |_| {}).await;
    assert!(matches!(refused, Err(Error::OtherBookstore { .. })), "{refused:?}");
    let mut theirs = connect(&postgres()).await.expect("PostgreSQL");
    load::remove(&theirs).await.expect("clean");
    load(&mut theirs, SCALE, |_| {}).await.expect("loads");
    assert_same_rows(&ours, &theirs).await;
    let index = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1";
    assert_eq!(rows(&ours, index).await, rows(&theirs, index).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_interaction_shows_and_leaves_what_it_does_in_postgres() {
    let dir = tempfile::tempdir().expect("folder");
    let (node, ours, theirs) = shops(dir.path()).await;
    let mut our = Browser::open(&url(&node), SCALE, 3, 0, Page::kept()).await.expect("opens");
    let mut their = Browser::open(&postgres(), SCALE, 3, 0, Page::kept()).await.expect("opens");
    for round in 0..6 {
        for interaction in Interaction::ALL {
            let left = our.interact(interaction).await.expect("connected");
            let right = their.interact(interaction).await.expect("connected");
            assert!(left.refused.is_none() && left.retried.is_empty(), "{interaction:?}: {left:?}");
            assert!(right.refused.is_none(), "{interaction:?}: {right:?}");
            assert_eq!(our.page.text, their.page.text, "{interaction:?}, round {round}");
            assert!(!our.page.text.contains('?'), "{interaction:?}: {}", our.page.text);
            let silent = [Interaction::NewCart, Interaction::Price, Interaction::AdminConfirm];
            let may_be_empty =
                [Interaction::SearchResults, Interaction::BestSellers, Interaction::NewProducts];
            let empty = our.page.rows == 0;
            assert!(
                !empty || silent.contains(&interaction) || may_be_empty.contains(&interaction),
                "{interaction:?}"
            );
        }
    }
    assert_eq!(our.placed, their.placed);
    assert_eq!(our.placed.len(), 12, "buy confirm and customer transaction, six times");
    assert_same_rows(&ours, &theirs).await;
    check::check(&ours, SCALE, &our.placed).await.expect("adds up");

    // The check sees what it is there for.
    let told = our.placed[0].clone();
    let wrong = Placed { total: told.total + 1, ..told.clone() };
    let missing = Placed { order: 1 << 40, ..told };
    for lost in [wrong, missing] {
        let checked = check::check(&ours, SCALE, &[lost]).await;
        assert!(matches!(checked, Err(Error::Lost(_))), "{checked:?}");
    }
    for damage in [
        "UPDATE item SET i_stock = i_stock + 1 WHERE i_id = 5",
        "UPDATE orders SET o_total = o_total + 1 WHERE o_id = 3",
        "DELETE FROM cc_xacts WHERE cx_o_id = 4",
        "DELETE FROM order_line WHERE ol_o_id = (SELECT max(ol_o_id) FROM order_line) AND ol_id = 1",
    ] {
        ours.batch_execute(&format!("BEGIN; {damage}")).await.expect("damages");
        let checked = check::check(&ours, SCALE, &[]).await;
        assert!(matches!(checked, Err(Error::Lost(_))), "{damage}: {checked:?}");
        ours.batch_execute("ROLLBACK").await.expect("repairs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_mix_runs_without_errors_and_the_shop_adds_up() {
    let dir = tempfile::tempdir().expect("folder");
    let (node, ours, theirs) = shops(dir.path()).await;
    for (url, client) in [(url(&node), &ours), (postgres(), &theirs)] {
        let mut placed = Vec::new();
        for mix in Mix::ALL {
            for rate in [None, Some(20.0)] {
                let load = Load {
                    url: url.clone(),
                    scale: SCALE,
                    mix,
                    clients: 4,
                    length: Duration::from_millis(1_500),
                    rate,
                    seed: 1,
                    set: None,
                };
                let run = drive::run(load, Arc::new(Live::default())).await.expect("runs");
                let total = run.total();
                assert!(total.errors.is_empty(), "{mix:?} on {url}: {:?}", total.errors);
                let count = total.measured.len();
                assert!(
                    count > 0 && (rate.is_none() || count + run.unserved == 30),
                    "{count} of {mix:?}"
                );
                placed.extend(run.placed);
            }
        }
        assert!(!placed.is_empty());
        check::check(client, SCALE, &placed).await.expect("adds up");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_load_run_compare_and_report() {
    let dir = tempfile::tempdir().expect("folder");
    let (node, _, _) = shops(dir.path()).await;
    let (ours, theirs) = (url(&node), postgres());
    let report = dir.path().join("report.json");
    let report = report.to_str().expect("UTF-8");
    let said = well(&run(&[
        "bench",
        "tpcw",
        "--target",
        &ours,
        "--mix",
        "customer",
        "--seconds",
        "1",
        "--rate",
        "30",
        "--clients",
        "4",
        "--json",
        report,
    ]));
    assert!(said.contains("acknowledged orders are there"), "{said}");
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(report).expect("written")).expect("JSON");
    assert_eq!((json["loop"].as_str(), json["mix"].as_str()), (Some("open"), Some("customer")));
    let total = json["total"]["count"].as_u64().expect("count");
    assert_eq!(json["interactions"]["customer transaction"]["count"].as_u64(), Some(total));
    assert_eq!(json["checked"]["acknowledged"].as_u64(), Some(total));
    assert_eq!(total + json["unserved"].as_u64().expect("unserved"), 30);
    assert!(json["bucket"]["dollars_per_1000"].is_number(), "{json}");

    let said = well(&run(&[
        "bench",
        "compare",
        &format!("ours={ours}"),
        &format!("theirs={theirs}"),
        "--rounds",
        "2",
        "--seconds",
        "1",
        "--clients",
        "2",
        "--copy-rows",
        "2000",
        "--workload",
        "point-read,join-1,join-2,join-3,read-write,analytical,ordering,copy",
        "--json",
        "-",
    ]));
    let json: Value = serde_json::from_str(&said).expect("JSON");
    let workloads = json["workloads"].as_object().expect("workloads");
    assert_eq!(workloads.len(), 8, "{said}");
    for (name, compared) in workloads {
        for target in ["ours", "theirs"] {
            let samples = compared["samples"][target].as_array().expect("samples");
            assert_eq!(samples.len(), 2, "{name}");
            assert!(
                samples.iter().all(|sample| sample["per_second"].as_f64() > Some(0.0)),
                "{name}: {samples:?}"
            );
        }
        let ratio = &compared["ratios"]["theirs"];
        assert!(ratio["least"].as_f64() <= ratio["median"].as_f64(), "{name}");
        assert!(ratio["median"].as_f64() <= ratio["greatest"].as_f64(), "{name}");
    }
    let other = run(&["bench", "tpcw", "--target", &ours, "--customers", "500"]);
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && said.contains("--reload"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demo_loads_shops_asks_and_stops_its_node() {
    let dir = tempfile::tempdir().expect("folder");
    let (listen, http) = (harness::free_port(), harness::free_port()); // the node is started again on the same
    let (listen, http) = (format!("127.0.0.1:{listen}"), format!("127.0.0.1:{http}"));
    let folder = dir.path().join("data");
    let arguments = [
        "bookstore",
        "--customers",
        "60",
        "--items",
        "50",
        "--seconds",
        "1",
        "--clients",
        "2",
        "--exit",
        "--listen",
        &listen,
        "--http",
        &http,
        "--data-dir",
        folder.to_str().expect("UTF-8"),
    ];
    let said = well(&run(&arguments));
    for part in
        ["60 customers", "acknowledged orders are there", "s3-standard", "Cost:", "(5 rows)"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(
        connect(&format!("postgres://telesto@{listen}/telesto")).await.is_err(),
        "the node goes on"
    );
    // The shop is there: nothing is loaded again, and more is bought in it.
    let again = well(&run(&arguments));
    assert!(again.contains("60 customers"), "{again}");
}

/// What CloudTPS measured, on a cluster that grows from one node to three; the command checks every
/// answer itself.
#[test]
fn figures_of_cloudtps_are_told_beside_the_papers_and_kept() {
    let dir = tempfile::tempdir().expect("folder");
    let out = dir.path().join("figures");
    let said = well(&run(&[
        "bench",
        "cloudtps",
        "--nodes",
        "1,3",
        "--clients",
        "2",
        "--time",
        "500ms",
        "--customers",
        "100",
        "--items",
        "50",
        "--rows",
        "200",
        "--joined",
        "4,8",
        "--paths",
        "0,1,3",
        "--changed",
        "3,6",
        "--out",
        out.to_str().expect("UTF-8"),
    ]));
    assert!(said.contains("adds up at every node") && said.contains("each once"), "{said}");
    for (figure, rows) in
        [("figure-6a", 2), ("figure-6b", 3), ("figure-6c", 4), ("figure-7", 2), ("figure-8", 3)]
    {
        let table = std::fs::read_to_string(out.join(format!("{figure}.md"))).expect("a table");
        assert!(said.contains(&table) && table.lines().count() >= 2 + rows, "{figure}: {table}");
        assert!(!table.contains("NaN") && !table.contains("inf"), "{figure}: {table}");
        let plot = std::fs::read_to_string(out.join(format!("{figure}.svg"))).expect("a plot");
        assert!(plot.starts_with("<svg"), "{figure}");
    }
    let figure = std::fs::read_to_string(out.join("figure-8.md")).expect("a table");
    assert!(figure.contains("| mean, the paper's | 4.92 | 2.96 |"), "{figure}");
    let refused = run(&["bench", "cloudtps", "--changed", "4"]);
    assert_eq!(refused.status.code(), Some(2), "four records are no rows with an index");
}
