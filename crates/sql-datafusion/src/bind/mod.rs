//! The binder: from a parsed query to a DataFusion plan with PostgreSQL's names, types and meaning.
//!
//! # Why not DataFusion's own SQL planner
//! Its types, literals, operators and functions are not PostgreSQL's: it would have to be corrected
//! after the fact in every place. Here names and types are resolved the way PostgreSQL does it,
//! with the registry the key path uses, and DataFusion gets a plan in which nothing is left to
//! coerce.
//!
//! # Invariants
//! - Every expression handed on carries the [`SqlType`] it has in PostgreSQL, and its Arrow type is
//!   the one [`super::types::arrow_type`] gives for it.
//! - Depth of nesting is bounded ([`MAX_DEPTH`], [`MAX_QUERIES`]), and the stack grows with it.

mod access;
mod arguments;
mod array_query;
mod between;
mod call;
mod case;
mod combined;
mod days;
mod distinct_on;
mod domains;
mod equality;
mod expr;
mod finish;
mod frames;
mod from;
mod group;
mod hypothetical;
mod intervals;
mod join_condition;
mod kept;
mod lateral;
mod levels;
mod lists;
mod locks;
mod merged;
mod named_once;
mod operators;
mod ordered;
mod policies;
mod query;
mod recursion;
mod row_comparison;
mod row_order;
mod row_subquery;
mod sample;
mod scope;
mod search;
mod select;
mod set_operations;
mod sets;
mod statement;
mod subquery;
mod table_call;
mod whole_row;
mod window_call;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::common::{ScalarValue, TableReference};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, TableSource};
use datafusion::sql::sqlparser::ast;
use telesto_common::TableId;

use super::fault;
use super::once::Allowance;
use super::types::{TypeShape, arrow_type, scalar};
use super::udf::Evaluation;
use crate::seat::Seat;
use telesto_sql_expr::Settings;
use telesto_sql_expr::parameters::two_types;
use telesto_sql_expr::ty::{CastContext, castable};
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

pub(crate) use operators::natively_ordered;
pub(crate) use scope::{Relation, ScopeColumn};
pub(crate) use select::{all_columns, collect, substitute};

/// Nesting of expressions and queries that is accepted, with the views they name.
pub(crate) const MAX_DEPTH: usize = telesto_sql_parser::syntax::depth::MAX_CHAINED + 1_000;

/// Nesting of queries that is accepted: each is several operators, which DataFusion's planning
/// walks again and again.
pub(crate) const MAX_QUERIES: usize = 224;

/// An expression with its PostgreSQL type.
#[derive(Clone, Debug)]
pub(crate) struct Typed {
    /// The plan expression.
    pub expr: Expr,
    /// Its type; unknown for untyped literals and parameters.
    pub ty: SqlType,
    /// The untyped parameter it is, by position from 0.
    pub parameter: Option<usize>,
}

impl Typed {
    /// An expression of a known type.
    pub fn of(expr: Expr, ty: SqlType) -> Self {
        Self { expr, ty, parameter: None }
    }

    /// A condition.
    pub fn bool(expr: Expr) -> Self {
        Self::of(expr, SqlType::Bool)
    }

    /// An untyped NULL.
    pub fn null() -> Self {
        Self::of(Expr::Literal(ScalarValue::Null, None), SqlType::Unknown)
    }

    /// An untyped string literal.
    pub fn unknown(text: String) -> Self {
        Self::of(Expr::Literal(ScalarValue::Utf8(Some(text)), None), SqlType::Unknown)
    }

    /// A text constant.
    pub fn text(text: String) -> Self {
        Self::of(Expr::Literal(ScalarValue::Utf8(Some(text)), None), SqlType::Text)
    }

    /// An integer constant.
    pub fn int(value: i32) -> Self {
        Self::of(Expr::Literal(ScalarValue::Int32(Some(value)), None), SqlType::Int4)
    }

    /// The text of an untyped literal.
    pub fn literal(&self) -> Option<&str> {
        match &self.expr {
            Expr::Literal(ScalarValue::Utf8(Some(text)), _) if self.ty.is_unknown() => Some(text),
            _ => None,
        }
    }
}

/// A common table expression in view.
#[derive(Clone, Debug)]
pub(crate) struct CteEntry {
    name: String,
    relation: Relation,
}

