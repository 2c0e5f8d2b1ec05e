//! `telesto restore`: loads a plain SQL dump, of Telesto or of pg_dump, into a server.
//!
//! ```text
//!   file --lines--> script --statement--> simple query
//!                     |--- COPY … FROM stdin: its lines, until \. --> COPY
//! ```
//!
//! # Invariants
//! - The file is read as a stream: memory holds one statement, or one chunk of COPY's lines.
//! - Nothing is skipped but comments, what only psql itself heeds (`\restrict` and `\unrestrict`),
//!   statements about owners and rights of roles that are not here, and CREATE ROLE of roles that
//!   are: these are counted and told.
//! - An executor that is stored for the role is not used: it may refuse what the file has.
//!
//! # On failure
//! The first error ends it, naming file and line; what was committed before stays, unless
//! `--single-transaction`.

mod script;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use futures::SinkExt as _;
use indicatif::{ProgressBar, ProgressStyle};
use tokio_postgres::Client;
use tokio_postgres::error::{ErrorPosition, SqlState};

use self::script::{Script, Step};
use super::shell::{connect, full};

const SAVEPOINT: &str = "SAVEPOINT telesto_restore";
const RELEASE: &str = "RELEASE SAVEPOINT telesto_restore";
const ROLLBACK: &str = "ROLLBACK TO SAVEPOINT telesto_restore";
/// Bytes of COPY's lines handed to the connection at once.
const CHUNK_BYTES: usize = 256 << 10;

/// `telesto restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// The dump, as plain SQL (pg_dump without -Fc and its kin); - for standard input
    file: PathBuf,
    /// Where the database is
    #[arg(long, env = "TELESTO_URL", default_value = super::DEFAULT_URL)]
    url: String,
    /// All of it or nothing
    #[arg(short = '1', long)]
    single_transaction: bool,
}

/// Runs `telesto restore`.
///
/// # Errors
/// The first statement that failed, by its line.
pub async fn run(asked: Restore) -> Result<(), String> {
    let name = asked.file.display().to_string();
    let unreadable = |error: std::io::Error| format!("cannot read {name}: {error}");
    let (input, size): (Box<dyn Read>, u64) = if name == "-" {
        (Box::new(std::io::stdin()), 0)
    } else {
        let file = File::open(&asked.file).map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        (Box::new(file), size)
    };
    let read = Arc::new(AtomicU64::new(0));
    let input = Counted { input, read: Arc::clone(&read) };
    let client = connect(&asked.url).await?;
    let bar = ProgressBar::new(size);
    let template = "{bar:30} {percent:>3}% {bytes} of {total_bytes} {elapsed} (eta {eta})";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let said = |error: tokio_postgres::Error| full(&error);
    client.batch_execute("SET telesto.executor = auto").await.map_err(said)?;
    if asked.single_transaction {
        client.batch_execute("BEGIN").await.map_err(said)?;
    }
    let mut restoring = Restoring {
        client: &client,
        script: Script::new(BufReader::with_capacity(1 << 20, input)),
        name: &name,
        show: Box::new(|| bar.set_position(read.load(Ordering::Relaxed))),
        single: asked.single_transaction,
        statements: 0,
        rows: 0,
        passed_over: BTreeMap::new(),
        there: Vec::new(),
    };
    let restored = restoring.all().await;
    let (statements, rows) = (restoring.statements, restoring.rows);
    let passed_over = std::mem::take(&mut restoring.passed_over);
    let there = std::mem::take(&mut restoring.there);
    drop(restoring);
    bar.finish_and_clear();
    restored?;
    if asked.single_transaction {
        client.batch_execute("COMMIT").await.map_err(said)?;
    }
    println!("restored {name}: {statements} statements, {rows} rows copied");
    for role in there {
        eprintln!("role \"{role}\" was here already; it has what the dump says of it now");
    }
    for (role, count) in passed_over {
        eprintln!(
            "passed over {count} statements about owners and rights of role \"{role}\", which is not here; what they name belongs to who restored it (CREATE ROLE first, to have them)"
        );
    }
    Ok(())
}

/// Counts what is read.
struct Counted {
    input: Box<dyn Read>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.input.read(buffer)?;
        self.read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}

/// Whether a statement says whose something is, or who may do what with it.
fn is_about_rights(text: &str) -> bool {
    let words: Vec<String> =
        text.split_whitespace().map(|word| word.trim_end_matches(';').to_uppercase()).collect();
    match words.first().map(String::as_str) {
        Some("GRANT" | "REVOKE") => true,
        Some("ALTER") => {
            words.windows(2).any(|two| two[0] == "OWNER" && two[1] == "TO")
                || words.get(1).is_some_and(|word| word == "DEFAULT")
        }
        _ => false,
    }
}

/// Whether a statement makes a role.
fn makes_a_role(text: &str) -> bool {
    let mut words = text.split_whitespace().map(str::to_uppercase);
    words.next().is_some_and(|word| word == "CREATE")
        && words.next().is_some_and(|word| matches!(word.as_str(), "ROLE" | "USER" | "GROUP"))
}

