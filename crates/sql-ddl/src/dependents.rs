//! What depends on something about to go, and how PostgreSQL says so.

use telesto_sql_plan::NoticeQueue;
use telesto_sql_types::error::{Error, Result, SqlState};

/// The objects that depend on one or several others.
pub(super) struct Dependents {
    /// What is dropped: `table t`.
    target: String,
    /// Dependent, and on what.
    found: Vec<(String, String)>,
}

impl Dependents {
    /// Nothing yet depends on `target`.
    pub(super) fn of(target: String) -> Self {
        Self { target, found: Vec::new() }
    }

    /// `dependent` depends on the target.
    pub(super) fn add(&mut self, dependent: String) {
        let target = self.target.clone();
        self.add_on(dependent, target);
    }

    /// `dependent` depends on `on`, which goes too.
    pub(super) fn add_on(&mut self, dependent: String, on: String) {
        if !self.found.iter().any(|(known, _)| *known == dependent) {
            self.found.push((dependent, on));
        }
    }

    /// Refuses when there are any, or with CASCADE says what goes.
    pub(super) fn settle(&self, cascade: bool, notices: &NoticeQueue) -> Result<()> {
        if self.found.is_empty() {
            return Ok(());
        }
        if !cascade {
            return Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!("cannot drop {} because other objects depend on it", self.target),
            )
            .detail(
                self.found
                    .iter()
                    .map(|(dependent, on)| format!("{dependent} depends on {on}"))
                    .collect::<Vec<_>>()
                    .join("\n"),
            )
            .hint("Use DROP ... CASCADE to drop the dependent objects too."));
        }
        match self.found.as_slice() {
            [(one, _)] => notices.notice(format!("drop cascades to {one}")),
            many => notices.detailed(
                format!("drop cascades to {} other objects", many.len()),
                many.iter()
                    .map(|(dependent, _)| format!("drop cascades to {dependent}"))
                    .collect::<Vec<_>>()
                    .join("\n"),
            ),
        }
        Ok(())
    }
}
