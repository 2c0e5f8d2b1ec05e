//! What a statement writes: a table, or the table below a view.
//!
//! # Protocol
//! ```text
//! view v (b, a, s): SELECT b, a, a + b FROM t WHERE a > 0
//! UPDATE v SET b = 1 WHERE s < 5               -> t, its columns called as in v; condition  t.a > 0 AND t.a + t.b < 5
//! UPDATE v SET b = x FROM u WHERE s < u.y      -> rows of (SELECT b, a, a + b AS s, key FROM t WHERE a > 0) AS v, u
//! ```
//!
//! # Invariants
//! - Names of a statement are those of the view ([`Written::face`]); keys, checks and defaults are
//!   those of the table.
//! - Only rows the view shows are updated or deleted. A row may leave the view by what is written
//!   to it, as in PostgreSQL without CHECK OPTION.
//!
//! # Limits
//! Columns the view computes by a query are not in RETURNING. There is no CHECK OPTION.

use super::rows::{keyed, quoted, select};
use super::*;
use crate::access::conjunction;
use telesto_sql_catalog::{CheckOption, Relation};
use telesto_sql_parser::sqlparser::ast::Ident;
use telesto_sql_plan::hidden::KEY_COLUMN;
use telesto_sql_plan::row_security::Finding;
use telesto_sql_plan::updatable_view::{UpdatableView, below};

/// What is done to a view, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Insert,
    Update,
    Delete,
}

/// Positions of computed columns, beyond those of any row, until what computes them is put in
/// ([`Written::computed`]).
const COMPUTED: usize = 1 << 40;

/// Where a column's value comes from.
#[derive(Clone, Debug)]
enum Place {
    /// The table's row.
    Row(usize),
    /// This, over the table's row.
    Computed(Box<Expr>),
    /// It needs a query.
    Query,
}

/// What a statement writes.
pub(super) struct Written {
    /// The table whose rows are written.
    pub table: Arc<Table>,
    /// The table as the statement names it: a view's names, without the columns the view has not.
    pub face: Arc<Table>,
    /// What the statement calls it.
    pub shown: String,
    /// The role whose policies hide rows of the table.
    pub secured: Option<u32>,
    below: Option<UpdatableView>,
    columns: Vec<(String, Place)>,
    /// What the views' rows fulfil, with the level of the view; `None`: it needs a query.
    conditions: Option<Vec<(usize, Expr)>>,
}

impl Written {
    /// What is called `name`, to be written.
    ///
    /// # Errors
    /// 42P01, 42809; 55000 for a view that cannot be written.
    pub fn named(
        name: &ObjectName,
        alias: Option<&Ident>,
        doing: Doing,
        context: &mut PlanContext<'_>,
    ) -> Result<Self> {
        let (schema, called) = crate::name_parts(name)?;
        let path = context.settings.effective_search_path();
        let found = context.catalog.resolve(schema.as_deref(), &called, &path);
        let (table, face, below) = match found {
            Some(Relation::View(view)) => {
                let below = below(view, context.catalog, &path)
                    .map_err(|reason| not_updatable(&view.name, reason, doing))?;
                if doing != Doing::Delete && below.columns().all(|column| column.place.is_none()) {
                    return Err(not_updatable(&view.name, NO_COLUMNS, doing));
                }
                (Arc::clone(&below.table), Arc::new(face(&below, &view.name)), Some(below))
            }
            _ => {
                let table = find_table(name, context)?;
                (Arc::clone(&table), table, None)
            }
        };
        let shown = alias.map_or_else(|| face.name.clone(), fold);
        let own = table.visible_columns().map(|(at, column)| (column.name.clone(), Place::Row(at)));
        let columns = own.collect();
        let conditions = Some(Vec::new());
        let reader = below.as_ref().and_then(|below| below.reader);
        let secured = crate::policies::secured(&table, reader, context)?;
        let mut written = Self { table, face, shown, secured, below, columns, conditions };
        written.look_through(context);
        Ok(written)
    }