struct Restoring<'a, R> {
    client: &'a Client,
    script: Script<R>,
    name: &'a str,
    show: Box<dyn Fn() + 'a>,
    /// All is one transaction.
    single: bool,
    statements: u64,
    rows: u64,
    /// Statements about rights of roles that are not here, by role.
    passed_over: BTreeMap<String, u64>,
    /// Roles that were to be made and were here.
    there: Vec<String>,
}

impl<R: BufRead> Restoring<'_, R> {
    async fn all(&mut self) -> Result<(), String> {
        loop {
            let step = self.script.next_step();
            (self.show)();
            let line = self.script.line();
            match step.map_err(|reason| format!("{}, line {line}: {reason}", self.name))? {
                None => return Ok(()),
                Some(Step::Statement { text, line })
                    if is_about_rights(&text) || makes_a_role(&text) =>
                {
                    self.roles(&text, line).await?;
                }
                Some(Step::Statement { text, line }) => {
                    let done = self.client.batch_execute(&text).await;
                    done.map_err(|error| self.failed(&error, &text, line))?;
                    self.statements += 1;
                }
                Some(Step::Copy { text, line }) => {
                    self.copy(&text, line).await?;
                    self.statements += 1;
                }
            }
        }
    }

    /// A statement about owners and rights: a dump names roles of where it was made, which may not
    /// be here. Or one that makes a role, which may be here: the first superuser always is.
    async fn roles(&mut self, text: &str, line: u64) -> Result<(), String> {
        let said = |error: tokio_postgres::Error| full(&error);
        if self.single {
            self.client.batch_execute(SAVEPOINT).await.map_err(said)?;
        }
        let done = self.client.batch_execute(text).await;
        let end = match done {
            Ok(()) => {
                self.statements += 1;
                RELEASE
            }
            Err(error) => {
                let of = |code: &SqlState, rest: &str| {
                    let error = error.as_db_error().filter(|error| error.code() == code)?;
                    let about = error.message().strip_prefix("role \"")?;
                    about.strip_suffix(rest).map(str::to_owned)
                };
                let unknown = of(&SqlState::UNDEFINED_OBJECT, "\" does not exist");
                let known = of(&SqlState::DUPLICATE_OBJECT, "\" already exists");
                match (makes_a_role(text), unknown, known) {
                    (true, _, Some(role)) => self.there.push(role),
                    (false, Some(role), _) => *self.passed_over.entry(role).or_default() += 1,
                    _ => return Err(self.failed(&error, text, line)),
                }
                ROLLBACK
            }
        };
        if self.single {
            self.client.batch_execute(end).await.map_err(said)?;
        }
        Ok(())
    }

    async fn copy(&mut self, text: &str, line: u64) -> Result<(), String> {
        let statement = text.trim_end().trim_end_matches(';');
        let sink = self.client.copy_in::<_, bytes::Bytes>(statement).await;
        let sink = sink.map_err(|error| self.failed(&error, text, line))?;
        let mut sink = std::pin::pin!(sink);
        // The rows begin in the line after this one.
        let header = self.script.line();
        let mut more = true;
        while more {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES + 4096);
            more = self.script.copy_lines(&mut chunk, CHUNK_BYTES).map_err(|reason| {
                format!("{}, line {}: {reason}", self.name, self.script.line())
            })?;
            (self.show)();
            if !chunk.is_empty()
                && let Err(error) = sink.send(chunk.into()).await
            {
                // The server has refused already; the end of the COPY tells why.
                let reason = match sink.finish().await {
                    Err(refused) if refused.as_db_error().is_some() => refused,
                    _ => error,
                };
                return Err(self.copy_failed(&reason, text, line, header));
            }
        }
        let copied = sink.finish().await;
        self.rows += copied.map_err(|error| self.copy_failed(&error, text, line, header))?;
        Ok(())
    }

    /// Says which statement failed; with the server's position, which of its lines.
    fn failed(&self, error: &tokio_postgres::Error, text: &str, line: u64) -> String {
        let at = match error.as_db_error().and_then(|error| error.position()) {
            Some(ErrorPosition::Original(position)) => {
                let before = text.chars().take((*position as usize).saturating_sub(1));
                line + before.filter(|c| *c == '\n').count() as u64
            }
            _ => line,
        };
        self.told(error, text, at)
    }

    /// COPY tells its own line in the context: `COPY t, line 3, …`.
    fn copy_failed(
        &self,
        error: &tokio_postgres::Error,
        text: &str,
        line: u64,
        header: u64,
    ) -> String {
        let within = error.as_db_error().and_then(|error| {
            let (_, rest) = error.where_()?.split_once(", line ")?;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u64>().ok()
        });
        self.told(error, text, within.map_or(line, |within| header + within))
    }

    fn told(&self, error: &tokio_postgres::Error, text: &str, line: u64) -> String {
        let reason = match error.as_db_error() {
            Some(error) => {
                let mut said = format!("{} ({})", error.message(), error.code().code());
                for more in [error.detail(), error.hint(), error.where_()].into_iter().flatten() {
                    said.push_str("; ");
                    said.push_str(more);
                }
                said
            }
            None => full(error),
        };
        let text = text.trim();
        let short: String = text.chars().take(120).collect();
        let dots = if short.len() < text.len() { " …" } else { "" };
        format!("{}, line {line}: {reason}\n  {short}{dots}", self.name)
    }
}
