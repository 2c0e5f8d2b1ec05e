//! Which match PostgreSQL means: the longest of the leftmost, not the first alternative's.
//!
//! The engine finds where the leftmost match begins. How far it goes, and what its groups hold, is
//! told here, with one automaton that knows all matches for each part of the expression that is
//! asked about.
//!
//! ```text
//! engine: begin ──> whole expression: longest (or shortest) end ──> parts, from left to right:
//!                                                                   each as long (or short) as lets the rest match
//! ```
//!
//! # Invariants
//! - An expression prefers the longest match, or the shortest if its first quantified part is not
//!   greedy; alternatives always the longest (PostgreSQL 15 manual, 9.7.3.5). So does each part
//!   within what those before it leave.
//! - Every part's automaton is made when it is first asked for, and kept with the expression.
//!
//! # On failure
//! Where an automaton cannot tell (a word boundary beside a letter that is not ASCII, flags inside
//! of the expression), the caller keeps what the engine found.
//!
//! # Limits
//! An expression of more than [`MOST_STATES`] states is left to the engine.

use std::ops::Range;
use std::sync::OnceLock;

use parking_lot::Mutex;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::ast::{self, Ast, GroupKind, RepetitionKind, RepetitionRange};

use telesto_sql_types::error::Result;
use telesto_sql_types::interrupt;

/// States of an expression that is taken apart here.
pub(crate) const MOST_STATES: u64 = 10_000;
/// Bytes between two looks.
const BYTES_A_LOOK: usize = 4096;

/// What a part prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefers {
    Longest,
    Shortest,
}

/// The automaton of a part.
#[derive(Debug)]
struct Automaton {
    source: String,
    made: OnceLock<Option<(DFA, Mutex<Cache>)>>,
}

#[derive(Debug)]
enum Kind {
    /// Nothing inside is asked about.
    Leaf,
    /// Parts one after the other; of each, the automaton of all from it on.
    Concat(Vec<Node>, Vec<Automaton>),
    Alternatives(Vec<Node>),
    Repeat {
        least: u32,
        most: Option<u32>,
        of: Box<Node>,
    },
    Group(usize, Box<Node>),
    /// A group without a number.
    Plain(Box<Node>),
}

#[derive(Debug)]
struct Node {
    kind: Kind,
    automaton: Automaton,
    prefers: Option<Prefers>,
    /// There is a group with a number inside.
    grouped: bool,
}

/// An expression as PostgreSQL matches it.
#[derive(Debug)]
pub(crate) struct Posix {
    root: Node,
    config: syntax::Config,
    groups: usize,
}

type Groups = Vec<Option<Range<usize>>>;

/// The automaton gave up.
struct Unknown;

enum Stop {
    Unknown,
    Ended(telesto_sql_types::error::Error),
}

impl From<Unknown> for Stop {
    fn from(_: Unknown) -> Self {
        Self::Unknown
    }
}

impl Automaton {
    fn of(source: &str) -> Self {
        Self { source: source.to_owned(), made: OnceLock::new() }
    }

    fn made(&self, config: &syntax::Config) -> std::result::Result<&(DFA, Mutex<Cache>), Unknown> {
        let made = self.made.get_or_init(|| {
            let mut compiler = thompson::Compiler::new();
            compiler.syntax(*config);
            let nfa = compiler.build(&self.source).ok()?;
            let automaton = DFA::config()
                .match_kind(MatchKind::All)
                .unicode_word_boundary(true)
                .skip_cache_capacity_check(true);
            let dfa = DFA::builder().configure(automaton).build_from_nfa(nfa).ok()?;
            let cache = dfa.create_cache();
            Some((dfa, Mutex::new(cache)))
        });
        made.as_ref().ok_or(Unknown)
    }