/// A table as the binder needs it.
pub(crate) struct BoundTable {
    /// Its rows.
    pub source: Arc<dyn TableSource>,
    /// Its columns: name, name in the plan, type.
    pub columns: Vec<(String, String, SqlType)>,
    /// Its id, for stored tables.
    pub id: Option<TableId>,
    /// What hides rows of it.
    pub guard: Option<Guard>,
}

/// The policies of a table.
pub(crate) struct Guard {
    /// The table.
    pub table: TableId,
    /// Its name.
    pub name: String,
    /// Each must hold, over the table as it is called there.
    pub conditions: telesto_sql_plan::row_security::Conditions,
    /// By which they are read.
    pub stored: Arc<Settings>,
}

/// As what a relation is looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// The role whose policies count; `None`: that of the statement.
    pub reader: Option<u32>,
    /// Rows are locked.
    pub locks: bool,
    /// A policy reads it: what waits for curators decides nothing.
    pub for_policy: bool,
}

/// What a relation's name stands for.
pub(crate) enum Found {
    /// A table.
    Table(BoundTable),
    /// A view.
    View(Box<BoundView>),
}

/// A view as the binder finds it.
pub(crate) struct BoundView {
    /// Its OID, which its columns are told to come from.
    pub oid: TableId,
    pub query: Box<ast::Query>,
    /// Its columns' names.
    pub names: Vec<String>,
    /// The stack that the query takes.
    pub need: telesto_sql_parser::stack::Need,
    /// Who reads the tables below; `None`: whoever runs the statement.
    pub reader: Option<u32>,
    /// Its name, where no condition of its readers may see what it hides.
    pub barrier: Option<String>,
    /// By which its query is read.
    pub stored: Arc<Settings>,
}

/// Where the binder finds tables.
pub(crate) trait Tables {
    /// The relation of that (possibly schema-qualified) name. `unique` makes its columns' names in
    /// the plan from their own.
    fn table(
        &self,
        name: &[String],
        reading: Reading,
        unique: &dyn Fn(&str) -> String,
    ) -> Result<Found>;
    /// Positions of the primary key's columns; empty when there is none.
    fn primary_key(&self, table: TableId) -> Result<Vec<usize>>;
    /// The type a syntax names; `stored`: by the settings of a text that is stored.
    fn type_named(&self, ty: &ast::DataType, stored: Option<&Settings>) -> Result<SqlType>;

    /// The domain of a column by its position among the visible ones, by OID.
    fn domain_of(&self, table: TableId, position: usize) -> Option<u32>;
}

/// Parameters of the statement: their types as far as known, their values when it is executed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters {
    /// Types by position.
    pub types: BTreeMap<usize, SqlType>,
    /// Values, when executing.
    pub values: Option<Arc<[Datum]>>,
    /// How many the statement mentions.
    pub count: usize,
    /// Those that had no type where any would do.
    pub open: BTreeSet<usize>,
    /// The plan is to be kept: parameters are calls of this seat.
    pub seat: Option<Arc<Seat>>,
    /// Numbers of those whose values got into a plan that is to be kept.
    pub fixed: BTreeSet<usize>,
    /// What got into it is another value at another time.
    pub passes: bool,
}

