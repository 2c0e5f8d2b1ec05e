//! Labels of enum types in stored texts: which constants name one, and what they become when it
//! gets another name.
//!
//! ```text
//! e = 'x' AND note = 'x'       bound with the first 'x' as '?': no label of the type is called so, it names the label
//!                              bound with the second as '?': nothing fails, it is a text
//! e = 'y' AND note = 'x'
//! ```
//! # Invariants
//! - Which type a constant is read as is told by the binders: nothing here guesses types. Constants
//!   of other types stay, whatever they say.
//! - A label that is renamed is renamed in every text, or the statement is refused: no stored text
//!   ever means something else than before.
//!
//! # On failure
//! 0A000 where a constant may name the label and cannot be written again: in a value of a composite
//! type, and in a text that does not bind as it is.
//!
//! # Limits
//! Each constant that has the label in it costs one binding. A constant without a type that stands
//! by itself in an arm of UNION is read when the query runs: such a one stays.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::type_text::{places, view_query};
use super::{Ddl, parse_expr};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::types::is_made_of;
use telesto_sql_catalog::{CatalogSnapshot, View};
use telesto_sql_expr::{Binder, CastContext, EvalContext, Scope};
use telesto_sql_parser::sqlparser::ast::{Expr, Statement, Value, VisitMut, VisitorMut};
use telesto_sql_plan::ParameterTypes;
use telesto_sql_plan::compiled_table::relation;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, EnumType, SqlType, TextStyle, interrupt};

/// A label and its new name.
struct Renamed<'a> {
    from: &'a str,
    to: &'a str,
    /// A text that no label of the type is called.
    probe: String,
    /// What binding answers where that text is read as the type.
    answer: String,
}

/// A constant with the label in it.
struct Constant {
    /// Its place among the constants of its text.
    at: usize,
    /// It with the probe for the label.
    probing: String,
    /// It with the new name; `None`: it cannot be written again.
    becomes: Option<String>,
}

impl<'a> Renamed<'a> {
    fn new(ty: &EnumType, from: &'a str, to: &'a str) -> Self {
        let mut probe = "?".to_owned();
        while ty.by_label(&probe).is_ok() {
            probe.push('?');
        }
        let answer = ty.by_label(&probe).err().map(|error| error.message().to_owned());
        Self { from, to, probe, answer: answer.unwrap_or_default() }
    }

    /// A constant's text with `label` in the place of the old name.
    fn with(&self, text: &str, label: &str) -> Option<String> {
        if text == self.from {
            return Some(label.to_owned());
        }
        let ty = SqlType::Text.array_of();
        let style = TextStyle::default();
        let Ok(Datum::Array(array)) = Datum::from_text(text, &ty, &style) else { return None };
        let mut array = Arc::unwrap_or_clone(array);
        let mut found = false;
        for element in &mut array.elements {
            if element.as_str() == Some(self.from) {
                *element = Datum::text(label);
                found = true;
            }
        }
        found.then(|| Datum::Array(Arc::new(array)).to_text(&ty, &style))
    }

    /// The constants of a text that may name the label.
    fn constants<T: VisitMut + Clone>(&self, tree: &T) -> Vec<Constant> {
        let mut found = Vec::new();
        each_constant(&mut tree.clone(), |at, text| {
            let probing = self.with(text, &self.probe);
            let composite = || {
                let within = text.starts_with('(') && text.contains(self.from);
                within.then(|| text.replace(self.from, &self.probe))
            };
            if let Some(probing) = probing.or_else(composite) {
                found.push(Constant { at, probing, becomes: self.with(text, self.to) });
            }
            None
        });
        found
    }

    /// Whether binding failed at the probe, read as the type.
    fn is_answer(&self, bound: &Result<()>) -> bool {
        bound.as_ref().is_err_and(|error| {
            error.code() == SqlState::INVALID_TEXT_REPRESENTATION && error.message() == self.answer
        })
    }
}

/// Looks at each string constant, in the order in which they stand; what `edit` gives takes its
/// place.
pub(super) fn each_constant(
    tree: &mut impl VisitMut,
    edit: impl FnMut(usize, &str) -> Option<String>,
) {
    struct Walk<F>(usize, F);
    impl<F: FnMut(usize, &str) -> Option<String>> VisitorMut for Walk<F> {
        type Break = ();

        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            let value = match expr {
                Expr::Value(value) => &mut value.value,
                Expr::TypedString(typed) => &mut typed.value.value,
                _ => return ControlFlow::Continue(()),
            };
            let text = match &*value {
                Value::SingleQuotedString(text)
                | Value::EscapedStringLiteral(text)
                | Value::UnicodeStringLiteral(text)
                | Value::NationalStringLiteral(text) => text,
                Value::DollarQuotedString(text) => &text.value,
                _ => return ControlFlow::Continue(()),
            };
            if let Some(text) = (self.1)(self.0, text) {
                *value = Value::SingleQuotedString(text);
            }
            self.0 += 1;
            ControlFlow::Continue(())
        }
    }
    let _ = tree.visit(&mut Walk(0, edit));
}

/// The text with another constant at a place.
pub(super) fn with_constant<T: VisitMut + Clone>(tree: &T, place: usize, text: &str) -> T {
    let mut tree = tree.clone();
    each_constant(&mut tree, |at, _| (at == place).then(|| text.to_owned()));
    tree
}

