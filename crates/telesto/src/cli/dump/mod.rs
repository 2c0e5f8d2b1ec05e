//! `telesto dump`: a database as plain SQL that PostgreSQL 15 and Telesto load.
//!
//! ```text
//!   settings of its own -> BEGIN REPEATABLE READ, READ ONLY -> refuse what cannot be written -> roles, if they are asked for
//!     -> schemas, types, sequences, tables -> COPY … FROM stdin, table by table -> sequences' positions -> indexes -> foreign keys
//!     -> views -> comments -> placement, and owners and rights, if they are asked for
//! ```
//!
//! # Invariants
//! - All of it is one snapshot. Sequences alone move outside of transactions; their positions are
//!   read last.
//! - What the catalog shows and this cannot write is refused by name before anything is written, or
//!   told where it is neither a row nor a definition: no dump is silently short.
//! - Nothing that is stored for the role or the database, or comes with the URL, changes a text:
//!   see [`OWN`].
//! - A file has its name once it is whole and on disk; until then it is called `….part`. One with
//!   passwords is its owner's alone.
//!
//! # On failure
//! One line saying what could not be read; the `.part` file stays for looking at.
//!
//! # Limits
//! Roles, rights and settings are in it with `--roles` alone. Primary and unique keys are written
//! with their tables: Telesto would otherwise move every row when they are added.

mod catalog;
mod objects;
mod placement;
mod rights;
mod roles;
mod unwritten;
mod write;

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use futures::StreamExt as _;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use tokio_postgres::Client;

use self::catalog::{Catalog, Table};
use super::shell::{connect, full};

/// `telesto dump`.
#[derive(Debug, Args)]
pub struct Dump {
    /// Where the database is
    #[arg(long, env = "TELESTO_URL", default_value = super::DEFAULT_URL)]
    url: String,
    /// Where the dump goes. Default: standard output
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Definitions only, no rows
    #[arg(long, conflicts_with = "data_only")]
    schema_only: bool,
    /// Rows and positions of sequences only
    #[arg(long)]
    data_only: bool,
    /// Also where tables are placed among regions, for a database that has regions of the same
    /// names
    #[arg(long, conflicts_with = "data_only")]
    placement: bool,
    /// Also roles with their passwords, memberships and settings, settings of the database, owners,
    /// grants and default privileges
    #[arg(long, conflicts_with = "data_only")]
    roles: bool,
    /// Roles, their passwords, memberships and settings, and settings of the database, alone
    #[arg(long, conflicts_with_all = ["data_only", "schema_only", "placement", "roles"])]
    roles_only: bool,
    /// No passwords of roles, which only superusers may read
    #[arg(long)]
    no_role_passwords: bool,
    /// The role to dump as. Default: the one that logs in, whatever role is stored for its sessions
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
}

/// What the session of a dump is to have, whatever is stored for its role and the database:
/// settings that change which rows are read, whether a question is answered, or how a value or a
/// definition is written. Types come with their schemas' names when no schema is searched.
const OWN: [&str; 16] = [
    "statement_timeout = 0",
    "search_path = ''",
    "client_min_messages = warning",
    "datestyle = 'ISO, MDY'",
    "intervalstyle = postgres",
    "extra_float_digits = 1",
    "bytea_output = hex",
    "timezone = 'UTC'",
    "standard_conforming_strings = on",
    "quote_all_identifiers = off",
    "lock_timeout = 0",
    "idle_in_transaction_session_timeout = 0",
    "row_security = off",
    // PostgreSQL takes any name with a dot.
    "telesto.executor = auto",
    "telesto.consistency = strict",
    "telesto.local_rows = off",
];

/// Runs `telesto dump`.
///
/// # Errors
/// What cannot be dumped, read or written.
pub async fn run(asked: Dump) -> Result<(), String> {
    let client = connect(&asked.url).await?;
    let part = asked.file.as_ref().map(|file| {
        let mut part = file.clone().into_os_string();
        part.push(".part");
        PathBuf::from(part)
    });
    let out: Box<dyn Write> = match &part {
        Some(part) => {
            let secret = (asked.roles || asked.roles_only) && !asked.no_role_passwords;
            Box::new(create(part, secret).map_err(|error| unwritable(part, &error))?)
        }
        None => Box::new(std::io::stdout()),
    };
    let place = part.clone().unwrap_or_else(|| PathBuf::from("standard output"));
    let mut out = Out { out: BufWriter::with_capacity(1 << 20, out), written: 0, place };
    let bar = ProgressBar::new(0);
    let template = "{bar:30} {pos}/{len} tables, {msg} {elapsed}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let dumped = dump(&client, &asked, &mut out, &bar).await;
    bar.finish_and_clear();
    dumped?;
    out.finish()?;
    if let (Some(part), Some(file)) = (&part, &asked.file) {
        keep(part, file).map_err(|error| unwritable(file, &error))?;
    }
    Ok(())
}

/// The file that is written, empty. One that holds passwords is for its owner alone.
fn create(part: &Path, secret: bool) -> std::io::Result<File> {
    if !secret {
        return File::create(part);
    }
    // Whoever has opened what a dump before this one left behind does not read this one.
    match std::fs::remove_file(part) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(part)
}

