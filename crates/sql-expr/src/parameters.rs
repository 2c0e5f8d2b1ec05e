//! The types of a statement's parameters.
//!
//! # Invariants
//! A type that is known once stays, until a changed catalog links it anew.

use telesto_sql_types::{Result, SqlType};

/// Types of a statement's parameters, filled in while planning.
#[derive(Clone, Debug, Default)]
pub struct ParameterTypes(Vec<Option<SqlType>>);

impl ParameterTypes {
    /// Types known before planning; `None` is "infer".
    #[must_use]
    pub fn new(known: &[Option<SqlType>]) -> Self {
        Self(known.to_vec())
    }

    /// The type of `$number` (1-based), if known yet.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&SqlType> {
        self.0.get(number.checked_sub(1)?)?.as_ref()
    }

    /// Notes that `$number` exists, of a type not known yet.
    pub fn mention(&mut self, number: usize) {
        if self.0.len() < number {
            self.0.resize(number, None);
        }
    }

    /// Gives `$number` the type `ty` if it has none yet.
    pub fn infer(&mut self, number: usize, ty: SqlType) {
        self.mention(number);
        if let Some(slot) = number.checked_sub(1).and_then(|i| self.0.get_mut(i)) {
            slot.get_or_insert(ty);
        }
    }

    /// Replaces the known types.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn relink(&mut self, change: impl Fn(&SqlType) -> Result<SqlType>) -> Result<()> {
        for ty in self.0.iter_mut().flatten() {
            *ty = change(ty)?;
        }
        Ok(())
    }

    /// The types after planning; a parameter nothing is known of is text.
    #[must_use]
    pub fn resolved(&self) -> Vec<SqlType> {
        self.0.iter().map(|ty| ty.clone().unwrap_or(SqlType::Text)).collect()
    }
}