    /// Follows columns and conditions from the table to the view.
    fn look_through(&mut self, context: &mut PlanContext<'_>) {
        let Some(below) = &self.below else { return };
        let mut inner = std::mem::take(&mut self.columns);
        for (number, level) in below.levels.iter().enumerate() {
            let settings = context.settings.of_owner(context.catalog, level.owner);
            let eval = EvalContext::planning(&settings, context.catalog);
            for (column, seen) in inner.iter_mut().zip(&level.inner) {
                column.0.clone_from(&seen.name);
            }
            let relation = seen(&fold(&level.alias), &inner, &self.table);
            let scope = Scope { relations: vec![relation] };
            if let Some(selection) = &level.selection {
                let bound =
                    Binder::new(&scope, context.parameters, &eval, "WHERE").condition(selection);
                match (bound, &mut self.conditions) {
                    (Ok(mut bound), Some(all)) => {
                        put_in(&mut bound, &inner);
                        all.push((number, bound));
                    }
                    _ => self.conditions = None,
                }
            }
            let items = level.items.iter().map(|(expr, column)| {
                let place = column.place.map_or_else(
                    || {
                        let mut binder = Binder::new(&scope, context.parameters, &eval, "SELECT");
                        binder.bind_known(expr).map_or(Place::Query, |mut bound| {
                            put_in(&mut bound, &inner);
                            Place::Computed(Box::new(bound))
                        })
                    },
                    Place::Row,
                );
                (column.name.clone(), place)
            });
            let items = items.collect();
            inner = items;
        }
        self.columns = inner;
    }

    /// The columns a statement may name, those of a row first; what it binds is to go through
    /// [`Self::computed`].
    pub fn relation(&self) -> ScopeRelation {
        seen(&self.shown, &self.columns, &self.table)
    }

    /// Whether it is the table itself, not a view of it.
    pub fn is_table(&self) -> bool {
        self.below.is_none()
    }

    /// `expr` with what computes the view's columns put in for them.
    pub fn computed(&self, mut expr: Expr) -> Expr {
        if self.below.is_some() {
            put_in(&mut expr, &self.columns);
        }
        expr
    }

    /// The columns of `*`, in order.
    ///
    /// # Errors
    /// 0A000 where one needs a query.
    pub fn star(&self) -> Result<Vec<(Expr, ResultColumn)>> {
        let column = |(name, place): &(String, Place)| match place {
            Place::Row(at) => {
                let own = &self.face.columns[*at];
                let column = ResultColumn {
                    name: name.clone(),
                    ty: own.ty.clone(),
                    table_oid: self.face.id.0,
                    attnum: own.id,
                    whole_row: false,
                };
                Ok((Expr::column(*at, own.ty.clone()), column))
            }
            Place::Computed(expr) => {
                Ok(((**expr).clone(), ResultColumn::new(name.clone(), expr.ty.clone())))
            }
            Place::Query => Err(query_returned()),
        };
        self.columns.iter().map(column).collect()
    }

    /// The columns that are given when an INSERT names none.
    ///
    /// # Errors
    /// 0A000 where the view computes one.
    pub fn all(&self) -> Result<Vec<usize>> {
        let place = |(name, place): &(String, Place)| match place {
            Place::Row(at) => Ok(*at),
            _ => Err(self.not_written(name, Doing::Insert)),
        };
        self.columns.iter().map(place).collect()
    }

