//! The types of a statement's parameters.
//!
//! # Invariants
//! - A type that is known once stays, until a changed catalog links it anew.
//! - As in PostgreSQL, a parameter is of the type of the first place that asks for one. A place
//!   that takes any type asks for none: the parameter is left open there, and a type that comes
//!   later is too late (42P08).
//!
//! # On failure
//! 42P08 for a parameter with two types, 42P18 for one without any.

use std::collections::BTreeSet;

use telesto_sql_types::error::{Error, SqlState};
use telesto_sql_types::{Result, SqlType};

/// Parameters that a message can carry values of.
const MOST: usize = 65_535;
/// The greatest number that PostgreSQL reads behind `$`.
const MOST_NUMBERED: usize = 536_870_911;

/// The number of `$n`.
///
/// # Errors
/// 42P02 for what is no number of a parameter; 42P18 for one beyond those that can be sent: the one
/// before it has no type then.
pub fn number(text: &str) -> Result<usize> {
    let number = text.strip_prefix('$').and_then(|n| n.parse::<usize>().ok());
    match number.filter(|n| (1..=MOST_NUMBERED).contains(n)) {
        Some(number) if number <= MOST => Ok(number),
        Some(_) => Err(Error::new(
            SqlState::INDETERMINATE_DATATYPE,
            format!("could not determine data type of parameter ${MOST}"),
        )
        .hint(format!("A statement takes {MOST} parameters at most; send an array."))),
        None => {
            Err(Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter {text}")))
        }
    }
}

/// Types of a statement's parameters, filled in while planning.
#[derive(Clone, Debug, Default)]
pub struct ParameterTypes {
    types: Vec<Option<SqlType>>,
    /// Numbers of those that had no type where any would do.
    open: BTreeSet<usize>,
}

impl ParameterTypes {
    /// Types known before planning; `None` is "infer".
    #[must_use]
    pub fn new(known: &[Option<SqlType>]) -> Self {
        Self { types: known.to_vec(), open: BTreeSet::new() }
    }

    /// The type of `$number` (1-based), if known yet.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&SqlType> {
        self.types.get(number.checked_sub(1)?)?.as_ref()
    }

    /// Notes that `$number` exists, of a type not known yet.
    pub fn mention(&mut self, number: usize) {
        if self.types.len() < number {
            self.types.resize(number, None);
        }
    }

    /// Notes that `$number` stands where any type would do.
    pub fn leave(&mut self, number: usize) {
        self.mention(number);
        if self.get(number).is_none() {
            self.open.insert(number);
        }
    }

    /// Gives `$number` the type `ty`.
    ///
    /// # Errors
    /// 42P08 when it has another.
    pub fn infer(&mut self, number: usize, ty: SqlType) -> Result<()> {
        self.mention(number);
        let Some(slot) = number.checked_sub(1).and_then(|i| self.types.get_mut(i)) else {
            return Ok(());
        };
        match slot {
            Some(known) if *known != ty => Err(two_types(number, known, &ty)),
            Some(_) => Ok(()),
            None => {
                *slot = Some(ty);
                Ok(())
            }
        }
    }

    /// Replaces the known types.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn relink(&mut self, change: impl Fn(&SqlType) -> Result<SqlType>) -> Result<()> {
        for ty in self.types.iter_mut().flatten() {
            *ty = change(ty)?;
        }
        Ok(())
    }

    /// The types after planning; a parameter nothing is known of is text.
    #[must_use]
    pub fn resolved(&self) -> Vec<SqlType> {
        self.types.iter().map(|ty| ty.clone().unwrap_or(SqlType::Text)).collect()
    }

    /// Refuses parameters whose type was not told, or told too late.
    ///
    /// # Errors
    /// 42P18; 42P08.
    pub fn check_all_known(&self) -> Result<()> {
        let undetermined =
            |number: usize| format!("could not determine data type of parameter ${number}");
        if let Some(number) = self.open.iter().find(|number| self.get(**number).is_some()) {
            return Err(Error::new(SqlState::AMBIGUOUS_PARAMETER, undetermined(*number)));
        }
        match self.types.iter().position(Option::is_none) {
            None => Ok(()),
            Some(at) => Err(Error::new(SqlState::INDETERMINATE_DATATYPE, undetermined(at + 1))
                .hint("Cast it to its type, for example $1::text.")),
        }
    }
}

/// 42P08 for a parameter that one place takes for one type, and another for another.
#[must_use]
pub fn two_types(number: usize, first: &SqlType, second: &SqlType) -> Error {
    Error::new(
        SqlState::AMBIGUOUS_PARAMETER,
        format!("inconsistent types deduced for parameter ${number}"),
    )
    .detail(format!("{first} versus {second}"))
}
