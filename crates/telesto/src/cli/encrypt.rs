//! `telesto keys encrypt`: turns a database in clear over, in place, while it is used.
//!
//! ```text
//! nodes stopped ── begin ──> nodes started with the key file; each encrypts its own local log
//!                    └─────> every object of the bucket is encrypted beside them ──> --finish: nothing in clear is taken any more
//! ```
//! # Invariants
//! Nothing is ended that was not asked for: a node that was not started meanwhile would be refused
//! its own log.
//!
//! # On failure
//! Exit code 1, with what to do. What is done stays done; the command can be run again.
//!
//! # Limits
//! Whether every node has been started cannot be seen from the bucket.

use std::path::Path;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use telesto::Options;
use telesto::open::{clear_bucket, key_service};
use telesto_bucket::keyring::{self, NoRing};
use telesto_bucket::turning::{self, How, Turned};
use telesto_bucket::{Bucket as _, Error};

use super::keys::{show, text};

/// How it is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// No process uses the database.
    pub nodes_are_stopped: bool,
    /// Every node has been started with the keys.
    pub finish: bool,
    /// Also what is encrypted already.
    pub again: bool,
    /// No process uses it until it is done.
    pub offline: bool,
}

/// Does it.
///
/// # Errors
/// Why it could not be done.
pub async fn encrypt(bucket: &str, key_file: &Path, asked: Asked) -> Result<(), String> {
    let env = telesto_runtime::env();
    let service = key_service(&env, key_file).map_err(text)?;
    if service.current().is_empty() {
        return Err(format!(
            "{} has keys for tables alone; add one for the database: telesto keys create {}",
            key_file.display(),
            key_file.display()
        ));
    }
    let clear = clear_bucket(&env, &Options::new(bucket)).map_err(text)?;
    let begins = match keyring::read(&clear, &*service).await {
        Ok(ring) if ring.turning => false,
        Ok(_) if asked.finish && !asked.again => {
            return Err(text(Error::Encrypted { url: clear.url().to_owned() }));
        }
        Ok(_) | Err(Error::NotEncrypted { .. }) => true,
        Err(error) => return Err(text(error)),
    };
    if begins && asked.finish {
        return Err("nothing is being turned over yet: begin with --nodes-are-stopped".to_owned());
    }
    if begins && !asked.nodes_are_stopped {
        return Err(
            "a process that has no keys would go on in clear and fail at the first encrypted object: stop every node, run this with --nodes-are-stopped, and start them with --encryption-key-file as soon as it says so"
                .to_owned(),
        );
    }
    turning::begin(&clear, &*service, asked.again).await.map_err(text)?;
    if begins && !asked.offline {
        println!(
            "the database is being turned over: start its nodes now, with --encryption-key-file {}",
            key_file.display()
        );
    }
    let opened = keyring::unlock(clear.clone(), Some(service.clone()), NoRing::Refuse);
    let opened = opened.await.map_err(text)?;
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    let told = |done: &Turned| bar.set_message(said(done));
    let done = turning::turn(&opened, How { offline: asked.offline }, &told).await;
    bar.finish_and_clear();
    let done = done.map_err(text)?;
    println!("{}", said(&done));
    if asked.finish {
        show(&turning::finish(&clear, &*service).await.map_err(text)?);
        println!("nodes that are running take nothing in clear any more within a minute");
    } else {
        println!(
            "when every node has been started once with the key file, end it: telesto keys encrypt --finish"
        );
    }
    println!(
        "copies that the store keeps (versions, replication, backups) stay in clear: delete them"
    );
    Ok(())
}

fn said(done: &Turned) -> String {
    format!(
        "{} objects encrypted, {}; {} looked at that were so already",
        HumanCount(done.objects),
        HumanBytes(done.bytes),
        HumanCount(done.known)
    )
}
