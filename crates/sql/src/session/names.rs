//! Names of objects in results: what regclass and its kin are shown by.
//!
//! # Invariants
//! - Inside of a statement such a value is an OID. On its way out it is given the name that the OID
//!   has in the statement's catalog ([`Datum::Named`]): whoever writes it as text has no catalog,
//!   and in binary format it is the OID.
//! - What cursors keep are OIDs: FETCH names them.

use std::sync::Arc;

use futures::StreamExt as _;
use rustc_hash::FxHashMap;

use super::{Row, Rows, Session, StatementResult};
use crate::catalog::CatalogSnapshot;
use crate::error::Result;
use crate::expr::Settings;
use crate::expr::cast::output;
use crate::expr::context::EvalContext;
use crate::types::{ArrayValue, Datum, NamedOid, SqlType};

/// Names of a result's OIDs.
struct Names {
    catalog: Arc<CatalogSnapshot>,
    settings: Arc<Settings>,
    /// The columns that have such OIDs.
    columns: Vec<(usize, SqlType)>,
    known: FxHashMap<(u32, SqlType), Datum>,
}

impl Names {
    fn name(&mut self, value: &Datum, ty: &SqlType) -> Result<Datum> {
        match (value, ty) {
            (Datum::Oid(oid), ty) => {
                let key = (*oid, ty.clone());
                if let Some(known) = self.known.get(&key) {
                    return Ok(known.clone());
                }
                let context = EvalContext::planning(&self.settings, &self.catalog);
                let name = output(value, ty, &context)?.into();
                let named = Datum::Named(Arc::new(NamedOid { oid: *oid, name }));
                self.known.insert(key, named.clone());
                Ok(named)
            }
            (Datum::Array(array), SqlType::Array(element)) => {
                let elements = array.elements.iter().map(|item| self.name(item, element));
                Ok(Datum::Array(Arc::new(ArrayValue {
                    elements: elements.collect::<Result<_>>()?,
                    ..(**array).clone()
                })))
            }
            (value, _) => Ok(value.clone()),
        }
    }

    fn rows(&mut self, mut rows: Vec<Row>) -> Result<Vec<Row>> {
        let columns = std::mem::take(&mut self.columns);
        for row in &mut rows {
            for (at, ty) in &columns {
                if let Some(value) = row.get_mut(*at) {
                    *value = self.name(value, ty)?;
                }
            }
        }
        self.columns = columns;
        Ok(rows)
    }
}

impl Session {
    /// The result with the names of the objects in it.
    pub(super) fn with_names(&self, result: StatementResult) -> Result<StatementResult> {
        let StatementResult::Rows { columns, rows, tag } = result else { return Ok(result) };
        let named = columns.iter().enumerate().filter(|(_, c)| c.ty.with_names().is_some());
        let named: Vec<_> = named.map(|(at, column)| (at, column.ty.clone())).collect();
        let catalog = match &self.catalog {
            Some(catalog) if !named.is_empty() => Arc::clone(catalog),
            _ => return Ok(StatementResult::Rows { columns, rows, tag }),
        };
        let mut names = Names {
            catalog,
            settings: Arc::clone(&self.settings),
            columns: named,
            known: FxHashMap::default(),
        };
        let rows = match rows {
            Rows::Ready(rows) => Rows::Ready(names.rows(rows)?),
            Rows::Stream(rows) => Rows::Stream(Box::pin(rows.map(move |rows| names.rows(rows?)))),
        };
        Ok(StatementResult::Rows { columns, rows, tag })
    }
}
