//! Learning a text: the prepared statement that stands for it from then on.
//!
//! # Invariants
//! - A literal is a parameter only if the parameter has the type that the literal would have had,
//!   or one that means the same in its place (`fits`), and only in statements of tables whose
//!   indexes are not chosen by constants.
//! - Nothing is learned from a catalog that one transaction alone sees: its own definitions,
//!   something temporary, the past.
//!
//! # On failure
//! What cannot be learned is remembered as that; what failed may be learned later.
//!
//! # Limits
//! Statements of an ordinary depth that only read or change rows (`is_plain`).

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use futures::FutureExt as _;
use parking_lot::Mutex;
use telesto_sql_expr::Settings;
use telesto_sql_parser::lifting::{Cut, Place, Target, Written, places};

use super::store::Variant;
use super::{Basis, KeptPlan, parameters};
use crate::catalog::{CatalogSnapshot, Relation, Table};
use crate::error::Result;
use crate::plan::Plan;
use crate::session::bounds::{Ran, bounded};
use crate::session::{ParameterTypes, Prepared, Session, parse, tame};
use crate::sqlparser::ast::{self, Statement};
use crate::types::{Datum, SqlType};
use telesto_sql_parser::names::fold;
use telesto_sql_parser::statement_kind::is_plain;

/// What became of a text to be learned.
enum Made {
    /// It stands for the text.
    Variant(Box<Variant>),
    /// Not with all of these places; fewer are left.
    With,
    /// The text goes the ordinary way.
    Unfit,
    /// Nobody knows yet.
    Nothing,
}

/// Whether a literal written so means the same as a parameter of this type.
fn fits(written: Written, place: &Place, ty: &SqlType) -> bool {
    match written {
        // The cast says what it is.
        Written::String if place.cast => fits_cast(ty),
        // With a real, a number is compared as a double.
        Written::Number => match ty {
            SqlType::Int4 | SqlType::Int8 | SqlType::Numeric(None) | SqlType::Float8 => true,
            // A sum of a smallint and a literal is an integer.
            SqlType::Int2 => !place.summand,
            _ => false,
        },
        Written::String => {
            !place.summand
                && matches!(
                    ty,
                    SqlType::Text
                        | SqlType::Varchar(None)
                        | SqlType::Char(None)
                        | SqlType::Uuid
                        | SqlType::Bool
                        | SqlType::Int2
                        | SqlType::Int4
                        | SqlType::Int8
                        | SqlType::Numeric(None)
                        | SqlType::Float8
                        | SqlType::Date
                        | SqlType::Timestamp(None)
                        | SqlType::TimestampTz(None)
                        | SqlType::Jsonb
                        | SqlType::Bytea
                )
        }
    }
}

/// Whether a string with a cast to this type is the value that its text reads as.
fn fits_cast(ty: &SqlType) -> bool {
    matches!(
        ty,
        SqlType::Bool
            | SqlType::Int2
            | SqlType::Int4
            | SqlType::Int8
            | SqlType::Numeric(None)
            | SqlType::Float8
            | SqlType::Text
            | SqlType::Bytea
            | SqlType::Uuid
            | SqlType::Date
            | SqlType::Time(None)
            | SqlType::Timestamp(None)
            | SqlType::TimestampTz(None)
            | SqlType::Interval
            | SqlType::Jsonb
    )
}

/// The table that a statement writes; `None`: none, or what is no table.
fn target_table(
    statement: &Statement,
    catalog: &CatalogSnapshot,
    settings: &Settings,
) -> Option<Arc<Table>> {
    let name = match statement {
        Statement::Insert(insert) => match &insert.table {
            ast::TableObject::TableName(name) => name,
            _ => return None,
        },
        Statement::Update(update) => match &update.table.relation {
            ast::TableFactor::Table { name, .. } => name,
            _ => return None,
        },
        _ => return None,
    };
    match relation(name, catalog, &settings.effective_search_path()) {
        Some(Relation::Table(table)) => Some(Arc::clone(table)),
        _ => None,
    }
}

/// What the value at `place` is read as, to become a parameter of type `ty`.
fn read_as(place: &Place, ty: &SqlType, table: Option<&Table>) -> Option<SqlType> {
    let column = match &place.target {
        None => return Some(ty.clone()),
        Some(Target::Named(name)) => table?.columns.iter().find(|column| column.name == *name)?,
        Some(Target::Position(position)) => {
            table?.columns.iter().filter(|column| !column.dropped).nth(*position)?
        }
    };
    (column.domain.is_none() && column.ty.without_modifier() == *ty).then(|| column.ty.clone())
}

fn relation<'a>(
    name: &ast::ObjectName,
    catalog: &'a CatalogSnapshot,
    path: &[String],
) -> Option<&'a Relation> {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect();
    match parts.as_slice() {
        [relation] => catalog.resolve(None, relation, path),
        [schema, relation] => catalog.resolve(Some(schema), relation, path),
        _ => None,
    }
}

/// Whether all relations of the statement are tables without partial indexes.
fn of_plain_tables(statement: &Statement, catalog: &CatalogSnapshot, settings: &Settings) -> bool {
    let path = settings.effective_search_path();
    let found = ast::visit_relations(statement, |name| match relation(name, catalog, &path) {
        Some(Relation::Table(table))
            if table.indexes.iter().all(|index| index.predicate.is_none()) =>
        {
            ControlFlow::Continue(())
        }
        _ => ControlFlow::Break(()),
    });
    found.is_continue()
}

