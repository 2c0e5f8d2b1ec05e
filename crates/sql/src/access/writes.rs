//! What INSERT, UPDATE, DELETE, MERGE and COPY write, and read on the way.
//!
//! # Invariants
//! A write through a view needs the right on the view, and its owner the same on the table below
//! (`security_invoker`: the role itself). Foreign keys and other constraints ask nobody: they are
//! the owner's.

use std::collections::BTreeSet;
use std::sync::Arc;

use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::{Guarded, Relation, Rights, Table, View};
use telesto_sql_parser::marks::DO_NOTHING;
use telesto_sql_parser::rewrite::copy_words;
use telesto_sql_parser::sqlparser::ast::{
    self, Assignment, AssignmentTarget, ConflictTarget, CopySource, Delete, FromTable, Ident,
    Insert, Merge, MergeAction, ObjectName, OnConflictAction, OnInsert, Query, SetExpr, Statement,
    TableFactor, TableObject, Update, UpdateTableFromKind,
};
use telesto_sql_plan::updatable_view;

use super::columns::{Level, Member};
use super::reads::last;
use super::{MAX_VIEWS, Named, Walk};
use crate::error::{Error, Result, SqlState};
use crate::expr::fold;

/// What is written.
enum Target {
    Table(Arc<Table>),
    View(Arc<View>),
}

impl Target {
    /// Notes that the key columns of a constraint are read; of one that is not found, all.
    fn reads_constraint(&self, name: &ObjectName, member: &mut Member) {
        let called = name.0.last().and_then(|part| part.as_ident()).map(fold);
        let index = match self {
            Self::Table(table) => {
                table.known_indexes().find(|index| Some(&index.name) == called.as_ref())
            }
            Self::View(_) => None,
        };
        match index {
            Some(index) if index.columns.iter().all(|part| part.expression.is_none()) => {
                member.read.extend(index.columns.iter().map(|part| part.column));
            }
            _ => member.read_all(),
        }
    }

    fn columns(&self) -> Vec<String> {
        match self {
            Self::Table(table) => table.visible_columns().map(|(_, c)| c.name.clone()).collect(),
            Self::View(view) => view.columns.iter().map(|(name, _)| name.clone()).collect(),
        }
    }
}

