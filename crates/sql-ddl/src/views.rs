//! Views: how their text is kept, and which views use what.
//!
//! # Invariants
//! - A stored view names every relation with its schema and an alias, and every column of `*`: another search path, a rename, or a
//!   new column does not change what it shows.
//! - Where `*` could not be written out (over USING, NATURAL, functions, or queries whose columns have no names), the tables below take
//!   no new column while the view is there.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::Ddl;
use super::names::{fold, split};
use super::view_options::view_options;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{CatalogSnapshot, Relation, Table, View};
use telesto_sql_parser::names::ident;
use telesto_sql_parser::sqlparser::ast::{
    CreateView, Expr, JoinConstraint, JoinOperator, ObjectName, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, Statement, TableAlias, TableFactor, TableWithJoins,
    VisitMut, Visitor, VisitorMut, visit_relations, visit_relations_mut,
};
use telesto_sql_parser::view_query::{names, parts, query_of, uses};
use telesto_sql_plan::{ParameterTypes, PlanContext};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Looks for a column's name, or a `*` that was not written out.
struct Mentions<'a> {
    column: Option<&'a str>,
}

impl Visitor for Mentions<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let last = match expr {
            Expr::Identifier(ident) => Some(ident),
            Expr::CompoundIdentifier(parts) => parts.last(),
            _ => None,
        };
        match (last, self.column) {
            (Some(ident), Some(column)) if fold(ident) == column => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        for item in &select.projection {
            if matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..)) {
                return ControlFlow::Break(());
            }
        }
        // USING names columns outside of expressions.
        for from in &select.from {
            for join in &from.joins {
                if let Some(JoinConstraint::Using(columns)) = constraint(&join.join_operator)
                    && columns.iter().any(|name| {
                        self.column.is_some_and(|c| parts(name).last().is_some_and(|n| n == c))
                    })
                {
                    return ControlFlow::Break(());
                }
                if matches!(constraint(&join.join_operator), Some(JoinConstraint::Natural)) {
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }
}

fn constraint(operator: &JoinOperator) -> Option<&JoinConstraint> {
    match operator {
        JoinOperator::Join(c)
        | JoinOperator::Inner(c)
        | JoinOperator::Left(c)
        | JoinOperator::LeftOuter(c)
        | JoinOperator::Right(c)
        | JoinOperator::RightOuter(c)
        | JoinOperator::FullOuter(c) => Some(c),
        _ => None,
    }
}

fn mentions(query: &Query, column: Option<&str>) -> bool {
    use telesto_sql_parser::sqlparser::ast::Visit;
    query.visit(&mut Mentions { column }).is_break()
}

/// Gives relations their schemas and aliases, and writes `*` out.
struct Pin<'a> {
    catalog: &'a CatalogSnapshot,
    path: &'a [String],
    ctes: BTreeSet<String>,
}

impl Pin<'_> {
    fn columns_of(&self, factor: &TableFactor) -> Option<(String, Vec<String>)> {
        let (alias, all) = match factor {
            TableFactor::Table { name, alias: Some(alias), args: None, .. } => {
                let (schema, relation) = split(name).ok()?;
                schema.as_ref()?;
                let columns = match self.catalog.resolve(schema.as_deref(), &relation, &[])? {
                    Relation::Table(table) => {
                        table.visible_columns().map(|(_, c)| c.name.clone()).collect()
                    }
                    Relation::View(view) => {
                        view.columns.iter().map(|(name, _)| name.clone()).collect()
                    }
                    _ => return None,
                };
                (alias, columns)
            }
            TableFactor::Derived { subquery, alias: Some(alias), .. } => {
                (alias, outputs(&subquery.body)?)
            }
            _ => return None,
        };
        let mut columns: Vec<String> = all;
        for (column, given) in columns.iter_mut().zip(&alias.columns) {
            *column = fold(&given.name);
        }
        Some((fold(&alias.name), columns))
    }

    /// The columns of everything in FROM, in order; `None` when that is not plain.
    fn columns_of_from(&self, from: &[TableWithJoins]) -> Option<Vec<(String, Vec<String>)>> {
        let mut out = Vec::new();
        for item in from {
            out.push(self.columns_of(&item.relation)?);
            for join in &item.joins {
                match &join.join_operator {
                    JoinOperator::CrossJoin(_) => {}
                    operator => match constraint(operator)? {
                        JoinConstraint::On(_) | JoinConstraint::None => {}
                        _ => return None,
                    },
                }
                out.push(self.columns_of(&join.relation)?);
            }
        }
        Some(out)
    }
}