    /// Tells `each` the ends of matches from `begin` on, none behind `limit`, from near to far,
    /// until it says that it has enough.
    fn ends(
        &self,
        config: &syntax::Config,
        text: &str,
        begin: usize,
        limit: usize,
        mut each: impl FnMut(usize) -> bool,
    ) -> std::result::Result<(), Stop> {
        let (dfa, cache) = self.made(config)?;
        let cache = &mut *cache.lock();
        let input = Input::new(text).range(begin..limit).anchored(Anchored::Yes);
        let mut state = dfa.start_state_forward(cache, &input).map_err(|_| Unknown)?;
        let mut told = |at: usize| text.is_char_boundary(at) && each(at);
        for (at, byte) in text.as_bytes().iter().enumerate().take(limit).skip(begin) {
            if at % BYTES_A_LOOK == 0 {
                interrupt::check().map_err(Stop::Ended)?;
            }
            state = dfa.next_state(cache, state, *byte).map_err(|_| Unknown)?;
            if state.is_quit() {
                return Err(Stop::Unknown);
            }
            // A match is told one byte late.
            if state.is_match() && told(at) {
                return Ok(());
            }
            if state.is_dead() {
                return Ok(());
            }
        }
        let last = match text.as_bytes().get(limit) {
            Some(byte) => dfa.next_state(cache, state, *byte),
            None => dfa.next_eoi_state(cache, state),
        };
        let last = last.map_err(|_| Unknown)?;
        if last.is_quit() {
            return Err(Stop::Unknown);
        }
        if last.is_match() {
            told(limit);
        }
        Ok(())
    }

    fn spans(
        &self,
        config: &syntax::Config,
        text: &str,
        span: &Range<usize>,
    ) -> std::result::Result<bool, Stop> {
        let mut found = false;
        self.ends(config, text, span.start, span.end, |at| {
            found |= at == span.end;
            false
        })?;
        Ok(found)
    }
}

impl Node {
    /// Leaves the groups inside without a match.
    fn forget(&self, groups: &mut Groups) {
        match &self.kind {
            Kind::Leaf => {}
            Kind::Group(at, of) => {
                groups[*at] = None;
                of.forget(groups);
            }
            Kind::Plain(of) | Kind::Repeat { of, .. } => of.forget(groups),
            Kind::Alternatives(parts) | Kind::Concat(parts, _) => {
                parts.iter().for_each(|part| part.forget(groups));
            }
        }
    }
}

impl Posix {
    /// An expression in the engine's syntax; `None`: it is left to the engine.
    pub(crate) fn new(source: &str, verbose: bool, config: syntax::Config) -> Option<Self> {
        let mut parser = ast::parse::ParserBuilder::new().ignore_whitespace(verbose).build();
        let tree = parser.parse(source).ok()?;
        let mut groups = 0;
        let root = node(&tree, source, &mut groups)?;
        Some(Self { root, config, groups })
    }

    /// Whether the engine's match is PostgreSQL's, whatever the text: nothing but one greedy
    /// repetition has a choice.
    pub(crate) fn is_simple(&self) -> bool {
        fn choices(node: &Node, inside: bool) -> u32 {
            match &node.kind {
                Kind::Leaf if node.prefers.is_some() => {
                    if inside {
                        2
                    } else {
                        1
                    }
                }
                Kind::Leaf => 0,
                Kind::Alternatives(_) => 2,
                Kind::Concat(parts, _) => parts.iter().map(|part| choices(part, inside)).sum(),
                Kind::Repeat { of, .. } => 1 + u32::from(inside) + choices(of, true),
                Kind::Group(_, of) | Kind::Plain(of) => choices(of, inside),
            }
        }
        self.root.prefers != Some(Prefers::Shortest) && choices(&self.root, false) < 2
    }

    /// Where a match that begins at `begin` ends; `None`: not known.
    ///
    /// # Errors
    /// Those of the statement's end.
    pub(crate) fn end(&self, text: &str, begin: usize) -> Result<Option<usize>> {
        let mut end = None;
        let shortest = self.root.prefers == Some(Prefers::Shortest);
        let walked = self.root.automaton.ends(&self.config, text, begin, text.len(), |at| {
            end = Some(at);
            shortest
        });
        known(walked.map(|()| end)).map(Option::flatten)
    }

