//! How many passwords may be guessed.
//!
//! # Purpose
//! Wrong passwords are counted by user and source address, and by source address alone. Whoever has guessed too often is refused
//! before a password is looked at; the same user from another address is not.
//!
//! ```text
//! begin ──> a place is taken, or refused: wait … s
//!             ├─ wrong:  the place stays taken until it is given back by time
//!             └─ dropped (right, or no password came): the place is given back at once
//! ```
//!
//! # How it works
//! A count is one number: the time at which everything will have been given back. It lives in two cells of a fixed table that a
//! keyed hash chooses; the smaller one counts. So nothing is ever forgotten to make room, however many names and addresses a
//! guesser has, and nobody can choose whose cell is shared.
//!
//! # Invariants
//! - Memory does not grow: [`USER_CELLS`] and [`SOURCE_CELLS`], 1.3 MB.
//! - Many attempts at once are counted like attempts one after the other.
//! - A name that no role has is counted, and refused, like one that a role has.
//!
//! # On failure
//! [`TooMany`] says how long to wait. A right password is refused as well meanwhile.
//!
//! # Limits
//! - A source is an IPv4 address or an IPv6 network of 64 bits. Behind a proxy all are one.
//! - Two sources that share both cells are one; with all sources of a network of 5,000 guessing, that concerns one of 150.
//! - Each process counts by itself.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::Env;

/// Wrong passwords of one user from one source that are borne at once.
pub const USER_BURST: u32 = 5;
/// After which one more is borne.
pub const USER_INTERVAL: Duration = Duration::from_secs(12);
/// Wrong passwords from one source, whatever the users, that are borne at once.
pub const SOURCE_BURST: u32 = 50;
/// After which one more is borne.
pub const SOURCE_INTERVAL: Duration = Duration::from_millis(1200);
/// Cells of a row for users; there are two rows.
pub const USER_CELLS: usize = 1 << 16;
/// Cells of a row for sources; there are two rows.
pub const SOURCE_CELLS: usize = 1 << 14;

/// The port by which somebody asks to be let in; each counts by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// The Postgres port.
    Sql,
    /// The HTTP port: its API, and the console.
    Http,
}

impl Door {
    /// Its name in metrics and records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sql => "sql",
            Self::Http => "http",
        }
    }
}

/// Too many wrong passwords came from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many failed log-ins from this address; try again in {} s", self.seconds())]
pub struct TooMany {
    /// How long to wait.
    pub wait: Duration,
}

impl TooMany {
    /// Whole seconds to wait.
    #[must_use]
    pub fn seconds(self) -> u64 {
        self.wait.as_secs() + 1
    }
}

/// Counts of wrong passwords.
#[derive(Debug)]
pub struct Attempts {
    env: Env,
    users: Counts,
    sources: Counts,
}

impl Attempts {
    /// None yet.
    #[must_use]
    pub fn new(env: Env) -> Arc<Self> {
        metrics::describe_counter!(
            "telesto_log_ins_failed_total",
            "Log-ins refused, by door (sql, http) and reason: password (wrong, or no such user), limited (too many of these before)"
        );
        Arc::new(Self {
            env,
            users: Counts::new(USER_CELLS, USER_BURST, USER_INTERVAL),
            sources: Counts::new(SOURCE_CELLS, SOURCE_BURST, SOURCE_INTERVAL),
        })
    }

    /// `user` from `source` is about to be asked for a password.
    ///
    /// # Errors
    /// [`TooMany`]; it must not be asked then.
    pub fn begin(
        self: &Arc<Self>,
        door: Door,
        user: &str,
        source: IpAddr,
    ) -> Result<Attempt, TooMany> {
        let source = network(source);
        let now = self.env.clock.monotonic();
        let refuse = |wait| {
            failed(door, "limited");
            TooMany { wait }
        };
        let of_user = self.users.take(now, &(door, user, source)).map_err(refuse)?;
        let of_source = match self.sources.take(now, &(door, source)) {
            Ok(cells) => cells,
            Err(wait) => {
                self.users.give_back(of_user);
                return Err(refuse(wait));
            }
        };
        Ok(Attempt { attempts: Arc::clone(self), door, of_user, of_source, wrong: false })
    }
}

/// An attempt under way. Dropped, it does not count.
#[derive(Debug)]
#[must_use = "a wrong password counts only when it is told"]
pub struct Attempt {
    attempts: Arc<Attempts>,
    door: Door,
    of_user: Cells,
    of_source: Cells,
    wrong: bool,
}

impl Attempt {
    /// The password was wrong, or the user is unknown.
    pub fn wrong(mut self) {
        self.wrong = true;
        failed(self.door, "password");
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.wrong {
            self.attempts.users.give_back(self.of_user);
            self.attempts.sources.give_back(self.of_source);
        }
    }
}

