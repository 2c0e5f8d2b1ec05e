//! The registry of functions and operators, and the choice among overloads.
//!
//! An operator is a function whose name is its symbol; a prefix operator has one argument. Both
//! executors resolve here, so both give the same types and answers.
//!
//! # Invariants
//! - The choice follows PostgreSQL 15 manual sections 10.2 and 10.3: exact match, then fewest
//!   conversions, then preferred types, then the category of unknown literals.
//! - A strict function is never called with a NULL argument: its result is NULL.
//! - Every function states its volatility; plans are cached on the strength of it.
//!
//! # On failure
//! [`ResolveError`]: no such function (42883) or no best candidate (42725).

use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use super::context::Call;
use super::ty::{
    CastContext, Category, Tag, can_cast, common_type, has_stable_text, plain_type, tag,
};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, RangeKind, SqlType};

/// How far a result depends on more than the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Volatility {
    /// On the arguments only.
    Immutable,
    /// Constant within a statement.
    Stable,
    /// May differ from call to call, or has effects.
    Volatile,
}

/// What computes a function. Arguments have the declared types.
pub type Body = fn(&[Datum], &Call<'_>) -> Result<Datum>;

/// Result type of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// Always this.
    Type(Tag),
    /// An array of this.
    ArrayOf(Tag),
    /// The type of argument *n*.
    Same(usize),
    /// The type all `AnyElement` arguments share.
    Element,
    /// An array of that type.
    ElementArray,
    /// The range type over that type.
    Range,
    /// The multirange type over that type.
    Multirange,
}

/// One overload.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Name or symbol.
    pub name: &'static str,
    /// Declared argument types; the last repeats when `variadic`.
    pub args: &'static [Tag],
    /// Whether the last argument repeats.
    pub variadic: bool,
    /// Result type.
    pub returns: Returns,
    /// How far the result depends on more than the arguments.
    pub volatility: Volatility,
    /// NULL in, NULL out.
    pub strict: bool,
    /// Whether the body may leave a request that must be waited for.
    pub waits: bool,
    /// Whether the body asks what indexes take ([`super::context::EvalContext::space`]).
    pub measures: bool,
    /// The same for arguments whose texts depend on nothing else ([`has_stable_text`]): an
    /// immutable function.
    pub settled: Option<&'static Self>,
    /// What computes it.
    pub body: Body,
}

impl Function {
    /// Not strict: the body sees NULLs.
    #[must_use]
    pub const fn lax(mut self) -> Self {
        self.strict = false;
        self
    }

    /// The last argument repeats.
    #[must_use]
    pub const fn variadic(mut self) -> Self {
        self.variadic = true;
        self
    }

    /// Constant within a statement.
    #[must_use]
    pub const fn stable(mut self) -> Self {
        self.volatility = Volatility::Stable;
        self
    }

    /// Stable only for the sake of arguments whose texts are; `settled` is the function for others.
    #[must_use]
    pub const fn stable_by_text(mut self, settled: &'static Self) -> Self {
        self.volatility = Volatility::Stable;
        self.settled = Some(settled);
        self
    }

    /// The body may leave a request that must be waited for ([`super::context::Request`]): what it
    /// gives differs from call to call.
    #[must_use]
    pub const fn waiting(mut self) -> Self {
        self.waits = true;
        self.volatility = Volatility::Volatile;
        self
    }

    /// The body asks what indexes take, which is measured once a statement.
    #[must_use]
    pub const fn measuring(mut self) -> Self {
        self.measures = true;
        self.volatility = Volatility::Stable;
        self
    }

    /// May differ from call to call.
    #[must_use]
    pub const fn volatile(mut self) -> Self {
        self.volatility = Volatility::Volatile;
        self
    }

    fn arg(&self, at: usize) -> Tag {
        let last = self.args.len().saturating_sub(1);
        self.args[if self.variadic { at.min(last) } else { at }]
    }