    /// What the groups of a match hold; `None`: not known.
    ///
    /// # Errors
    /// Those of the statement's end.
    pub(crate) fn groups(&self, text: &str, span: Range<usize>) -> Result<Option<Groups>> {
        let mut groups = vec![None; self.groups + 1];
        groups[0] = Some(span.clone());
        let found = self.take_apart(&self.root, text, span, &mut groups);
        Ok(known(found)?.filter(|found| *found).map(|_| groups))
    }

    /// Finds what the groups inside of `node` hold where it spans `span`; false: it cannot.
    fn take_apart(
        &self,
        node: &Node,
        text: &str,
        span: Range<usize>,
        groups: &mut Groups,
    ) -> std::result::Result<bool, Stop> {
        interrupt::check().map_err(Stop::Ended)?;
        if !node.grouped {
            return Ok(true);
        }
        match &node.kind {
            Kind::Leaf => Ok(true),
            Kind::Group(at, of) => {
                groups[*at] = Some(span.clone());
                self.take_apart(of, text, span, groups)
            }
            Kind::Plain(of) => self.take_apart(of, text, span, groups),
            Kind::Alternatives(parts) => {
                for part in parts {
                    if part.automaton.spans(&self.config, text, &span)?
                        && self.take_apart(part, text, span.clone(), groups)?
                    {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Kind::Concat(parts, tails) => self.take_concat(parts, &tails[1..], text, span, groups),
            Kind::Repeat { least, most, of } => {
                let mut dead = Vec::new();
                let bounds = (*least, *most);
                self.take_repeat(of, bounds, text, span, groups, 0, &mut dead)
            }
        }
    }

    fn take_concat(
        &self,
        parts: &[Node],
        tails: &[Automaton],
        text: &str,
        span: Range<usize>,
        groups: &mut Groups,
    ) -> std::result::Result<bool, Stop> {
        let [first, rest @ ..] = parts else { return Ok(span.is_empty()) };
        let Some((tail, tails)) = tails.split_first() else {
            return self.take_apart(first, text, span, groups);
        };
        for middle in self.choices(first, text, &span)? {
            if tail.spans(&self.config, text, &(middle..span.end))? {
                let before = groups.clone();
                if self.take_apart(first, text, span.start..middle, groups)?
                    && self.take_concat(rest, tails, text, middle..span.end, groups)?
                {
                    return Ok(true);
                }
                *groups = before;
            }
        }
        Ok(false)
    }

    /// Repetitions of `of` that span `span`, `count` of them done; `dead`: places from which it is
    /// known to fail.
    #[allow(clippy::too_many_arguments, reason = "a search with its state")]
    fn take_repeat(
        &self,
        of: &Node,
        (least, most): (u32, Option<u32>),
        text: &str,
        span: Range<usize>,
        groups: &mut Groups,
        count: u32,
        dead: &mut Vec<(usize, u32)>,
    ) -> std::result::Result<bool, Stop> {
        if span.is_empty() && count >= least && (count > 0 || least == 0) {
            // No repetition at all leaves the groups unset; one that is empty sets them, where
            // there can be one.
            if count == 0 && most != Some(0) && of.automaton.spans(&self.config, text, &span)? {
                let before = groups.clone();
                if !self.take_apart(of, text, span, groups)? {
                    *groups = before;
                }
            }
            return Ok(true);
        }
        let state = (span.start, if most.is_some() { count } else { count.min(least) });
        if most == Some(count) || dead.contains(&state) {
            return Ok(false);
        }
        for middle in self.choices(of, text, &span)? {
            // An empty repetition helps only to reach the least number.
            if middle == span.start && count >= least {
                continue;
            }
            let before = groups.clone();
            // What the repetition before left in the groups is not this one's.
            of.forget(groups);
            if self.take_apart(of, text, span.start..middle, groups)?
                && self.take_repeat(
                    of,
                    (least, most),
                    text,
                    middle..span.end,
                    groups,
                    count + 1,
                    dead,
                )?
            {
                return Ok(true);
            }
            *groups = before;
        }
        dead.push(state);
        Ok(false)
    }

    /// Where a part that begins with `span` may end, what it prefers first.
    fn choices(
        &self,
        part: &Node,
        text: &str,
        span: &Range<usize>,
    ) -> std::result::Result<Vec<usize>, Stop> {
        let mut ends = Vec::new();
        part.automaton.ends(&self.config, text, span.start, span.end, |at| {
            ends.push(at);
            false
        })?;
        if part.prefers != Some(Prefers::Shortest) {
            ends.reverse();
        }
        Ok(ends)
    }
}

fn known<T>(found: std::result::Result<T, Stop>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Stop::Unknown) => Ok(None),
        Err(Stop::Ended(error)) => Err(error),
    }
}

fn part<'s>(source: &'s str, from: &ast::Span, to: &ast::Span) -> &'s str {
    source.get(from.start.offset..to.end.offset).unwrap_or("")
}

