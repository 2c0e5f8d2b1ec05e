//! `telesto backup`: copies of a database's bucket that are made while it is in use, and what is
//! done with them.
//!
//! # Limits
//! A region of several is refused: put back, it would take from its peers what it was put back
//! from.

use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, NaiveDateTime, Utc};
use clap::{Args, Subcommand};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use telesto::Options;
use telesto::open::{clear_bucket, open_bucket};
use telesto_backup::{Backup, Progress, Readable, Repository, Stored, Wanted};
use telesto_bucket::Bucket;
use telesto_common::units::Span;
use telesto_common::{Env, Timestamp};
use telesto_regions::Registry;

use super::table::Table;

/// What to do with backups.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Copy the database's bucket, while nodes and clients go on
    ///
    /// The first one copies everything, later ones what has come since.
    Create {
        /// The bucket that holds the database
        #[arg(long, value_name = "URL", env = "TELESTO_BUCKET")]
        bucket: String,
        #[command(flatten)]
        place: Place,
        /// Go on, and make one every so often; one that fails is told and tried again
        #[arg(long, value_name = "TIME")]
        every: Option<Span>,
    },
    /// Show the backups, and the moments that can be restored
    List {
        #[command(flatten)]
        place: Place,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a database from backups, in an empty bucket
    Restore {
        #[command(flatten)]
        place: Place,
        /// The empty bucket, or prefix of one, for the new database
        #[arg(long, value_name = "URL")]
        into: String,
        /// The database as of this moment (2026-11-28T09:30:00Z, or without a zone: UTC), with all
        /// that was committed by then
        #[arg(long, value_name = "TIME", conflicts_with = "number")]
        at: Option<String>,
        /// The backup of this number; without both the newest one
        #[arg(long, value_name = "N")]
        number: Option<u64>,
    },
    /// Read everything that the backups consist of, and say what is missing or damaged
    Verify {
        #[command(flatten)]
        place: Place,
    },
    /// Remove old backups, and what no other one needs
    Prune {
        #[command(flatten)]
        place: Place,
        /// How many of the newest stay
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
    },
}

/// Where the backups are.
#[derive(Debug, Args)]
pub struct Place {
    /// The bucket, or prefix of one, with the backups; best another one than the database's, with
    /// other credentials
    #[arg(long, value_name = "URL", env = "TELESTO_BACKUPS")]
    backups: String,
    /// The file with the keys of an encrypted database
    #[arg(long, value_name = "FILE", env = "TELESTO_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<PathBuf>,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// How the buckets of backups are opened.
fn patient(url: &str) -> Options {
    Options { patient: true, ..Options::new(url) }
}

impl Place {
    fn objects_url(&self) -> String {
        format!("{}/objects", self.backups.trim_end_matches('/'))
    }

    fn repository(&self, env: &Env) -> Result<Repository, String> {
        let raw = |url: &str| clear_bucket(env, &patient(url)).map_err(text);
        let (records, objects) = (raw(&self.backups)?, raw(&self.objects_url())?);
        Ok(Repository { records, objects })
    }

    /// The bucket at `url` with the database's encryption.
    async fn open(&self, env: &Env, url: &str) -> Result<Arc<dyn Bucket>, String> {
        let encryption_key_file = self.encryption_key_file.clone();
        let options = Options { encryption_key_file, ..patient(url) };
        let opened = open_bucket(env, &options).await.map_err(text)?;
        Ok(opened as Arc<dyn Bucket>)
    }

    async fn stored(&self, env: &Env, url: &str) -> Result<Stored, String> {
        let raw = clear_bucket(env, &patient(url)).map_err(text)?;
        Ok(Stored { raw, open: self.open(env, url).await? })
    }
}

struct Bar(ProgressBar);

impl Bar {
    fn new(what: &str) -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {prefix}: {pos} objects, {msg} {elapsed}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        Self(bar)
    }
}