    /// Refuses to write columns the view computes.
    ///
    /// # Errors
    /// 0A000.
    pub fn may_write<'n>(
        &self,
        names: impl Iterator<Item = &'n ObjectName>,
        doing: Doing,
    ) -> Result<()> {
        let computed = |name: &str| {
            self.columns.iter().any(|(own, place)| own == name && !matches!(place, Place::Row(_)))
        };
        for name in names {
            let name = name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
            if computed(&name) {
                return Err(self.not_written(&name, doing));
            }
        }
        Ok(())
    }

    fn not_written(&self, column: &str, doing: Doing) -> Error {
        let into = if doing == Doing::Insert { "insert into" } else { "update" };
        Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("cannot {into} column \"{column}\" of view \"{}\"", self.face.name),
        )
        .detail("View columns that are not columns of their base relation are not updatable.")
    }

    /// The statement's condition over the table's row, with those of the views.
    ///
    /// # Errors
    /// The binder's; 0A000 where a view's needs a query.
    pub fn condition(
        &self,
        given: Option<&ast::Expr>,
        scope: &Scope,
        context: &mut PlanContext<'_>,
    ) -> Result<Option<Expr>> {
        let conditions = self.conditions.as_ref();
        let conditions = conditions
            .ok_or_else(|| fault::unsupported("a subquery in a view whose rows are written"))?;
        let mut all: Vec<Expr> =
            conditions.iter().map(|(_, condition)| condition.clone()).collect();
        if let Some(given) = given {
            let eval = EvalContext::planning(context.settings, context.catalog);
            let bound = Binder::new(scope, context.parameters, &eval, "WHERE").condition(given)?;
            all.push(self.computed(bound));
        }
        Ok(conjunction(all))
    }

    /// What new rows have to fulfil by the check options of the views, from the table outwards,
    /// each with its view.
    ///
    /// # Errors
    /// 0A000 where that needs a query.
    pub fn checked(&self) -> Result<Vec<(String, Expr)>> {
        let Some(below) = &self.below else { return Ok(Vec::new()) };
        let mut cascades = false;
        let mut checked = vec![false; below.levels.len()];
        for (number, level) in below.levels.iter().enumerate().rev() {
            cascades |= level.check == Some(CheckOption::Cascaded);
            checked[number] = cascades || level.check.is_some();
        }
        if !checked.contains(&true) {
            return Ok(Vec::new());
        }
        let conditions = self.conditions.as_ref();
        let conditions = conditions
            .ok_or_else(|| fault::unsupported("a subquery in a view WITH CHECK OPTION"))?;
        let of_checked = conditions.iter().filter(|(number, _)| checked[*number]);
        Ok(of_checked.map(|(n, expr)| (below.levels[*n].view.clone(), expr.clone())).collect())
    }

    fn has_queries(&self) -> bool {
        self.columns.iter().any(|(_, place)| matches!(place, Place::Query))
    }

    /// Whether a statement that `error` is told of is to be tried as a query.
    pub fn needs_query(&self, error: &Error) -> bool {
        super::change::error_needs_query(error)
            || (self.has_queries() && error.code() == SqlState::UNDEFINED_COLUMN)
    }

    /// It as a FROM item that shows its rows' keys.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn keyed(&self, finding: Finding, context: &PlanContext<'_>) -> Result<TableWithJoins> {
        let role = self.secured.map(|role| role.to_string()).unwrap_or_default();
        let finding = format!("{}{role}", finding.letter());
        let Some(below) = &self.below else {
            return keyed(&self.table, &self.shown, &finding, context);
        };
        let mut item: Option<TableWithJoins> = None;
        for level in &below.levels {
            let mut from = match item {
                None => keyed(&self.table, &fold(&level.alias), &finding, context)?,
                Some(inner) => inner,
            };
            match &mut from.relation {
                TableFactor::Table { alias: Some(alias), .. }
                | TableFactor::Derived { alias: Some(alias), .. } => {
                    alias.name = level.alias.clone();
                    alias.columns.clone_from(&level.aliases);
                }
                _ => return Err(Error::internal("a FROM item made here")),
            }
            let key = vec![level.alias.clone(), quoted(KEY_COLUMN)];
            let key = (ast::Expr::CompoundIdentifier(key), KEY_COLUMN);
            let items = level.items.iter().map(|(expr, column)| (expr.clone(), &*column.name));
            let items = items.chain([key]).map(|(expr, name)| (expr, quoted(name)));
            let mut query = select(Vec::new(), false, vec![from], level.selection.as_ref())?;
            if let SetExpr::Select(select) = &mut *query.body {
                let items = items.map(|(expr, alias)| SelectItem::ExprWithAlias { expr, alias });
                select.projection = items.collect();
            }
            item = Some(derived(query)?);
        }
        let mut item = item.ok_or_else(|| Error::internal("a view without a query"))?;
        if let TableFactor::Derived { alias: Some(alias), .. } = &mut item.relation {
            alias.name = quoted(&self.shown);
        }
        Ok(item)
    }

    /// How many columns `*` has over what [`Self::keyed`] gives.
    pub fn width(&self) -> usize {
        match &self.below {
            None => self.table.visible_columns().count(),
            Some(below) => below.columns().count() + 1,
        }
    }
}