/// Gives a file that is whole its name: its bytes are on disk first, or a machine that loses power
/// has the name without them.
fn keep(part: &Path, file: &Path) -> std::io::Result<()> {
    File::open(part)?.sync_all()?;
    std::fs::rename(part, file)?;
    match file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> String {
    format!("cannot write {}: {error}; is there space, and may you?", path.display())
}

/// Where the text goes.
pub(super) struct Out {
    out: BufWriter<Box<dyn Write>>,
    written: u64,
    place: PathBuf,
}

impl Out {
    /// Writes text as it is.
    ///
    /// # Errors
    /// A full disk, a closed pipe.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|error| unwritable(&self.place, &error))
    }

    /// Writes a line.
    ///
    /// # Errors
    /// As [`Self::bytes`].
    pub fn line(&mut self, line: &str) -> Result<(), String> {
        self.bytes(line.as_bytes())?;
        self.bytes(b"\n")
    }

    fn finish(&mut self) -> Result<(), String> {
        self.out.flush().map_err(|error| unwritable(&self.place, &error))
    }
}

async fn dump(
    client: &Client,
    asked: &Dump,
    out: &mut Out,
    bar: &ProgressBar,
) -> Result<(), String> {
    let said = |error: tokio_postgres::Error| full(&error);
    for setting in OWN {
        let set = client.batch_execute(&format!("SET {setting}")).await;
        set.map_err(|error| format!("setting {setting}: {}", full(&error)))?;
    }
    let role = asked.role.as_deref().map_or_else(|| "NONE".to_owned(), write::ident);
    client.batch_execute(&format!("SET ROLE {role}")).await.map_err(said)?;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";
    client.batch_execute(begin).await.map_err(said)?;
    if asked.roles_only {
        out.line("--\n-- Telesto dump of roles\n--\n")?;
        out.line("SET client_encoding = 'UTF8';\nSET standard_conforming_strings = on;")?;
        roles::write(client, !asked.no_role_passwords, out).await?;
        client.batch_execute("COMMIT").await.map_err(said)?;
        return out.line("\n--\n-- Telesto dump of roles complete\n--");
    }
    let catalog = Catalog::read(client).await?;
    out.line("--\n-- Telesto database dump\n--\n")?;
    for setting in [
        "statement_timeout = 0",
        "lock_timeout = 0",
        "idle_in_transaction_session_timeout = 0",
        "client_encoding = 'UTF8'",
        "standard_conforming_strings = on",
        "check_function_bodies = false",
        "client_min_messages = warning",
        "row_security = off",
        "search_path = public",
    ] {
        out.line(&format!("SET {setting};"))?;
    }
    if asked.roles {
        roles::write(client, !asked.no_role_passwords, out).await?;
    }
    if !asked.data_only {
        write::before(&catalog, out)?;
    }
    if !asked.schema_only {
        bar.set_length(catalog.tables.len() as u64);
        // Parents first, as far as foreign keys go one way: loading into tables that have their
        // keys then works too.
        for table in catalog.parents_first() {
            bar.set_message(format!("{}, {}", HumanBytes(out.written), table.name.1));
            rows(client, table, out, bar).await?;
            bar.inc(1);
        }
        for sequence in &catalog.sequences {
            let (last, called) = catalog::position(client, sequence).await?;
            let name = write::literal(&sequence.name.sql());
            out.line(&format!("SELECT pg_catalog.setval({name}, {last}, {called});"))?;
        }
        out.line("")?;
    }
    if !asked.data_only {
        write::after(&catalog, out)?;
        unwritten::tell(client, out).await?;
        let placed = placement::read(client).await?;
        placement::write(&placed, asked.placement, out)?;
    }
    if asked.roles {
        rights::write(client, &catalog, out).await?;
    }
    // Nothing says that it is complete that may still fail.
    client.batch_execute("COMMIT").await.map_err(said)?;
    out.line("--\n-- Telesto database dump complete\n--")
}

/// The rows of a table as COPY's text.
async fn rows(
    client: &Client,
    table: &Table,
    out: &mut Out,
    bar: &ProgressBar,
) -> Result<(), String> {
    let failed = |error: tokio_postgres::Error| {
        format!("reading {}: {}; the dump is not whole", table.name.sql(), full(&error))
    };
    let stored = table.columns.iter().filter(|column| !column.generated);
    let columns: Vec<String> = stored.map(|column| write::ident(&column.name)).collect();
    let columns = match columns.as_slice() {
        [] => String::new(),
        columns => format!(" ({})", columns.join(", ")),
    };
    let name = table.name.sql();
    out.line(&format!("COPY {name}{columns} FROM stdin;"))?;
    let copy = client.copy_out(&format!("COPY {name}{columns} TO STDOUT")).await.map_err(failed)?;
    let mut copy = std::pin::pin!(copy);
    let mut shown = out.written;
    while let Some(chunk) = copy.next().await {
        out.bytes(&chunk.map_err(failed)?)?;
        if out.written - shown > 1 << 20 {
            shown = out.written;
            bar.set_message(format!("{}, {}", HumanBytes(out.written), table.name.1));
        }
    }
    out.line("\\.\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn file_with_passwords_is_its_owners_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (part, file) = (folder.path().join("a.sql.part"), folder.path().join("a.sql"));
        // What was there before was anybody's.
        for old in [&part, &file] {
            std::fs::write(old, "old").expect("written");
            std::fs::set_permissions(old, std::fs::Permissions::from_mode(0o644)).expect("set");
        }
        let mut made = create(&part, true).expect("made");
        made.write_all(b"secret").expect("written");
        keep(&part, &file).expect("kept");
        let mode = std::fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read(&file).expect("read"), b"secret");
        assert!(!part.exists());
    }
}
