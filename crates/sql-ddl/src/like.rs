//! CREATE TABLE (LIKE … INCLUDING …).

use super::Ddl;
use super::names::{fold, free_of_system_columns};
use telesto_sql_catalog::{
    CheckConstraint, Column, Generated, Guarded, Index, Relation, Rights, Table,
};
use telesto_sql_parser::definition::{Like, SequenceOption};
use telesto_sql_parser::sqlparser::ast::Ident;
use telesto_sql_parser::stored::parse_over_row;
use telesto_sql_types::error::{Error, Result, SqlState};

impl Ddl<'_> {
    /// The columns of the model: NOT NULL always comes with them, defaults and identity when asked
    /// for.
    pub(super) fn like_columns(&mut self, table: &mut Table, like: &Like) -> Result<()> {
        let model = match self.find(&like.model)? {
            Some(Relation::Table(model)) => {
                Guarded::table(&model).need(&self.actor, Rights::SELECT)?;
                model
            }
            Some(Relation::View(view)) => {
                Guarded::view(&view).need(&self.actor, Rights::SELECT)?;
                for (name, ty) in view.columns.clone() {
                    push(table, name, ty)?;
                }
                return Ok(());
            }
            Some(_) => {
                return Err(Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    format!(
                        "relation \"{}\" is invalid in LIKE clause",
                        super::names::split(&like.model)?.1
                    ),
                ));
            }
            None => return Err(super::names::undefined_table(&like.model)),
        };
        for (_, column) in model.visible_columns() {
            push(table, column.name.clone(), column.ty.clone())?;
            let at = table.columns.len() - 1;
            table.columns[at].not_null = column.not_null;
            table.columns[at].domain = column.domain;
            if like.comments {
                table.columns[at].comment.clone_from(&column.comment);
            }
            if like.defaults {
                table.columns[at].default.clone_from(&column.default);
            }
            match &column.generated {
                Some(Generated::Stored(text)) if like.generated => {
                    // The model's name means nothing here.
                    let text = parse_over_row(text)?.to_string();
                    table.columns[at].generated = Some(Generated::Stored(text));
                }
                Some(Generated::IdentityAlways(oid) | Generated::IdentityByDefault(oid))
                    if like.identity =>
                {
                    let always = matches!(column.generated, Some(Generated::IdentityAlways(_)));
                    let options = self.options_of(*oid);
                    let sequence = self.column_sequence(
                        table.schema,
                        (table.id, &table.name),
                        (at, &column.name),
                        &column.ty,
                        &options,
                        true,
                    )?;
                    table.columns[at].generated = Some(if always {
                        Generated::IdentityAlways(sequence.oid)
                    } else {
                        Generated::IdentityByDefault(sequence.oid)
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn options_of(&self, sequence: u32) -> Vec<SequenceOption> {
        self.catalog().sequence(sequence).map_or_else(Vec::new, |s| {
            vec![
                SequenceOption::Increment(s.increment),
                SequenceOption::Min(Some(s.min)),
                SequenceOption::Max(Some(s.max)),
                SequenceOption::Start(s.start),
                SequenceOption::Cache(s.cache),
                SequenceOption::Cycle(s.cycle),
            ]
        })
    }

    /// Checks and indexes of the model, once all columns are there.
    pub(super) fn like_constraints(&mut self, table: &mut Table, like: &Like) -> Result<()> {
        let Some(Relation::Table(model)) = self.find(&like.model)? else { return Ok(()) };
        let position = |table: &Table, at: usize| {
            let name = &model.columns[at].name;
            table
                .column_position(name)
                .ok_or_else(|| Error::internal("a column of LIKE is not there"))
        };
        if like.constraints {
            for check in &model.checks {
                // It must still mean the columns it names.
                let expression = parse_over_row(&check.expression)?.to_string();
                if super::constraint::has_constraint(table, &check.name) {
                    return Err(Error::new(
                        SqlState::DUPLICATE_OBJECT,
                        format!("check constraint \"{}\" already exists", check.name),
                    ));
                }
                let oid = self.change.oid();
                table.checks.push(CheckConstraint {
                    oid,
                    expression,
                    validated: true,
                    ..check.clone()
                });
            }
        }
        if !like.indexes {
            return Ok(());
        }
        for index in model.all_indexes() {
            let mut columns = index.columns.clone();
            for part in columns.iter_mut().filter(|part| part.expression.is_none()) {
                part.column = position(table, part.column)?;
            }
            let included = index.include.iter().map(|at| position(table, *at));
            let include = included.collect::<Result<Vec<_>>>()?;
            let list = Index { columns: columns.clone(), include, ..index.clone() };
            let (list, include) = (list.column_names(table), list.include);
            let list = list.join("_");
            let (list, label) = match (index.is_primary(), index.constraint_oid) {
                (true, _) => ("", "pkey"),
                (_, Some(_)) => (list.as_str(), "key"),
                (_, None) => (list.as_str(), "idx"),
            };
            let own = std::iter::once(&table.name);
            let taken: Vec<String> =
                own.chain(table.all_indexes().map(|i| &i.name)).cloned().collect();
            let name = self.relation_name(table.schema, (&table.name, list, label), &taken);
            let oid = self.change.oid();
            let constraint_oid = index.constraint_oid.map(|_| self.change.oid());
            let comment = if like.comments { index.comment.clone() } else { None };
            let copy =
                Index { oid, name, columns, include, constraint_oid, comment, ..index.clone() };
            if index.is_primary() {
                if table.primary_key().is_some() {
                    return Err(Error::new(
                        SqlState::INVALID_TABLE_DEFINITION,
                        format!(
                            "multiple primary keys for table \"{}\" are not allowed",
                            table.name
                        ),
                    ));
                }
                for part in &copy.columns {
                    table.columns[part.column].not_null = true;
                }
            }
            if index.id == 0 {
                table.primary = Some(copy);
            } else {
                let id = table.next_index;
                table.next_index += 1;
                table.indexes.push(Index { id, ..copy });
            }
        }
        Ok(())
    }

    pub(super) fn comment_on_constraint(
        &mut self,
        name: &Ident,
        on: &telesto_sql_parser::sqlparser::ast::ObjectName,
        comment: Option<String>,
    ) -> Result<()> {
        let mut table = (*self.table(on)?).clone();
        let name = fold(name);
        if !super::constraint::has_constraint(&table, &name) {
            return Err(Error::new(
                SqlState::UNDEFINED_OBJECT,
                format!("constraint \"{name}\" for table \"{}\" does not exist", table.name),
            ));
        }
        table.constraint_comments.retain(|(known, _)| *known != name);
        if let Some(comment) = comment {
            table.constraint_comments.push((name, comment));
        }
        self.change.put(telesto_sql_catalog::store::Object::Table(table));
        Ok(())
    }
}

fn push(table: &mut Table, name: String, ty: telesto_sql_types::SqlType) -> Result<()> {
    if table.column_position(&name).is_some() {
        return Err(Error::new(
            SqlState::DUPLICATE_COLUMN,
            format!("column \"{name}\" specified more than once"),
        ));
    }
    free_of_system_columns(&name)?;
    table.columns.push(Column {
        id: u16::try_from(table.columns.len() + 1)
            .map_err(|_| Error::internal("too many columns"))?,
        name,
        ty,
        not_null: false,
        default: None,
        generated: None,
        missing: None,
        dropped: false,
        domain: None,
        acl: None,
        comment: None,
    });
    Ok(())
}
