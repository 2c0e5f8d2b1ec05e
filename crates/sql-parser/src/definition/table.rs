//! The actions of ALTER TABLE and its kin.

use super::parse::token_text;
use super::words::Words;
use super::{Action, ColumnChange, Kind, RowSecurityChange};
use crate::sqlparser::ast::{ConstraintCharacteristics, DeferrableInitial, TableConstraint};
use crate::sqlparser::tokenizer::Token;
use telesto_sql_types::error::{Error, Result};

impl Words<'_> {
    /// The actions after the name.
    pub fn actions(&mut self, kind: Kind) -> Result<Vec<Action>> {
        // These stand alone.
        if self.words(&["RENAME"]) {
            let action = if self.words(&["TO"]) {
                Action::RenameTo(self.identifier()?)
            } else if self.words(&["CONSTRAINT"]) {
                let from = self.identifier()?;
                self.expect_words(&["TO"])?;
                Action::RenameConstraint { from, to: self.identifier()? }
            } else {
                self.words(&["COLUMN"]);
                let from = self.identifier()?;
                self.expect_words(&["TO"])?;
                Action::RenameColumn { from, to: self.identifier()? }
            };
            return Ok(vec![action]);
        }
        if self.words(&["SET", "SCHEMA"]) {
            return Ok(vec![Action::SetSchema(self.identifier()?)]);
        }
        let mut out = Vec::new();
        loop {
            out.push(self.action(kind)?);
            if !self.symbol(",") {
                return Ok(out);
            }
        }
    }

    fn cascades(&mut self) -> bool {
        if self.words(&["CASCADE"]) {
            return true;
        }
        self.words(&["RESTRICT"]);
        false
    }

    fn action(&mut self, kind: Kind) -> Result<Action> {
        if self.words(&["ADD"]) {
            return self.add();
        }
        if self.words(&["DROP", "CONSTRAINT"]) {
            let if_exists = self.words(&["IF", "EXISTS"]);
            let name = self.identifier()?;
            return Ok(Action::DropConstraint { if_exists, name, cascade: self.cascades() });
        }
        if self.words(&["DROP"]) {
            self.words(&["COLUMN"]);
            let if_exists = self.words(&["IF", "EXISTS"]);
            let name = self.identifier()?;
            return Ok(Action::DropColumn { if_exists, name, cascade: self.cascades() });
        }
        if self.words(&["ALTER", "CONSTRAINT"]) {
            let name = self.identifier()?;
            let (deferrable, deferred) = self.deferral()?;
            return Ok(Action::AlterConstraint { name, deferrable, deferred });
        }
        if self.words(&["ALTER"]) {
            self.words(&["COLUMN"]);
            // ALTER INDEX … ALTER COLUMN 1 SET STATISTICS
            if kind == Kind::Index && self.is_number() {
                return Ok(Action::Effectless(self.index_column()?));
            }
            let name = self.identifier()?;
            return Ok(Action::Column { name, change: self.column_change()? });
        }
        if self.words(&["VALIDATE", "CONSTRAINT"]) {
            return Ok(Action::ValidateConstraint(self.identifier()?));
        }
        if self.words(&["OWNER", "TO"]) {
            return Ok(Action::OwnerTo(self.role()?));
        }
        if kind == Kind::View
            && let Some(action) = self.view_options()?
        {
            return Ok(action);
        }
        for (words, change) in [
            (&["ENABLE", "ROW", "LEVEL", "SECURITY"][..], RowSecurityChange::Enable),
            (&["DISABLE", "ROW", "LEVEL", "SECURITY"], RowSecurityChange::Disable),
            (&["FORCE", "ROW", "LEVEL", "SECURITY"], RowSecurityChange::Force),
            (&["NO", "FORCE", "ROW", "LEVEL", "SECURITY"], RowSecurityChange::NoForce),
        ] {
            if self.words(words) {
                return Ok(Action::RowSecurity(change));
            }
        }
        for (word, reset) in [("SET", false), ("RESET", true)] {
            if self.peek_words(&[word]) && self.0.peek_nth_token(1).token == Token::LParen {
                self.words(&[word]);
                let settings = self.settings(reset)?;
                for (name, _) in settings.iter().filter(|_| !reset) {
                    super::known_storage(kind == Kind::Index, name)?;
                }
                return Ok(Action::Settings(settings));
            }
        }
        if let Some(action) = self.effectless()? {
            return Ok(Action::Effectless(action));
        }
        if let Some(what) = self.unsupported(kind)? {
            return Ok(Action::Unsupported(format!("{} … {what}", kind.tag())));
        }
        Err(self.unexpected())
    }

    /// `(name [= value] [, …])`; names may have parts.
    pub(super) fn settings(&mut self, reset: bool) -> Result<Vec<(String, Option<String>)>> {
        self.expect_symbol("(")?;
        let mut settings = Vec::new();
        loop {
            let mut name = self.identifier()?.value.to_lowercase();
            while self.symbol(".") {
                name = format!("{name}.{}", self.identifier()?.value.to_lowercase());
            }
            let mut value = None;
            if !reset && self.symbol("=") {
                let mut text = token_text(&self.0.next_token());
                if matches!(text.as_str(), "-" | "+") && self.is_number() {
                    text += &token_text(&self.0.next_token());
                }
                let quoted = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
                value = Some(quoted.map_or_else(|| text.clone(), |text| text.replace("''", "'")));
            }
            settings.push((name, value));
            if self.symbol(",") {
                continue;
            }
            self.expect_symbol(")")?;
            return Ok(settings);
        }
    }

    fn add(&mut self) -> Result<Action> {
        if !self.peek_words(&["COLUMN"])
            && let Some(constraint) = self.table_constraint()?
        {
            if matches!(
                &constraint,
                TableConstraint::PrimaryKeyUsingIndex(_) | TableConstraint::UniqueUsingIndex(_)
            ) {
                return Ok(Action::AddConstraint {
                    constraint: Box::new(constraint),
                    not_valid: false,
                });
            }
            let mut constraint = constraint;
            let not_valid = self.words(&["NOT", "VALID"]);
            // pg_dump writes NOT VALID last, but it may come before DEFERRABLE, too.
            if not_valid && let TableConstraint::ForeignKey(key) = &mut constraint {
                self.more_characteristics(&mut key.characteristics)?;
            }
            return Ok(Action::AddConstraint { constraint: Box::new(constraint), not_valid });
        }
        self.words(&["COLUMN"]);
        let if_not_exists = self.words(&["IF", "NOT", "EXISTS"]);
        Ok(Action::AddColumn { if_not_exists, definition: Box::new(self.column_definition()?) })
    }

    /// `SET (security_invoker = …)`, `security_barrier`, or RESET of them; `None`: something else.
    fn view_options(&mut self) -> Result<Option<Action>> {
        if !self.peek_options() {
            return Ok(None);
        }
        let set = self.words(&["SET"]);
        if !set {
            self.words(&["RESET"]);
        }
        self.expect_symbol("(")?;
        let (mut invoker, mut barrier, mut check) = (None, None, None);
        loop {
            let name = self.identifier()?;
            let mut value = "true".to_owned();
            if self.symbol("=") {
                value = self.0.next_token().token.to_string();
            }
            let name = name.value.to_ascii_lowercase();
            let value = value.trim_matches('\'').to_ascii_lowercase();
            match name.as_str() {
                "security_invoker" => invoker = Some(set && super::is_on(&name, &value)?),
                "security_barrier" => barrier = Some(set && super::is_on(&name, &value)?),
                "check_option" => check = Some(set.then(|| value.clone())),
                _ => {
                    return Err(telesto_sql_types::error::Error::new(
                        telesto_sql_types::SqlState::INVALID_PARAMETER_VALUE,
                        format!("unrecognized parameter \"{name}\""),
                    ));
                }
            }
            if !self.symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        Ok(Some(Action::ViewOptions { invoker, barrier, check }))
    }

    /// What is said of a key's deferral behind NOT VALID, beside what was said before it.
    fn more_characteristics(
        &mut self,
        before: &mut Option<ConstraintCharacteristics>,
    ) -> Result<()> {
        let Some(more) = self.characteristics()? else { return Ok(()) };
        let Some(given) = before else {
            *before = Some(more);
            return Ok(());
        };
        let twice = given.deferrable.is_some() && more.deferrable.is_some()
            || given.initially.is_some() && more.initially.is_some();
        if twice {
            return Err(Error::syntax("multiple DEFERRABLE clauses not allowed"));
        }
        given.deferrable = given.deferrable.or(more.deferrable);
        given.initially = given.initially.or(more.initially);
        Ok(())
    }

    fn deferral(&mut self) -> Result<(bool, bool)> {
        let given = self.characteristics()?;
        let deferred = given
            .as_ref()
            .is_some_and(|c| matches!(c.initially, Some(DeferrableInitial::Deferred)));
        let deferrable = given.as_ref().and_then(|c| c.deferrable);
        if deferred && deferrable == Some(false) {
            return Err(Error::syntax("constraint declared INITIALLY DEFERRED must be DEFERRABLE"));
        }
        Ok((deferrable.unwrap_or(deferred), deferred))
    }

    fn column_change(&mut self) -> Result<ColumnChange> {
        if self.words(&["SET", "DATA", "TYPE"]) || self.words(&["TYPE"]) {
            let ty = Box::new(self.data_type()?);
            if self.words(&["COLLATE"]) {
                crate::rewrite::collation::check_of_column(&self.object_name()?)?;
            }
            let using =
                if self.words(&["USING"]) { Some(Box::new(self.expression()?)) } else { None };
            return Ok(ColumnChange::Type { ty, using });
        }
        if self.words(&["SET", "DEFAULT"]) {
            return Ok(ColumnChange::SetDefault(Box::new(self.expression()?)));
        }
        if self.words(&["DROP", "DEFAULT"]) {
            return Ok(ColumnChange::DropDefault);
        }
        if self.words(&["SET", "NOT", "NULL"]) {
            return Ok(ColumnChange::SetNotNull);
        }
        if self.words(&["DROP", "NOT", "NULL"]) {
            return Ok(ColumnChange::DropNotNull);
        }
        if self.words(&["DROP", "EXPRESSION"]) {
            return Ok(ColumnChange::DropExpression { if_exists: self.words(&["IF", "EXISTS"]) });
        }
        if self.words(&["DROP", "IDENTITY"]) {
            return Ok(ColumnChange::DropIdentity { if_exists: self.words(&["IF", "EXISTS"]) });
        }
        if self.words(&["ADD", "GENERATED"]) {
            let always = self.always()?;
            self.expect_words(&["AS", "IDENTITY"])?;
            return Ok(ColumnChange::AddIdentity {
                always,
                options: self.options_in_parentheses()?,
            });
        }
        if self.column_effectless()? {
            return Ok(ColumnChange::Nothing);
        }
        // SET GENERATED, SET INCREMENT, RESTART: several, without commas.
        let (mut always, mut options) = (None, Vec::new());
        loop {
            if self.words(&["SET", "GENERATED"]) {
                always = Some(self.always()?);
            } else if self.words(&["SET"]) || self.peek_words(&["RESTART"]) {
                let more = self.sequence_options()?;
                if more.is_empty() {
                    return Err(self.unexpected());
                }
                options.extend(more);
            } else {
                break;
            }
        }
        if always.is_none() && options.is_empty() {
            return Err(self.unexpected());
        }
        Ok(ColumnChange::SetIdentity { always, options })
    }

    fn always(&mut self) -> Result<bool> {
        if self.words(&["ALWAYS"]) {
            return Ok(true);
        }
        self.expect_words(&["BY", "DEFAULT"])?;
        Ok(false)
    }
}
