//! `telesto keys`: key files, the key ring of an encrypted database, and the keys of tables.
//!
//! # On failure
//! Exit code 1, with what to do; nothing was changed unless it says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use telesto::Options;
use telesto::open::{clear_bucket, key_service};
use telesto_bucket::table_keys::{self, Listed};
use telesto_bucket::{Bucket as _, keyring};
use telesto_cipher::{KeyFile, KeyService, KmsKey, StoredRing, WrappingKey};
use telesto_common::Env;

use super::encrypt::{Asked, encrypt};
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
    /// New databases and rotations use the last key of the file. Keep a copy of the file in another
    /// safe place: without it nobody can read the database.
    #[command(after_help = "Examples:
  telesto keys create telesto.keys
  telesto keys create telesto.keys --name 2027
  telesto keys create telesto.keys --name group_a --for-tables
  telesto keys create telesto.keys --kms arn:aws:kms:eu-west-1:111122223333:key/1234abcd-…")]
    Create {
        /// The file
        file: PathBuf,
        /// The key's name. Default: key-1, key-2, …
        #[arg(long)]
        name: Option<String>,
        /// A key for tables: ALTER TABLE … SET (telesto.key = 'NAME'). Nodes whose key file has it
        /// serve these tables
        #[arg(long, requires = "name")]
        for_tables: bool,
        /// A key that stays in AWS KMS, by its ARN: the file only names it. KMS is asked to wrap
        /// and unwrap by it, as a trial
        #[arg(long, value_name = "ARN")]
        kms: Option<String>,
    },
    /// Show the database's data keys (not the keys themselves): epochs, ages, what they are wrapped
    /// with; and the keys of tables.
    Show {
        #[command(flatten)]
        place: Place,
    },
    /// Go on with a new data key, wrapped with the key file's last key.
    ///
    /// Nothing is written again: what is there stays readable with the keys it was written with.
    /// Nodes that are running go on with the new key within a minute. To replace the key-encryption
    /// key itself, add one with `telesto keys create`, give every node the new file and restart it,
    /// then rotate.
    #[command(after_help = "Examples:
  telesto keys rotate --bucket s3://my-bucket/telesto --encryption-key-file telesto.keys
  telesto keys rotate --wrapping-only --bucket … --encryption-key-file telesto.keys
  telesto keys rotate --table-key group_a --bucket … --encryption-key-file telesto.keys")]
    Rotate {
        /// Only wrap the data keys there are with the key file's last key
        #[arg(long)]
        wrapping_only: bool,
        /// Make a new data key of this key of tables instead
        #[arg(long, value_name = "NAME", conflicts_with = "wrapping_only")]
        table_key: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Turn a database in clear over: encrypt everything it has in its bucket, in place, while it
    /// is used.
    ///
    /// Its nodes are stopped for a moment while this begins, and started again with the key file at
    /// once; each then encrypts its own local log. When all of them have been started, `--finish`
    /// ends it: from then on nothing in clear is taken. It can be interrupted and run again.
    #[command(after_help = "Examples:
  telesto keys create telesto.keys
  telesto keys encrypt --nodes-are-stopped --bucket s3://my-bucket/telesto --encryption-key-file telesto.keys
  telesto start --bucket s3://my-bucket/telesto --encryption-key-file telesto.keys     # every node
  telesto keys encrypt --finish --bucket s3://my-bucket/telesto --encryption-key-file telesto.keys")]
    Encrypt {
        /// No process uses the database: asked for when it begins
        #[arg(long)]
        nodes_are_stopped: bool,
        /// Every node has been started with the key file: take nothing in clear any more
        #[arg(long)]
        finish: bool,
        /// Also a database that is encrypted already, in which something in clear was left
        #[arg(long)]
        again: bool,
        /// No process uses the database until this ends: for stores without conditional overwrites
        #[arg(long, requires = "nodes_are_stopped")]
        offline: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Destroy a key of tables for ever: what it encrypted cannot be read any more, in whatever
    /// copy.
    ///
    /// Nodes that are running forget it within a minute. The name is never used again. The rows
    /// stay, unreadable, until their tables are emptied or dropped. Where deleted objects are kept
    /// (versions, copies of the bucket), remove the key's line from all key files as well.
    /// Repeating the command finishes what was interrupted.
    #[command(after_help = "Examples:
  telesto keys drop group_a --for-ever --bucket s3://my-bucket/telesto")]
    Drop {
        /// The key's name
        name: String,
        /// Yes, destroy it
        #[arg(long)]
        for_ever: bool,
        /// The bucket that holds the database
        #[arg(long, value_name = "URL", env = "TELESTO_BUCKET")]
        bucket: String,
    },
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Does it.
///
/// # Errors
/// Why it could not be done.
pub async fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Create { file, name, for_tables, kms } => {
            create(&file, name, for_tables, kms).await
        }
        Command::Show { place } => {
            let env = telesto_runtime::env();
            let service = key_service(&env, &place.encryption_key_file).map_err(text)?;
            let bucket = clear_bucket(&env, &Options::new(&place.bucket)).map_err(text)?;
            match keyring::read(&bucket, &*service).await {
                Ok(ring) => {
                    println!("key ring of {}", bucket.url());
                    show(&ring);
                }
                // Tables may have keys all the same.
                Err(telesto_bucket::Error::NotEncrypted { .. }) if service.current().is_empty() => {
                }
                Err(error) => return Err(text(error)),
            }
            show_table_keys(&table_keys::all(&*bucket).await.map_err(text)?, &*service);
            Ok(())
        }
        Command::Rotate { table_key: Some(name), place, .. } => {
            let env = telesto_runtime::env();
            let service = key_service(&env, &place.encryption_key_file).map_err(text)?;
            let bucket = clear_bucket(&env, &Options::new(&place.bucket)).map_err(text)?;
            let rotating = table_keys::rotate(&*bucket, &*service, &name, &env);
            println!("key {name} has epoch {} now", rotating.await.map_err(text)?);
            println!("tables go on with it by ALTER TABLE … SET (telesto.key = '{name}')");
            Ok(())
        }
        Command::Drop { name, for_ever, bucket } => drop_key(&name, for_ever, &bucket).await,
        Command::Encrypt { nodes_are_stopped, finish, again, offline, place } => {
            let asked = Asked { nodes_are_stopped, finish, again, offline };
            encrypt(&place.bucket, &place.encryption_key_file, asked).await
        }
        Command::Rotate { wrapping_only, place, .. } => {
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

async fn drop_key(name: &str, for_ever: bool, bucket: &str) -> Result<(), String> {
    if !for_ever {
        return Err(format!(
            "what key {name} encrypted could never be read again; say so with --for-ever"
        ));
    }
    let env = telesto_runtime::env();
    let bucket = clear_bucket(&env, &Options::new(bucket)).map_err(text)?;
    let deleted = table_keys::drop_key(&*bucket, name, &env).await.map_err(text)?;
    println!("key {name} was dropped ({deleted} data keys deleted from {})", bucket.url());
    println!("nodes that are running forget it within a minute");
    println!(
        "copies of the bucket may hold the deleted data keys, wrapped: remove the line of {name} from all key files, and their copies"
    );
    Ok(())
}

fn show_table_keys(all: &BTreeMap<String, Listed>, service: &dyn KeyService) {
    if all.is_empty() {
        return;
    }
    println!("keys of tables");
    let rows = all.iter().map(|(name, listed)| {
        let newest = listed.epochs.last();
        let state = match listed.dropped {
            true if listed.epochs.is_empty() => "dropped",
            true => "dropped; drop it again to delete what is left",
            false if service.has_table_key(name) => "in the key file",
            false => "not in the key file",
        };
        let made = newest.and_then(|(_, made)| time(*made));
        vec![
            Some(name.clone()),
            newest.map(|(epoch, _)| epoch.to_string()),
            made,
            Some(state.to_owned()),
        ]
    });
    let columns = ["name", "newest epoch", "made", "state"].map(str::to_owned).to_vec();
    print!("{}", Table { columns, rows: rows.collect() }.render());
}

fn time(micros: u64) -> Option<String> {
    let at = chrono::DateTime::from_timestamp_micros(i64::try_from(micros).ok()?)?;
    Some(at.format("%Y-%m-%d %H:%M:%SZ").to_string())
}

async fn create(
    file: &Path,
    name: Option<String>,
    for_tables: bool,
    kms: Option<String>,
) -> Result<(), String> {
    let env = telesto_runtime::env();
    let known = match file.exists() {
        true => KeyFile::read(file, env.random.clone()).map_err(text)?.names().len(),
        false => 0,
    };
    let name = name.unwrap_or_else(|| format!("key-{}", known + 1));
    if let Some(arn) = kms {
        let key = KmsKey::parse(&arn)?;
        try_kms(&env, &key).await?;
        KeyFile::add_kms_key(file, &name, &key, for_tables).map_err(text)?;
        println!("key {name} of {} is {key}, which stays in AWS KMS", file.display());
        println!("whoever deletes that key there makes what it wrapped unreadable for ever");
        return Ok(());
    }
    match for_tables {
        true => KeyFile::add_table_key(file, &name, &*env.random),
        false => KeyFile::add_key(file, &name, &*env.random),
    }
    .map_err(text)?;
    println!("key {name} is in {}", file.display());
    println!(
        "keep a copy of that file in another safe place: without it nobody can read the database"
    );
    Ok(())
}

/// Whether KMS wraps and unwraps by `key` for this machine.
async fn try_kms(env: &Env, key: &KmsKey) -> Result<(), String> {
    let (kms, object) = (telesto::open::kms(env), "trial");
    let mut drawn = WrappingKey::new([0; 32]);
    drawn[..16].copy_from_slice(&env.random_u128().to_be_bytes());
    let wrapped = kms.wrap(key, &drawn, object).await.map_err(text)?;
    let opened = kms.unwrap(key, &wrapped, object).await.map_err(text)?;
    match opened == drawn {
        true => Ok(()),
        false => Err(format!("AWS KMS does not give back what it wrapped with {key}")),
    }
}

pub(super) fn show(ring: &StoredRing) {
    println!("version {}, wrapped with key {}", ring.version, ring.wrapped_with);
    if ring.turning {
        println!("the database is being turned over: telesto keys encrypt --finish ends that");
    }
    let newest = ring.newest().map(|key| key.epoch);
    let rows = ring.keys.iter().map(|key| {
        let used = if Some(key.epoch) == newest { "writes and reads" } else { "reads" };
        vec![Some(key.epoch.to_string()), time(key.made_micros), Some(used.to_owned())]
    });
    let columns = ["epoch", "made", "used for"].map(str::to_owned).to_vec();
    print!("{}", Table { columns, rows: rows.collect() }.render());
}
