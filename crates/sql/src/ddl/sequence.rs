//! CREATE SEQUENCE, and the sequences of serial and identity columns.

use telesto_common::TableId;

use super::Ddl;
use super::names::{split, undefined_column};
use crate::catalog::Sequence;
use crate::catalog::store::Object;
use crate::error::{Error, Result, SqlState};
use crate::sqlparser::ast::{
    DataType, Expr, Ident, ObjectName, SequenceOptions, UnaryOperator, Value,
};
use crate::types::SqlType;
use crate::types::parse::sql_type;

fn number(expr: &Expr) -> Result<i64> {
    let bad = || Error::syntax(format!("expected a whole number, found {expr}"));
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => text.parse().map_err(|_| bad()),
            _ => Err(bad()),
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } => match &**inner {
            Expr::Value(value) => format!("-{}", value.value).parse().map_err(|_| bad()),
            _ => Err(bad()),
        },
        Expr::UnaryOp { op: UnaryOperator::Plus, expr: inner } => number(inner),
        _ => Err(bad()),
    }
}

fn bounds(ty: &SqlType) -> (i64, i64) {
    match ty {
        SqlType::Int2 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        SqlType::Int4 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    }
}

impl Ddl<'_> {
    /// A new sequence with `options`, not yet in the catalog.
    pub(super) fn new_sequence(
        &mut self,
        schema: u32,
        name: String,
        ty: SqlType,
        options: &[SequenceOptions],
    ) -> Result<Sequence> {
        let invalid = |text: String| Error::new(SqlState::INVALID_PARAMETER_VALUE, text);
        let (low, high) = bounds(&ty);
        let mut increment = 1;
        let (mut min, mut max, mut start, mut cache, mut cycle) = (None, None, None, 1, false);
        for option in options {
            match option {
                SequenceOptions::IncrementBy(n, _) => increment = number(n)?,
                SequenceOptions::MinValue(n) => min = n.as_ref().map(number).transpose()?,
                SequenceOptions::MaxValue(n) => max = n.as_ref().map(number).transpose()?,
                SequenceOptions::StartWith(n, _) => start = Some(number(n)?),
                SequenceOptions::Cache(n) => cache = number(n)?,
                SequenceOptions::Cycle(no) => cycle = !no,
            }
        }
        if increment == 0 {
            return Err(invalid("INCREMENT must not be zero".to_owned()));
        }
        let up = increment > 0;
        let min = min.unwrap_or(if up { 1 } else { low });
        let max = max.unwrap_or(if up { high } else { -1 });
        if min < low || max > high {
            return Err(invalid(format!(
                "MINVALUE ({min}) or MAXVALUE ({max}) is out of range for sequence data type {ty}"
            )));
        }
        if min >= max {
            return Err(invalid(format!("MINVALUE ({min}) must be less than MAXVALUE ({max})")));
        }
        let start = start.unwrap_or(if up { min } else { max });
        if start < min {
            return Err(invalid(format!(
                "START value ({start}) cannot be less than MINVALUE ({min})"
            )));
        }
        if start > max {
            return Err(invalid(format!(
                "START value ({start}) cannot be greater than MAXVALUE ({max})"
            )));
        }
        if cache < 1 {
            return Err(invalid(format!("CACHE ({cache}) must be greater than zero")));
        }
        Ok(Sequence {
            oid: self.change.oid(),
            schema,
            name,
            owner: self.context.settings.current_user.clone(),
            ty,
            start,
            increment,
            min,
            max,
            cache,
            cycle,
            owned_by: None,
            epoch: 0,
            identity: false,
            comment: None,
        })
    }

    /// The sequence of a serial or identity column.
    pub(super) fn column_sequence(
        &mut self,
        schema: u32,
        table: (TableId, &str),
        column: (usize, &str),
        ty: &SqlType,
        options: &[SequenceOptions],
        identity: bool,
    ) -> Result<Sequence> {
        let name = self.relation_name(schema, &format!("{}_{}_seq", table.1, column.1), &[]);
        let mut sequence = self.new_sequence(schema, name, ty.clone(), options)?;
        sequence.owned_by = Some((table.0, column.0));
        sequence.identity = identity;
        self.change.put(Object::Sequence(sequence.clone()));
        Ok(sequence)
    }

    pub(super) fn create_sequence_statement(
        &mut self,
        name: &ObjectName,
        if_not_exists: bool,
        ty: Option<&DataType>,
        options: &[SequenceOptions],
        owned_by: Option<&ObjectName>,
    ) -> Result<()> {
        let (schema, name) = split(name)?;
        let schema = self.creation_schema(schema.as_deref())?;
        if !self.check_free(schema, &name, if_not_exists)? {
            return Ok(());
        }
        let ty = ty.map_or(Ok(SqlType::Int8), sql_type)?;
        if !ty.is_integer() {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                "sequence type must be smallint, integer, or bigint",
            ));
        }
        let mut sequence = self.new_sequence(schema, name, ty, options)?;
        if let Some(owner) = owned_by {
            let parts: Vec<Ident> = owner.0.iter().filter_map(|p| p.as_ident()).cloned().collect();
            if let [table @ .., column] = parts.as_slice()
                && !table.is_empty()
            {
                let table = self.table(&ObjectName::from(table.to_vec()))?;
                let column = super::names::fold(column);
                let position = table
                    .column_position(&column)
                    .ok_or_else(|| undefined_column(&column, &table))?;
                sequence.owned_by = Some((table.id, position));
            }
        }
        self.change.put(Object::Sequence(sequence));
        Ok(())
    }
}
