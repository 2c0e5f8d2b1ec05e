//! What a text is made into before it is stored, so that it means the same for every reader: users'
//! types with their schemas, and constants that the time zone, the clock or the search path would
//! tell ([`telesto_sql_expr::stored_literals`]).
//!
//! ```text
//! 'lo'::level                  'lo'::town.level
//! ts > '2020-06-01 00:00'      ts > '2020-06-01 04:00:00+00'::timestamp with time zone
//! d = 'today'                  d = '2020-06-01'::date
//! 'accounts'::regclass         '16391'::regclass
//! ```
//! # Invariants
//! - What a literal is read as is told by the binders themselves, which are given the text with its
//!   literals marked: nothing here guesses types.
//! - A literal that means the same for everybody stays as it was written.
//!
//! # On failure
//! A text that does not bind with its literals marked together is bound with one of them marked at
//! a time. Literals that cannot be marked even so are left alone.
//!
//! # Limits
//! - Each literal that is settled costs one binding, where a text is made.
//! - A literal without a type that stands by itself in an arm of UNION is read when the query runs,
//!   by whoever runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::Ddl;
use telesto_sql_expr::full_types::qualify_types;
use telesto_sql_expr::stored_literals::{Settled, answered, marked};
use telesto_sql_expr::{Binder, EvalContext, Scope};
use telesto_sql_parser::sqlparser::ast::{
    CastKind, DataType, Expr, Query, Value, ValueWithSpan, VisitMut, VisitorMut,
};
use telesto_sql_plan::ParameterTypes;
use telesto_sql_types::error::Result;
use telesto_sql_types::interrupt;

fn type_of_text(text: &str) -> Option<DataType> {
    telesto_sql_parser::syntax::read_type(text).ok()
}

/// How the literals of a text are asked.
#[derive(Clone, Copy, PartialEq)]
enum Asking {
    /// All that are not known.
    Together,
    /// This one.
    One(usize),
    /// None any more.
    Done,
}

/// The literals of a text, in the order in which they stand, and what is known of them.
struct Literals {
    now: i64,
    count: usize,
    settled: BTreeMap<usize, Settled>,
    asking: Asking,
    /// Those that no setting could change whatever they are read as.
    plain: BTreeSet<usize>,
}

impl Literals {
    fn new(now: i64) -> Self {
        let (settled, plain) = (BTreeMap::new(), BTreeSet::new());
        Self { now, count: 0, settled, asking: Asking::Together, plain }
    }

    /// The text with those marked that are to be asked; `None`: all have been.
    fn question<T: VisitMut + Clone>(&mut self, tree: &T) -> Option<T> {
        if let Asking::One(at) = self.asking {
            let next = (at..self.count)
                .find(|at| !self.settled.contains_key(at) && !self.plain.contains(at));
            self.asking = next.map_or(Asking::Done, Asking::One);
        }
        if self.asking == Asking::Done {
            return None;
        }
        let mut walk = Walk::new(self, true);
        let mut tree = tree.clone();
        let _ = tree.visit(&mut walk);
        let (count, met, plain) = (walk.next, walk.marked, walk.plain);
        (self.count, self.plain) = (count, plain);
        met.then_some(tree)
    }

    fn answer(&mut self, bound: Result<()>) {
        let answer = bound.as_ref().err().and_then(answered);
        let is_known = |(at, _): &(usize, Settled)| self.settled.contains_key(at);
        match (answer.filter(|answer| !is_known(answer)), self.asking) {
            (Some((at, settled)), _) => drop(self.settled.insert(at, settled)),
            (None, Asking::One(at)) => self.asking = Asking::One(at + 1),
            (None, Asking::Together) if bound.is_err() => self.asking = Asking::One(0),
            (None, _) => self.asking = Asking::Done,
        }
    }

    fn put_in(&self, tree: &mut impl VisitMut) {
        if !self.settled.is_empty() {
            let _ = tree.visit(&mut Walk::new(self, false));
        }
    }
}

