//! `telesto verify --regions`: compares the replicas of every table between regions.
//!
//! # Invariants
//! - Nothing is changed, and nothing has to stand still: a row that is on its way is waited for.
//! - The exit code says whether all replicas are equal.
//!
//! # On failure
//! A region that does not answer is named; nothing is said of the replicas then.
//!
//! # Limits
//! Tables are named by their numbers (`SELECT oid, relname FROM pg_class`, as long as they were not
//! rewritten), rows by their keys as they are stored.

use std::sync::Arc;

use clap::Args;
use telesto_common::key::KeyReader;
use telesto_common::{Incarnation, RegionId, Timestamp};
use telesto_net::{Caller, Peer, Transport};
use telesto_regions::{Compared, Verifier};
use telesto_runtime::net::{Certificates, JoinToken, Tcp};

use super::region::{Place, bucket, known, text};
use super::table::Table;
use telesto_common::units::Span;

/// What to verify.
#[derive(Debug, Args)]
pub struct Verify {
    /// Compare the replicas of every table between the regions that have it
    #[arg(long, required = true)]
    regions: bool,
    /// How long a row that is on its way may take
    #[arg(long, value_name = "TIME", default_value = "10s")]
    patience: Span,
    #[command(flatten)]
    place: Place,
}

/// Runs `telesto verify`.
///
/// # Errors
/// Who does not answer; that replicas differ.
pub async fn run(asked: Verify) -> Result<(), String> {
    if !asked.regions {
        return Err("say what to verify: --regions".to_owned());
    }
    let env = telesto_runtime::env();
    let bucket = bucket(&env, &asked.place).await?;
    let (_, registry) = known(&bucket).await?;
    let own = registry.members().iter().find(|member| member.id == registry.me().0);
    let own = own.and_then(|member| member.node.as_ref());
    let (node, address) = own.cloned().ok_or("the registry of regions does not say who carries this one; run `telesto region join` again")?;
    let token = JoinToken::new(registry.secret()).map_err(text)?;
    let certificates = Certificates::from_token(&token, node).map_err(text)?;
    let tcp: Arc<dyn Transport> = Arc::new(Tcp::new(env.clone(), Some(certificates)));
    let caller = Caller { node, incarnation: Incarnation(1) };
    let config = registry.config(caller).map_err(text)?;
    let verifier = Verifier::new(&env, &tcp, &config, Peer { node, address }, asked.patience.0);
    let verifier = verifier.map_err(text)?;
    let compared = verifier.compare().await.map_err(|error| {
        format!("{error}; see that a node of each region runs with --region and can be reached from here")
    })?;
    show(&verifier, &compared);
    let different: usize = compared.iter().map(|one| one.different.len()).sum();
    let on_their_way: u64 = compared.iter().map(|one| one.on_their_way).sum();
    if different > 0 {
        return Err(format!(
            "{different} rows differ between regions; please report this with the output of the nodes"
        ));
    }
    if on_their_way > 0 {
        return Err(format!(
            "{on_their_way} rows have not come to every region in time: SELECT * FROM telesto_regions shows what is behind; run this again, or with a longer --patience"
        ));
    }
    println!("All replicas are equal.");
    Ok(())
}

/// The number of the table that a range is of.
fn table(compared: &Compared) -> String {
    match KeyReader::new(&compared.range.start).prefix() {
        Ok((database, table, _)) if database.0 == 0 => format!("system {}", table.0),
        Ok((_, table, _)) => table.0.to_string(),
        Err(_) => hex(&compared.range.start),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn show(verifier: &Verifier, compared: &[Compared]) {
    let rows = compared.iter().map(|one| {
        let regions: Vec<_> = one.regions.iter().map(|region| verifier.name(*region)).collect();
        let said = match (one.different.len(), one.on_their_way) {
            (0, 0) => "equal".to_owned(),
            (0, way) => format!("{way} on their way"),
            (different, _) => format!("{different} differ"),
        };
        [table(one), regions.join(", "), one.rows.to_string(), said].map(Some).to_vec()
    });
    let columns = ["table", "regions", "rows", "replicas"].map(str::to_owned).to_vec();
    print!("{}", Table { columns, rows: rows.collect() }.render());
    for one in compared {
        for different in &one.different {
            println!("table {}, key {}:", table(one), hex(&different.key));
            for (region, version) in &different.versions {
                println!("  {}: {}", verifier.name(*region), version_of(verifier, *version));
            }
        }
    }
}

fn version_of(verifier: &Verifier, version: Option<(Timestamp, RegionId, bool)>) -> String {
    match version {
        None => "none".to_owned(),
        Some((at, source, there)) => {
            let what = if there { "a row" } else { "deleted" };
            format!("{what}, written in {} at {at}", verifier.name(source))
        }
    }
}
