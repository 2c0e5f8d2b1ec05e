//! Limits on spending.
//!
//! # Purpose
//! A [`Cap`] says how many dollars a subject may spend in an hour, a day or a month. Each process
//! spends from a [`Purse`] that it fills with slices of the cap, so that all processes together
//! stay below it without asking each other at every statement.
//!
//! ```text
//!  cap, stored:   granted so far in this window ──slice──> purse of node A ──> statements
//!                                              ──slice──> purse of node B ──> statements
//!  purse dry (nothing left to hand out):  write ── refused      read from the bucket ── slowed, then refused
//!                                         read from memory ── goes on      what is no statement's ── never asked
//! ```
//!
//! # Invariants
//! - What is spent between two slices was granted before; beyond the last one only what was let go
//!   when it ended can come: less than a slice ([`Cap::slice`]).
//! - A window that is over gives nothing to the next one.
//! - A purse in [`Mode::Warn`] never slows and never refuses; it counts what it would have done.
//!
//! # On failure
//! A process that dies leaves the rest of its slice unspent: the cap errs on the cheap side.
//!
//! # Limits
//! Dollars here are those of requests and bytes. Processors and memory are paid by the hour whether
//! they are used or not: refusing what is done in memory would save nothing.

use std::time::Duration;

use chrono::{DateTime, Datelike as _, Months, NaiveTime, SubsecRound as _, TimeDelta, Utc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::rates::Dollars;

/// Slices of a cap.
const SLICES: u64 = 16;
/// A slice is worth its own commit: at least this, where the cap is not smaller (attodollars).
const LEAST_SLICE: u128 = 100_000_000_000_000;
/// A cold read waits so long at first, and twice as long each time up to [`LONGEST`], when nine
/// tenths are spent.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(640);

/// Whose spending is limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// All of a database, background work too.
    Database(String),
    /// A role.
    Role(String),
    /// An `application_name`.
    Application(String),
    /// Statements whose normalized text is LIKE this (letters in either case).
    Statement(String),
}

impl Subject {
    /// The subject of a kind; `None` for a kind there is not.
    #[must_use]
    pub fn named(kind: &str, name: &str) -> Option<Self> {
        let name = name.to_owned();
        Some(match kind.to_ascii_lowercase().as_str() {
            "database" => Self::Database(name),
            "role" => Self::Role(name),
            "application" => Self::Application(name),
            "statement" => Self::Statement(name),
            _ => return None,
        })
    }

    /// Its kind and its name.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Database(name) => ("database", name),
            Self::Role(name) => ("role", name),
            Self::Application(name) => ("application", name),
            Self::Statement(pattern) => ("statement", pattern),
        }
    }

    /// Whether what this payer spends counts.
    #[must_use]
    pub fn covers(&self, payer: &Payer<'_>) -> bool {
        match self {
            Self::Database(name) => payer.database == name,
            // Whoever logged in pays whatever it acts as since: SET ROLE leaves no cap behind, and
            // meets those of the role.
            Self::Role(name) => payer.login == name || payer.role == name,
            Self::Application(name) => payer.application == name,
            Self::Statement(pattern) => like(pattern, payer.text),
        }
    }
}

/// Who is about to spend. Not the principal of its account: where the books are full an account is
/// that of `(others)`, and whoever filled them would have no cap any more.
#[derive(Clone, Copy, Debug)]
pub struct Payer<'a> {
    /// The role of the session (`session_user`).
    pub login: &'a str,
    /// The role whose rights count (`current_user`).
    pub role: &'a str,
    /// The database.
    pub database: &'a str,
    /// `application_name`.
    pub application: &'a str,
    /// The statement, normalized.
    pub text: &'a str,
}