    /// Whether argument `at` may be of any type.
    #[must_use]
    pub fn takes_any(&self, at: usize) -> bool {
        !self.args.is_empty() && matches!(self.arg(at), Tag::Any | Tag::AnyNonArray)
    }

    fn takes(&self, count: usize) -> bool {
        if self.variadic { count >= self.args.len() } else { count == self.args.len() }
    }
}

/// A strict immutable function with a result of fixed type.
#[must_use]
pub const fn function(
    name: &'static str,
    args: &'static [Tag],
    returns: Tag,
    body: Body,
) -> Function {
    function_returning(name, args, Returns::Type(returns), body)
}

/// A strict immutable function.
#[must_use]
pub const fn function_returning(
    name: &'static str,
    args: &'static [Tag],
    returns: Returns,
    body: Body,
) -> Function {
    Function {
        name,
        args,
        variadic: false,
        returns,
        volatility: Volatility::Immutable,
        strict: true,
        waits: false,
        measures: false,
        settled: None,
        body,
    }
}

/// An overload chosen for given argument types.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The overload.
    pub function: &'static Function,
    /// What each argument must be cast to.
    pub args: Vec<SqlType>,
    /// The result type.
    pub returns: SqlType,
}

/// Why no overload was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// 42883.
    NoSuch,
    /// 42725.
    Ambiguous,
}

/// All functions and operators.
#[derive(Debug)]
pub struct Registry {
    by_name: FxHashMap<&'static str, Vec<&'static Function>>,
}

/// Functions of crates above this one, told by [`install`].
static INSTALLED: OnceLock<&'static [&'static [Function]]> = OnceLock::new();
static REGISTRY: OnceLock<Registry> = OnceLock::new();

/// Adds the functions of crates above this one to the registry. Called again with the same tables
/// it does nothing.
///
/// # Errors
/// XX000 when the registry was asked for before, without them: whoever opens an engine installs
/// first.
pub fn install(tables: &'static [&'static [Function]]) -> Result<()> {
    INSTALLED.get_or_init(|| tables);
    if tables.iter().all(|table| table.iter().all(|function| registry().knows(function.name))) {
        return Ok(());
    }
    Err(Error::internal("functions were looked up before all of them were installed"))
}

/// The registry of this process.
pub fn registry() -> &'static Registry {
    REGISTRY.get_or_init(|| {
        let mut by_name: FxHashMap<&'static str, Vec<&'static Function>> = FxHashMap::default();
        let installed = INSTALLED.get().copied().unwrap_or_default();
        for table in installed.iter().chain(super::functions::TABLES) {
            for function in *table {
                by_name.entry(function.name).or_default().push(function);
            }
        }
        Registry { by_name }
    })
}

impl Registry {
    /// Whether any overload has that name.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The overloads of that name.
    #[must_use]
    pub fn overloads(&self, name: &str) -> &[&'static Function] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether functions of that name may leave requests.
    #[must_use]
    pub fn waits(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|all| all.iter().any(|function| function.waits))
    }

    /// Whether a function of that name gives another value each time, or has effects.
    #[must_use]
    pub fn is_volatile(&self, name: &str) -> bool {
        let volatile = |function: &&Function| function.volatility == Volatility::Volatile;
        self.by_name.get(name).is_some_and(|all| all.iter().any(volatile))
    }

    /// Every overload, by name.
    pub fn all(&self) -> impl Iterator<Item = &'static Function> + '_ {
        self.by_name.values().flatten().copied()
    }