/// Binds one statement.
pub(crate) struct Binder<'a> {
    tables: &'a dyn Tables,
    evaluation: Evaluation,
    parameters: RefCell<Parameters>,
    names: RefCell<BTreeMap<String, usize>>,
    instances: Cell<usize>,
    depth: Cell<usize>,
    queries: Cell<usize>,
    /// How many CASEs are around: what may fail there is for some rows only.
    cases: Cell<usize>,
    ctes: RefCell<Vec<CteEntry>>,
    apply: Option<Arc<SessionState>>,
    row_by_row: bool,
    correlated: Cell<bool>,
    /// Whether a subquery that is run row by row has one inside that DataFusion finds no join for.
    refused: Cell<bool>,
    /// Whether a call that waits was met.
    waiting: Cell<bool>,
    /// Whether a call was met that asks what indexes take.
    measures: Cell<bool>,
    /// Where the next expression stands, until it is begun.
    place: Cell<Place>,
    keep_unknown: Cell<bool>,
    /// What spools of WITH queries may take together.
    spooled: Arc<Allowance>,
    /// What untyped outputs of the query to be bound next become.
    wanted: RefCell<Vec<SqlType>>,
    windows: RefCell<Vec<ast::NamedWindowDefinition>>,
    /// Relations that an outer join fills up with NULLs.
    null_extended: RefCell<BTreeSet<Option<TableReference>>>,
    /// Relations whose rows have a type that is called after a table or a view.
    named_rows: RefCell<BTreeSet<Option<TableReference>>>,
    /// Relations whose rows the query is grouped by that is being bound.
    grouped_rows: RefCell<BTreeSet<String>>,
    /// Whose policies count here: inside a view, its owner's; `None`: those of whoever runs the
    /// statement.
    reader: Cell<Option<u32>>,
    /// The rows of the tables in FROM are locked.
    locking: Cell<bool>,
    /// Tables whose policies are being bound.
    guarding: RefCell<Vec<TableId>>,
    /// By which the names of types and the constants are read of the stored text that is being
    /// bound.
    stored: RefCell<Option<Arc<Settings>>>,
}

/// Where an expression stands: which subqueries may become joins there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// In a WHERE, below nothing but AND, OR and NOT: a join can tell whether there is a row.
    exists: bool,
    /// In a WHERE, below nothing but AND and OR: false does what NULL does.
    inside: bool,
}

/// One level of nesting; leaves it when dropped.
struct Depth<'a>(&'a Cell<usize>);

impl Drop for Depth<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<'a> Binder<'a> {
    /// A binder over `tables` whose functions run with `evaluation`.
    pub fn new(tables: &'a dyn Tables, evaluation: Evaluation, parameters: Parameters) -> Self {
        Self {
            tables,
            evaluation,
            parameters: RefCell::new(parameters),
            names: RefCell::default(),
            instances: Cell::new(0),
            depth: Cell::new(0),
            queries: Cell::new(0),
            cases: Cell::new(0),
            ctes: RefCell::default(),
            spooled: Arc::default(),
            apply: None,
            row_by_row: false,
            correlated: Cell::new(false),
            refused: Cell::new(false),
            waiting: Cell::new(false),
            measures: Cell::new(false),
            place: Cell::default(),
            keep_unknown: Cell::new(false),
            wanted: RefCell::default(),
            windows: RefCell::default(),
            null_extended: RefCell::default(),
            named_rows: RefCell::default(),
            grouped_rows: RefCell::default(),
            reader: Cell::default(),
            locking: Cell::default(),
            guarding: RefCell::default(),
            stored: RefCell::default(),
        }
    }

    /// Runs subqueries that joins would get wrong as calls, with plans made by `state`; all
    /// correlated ones when `row_by_row`.
    pub fn applying(mut self, state: &Arc<SessionState>, row_by_row: bool) -> Self {
        self.apply = Some(Arc::clone(state));
        self.row_by_row = row_by_row;
        self
    }

    /// Whether a correlated subquery was met.
    pub fn met_correlated(&self) -> bool {
        self.correlated.get()
    }

    /// Whether it is known by now that correlated subqueries must be run row by row.
    pub fn met_refused(&self) -> bool {
        self.refused.get()
    }

    /// Whether a call that waits was met.
    pub fn met_waiting(&self) -> bool {
        self.waiting.get()
    }

    /// Whether a call was met that asks what indexes take.
    pub fn met_measuring(&self) -> bool {
        self.measures.get()
    }

    /// What is known of the parameters after binding.
    pub fn into_parameters(self) -> Parameters {
        self.parameters.into_inner()
    }

