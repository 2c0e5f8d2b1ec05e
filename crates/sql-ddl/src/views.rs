//! Views: how their text is kept, and which views use what.
//!
//! # Invariants
//! A stored view names every relation with its schema and an alias, and every column of `*`:
//! another search path does not change what it shows. What changes of columns below do to it is
//! [`super::view_columns`]'s.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::Ddl;
use super::names::{fold, split};
use super::view_options::view_options;
use super::view_stars::Pin;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{CatalogSnapshot, Relation, View};
use telesto_sql_parser::names::ident;
use telesto_sql_parser::sqlparser::ast::{
    CreateView, ObjectName, Query, Statement, Visitor, visit_relations, visit_relations_mut,
};
use telesto_sql_parser::view_query::{names, parts, query_of, uses};
use telesto_sql_plan::{ParameterTypes, PlanContext};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Names of all CTEs anywhere in the query.
pub(super) fn cte_names(query: &Query) -> BTreeSet<String> {
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
            .filter(|view| self.names_relation(view, within, relation))
            .cloned()
            .collect()
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

    /// Fails unless the role may look into each schema that the query names, or finds names in.
    /// What it may read there is asked when the view is read.
    pub(super) fn may_name(&self, query: &Query) -> Result<()> {
        let ctes = cte_names(query);
        let (path, open) = (self.path(), self.open_path());
        let found = |name: &ObjectName| -> Result<()> {
            let (schema, own) = split(name)?;
            let hidden = schema.is_none()
                && !ctes.contains(&own)
                && self.catalog().visible_in(&own, &path) != self.catalog().visible_in(&own, &open);
            if hidden {
                return Err(super::names::undefined_table(name));
            }
            self.schema_usage(name)
        };
        let named = visit_relations(query, |name| match found(name) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        });
        named.break_value().map_or(Ok(()), Err)
    }

    pub(super) async fn view_columns(&self, query: &Query) -> Result<Vec<(String, SqlType)>> {
        // Elements of CREATE SCHEMA see those before them.
        self.view_columns_in(&Arc::new(self.catalog().clone()), query).await
    }

    /// The columns that a query has in a catalog.
    pub(super) async fn view_columns_in(
        &self,
        catalog: &Arc<CatalogSnapshot>,
        query: &Query,
    ) -> Result<Vec<(String, SqlType)>> {
        let mut parameters = ParameterTypes::default();
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
                    catalog,
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
    pub(super) async fn pinned(&self, query: Query) -> Result<Query> {
        self.view_columns(&query).await?;
        let query = self.fields_written(&query).await?;
        let path = self.path();
        let expanded = Pin::new(self.catalog(), &path, true).pinned(&query);
        if self.view_columns(&expanded).await.is_ok() {
            return Ok(expanded);
        }
        let pinned = Pin::new(self.catalog(), &path, false).pinned(&query);
        self.view_columns(&pinned).await?;
        Ok(pinned)
    }

    /// The query with its names pinned, as far as that leaves it the columns that it has.
    pub(super) async fn kept(&self, query: &Query, columns: &[(String, SqlType)]) -> Result<Query> {
        let path = self.path();
        let written = self.fields_written(query).await?;
        for expand in [true, false] {
            let pinned = Pin::new(self.catalog(), &path, expand).pinned(&written);
            if let Ok(now) = self.view_columns(&pinned).await
                && same(&now, columns)
            {
                return Ok(pinned);
            }
        }
        Ok(query.clone())
    }

    /// The text of a view's query, which is read again as whoever reads the view reads it.
    ///
    /// # Errors
    /// 0A000 when it is not that query any more: a view that is stored can be read.
    async fn view_text(&self, query: &Query, columns: &[(String, SqlType)]) -> Result<String> {
        let text = query.to_string();
        let again = telesto_sql_parser::syntax::read_query(&text);
        let now = match &again {
            Ok(again) => self.view_columns(again).await?,
            Err(_) => Vec::new(),
        };
        if again.is_err() || !same(&now, columns) {
            return Err(Error::unsupported("a view of a query that means something else as text")
                .hint("Name the query's columns, and write its casts out."));
        }
        Ok(text)
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
        self.may_name(&create.query)?;
        let mut columns = self.view_columns(&create.query).await?;
        let own = columns.clone();
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
            let names: Vec<String> = columns.iter().map(|(name, _)| name.clone()).collect();
            for at in before.columns.len()..names.len() {
                self.keep_views_from((schema, &name), &names[..at], &names[at]).await?;
            }
        }
        let kept = self.kept(&create.query, &own).await?;
        let settled = self.settled_query(kept.clone()).await?;
        let stays = self.view_columns(&settled).await.is_ok_and(|now| same(&now, &own));
        let kept = if stays { settled } else { kept };
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
            query: self.view_text(&kept, &own).await?,
            columns,
            security_invoker: options.invoker,
            security_barrier: options.barrier,
            check_option: options.check,
            comment: before.as_ref().and_then(|view| view.comment.clone()),
            // It has the columns that it had, in their places.
            column_comments: before
                .map_or_else(Default::default, |view| view.column_comments.clone()),
        };
        self.may_check(&view)?;
        self.change.put(Object::View(view));
        Ok(())
    }
}

/// Whether two queries have the same columns.
pub(super) fn same(one: &[(String, SqlType)], other: &[(String, SqlType)]) -> bool {
    let equal = |((a, a_ty), (b, b_ty)): (&(String, SqlType), &(String, SqlType))| {
        a == b && a_ty.same_base(b_ty)
    };
    one.len() == other.len() && one.iter().zip(other).all(equal)
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