/// Puts constants in, and marks literals.
struct Walk<'l> {
    literals: &'l Literals,
    marks: bool,
    next: usize,
    /// Whether one was marked.
    marked: bool,
    plain: BTreeSet<usize>,
    /// What the next expression stands in.
    within: Within,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Within {
    #[default]
    Anything,
    /// A cast says its type.
    Cast,
    /// An interval's: no setting changes what it is read as.
    Interval,
    /// What it stands in is to make way for it.
    Named,
}

impl<'l> Walk<'l> {
    fn new(literals: &'l Literals, marks: bool) -> Self {
        let (next, marked, plain) = (0, false, BTreeSet::new());
        Self { literals, marks, next, marked, plain, within: Within::Anything }
    }

    /// What a literal becomes; `None`: it stays.
    fn literal(&mut self, text: &str, typed: bool) -> Option<Literal> {
        let at = self.next;
        self.next += 1;
        let digits = text.bytes().any(|byte| byte.is_ascii_digit());
        let words = ["now", "today", "tomorrow", "yesterday"];
        let lower = text.to_ascii_lowercase();
        if !typed && !digits && !words.iter().any(|word| lower.contains(word)) {
            self.plain.insert(at);
        }
        if let Some(settled) = self.literals.settled.get(&at) {
            return (settled.text != text).then(|| Literal::Settled(settled.clone()));
        }
        let asked = match self.literals.asking {
            Asking::Together => true,
            Asking::One(one) => one == at,
            Asking::Done => false,
        };
        if !self.marks || !asked {
            return None;
        }
        self.marked = true;
        Some(Literal::Marked(marked(at, self.literals.now, text)))
    }
}

enum Literal {
    Marked(String),
    Settled(Settled),
}

fn string_of(value: &Value) -> Option<&str> {
    match value {
        Value::SingleQuotedString(text)
        | Value::EscapedStringLiteral(text)
        | Value::UnicodeStringLiteral(text)
        | Value::NationalStringLiteral(text) => Some(text),
        Value::DollarQuotedString(text) => Some(&text.value),
        _ => None,
    }
}

fn string_in(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Value(ValueWithSpan { value, .. }) => string_of(value),
        _ => None,
    }
}

fn string(text: String) -> Expr {
    Expr::value(Value::SingleQuotedString(text))
}

impl VisitorMut for Walk<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Cast { expr, .. } if string_in(expr).is_some() => self.within = Within::Cast,
            Expr::Interval(_) => self.within = Within::Interval,
            _ if string_in(expr).is_none() => self.within = Within::Anything,
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::TypedString(typed) = expr {
            let becomes = string_of(&typed.value.value).map(str::to_owned);
            match becomes.and_then(|text| self.literal(&text, true)) {
                Some(Literal::Settled(settled)) if settled.names => *expr = named_constant(settled),
                Some(Literal::Marked(text) | Literal::Settled(Settled { text, .. })) => {
                    typed.value.value = Value::SingleQuotedString(text);
                }
                None => {}
            }
            return ControlFlow::Continue(());
        }
        // A name that was cast has become a constant with a cast of its own.
        if let Expr::Cast { expr: inner, .. } = expr
            && let Expr::Cast { .. } = &**inner
            && std::mem::take(&mut self.within) == Within::Named
        {
            *expr = std::mem::replace(&mut **inner, Expr::value(Value::Null));
            return ControlFlow::Continue(());
        }
        let Some(text) = string_in(expr).map(str::to_owned) else {
            return ControlFlow::Continue(());
        };
        let within = std::mem::take(&mut self.within);
        if within == Within::Interval {
            return ControlFlow::Continue(());
        }
        match self.literal(&text, within == Within::Cast) {
            Some(Literal::Marked(text)) => *expr = string(text),
            Some(Literal::Settled(settled)) if settled.names => {
                if within == Within::Cast {
                    self.within = Within::Named;
                }
                *expr = named_constant(settled);
            }
            Some(Literal::Settled(settled)) if within == Within::Cast => {
                *expr = string(settled.text);
            }
            Some(Literal::Settled(settled)) => *expr = named_constant(settled),
            None => {}
        }
        ControlFlow::Continue(())
    }
}

/// `'text'::type`.
fn named_constant(settled: Settled) -> Expr {
    match type_of_text(&settled.ty) {
        None => string(settled.text),
        Some(data_type) => Expr::Cast {
            kind: CastKind::DoubleColon,
            expr: Box::new(string(settled.text)),
            data_type,
            array: false,
            format: None,
        },
    }
}

