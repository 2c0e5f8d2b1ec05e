//! Options of sequences and of roles, in any order.

use super::words::Words;
use super::{RoleOption, SequenceOption};
use telesto_sql_types::error::{Error, Result};

impl Words<'_> {
    /// The options of a sequence up to something else.
    pub fn sequence_options(&mut self) -> Result<Vec<SequenceOption>> {
        let mut out: Vec<SequenceOption> = Vec::new();
        while let Some(option) = self.sequence_option()? {
            let kind = std::mem::discriminant(&option);
            if out.iter().any(|before| std::mem::discriminant(before) == kind) {
                return Err(Error::syntax("conflicting or redundant options"));
            }
            out.push(option);
        }
        Ok(out)
    }

    /// The options in parentheses, if there are any.
    pub fn options_in_parentheses(&mut self) -> Result<Vec<SequenceOption>> {
        if !self.symbol("(") {
            return Ok(Vec::new());
        }
        let carried = super::identity::carried(&self.0.peek_nth_token(1).token);
        let options = match carried {
            Some(options) => {
                self.0.next_token();
                self.0.next_token();
                options?
            }
            None => self.sequence_options()?,
        };
        self.expect_symbol(")")?;
        Ok(options)
    }

    fn sequence_option(&mut self) -> Result<Option<SequenceOption>> {
        let option = if self.words(&["AS"]) {
            SequenceOption::As(self.data_type()?)
        } else if self.words(&["INCREMENT"]) {
            self.words(&["BY"]);
            SequenceOption::Increment(self.integer()?)
        } else if self.words(&["NO", "MINVALUE"]) {
            SequenceOption::Min(None)
        } else if self.words(&["MINVALUE"]) {
            SequenceOption::Min(Some(self.integer()?))
        } else if self.words(&["NO", "MAXVALUE"]) {
            SequenceOption::Max(None)
        } else if self.words(&["MAXVALUE"]) {
            SequenceOption::Max(Some(self.integer()?))
        } else if self.words(&["START"]) {
            self.words(&["WITH"]);
            SequenceOption::Start(self.integer()?)
        } else if self.words(&["RESTART"]) {
            if self.words(&["WITH"]) || self.is_number() {
                SequenceOption::Restart(Some(self.integer()?))
            } else {
                SequenceOption::Restart(None)
            }
        } else if self.words(&["CACHE"]) {
            SequenceOption::Cache(self.integer()?)
        } else if self.words(&["NO", "CYCLE"]) {
            SequenceOption::Cycle(false)
        } else if self.words(&["CYCLE"]) {
            SequenceOption::Cycle(true)
        } else if self.words(&["OWNED", "BY", "NONE"]) {
            SequenceOption::OwnedBy(None)
        } else if self.words(&["OWNED", "BY"]) {
            SequenceOption::OwnedBy(Some(self.object_name()?))
        } else if self.words(&["SEQUENCE", "NAME"]) {
            SequenceOption::Name(self.object_name()?)
        } else {
            return Ok(None);
        };
        Ok(Some(option))
    }

    /// The options of a role up to the end; those about members only where the role is new.
    pub fn role_options(&mut self, new: bool) -> Result<Vec<RoleOption>> {
        let mut out: Vec<RoleOption> = Vec::new();
        self.words(&["WITH"]);
        while !self.at_end() {
            let option = self.role_option(new)?;
            let kind = std::mem::discriminant(&option);
            if out.iter().any(|before| std::mem::discriminant(before) == kind) {
                return Err(Error::syntax("conflicting or redundant options"));
            }
            out.push(option);
        }
        Ok(out)
    }

    fn role_option(&mut self, new: bool) -> Result<RoleOption> {
        for (word, make) in [
            ("SUPERUSER", RoleOption::Superuser as fn(bool) -> RoleOption),
            ("LOGIN", RoleOption::Login),
            ("CREATEDB", RoleOption::CreateDb),
            ("CREATEROLE", RoleOption::CreateRole),
            ("INHERIT", RoleOption::Inherit),
            ("REPLICATION", RoleOption::Replication),
            ("BYPASSRLS", RoleOption::BypassRls),
        ] {
            if self.words(&[word]) {
                return Ok(make(true));
            }
            if self.words(&[&format!("NO{word}")]) {
                return Ok(make(false));
            }
        }
        if self.words(&["CONNECTION", "LIMIT"]) {
            return Ok(RoleOption::ConnectionLimit(self.integer()?));
        }
        if self.words(&["VALID", "UNTIL"]) {
            return Ok(RoleOption::ValidUntil(self.string()?));
        }
        if new {
            if self.words(&["SYSID"]) {
                self.integer()?;
                return Ok(RoleOption::SysId);
            }
            if self.words(&["IN", "ROLE"]) || self.words(&["IN", "GROUP"]) {
                return Ok(RoleOption::InRole(self.roles()?));
            }
            if self.words(&["ROLE"]) || self.words(&["USER"]) {
                return Ok(RoleOption::Role(self.roles()?));
            }
            if self.words(&["ADMIN"]) {
                return Ok(RoleOption::Admin(self.roles()?));
            }
        }
        self.words(&["ENCRYPTED"]);
        if self.words(&["PASSWORD", "NULL"]) {
            return Ok(RoleOption::Password(None));
        }
        if self.words(&["PASSWORD"]) {
            return Ok(RoleOption::Password(Some(self.string()?)));
        }
        Err(self.unexpected())
    }
}
