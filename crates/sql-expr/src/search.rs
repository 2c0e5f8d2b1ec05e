//! Searches by regular expressions that can be ended.
//!
//! The engine searches in one call that nothing stops, and a text may have 256 MB. Where that could
//! take long, its automaton is walked here, byte by byte, with a look at the statement's flags now
//! and then; the engine itself is asked only about what has been found.
//!
//! ```text
//! little work ───────────────────────────────────> engine
//! much ── forward walk: where does it end? ── near ─> engine, from where the search began
//!               │ nowhere: no match           └ far ─> backward walk: where does it begin? ─> engine, between the two
//! ```
//!
//! # Invariants
//! Where a match begins is where the engine says. Where it ends, and what its groups hold, is told
//! by `posix`, but for expressions in which there is nothing to choose.
//!
//! # On failure
//! 2201B where only the engine could search (a word boundary beside a letter that is not ASCII), or
//! tell the groups of a match, with too much work; those of [`interrupt::check`].

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use regex::{Regex, RegexBuilder};
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::hybrid::regex::Regex as Automata;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, hybrid, meta};

use crate::fault;
use crate::posix::{self, Posix};
use telesto_sql_types::error::Result;
use telesto_sql_types::interrupt;

/// Bytes times states that the engine may search in one call: some 50 ms without luck.
const FREE_WORK: u64 = 8 << 20;
/// The same where there is no other way.
const MOST_WORK: u64 = 400_000_000;
/// The same of a match whose groups are asked for.
const MOST_GROUPED: u64 = 64_000_000;
/// A match that was found so near is told by the engine, bytes.
const NEAR: usize = 64 << 10;
/// Bytes between two looks.
const BYTES_A_LOOK: usize = 4096;

/// A regular expression as the engine takes it.
#[derive(Clone, Debug)]
pub(super) struct Syntax {
    pub source: String,
    pub insensitive: bool,
    /// `^` and `$` are at the lines' ends, too.
    pub multi_line: bool,
    /// `.` is a line's end, too.
    pub dot_all: bool,
    pub extended: bool,
    /// About how many states it has.
    pub states: u64,
}

impl Syntax {
    /// For the engine.
    pub fn build(&self) -> std::result::Result<Regex, regex::Error> {
        RegexBuilder::new(&self.source)
            .case_insensitive(self.insensitive)
            .multi_line(self.multi_line)
            .dot_matches_new_line(self.dot_all)
            .ignore_whitespace(self.extended)
            .size_limit(4 << 20)
            .build()
    }

    fn config(&self) -> syntax::Config {
        syntax::Config::new()
            .case_insensitive(self.insensitive)
            .multi_line(self.multi_line)
            .dot_matches_new_line(self.dot_all)
            .ignore_whitespace(self.extended)
    }
}

/// A compiled regular expression. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Search(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    syntax: Syntax,
    engine: Regex,
    /// Made for the first long search; `None`: it cannot be walked.
    walks: OnceLock<Option<Walks>>,
    /// What tells PostgreSQL's match from the engine's; `None`: they are the same, or it cannot be
    /// told.
    posix: OnceLock<Option<Posix>>,
}

/// What long searches take.
#[derive(Debug)]
struct Walks {
    automata: Automata,
    groups: meta::Regex,
    forward: Mutex<Cache>,
    backward: Mutex<Cache>,
}

/// A match: what it spans, and what each of its groups does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found(Vec<Option<Range<usize>>>);

impl Found {
    /// What group `at` spans; 0 is the whole match.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<Range<usize>> {
        self.0.get(at).cloned().flatten()
    }

    /// What the whole match spans.
    #[must_use]
    pub fn whole(&self) -> Range<usize> {
        self.get(0).unwrap_or_default()
    }

    /// The groups; without any, the whole match.
    pub fn groups(&self) -> impl Iterator<Item = Option<Range<usize>>> {
        self.0.iter().skip(usize::from(self.0.len() > 1)).cloned()
    }
}

/// How a walk ended.
enum Walked {
    /// Nothing matches.
    Nowhere,
    /// There is a match whose end, or begin, is at `at`; the walk came as far as `seen`.
    Found { at: usize, seen: usize },
    /// The automaton cannot tell.
    Unknown,
}