impl Session {
    /// [`Session::learn_text`], bounded like a statement.
    pub(in crate::session) async fn learn(
        &mut self,
        sql: &str,
        cut: Cut,
        parsed: &[parse::Parsed],
    ) -> Result<Option<(Arc<Prepared>, Vec<Datum>)>> {
        let settings = Arc::clone(&self.settings);
        let (token, mut timer) = self.begin_statement();
        let ran = {
            let work = pin!(self.learn_text(sql, cut, parsed));
            bounded(&mut timer, &token, work).await
        };
        match ran {
            // Whatever fails while it is learned goes the ordinary way, but for what was told to
            // end: that would begin anew there.
            Ran::Done(known) => match token.check() {
                Ok(()) => Ok(known),
                Err(error) => Err(self.stopped(error, settings)),
            },
            Ran::Stopped(error) => Err(self.stopped(error, settings)),
        }
    }

    /// Makes a prepared statement of a text that came before, and gives it with this text's values;
    /// `None`: it goes the ordinary way, now or for good.
    async fn learn_text(
        &mut self,
        sql: &str,
        cut: Cut,
        parsed: &[parse::Parsed],
    ) -> Option<(Arc<Prepared>, Vec<Datum>)> {
        let [parse::Parsed { statement: Some(statement), as_of: None, need }] = parsed else {
            return None;
        };
        let basis = self.learns()?;
        if !is_plain(statement) || !need.is_small() || cut.has_parameters {
            self.engine.texts.learn(&basis, cut, None);
            return None;
        }
        self.learn_statement(sql, cut, statement, &basis).await
    }

    /// The same of its statement.
    pub(super) async fn learn_statement(
        &mut self,
        sql: &str,
        cut: Cut,
        statement: &Statement,
        basis: &Arc<Basis>,
    ) -> Option<(Arc<Prepared>, Vec<Datum>)> {
        let mut places = places(sql, &cut, statement);
        let mut made = self.variant_of(sql, &cut, &mut places).boxed().await;
        if let Made::With = made {
            // Some of them are none after all.
            made = self.variant_of(sql, &cut, &mut places).boxed().await;
        }
        let variant = match made {
            Made::Variant(variant) => Some(*variant),
            Made::Unfit | Made::With => None,
            Made::Nothing => return None,
        };
        let run = variant.as_ref().and_then(|variant| {
            let values = parameters(sql, &cut, &variant.places, &variant.types, &basis.style)?;
            Some((Arc::clone(&variant.prepared), values))
        });
        self.engine.texts.learn(basis, cut, variant);
        run
    }

    /// The basis to learn under; `None`: what the session sees now is nobody else's.
    pub(super) fn learns(&self) -> Option<Arc<Basis>> {
        let apart = self.block.as_ref().is_some_and(|block| {
            block.failed || block.base.is_some() || block.options.as_of.is_some()
        });
        let basis = self.basis();
        (basis.keeps && !apart && self.temp.is_none()).then_some(basis)
    }

    /// The statement with parameters at `places`, of which those that are none are taken out.
    async fn variant_of(&self, sql: &str, cut: &Cut, places: &mut Vec<Place>) -> Made {
        let Ok(mut parsed) = parse::parse(&cut.template(sql, places)) else { return Made::Unfit };
        let statement = match parsed.as_mut_slice() {
            [one] if one.as_of.is_none() && one.need.is_small() => one.statement.take(),
            _ => None,
        };
        let Some(statement) = statement else { return Made::Unfit };
        let unknown = ParameterTypes::new(&vec![None; places.len()]);
        let described = match self.describe(&statement, &unknown, false).await {
            Ok(described) => Some(described),
            // It may be wrong today, or with parameters alone.
            Err(_) if places.is_empty() => return Made::Nothing,
            Err(_) => None,
        };
        let lifts = described.as_ref().is_some_and(|(catalog, plan, types)| {
            // SELECT INTO defines something, which is the session's to do.
            matches!(plan, Plan::Run(_))
                && types.resolved().len() == places.len()
                && (places.is_empty() || of_plain_tables(&statement, catalog, &self.settings))
        });
        let Some((catalog, plan, types)) = described.filter(|_| lifts) else {
            // Then as it is written.
            let with = !places.is_empty();
            places.clear();
            return if with { Made::With } else { Made::Unfit };
        };
        let types = types.resolved();
        let table = target_table(&statement, &catalog, &self.settings);
        let read_as = |(place, ty): (&Place, &SqlType)| {
            let written = cut.literals[place.literal].written;
            fits(written, place, ty).then(|| read_as(place, ty, table.as_deref())).flatten()
        };
        let found: Vec<Option<SqlType>> = places.iter().zip(&types).map(read_as).collect();
        let mut fit = found.iter().map(Option::is_some);
        let before = places.len();
        places.retain(|_| fit.next() == Some(true));
        if places.len() < before {
            return Made::With;
        }
        let fixed = cut.literals.iter().enumerate();
        let fixed = fixed
            .filter(|(index, _)| places.iter().all(|place| place.literal != *index))
            .map(|(index, literal)| (index, sql[literal.at.clone()].to_owned()))
            .collect();
        let Some(charged) = self.engine.texts.room(&cut.key) else { return Made::Nothing };
        let prepared = Prepared {
            sql: String::new(),
            parameter_types: types,
            columns: plan.columns().cloned(),
            tame: tame::is_tame(&statement),
            statement: Some(Arc::new(statement)),
            as_of: None,
            need: Default::default(),
            described: false,
            lifted: true,
            stands_for: None,
            charged: None,
            booked: OnceLock::new(),
            plan: Mutex::new(Some(KeptPlan {
                stamp: catalog.stamp,
                basis: self.basis(),
                plan,
                told: false,
            })),
            shown: OnceLock::new(),
            effects: OnceLock::new(),
        };
        let read_as = found.into_iter().flatten().collect();
        let places = places.clone();
        Made::Variant(Box::new(Variant::new(fixed, places, read_as, Arc::new(prepared), charged)))
    }
}
