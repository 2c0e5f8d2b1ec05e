//! SQL text in the catalog that names users' types: defaults, checks, index predicates, policies,
//! views, domains.
//!
//! # Invariants
//! A type that is renamed is renamed in every text, or the statement is refused: no stored text
//! ever means something else than before.

use std::ops::ControlFlow;

use super::Ddl;
use super::composites::any_expression;
use super::parse_expr;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::types::is_made_of;
use telesto_sql_catalog::{CatalogSnapshot, Generated, Table, TypeKind, View};
use telesto_sql_expr::full_types::{each_type, innermost};
use telesto_sql_expr::types::{UserTypes, named};
use telesto_sql_parser::names::ident;
use telesto_sql_parser::parse::parse_kept;
use telesto_sql_parser::sqlparser::ast::{
    DataType, Expr, Ident, ObjectName, Statement, VisitMut, visit_expressions,
};
use telesto_sql_parser::view_query::parts;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};

/// A text that names a type.
pub(super) struct NamingText {
    /// `default value for column …`, `view …`.
    pub what: String,
    /// The view's OID, if it is one's.
    pub view: Option<u32>,
}

/// One text of a table.
pub(super) struct Place<'a> {
    pub(super) what: String,
    /// The type of the column whose value it computes.
    pub(super) of: Option<SqlType>,
    pub(super) text: &'a mut String,
}

/// The expression texts of a table.
pub(super) fn places(table: &mut Table) -> Vec<Place<'_>> {
    let name = table.name.clone();
    let mut out = Vec::new();
    for column in table.columns.iter_mut().filter(|column| !column.dropped) {
        let what = format!("default value for column {} of table {name}", column.name);
        if let Some(text) = &mut column.default {
            out.push(Place { what: what.clone(), of: Some(column.ty.clone()), text });
        }
        if let Some(Generated::Stored(text)) = &mut column.generated {
            out.push(Place { what, of: Some(column.ty.clone()), text });
        }
    }
    for check in &mut table.checks {
        let what = format!("constraint {} on table {name}", check.name);
        out.push(Place { what, of: None, text: &mut check.expression });
    }
    let building = table.building.iter_mut().map(|build| &mut build.index);
    for index in table.primary.iter_mut().chain(&mut table.indexes).chain(building) {
        let what = format!("index {}", index.name);
        if let Some(text) = &mut index.predicate {
            out.push(Place { what: what.clone(), of: None, text });
        }
        for computed in index.columns.iter_mut().filter_map(|key| key.expression.as_mut()) {
            out.push(Place { what: what.clone(), of: None, text: &mut computed.sql });
        }
    }
    for policy in &mut table.row_security.policies {
        let what = format!("policy {} on table {name}", policy.name);
        for text in policy.using.iter_mut().chain(&mut policy.check) {
            out.push(Place { what: what.clone(), of: None, text });
        }
    }
    out
}

struct Finder<'a> {
    users: UserTypes<'a>,
    oid: u32,
}

impl Finder<'_> {
    fn means(&self, ty: &DataType) -> bool {
        named(ty, &self.users).is_ok_and(|ty| is_made_of(&ty, self.oid))
    }

    /// Whether a tree names the type.
    fn is_in<T: VisitMut + Clone>(&self, tree: &T) -> bool {
        let mut found = false;
        each_type(&mut tree.clone(), |ty| found |= self.means(ty));
        found
    }
}