fn refused(what: &str) -> Error {
    Error::unsupported(format!("RENAME VALUE while {what} names the label"))
        .hint("Drop that, rename the label, and create it again.")
}

impl Ddl<'_> {
    /// Writes a label's new name wherever its old one stands.
    pub(super) async fn rename_label_in_texts(
        &mut self,
        oid: u32,
        from: &str,
        to: &str,
    ) -> Result<()> {
        self.refuse_in_domains(oid, "RENAME VALUE")?;
        let Some(SqlType::Enum(ty)) = self.catalog().type_of_oid(oid) else { return Ok(()) };
        let label = Renamed::new(&ty, from, to);
        let mut changed = self.tables_with_label(oid, &label)?;
        for view in self.catalog().clone().views() {
            let query = view_query(view)?;
            if let Some(query) = self.query_with_label(&query, &label, &view.name).await? {
                changed.push(Object::View(View { query: query.to_string(), ..(**view).clone() }));
            }
        }
        for object in changed {
            self.change.put(object);
        }
        Ok(())
    }

    /// The tables whose texts name the label, with its new name.
    fn tables_with_label(&self, oid: u32, label: &Renamed<'_>) -> Result<Vec<Object>> {
        let mut changed = Vec::new();
        for before in self.catalog().tables() {
            let scope = Scope { relations: vec![relation(before, &before.name, 0, true)] };
            let mut table = (**before).clone();
            for place in places(&mut table) {
                let expr = parse_expr(place.text)?;
                let bind =
                    |expr: &Expr| self.bound_in(self.catalog(), expr, &scope, place.of.as_ref());
                if let Some(expr) = expr_with_label(&expr, label, &place.what, bind)? {
                    *place.text = expr.to_string();
                }
            }
            for column in &mut table.columns {
                let Some(text) = &column.missing else { continue };
                if !is_made_of(&column.ty, oid) {
                    continue;
                }
                let is_array = matches!(&column.ty, SqlType::Array(element) if matches!(**element, SqlType::Enum(_)));
                if is_array || matches!(column.ty, SqlType::Enum(_)) {
                    column.missing = label.with(text, label.to).or_else(|| Some(text.clone()));
                } else {
                    let what = format!("column {} of table {}", column.name, table.name);
                    return Err(refused(&what));
                }
            }
            if table != **before {
                changed.push(Object::Table(table));
            }
        }
        Ok(changed)
    }

    /// Binds an expression over a table's rows in a catalog, as what is assigned to a column of
    /// type `of`, if it is one's.
    pub(super) fn bound_in(
        &self,
        catalog: &CatalogSnapshot,
        expr: &Expr,
        scope: &Scope,
        of: Option<&SqlType>,
    ) -> Result<()> {
        interrupt::check_long()?;
        let catalog = Arc::new(catalog.clone());
        let context = EvalContext::planning(&self.context.settings, &catalog);
        let mut parameters = ParameterTypes::default();
        let mut binder = Binder::new(scope, &mut parameters, &context, "a definition");
        let bound = binder.bind(expr)?;
        match of {
            Some(ty) => binder.coerce(bound, ty, CastContext::Assignment).map(drop),
            None => Ok(()),
        }
    }

    /// A view's query with the label's new name; `None`: it does not name it.
    async fn query_with_label(
        &self,
        statement: &Statement,
        label: &Renamed<'_>,
        view: &str,
    ) -> Result<Option<Statement>> {
        let constants = label.constants(statement);
        let mut named = Vec::new();
        for constant in &constants {
            interrupt::pace().await?;
            let probing = with_constant(statement, constant.at, &constant.probing);
            let what = || refused(&format!("view {view}"));
            let (Statement::Query(query), Statement::Query(probing)) = (statement, &probing) else {
                return Err(what());
            };
            if named.is_empty() && self.view_columns(query).await.is_err() {
                return Err(what());
            }
            let bound = self.view_columns(probing).await.map(drop);
            if label.is_answer(&bound) {
                named.push((constant.at, constant.becomes.clone().ok_or_else(what)?));
            }
        }
        Ok(renamed(statement, &named))
    }
}

/// An expression with the label's new name; `None`: it does not name it.
fn expr_with_label(
    expr: &Expr,
    label: &Renamed<'_>,
    what: &str,
    bind: impl Fn(&Expr) -> Result<()>,
) -> Result<Option<Expr>> {
    let constants = label.constants(expr);
    if !constants.is_empty() && bind(expr).is_err() {
        return Err(refused(what));
    }
    let mut named = Vec::new();
    for constant in constants {
        let bound = bind(&with_constant(expr, constant.at, &constant.probing));
        if label.is_answer(&bound) {
            named.push((constant.at, constant.becomes.ok_or_else(|| refused(what))?));
        }
    }
    Ok(renamed(expr, &named))
}

/// The text with what its constants become.
pub(super) fn renamed<T: VisitMut + Clone>(tree: &T, named: &[(usize, String)]) -> Option<T> {
    if named.is_empty() {
        return None;
    }
    let mut tree = tree.clone();
    each_constant(&mut tree, |at, _| {
        named.iter().find(|(place, _)| *place == at).map(|(_, text)| text.clone())
    });
    Some(tree)
}
