//! Errors of loading and running the bookstore, and connections.

use futures::StreamExt as _;
use tokio_postgres::{AsyncMessage, Client, NoTls};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the bookstore stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL, or nobody there.
    #[error("cannot connect to {url}: {reason}; is the server running? telesto start starts one")]
    Connect {
        /// Where.
        url: String,
        /// Why.
        reason: String,
    },
    /// The server refused or was lost.
    #[error("{doing}: {reason}; see the server's log, then run the same command again")]
    Database {
        /// What was being done.
        doing: String,
        /// The server's message.
        reason: String,
        /// SQLSTATE, when the server gave one.
        sqlstate: Option<String>,
    },
    /// A bookstore is there, but not the one asked for.
    #[error(
        "the bookstore there {found}, asked for was {wanted}; give these numbers, or --reload to drop it and load anew"
    )]
    OtherBookstore {
        /// What is there.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// Something acknowledged is not there, or does not add up.
    #[error(
        "the database does not show what it acknowledged: {0}. This is a bug of the database: please report it with the server's log"
    )]
    Lost(String),
    /// The command asked for something that cannot be.
    #[error("{0}")]
    Asked(String),
}

impl Error {
    /// The error of a statement.
    pub fn database(doing: &str, error: &tokio_postgres::Error) -> Self {
        let reason = error.as_db_error().map_or_else(
            || full(error),
            |e| match e.detail() {
                Some(detail) => format!("{} ({detail})", e.message()),
                None => e.message().to_owned(),
            },
        );
        let sqlstate = error.code().map(|code| code.code().to_owned());
        Self::Database { doing: doing.to_owned(), reason, sqlstate }
    }
}

/// An error with its causes: the driver's own text names only the outermost.
#[must_use]
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

/// A connection to the server at `url`. Notices are left unread: IF NOT EXISTS gives many.
///
/// # Errors
/// [`Error::Connect`].
pub async fn connect(url: &str) -> Result<Client> {
    let refused = |reason: String| Error::Connect { url: url.to_owned(), reason };
    let config: tokio_postgres::Config = url.parse().map_err(|error| {
        refused(format!(
            "it is no Postgres URL ({error}); write postgres://user@host:port/database"
        ))
    })?;
    let (client, mut connection) =
        config.connect(NoTls).await.map_err(|error| refused(full(&error)))?;
    tokio::spawn(async move {
        let mut messages =
            futures::stream::poll_fn(move |context| connection.poll_message(context));
        // Ends with the client.
        while let Some(Ok(AsyncMessage::Notice(_) | _)) = messages.next().await {}
    });
    Ok(client)
}
