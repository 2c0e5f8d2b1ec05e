//! `telesto keys`: key files, and the key ring of an encrypted database.
//!
//! # On failure
//! Exit code 1, with what to do; nothing was changed unless it says so.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use telesto::Options;
use telesto::open::{clear_bucket, key_service};
use telesto_bucket::{Bucket as _, keyring};
use telesto_cipher::{KeyFile, StoredRing};

use super::table::Table;

/// Which database.
#[derive(Debug, Args)]
pub struct Place {
    /// The bucket that holds the database
    #[arg(long, value_name = "URL", env = "TELESTO_BUCKET")]
    bucket: String,
    /// The file with the database's key-encryption keys
    #[arg(long, value_name = "FILE", env = "TELESTO_ENCRYPTION_KEY_FILE")]
    encryption_key_file: PathBuf,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a key file with a new key, or add a key to one.
    ///
    /// New databases and rotations use the last key of the file. Keep a copy of the file in another safe place: without it
    /// nobody can read the database.
    #[command(after_help = "Examples:
  telesto keys create telesto.keys
  telesto keys create telesto.keys --name 2027")]
    Create {
        /// The file
        file: PathBuf,
        /// The key's name. Default: key-1, key-2, …
        #[arg(long)]
        name: Option<String>,
    },
    /// Show the database's data keys (not the keys themselves): epochs, ages, what they are wrapped with.
    Show {
        #[command(flatten)]
        place: Place,
    },
    /// Go on with a new data key, wrapped with the key file's last key.
    ///
    /// Nothing is written again: what is there stays readable with the keys it was written with. Nodes that are running go
    /// on with the new key within a minute. To replace the key-encryption key itself, add one with `telesto keys create`,
    /// give every node the new file and restart it, then rotate.
    #[command(after_help = "Examples:
  telesto keys rotate --bucket s3://my-bucket/telesto --encryption-key-file telesto.keys
  telesto keys rotate --wrapping-only --bucket … --encryption-key-file telesto.keys")]
    Rotate {
        /// Only wrap the data keys there are with the key file's last key
        #[arg(long)]
        wrapping_only: bool,
        #[command(flatten)]
        place: Place,
    },
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Does it.
///
/// # Errors
/// Why it could not be done.
pub async fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Create { file, name } => create(&file, name),
        Command::Show { place } => {
            let env = telesto_runtime::env();
            let service = key_service(&env, &place.encryption_key_file).map_err(text)?;
            let bucket = clear_bucket(&env, &Options::new(&place.bucket)).map_err(text)?;
            let ring = keyring::read(&bucket, &*service).await.map_err(text)?;
            println!("key ring of {}", bucket.url());
            show(&ring);
            Ok(())
        }
        Command::Rotate { wrapping_only, place } => {
            let env = telesto_runtime::env();
            let service = key_service(&env, &place.encryption_key_file).map_err(text)?;
            let bucket = clear_bucket(&env, &Options::new(&place.bucket)).map_err(text)?;
            let name = service.current();
            let rotating = keyring::rotate(&bucket, &*service, &name, !wrapping_only);
            let ring = rotating.await.map_err(text)?;
            show(&ring);
            if !wrapping_only {
                println!("nodes that are running go on with the new data key within a minute");
            }
            Ok(())
        }
    }
}

fn create(file: &Path, name: Option<String>) -> Result<(), String> {
    let env = telesto_runtime::env();
    let known = match file.exists() {
        true => KeyFile::read(file, env.random.clone()).map_err(text)?.names().len(),
        false => 0,
    };
    let name = name.unwrap_or_else(|| format!("key-{}", known + 1));
    KeyFile::add_key(file, &name, &*env.random).map_err(text)?;
    println!("key {name} is in {}", file.display());
    println!(
        "keep a copy of that file in another safe place: without it nobody can read the database"
    );
    Ok(())
}

fn show(ring: &StoredRing) {
    println!("version {}, wrapped with key {}", ring.version, ring.wrapped_with);
    let newest = ring.newest().map(|key| key.epoch);
    let rows = ring.keys.iter().map(|key| {
        let used = if Some(key.epoch) == newest { "writes and reads" } else { "reads" };
        let made = i64::try_from(key.made_micros).ok();
        let made = made.and_then(chrono::DateTime::from_timestamp_micros);
        let made = made.map(|at| at.format("%Y-%m-%d %H:%M:%SZ").to_string());
        vec![Some(key.epoch.to_string()), made, Some(used.to_owned())]
    });
    let columns = ["epoch", "made", "used for"].map(str::to_owned).to_vec();
    print!("{}", Table { columns, rows: rows.collect() }.render());
}