    fn enter(&self) -> Result<Depth<'_>> {
        telesto_sql_types::interrupt::check()?;
        Self::deeper_by(&self.depth, MAX_DEPTH)
    }

    /// Inside of a CASE, until what is returned is dropped.
    fn guarded(&self) -> Depth<'_> {
        self.cases.set(self.cases.get() + 1);
        Depth(&self.cases)
    }

    fn enter_query(&self) -> Result<Depth<'_>> {
        // What a query is bound to is walked several times: that of a deep one takes milliseconds.
        telesto_sql_types::interrupt::check_long()?;
        Self::deeper_by(&self.queries, MAX_QUERIES)
    }

    fn deeper_by(count: &Cell<usize>, most: usize) -> Result<Depth<'_>> {
        let depth = count.get() + 1;
        if depth > most {
            return Err(telesto_sql_parser::syntax::too_deep());
        }
        count.set(depth);
        Ok(Depth(count))
    }

    /// A name no other part of the plan has.
    fn unique(&self, base: &str) -> String {
        let mut names = self.names.borrow_mut();
        loop {
            let count = names.entry(base.to_owned()).or_insert(0);
            *count += 1;
            if *count == 1 {
                return base.to_owned();
            }
            let name = format!("{base}#{count}");
            // A column may be called so by its user.
            if !names.contains_key(&name) {
                names.insert(name.clone(), 1);
                return name;
            }
        }
    }

    fn next_instance(&self) -> usize {
        let next = self.instances.get();
        self.instances.set(next + 1);
        next
    }

    fn evaluation(&self) -> Evaluation {
        self.evaluation.clone()
    }

    fn find_table(&self, name: &[String]) -> Result<Found> {
        let reading = Reading {
            reader: self.reader.get(),
            locks: self.locking.get(),
            for_policy: !self.guarding.borrow().is_empty(),
        };
        self.tables.table(name, reading, &|column| self.unique(column))
    }

    fn primary_key(&self, table: TableId) -> Result<Vec<usize>> {
        self.tables.primary_key(table)
    }

    fn type_named(&self, ty: &ast::DataType) -> Result<SqlType> {
        self.tables.type_named(ty, self.stored.borrow().as_deref())
    }

    /// `$n`.
    fn parameter(&self, name: &str) -> Result<Typed> {
        let number = telesto_sql_expr::parameters::number(name)?;
        let at = number - 1;
        let mut parameters = self.parameters.borrow_mut();
        parameters.count = parameters.count.max(number);
        match parameters.types.get(&at).cloned() {
            None => Ok(Typed { parameter: Some(at), ..Typed::null() }),
            Some(ty) if let Some(seat) = &parameters.seat => {
                Ok(Typed::of(crate::parameter::call(number, &ty, seat), ty))
            }
            Some(ty) => {
                let value = match &parameters.values {
                    None => Datum::Null,
                    Some(values) => values.get(at).cloned().ok_or_else(|| {
                        fault::new("08P01", format!("parameter {name} has no value"))
                    })?,
                };
                Ok(Typed::of(Expr::Literal(scalar(&value, &ty)?, None), ty))
            }
        }
    }

    /// Fixes the type of an untyped parameter.
    fn decide_parameter(&self, at: usize, ty: &SqlType) -> Result<Typed> {
        let known =
            self.parameters.borrow_mut().types.entry(at).or_insert_with(|| ty.clone()).clone();
        let typed = self.parameter(&format!("${}", at + 1))?;
        if known == *ty {
            return Ok(typed);
        }
        // Met before, where its type was told.
        if !castable(&known, ty, CastContext::Implicit) {
            return Err(two_types(at + 1, &known, ty));
        }
        self.cast(typed, ty)
    }

    /// Refuses a parameter for a column of a type when it was met with another one, as PostgreSQL
    /// does, though one may be cast to the other.
    fn meets_its_type(&self, at: usize, ty: &SqlType) -> Result<()> {
        match self.parameters.borrow().types.get(&at) {
            Some(known) if known != ty && !(known.is_string() && ty.is_string()) => {
                Err(two_types(at + 1, known, ty))
            }
            _ => Ok(()),
        }
    }

    /// What stands where any type will do: an untyped parameter is left open there.
    fn of_any_type(&self, typed: Typed) -> Result<Typed> {
        match typed.parameter.filter(|_| typed.ty.is_unknown()) {
            None if typed.ty.is_unknown() => self.cast(typed, &SqlType::Text),
            None => Ok(typed),
            Some(at) => {
                self.parameters.borrow_mut().open.insert(at);
                Ok(Typed::of(Self::null_of(&SqlType::Text)?, SqlType::Text))
            }
        }
    }

    /// The null of a type.
    fn null_of(ty: &SqlType) -> Result<Expr> {
        let null = ScalarValue::try_from(&arrow_type(ty)).map_err(fault::from_datafusion)?;
        Ok(Expr::Literal(null, None))
    }
}