impl Walk<'_> {
    pub(super) fn write(&mut self, statement: &Statement, outer: &Level) -> Result<()> {
        match statement {
            Statement::Insert(insert) => self.insert(insert, outer),
            Statement::Update(update) => self.update(update, outer),
            Statement::Delete(delete) => self.delete(delete, outer),
            Statement::Merge(merge) => self.merge(merge, outer),
            Statement::Copy { source, to, target, options, .. } => {
                if !matches!(target, ast::CopyTarget::Stdin | ast::CopyTarget::Stdout) {
                    self.unknown(
                        denied("permission denied to COPY to or from a file")
                            .hint("COPY FROM STDIN and TO STDOUT are for everybody."),
                    )?;
                }
                self.copy(source, *to, copy_words::condition_text(options))
            }
            other => Err(Error::internal(format!("no write: {other}"))),
        }
    }

    /// The target; `None`: there is none of that name, which whoever plans the statement says.
    fn target(&mut self, name: &ObjectName) -> Result<Option<Target>> {
        // WITH never hides what is written.
        let ctes = std::mem::take(&mut self.ctes);
        let named = self.named(name);
        self.ctes = ctes;
        Ok(match named? {
            Named::Found(Relation::Table(table)) => Some(Target::Table(table)),
            Named::Found(Relation::View(view)) => Some(Target::View(view)),
            Named::System(table) => {
                self.unknown(denied(format!("permission denied for table {}", table.name)))?;
                None
            }
            Named::Found(Relation::Sequence(_) | Relation::Index(..))
            | Named::Given
            | Named::Nothing => None,
        })
    }

    fn member(target: &Target, alias: Option<&Ident>, name: &ObjectName) -> Member {
        let shown = alias.map_or_else(|| last(name), fold);
        match target {
            Target::Table(table) => Member::table(shown, Arc::clone(table), false),
            Target::View(view) => Member::whole(
                shown,
                Some(view.columns.iter().map(|(name, _)| name.clone()).collect()),
            ),
        }
    }

    fn insert(&mut self, insert: &Insert, outer: &Level) -> Result<()> {
        let TableObject::TableName(name) = &insert.table else {
            return self.unknown(denied("permission denied to insert into anything but a table"));
        };
        let mut reading = outer.clone();
        if let Some(source) = &insert.source {
            let found = self.query(source, outer)?;
            reading.merge(&found);
        }
        let Some(target) = self.target(name)? else { return Ok(()) };
        let columns = inserted(insert, &target);
        self.written(&target, Rights::INSERT, &columns)?;
        let alias = insert.table_alias.as_ref().map(|alias| &alias.alias);
        let mut own = Self::member(&target, alias, name);
        let mut excluded = own.clone();
        "excluded".clone_into(&mut excluded.name);
        excluded.renamed.clear();
        if let Some(OnInsert::OnConflict(conflict)) = &insert.on {
            match &conflict.conflict_target {
                // An expression of an index stands there as a name.
                Some(ConflictTarget::Columns(columns))
                    if columns.iter().any(|c| !target.columns().contains(&fold(c))) =>
                {
                    own.read_all();
                }
                Some(ConflictTarget::Columns(columns)) => {
                    let mut level = Level { levels: vec![vec![own]] };
                    columns.iter().for_each(|column| level.name(&fold(column)));
                    own = level.levels.remove(0).remove(0);
                }
                Some(ConflictTarget::OnConstraint(name)) => target.reads_constraint(name, &mut own),
                None => {}
            }
            if let OnConflictAction::DoUpdate(update) = &conflict.action {
                let columns = assigned(&update.assignments);
                self.written(&target, Rights::UPDATE, &columns)?;
                let mut level = Level::inside(&reading, vec![own, excluded]);
                self.expressions(|v| ast::Visit::visit(update, v), &mut level, 0)?;
                let mut members = level.levels.remove(0);
                // What a new row would have had is read as the column of the table.
                let proposed = members.pop();
                own = members.remove(0);
                own.read.extend(proposed.into_iter().flat_map(|member| member.read));
            }
        }
        let mut level = Level::inside(&reading, vec![own]);
        if let Some(returning) = &insert.returning {
            self.items(returning, &mut level);
            self.expressions(|v| ast::Visit::visit(returning, v), &mut level, 0)?;
            self.returns(&target)?;
        }
        if let (Target::View(view), false) = (&target, level.levels[0][0].read.is_empty()) {
            self.read_view(view)?;
        }
        self.settle(&level.levels[0][0])
    }

    /// RETURNING of a view reads the view.
    fn returns(&mut self, target: &Target) -> Result<()> {
        match target {
            Target::View(view) => self.read_view(view),
            Target::Table(_) => Ok(()),
        }
    }

    fn update(&mut self, update: &Update, outer: &Level) -> Result<()> {
        let TableFactor::Table { name, alias, .. } = &update.table.relation else {
            return self.unknown(denied("permission denied to update anything but a table"));
        };
        let Some(target) = self.target(name)? else { return Ok(()) };
        self.written(&target, Rights::UPDATE, &assigned(&update.assignments))?;
        let mut members = vec![Self::member(&target, alias.as_ref().map(|a| &a.name), name)];
        let from = match &update.from {
            Some(UpdateTableFromKind::BeforeSet(from) | UpdateTableFromKind::AfterSet(from)) => {
                from.as_slice()
            }
            None => &[],
        };
        for from in from {
            self.from(from, &mut members)?;
        }
        let mut level = Level::inside(outer, members);
        from.iter().for_each(|from| self.joined_by_name(from, &mut level));
        if let Some(returning) = &update.returning {
            self.items(returning, &mut level);
        }
        self.expressions(|v| ast::Visit::visit(update, v), &mut level, 0)?;
        self.reads_of_view(&target, &level.levels[0][0])?;
        level.levels[0].iter().try_for_each(|member| self.settle(member))
    }

    /// A view that is written by a condition is read, too: below by its owner, and where the
    /// statement names columns of it, by the role.
    fn reads_of_view(&mut self, target: &Target, own: &Member) -> Result<()> {
        match target {
            Target::View(view) if own.read.is_empty() => self.below_view(view),
            Target::View(view) => self.read_view(view),
            Target::Table(_) => Ok(()),
        }
    }

    fn delete(&mut self, delete: &Delete, outer: &Level) -> Result<()> {
        let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
        let [from] = from.as_slice() else {
            return self.unknown(denied("permission denied to delete from several tables"));
        };
        let TableFactor::Table { name, alias, .. } = &from.relation else {
            return self.unknown(denied("permission denied to delete from anything but a table"));
        };
        let Some(target) = self.target(name)? else { return Ok(()) };
        self.written(&target, Rights::DELETE, &[])?;
        let mut members = vec![Self::member(&target, alias.as_ref().map(|a| &a.name), name)];
        for using in delete.using.iter().flatten() {
            self.from(using, &mut members)?;
        }
        let mut level = Level::inside(outer, members);
        delete.using.iter().flatten().for_each(|using| self.joined_by_name(using, &mut level));
        if let Some(returning) = &delete.returning {
            self.items(returning, &mut level);
        }
        self.expressions(|v| ast::Visit::visit(delete, v), &mut level, 0)?;
        self.reads_of_view(&target, &level.levels[0][0])?;
        level.levels[0].iter().try_for_each(|member| self.settle(member))
    }

    fn merge(&mut self, merge: &Merge, outer: &Level) -> Result<()> {
        let TableFactor::Table { name, alias, .. } = &merge.table else {
            return self.unknown(denied("permission denied to merge into anything but a table"));
        };
        let Some(target) = self.target(name)? else { return Ok(()) };
        for clause in &merge.clauses {
            match &clause.action {
                MergeAction::Insert(insert) => {
                    let mut columns: Vec<String> = insert.columns.iter().map(last).collect();
                    if columns.iter().any(|name| name == DO_NOTHING) {
                        continue;
                    }
                    if columns.is_empty() {
                        columns = target.columns();
                    }
                    columns.retain(|name| !is_mark(name));
                    self.written(&target, Rights::INSERT, &columns)?;
                }
                MergeAction::Update(update) => {
                    let columns = assigned(&update.assignments);
                    if !columns.iter().any(|name| name == DO_NOTHING) {
                        self.written(&target, Rights::UPDATE, &columns)?;
                    }
                }
                MergeAction::Delete { .. } => self.written(&target, Rights::DELETE, &[])?,
            }
        }
        let mut members = vec![Self::member(&target, alias.as_ref().map(|a| &a.name), name)];
        self.factor(&merge.source, &mut members)?;
        let mut level = Level::inside(outer, members);
        self.expressions(|v| ast::Visit::visit(merge, v), &mut level, 0)?;
        self.reads_of_view(&target, &level.levels[0][0])?;
        level.levels[0].iter().try_for_each(|member| self.settle(member))
    }

    fn copy(&mut self, source: &CopySource, to: bool, condition: Option<&str>) -> Result<()> {
        match source {
            CopySource::Query(query) => self.query(query, &Level::default()).map(drop),
            CopySource::Table { table_name, columns } => {
                let Some(target) = self.target(table_name)? else { return Ok(()) };
                let columns: Vec<String> = if columns.is_empty() {
                    target.columns()
                } else {
                    columns.iter().map(fold).collect()
                };
                let right = if to { Rights::SELECT } else { Rights::INSERT };
                self.written(&target, right, &columns)?;
                let Some(condition) = condition else { return Ok(()) };
                // Which rows it keeps tells of the columns that it names, defaults among them.
                let condition = copy_words::condition(condition)?;
                let own = Self::member(&target, None, table_name);
                let mut level = Level { levels: vec![vec![own]] };
                self.expressions(|v| ast::Visit::visit(&condition, v), &mut level, 0)?;
                self.settle(&level.levels[0][0])
            }
        }
    }

    /// Fails unless the role has a right on the target, and on these columns of it; on a view, its
    /// owner below as well.
    fn written(&mut self, target: &Target, right: Rights, columns: &[String]) -> Result<()> {
        match target {
            Target::Table(table) => self.written_table(table, right, columns),
            Target::View(view) => {
                Guarded::view(view).need(&self.actor, right)?;
                self.written_below(&Arc::clone(view), right, columns)
            }
        }
    }

    fn written_table(&self, table: &Table, right: Rights, columns: &[String]) -> Result<()> {
        if right == Rights::DELETE {
            return Guarded::table(table).need(&self.actor, right);
        }
        let places: BTreeSet<usize> =
            columns.iter().filter_map(|name| table.column_position(name)).collect();
        if columns.is_empty() {
            return self.any_column(table, right);
        }
        if places.len() < columns.iter().collect::<BTreeSet<_>>().len() {
            // A name that is no column stands for all of them.
            return Guarded::table(table).need(&self.actor, right);
        }
        self.columns(table, &places, right)
    }

    fn written_below(&mut self, view: &Arc<View>, right: Rights, columns: &[String]) -> Result<()> {
        if self.views >= MAX_VIEWS {
            return Err(Error::new(SqlState::STATEMENT_TOO_COMPLEX, "views are nested too deeply"));
        }
        // What cannot be written is told by whoever plans the statement.
        let Ok(below) = updatable_view::below(view, self.catalog, &self.path) else {
            return Ok(());
        };
        let query = super::query_of(&view.query)?;
        let Some(name) = only_relation(&query) else { return Ok(()) };
        let writer = if view.security_invoker { self.settings.current_role } else { view.owner.0 };
        let actor = std::mem::replace(&mut self.actor, self.catalog.actor(writer));
        let (ctes, seen) = (std::mem::take(&mut self.ctes), std::mem::take(&mut self.seen));
        self.views += 1;
        let result = match self.target(name) {
            Ok(Some(Target::Table(table))) => {
                let places: Vec<String> = below
                    .columns()
                    .filter(|column| columns.contains(&column.name))
                    .filter_map(|column| column.place)
                    .filter_map(|place| table.columns.get(place).map(|c| c.name.clone()))
                    .collect();
                self.written_table(&table, right, &places)
            }
            // Which of its columns is told at the table.
            Ok(Some(Target::View(inner))) => {
                let inner_columns: Vec<String> =
                    inner.columns.iter().map(|(name, _)| name.clone()).collect();
                let places = mapped(&below, columns, &inner, self.catalog, &self.path);
                let columns = places.unwrap_or(inner_columns);
                Guarded::view(&inner)
                    .need(&self.actor, right)
                    .and_then(|()| self.written_below(&inner, right, &columns))
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        self.views -= 1;
        self.ctes = ctes;
        self.seen = seen;
        self.actor = actor;
        result
    }
}

/// The columns of an inner view that those of an outer one are, by their places in the table below
/// both.
fn mapped(
    outer: &updatable_view::UpdatableView,
    columns: &[String],
    inner: &View,
    catalog: &crate::catalog::CatalogSnapshot,
    path: &[String],
) -> Option<Vec<String>> {
    let inner = updatable_view::below(inner, catalog, path).ok()?;
    let mut found = Vec::new();
    for column in outer.columns().filter(|column| columns.contains(&column.name)) {
        let place = column.place?;
        found.push(inner.columns().find(|c| c.place == Some(place))?.name.clone());
    }
    Some(found)
}

/// The relation that a view which can be written reads.
fn only_relation(query: &Query) -> Option<&ObjectName> {
    let SetExpr::Select(select) = &*query.body else { return None };
    match &select.from.first()?.relation {
        TableFactor::Table { name, .. } => Some(name),
        _ => None,
    }
}

/// The columns an INSERT gives values for.
fn inserted(insert: &Insert, target: &Target) -> Vec<String> {
    if !insert.columns.is_empty() {
        let mut columns: Vec<String> = insert.columns.iter().map(first).collect();
        let marked = columns.len();
        columns.retain(|name| !is_mark(name));
        if marked == columns.len() || !columns.is_empty() {
            return columns;
        }
    }
    let Some(source) = &insert.source else { return Vec::new() };
    let mut columns = target.columns();
    if let SetExpr::Values(values) = &*source.body
        && let Some(row) = values.rows.first()
    {
        columns.truncate(row.content.len());
    }
    columns
}

/// Whether a name stands for something that the tree has no place for.
fn is_mark(name: &str) -> bool {
    name.starts_with('\0')
}

/// The column a name of INSERT or SET means: before a field or an element.
fn first(name: &ObjectName) -> String {
    name.0.first().and_then(|part| part.as_ident()).map(fold).unwrap_or_default()
}

/// The columns that SET names.
fn assigned(assignments: &[Assignment]) -> Vec<String> {
    let mut columns = Vec::new();
    for assignment in assignments {
        match &assignment.target {
            AssignmentTarget::ColumnName(name) => columns.extend(parts(name)),
            AssignmentTarget::Tuple(names) => {
                names.iter().for_each(|name| columns.extend(parts(name)))
            }
        }
    }
    columns
}

/// Every part of a name in SET: which of them is the column, the executors know; that of another
/// name is no column.
fn parts(name: &ObjectName) -> Vec<String> {
    name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect()
}
