//! What `set_config` asks for while a statement is evaluated, until the session makes it so.
//!
//! # Invariants
//! What is kept was checked: it can be set.
//!
//! # On failure
//! The errors of SET. A statement sets at most [`MAX_CONFIGURED`] parameters.

use parking_lot::Mutex;
use telesto_sql_types::error::{Error, Result, SqlState};

use crate::settings::Settings;
use crate::settings_origins::values_of;
use crate::settings_roles::Becomes;

/// Different parameters that one statement may set.
const MAX_CONFIGURED: usize = 100;

/// What `set_config` asked for while a statement was evaluated; the session makes it so afterwards,
/// as SET would.
#[derive(Debug, Default)]
pub struct ConfigQueue(Mutex<Vec<Configured>>);

/// One call of `set_config`.
#[derive(Clone, Debug)]
pub struct Configured {
    /// The parameter.
    pub name: String,
    /// What it is set to.
    pub values: Vec<String>,
    /// Until the end of the transaction.
    pub local: bool,
    /// The parameter is `role`, and this is who the session acts as.
    pub becomes: Option<Becomes>,
}

impl ConfigQueue {
    /// Checks and keeps one call; the parameter's new value as SHOW prints it.
    ///
    /// # Errors
    /// Those of [`Settings::set`].
    pub fn push(&self, now: &Settings, name: &str, value: &str, local: bool) -> Result<String> {
        let values = values_of(name, value);
        let mut checked = now.clone();
        checked.set(name, &values)?;
        let shown = checked.show(name)?;
        self.keep(Configured { name: name.to_owned(), values, local, becomes: None })?;
        Ok(shown)
    }

    /// Keeps a call that was checked.
    pub(crate) fn keep(&self, call: Configured) -> Result<()> {
        let (name, local) = (&call.name, call.local);
        let mut queue = self.0.lock();
        // A call for every row of a large table must not fill the memory: the last one of a name
        // counts.
        queue.retain(|before| before.local != local || !before.name.eq_ignore_ascii_case(name));
        if queue.len() == MAX_CONFIGURED {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("a statement sets more than {MAX_CONFIGURED} parameters; use several"),
            ));
        }
        queue.push(call);
        Ok(())
    }

    /// Takes everything queued.
    pub fn take(&self) -> Vec<Configured> {
        std::mem::take(&mut *self.0.lock())
    }
}
