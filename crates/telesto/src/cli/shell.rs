//! `telesto sql`: a small shell. psql works as well and does more.
//!
//! # On failure
//! Reading a script, the first failing statement ends it with exit code 3, as `psql -v
//! ON_ERROR_STOP=1`; at a prompt the error is shown and the next statement awaited.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::time::Instant;

use futures::StreamExt as _;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::statements::{is_blank, take_statement};
use super::table::Table;

const HELP: &str = "\
Statements end with ; and are sent when their line ends.
  \\d        tables           \\d NAME   columns of a table
  \\timing   times and costs on or off
  \\?        this help          \\q        leave (also end of input)
psql connects to the same address and does more.
";

/// How the shell ended.
pub enum Ended {
    /// All went well.
    Well,
    /// A statement of a script failed.
    StatementFailed,
}

struct Shell {
    client: Client,
    timing: bool,
}

/// Connects to a node; notices are shown as they come.
///
/// # Errors
/// When the URL is wrong or nobody answers.
pub async fn connect(url: &str) -> Result<Client, String> {
    let config: tokio_postgres::Config = url.parse().map_err(|error| {
        format!("{url:?} is no Postgres URL ({error}); write postgres://user@host:port/database")
    })?;
    let (client, mut connection) =
        config.connect(tokio_postgres::NoTls).await.map_err(|error| {
            format!(
                "cannot connect to {url}: {}; is the node running? telesto start starts one",
                full(&error)
            )
        })?;
    // Drives the protocol; ends with the client.
    tokio::spawn(async move {
        let mut messages =
            futures::stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(message) = messages.next().await {
            match message {
                Ok(tokio_postgres::AsyncMessage::Notice(notice)) => {
                    eprintln!("{}:  {}", notice.severity(), notice.message());
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    });
    Ok(client)
}

/// Runs `command`, or the shell until the input ends.
///
/// # Errors
/// When the server cannot be reached or the connection is lost.
pub async fn run(url: &str, command: Option<&str>, timing: bool) -> Result<Ended, String> {
    let client = connect(url).await?;
    let mut shell = Shell { client, timing };
    if let Some(command) = command {
        return Ok(if shell.execute(command).await { Ended::Well } else { Ended::StatementFailed });
    }
    let interactive = std::io::stdin().is_terminal();
    if interactive {
        println!("Telesto {}; \\? for help, \\q to leave.", env!("CARGO_PKG_VERSION"));
    }
    let (lines, mut input) = tokio::sync::mpsc::channel(64);
    // Reading a terminal blocks: it has its own thread, which ends with the process.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    let mut text = String::new();
    loop {
        if interactive {
            print!("{}", if is_blank(&text) { "telesto=> " } else { "telesto-> " });
            // A prompt that cannot be shown is no reason to stop.
            let _ = std::io::stdout().flush();
        }
        let Some(line) = input.recv().await else { break };
        if is_blank(&text) && line.trim_start().starts_with('\\') {
            if !shell.meta(line.trim()).await {
                return Ok(Ended::Well);
            }
            continue;
        }
        text.push_str(&line);
        text.push('\n');
        while let Some(statement) = take_statement(&mut text) {
            let done = shell.execute(&statement).await;
            if !done && shell.client.is_closed() {
                return Err(
                    "the connection to the server was lost; start the shell again".to_owned()
                );
            }
            if !done && !interactive {
                return Ok(Ended::StatementFailed);
            }
        }
    }
    if is_blank(&text) || shell.execute(&text).await {
        Ok(Ended::Well)
    } else {
        Ok(Ended::StatementFailed)
    }
}

impl Shell {
    /// A backslash command; whether to go on.
    async fn meta(&mut self, line: &str) -> bool {
        let (command, argument) = line.split_once(' ').unwrap_or((line, ""));
        match (command, argument.trim()) {
            ("\\q", _) => return false,
            ("\\timing", _) => {
                self.timing = !self.timing;
                println!("Timing is {}.", if self.timing { "on" } else { "off" });
            }
            ("\\d" | "\\dt", "") => {
                self.execute(
                    "select table_schema as schema, table_name as name, table_type as type \
                     from information_schema.tables \
                     where table_schema not in ('pg_catalog', 'information_schema') order by 1, 2",
                )
                .await;
            }
            ("\\d", name) => {
                let name = name.trim_end_matches(';').replace('\'', "''");
                self.execute(&format!(
                    "select column_name as column, data_type as type, is_nullable as nullable, \
                     column_default as default from information_schema.columns \
                     where table_name = '{name}' order by ordinal_position"
                ))
                .await;
            }
            ("\\?", _) => print!("{HELP}"),
            (other, _) => println!("{other} is no command here; \\? lists them"),
        }
        true
    }

    /// Bucket requests and dollars of the last statement; `None` when the server does not tell
    /// (PostgreSQL, a lost connection).
    async fn last_cost(&self) -> Option<String> {
        let answer = self.client.simple_query("SHOW telesto.last_statement_cost").await.ok()?;
        answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    }

    /// Runs statements and shows what they return; whether all went well.
    async fn execute(&self, text: &str) -> bool {
        let begun = Instant::now();
        let mut table = Table::default();
        let mut failed = None;
        match self.client.simple_query_raw(text).await {
            Err(error) => failed = Some(error),
            Ok(stream) => {
                let mut stream = std::pin::pin!(stream);
                while let Some(message) = stream.next().await {
                    match message {
                        Ok(SimpleQueryMessage::RowDescription(columns)) => {
                            table.columns =
                                columns.iter().map(|column| column.name().to_owned()).collect();
                        }
                        Ok(SimpleQueryMessage::Row(row)) => {
                            let values = (0..row.len()).map(|i| row.get(i).map(str::to_owned));
                            table.rows.push(values.collect());
                        }
                        Ok(SimpleQueryMessage::CommandComplete(rows)) => {
                            if table.columns.is_empty() {
                                println!("OK, {rows} rows");
                            } else {
                                print!("{}", std::mem::take(&mut table).render());
                            }
                        }
                        Ok(_) => {}
                        Err(error) => {
                            failed = Some(error);
                            break;
                        }
                    }
                }
            }
        }
        if let Some(error) = &failed {
            show(error);
        }
        if self.timing {
            println!("Time: {:.3} ms", begun.elapsed().as_secs_f64() * 1e3);
            if let Some(cost) = self.last_cost().await {
                println!("Cost: {cost}");
            }
        }
        failed.is_none()
    }
}

fn show(error: &tokio_postgres::Error) {
    let Some(error) = error.as_db_error() else {
        eprintln!("ERROR:  {}", full(error));
        return;
    };
    eprintln!("{}:  {} ({})", error.severity(), error.message(), error.code().code());
    if let Some(detail) = error.detail() {
        eprintln!("DETAIL:  {detail}");
    }
    if let Some(hint) = error.hint() {
        eprintln!("HINT:  {hint}");
    }
}

/// An error with its causes: the driver's own text names only the outermost.
pub fn full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