impl Progress for Bar {
    fn copied(&self, what: &str, _: u64) {
        self.0.inc(1);
        self.0.set_message(what.to_owned());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Runs `telesto backup`.
///
/// # Errors
/// Why it could not be done; that something is damaged.
pub async fn run(command: Command) -> Result<(), String> {
    let env = telesto_runtime::env();
    match command {
        Command::Create { bucket, place, every } => {
            place.is_apart(&bucket)?;
            let Some(every) = every else { return create(&env, &bucket, &place).await };
            loop {
                if let Err(error) = create(&env, &bucket, &place).await {
                    eprintln!("telesto: {error}");
                }
                env.clock.sleep(every.0).await;
            }
        }
        Command::List { place, json } => show(&env, &place, json).await,
        Command::Restore { place, into, at, number } => {
            let wanted = match (at, number) {
                (Some(at), _) => Wanted::At(moment(&at)?),
                (None, Some(number)) => Wanted::Number(number),
                (None, None) => Wanted::Newest,
            };
            restore(&env, &place, &into, wanted).await
        }
        Command::Verify { place } => verify(&env, &place).await,
        Command::Prune { place, keep } => {
            let keep = usize::try_from(keep).unwrap_or(usize::MAX);
            let removed = telesto_backup::prune(&env, &place.repository(&env)?, keep).await;
            let removed = removed.map_err(text)?;
            println!(
                "{} backups removed, and {} objects that no other one needs (those younger than a day stay)",
                removed.backups, removed.objects
            );
            Ok(())
        }
    }
}

/// A URL without what means nothing at its end.
fn plain(url: &str) -> &str {
    url.trim_end_matches('/')
}

/// Whether `url` is `place`, or a prefix in it.
fn within(url: &str, place: &str) -> bool {
    plain(url)
        .strip_prefix(plain(place))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Place {
    /// Refuses a place of backups in the database's own bucket, and a database among its copies.
    fn is_apart(&self, database: &str) -> Result<(), String> {
        let records = format!("{}/backups", plain(&self.backups));
        let apart = !within(&self.backups, database)
            && [&self.objects_url(), &records].iter().all(|own| !within(database, own));
        if apart {
            return Ok(());
        }
        Err(format!(
            "the database's bucket {database} and the backups in {} are not apart: give the backups a bucket, or a prefix, of their own",
            self.backups
        ))
    }
}

async fn create(env: &Env, bucket: &str, place: &Place) -> Result<(), String> {
    let source = place.stored(env, bucket).await?;
    if Registry::load(&source.open).await.map_err(text)?.is_some() {
        return Err(format!(
            "{bucket} is a region of several: put back, it would take from the others what it was put back from. `telesto dump` writes what is in it, and the other regions have copies of what is placed there, too"
        ));
    }
    let repository = place.repository(env)?;
    let bar = Bar::new("copying");
    let made = telesto_backup::create(env, &source, &repository, &bar).await;
    drop(bar);
    let made = made.map_err(text)?;
    println!(
        "backup {}: everything committed through {} (entry {}); {} objects and {} came to {}",
        made.number,
        shown(made.newest()),
        made.end,
        made.added_objects,
        HumanBytes(made.added_bytes),
        place.backups
    );
    Ok(())
}

async fn show(env: &Env, place: &Place, json: bool) -> Result<(), String> {
    let Readable { backups, damaged } = place.repository(env)?.readable().await.map_err(text)?;
    for (number, error) in &damaged {
        eprintln!("telesto: backup {number} cannot be restored: {error}");
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&backups).map_err(text)?);
        return Ok(());
    }
    let mut table = Table {
        columns: [
            "backup",
            "begun",
            "newest commit",
            "can be restored from",
            "tables",
            "bytes added",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: Vec::new(),
    };
    let mut before: Option<&Backup> = None;
    for backup in &backups {
        // The log since the backup before tells every moment since its checkpoint.
        let joined = before.is_some_and(|before| backup.log_from <= before.end + 1);
        let from = if joined {
            "every moment since the one before".to_owned()
        } else {
            shown(Timestamp(backup.checkpoint_newest))
        };
        let tables = backup.checkpoint.as_ref().map_or(0, |c| c.tables.len());
        let cells = [
            backup.number.to_string(),
            micros(backup.began_micros),
            shown(backup.newest()),
            from,
            tables.to_string(),
            HumanBytes(backup.added_bytes).to_string(),
        ];
        table.rows.push(cells.into_iter().map(Some).collect());
        before = Some(backup);
    }
    print!("{}", table.render());
    Ok(())
}

async fn restore(env: &Env, place: &Place, into: &str, wanted: Wanted) -> Result<(), String> {
    place.is_apart(into)?;
    let repository = place.repository(env)?;
    let copies = place.open(env, &place.objects_url()).await?;
    let target = clear_bucket(env, &patient(into)).map_err(text)?;
    let plan = telesto_backup::plan(env, &repository, &copies, target.as_ref(), wanted);
    let plan = plan.await.map_err(text)?;
    let bar = Bar::new("restoring");
    bar.0.set_message(format!("of {}", plan.objects()));
    let copied = async {
        plan.reserve(target.as_ref(), &bar).await.map_err(text)?;
        // Its keys are there now.
        let target = place.stored(env, into).await?;
        plan.copy(&target, &bar).await.map_err(text)?;
        Ok::<_, String>(target)
    };
    let target = copied.await;
    drop(bar);
    let target = target?;
    plan.finish(&target).await.map_err(text)?;
    println!(
        "{into} holds what was committed through {} (entry {} of the log, on the checkpoint of backup {})\nstart a node on it, with a folder of its own: telesto start --bucket {into} --data-dir FOLDER",
        shown(plan.newest),
        plan.through,
        plan.number
    );
    Ok(())
}

async fn verify(env: &Env, place: &Place) -> Result<(), String> {
    let repository = place.repository(env)?;
    let copies = place.open(env, &place.objects_url()).await?;
    let bar = Bar::new("reading");
    let wrong = telesto_backup::verify(env, &repository, &copies, &bar).await;
    drop(bar);
    let wrong = wrong.map_err(text)?;
    for error in &wrong {
        println!("{error}");
    }
    match wrong.len() {
        0 => {
            println!("everything is there and whole");
            Ok(())
        }
        faults => {
            Err(format!("{faults} faults (see above); make a new backup, in a place of its own"))
        }
    }
}

fn shown(at: Timestamp) -> String {
    match at.wall_micros() {
        0 => "its beginning".to_owned(),
        at => micros(at),
    }
}

fn micros(at: u64) -> String {
    let time = i64::try_from(at).ok().and_then(DateTime::<Utc>::from_timestamp_micros);
    time.map_or_else(|| at.to_string(), |time| time.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string())
}

fn moment(text: &str) -> Result<u64, String> {
    // Also as PostgreSQL's clients show a moment, whose zones may be hours alone.
    let with_zone = DateTime::parse_from_rfc3339(text)
        .or_else(|_| DateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f%#z"))
        .map(|time| time.timestamp_micros());
    let without = || {
        let forms = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"];
        forms.iter().find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
    };
    let micros = with_zone.ok().or_else(|| without().map(|time| time.and_utc().timestamp_micros()));
    micros.and_then(|micros| u64::try_from(micros).ok()).ok_or_else(|| {
        format!("{text:?} is no moment; write one like 2026-11-28T09:30:00Z or 2026-11-28T10:30:00.25+01:00")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_and_the_database_are_apart() {
        let place = Place { backups: "file:///k/".to_owned(), encryption_key_file: None };
        for apart in ["file:///b", "file:///k2", "file:///k/database", "file:///k/objects2"] {
            assert_eq!(place.is_apart(apart), Ok(()), "{apart}");
        }
        for not in ["file:///k", "file:///", "file:///k/objects", "file:///k/backups/x/"] {
            assert!(place.is_apart(not).is_err(), "{not}");
        }
    }

    #[test]
    fn moments_are_read_with_and_without_a_zone() {
        let micros_of = |text: &str| moment(text).ok();
        assert_eq!(micros_of("1970-01-01T00:00:01Z"), Some(1_000_000));
        assert_eq!(micros_of("1970-01-01T01:00:01.5+01:00"), Some(1_500_000));
        assert_eq!(micros_of("1970-01-01 00:00:02.25"), Some(2_250_000));
        assert_eq!(micros_of("1970-01-01 02:00:03.000001+02"), Some(3_000_001));
        assert_eq!(micros_of("1970-01-01 05:30:03+05:30"), Some(3_000_000));
        assert_eq!(moment(&micros(1_795_000_000_123_456)), Ok(1_795_000_000_123_456));
        for bad in ["", "yesterday", "2026-11-28", "1969-12-31T00:00:00Z"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }
}