/// Whether `text` is LIKE `pattern`, letters in either case: `%` for anything, `_` for one
/// character.
fn like(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.to_lowercase().chars().collect();
    let text: Vec<char> = text.to_lowercase().chars().collect();
    let (mut p, mut t) = (0, 0);
    let mut retry = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('%') => {
                retry = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '_' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match retry {
                Some((percent, from)) => {
                    retry = Some((percent, from + 1));
                    p = percent + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '%')
}

/// How long a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Per {
    /// From minute 0 to minute 0.
    Hour,
    /// A day of UTC.
    Day,
    /// A calendar month of UTC.
    Month,
}

impl Per {
    /// By its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "hour" => Self::Hour,
            "day" => Self::Day,
            "month" => Self::Month,
            _ => return None,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// The window that a moment is in.
    #[must_use]
    pub fn window(self, now_micros: u64) -> Window {
        let now = i64::try_from(now_micros).ok().and_then(DateTime::from_timestamp_micros);
        let now: DateTime<Utc> = now.unwrap_or(DateTime::UNIX_EPOCH).trunc_subsecs(0);
        let midnight = |day: DateTime<Utc>| day.with_time(NaiveTime::MIN).single().unwrap_or(day);
        let (begin, end) = match self {
            Self::Hour => {
                let past = now.timestamp().rem_euclid(3600);
                let begin = now - TimeDelta::seconds(past);
                (begin, begin + TimeDelta::hours(1))
            }
            Self::Day => (midnight(now), midnight(now) + TimeDelta::days(1)),
            Self::Month => {
                let first = midnight(now.with_day(1).unwrap_or(now));
                (first, first.checked_add_months(Months::new(1)).unwrap_or(first))
            }
        };
        let micros = |at: DateTime<Utc>| u64::try_from(at.timestamp_micros()).unwrap_or(0);
        Window { begin_micros: micros(begin), end_micros: micros(end) }
    }
}

/// A stretch of time for which a cap holds, microseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Its first moment.
    pub begin_micros: u64,
    /// The first moment of the next one.
    pub end_micros: u64,
}

impl Window {
    /// The window whose slices are handed out when the clock says this one and `stored` was the
    /// last that anybody handed slices out of. None is begun again: of two clocks on two sides of a
    /// border, the one behind takes its slices from the window that the other one has begun. Else
    /// each would wipe out what the other one took.
    #[must_use]
    pub fn or_begun(self, stored: Self, per: Per) -> Self {
        let newer = stored.begin_micros > self.begin_micros;
        // A cap that was per hour and is per month now begins anew.
        if newer && per.window(stored.begin_micros) == stored { stored } else { self }
    }
}

/// What a cap does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Tells and counts.
    Warn,
    /// Slows and refuses.
    Enforce,
}

impl Mode {
    /// By its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "warn" => Self::Warn,
            "enforce" => Self::Enforce,
            _ => return None,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Enforce => "enforce",
        }
    }
}

/// A limit on spending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    /// OID in the catalog.
    pub oid: u32,
    /// Its name.
    pub name: String,
    /// Whose spending it limits.
    pub subject: Subject,
    /// For how long.
    pub per: Per,
    /// What it does.
    pub mode: Mode,
    /// The limit, nanodollars.
    pub limit_nanos: u64,
    /// The part of it that only what is no statement's may spend, percent; for databases.
    pub reserve_percent: u8,
}

impl Cap {
    /// The limit.
    #[must_use]
    pub fn limit(&self) -> Dollars {
        Dollars(u128::from(self.limit_nanos) * 1_000_000_000)
    }

    /// What statements may spend: the limit without its reserve.
    #[must_use]
    pub fn usable(&self) -> Dollars {
        self.limit().less(self.limit().part(u64::from(self.reserve_percent.min(100)), 100))
    }

    /// How much a process takes at a time: a sixteenth, or $0.0001 where that is more and the cap
    /// allows it.
    #[must_use]
    pub fn slice(&self) -> Dollars {
        let sixteenth = self.usable().part(1, SLICES);
        sixteenth.max(Dollars(LEAST_SLICE.min(self.usable().part(1, 4).0)))
    }

    /// How much of what is wanted can be handed out when `granted` was in this window.
    #[must_use]
    pub fn hands_out(&self, granted: Dollars, wanted: Dollars) -> Dollars {
        match self.mode {
            Mode::Warn => wanted,
            Mode::Enforce => wanted.min(self.usable().less(granted)),
        }
    }
}

/// What somebody is about to spend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Anything that changes data.
    Write,
    /// A request for what is not in memory.
    ColdRead,
}

/// What a purse says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Go,
    /// Go on after a while.
    Slow(Duration),
    /// Get another slice first, then ask again.
    Ask,
    /// Not before the window ends.
    Refuse,
    /// Go on, and tell: the cap is reached, but only warns.
    Warn,
}

