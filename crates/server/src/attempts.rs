//! How many passwords may be guessed.
//!
//! # Purpose
//! Wrong passwords are counted by user and source address, and by source address alone. Whoever has
//! guessed too often is refused before a password is looked at; the same user from another address
//! is not.
//!
//! ```text
//! begin ──> refused: wait … s        (nothing is asked)
//!    └───> asked, proof looked at ──> judge ──> refused: wait … s   (whatever the proof was worth)
//!                                       ├─────> wrong: counted
//!                                       └─────> right
//! ```
//!
//! # How it works
//! A count is one number: the time at which everything will have been given back. It lives in two
//! cells of a fixed table that a keyed hash chooses; the smaller one counts. So nothing is ever
//! forgotten to make room, however many names and addresses a guesser has, and nobody can choose
//! whose cell is shared. Only [`Attempt::judge`] counts, in one step with its look at the count: a
//! pool that opens a hundred connections at once is no guesser, and a guesser gains nothing by
//! guessing at once.
//!
//! # Invariants
//! - Memory does not grow: [`USER_CELLS`] and [`SOURCE_CELLS`], 1.3 MB.
//! - Nobody learns from a refusal whether the password was right.
//! - Many wrong ones at once are counted like wrong ones one after the other; right ones never
//!   count.
//! - A name that no role has is counted, and refused, like one that a role has.
//!
//! # On failure
//! [`TooMany`] says how long to wait. A right password is refused as well meanwhile.
//!
//! # Limits
//! - A source is an IPv4 address or an IPv6 network of 64 bits. Behind a proxy all are one.
//! - Two sources that share both cells are one; with all sources of a network of 5,000 guessing,
//!   that concerns one of 150.
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
    counts: Mutex<[Counts; 2]>,
}

impl Attempts {
    /// None yet.
    #[must_use]
    pub fn new(env: Env) -> Arc<Self> {
        metrics::describe_counter!(
            "telesto_log_ins_failed_total",
            "Log-ins refused, by door (sql, http) and reason: password (wrong, or no such user), limited (too many of these before)"
        );
        let users = Counts::new(USER_CELLS, USER_BURST, USER_INTERVAL);
        let sources = Counts::new(SOURCE_CELLS, SOURCE_BURST, SOURCE_INTERVAL);
        Arc::new(Self { env, counts: Mutex::new([users, sources]) })
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
        let cells = {
            let counts = self.counts.lock();
            [counts[0].cells(&(door, user, source)), counts[1].cells(&(door, source))]
        };
        let attempt = Attempt { attempts: Arc::clone(self), door, cells };
        attempt.look(true)?;
        Ok(attempt)
    }
}

/// An attempt under way. Dropped, it does not count.
#[derive(Debug)]
#[must_use = "a wrong password counts only when it is judged"]
pub struct Attempt {
    attempts: Arc<Attempts>,
    door: Door,
    /// Of the user, and of the source.
    cells: [Cells; 2],
}

impl Attempt {
    /// Whether the password was right; nothing of that may be told before this is asked.
    ///
    /// # Errors
    /// [`TooMany`]: others were wrong meanwhile; whether this one was must not be told.
    pub fn judge(self, right: bool) -> Result<bool, TooMany> {
        self.look(right)?;
        if !right {
            failed(self.door, "password");
        }
        Ok(right)
    }

