//! What the indexes of a table have beyond columns: predicates and expressions, bound.
//!
//! # Invariants
//! - A row has an entry in an index if and only if the index's predicate holds for it; the entry's
//!   values are those of columns and expressions. Every writer and the checker ask here.
//! - Planners see an expression as a column behind the table's own
//!   ([`IndexExpressions::position`]); expressions that are the same share one place.
//! - What an entry holds depends on the row alone: values become text in one form ([`by_owner`]),
//!   whatever the session that writes, looks for or checks the entry has set (`bytea_output`,
//!   `extra_float_digits`, `IntervalStyle`). Casts to text are called immutable, as in PostgreSQL,
//!   though they obey these.
//! - A session that writes values otherwise sees through its own form: it is not led to rows by an
//!   index whose expression or predicate may hold the other one.
//! - A table without such indexes has an empty [`IndexExpressions`], which costs its writers and
//!   planners nothing.

use std::sync::Arc;

use crate::compiled_table::relation;
use crate::implication::implies;
use telesto_sql_catalog::{CatalogSnapshot, Index, Table};
use telesto_sql_expr::ParameterTypes;
use telesto_sql_expr::Settings;
use telesto_sql_expr::deparse::{Deparse, looks_like_function};
use telesto_sql_expr::{Binder, Comparison, EvalContext, Expr, Node, Scope};
use telesto_sql_parser::sqlparser::ast;
use telesto_sql_parser::stored::{own_columns, parse_over_row, parse_stored};
use telesto_sql_types::error::Result;
use telesto_sql_types::identifier::quote_ident;
use telesto_sql_types::{Datum, SqlType};

/// Predicates and expressions of a table's indexes.
#[derive(Clone, Debug, Default)]
pub struct IndexExpressions {
    /// Columns of the table.
    width: usize,
    /// `Index::id` and its predicate.
    predicates: Vec<(u32, Expr)>,
    /// `Index::id` and its expressions, with the place of each among `distinct`.
    expressions: Vec<(u32, Vec<(Expr, usize)>)>,
    /// Different expressions.
    distinct: Vec<Expr>,
    /// What they are evaluated under; none without any.
    settings: Option<Arc<Settings>>,
    /// Whether the session they are bound for writes values in another form.
    otherwise: bool,
}

/// An expression over the columns of `table`, bound.
///
/// # Errors
/// Those of binding.
pub fn bind_over(
    table: &Table,
    context: &EvalContext<'_>,
    expr: &ast::Expr,
    clause: &'static str,
) -> Result<Expr> {
    let scope = Scope { relations: vec![relation(table, &table.name, 0, true)] };
    let mut parameters = ParameterTypes::default();
    Binder::new(&scope, &mut parameters, context, clause).bind_known(expr)
}

/// A condition over the columns of `table`, bound.
///
/// # Errors
/// Those of binding.
pub fn condition_over(
    table: &Table,
    context: &EvalContext<'_>,
    expr: &ast::Expr,
    clause: &'static str,
) -> Result<Expr> {
    let scope = Scope { relations: vec![relation(table, &table.name, 0, true)] };
    let mut parameters = ParameterTypes::default();
    Binder::new(&scope, &mut parameters, context, clause).condition(expr)
}

/// The settings by which the texts of a table's indexes are read, whoever reads them.
#[must_use]
pub fn by_owner(settings: &Settings, catalog: &CatalogSnapshot, table: &Table) -> Settings {
    let mut settings = settings.of_owner(catalog, table.owner.0).writing_plainly();
    // Types of that schema are printed without it.
    settings.search_path.insert(0, telesto_sql_catalog::PUBLIC.to_owned());
    settings
}

/// The text of a bound expression over `table`, as PostgreSQL prints it.
#[must_use]
pub fn text_over(table: &Table, expr: &Expr, pretty: bool) -> String {
    let column =
        |at: usize| table.columns.get(at).map_or_else(String::new, |c| quote_ident(&c.name));
    Deparse { column: &column, pretty, reader: None, inner_domain: false }.text(expr)
}

