//! CREATE and ALTER SEQUENCE, and the sequences of serial and identity columns.
//!
//! # Invariants
//! A changed sequence is another object (`Sequence::epoch`): no process gives values that it took
//! before the change.

use telesto_common::TableId;

use super::Ddl;
use super::names::{fold, split, undefined_column, undefined_table};
use telesto_sql_catalog::sequence::{Position, read_position, set_here_alone, write_position};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Relation, Sequence};
use telesto_sql_expr::type_name::sql_type;
use telesto_sql_parser::definition::SequenceOption;
use telesto_sql_parser::sqlparser::ast::{Ident, ObjectName};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

fn bounds(ty: &SqlType) -> (i64, i64) {
    match ty {
        SqlType::Int2 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        SqlType::Int4 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    }
}

fn invalid(text: String) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, text)
}

/// Applies options to a sequence; `fresh`: it is being made. What it is restarted with, if at all.
fn apply(sequence: &mut Sequence, options: &[SequenceOption], fresh: bool) -> Result<Option<i64>> {
    let (mut reset_min, mut reset_max) = (fresh, fresh);
    let mut start = None;
    let mut restart = None;
    for option in options {
        match option {
            SequenceOption::As(ty) => {
                let ty = sql_type(ty, None)?;
                if !ty.is_integer() {
                    return Err(invalid(
                        "sequence type must be smallint, integer, or bigint".to_owned(),
                    ));
                }
                // Bounds that were those of the old type become those of the new one.
                let (low, high) = bounds(&sequence.ty);
                reset_max |= sequence.max == high;
                reset_min |= sequence.min == low;
                sequence.ty = ty;
            }
            SequenceOption::Increment(0) => {
                return Err(invalid("INCREMENT must not be zero".to_owned()));
            }
            SequenceOption::Increment(n) => sequence.increment = *n,
            SequenceOption::Cycle(on) => sequence.cycle = *on,
            SequenceOption::Cache(n) if *n < 1 => {
                return Err(invalid(format!("CACHE ({n}) must be greater than zero")));
            }
            SequenceOption::Cache(n) => sequence.cache = *n,
            SequenceOption::Start(n) => start = Some(*n),
            SequenceOption::Restart(n) => restart = Some(*n),
            SequenceOption::Min(_)
            | SequenceOption::Max(_)
            | SequenceOption::OwnedBy(_)
            | SequenceOption::Name(_) => {}
        }
    }
    for option in options {
        match option {
            SequenceOption::Max(Some(n)) => (sequence.max, reset_max) = (*n, false),
            SequenceOption::Min(Some(n)) => (sequence.min, reset_min) = (*n, false),
            SequenceOption::Max(None) => reset_max = true,
            SequenceOption::Min(None) => reset_min = true,
            _ => {}
        }
    }
    let (low, high) = bounds(&sequence.ty);
    let up = sequence.increment > 0;
    if reset_max {
        sequence.max = if up { high } else { -1 };
    }
    if reset_min {
        sequence.min = if up { 1 } else { low };
    }
    let (min, max, ty) = (sequence.min, sequence.max, &sequence.ty);
    for (word, value) in [("MAXVALUE", max), ("MINVALUE", min)] {
        if !(low..=high).contains(&value) {
            return Err(invalid(format!(
                "{word} ({value}) is out of range for sequence data type {ty}"
            )));
        }
    }
    if min >= max {
        return Err(invalid(format!("MINVALUE ({min}) must be less than MAXVALUE ({max})")));
    }
    match start {
        Some(start) => sequence.start = start,
        None if fresh => sequence.start = if up { min } else { max },
        None => {}
    }
    let within = |word: &str, value: i64| {
        if value < min {
            return Err(invalid(format!(
                "{word} value ({value}) cannot be less than MINVALUE ({min})"
            )));
        }
        if value > max {
            return Err(invalid(format!(
                "{word} value ({value}) cannot be greater than MAXVALUE ({max})"
            )));
        }
        Ok(())
    };
    within("START", sequence.start)?;
    let restart = restart.map(|at| at.unwrap_or(sequence.start));
    if let Some(at) = restart {
        within("RESTART", at)?;
    }
    Ok(restart)
}

