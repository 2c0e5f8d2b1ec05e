//! `telesto-demo bookstore`: a node, TPC-W's bookstore in it, a mix of interactions, a few queries;
//! or two regions.
//!
//! # Invariants
//! A node that was started here is left running at the end, unless `--exit`; one that was there
//! already (`--url`) is never stopped. After an error a node started here is stopped.
//!
//! # On failure
//! Loading that was cut off goes on where it stopped when the same command is given again.

mod two_regions;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use tokio::process::{Child, Command};

use crate::sql;
use crate::telesto::{bucket_in, program};
use crate::tpcw::{Browsers, Shop, browse, shop};

/// How long a node may take to open its bucket.
const OPENING: Duration = Duration::from_secs(120);

/// `telesto-demo bookstore`.
#[derive(Debug, Args)]
pub struct Bookstore {
    /// Two regions on this machine with a link as slow as between continents, and an application
    /// server in each, which runs its SQL unchanged. The regions are stopped at the end; --data-dir
    /// (new or empty) keeps their folders
    #[arg(long, conflicts_with_all = ["url", "bucket", "listen", "http", "exit"])]
    regions: bool,
    /// A node that is running already; without it one is started
    #[arg(long, conflicts_with_all = ["bucket", "data_dir", "listen", "http", "exit"])]
    url: Option<String>,
    /// The bucket of the node that is started. Default: the folder bucket in --data-dir
    #[arg(long, value_name = "URL")]
    bucket: Option<String>,
    /// The folder of the node that is started, for its bucket and its own files. Default:
    /// ./telesto-data
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// Where it serves the Postgres protocol
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:5433")]
    listen: String,
    /// Where it serves HTTP
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    http: String,
    #[command(flatten)]
    shop: Shop,
    #[command(flatten)]
    browsers: Browsers,
    /// Interactions a second that are due (open loop)
    #[arg(long)]
    rate: Option<f64>,
    /// Stop the node at the end
    #[arg(long)]
    exit: bool,
}

/// What the demo asks at the end.
const QUESTIONS: [(&str, &str); 6] = [
    (
        "a book and its author, by key",
        "SELECT i_title, a_fname, a_lname, i_cost, i_stock FROM item JOIN author ON a_id = i_a_id WHERE i_id = 42",
    ),
    (
        "a customer by name, the address, the country: a secondary key and two joins",
        "SELECT c_fname, c_lname, addr_city, co_name FROM customer JOIN address ON addr_id = c_addr_id JOIN country ON co_id = addr_co_id WHERE c_uname = 'RE'",
    ),
    (
        "the newest orders",
        "SELECT o_id, c_lname, o_total, o_status FROM orders JOIN customer ON c_id = o_c_id ORDER BY o_id DESC LIMIT 5",
    ),
    (
        "which subjects sell best",
        "SELECT i_subject, count(*) AS orders, sum(ol_qty) AS books FROM order_line JOIN item ON i_id = ol_i_id GROUP BY i_subject ORDER BY books DESC LIMIT 5",
    ),
    (
        "five tables: which countries buy most",
        "SELECT co_name, count(DISTINCT o_id) AS orders, sum(ol_qty * i_cost) AS sold FROM order_line JOIN orders ON o_id = ol_o_id JOIN item ON i_id = ol_i_id \
         JOIN address ON addr_id = o_ship_addr_id JOIN country ON co_id = addr_co_id GROUP BY co_name ORDER BY sold DESC LIMIT 5",
    ),
    (
        "what a purchase does",
        "BEGIN; INSERT INTO shopping_cart (sc_c_id, sc_date) VALUES (5, now()); UPDATE item SET i_stock = i_stock - 1 WHERE i_id = 42; ROLLBACK",
    ),
];