    /// Chooses the overload of `name` for arguments of these types (`Unknown` for untyped literals
    /// and parameters).
    ///
    /// # Errors
    /// [`ResolveError`] when none or no single best fits.
    pub fn resolve(
        &self,
        name: &str,
        types: &[SqlType],
    ) -> std::result::Result<Resolved, ResolveError> {
        let all = self.by_name.get(name).ok_or(ResolveError::NoSuch)?;
        let tags: Vec<Tag> = types.iter().map(tag).collect();
        let operator = !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let mut candidates: Vec<Candidate> = all
            .iter()
            .filter(|f| f.takes(tags.len()))
            .filter_map(|f| Candidate::new(f, types, &tags))
            .collect();
        if candidates.is_empty() {
            return Err(ResolveError::NoSuch);
        }
        if let Some(exact) = exact_match(&candidates, &tags, operator) {
            return Ok(exact.resolved());
        }
        if candidates.len() > 1 {
            keep_best(&mut candidates, |c| c.exact_as_declared(&tags));
            keep_best(&mut candidates, |c| c.preferred(&tags));
            if candidates.len() > 1 && tags.contains(&Tag::Unknown) {
                choose_for_unknowns(&mut candidates, &tags);
            }
        }
        match candidates.as_slice() {
            [one] => Ok(one.resolved()),
            [] => Err(ResolveError::NoSuch),
            _ => Err(ResolveError::Ambiguous),
        }
    }
}

#[derive(Clone, Debug)]
struct Candidate {
    function: &'static Function,
    args: Vec<SqlType>,
    /// What the arguments become.
    tags: Vec<Tag>,
    /// What the overload declares; pseudo-types win no points for exactness.
    declared: Vec<Tag>,
    element: Option<SqlType>,
}

impl Candidate {
    fn new(function: &'static Function, types: &[SqlType], tags: &[Tag]) -> Option<Self> {
        let declared: Vec<Tag> = (0..types.len()).map(|at| function.arg(at)).collect();
        let element = polymorphic_element(&declared, types)?;
        let mut args = Vec::with_capacity(types.len());
        let mut chosen = Vec::with_capacity(types.len());
        for ((declared, ty), own) in declared.iter().zip(types).zip(tags) {
            let (arg, arg_tag) = match declared {
                // An untyped literal given as "any" is text.
                Tag::Any if *own == Tag::Unknown => (SqlType::Text, Tag::Any),
                Tag::Any => (ty.clone(), Tag::Any),
                Tag::AnyNonArray if ty.element_type().is_some() => return None,
                Tag::AnyNonArray if *own == Tag::Unknown => (SqlType::Text, Tag::AnyNonArray),
                Tag::AnyNonArray => (ty.clone(), Tag::AnyNonArray),
                Tag::AnyElement | Tag::AnyEnum => {
                    let element = element.clone()?;
                    if *declared == Tag::AnyEnum && !matches!(element, SqlType::Enum(_)) {
                        return None;
                    }
                    let element_tag = tag(&element);
                    if !can_cast(*own, element_tag, CastContext::Implicit) {
                        return None;
                    }
                    (element, element_tag)
                }
                Tag::AnyArray => {
                    if !matches!(own, Tag::Array | Tag::Unknown) {
                        return None;
                    }
                    let array = SqlType::Array(Box::new(element.clone()?));
                    // A vector is taken as it is: as an array it would be counted from 1.
                    if ty.is_vector() && ty.element_type() == element.as_ref() {
                        args.push(ty.clone());
                        chosen.push(Tag::Array);
                        continue;
                    }
                    if *own == Tag::Array && *ty != array {
                        // Arrays convert element by element where the elements do.
                        let inner = ty.element_type()?;
                        if !can_cast(tag(inner), tag(element.as_ref()?), CastContext::Implicit) {
                            return None;
                        }
                    }
                    (array, Tag::Array)
                }
                Tag::AnyRange | Tag::AnyMultirange => {
                    let kind = RangeKind::over(element.as_ref()?)?;
                    let whole = if *declared == Tag::AnyRange {
                        SqlType::Range(kind)
                    } else {
                        SqlType::Multirange(kind)
                    };
                    if *own != Tag::Unknown && *own != tag(&whole) {
                        return None;
                    }
                    (whole.clone(), tag(&whole))
                }
                Tag::TextArray => {
                    match ty {
                        SqlType::Array(inner) if tag(inner).category() != Category::String => {
                            return None;
                        }
                        SqlType::Array(_) => {}
                        _ if *own == Tag::Unknown => {}
                        _ => return None,
                    }
                    (SqlType::Array(Box::new(SqlType::Text)), Tag::TextArray)
                }
                Tag::Int4Array => {
                    match ty {
                        SqlType::Array(inner)
                            if matches!(**inner, SqlType::Int2 | SqlType::Int4) => {}
                        _ if *own == Tag::Unknown => {}
                        _ => return None,
                    }
                    (SqlType::Int4.array_of(), Tag::Int4Array)
                }
                fixed => {
                    if !can_cast(*own, *fixed, CastContext::Implicit) {
                        return None;
                    }
                    (if own == fixed { ty.clone() } else { plain_type(*fixed) }, *fixed)
                }
            };
            args.push(arg);
            chosen.push(arg_tag);
        }
        Some(Self { function, args, tags: chosen, declared, element })
    }

