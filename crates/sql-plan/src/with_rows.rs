//! What earlier parts of a statement leave for later ones: `WITH x AS (INSERT … RETURNING …)`.
//!
//! # Protocol
//! Planning knows the parts by [`Earlier`]: the WITH list that later parts see, in which each part
//! that writes is `SELECT * FROM` a relation of a name no user can write ([`part_name`]). Execution
//! puts the rows of each part into [`Parts`], from which that relation reads them.
//!
//! # Invariants
//! - All parts read the state at the statement's start (a view of the transaction); a later part
//!   does not write a row that an earlier one wrote.
//! - Foreign keys are settled once, when all parts have written.
//!
//! # On failure
//! 53200 when the rows do not fit the statement's memory.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use telesto_common::limits::Reservation;

use crate::ResultColumn;
use crate::foreign_keys::Pending;
use telesto_sql_expr::fold;
use telesto_sql_parser::sqlparser::ast::{self, Query, With};
use telesto_sql_types::Row;

/// Begin of the names of relations that parts of a statement leave. No client can send it: the
/// protocol's strings end at a NUL.
const PREFIX: &str = "\0part ";

/// The name of the relation that part `number` leaves.
#[must_use]
pub fn part_name(number: usize) -> String {
    format!("{PREFIX}{number}")
}

/// How often each WITH query is named by those behind it and by the query that the list stands
/// before. One pass over all of it: a list of a thousand is no work.
#[must_use]
pub fn uses(query: &Query, with: &With) -> Vec<usize> {
    let mut places = BTreeMap::new();
    for (at, cte) in with.cte_tables.iter().enumerate() {
        places.entry(fold(&cte.alias.name)).or_insert(at);
    }
    let mut uses = vec![0; with.cte_tables.len()];
    for (at, cte) in with.cte_tables.iter().enumerate() {
        count(&cte.query, &places, &mut uses[..at]);
    }
    count(&query.body, &places, &mut uses);
    if let Some(order) = &query.order_by {
        count(order, &places, &mut uses);
    }
    uses
}

/// Counts what `node` names of those that have a place in `uses`.
fn count(node: &impl ast::Visit, places: &BTreeMap<String, usize>, uses: &mut [usize]) {
    let _ = ast::visit_relations(node, |relation| {
        if let [single] = relation.0.as_slice()
            && let Some(at) = single.as_ident().and_then(|ident| places.get(&fold(ident)))
            && let Some(uses) = uses.get_mut(*at)
        {
            *uses += 1;
        }
        ControlFlow::<()>::Continue(())
    });
}

/// The part that leaves the relation of this name.
#[must_use]
pub fn part_number(name: &str) -> Option<usize> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// What planning knows of earlier parts.
#[derive(Clone, Debug, Default)]
pub struct Earlier {
    /// The WITH list in view.
    pub with: Option<With>,
    /// The columns of what the parts leave, by number; none without RETURNING.
    pub parts: Vec<Arc<[ResultColumn]>>,
}

/// Rows that a part left.
#[derive(Debug)]
pub struct PartRows {
    /// Their columns.
    pub columns: Arc<[ResultColumn]>,
    /// The rows.
    pub rows: Vec<Row>,
    /// Counts them.
    pub held: Reservation,
}

/// The execution of a statement of several parts.
#[derive(Debug, Default)]
pub struct Parts {
    rows: Mutex<Vec<Arc<PartRows>>>,
    pending: Mutex<Pending>,
}

impl Parts {
    /// Adds the rows of the next part.
    pub fn push(&self, rows: PartRows) {
        self.rows.lock().push(Arc::new(rows));
    }

    /// Adds rows that another execution's part left.
    pub fn share(&self, rows: Arc<PartRows>) {
        self.rows.lock().push(rows);
    }

    /// The rows of a part.
    #[must_use]
    pub fn rows(&self, number: usize) -> Option<Arc<PartRows>> {
        self.rows.lock().get(number).cloned()
    }

    /// Takes the foreign keys that are still to be settled.
    #[must_use]
    pub fn take_pending(&self) -> Pending {
        std::mem::take(&mut *self.pending.lock())
    }

    /// Leaves foreign keys to be settled at the end.
    pub fn set_pending(&self, pending: Pending) {
        *self.pending.lock() = pending;
    }
}

/// The error for a part that writes anywhere else.
#[must_use]
pub fn not_at_the_top() -> telesto_sql_types::Error {
    telesto_sql_types::Error::new(
        telesto_sql_types::SqlState::FEATURE_NOT_SUPPORTED,
        "WITH clause containing a data-modifying statement must be at the top level",
    )
}