/// The text to store for `expr`, which was written as `written`: PostgreSQL's, if it binds to the
/// same expression.
#[must_use]
pub fn stored_text(
    table: &Table,
    context: &EvalContext<'_>,
    expr: &Expr,
    written: &ast::Expr,
) -> String {
    let text = text_over(table, expr, false);
    let again = parse_stored(&text).and_then(|e| bind_over(table, context, &e, "INDEX"));
    match again {
        Ok(again) if crate::implication::equivalent(&again, expr, context) => text,
        _ => {
            let mut written = written.clone();
            // It has been bound over this table: whatever stands before a column is the table's
            // name.
            own_columns(&mut written, |_| true);
            written.to_string()
        }
    }
}

/// Whether an index shows the expression without parentheses around it.
#[must_use]
pub fn is_bare(expr: &Expr) -> bool {
    // AT TIME ZONE is written as an operator (PostgreSQL 15.19 and later put it into parentheses of
    // its own).
    looks_like_function(expr)
        && !matches!(&expr.node, Node::Call(function, ..) if function.name == "timezone")
}

impl IndexExpressions {
    /// Binds them.
    ///
    /// # Errors
    /// XX001 when a stored expression does not bind.
    pub fn bind(
        catalog: &Arc<CatalogSnapshot>,
        settings: &Settings,
        table: &Table,
    ) -> Result<Self> {
        let mut forms = Self { width: table.columns.len(), ..Self::default() };
        let formed = |index: &Index| index.predicate.is_some() || index.has_expressions();
        if !table.maintained_indexes().any(formed) {
            return Ok(forms);
        }
        forms.otherwise = !settings.writes_plainly();
        let settings = by_owner(settings, catalog, table);
        let context = EvalContext::planning(&settings, catalog);
        for index in table.maintained_indexes() {
            if let Some(text) = &index.predicate {
                let bound = condition_over(table, &context, &parse_over_row(text)?, "WHERE")?;
                forms.predicates.push((index.id, bound));
            }
            let mut own = Vec::new();
            for expression in index.columns.iter().filter_map(|c| c.expression.as_ref()) {
                let bound = bind_over(table, &context, &parse_over_row(&expression.sql)?, "INDEX")?;
                let place = forms.distinct.iter().position(|e| e.same_as(&bound));
                let place = place.unwrap_or_else(|| {
                    forms.distinct.push(bound.clone());
                    forms.distinct.len() - 1
                });
                own.push((bound, place));
            }
            if !own.is_empty() {
                forms.expressions.push((index.id, own));
            }
        }
        forms.settings = Some(Arc::new(settings));
        Ok(forms)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.predicates.is_empty() && self.expressions.is_empty()
    }

    /// Whether `index` is partial or holds expressions.
    #[must_use]
    pub fn has(&self, index: &Index) -> bool {
        !self.is_empty() && (self.predicate(index).is_some() || !self.expressions(index).is_empty())
    }

    fn predicate(&self, index: &Index) -> Option<&Expr> {
        self.predicates.iter().find(|(id, _)| *id == index.id).map(|(_, p)| p)
    }

    fn expressions(&self, index: &Index) -> &[(Expr, usize)] {
        self.expressions.iter().find(|(id, _)| *id == index.id).map_or(&[], |(_, e)| e)
    }

    /// Whether the row belongs to the index.
    ///
    /// # Errors
    /// Those of the predicate.
    pub fn covers(&self, index: &Index, row: &[Datum], context: &EvalContext<'_>) -> Result<bool> {
        match self.predicate(index) {
            None => Ok(true),
            Some(predicate) => self.plainly(context, |context| predicate.holds(row, context)),
        }
    }