/// How often a purse did what, in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes refused; where the cap only warns, those it would have refused.
    pub writes: u64,
    /// Cold reads slowed, or that would have been.
    pub slowed: u64,
    /// Cold reads refused, or that would have been.
    pub reads: u64,
    /// Dollars spent beyond the limit of a cap that only warns.
    pub beyond: Dollars,
}

/// What a purse holds, for views.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The window.
    pub window: Window,
    /// Granted to this process.
    pub granted: Dollars,
    /// Spent by this process.
    pub spent: Dollars,
    /// Granted to all processes, as far as is known here.
    pub all_granted: Dollars,
    /// Nothing more is handed out in this window.
    pub dry: bool,
    /// Set aside for statements under way.
    pub reserved: Dollars,
    /// What was done.
    pub counts: Counts,
}

/// A process's part of a cap.
#[derive(Debug)]
pub struct Purse {
    /// The cap.
    pub cap: Cap,
    held: Mutex<Held>,
}

impl Purse {
    /// An empty one.
    #[must_use]
    pub fn new(cap: Cap) -> Self {
        Self { cap, held: Mutex::default() }
    }

    /// What it holds at a moment.
    #[must_use]
    pub fn held(&self, now_micros: u64) -> Held {
        let mut held = self.held.lock();
        self.turn(&mut held, now_micros);
        *held
    }

    /// Begins anew when the window is over. What is set aside stays so.
    fn turn(&self, held: &mut Held, now_micros: u64) {
        if now_micros >= held.window.end_micros || now_micros < held.window.begin_micros {
            let window = self.cap.per.window(now_micros);
            *held = Held { window, reserved: held.reserved, ..Held::default() };
        }
    }

    /// May `price` be spent now? `attempt`: how often this one was slowed before.
    pub fn ask(&self, class: Class, price: Dollars, attempt: u32, now_micros: u64) -> Verdict {
        let mut held = self.held.lock();
        self.turn(&mut held, now_micros);
        let usable = self.cap.usable();
        // What others have and may not have spent counts as spent.
        let known = held.all_granted.less(held.granted) + held.spent + held.reserved;
        if self.cap.mode == Mode::Warn {
            return Self::warned(&mut held, class, price, known, usable);
        }
        if held.spent + held.reserved + price > held.granted {
            if !held.dry {
                return Verdict::Ask;
            }
            match class {
                Class::Write => held.counts.writes += 1,
                Class::ColdRead => held.counts.reads += 1,
            }
            return Verdict::Refuse;
        }
        if class == Class::ColdRead && known + price > usable.part(9, 10) && attempt == 0 {
            held.counts.slowed += 1;
            let times = u32::try_from(held.counts.slowed.min(6)).unwrap_or(6) - 1;
            return Verdict::Slow((SHORTEST * (1 << times)).min(LONGEST));
        }
        Verdict::Go
    }

    fn warned(
        held: &mut Held,
        class: Class,
        price: Dollars,
        known: Dollars,
        usable: Dollars,
    ) -> Verdict {
        if known + price > usable {
            match class {
                Class::Write => held.counts.writes += 1,
                Class::ColdRead => held.counts.reads += 1,
            }
            return Verdict::Warn;
        }
        if class == Class::ColdRead && known + price > usable.part(9, 10) {
            held.counts.slowed += 1;
        }
        Verdict::Go
    }

    /// Sets aside what a statement may cost, until [`Purse::release`]; whether that much is there.
    pub fn reserve(&self, price: Dollars, now_micros: u64) -> bool {
        let mut held = self.held.lock();
        self.turn(&mut held, now_micros);
        let fits =
            self.cap.mode == Mode::Warn || held.spent + held.reserved + price <= held.granted;
        if fits {
            held.reserved += price;
        }
        fits
    }

    /// Gives back what was set aside.
    pub fn release(&self, price: Dollars) {
        let mut held = self.held.lock();
        held.reserved = held.reserved.less(price);
    }

    /// So much was spent.
    pub fn spend(&self, price: Dollars, now_micros: u64) {
        let mut held = self.held.lock();
        self.turn(&mut held, now_micros);
        held.spent += price;
        let known = held.all_granted.less(held.granted) + held.spent;
        if self.cap.mode == Mode::Warn && known > self.cap.usable() {
            held.counts.beyond += price.min(known.less(self.cap.usable()));
        }
    }

