//! Texts that are not planned anew: statements that a session sends again with other constants.
//!
//! # Purpose
//! Drivers that write values into the text of a statement, and the simple protocol as a whole, send the same statement all day. From
//! the second time on, such a text is run as the prepared statement that it is, its literals the parameters
//! ([`telesto_sql_parser::lifting`]): it is neither parsed nor planned.
//!
//! ```text
//! text ─► cut into key and literals ─► known key, fixed literals equal, values of the types ─► run the prepared statement
//!                                 └─► else: parsed and planned as ever; the second time a prepared statement is made, too
//! ```
//! # Invariants
//! - A text means what it meant: a literal becomes a parameter only where that changes nothing ([`Place`]), its type is that
//!   of its column, and it is a value of that type; any doubt leaves the text to the ordinary way. All other literals have to be equal.
//! - Only plans by key: others are made for their constants. Nor of tables with partial indexes, which are chosen by constants.
//! - When definitions or settings have changed, nothing has run yet, and the text goes the ordinary way. Where a transaction is
//!   repeated at newer definitions, types are inferred again, and what has other types fails with 40001.
//! - Plans are the session's, as prepared statements' are: rights and settings are asked as for those.
//!
//! # On failure
//! None of its own: what cannot be learned is run as ever, and errors are those of the ordinary way.
//!
//! # Limits
//! [`SHAPES`] texts a session, [`VARIANTS`] of each for different fixed literals; then the one that was used longest ago is forgotten.
//! All sessions together have a [`SHARE`]th of the memory of statements beside it; when it is used up, nothing is learned. Texts of one
//! statement that come by the simple protocol. Not shared by sessions.

use std::hash::{BuildHasher as _, BuildHasherDefault};
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use futures::FutureExt as _;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use telesto_sql_expr::Settings;
use telesto_sql_parser::lifting::{Cut, Place, Target, Written, places};

use super::bounds::{Ran, bounded};
use super::{ParameterTypes, Prepared, ResultSink, Session, parse, tame};
use crate::catalog::{CatalogSnapshot, Relation, Table};
use crate::error::Result;
use crate::sqlparser::ast::{self, Statement};
use crate::types::{Datum, SqlType, TextStyle};
use telesto_sql_parser::names::fold;
use telesto_sql_parser::statement_kind::is_plain;

/// Of the memory of statements, as much again is a part of this size.
pub(super) const SHARE: u64 = 16;
/// What a known statement is taken to hold, bytes: tree and plan (measured: 6 to 11 KB).
const STATEMENT_BYTES: u64 = 12 << 10;
/// Texts that a session knows.
const SHAPES: usize = 64;
/// Statements of a text, by the literals that are no parameters.
const VARIANTS: usize = 2;
/// Texts remembered as having come once.
const MET: usize = 256;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// By the key of their cut.
    shapes: FxHashMap<String, Shape>,
    /// Counts the texts that were found.
    found: u64,
    /// Hashes of the keys that came once.
    met: FxHashSet<u64>,
    style: Option<(Arc<Settings>, TextStyle)>,
    /// A known statement is about to be planned for the first time.
    begins: AtomicBool,
    /// What its names mean had changed; nothing was done.
    stale: AtomicBool,
}

/// A text.
#[derive(Debug, Default)]
struct Shape {
    /// None: not to be learned.
    variants: Vec<Variant>,
    /// When it was found last, by the session's count.
    used: u64,
}

/// A statement of a text.
#[derive(Debug)]
struct Variant {
    /// The literals that are no parameters, by their number.
    fixed: Vec<(usize, String)>,
    places: Vec<Place>,
    /// What their values are read as: that of the parameter, with the modifier of the column they are assigned to.
    types: Vec<SqlType>,
    prepared: Arc<Prepared>,
}

/// What is known of a text.
pub(super) enum Found {
    /// It is this prepared statement, with these parameters.
    Known(Arc<Prepared>, Vec<Datum>),
    /// It came before, and may be worth knowing.
    Again(Cut),
    /// It goes the ordinary way.
    Nothing,
}