fn breaking(found: bool) -> ControlFlow<()> {
    if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

pub(super) fn view_query(view: &View) -> Result<Statement> {
    parse_kept(&view.query)?
        .pop()
        .and_then(|mut parsed| parsed.statement.take())
        .ok_or_else(|| Error::corrupt("a view without a query"))
}

/// What is done with each type that a tree names.
type Edit<'e> = &'e mut dyn FnMut(&mut DataType);

impl Ddl<'_> {
    fn finder<'a>(&'a self, catalog: &'a CatalogSnapshot, oid: u32) -> Finder<'a> {
        Finder { users: UserTypes { catalog, settings: &self.context.settings }, oid }
    }

    /// Whether an expression names the type.
    pub(super) fn names_type(&self, catalog: &CatalogSnapshot, expr: &Expr, oid: u32) -> bool {
        self.finder(catalog, oid).is_in(expr)
    }

    /// What names the type in its SQL text.
    pub(super) fn texts_that_name_type(&self, oid: u32) -> Result<Vec<NamingText>> {
        let finder = self.finder(self.catalog(), oid);
        let mut out = Vec::new();
        for table in self.catalog().tables() {
            let mut table = (**table).clone();
            for place in places(&mut table) {
                let expr = parse_expr(place.text)?;
                if finder.is_in(&expr) {
                    out.push(NamingText { what: place.what, view: None });
                }
            }
        }
        for ty in self.catalog().user_types() {
            let TypeKind::Domain(domain) = &ty.kind else { continue };
            let texts = domain.checks.iter().map(|check| &check.expression);
            for text in texts.chain(&domain.default) {
                let expr = parse_expr(text)?;
                if finder.is_in(&expr) {
                    out.push(NamingText { what: format!("domain {}", ty.name), view: None });
                }
            }
        }
        for view in self.catalog().views() {
            let uses = view.columns.iter().any(|(_, ty)| is_made_of(ty, oid));
            let query = view_query(view)?;
            if uses || finder.is_in(&query) {
                out.push(NamingText { what: format!("view {}", view.name), view: Some(view.oid) });
            }
        }
        Ok(out)
    }

    /// What has a SQL text with an expression that is `found`; `None`: nothing has.
    pub(super) fn text_that(&self, found: impl Fn(&Expr) -> bool) -> Result<Option<String>> {
        let has = |text: &str| Ok::<_, Error>(any_expression(&parse_expr(text)?, &found));
        for table in self.catalog().tables() {
            let mut table = (**table).clone();
            for place in places(&mut table) {
                if has(place.text)? {
                    return Ok(Some(place.what));
                }
            }
        }
        for ty in self.catalog().user_types() {
            let TypeKind::Domain(domain) = &ty.kind else { continue };
            for text in domain.checks.iter().map(|check| &check.expression).chain(&domain.default) {
                if has(text)? {
                    return Ok(Some(format!("domain {}", ty.name)));
                }
            }
        }
        for view in self.catalog().views() {
            if visit_expressions(&view_query(view)?, |e| breaking(found(e))).is_break() {
                return Ok(Some(format!("view {}", view.name)));
            }
        }
        Ok(None)
    }

    /// Texts of domains are not written again.
    pub(super) fn refuse_in_domains(&self, oid: u32, what: &str) -> Result<()> {
        let made = self.catalog().user_types().any(|ty| {
            matches!(&ty.kind, TypeKind::Domain(domain)
                if is_made_of(&domain.base, oid) && !(domain.checks.is_empty() && domain.default.is_none()))
        });
        let named = self.texts_that_name_type(oid)?;
        let named = named.into_iter().find(|text| text.what.starts_with("domain "));
        match named {
            Some(text) => {
                Err(Error::unsupported(format!("{what} while {} names the type", text.what)))
            }
            None if made => Err(Error::unsupported(format!(
                "{what} while a domain over the type has constraints"
            ))),
            None => Ok(()),
        }
    }

    /// Writes the type's new name wherever its old one stands.
    pub(super) fn rename_type_in_texts(&mut self, oid: u32, schema: u32, name: &str) -> Result<()> {
        self.refuse_in_domains(oid, "ALTER TYPE")?;
        let before = self.catalog().clone();
        let quoted = |name: &str| Ident::with_quote('"', name);
        let new = ObjectName::from(vec![quoted(before.schema_name(schema)), quoted(name)]);
        let mut changed = Vec::new();
        {
            let finder = self.finder(&before, oid);
            let rename = |ty: &mut DataType| {
                if finder.means(ty) {
                    *innermost(ty) = DataType::Custom(new.clone(), Vec::new());
                }
            };
            for table in before.tables() {
                let mut table = (**table).clone();
                let mut touched = false;
                for place in places(&mut table) {
                    let mut expr = parse_expr(place.text)?;
                    if finder.is_in(&expr) {
                        each_type(&mut expr, rename);
                        *place.text = expr.to_string();
                        touched = true;
                    }
                }
                if touched {
                    changed.push(Object::Table(table));
                }
            }
            for view in before.views() {
                let mut query = view_query(view)?;
                if finder.is_in(&query) {
                    each_type(&mut query, rename);
                    changed
                        .push(Object::View(View { query: query.to_string(), ..(**view).clone() }));
                }
            }
        }
        for object in changed {
            self.change.put(object);
        }
        Ok(())
    }

    /// A schema has another name: so it has before the names of its types.
    pub(super) fn rename_schema_of_types(&mut self, from: &str, to: &str) -> Result<()> {
        let before = self.catalog().clone();
        let renamed = |tree: &mut dyn FnMut(Edit<'_>)| {
            let mut found = false;
            tree(&mut |ty| {
                if let DataType::Custom(name, _) = innermost(ty)
                    && let [schema, own] = parts(name).as_slice()
                    && schema == from
                {
                    *name = ObjectName::from(vec![ident(to), ident(own)]);
                    found = true;
                }
            });
            found
        };
        let in_text = |text: &mut String| -> Result<bool> {
            let mut expr = parse_expr(text)?;
            let found = renamed(&mut |edit| each_type(&mut expr, edit));
            if found {
                *text = expr.to_string();
            }
            Ok(found)
        };
        for table in before.tables() {
            let (mut table, mut touched) = ((**table).clone(), false);
            for place in places(&mut table) {
                touched |= in_text(place.text)?;
            }
            if touched {
                self.change.put(Object::Table(table));
            }
        }
        for ty in before.user_types() {
            let (mut ty, mut touched) = ((**ty).clone(), false);
            let TypeKind::Domain(domain) = &mut ty.kind else { continue };
            let checks = domain.checks.iter_mut().map(|check| &mut check.expression);
            for text in checks.chain(&mut domain.default) {
                touched |= in_text(text)?;
            }
            if touched {
                self.change.put(Object::Type(ty));
            }
        }
        for view in before.views() {
            let mut query = view_query(view)?;
            if renamed(&mut |edit| each_type(&mut query, edit)) {
                self.change
                    .put(Object::View(View { query: query.to_string(), ..(**view).clone() }));
            }
        }
        Ok(())
    }
}