/// Runs the demo.
///
/// # Errors
/// Why the node could not be started, or what it refused.
pub async fn run(asked: Bookstore) -> Result<(), String> {
    if asked.regions {
        return two_regions::run(&asked).await;
    }
    // It asks the questions at the end, too: what is missing is told before anything is loaded.
    let telesto = program()?;
    let (node, url) = match &asked.url {
        Some(url) => (None, url.clone()),
        None => {
            let node = Node::start(&telesto, &asked).await?;
            (Some(node), format!("postgres://telesto@{}/telesto", asked.listen))
        }
    };
    let shown = show(&telesto, &url, &asked).await;
    match (node, &shown) {
        (Some(node), Ok(())) if !asked.exit => {
            println!("\nThe node goes on (process {}, log {}). Try:", node.id, node.log.display());
            println!("  psql '{url}'");
            println!("  telesto-demo bench tpcw --target {url} --mix ordering --rate 100");
            println!("  kill {}    stops it", node.id);
        }
        (Some(mut node), _) => node.stop().await,
        (None, _) => {}
    }
    shown
}

async fn show(telesto: &Path, url: &str, asked: &Bookstore) -> Result<(), String> {
    let scale = shop(url, &asked.shop, "the bookstore").await?;
    println!(
        "The bookstore: {} customers, {} items, {} orders.\n",
        scale.customers,
        scale.items,
        scale.orders()
    );
    let report = browse(url, scale, &asked.browsers, 1, asked.rate, None).await?;
    print!("{}", report.text());
    for (what, question) in QUESTIONS {
        println!("\n== {what}\n{question};");
        let mut shell = Command::new(telesto);
        shell.args(["sql", "--timing", "--command", question]);
        shell.env("TELESTO_URL", url).stdin(Stdio::null());
        let ended = shell.status().await;
        let ended = ended.map_err(|error| format!("cannot run telesto sql: {error}"))?;
        if !ended.success() {
            return Err(format!("the example query failed: {question}"));
        }
    }
    Ok(())
}

/// A node in a process of its own.
struct Node {
    child: Child,
    id: u32,
    log: PathBuf,
}

impl Node {
    async fn start(telesto: &Path, asked: &Bookstore) -> Result<Self, String> {
        let folder = asked.data_dir.as_deref().unwrap_or(Path::new("telesto-data"));
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let log = folder.join("bookstore.log");
        let opened = File::create(&log).and_then(|out| Ok((out.try_clone()?, out)));
        let (out, err) =
            opened.map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let mut command = Command::new(telesto);
        // Dollars as if the bucket were S3 Standard: a local folder costs nothing.
        command.args(["start", "--listen", &asked.listen, "--http", &asked.http]);
        command.args(["--prices", "s3-standard"]);
        if let Some(bucket) = &asked.bucket {
            command.args(["--bucket", bucket]);
        }
        if let Some(data_dir) = &asked.data_dir {
            command.arg("--data-dir").arg(data_dir.join("node"));
            if asked.bucket.is_none() {
                command.args(["--bucket", &bucket_in(data_dir)?]);
            }
        }
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = command.spawn().map_err(|error| format!("cannot start a node: {error}"))?;
        let id = child.id().unwrap_or_default();
        let mut node = Self { child, id, log };
        let url = format!("postgres://telesto@{}/telesto", asked.listen);
        let begun = tokio::time::Instant::now();
        loop {
            if let Ok(Some(status)) = node.child.try_wait() {
                let said = std::fs::read_to_string(&node.log).unwrap_or_default();
                return Err(format!("the node ended ({status}): {}", said.trim()));
            }
            match sql::connect(&url).await {
                Ok(_) => return Ok(node),
                Err(error) if begun.elapsed() > OPENING => {
                    node.stop().await;
                    return Err(error);
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Stops it as its operator would; it ends by itself.
    async fn stop(&mut self) {
        let asked = Command::new("kill").arg(self.id.to_string()).status().await;
        if !asked.is_ok_and(|status| status.success()) {
            // There is no kill here: the hard way loses nothing either.
            let _ = self.child.start_kill();
        }
        let _ = self.child.wait().await;
    }
}