impl Texts {
    /// What is known of `sql`.
    pub fn find(&mut self, sql: &str, settings: &Arc<Settings>) -> Found {
        self.stale.store(false, Ordering::Relaxed);
        let Some(cut) = Cut::of(sql) else { return Found::Nothing };
        self.found += 1;
        let Some(shape) = self.shapes.get_mut(&cut.key) else {
            let hash = BuildHasherDefault::<FxHasher>::default().hash_one(&cut.key);
            if self.met.len() >= MET {
                self.met.clear();
            }
            return if self.met.insert(hash) { Found::Nothing } else { Found::Again(cut) };
        };
        shape.used = self.found;
        let variants = &shape.variants;
        let same = |variant: &&Variant| {
            variant.fixed.iter().all(|(index, text)| {
                cut.literals.get(*index).is_some_and(|literal| sql[literal.at.clone()] == **text)
            })
        };
        let Some(variant) = variants.iter().find(same) else {
            let learns = (1..VARIANTS).contains(&variants.len());
            return if learns { Found::Again(cut) } else { Found::Nothing };
        };
        let prepared = Arc::clone(&variant.prepared);
        let style = match &self.style {
            Some((of, style)) if Arc::ptr_eq(of, settings) => style,
            _ => &self.style.insert((Arc::clone(settings), settings.text_style(0))).1,
        };
        match parameters(sql, &cut, &variant.places, &variant.types, style) {
            Some(parameters) => Found::Known(prepared, parameters),
            None => Found::Nothing,
        }
    }

    /// Remembers the statement of a text; `None`: that there is none.
    fn learn(&mut self, cut: Cut, variant: Option<Variant>) {
        if self.shapes.len() >= SHAPES && !self.shapes.contains_key(&cut.key) {
            let oldest = self.shapes.iter().min_by_key(|(_, shape)| shape.used);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.shapes.remove(&key);
            }
        }
        let shape = self.shapes.entry(cut.key).or_default();
        shape.used = self.found;
        shape.variants.extend(variant);
    }

    /// The plan of a known statement is asked for, and is one of other definitions or settings. Whether the text is to go the
    /// ordinary way: else a transaction is being repeated, or the statement has begun, and it is planned anew.
    pub fn goes_stale(&self) -> bool {
        let stale = self.begins.swap(false, Ordering::Relaxed);
        self.stale.store(stale, Ordering::Relaxed);
        stale
    }

    /// Whether that was said since the text was found.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// The plan asked for holds.
    pub fn holds(&self) {
        self.begins.store(false, Ordering::Relaxed);
    }

    /// A statement failed: of that nothing is left to be done another way.
    pub fn fails(&self) {
        self.stale.store(false, Ordering::Relaxed);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.shapes.clear();
        self.stale.store(false, Ordering::Relaxed);
    }
}

/// The values at `places`; `None`: one is no value of its type, or may mean something else than as a literal.
fn parameters(
    sql: &str,
    cut: &Cut,
    places: &[Place],
    types: &[SqlType],
    style: &TextStyle,
) -> Option<Vec<Datum>> {
    let value = |(place, ty): (&Place, &SqlType)| {
        let text = cut.value(sql, place)?;
        let moment = matches!(ty, SqlType::Date | SqlType::Timestamp(_) | SqlType::TimestampTz(_));
        // `now` and `tomorrow` are not values.
        if moment && !text.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        Datum::from_text(&text, ty, style).ok()
    };
    places.iter().zip(types).map(value).collect()
}