    /// Whether this process has spent more than it was granted, and there may be more to be had.
    #[must_use]
    pub fn owes(&self, now_micros: u64) -> bool {
        let mut held = self.held.lock();
        self.turn(&mut held, now_micros);
        !held.dry && held.spent > held.granted
    }

    /// How much to ask for, if it is time to: less than half a slice is left, or than `price`,
    /// which is to be spent.
    #[must_use]
    pub fn wants(&self, price: Dollars, now_micros: u64) -> Option<Dollars> {
        let mut held = self.held.lock();
        self.turn(&mut held, now_micros);
        let slice = self.cap.slice();
        let left = held.granted.less(held.spent + held.reserved);
        // Who spent more than it had takes that as well.
        let missing = (held.spent + held.reserved).less(held.granted);
        (!held.dry && left < price.max(slice.part(1, 2))).then_some(price.max(slice) + missing)
    }

    /// A slice came: `amount` for this process, `all` for all of them in this window. Nothing means
    /// that nothing is left.
    pub fn grant(&self, window: Window, amount: Dollars, all: Dollars, now_micros: u64) {
        let mut held = self.held.lock();
        self.turn(&mut held, now_micros);
        if held.window != window {
            return;
        }
        held.granted += amount;
        held.all_granted = all;
        held.dry = self.cap.mode == Mode::Enforce && all >= self.cap.usable();
    }
}

