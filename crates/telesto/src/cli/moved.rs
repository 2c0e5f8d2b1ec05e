//! Commands that are those of another program, `telesto-demo`: whoever knows them from here is
//! told.
//!
//! # Invariants
//! What was given with them is not repeated: a URL may hold a password.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _};

use super::Cli;

/// Whatever was given with the command, `--help` too.
#[derive(Debug, Args)]
pub struct Moved {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Moved {
    /// Ends the process as one whose command line is wrong, and says how the command `was` is
    /// written now.
    pub fn end(&self, was: &str, now: &str) -> ! {
        Cli::command().error(ErrorKind::InvalidSubcommand, self.told(was, now)).exit()
    }

    fn told(&self, was: &str, now: &str) -> String {
        let same = if self.arguments.is_empty() { "" } else { " with the same arguments" };
        format!(
            "telesto {was} belongs to the demos, which are a program of their own: run {now}{same}. \
             cargo build -p telesto-demo builds it beside telesto; a release has it as telesto-demo-VERSION-MACHINE.tar.gz"
        )
    }
}