/// `(query) AS …`.
fn derived(query: ast::Query) -> Result<TableWithJoins> {
    let mut from = super::rows::from_clause("SELECT FROM (SELECT 1) AS x")?;
    let mut item = from.pop().ok_or_else(|| Error::internal("a FROM item made here"))?;
    if let TableFactor::Derived { subquery, .. } = &mut item.relation {
        **subquery = query;
    }
    Ok(item)
}

/// Columns under a relation's name: those of the table's row, and those that are computed.
fn seen(name: &str, columns: &[(String, Place)], table: &Table) -> ScopeRelation {
    let column = |(at, (name, place)): (usize, &(String, Place))| {
        let (position, ty, domain) = match place {
            Place::Row(position) => {
                let column = table.columns.get(*position)?;
                (*position, column.ty.clone(), column.domain)
            }
            Place::Computed(expr) => (COMPUTED + at, expr.ty.clone(), None),
            Place::Query => return None,
        };
        Some(ScopeColumn { name: name.clone(), ty, position, domain })
    };
    ScopeRelation {
        name: name.to_owned(),
        columns: columns.iter().enumerate().filter_map(column).collect(),
        unqualified: true,
        hidden: Vec::new(),
    }
}

/// Puts in what computes `columns` for them.
fn put_in(expr: &mut Expr, columns: &[(String, Place)]) {
    if let Node::Column(at) = &expr.node
        && let Some((_, Place::Computed(value))) =
            at.checked_sub(COMPUTED).and_then(|at| columns.get(at))
    {
        *expr = (**value).clone();
        return;
    }
    expr.each_child_mut(&mut |child| put_in(child, columns));
}

/// The table with the view's names, without what the view has not.
fn face(below: &UpdatableView, name: &str) -> Table {
    let mut table = Table::clone(&below.table);
    name.clone_into(&mut table.name);
    for (at, column) in table.columns.iter_mut().enumerate() {
        match below.columns().find(|shown| shown.place == Some(at)) {
            Some(shown) => column.name.clone_from(&shown.name),
            None => column.dropped = true,
        }
    }
    table
}

fn not_updatable(view: &str, reason: &'static str, doing: Doing) -> Error {
    let (verb, doing) = match doing {
        Doing::Insert => ("insert into", "inserting into"),
        Doing::Update => ("update", "updating"),
        Doing::Delete => ("delete from", "deleting from"),
    };
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("cannot {verb} view \"{view}\""))
        .detail(reason)
        .hint(format!("Instead of {doing} the view, write to the tables below it."))
}

const NO_COLUMNS: &str = "Views that have no updatable columns are not automatically updatable.";

fn query_returned() -> Error {
    fault::unsupported("RETURNING what a view computes by a query")
}

/// [`query_returned`] for an error that such a column in RETURNING may have led to.
pub(super) fn returning_fault(error: Error, written: &Written) -> Error {
    if written.has_queries() && error.code() == SqlState::UNDEFINED_COLUMN {
        query_returned()
    } else {
        error
    }
}
