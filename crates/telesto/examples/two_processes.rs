//! Two processes, one bucket, no server: both write, both see everything.
//!
//! ```text
//! cargo run -p telesto --example two_processes [BUCKET_URL]
//! ```
//! The first process makes a table, starts itself again as the second, and both transfer money
//! between the same accounts at the same time. In the end not a cent may be missing.

use std::process::Command;

use telesto::Database;

const ACCOUNTS: i64 = 10;
const TRANSFERS: i64 = 20;
const START_CENTS: i64 = 1_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("second"), Some(bucket)) => runtime.block_on(transfer(&bucket, "second", 7)),
        (bucket, _) => {
            let folder = std::env::temp_dir().join(format!("telesto-two-{}", std::process::id()));
            let own = format!("file://{}", folder.display());
            let bucket = bucket.unwrap_or(&own);
            let done = runtime.block_on(first(bucket));
            if bucket == own {
                std::fs::remove_dir_all(&folder)?;
            }
            done
        }
    }
}

/// Makes the accounts, starts the second process, transfers, counts.
async fn first(bucket: &str) -> Result<(), Box<dyn std::error::Error>> {
    println!("first : bucket {bucket}");
    let database = Database::open(bucket).await?;
    database.execute("drop table if exists account", &[]).await?;
    database
        .execute("create table account (id bigint primary key, cents bigint not null)", &[])
        .await?;
    for id in 0..ACCOUNTS {
        database.execute("insert into account values ($1, $2)", &[&id, &START_CENTS]).await?;
    }
    let mut second = Command::new(std::env::current_exe()?).args(["second", bucket]).spawn()?;
    transfer_in(&database, "first ", 3).await?;
    // Blocks only the main thread: the runtime's own threads go on.
    let status = second.wait()?;
    if !status.success() {
        return Err(format!("the second process ended with {status}").into());
    }
    let rows = database
        .query("select sum(cents)::bigint as total, count(*) as n from account", &[])
        .await?;
    let (total, accounts) = (rows[0].get::<i64>("total")?, rows[0].get::<i64>("n")?);
    println!("first : {accounts} accounts hold {total} cents together");
    if (accounts, total) != (ACCOUNTS, ACCOUNTS * START_CENTS) {
        return Err("money was lost or made".into());
    }
    database.close().await?;
    Ok(())
}

async fn transfer(bucket: &str, name: &str, step: i64) -> Result<(), Box<dyn std::error::Error>> {
    let database = Database::open(bucket).await?;
    transfer_in(&database, name, step).await?;
    database.close().await?;
    Ok(())
}

/// Moves one cent at a time between accounts that both processes use.
async fn transfer_in(
    database: &Database,
    name: &str,
    step: i64,
) -> Result<(), Box<dyn std::error::Error>> {
    for n in 0..TRANSFERS {
        let (from, to) = (n * step % ACCOUNTS, (n * step + 1) % ACCOUNTS);
        database
            .transaction(|transaction| {
                Box::pin(async move {
                    transaction
                        .execute("update account set cents = cents - 1 where id = $1", &[&from])
                        .await?;
                    transaction
                        .execute("update account set cents = cents + 1 where id = $1", &[&to])
                        .await?;
                    Ok(())
                })
            })
            .await?;
    }
    println!("{name}: {TRANSFERS} transfers committed");
    Ok(())
}