impl Search {
    pub(super) fn new(syntax: Syntax) -> std::result::Result<Self, regex::Error> {
        let engine = syntax.build()?;
        Ok(Self(Arc::new(Inner { syntax, engine, walks: OnceLock::new(), posix: OnceLock::new() })))
    }

    /// Whether there is a match.
    ///
    /// # Errors
    /// See above.
    pub fn is_match(&self, text: &str) -> Result<bool> {
        if self.work(text.len()) <= FREE_WORK {
            return Ok(self.0.engine.is_match(text));
        }
        match self.end_of_first(text, 0)? {
            Walked::Nowhere => Ok(false),
            Walked::Found { .. } => Ok(true),
            Walked::Unknown => {
                self.within(text.len(), MOST_WORK)?;
                Ok(self.0.engine.is_match(text))
            }
        }
    }

    /// The first match at or behind byte `from`: of those that begin there the longest, as a rule.
    ///
    /// # Errors
    /// See above.
    pub fn find(&self, text: &str, from: usize) -> Result<Option<Found>> {
        let Some(first) = self.first(text, from)? else { return Ok(None) };
        let Some(posix) = self.posix() else { return Ok(Some(first)) };
        let begin = first.whole().start;
        let Some(end) = posix.end(text, begin)? else { return Ok(Some(first)) };
        if self.0.engine.captures_len() == 1 {
            return Ok(Some(Found(vec![Some(begin..end)])));
        }
        Ok(Some(posix.groups(text, begin..end)?.map_or(first, Found)))
    }

    fn posix(&self) -> Option<&Posix> {
        let make = || {
            let syntax = &self.0.syntax;
            if syntax.states > posix::MOST_STATES {
                return None;
            }
            let posix = Posix::new(&syntax.source, syntax.extended, syntax.config())?;
            (!posix.is_simple()).then_some(posix)
        };
        self.0.posix.get_or_init(make).as_ref()
    }

    /// The engine's first match at or behind byte `from`.
    fn first(&self, text: &str, from: usize) -> Result<Option<Found>> {
        if self.work(text.len().saturating_sub(from)) <= FREE_WORK {
            return Ok(self.by_engine(text, from));
        }
        let (end, seen) = match self.end_of_first(text, from)? {
            Walked::Nowhere => return Ok(None),
            Walked::Found { at, seen } => (at, seen),
            Walked::Unknown => {
                self.within(text.len() - from, MOST_WORK)?;
                return Ok(self.by_engine(text, from));
            }
        };
        if self.work(seen - from) <= FREE_WORK && seen - from <= NEAR {
            return Ok(self.by_engine(text, from));
        }
        self.between(text, from, end)
    }

    /// The first match, which ends at `end`.
    fn between(&self, text: &str, from: usize, end: usize) -> Result<Option<Found>> {
        let begin = match self.walks() {
            Some(walks) => walks.begin(text, from, end)?,
            None => Walked::Unknown,
        };
        let (Some(walks), Walked::Found { at: begin, .. }) = (self.walks(), begin) else {
            self.within(text.len() - from, MOST_WORK)?;
            return Ok(self.by_engine(text, from));
        };
        if self.0.engine.captures_len() == 1 {
            return Ok(Some(Found(vec![Some(begin..end)])));
        }
        self.within(end - begin, MOST_GROUPED)?;
        let mut captures = walks.groups.create_captures();
        let input = Input::new(text).range(begin..end).anchored(Anchored::Yes);
        walks.groups.captures(input, &mut captures);
        if !captures.is_match() {
            return Ok(self.by_engine(text, from));
        }
        let groups = (0..captures.group_len())
            .map(|group| captures.get_group(group).map(|span| span.start..span.end));
        Ok(Some(Found(groups.collect())))
    }

    fn by_engine(&self, text: &str, from: usize) -> Option<Found> {
        let captures = self.0.engine.captures_at(text, from)?;
        Some(Found(captures.iter().map(|group| group.map(|group| group.range())).collect()))
    }

    fn work(&self, bytes: usize) -> u64 {
        self.0.syntax.states.max(1).saturating_mul(bytes as u64)
    }

    fn within(&self, bytes: usize, most: u64) -> Result<()> {
        if self.work(bytes) <= most { Ok(()) } else { Err(too_complex()) }
    }