/// Counts a log-in that failed.
pub(crate) fn failed(door: Door, reason: &'static str) {
    metrics::counter!("telesto_log_ins_failed_total", "door" => door.name(), "reason" => reason)
        .increment(1);
}

/// Whom an address belongs to: one network of 64 bits is one household's or one machine's.
fn network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from(u128::from(address) >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The places of one count: one in each row.
type Cells = [usize; 2];

#[derive(Debug)]
struct Counts {
    keys: [RandomState; 2],
    /// One row after the other. A cell: when everything taken will have been given back, nanoseconds of the monotonic clock.
    rows: Mutex<Box<[u64]>>,
    width: usize,
    interval: u64,
    /// Of everything that may be taken at once.
    whole: u64,
}

impl Counts {
    fn new(width: usize, burst: u32, interval: Duration) -> Self {
        let interval = nanos(interval);
        Self {
            keys: [RandomState::new(), RandomState::new()],
            rows: Mutex::new(vec![0; width * 2].into_boxed_slice()),
            width,
            interval,
            whole: interval * u64::from(burst),
        }
    }

    fn cells(&self, key: &impl Hash) -> Cells {
        let place = |row: usize| {
            let hash = self.keys[row].hash_one(key);
            // The remainder is below the width.
            row * self.width + usize::try_from(hash % self.width as u64).unwrap_or(0)
        };
        [place(0), place(1)]
    }

    /// Takes one of what `key` has, or tells how long it has none.
    fn take(&self, now: Duration, key: &impl Hash) -> Result<Cells, Duration> {
        let (now, cells) = (nanos(now), self.cells(key));
        let mut rows = self.rows.lock();
        let least = rows[cells[0]].min(rows[cells[1]]).max(now);
        let over = (least - now + self.interval).saturating_sub(self.whole);
        if over > 0 {
            return Err(Duration::from_nanos(over));
        }
        for cell in cells {
            rows[cell] = rows[cell].max(now) + self.interval;
        }
        Ok(cells)
    }

    fn give_back(&self, cells: Cells) {
        let mut rows = self.rows.lock();
        for cell in cells {
            rows[cell] = rows[cell].saturating_sub(self.interval);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    // 500 years.
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn guesser_waits_and_gets_one_more_after_each_interval() {
        let counts = Counts::new(64, 5, at(12));
        for _ in 0..5 {
            counts.take(at(100), &"ada").expect("borne");
        }
        assert_eq!(counts.take(at(100), &"ada"), Err(at(12)));
        assert_eq!(counts.take(at(111), &"ada"), Err(at(1)));
        counts.take(at(112), &"ada").expect("one more");
        assert_eq!(counts.take(at(112), &"ada"), Err(at(12)));
        for _ in 0..5 {
            counts.take(at(1000), &"ada").expect("all is given back");
        }
        assert!(counts.take(at(1000), &"ada").is_err());
    }

    #[tokio::test]
    async fn one_source_out_of_many_is_refused_and_right_passwords_never_count() {
        let attempts = Attempts::new(telesto_runtime::env());
        let source = |text: &str| text.parse::<IpAddr>().expect("an address");
        let (bad, good) = (source("192.0.2.1"), source("192.0.2.2"));
        let begin = |user: &str, from| attempts.begin(Door::Sql, user, from);
        for _ in 0..USER_BURST {
            begin("ada", bad).expect("borne").wrong();
        }
        let refused = begin("ada", bad).expect_err("refused");
        assert!(refused.wait <= USER_INTERVAL, "{refused:?}");
        assert!(begin("ada", source("::ffff:192.0.2.1")).is_err(), "the same address");
        for _ in 0..1000 {
            drop(begin("ada", good).expect("another address"));
            drop(begin("bob", bad).expect("another user"));
            drop(attempts.begin(Door::Http, "ada", bad).expect("another door"));
        }
    }

    #[tokio::test]
    async fn attempts_at_once_count_like_attempts_in_turn() {
        let attempts = Attempts::new(telesto_runtime::env());
        let source: IpAddr = "2001:db8::1".parse().expect("an address");
        let neighbour: IpAddr = "2001:db8::2:0:0:1".parse().expect("an address");
        let under_way: Vec<_> =
            (0..100).filter_map(|_| attempts.begin(Door::Sql, "ada", source).ok()).collect();
        assert_eq!(under_way.len(), USER_BURST as usize);
        assert!(attempts.begin(Door::Sql, "ada", neighbour).is_err(), "the same network");
    }

    #[tokio::test]
    async fn one_source_with_many_names_is_one_guesser() {
        let attempts = Attempts::new(telesto_runtime::env());
        let source: IpAddr = "192.0.2.1".parse().expect("an address");
        let borne = (0..1000)
            .filter_map(|n| attempts.begin(Door::Sql, &n.to_string(), source).ok())
            .map(Attempt::wrong)
            .count();
        assert!((50..60).contains(&borne), "{borne}");
    }
}
