//! Connections to nodes, with errors as the demos tell them.
//!
//! # On failure
//! Where it was tried, and why nobody answered.

use tokio_postgres::Client;

pub use telesto_bookstore::full;

/// Connects to the node at `url`.
///
/// # Errors
/// When the URL is wrong or nobody answers.
pub async fn connect(url: &str) -> Result<Client, String> {
    telesto_bookstore::connect(url).await.map_err(|error| error.to_string())
}