/// The names of a query's columns, if they are plain.
fn outputs(body: &SetExpr) -> Option<Vec<String>> {
    match body {
        SetExpr::Select(select) => select
            .projection
            .iter()
            .map(|item| match item {
                SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
                SelectItem::UnnamedExpr(Expr::Identifier(name)) => Some(fold(name)),
                SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => parts.last().map(fold),
                _ => None,
            })
            .collect(),
        SetExpr::Query(query) => outputs(&query.body),
        SetExpr::SetOperation { left, .. } => outputs(left),
        _ => None,
    }
}

fn written_out(table: &str, columns: &[String]) -> impl Iterator<Item = SelectItem> {
    let table = ident(table);
    columns
        .iter()
        .map(move |column| {
            SelectItem::UnnamedExpr(Expr::CompoundIdentifier(vec![table.clone(), ident(column)]))
        })
        .collect::<Vec<_>>()
        .into_iter()
}

impl VisitorMut for Pin<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, alias, args: None, .. } = factor else {
            return ControlFlow::Continue(());
        };
        let Ok((schema, relation)) = split(name) else { return ControlFlow::Continue(()) };
        if schema.is_none() && self.ctes.contains(&relation) {
            return ControlFlow::Continue(());
        }
        let within = match &schema {
            Some(schema) => Some(schema.clone()),
            None if telesto_sql_catalog::builtin::tables::find(None, &relation).is_some() => None,
            None => self
                .catalog
                .visible_in(&relation, self.path)
                .map(|schema| self.catalog.schema_name(schema).to_owned()),
        };
        if let Some(within) = within {
            *name = ObjectName::from(vec![ident(&within), ident(&relation)]);
        }
        if alias.is_none() {
            *alias = Some(TableAlias {
                explicit: true,
                name: ident(&relation),
                columns: Vec::new(),
                at: None,
            });
        }
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let stars = select.projection.iter().any(|item| {
            matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..))
        });
        if !stars {
            return ControlFlow::Continue(());
        }
        let Some(from) = self.columns_of_from(&select.from) else {
            return ControlFlow::Continue(());
        };
        let mut items = Vec::new();
        for item in &select.projection {
            match item {
                SelectItem::Wildcard(_) => {
                    for (table, columns) in &from {
                        items.extend(written_out(table, columns));
                    }
                }
                SelectItem::QualifiedWildcard(
                    SelectItemQualifiedWildcardKind::ObjectName(name),
                    _,
                ) => {
                    let wanted = parts(name).pop().unwrap_or_default();
                    match from.iter().find(|(table, _)| *table == wanted) {
                        Some((table, columns)) => items.extend(written_out(table, columns)),
                        None => items.push(item.clone()),
                    }
                }
                other => items.push(other.clone()),
            }
        }
        select.projection = items;
        ControlFlow::Continue(())
    }
}

/// Names of all CTEs anywhere in the query.
fn cte_names(query: &Query) -> BTreeSet<String> {
    struct Ctes(BTreeSet<String>);
    impl Visitor for Ctes {
        type Break = ();
        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
                self.0.insert(fold(&cte.alias.name));
            }
            ControlFlow::Continue(())
        }
    }
    use telesto_sql_parser::sqlparser::ast::Visit;
    let mut found = Ctes(BTreeSet::new());
    let _ = query.visit(&mut found);
    found.0
}