    /// Evaluates under the settings of indexes; where the session's write values in the same form,
    /// under those, so that what its context keeps from row to row stays of use.
    fn plainly<T>(
        &self,
        context: &EvalContext<'_>,
        evaluate: impl FnOnce(&EvalContext<'_>) -> Result<T>,
    ) -> Result<T> {
        match &self.settings {
            Some(settings) if !context.settings.writes_plainly() => {
                evaluate(&context.under(settings))
            }
            _ => evaluate(context),
        }
    }

    /// Whether the session may be led by what the index holds in the place of `expr`.
    fn is_seen_alike(&self, expr: &Expr) -> bool {
        !self.otherwise || !prints(expr)
    }

    /// The values of the index's expressions, in their order.
    ///
    /// # Errors
    /// Those of the expressions.
    pub fn computed(
        &self,
        index: &Index,
        row: &[Datum],
        context: &EvalContext<'_>,
    ) -> Result<Vec<Datum>> {
        let expressions = self.expressions(index);
        if expressions.is_empty() {
            return Ok(Vec::new());
        }
        self.plainly(context, |context| {
            expressions.iter().map(|(e, _)| e.eval(row, context)).collect()
        })
    }

    /// Whether a change of the columns for which `changes` holds may change the row's entry in the
    /// index.
    #[must_use]
    pub fn depends(&self, index: &Index, changes: &dyn Fn(usize) -> bool) -> bool {
        let mut found = index.columns.iter().any(|c| c.expression.is_none() && changes(c.column));
        let exprs = self.expressions(index).iter().map(|(e, _)| e);
        for expr in exprs.chain(self.predicate(index)) {
            expr.walk(&mut |e| {
                if let Node::Column(at) = e.node {
                    found |= changes(at);
                }
            });
        }
        found
    }

    /// Whether a query with these conjuncts needs no row that the index leaves out.
    #[must_use]
    pub fn serves(&self, index: &Index, conjuncts: &[Expr], context: &EvalContext<'_>) -> bool {
        self.predicate(index).is_none_or(|predicate| {
            self.is_seen_alike(predicate) && implies(conjuncts, predicate, context)
        })
    }

    /// Whether the index's predicate makes the conjunct true.
    #[must_use]
    pub fn proves(&self, index: &Index, conjunct: &Expr, context: &EvalContext<'_>) -> bool {
        self.predicate(index)
            .is_some_and(|predicate| implies(std::slice::from_ref(predicate), conjunct, context))
    }

    /// Whether the index's predicate asks for values, so that few rows are to be expected.
    #[must_use]
    pub fn picks_values(&self, index: &Index) -> bool {
        let mut found = false;
        if let Some(predicate) = self.predicate(index) {
            predicate.walk(&mut |e| {
                found |= matches!(
                    e.node,
                    Node::Compare(Comparison::Eq, ..)
                        | Node::InList(_, _, false)
                        | Node::Quantified(_, Comparison::Eq, _, false)
                );
            });
        }
        found
    }

    /// Where planners see column number `at` of the index: a column of the table, or one behind
    /// them.
    #[must_use]
    pub fn position(&self, index: &Index, at: usize) -> usize {
        let Some(column) = index.columns.get(at) else { return usize::MAX };
        if column.expression.is_none() {
            return column.column;
        }
        let before = index.columns[..at].iter().filter(|c| c.expression.is_some()).count();
        self.expressions(index).get(before).map_or(usize::MAX, |(_, place)| self.width + place)
    }

    /// The place behind the table's columns of an expression that an index holds, and its type.
    #[must_use]
    pub fn place_of(&self, expr: &Expr) -> Option<(usize, SqlType)> {
        if matches!(expr.node, Node::Column(_)) {
            return None;
        }
        let at = self.distinct.iter().position(|e| e.same_as(expr) && self.is_seen_alike(e))?;
        Some((self.width + at, self.distinct[at].ty.clone()))
    }
}

/// Whether a text in it may hold a value whose text form obeys settings.
fn prints(expr: &Expr) -> bool {
    let (mut texts, mut obeys) = (false, false);
    expr.walk(&mut |e| {
        let ty = e.ty.element_type().unwrap_or(&e.ty);
        texts |= ty.is_string() || matches!(ty, SqlType::Json | SqlType::Jsonb);
        obeys |= !is_written_alike(ty);
    });
    texts && obeys
}

/// Whether all sessions write values of the type alike, or cannot write them where something
/// immutable is asked for.
fn is_written_alike(ty: &SqlType) -> bool {
    use SqlType as T;
    let moment = matches!(
        ty,
        T::Date | T::Time(_) | T::TimeTz(_) | T::Timestamp(_) | T::TimestampTz(_) | T::Uuid
    );
    let number = ty.is_integer()
        || matches!(ty, T::Bool | T::Numeric(_) | T::Oid | T::Bit(_) | T::Varbit(_));
    let named = matches!(ty, T::Enum(_) | T::Inet | T::Cidr | T::Json | T::Jsonb);
    ty.is_string() || moment || number || named
}