/// Why something was refused, for the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The cap.
    pub cap: Cap,
    /// What was asked for.
    pub class: Class,
    /// What it would have cost.
    pub price: Dollars,
    /// When the window ends, microseconds since 1970.
    pub resets_micros: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cap(mode: Mode, limit_nanos: u64, reserve_percent: u8) -> Cap {
        Cap {
            oid: 1,
            name: "c".to_owned(),
            subject: Subject::Role("r".to_owned()),
            per: Per::Hour,
            mode,
            limit_nanos,
            reserve_percent,
        }
    }

    const HOUR: u64 = 3_600_000_000;

    #[test]
    fn windows_are_those_of_the_calendar() {
        // 2024-02-29 23:59:59.5 UTC
        let now = 1_709_251_199_500_000;
        let micros = |text: &str| {
            u64::try_from(DateTime::parse_from_rfc3339(text).expect("time").timestamp_micros())
                .expect("after 1970")
        };
        let window = |per: Per| (per.window(now).begin_micros, per.window(now).end_micros);
        let (midnight, march) = (micros("2024-02-29T00:00:00Z"), micros("2024-03-01T00:00:00Z"));
        assert_eq!(window(Per::Hour), (micros("2024-02-29T23:00:00Z"), march));
        assert_eq!(window(Per::Day), (midnight, march));
        assert_eq!(window(Per::Month), (micros("2024-02-01T00:00:00Z"), march));
    }

    #[test]
    fn window_that_another_clock_has_begun_is_not_left_again() {
        let (before, after) = (Per::Hour.window(HOUR), Per::Hour.window(2 * HOUR));
        assert_eq!(after.or_begun(before, Per::Hour), after, "time goes on");
        assert_eq!(before.or_begun(after, Per::Hour), after, "a clock that is behind");
        assert_eq!(before.or_begun(Window::default(), Per::Hour), before, "nothing was handed out");
        let day = Per::Day.window(HOUR);
        assert_eq!(day.or_begun(after, Per::Day), day, "the cap was per hour then");

        // Two processes, an hour apart by their clocks, take turns: both together get what two
        // windows allow.
        let cap = cap(Mode::Enforce, 1000, 0);
        let purses = [Purse::new(cap.clone()), Purse::new(cap.clone())];
        let (mut stored, mut granted) = (Window::default(), Dollars::ZERO);
        let mut all = Dollars::ZERO;
        for turn in 0..200 {
            let (purse, now) = (&purses[turn % 2], HOUR * (1 + turn as u64 % 2));
            let own = Per::Hour.window(now);
            let Some(wanted) = purse.wants(cap.slice(), now) else { continue };
            let window = own.or_begun(stored, Per::Hour);
            if window != stored {
                (stored, granted) = (window, Dollars::ZERO);
            }
            let amount = cap.hands_out(granted, wanted);
            granted += amount;
            all += amount;
            purse.grant(own, amount, granted, now);
            purse.spend(amount, now);
        }
        assert!(all <= cap.usable() + cap.usable(), "{all:?}");
    }

    #[test]
    fn role_pays_whatever_it_acts_as() {
        let payer = |login, role| Payer { login, role, database: "d", application: "", text: "" };
        let cap = Subject::Role("bob".to_owned());
        assert!(cap.covers(&payer("bob", "bob")) && cap.covers(&payer("bob", "staff")));
        assert!(cap.covers(&payer("pool", "bob")) && !cap.covers(&payer("ada", "staff")));
    }

    #[test]
    fn patterns_match_as_like_does() {
        assert!(like("update items%", "UPDATE items SET a = $1"));
        assert!(like("%items%", "select * from items"));
        assert!(like("_elect%", "SELECT 1") && like("%", "") && like("a%b%c", "aXbYbZc"));
        assert!(!like("update%", "SELECT 1") && !like("a", "ab") && !like("a_", "a"));
    }

    #[test]
    fn reads_are_slowed_before_they_are_refused_and_writes_are_refused_at_once() {
        let purse = Purse::new(cap(Mode::Enforce, 1000, 0));
        let (unit, now) = (Dollars(1_000_000_000), HOUR);
        assert_eq!(purse.ask(Class::Write, unit, 0, now), Verdict::Ask);
        let window = Per::Hour.window(now);
        purse.grant(window, purse.cap.usable(), purse.cap.usable(), now);
        assert_eq!(purse.ask(Class::ColdRead, unit, 0, now), Verdict::Go);
        purse.spend(Dollars(unit.0 * 950), now);
        assert!(matches!(purse.ask(Class::ColdRead, unit, 0, now), Verdict::Slow(_)));
        assert_eq!(purse.ask(Class::ColdRead, unit, 1, now), Verdict::Go, "after its wait");
        assert_eq!(purse.ask(Class::Write, unit, 0, now), Verdict::Go);
        purse.spend(Dollars(unit.0 * 50), now);
        assert_eq!(purse.ask(Class::ColdRead, unit, 1, now), Verdict::Refuse);
        assert_eq!(purse.ask(Class::Write, unit, 0, now), Verdict::Refuse);
        // The next window begins anew.
        assert_eq!(purse.ask(Class::Write, unit, 0, now + HOUR), Verdict::Ask);
        assert_eq!(purse.held(now + HOUR).spent, Dollars::ZERO);
    }

    #[test]
    fn warning_cap_counts_what_it_would_have_done() {
        let purse = Purse::new(cap(Mode::Warn, 10, 0));
        let (unit, now) = (Dollars(1_000_000_000), HOUR);
        for _ in 0..15 {
            let verdict = purse.ask(Class::Write, unit, 0, now);
            assert!(matches!(verdict, Verdict::Go | Verdict::Warn), "{verdict:?}");
            purse.spend(unit, now);
        }
        let counts = purse.held(now).counts;
        assert_eq!((counts.writes, counts.beyond), (5, Dollars(unit.0 * 5)));
    }

    proptest! {
        /// Several processes take slices from one cap and spend as they are let.
        #[test]
        fn cap_is_not_overshot_by_more_than_a_slice(
            limit in 1_000_u64..10_000_000,
            reserve in 0_u8..50,
            steps in prop::collection::vec((0_usize..3, 1_u64..200, any::<bool>()), 1..400),
        ) {
            let cap = cap(Mode::Enforce, limit, reserve);
            let slice = cap.slice();
            let purses: Vec<Purse> = (0..3).map(|_| Purse::new(cap.clone())).collect();
            let (now, window) = (HOUR, Per::Hour.window(HOUR));
            let (mut granted, mut spent) = (Dollars::ZERO, Dollars::ZERO);
            for (who, sixtieths, write) in steps {
                let purse = &purses[who];
                let price = slice.part(sixtieths, 60);
                if let Some(wanted) = purse.wants(price, now) {
                    let amount = cap.hands_out(granted, wanted);
                    granted += amount;
                    purse.grant(window, amount, granted, now);
                }
                let class = if write { Class::Write } else { Class::ColdRead };
                if matches!(purse.ask(class, price, 1, now), Verdict::Go) {
                    purse.spend(price, now);
                    spent += price;
                }
                prop_assert!(granted <= cap.usable());
                prop_assert!(spent <= cap.usable() + slice, "{:?} of {:?}", spent, cap.usable());
            }
        }
    }
}