impl Ddl<'_> {
    /// Views whose text names the relation.
    pub(super) fn views_on(&self, schema: u32, relation: &str) -> Vec<Arc<View>> {
        let within = self.catalog().schema_name(schema);
        self.catalog()
            .views()
            .filter(|view| !(view.schema == schema && view.name == relation))
            .filter(|view| query_of(&view.query).is_some_and(|q| uses(&q, within, relation)))
            .cloned()
            .collect()
    }

    /// Views that use a column of the table, as far as names tell.
    pub(super) fn views_using_column(&self, table: &Table, column: &str) -> Vec<Arc<View>> {
        self.views_on(table.schema, &table.name)
            .into_iter()
            .filter(|view| query_of(&view.query).is_some_and(|q| mentions(&q, Some(column))))
            .collect()
    }

    /// Views over these, over those, and so on: each with what it depends on.
    pub(super) fn views_upon(&self, views: &[Arc<View>]) -> Vec<(Arc<View>, String)> {
        let mut known: BTreeSet<u32> = views.iter().map(|view| view.oid).collect();
        let mut out = Vec::new();
        let mut left: Vec<Arc<View>> = views.to_vec();
        while let Some(view) = left.pop() {
            let on = format!("view {}", self.shown_name(view.schema, &view.name));
            for user in self.views_on(view.schema, &view.name) {
                if known.insert(user.oid) {
                    out.push((Arc::clone(&user), on.clone()));
                    left.push(user);
                }
            }
        }
        out
    }

    /// Refuses a new column where a view says `*` of the table.
    pub(super) fn no_star_views(&self, table: &Table) -> Result<()> {
        for view in self.views_on(table.schema, &table.name) {
            if query_of(&view.query).is_some_and(|q| mentions(&q, None)) {
                return Err(Error::unsupported(format!(
                    "adding a column to a table that view \"{}\" selects with * or joins with NATURAL",
                    view.name
                ))
                .hint("Create the view with the names of its columns."));
            }
        }
        Ok(())
    }

    fn edit_views(&mut self, edit: impl Fn(&mut Query) -> bool) {
        let changed: Vec<View> = self
            .catalog()
            .views()
            .filter_map(|view| {
                let mut query = query_of(&view.query)?;
                edit(&mut query).then(|| View { query: query.to_string(), ..(**view).clone() })
            })
            .collect();
        for view in changed {
            self.change.put(Object::View(view));
        }
    }

    /// A relation has another name: so it has in the texts of views.
    pub(super) fn rewrite_views(&mut self, from: (u32, &str), to: (u32, &str)) -> Result<()> {
        let old = self.catalog().schema_name(from.0).to_owned();
        let new = self.catalog().schema_name(to.0).to_owned();
        self.edit_views(|query| {
            let mut found = false;
            let _ = visit_relations_mut(query, |name| {
                if parts(name).len() >= 2 && names(name, &old, from.1) {
                    *name = ObjectName::from(vec![ident(&new), ident(to.1)]);
                    found = true;
                }
                ControlFlow::<()>::Continue(())
            });
            found
        });
        Ok(())
    }

    pub(super) fn rename_schema_in_views(&mut self, from: &str, to: &str) -> Result<()> {
        self.edit_views(|query| {
            let mut found = false;
            let _ = visit_relations_mut(query, |name| {
                let given = parts(name);
                if let [schema, relation] = given.as_slice()
                    && schema == from
                {
                    *name = ObjectName::from(vec![ident(to), ident(relation)]);
                    found = true;
                }
                ControlFlow::<()>::Continue(())
            });
            found
        });
        Ok(())
    }

    /// Whether a query reads anything temporary.
    fn reads_temporary(&self, query: &Query) -> bool {
        let (path, ctes) = (self.path(), cte_names(query));
        visit_relations(query, |name| {
            let Ok((schema, relation)) = split(name) else { return ControlFlow::Continue(()) };
            let within = match &schema {
                None if ctes.contains(&relation) => None,
                None => self.catalog().visible_in(&relation, &path),
                Some(schema) => self.catalog().schema(schema).map(|s| s.oid),
            };
            match within {
                Some(oid) if telesto_sql_catalog::temp::is_temporary(oid) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        })
        .is_break()
    }

    async fn view_columns(&self, query: &Query) -> Result<Vec<(String, SqlType)>> {
        let mut parameters = ParameterTypes::default();
        // Elements of CREATE SCHEMA see those before them.
        let catalog = Arc::new(self.catalog().clone());
        // Only its columns are asked for: policies decide when it is read.
        let mut settings = telesto_sql_plan::row_security::without(&self.context.settings);
        if let Some(within) = &self.within {
            Arc::make_mut(&mut settings).search_path.insert(0, within.clone());
        }
        let plan = self
            .context
            .planner
            .plan(
                &Statement::Query(Box::new(query.clone())),
                &mut PlanContext {
                    catalog: &catalog,
                    settings: &settings,
                    parameters: &mut parameters,
                    txn: Some(&self.context.txn),
                    env: &self.context.env,
                    earlier: std::sync::Arc::default(),
                    planner: &self.context.planner,
                },
            )
            .await?;
        Ok(plan
            .columns()
            .map(|columns| columns.iter().map(|c| (c.name.clone(), c.ty.clone())).collect())
            .unwrap_or_default())
    }

    /// A query of a definition with its relations' schemas written out; it binds before and after.
    ///
    /// # Errors
    /// Those of binding.
    pub(super) async fn pinned(&self, mut query: Query) -> Result<Query> {
        self.view_columns(&query).await?;
        let path = self.path();
        let ctes = cte_names(&query);
        let _ =
            VisitMut::visit(&mut query, &mut Pin { catalog: self.catalog(), path: &path, ctes });
        self.view_columns(&query).await?;
        Ok(query)
    }

    pub(super) async fn create_view(&mut self, create: &CreateView) -> Result<()> {
        if create.materialized {
            return Err(Error::unsupported("a materialized view"));
        }
        if telesto_sql_keypath::writes_inside(&create.query) {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "views must not contain data-modifying statements in WITH",
            ));
        }
        let options = view_options(create)?;
        // What is wrong with the query is told before who may make it where.
        let mut columns = self.view_columns(&create.query).await?;
        let (schema, name) = split(&create.name)?;
        let temporary = create.temporary || self.reads_temporary(&create.query);
        if temporary && !create.temporary && schema.is_none() {
            self.context.notices.notice(format!("view \"{name}\" will be a temporary view"));
        }
        let schema = self.schema_for(temporary, schema.as_deref())?;
        let before = match self.catalog().relation(schema, &name).cloned() {
            Some(Relation::View(view)) if create.or_replace => Some(view),
            Some(_) if create.or_replace => {
                return Err(Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    format!("\"{name}\" is not a view"),
                ));
            }
            _ if !self.check_free(schema, &name, create.if_not_exists)? => return Ok(()),
            _ => None,
        };
        if create.columns.len() > columns.len() {
            return Err(Error::syntax("CREATE VIEW specifies more column names than columns"));
        }
        for (column, given) in columns.iter_mut().zip(&create.columns) {
            column.0 = fold(&given.name);
        }
        for (name, ty) in &mut columns {
            super::table::storable(name, ty)?;
            if *ty == SqlType::Unknown {
                *ty = SqlType::Text;
            }
        }
        for (at, (name, _)) in columns.iter().enumerate() {
            if columns[..at].iter().any(|(other, _)| other == name) {
                return Err(Error::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{name}\" specified more than once"),
                ));
            }
        }
        if let Some(before) = &before {
            may_replace(&before.columns, &columns)?;
        }
        let path = self.path();
        let mut query = create.query.clone();
        let mut pin = Pin { catalog: self.catalog(), path: &path, ctes: cte_names(&query) };
        let _ = VisitMut::visit(&mut *query, &mut pin);
        // What is stored must show the same columns as what was written.
        let same = |a: &[(String, SqlType)], b: &[(String, SqlType)]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.1.same_base(&b.1))
        };
        let kept = match self.view_columns(&query).await {
            Ok(pinned) if same(&pinned, &columns) => query,
            // Schemas in front of columns' names do not go with aliases.
            _ => create.query.clone(),
        };
        let oid = match &before {
            Some(view) => view.oid,
            None => self.object_oid(schema),
        };
        let type_oid = match &before {
            Some(view) if view.type_oid != 0 => view.type_oid,
            _ => self.object_oid(schema),
        };
        let view = View {
            oid,
            type_oid,
            schema,
            name,
            owner: before.as_ref().map_or(self.maker(), |view| view.owner),
            acl: match &before {
                Some(view) => view.acl.clone(),
                None => self.initial_acl(telesto_sql_catalog::Granted::Table, schema),
            },
            query: kept.to_string(),
            columns,
            security_invoker: options.invoker,
            security_barrier: options.barrier,
            check_option: options.check,
            comment: before.and_then(|view| view.comment.clone()),
        };
        self.may_check(&view)?;
        self.change.put(Object::View(view));
        Ok(())
    }
}

/// CREATE OR REPLACE VIEW keeps the columns there are and may add others.
fn may_replace(before: &[(String, SqlType)], after: &[(String, SqlType)]) -> Result<()> {
    let refused = |text: String| Error::new(SqlState::INVALID_TABLE_DEFINITION, text);
    if after.len() < before.len() {
        return Err(refused("cannot drop columns from view".to_owned()));
    }
    for ((old, old_ty), (new, new_ty)) in before.iter().zip(after) {
        if old != new {
            return Err(refused(format!(
                "cannot change name of view column \"{old}\" to \"{new}\""
            ))
            .hint("Use ALTER VIEW ... RENAME COLUMN ... to change name of view column instead."));
        }
        if old_ty != new_ty {
            return Err(refused(format!(
                "cannot change data type of view column \"{old}\" from {old_ty} to {new_ty}"
            )));
        }
    }
    Ok(())
}