    fn walks(&self) -> Option<&Walks> {
        self.0.walks.get_or_init(|| Walks::new(&self.0.syntax)).as_ref()
    }

    fn end_of_first(&self, text: &str, from: usize) -> Result<Walked> {
        match self.walks() {
            Some(walks) => walks.end(text, from),
            None => Ok(Walked::Unknown),
        }
    }
}

/// The refusal of a search that could take minutes and could not be ended.
pub(super) fn too_complex() -> telesto_sql_types::error::Error {
    fault::error("2201B", "invalid regular expression: regular expression is too complex")
        .hint("Its counted repetitions multiply; search shorter texts, or repeat less.")
}

impl Walks {
    fn new(syntax: &Syntax) -> Option<Self> {
        let config = DFA::config().unicode_word_boundary(true).skip_cache_capacity_check(true);
        let automata = hybrid::regex::Builder::new()
            .syntax(syntax.config())
            .dfa(config)
            .build(&syntax.source)
            .ok()?;
        let groups = meta::Builder::new().syntax(syntax.config()).build(&syntax.source).ok()?;
        let forward = Mutex::new(automata.forward().create_cache());
        let backward = Mutex::new(automata.reverse().create_cache());
        Some(Self { automata, groups, forward, backward })
    }

    /// Where the first match at or behind `from` ends.
    fn end(&self, text: &str, from: usize) -> Result<Walked> {
        let (dfa, cache) = (self.automata.forward(), &mut *self.forward.lock());
        let Ok(mut state) = dfa.start_state_forward(cache, &Input::new(text).range(from..)) else {
            return Ok(Walked::Unknown);
        };
        let mut found = None;
        for (at, byte) in text.as_bytes().iter().enumerate().skip(from) {
            if at % BYTES_A_LOOK == 0 {
                interrupt::check()?;
            }
            match step(dfa, cache, state, *byte) {
                Some(next) => state = next,
                None => return Ok(Walked::Unknown),
            }
            if state.is_match() {
                // A match is told one byte late.
                found = Some(at);
            } else if state.is_dead() {
                return Ok(told(text, found, at));
            }
        }
        match dfa.next_eoi_state(cache, state) {
            Ok(state) if state.is_match() => Ok(told(text, Some(text.len()), text.len())),
            Ok(_) => Ok(told(text, found, text.len())),
            Err(_) => Ok(Walked::Unknown),
        }
    }

    /// Where the match that ends at `end` begins, not before `from`.
    fn begin(&self, text: &str, from: usize, end: usize) -> Result<Walked> {
        let (dfa, cache) = (self.automata.reverse(), &mut *self.backward.lock());
        let input = Input::new(text).range(from..end).anchored(Anchored::Yes);
        let Ok(mut state) = dfa.start_state_reverse(cache, &input) else {
            return Ok(Walked::Unknown);
        };
        let mut found = None;
        for at in (from..end).rev() {
            if at % BYTES_A_LOOK == 0 {
                interrupt::check()?;
            }
            match step(dfa, cache, state, text.as_bytes()[at]) {
                Some(next) => state = next,
                None => return Ok(Walked::Unknown),
            }
            if state.is_match() {
                found = Some(at + 1);
            } else if state.is_dead() {
                return Ok(told(text, found, at));
            }
        }
        let last = match from.checked_sub(1) {
            Some(before) => step(dfa, cache, state, text.as_bytes()[before]),
            None => dfa.next_eoi_state(cache, state).ok(),
        };
        match last {
            Some(state) if state.is_match() => Ok(told(text, Some(from), from)),
            Some(_) => Ok(told(text, found, from)),
            None => Ok(Walked::Unknown),
        }
    }
}

/// The next state; `None`: the automaton gives up.
fn step(dfa: &DFA, cache: &mut Cache, state: LazyStateID, byte: u8) -> Option<LazyStateID> {
    dfa.next_state(cache, state, byte).ok().filter(|state| !state.is_quit())
}

