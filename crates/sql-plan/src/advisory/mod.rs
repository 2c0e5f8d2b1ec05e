//! Advisory locks: mutexes that applications name by numbers (`pg_advisory_lock` and its kin).
//!
//! # Protocol
//! ```text
//! session ── hold ──> registry (this process)     who holds and waits here; first come, first served
//!                        │ settle: what this process needs of the lock, the most of its sessions
//!                        v
//!                     remote (rows in the bucket)  which processes have the lock; a transaction a change
//! ```
//! A session has a lock when the registry has no other session in the way *and* the lock's row
//! names this process. A process that holds locks beats (a row of its own, every [`remote::BEAT`]);
//! whoever finds a holder in the way that has not beaten for [`remote::LEASE`] by its own clock
//! takes the lock over and removes the holder's `alive` row.
//!
//! # Invariants
//! - Sessions of one process exclude each other by the registry alone; processes by conflicts on
//!   the lock's row.
//! - A commit of a session that holds locks reads its process's `alive` row as a constraint: a
//!   process that was taken for dead cannot commit what it did under a lock that another has by
//!   then. What it does elsewhere nobody can stop.
//! - Locks are not transactional: executing a block again after a conflict keeps what the block
//!   took, and takes nothing twice.
//!
//! # On failure
//! A process that dies leaves its locks for [`remote::LEASE`]. A process that lost its locks tells
//! each session that held one (55000).
//!
//! # Limits
//! Deadlocks are found among sessions of one process (40P01, at once). Across processes a session
//! that holds a lock waits at most [`registry::REMOTE_WAIT`] for another. A waiter looks at the row
//! every second at least.

pub mod registry;
pub mod remote;
pub mod session;
pub mod tables;

pub use telesto_sql_types::advisory::{LockKey, LockMode, LockRequest};