    fn exact(&self, tags: &[Tag]) -> usize {
        self.tags.iter().zip(tags).filter(|(declared, own)| same(**declared, **own)).count()
    }

    fn exact_as_declared(&self, tags: &[Tag]) -> usize {
        self.declared.iter().zip(tags).filter(|(declared, own)| same(**declared, **own)).count()
    }

    fn preferred(&self, tags: &[Tag]) -> usize {
        self.declared
            .iter()
            .zip(tags)
            .filter(|(declared, own)| {
                same(**declared, **own)
                    || (**own != Tag::Unknown
                        && declared.preferred()
                        && declared.category() == own.category())
            })
            .count()
    }

    /// The range or multirange type over the element.
    fn over(&self, of: fn(RangeKind) -> SqlType) -> SqlType {
        self.element.as_ref().and_then(RangeKind::over).map_or(SqlType::Text, of)
    }

    fn resolved(&self) -> Resolved {
        let returns = match self.function.returns {
            Returns::Type(tag) => plain_type(tag),
            Returns::ArrayOf(tag) => SqlType::Array(Box::new(plain_type(tag))),
            Returns::Same(at) => self.args[at].without_modifier(),
            Returns::Element => self.element.clone().unwrap_or(SqlType::Text),
            Returns::Range => self.over(SqlType::Range),
            Returns::Multirange => self.over(SqlType::Multirange),
            Returns::ElementArray => {
                SqlType::Array(Box::new(self.element.clone().unwrap_or(SqlType::Text)))
            }
        };
        let settled = self.function.settled.filter(|_| !self.args.iter().any(has_stable_text));
        let function = settled.unwrap_or(self.function);
        Resolved { function, args: self.args.clone(), returns }
    }
}

/// `varchar` has no functions of its own: it counts as `text`.
fn same(declared: Tag, own: Tag) -> bool {
    declared == own
        || (declared == Tag::Text && own == Tag::Varchar)
        || (matches!(declared, Tag::TextArray | Tag::Int4Array) && own == Tag::Array)
}

/// The element type that polymorphic arguments agree on; outer `None`: they do not.
#[allow(clippy::option_option)] // Outer: whether the candidate fits; inner: whether it is polymorphic at all.
fn polymorphic_element(declared: &[Tag], types: &[SqlType]) -> Option<Option<SqlType>> {
    if declared.iter().any(|tag| matches!(tag, Tag::AnyRange | Tag::AnyMultirange)) {
        return range_element(declared, types).map(Some);
    }
    let mut found = Vec::new();
    let mut any = false;
    for (declared, ty) in declared.iter().zip(types) {
        match declared {
            Tag::AnyElement | Tag::AnyEnum => {
                any = true;
                found.push(ty.clone());
            }
            Tag::AnyArray => {
                any = true;
                match ty {
                    ty if ty.element_type().is_some() => {
                        found.extend(ty.element_type().cloned());
                    }
                    SqlType::Unknown => found.push(SqlType::Unknown),
                    _ => return None,
                }
            }
            _ => {}
        }
    }
    if !any {
        return Some(None);
    }
    common_type(&found).ok().map(Some)
}