impl Ddl<'_> {
    /// A new sequence with `options`, not yet in the catalog.
    fn new_sequence(
        &mut self,
        schema: u32,
        name: String,
        ty: SqlType,
        options: &[SequenceOption],
    ) -> Result<Sequence> {
        let mut sequence = Sequence {
            oid: self.object_oid(schema),
            schema,
            name,
            owner: self.maker(),
            acl: self.initial_acl(telesto_sql_catalog::Granted::Sequence, schema),
            ty,
            start: 1,
            increment: 1,
            min: 1,
            max: 1,
            cache: 1,
            cycle: false,
            owned_by: None,
            epoch: 0,
            identity: false,
            comment: None,
        };
        apply(&mut sequence, options, true)?;
        Ok(sequence)
    }

    /// The sequence of a serial or identity column.
    pub(super) fn column_sequence(
        &mut self,
        schema: u32,
        table: (TableId, &str),
        column: (usize, &str),
        ty: &SqlType,
        options: &[SequenceOption],
        identity: bool,
    ) -> Result<Sequence> {
        // The column's type is the sequence's.
        if options.iter().any(|option| matches!(option, SequenceOption::As(_))) {
            return Err(Error::syntax("conflicting or redundant options"));
        }
        let given = options.iter().find_map(|option| match option {
            SequenceOption::Name(name) => Some(name),
            _ => None,
        });
        let name = match given {
            Some(name) => {
                let (within, name) = split(name)?;
                if within.is_some_and(|within| within != self.catalog().schema_name(schema)) {
                    return Err(Error::new(
                        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                        "sequence must be in same schema as table it is linked to",
                    ));
                }
                self.check_free(schema, &name, false)?;
                name
            }
            // The table may be the statement's own.
            None => self.relation_name(schema, (table.1, column.1, "seq"), &[table.1.to_owned()]),
        };
        let mut sequence = self.new_sequence(schema, name, ty.clone(), options)?;
        sequence.owned_by = Some((table.0, column.0));
        sequence.identity = identity;
        if let Some(table) = self.catalog().table(table.0) {
            sequence.owner = table.owner;
        }
        self.change.put(Object::Sequence(sequence.clone()));
        Ok(sequence)
    }

    pub(super) fn create_sequence(
        &mut self,
        temporary: bool,
        if_not_exists: bool,
        name: &ObjectName,
        options: &[SequenceOption],
    ) -> Result<()> {
        let (schema, name) = split(name)?;
        let schema = self.schema_for(temporary, schema.as_deref())?;
        if !self.check_free(schema, &name, if_not_exists)? {
            return Ok(());
        }
        let mut sequence = self.new_sequence(schema, name, SqlType::Int8, options)?;
        self.own(&mut sequence, options)?;
        self.change.put(Object::Sequence(sequence));
        Ok(())
    }

    /// OWNED BY.
    fn own(&self, sequence: &mut Sequence, options: &[SequenceOption]) -> Result<()> {
        let owner = options.iter().find_map(|option| match option {
            SequenceOption::OwnedBy(owner) => Some(owner),
            _ => None,
        });
        let Some(owner) = owner else { return Ok(()) };
        if sequence.identity {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "cannot change ownership of identity sequence",
            )
            .detail(format!(
                "Sequence \"{}\" is linked to a table's identity column.",
                sequence.name
            )));
        }
        let Some(owner) = owner else {
            sequence.owned_by = None;
            return Ok(());
        };
        let parts: Vec<Ident> = owner.0.iter().filter_map(|p| p.as_ident()).cloned().collect();
        let (column, table) = match parts.as_slice() {
            [table @ .., column] if !table.is_empty() => (fold(column), table.to_vec()),
            _ => {
                return Err(Error::syntax("invalid OWNED BY option")
                    .hint("Specify OWNED BY table.column or OWNED BY NONE."));
            }
        };
        let table = self.table(&ObjectName::from(table))?;
        if table.owner != sequence.owner {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                "sequence must have same owner as table it is linked to",
            ));
        }
        if table.schema != sequence.schema {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                "sequence must be in same schema as table it is linked to",
            ));
        }
        let position =
            table.column_position(&column).ok_or_else(|| undefined_column(&column, &table))?;
        sequence.owned_by = Some((table.id, position));
        Ok(())
    }

    pub(super) async fn alter_sequence(
        &mut self,
        if_exists: bool,
        name: &ObjectName,
        options: &[SequenceOption],
    ) -> Result<()> {
        match if if_exists { self.find_if_there(name)? } else { self.find(name)? } {
            Some(Relation::Sequence(sequence)) => {
                self.need_owner(telesto_sql_catalog::Guarded::sequence(&sequence))?;
                self.alter_sequence_options(sequence.oid, options, false).await
            }
            Some(_) => Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                format!("\"{}\" is not a sequence", split(name)?.1),
            )),
            None if if_exists => {
                self.context
                    .notices
                    .notice(format!("relation \"{}\" does not exist, skipping", split(name)?.1));
                Ok(())
            }
            None => Err(undefined_table(name)),
        }
    }

    pub(super) async fn alter_sequence_options(
        &mut self,
        oid: u32,
        options: &[SequenceOption],
        of_identity: bool,
    ) -> Result<()> {
        let mut sequence = match self.catalog().sequence(oid) {
            Some(sequence) => (**sequence).clone(),
            None => return Err(Error::internal("a sequence is gone")),
        };
        if sequence.identity && !of_identity {
            let typed = options.iter().any(|option| matches!(option, SequenceOption::As(_)));
            if typed {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    "identity column type must be changed with ALTER TABLE",
                ));
            }
        }
        let (increment, start) = (sequence.increment, sequence.start);
        let restart = apply(&mut sequence, options, false)?;
        self.own(&mut sequence, options)?;
        if self.catalog().is_regional()
            && (increment, start) != (sequence.increment, sequence.start)
        {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "INCREMENT and START of sequence \"{}\" cannot change in a database of several regions",
                    sequence.name
                ),
            )
            .hint("Regions share out the values that follow from them, and would give some twice. Make another sequence, and use that in the column's default."));
        }
        match restart {
            Some(at) => {
                let position = Some(Position { last: at, called: false });
                write_position(&self.context.txn, &self.context.catalog, oid, position).await?;
                if let Some(text) = set_here_alone(self.catalog(), oid) {
                    self.context.notices.warning(SqlState::WARNING, text);
                }
            }
            None => {
                let now =
                    read_position(&self.context.txn, &self.context.catalog, &sequence).await?;
                let (min, max) = (sequence.min, sequence.max);
                if now.last < min {
                    return Err(invalid(format!(
                        "RESTART value ({}) cannot be less than MINVALUE ({min})",
                        now.last
                    )));
                }
                if now.last > max {
                    return Err(invalid(format!(
                        "RESTART value ({}) cannot be greater than MAXVALUE ({max})",
                        now.last
                    )));
                }
                // A sequence never used stays where it was, as in PostgreSQL: START is for RESTART.
                write_position(&self.context.txn, &self.context.catalog, oid, Some(now)).await?;
            }
        }
        sequence.epoch += 1;
        self.change.put(Object::Sequence(sequence));
        Ok(())
    }

    /// An identity column has another type: so has its sequence.
    pub(super) fn retype_sequence(&mut self, oid: u32, from: &SqlType, to: &SqlType) -> Result<()> {
        let Some(sequence) = self.catalog().sequence(oid) else { return Ok(()) };
        let mut sequence = (**sequence).clone();
        let (low, high) = bounds(from);
        let (new_low, new_high) = bounds(to);
        sequence.ty = to.clone();
        if sequence.max == high {
            sequence.max = new_high;
        }
        if sequence.min == low {
            sequence.min = new_low;
        }
        apply(&mut sequence, &[], false)?;
        sequence.epoch += 1;
        self.change.put(Object::Sequence(sequence));
        Ok(())
    }
}