/// `None` for flags inside of the expression, which the source of a part would lack.
fn node(tree: &Ast, source: &str, groups: &mut usize) -> Option<Node> {
    let automaton = Automaton::of(part(source, tree.span(), tree.span()));
    let (kind, prefers, grouped) = match tree {
        Ast::Flags(_) => return None,
        Ast::Empty(_)
        | Ast::Literal(_)
        | Ast::Dot(_)
        | Ast::Assertion(_)
        | Ast::ClassUnicode(_)
        | Ast::ClassPerl(_)
        | Ast::ClassBracketed(_) => (Kind::Leaf, None, false),
        Ast::Group(group) => {
            let number = match &group.kind {
                GroupKind::CaptureIndex(at) => Some(*at as usize),
                GroupKind::NonCapturing(flags) if flags.items.is_empty() => None,
                GroupKind::NonCapturing(_) | GroupKind::CaptureName { .. } => return None,
            };
            *groups = number.map_or(*groups, |at| (*groups).max(at));
            let of = Box::new(node(&group.ast, source, groups)?);
            let prefers = of.prefers;
            match number {
                Some(at) => (Kind::Group(at, of), prefers, true),
                None => {
                    let grouped = of.grouped;
                    (Kind::Plain(of), prefers, grouped)
                }
            }
        }
        Ast::Alternation(alternatives) => {
            let parts = alternatives.asts.iter().map(|tree| node(tree, source, groups));
            let parts = parts.collect::<Option<Vec<_>>>()?;
            let grouped = parts.iter().any(|part| part.grouped);
            (Kind::Alternatives(parts), Some(Prefers::Longest), grouped)
        }
        Ast::Concat(concat) => {
            let parts = concat.asts.iter().map(|tree| node(tree, source, groups));
            let parts = parts.collect::<Option<Vec<_>>>()?;
            let tails = concat
                .asts
                .iter()
                .map(|tree| Automaton::of(part(source, tree.span(), &concat.span)));
            let prefers = parts.iter().find_map(|part| part.prefers);
            let grouped = parts.iter().any(|part| part.grouped);
            (Kind::Concat(parts, tails.collect()), prefers, grouped)
        }
        Ast::Repetition(repetition) => {
            let of = Box::new(node(&repetition.ast, source, groups)?);
            let (least, most, fixed) = match &repetition.op.kind {
                RepetitionKind::ZeroOrOne => (0, Some(1), false),
                RepetitionKind::ZeroOrMore => (0, None, false),
                RepetitionKind::OneOrMore => (1, None, false),
                RepetitionKind::Range(RepetitionRange::Exactly(n)) => (*n, Some(*n), true),
                RepetitionKind::Range(RepetitionRange::AtLeast(n)) => (*n, None, false),
                RepetitionKind::Range(RepetitionRange::Bounded(a, b)) => (*a, Some(*b), false),
            };
            // A fixed number of repetitions prefers what is repeated does.
            let prefers = match (fixed, repetition.greedy) {
                (true, _) => of.prefers,
                (false, true) => Some(Prefers::Longest),
                (false, false) => Some(Prefers::Shortest),
            };
            let grouped = of.grouped;
            (Kind::Repeat { least, most, of }, prefers, grouped)
        }
    };
    Some(Node { kind, automaton, prefers, grouped })
}