/// An empty match may stand inside of a character, where the engine goes on: it is left to it.
fn told(text: &str, found: Option<usize>, seen: usize) -> Walked {
    match found {
        None => Walked::Nowhere,
        Some(at) if text.is_char_boundary(at) => Walked::Found { at, seen },
        Some(_) => Walked::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn search(source: &str) -> Search {
        let syntax = Syntax {
            source: source.to_owned(),
            insensitive: false,
            multi_line: false,
            dot_all: true,
            extended: false,
            states: 20,
        };
        Search::new(syntax).expect("compiles")
    }

    /// What walks find, whatever the work.
    fn walked(search: &Search, text: &str, from: usize) -> Option<Option<Found>> {
        match search.end_of_first(text, from).expect("no end") {
            Walked::Nowhere => Some(None),
            Walked::Found { at, .. } => Some(search.between(text, from, at).expect("no end")),
            Walked::Unknown => None,
        }
    }

    const PATTERNS: [&str; 14] = [
        "a",
        "ab|a",
        "a|ab",
        "(a*)(b)?",
        "^b+",
        "b+$",
        r"\bab\b",
        "(a|(b))*",
        "ä.",
        "",
        "x*",
        "a.*b",
        "(?:a(b)|c)+",
        r"(\w)\s(\w)",
    ];

    proptest! {
        #[test]
        fn walks_find_what_the_engine_finds(
            which in 0..PATTERNS.len(),
            text in "[abcä \n]{0,12}",
            from in 0_usize..12,
        ) {
            let search = search(PATTERNS[which]);
            let from = (0..=from.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            if let Some(found) = walked(&search, &text, from) {
                prop_assert_eq!(found, search.by_engine(&text, from), "{} in {:?} from {}", PATTERNS[which], text, from);
            }
        }
    }

    #[test]
    fn matches_are_those_of_postgres() {
        for (pattern, text, expected) in [
            ("f|foo|foob", "foobar", &["foob"][..]),
            ("a|ab|aaab", "aaab", &["aaab"]),
            ("(a|ab)(c|bcd)(d*)", "abcd", &["abcd", "ab", "c", "d"]),
            ("Y*([0-9]{1,3})", "XY1234Z", &["Y123", "123"]),
            ("Y*?([0-9]{1,3})", "XY1234Z", &["Y1", "1"]),
            ("(?:(.*?)([0-9]+)(.*)){1,1}", "abc01234xyz", &["abc01234xyz", "abc", "01234", "xyz"]),
            ("(.*)([0-9]+)(.*)", "abc01234xyz", &["abc01234xyz", "abc0123", "4", "xyz"]),
            ("(.*?)([0-9]+)(.*)", "abc01234xyz", &["abc0", "abc", "0", ""]),
            ("(a|b|ab)*c", "abc", &["abc", "ab"]),
            ("(a?)(ab)?", "ab", &["ab", "", "ab"]),
            ("(x)|(xy)", "xy", &["xy", "-", "xy"]),
            ("ä(é|éü)", "äéü", &["äéü", "éü"]),
            ("a{2}?b+", "aabb", &["aabb"]),
            ("(a+|b+)*?c", "abc", &["abc", "b"]),
        ] {
            let found = search(pattern).find(text, 0).expect("no end").expect(pattern);
            let shown: Vec<&str> =
                found.0.iter().map(|span| span.clone().map_or("-", |span| &text[span])).collect();
            assert_eq!(shown, expected, "{pattern}");
        }
        assert!(search("ab*").posix().is_none() && search("a(b|bc)").posix().is_some());
    }

    #[test]
    fn long_text_is_walked_and_its_groups_are_told() {
        let text = format!("{}xay{}", "b".repeat(3 << 20), "b".repeat(1 << 20));
        let search = search("x(a)y(b*)");
        assert!(search.work(text.len()) > FREE_WORK);
        let found = search.find(&text, 0).expect("found").expect("a match");
        assert_eq!(found, search.by_engine(&text, 0).expect("a match"));
        assert!(search.is_match(&text).expect("searched"));
        assert_eq!(search.find(&text, text.len() - 5).expect("searched"), None);
    }

    #[test]
    fn search_of_a_long_text_ends_when_told() {
        let text = "ab".repeat(8 << 20);
        let shared = Arc::new(interrupt::Shared::default());
        shared.begin(1, None);
        shared.cancel();
        let search = search("[ab]*a[ab]{12}c");
        let ended = interrupt::within(&shared, || search.is_match(&text));
        assert_eq!(ended.expect_err("ended").code().0, "57014");
        let ended = interrupt::within(&shared, || search.find(&text, 0));
        assert_eq!(ended.expect_err("ended").code().0, "57014");
    }
}