impl Ddl<'_> {
    /// An expression that a text is made of, over `scope`, and what binding does with it behind the
    /// binding itself.
    ///
    /// # Errors
    /// 57014 and its kin.
    pub(super) fn settled(
        &self,
        expr: &Expr,
        scope: &Scope,
        finish: impl Fn(&mut Binder<'_>, telesto_sql_expr::Expr) -> Result<()>,
    ) -> Result<Expr> {
        let catalog = Arc::new(self.catalog().clone());
        let context = EvalContext::planning(&self.context.settings, &catalog);
        let mut expr = self.with_full_types(expr);
        let mut literals = Literals::new(self.context.transaction_micros);
        while let Some(asked) = literals.question(&expr) {
            // As many times over as there are literals: that of a text with very many is long.
            interrupt::check_long()?;
            let mut parameters = ParameterTypes::default();
            let mut binder = Binder::new(scope, &mut parameters, &context, "a definition");
            let bound = binder.bind(&asked).and_then(|bound| finish(&mut binder, bound));
            literals.answer(bound);
        }
        literals.put_in(&mut expr);
        Ok(expr)
    }

    /// An expression with the schemas of the users' types that it names.
    pub(super) fn with_full_types(&self, expr: &Expr) -> Expr {
        let mut expr = expr.clone();
        qualify_types(&mut expr, &self.user_types());
        expr
    }

    /// A query that a text is made of.
    ///
    /// # Errors
    /// 57014 and its kin.
    pub(super) async fn settled_query(&self, query: Query) -> Result<Query> {
        let mut settled = query.clone();
        qualify_types(&mut settled, &self.user_types());
        let mut literals = Literals::new(self.context.transaction_micros);
        while let Some(asked) = literals.question(&settled) {
            interrupt::pace().await?;
            literals.answer(self.view_columns(&asked).await.map(drop));
        }
        literals.put_in(&mut settled);
        Ok(settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Expr {
        telesto_sql_parser::stored::parse_stored(text).expect("parses")
    }

    fn constant(text: &str, ty: &str, names: bool) -> Settled {
        Settled { text: text.to_owned(), ty: ty.to_owned(), names }
    }

    #[test]
    fn constants_are_put_where_the_literals_stand() {
        let text = "a = 'x' AND t > '2020' AND CAST('2021' AS timestamptz) < t AND timetz '1:00' = z AND 'r'::regclass = c AND i = interval '1' day";
        let mut literals = Literals::new(0);
        literals.settled = BTreeMap::from([
            (1, constant("2020-01-01 00:00:00+00", "timestamp with time zone", false)),
            (2, constant("2021-01-01 00:00:00+00", "timestamp with time zone", false)),
            (3, constant("01:00:00-04", "time with time zone", false)),
            (4, constant("16400", "regclass", true)),
        ]);
        let mut expr = parsed(text);
        literals.put_in(&mut expr);
        assert_eq!(
            expr.to_string().to_uppercase(),
            "A = 'X' AND T > '2020-01-01 00:00:00+00'::TIMESTAMP WITH TIME ZONE AND CAST('2021-01-01 00:00:00+00' AS TIMESTAMPTZ) < T AND TIMETZ '01:00:00-04' = Z AND '16400'::REGCLASS = C AND I = INTERVAL '1' DAY"
        );
    }

    #[test]
    fn one_literal_after_the_other_is_asked_where_all_together_do_not_bind() {
        let expr = parsed("f('1') = 'a' AND t > '2'");
        let mut literals = Literals::new(0);
        let all = literals.question(&expr).expect("a question").to_string();
        assert_eq!(all.matches('\0').count(), 9);
        literals.answer(Err(telesto_sql_types::error::Error::syntax("f takes no such text")));
        let mut asked = Vec::new();
        while let Some(question) = literals.question(&expr) {
            asked.push(question.to_string().replace('\0', "#"));
            literals.answer(Ok(()));
        }
        assert_eq!(asked, ["f('#0#0#1') = 'a' AND t > '2'", "f('1') = 'a' AND t > '#2#0#2'"]);
    }
}
