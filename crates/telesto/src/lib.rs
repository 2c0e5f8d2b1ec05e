//! Telesto inside your own process: a transactional SQL database in an object-storage bucket.
//!
//! # Purpose
//! [`Database::open`] opens a bucket without a server. Any number of processes may open the same
//! bucket and all may write (on a bucket log, the default here).
//!
//! ```no_run
//! # async fn example() -> telesto::Result<()> {
//! let database = telesto::Database::open("file:///tmp/my-bucket").await?;
//! database.execute("create table if not exists t (id bigint primary key, name text)", &[]).await?;
//! database.execute("insert into t values ($1, $2)", &[&1i64, &"ada"]).await?;
//! for row in database.query("select id, name from t", &[]).await? {
//!     println!("{} {}", row.get::<i64>("id")?, row.get::<String>("name")?);
//! }
//! database.close().await?;
//! # Ok(()) }
//! ```
//!
//! # Invariants
//! What [`Database::execute`] and [`Database::transaction`] return has been committed at the
//! database's durability.
//!
//! # On failure
//! [`Error`], each with the next step. A conflict runs the work of [`Database::transaction`] again.
//!
//! # Limits
//! Needs a multi-threaded or current-thread tokio runtime with time and I/O enabled.

mod belonging;
mod carrying;
mod cluster;
mod database;
mod error;
mod node;
pub mod open;
mod regions;
mod value;
mod witness;

pub use cluster::{ClusterOptions, Directory, Joined, recover};
pub use database::{Builder, Database, Transaction};
pub use error::{Error, Result};
pub use node::{Node, own_folder, reach_of_others};
pub use open::Options;
pub use regions::Carrier;
pub use telesto_log::LogKind;
pub use telesto_server::kv::{Condition, Kv, ReadOptions, ScanRange};
pub use telesto_txn::{Durability, Level};
pub use value::{FromValue, Row, ToValue, Value};