    /// Counts a wrong one, unless there were too many before.
    fn look(&self, right: bool) -> Result<(), TooMany> {
        let now = nanos(self.attempts.env.clock.monotonic());
        let mut counts = self.attempts.counts.lock();
        let over = counts.iter().zip(self.cells).map(|(count, cells)| count.over(now, cells)).max();
        if let Some(wait) = over.filter(|wait| *wait > 0) {
            drop(counts);
            failed(self.door, "limited");
            return Err(TooMany { wait: Duration::from_nanos(wait) });
        }
        if !right {
            counts.iter_mut().zip(self.cells).for_each(|(count, cells)| count.take(now, cells));
        }
        Ok(())
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
    /// One row after the other. A cell: when everything taken will have been given back,
    /// nanoseconds of the monotonic clock.
    rows: Box<[u64]>,
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
            rows: vec![0; width * 2].into_boxed_slice(),
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

    /// For how long there is none to take.
    fn over(&self, now: u64, cells: Cells) -> u64 {
        let least = self.rows[cells[0]].min(self.rows[cells[1]]).max(now);
        (least - now + self.interval).saturating_sub(self.whole)
    }

    fn take(&mut self, now: u64, cells: Cells) {
        for cell in cells {
            self.rows[cell] = self.rows[cell].max(now) + self.interval;
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
        let mut counts = Counts::new(64, 5, at(12));
        let ada = counts.cells(&"ada");
        let mut take = |second: u64| {
            let now = nanos(at(second));
            match counts.over(now, ada) {
                0 => {
                    counts.take(now, ada);
                    Ok(())
                }
                over => Err(Duration::from_nanos(over)),
            }
        };
        for _ in 0..5 {
            take(100).expect("borne");
        }
        assert_eq!(take(100), Err(at(12)));
        assert_eq!(take(111), Err(at(1)));
        take(112).expect("one more");
        assert_eq!(take(112), Err(at(12)));
        for _ in 0..5 {
            take(1000).expect("all is given back");
        }
        assert!(take(1000).is_err());
    }

    fn guesses(attempts: &Arc<Attempts>, user: &str, source: IpAddr) -> Result<bool, TooMany> {
        attempts.begin(Door::Sql, user, source)?.judge(false)
    }

    #[tokio::test]
    async fn one_source_out_of_many_is_refused_and_right_passwords_never_count() {
        let attempts = Attempts::new(telesto_runtime::env());
        let source = |text: &str| text.parse::<IpAddr>().expect("an address");
        let (bad, good) = (source("192.0.2.1"), source("192.0.2.2"));
        let right = |door, user, from| attempts.begin(door, user, from)?.judge(true);
        for _ in 0..USER_BURST {
            assert_eq!(guesses(&attempts, "ada", bad), Ok(false));
        }
        let refused = right(Door::Sql, "ada", bad).expect_err("refused");
        assert!(refused.wait <= USER_INTERVAL, "{refused:?}");
        assert!(right(Door::Sql, "ada", source("::ffff:192.0.2.1")).is_err(), "the same address");
        for _ in 0..1000 {
            assert_eq!(right(Door::Sql, "ada", good), Ok(true), "another address");
            assert_eq!(right(Door::Sql, "bob", bad), Ok(true), "another user");
            assert_eq!(right(Door::Http, "ada", bad), Ok(true), "another door");
        }
    }

    #[tokio::test]
    async fn guesses_at_once_count_like_guesses_in_turn_and_tell_nothing_beyond() {
        let attempts = Attempts::new(telesto_runtime::env());
        let source: IpAddr = "2001:db8::1".parse().expect("an address");
        let neighbour: IpAddr = "2001:db8::2:0:0:1".parse().expect("an address");
        let begin = || attempts.begin(Door::Sql, "ada", source);
        let under_way: Vec<_> = (0..100).map(|_| begin().expect("nobody was wrong yet")).collect();
        let right = begin().expect("nobody was wrong yet");
        let told = under_way.into_iter().filter_map(|attempt| attempt.judge(false).ok()).count();
        assert_eq!(told, USER_BURST as usize);
        assert!(right.judge(true).is_err(), "a right one among them is not told either");
        assert!(guesses(&attempts, "ada", neighbour).is_err(), "the same network");
    }

    #[tokio::test]
    async fn one_source_with_many_names_is_one_guesser() {
        let attempts = Attempts::new(telesto_runtime::env());
        let source: IpAddr = "192.0.2.1".parse().expect("an address");
        let borne =
            (0..1000).filter(|n: &u32| guesses(&attempts, &n.to_string(), source).is_ok()).count();
        assert!((50..60).contains(&borne), "{borne}");
    }

    #[tokio::test]
    async fn guessers_from_everywhere_fill_no_cell_of_an_owner_and_take_no_memory() {
        let attempts = Attempts::new(telesto_runtime::env());
        // More than the door takes in the time in which a cell empties: 128 places, 300 ms each.
        for n in 0..25_000_u32 {
            let source = IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + n));
            assert_eq!(guesses(&attempts, "ada", source), Ok(false));
        }
        let owner: IpAddr = "192.0.2.2".parse().expect("an address");
        assert!(attempts.begin(Door::Sql, "ada", owner).is_ok());
        assert_eq!(attempts.counts.lock()[0].rows.len(), 2 * USER_CELLS);
    }
}
