//! Errors of starting and configuring the server. What a client sees of its statements are SQL
//! errors (`telesto_sql`), not these.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the server cannot run as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Without authentication only loopback addresses may be listened on.
    #[error(
        "refusing to listen on {address} without authentication: anyone who reaches it could read and change everything; listen on 127.0.0.1, or configure users (`telesto hash-password USER >> users.txt`, then --auth-file users.txt)"
    )]
    OpenToAll {
        /// The address asked for.
        address: SocketAddr,
    },
    /// Passwords would cross a network in readable form.
    #[error(
        "refusing to serve HTTP with passwords on {address}: HTTP basic authentication is readable on the network; give --http-tls on (with --tls-cert and --tls-key), use --http 127.0.0.1:8080 behind a proxy that speaks TLS, or --http none"
    )]
    ReadablePasswords {
        /// The address asked for.
        address: SocketAddr,
    },
    /// TLS for HTTP without a certificate.
    #[error("--http-tls needs a certificate: give --tls-cert and --tls-key, or leave it away")]
    HttpTls,
    /// The address is taken or not ours.
    #[error(
        "cannot listen on {address}: {reason}; is another server running there? Choose another address with --listen or --http"
    )]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        reason: std::io::Error,
    },
    /// A certificate or key cannot be used.
    #[error(
        "TLS {what} {path} cannot be used: {reason}; give PEM files with --tls-cert, --tls-key, --tls-client-ca and --tls-client-crl"
    )]
    Tls {
        /// Certificate or key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The users file cannot be used.
    #[error(
        "users file {path}, line {line}: {reason}; each line is \"user\" \"SCRAM-SHA-256$…\", as `telesto hash-password USER` prints it"
    )]
    Users {
        /// The file.
        path: PathBuf,
        /// Line, from 1; 0 when the file cannot be read at all.
        line: usize,
        /// Why not.
        reason: String,
    },
    /// The users of the users file cannot be made roles of the database.
    #[error(
        "the users of the users file cannot be given their roles: {0}; see that the bucket answers, then start again"
    )]
    Roles(telesto_sql::Error),
    /// Rules of entrance without users.
    #[error(
        "access rules need users: without them nobody is asked for a password, and only loopback is listened on; configure them (`telesto hash-password USER >> users.txt`, then --auth-file users.txt), or leave --access-file away"
    )]
    RulesWithoutUsers,
    /// The rules of entrance cannot be used.
    #[error("access file {path}:{line}: {reason}")]
    AccessFile {
        /// The file.
        path: PathBuf,
        /// Line, from 1; 0 when it is about the whole.
        line: usize,
        /// What is wrong, and what to write instead.
        reason: String,
    },
    /// The audit log cannot be opened.
    #[error(
        "the audit log {path} cannot be opened: {reason}; name a file in a folder that this user may write with --audit-log"
    )]
    AuditLog {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The process already measures into another recorder.
    #[error("metrics cannot be installed: {0}; start one server a process")]
    Metrics(String),
}