/// The element type that ranges and elements agree on. Unlike arrays they convert nothing:
/// `numrange @> integer` does not exist.
fn range_element(declared: &[Tag], types: &[SqlType]) -> Option<SqlType> {
    let kind = declared.iter().zip(types).find_map(|(declared, ty)| match (declared, ty) {
        (Tag::AnyRange, SqlType::Range(kind)) | (Tag::AnyMultirange, SqlType::Multirange(kind)) => {
            Some(*kind)
        }
        _ => None,
    })?;
    let element = kind.subtype();
    let fits = declared.iter().zip(types).all(|(declared, ty)| {
        *declared != Tag::AnyElement || *ty == SqlType::Unknown || ty.same_base(&element)
    });
    fits.then_some(element)
}

fn exact_match<'a>(
    candidates: &'a [Candidate],
    tags: &[Tag],
    operator: bool,
) -> Option<&'a Candidate> {
    let matches = |tags: &[Tag]| {
        let mut found = candidates.iter().filter(|c| c.exact(tags) == tags.len());
        // Fixed declarations win over polymorphic ones.
        let first = found.next()?;
        let fixed = std::iter::once(first).chain(found).find(|c| c.element.is_none());
        Some(fixed.unwrap_or(first))
    };
    if !tags.contains(&Tag::Unknown) {
        return matches(tags);
    }
    // A binary operator with one unknown side first tries the type of the other side for it.
    if operator && tags.len() == 2 {
        let other = tags.iter().copied().find(|t| *t != Tag::Unknown)?;
        let other = if other == Tag::Varchar { Tag::Text } else { other };
        return matches(&[other, other]);
    }
    None
}

fn keep_best(candidates: &mut Vec<Candidate>, score: impl Fn(&Candidate) -> usize) {
    let best = candidates.iter().map(&score).max().unwrap_or(0);
    candidates.retain(|c| score(c) == best);
}

/// Sections 10.2 step 3.e and f: string category wins where any candidate takes it, else the one
/// category all agree on; then preferred types; then all unknowns as the one known type.
fn choose_for_unknowns(candidates: &mut Vec<Candidate>, tags: &[Tag]) {
    let before = candidates.clone();
    let mut decided = true;
    for (at, _) in tags.iter().enumerate().filter(|(_, t)| **t == Tag::Unknown) {
        let categories: Vec<Category> =
            candidates.iter().map(|c| c.declared[at].category()).collect();
        let category = if categories.contains(&Category::String) {
            Category::String
        } else if categories.iter().all(|c| *c == categories[0]) {
            categories[0]
        } else {
            decided = false;
            break;
        };
        candidates.retain(|c| c.declared[at].category() == category);
        if candidates.iter().any(|c| c.declared[at].preferred()) {
            candidates.retain(|c| c.declared[at].preferred());
        }
    }
    if decided && candidates.len() == 1 {
        return;
    }
    if !decided {
        *candidates = before;
    }
    let mut known = tags.iter().copied().filter(|t| *t != Tag::Unknown);
    if let Some(first) = known.next()
        && known.all(|t| t == first)
    {
        let assumed: Vec<&Candidate> = candidates
            .iter()
            .filter(|c| {
                tags.iter().zip(&c.declared).all(|(own, declared)| {
                    *own != Tag::Unknown
                        || declared.polymorphic()
                        || can_cast(first, *declared, CastContext::Implicit)
                })
            })
            .collect();
        if let [one] = assumed.as_slice() {
            *candidates = vec![(*one).clone()];
        }
    }
}
