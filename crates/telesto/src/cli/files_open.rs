//! How many files this process may have open.
//!
//! # Purpose
//! A node has a file open for each connection, and for what it keeps on its disk. Systems begin a
//! process with room for 1,024, and let it have more when it asks.
//!
//! # On failure
//! The node starts with what it has, and says that it is little.
//!
//! # Limits
//! The hard limit is the system's: `LimitNOFILE=` of a unit, `ulimit -H -n` of a shell.

use telesto_runtime::net::MAX_CONNECTIONS;

/// Files of the log, of the caches and of the bucket's connections, about.
const OWN: u64 = 1024;

/// Asks for as many as the system gives, and says so when that is too few for `clients`
/// connections.
pub(super) fn allow(clients: usize) {
    let needed = clients as u64 + MAX_CONNECTIONS as u64 + OWN;
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(files) if files < needed => tracing::warn!(
            files,
            needed,
            "this process may open fewer files than all connections it takes may need; raise the limit (LimitNOFILE=, ulimit -H -n) or lower max_connections"
        ),
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(%error, "how many files this process may open could not be raised");
        }
    }
}