/// Whether a literal written so means the same as a parameter of this type.
fn fits(written: Written, place: &Place, ty: &SqlType) -> bool {
    match written {
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
                )
        }
    }
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
    /// Runs the statement that a text is known to be. `false`: it means something else now; nothing has been done, and it is
    /// forgotten.
    pub(super) async fn execute_known(
        &mut self,
        prepared: Arc<Prepared>,
        parameters: Vec<Datum>,
        sink: &mut dyn ResultSink,
    ) -> Result<bool> {
        self.several = false;
        self.texts.begins.store(true, Ordering::Relaxed);
        self.cancel.shared().set_computes(false);
        sink.binary(false);
        let result = if self.block.is_none() {
            self.run_alone(&prepared, &parameters).await
        } else {
            self.run(&prepared, parameters).await
        };
        if self.texts.is_stale() {
            self.texts.clear();
            if self.block.as_ref().is_some_and(|block| !block.explicit) {
                self.abandon_block();
            }
            return Ok(false);
        }
        let result = self.spending.counts(result?);
        match sink.result(result).await {
            Ok(()) => Ok(true),
            Err(error) => Err(self.fail_with(error).boxed().await),
        }
    }

    /// [`Session::learn_text`], bounded like a statement.
    pub(super) async fn learn(
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
            Ran::Done(known) => Ok(known),
            Ran::Stopped(error) => Err(self.stopped(error, settings)),
        }
    }

    /// Makes a prepared statement of a text that came before, and gives it with this text's values; `None`: it goes the ordinary
    /// way, now or for good.
    async fn learn_text(
        &mut self,
        sql: &str,
        cut: Cut,
        parsed: &[parse::Parsed],
    ) -> Option<(Arc<Prepared>, Vec<Datum>)> {
        let [parse::Parsed { statement: Some(statement), as_of: None, need }] = parsed else {
            return None;
        };
        if !is_plain(statement) || !need.is_small() || self.temp.is_some() {
            return None;
        }
        if self.block.as_ref().is_some_and(|block| block.failed) {
            return None;
        }
        let mut places = places(sql, &cut, statement);
        let mut variant = self.variant_of(sql, &cut, &mut places).boxed().await;
        if let Some(Err(())) = variant {
            // Some of them are none after all.
            variant = self.variant_of(sql, &cut, &mut places).boxed().await;
        }
        let variant = variant.and_then(std::result::Result::ok);
        let style = self.settings.text_style(0);
        let run = variant.as_ref().and_then(|variant| {
            let values = parameters(sql, &cut, &variant.places, &variant.types, &style)?;
            Some((Arc::clone(&variant.prepared), values))
        });
        self.texts.learn(cut, variant);
        run
    }

    /// The statement with parameters at `places`. `Some(Err(()))`: not at those that were taken out of `places` now.
    async fn variant_of(
        &self,
        sql: &str,
        cut: &Cut,
        places: &mut Vec<Place>,
    ) -> Option<std::result::Result<Variant, ()>> {
        let mut parsed = parse::parse(&cut.template(sql, places)).ok()?;
        let statement = match parsed.as_mut_slice() {
            [one] if one.as_of.is_none() && one.need.is_small() => one.statement.take()?,
            _ => return None,
        };
        let unknown = ParameterTypes::new(&vec![None; places.len()]);
        let (catalog, plan, types) = self.describe(&statement, &unknown, false).await.ok()?;
        let types = types.resolved();
        let plain = of_plain_tables(&statement, &catalog, &self.settings);
        if !plan.is_by_key() || types.len() != places.len() || !plain {
            return None;
        }
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
            return Some(Err(()));
        }
        let fixed = cut.literals.iter().enumerate();
        let fixed = fixed
            .filter(|(index, _)| places.iter().all(|place| place.literal != *index))
            .map(|(index, literal)| (index, sql[literal.at.clone()].to_owned()))
            .collect();
        let charged =
            Some(self.engine.known.reserve("texts that are known", STATEMENT_BYTES).ok()?);
        let prepared = Prepared {
            sql: String::new(),
            parameter_types: types,
            columns: None,
            tame: tame::is_tame(&statement),
            statement: Some(statement),
            as_of: None,
            need: Default::default(),
            described: false,
            lifted: true,
            charged,
            booked: OnceLock::new(),
            plan: Mutex::new(Some((catalog.stamp, Arc::clone(&self.settings), plan))),
        };
        let read_as = found.into_iter().flatten().collect();
        let places = places.clone();
        Some(Ok(Variant { fixed, places, types: read_as, prepared: Arc::new(prepared) }))
    }
}

#[cfg(test)]
mod tests;
