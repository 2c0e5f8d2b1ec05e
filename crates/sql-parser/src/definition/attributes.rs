//! ALTER TYPE … ADD, DROP, ALTER and RENAME ATTRIBUTE.

use super::Definition;
use super::words::{Words, is_word};
use crate::sqlparser::ast::{DataType, Ident};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::Result;

/// What to do to a field of a composite type.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each variant and field is a word of the definition")]
pub enum AttributeAction {
    Add { name: Ident, ty: DataType },
    Drop { if_exists: bool, name: Ident },
    Type { name: Ident, ty: DataType },
    Rename { name: Ident, to: Ident },
}

/// Whether an ALTER TYPE is of attributes.
pub(super) fn of_attributes(tokens: &[TokenWithSpan]) -> bool {
    let mut words = tokens.iter().map(|t| &t.token).filter(|t| !matches!(t, Token::Whitespace(_)));
    let mut before = None;
    words.any(|token| {
        let verb = |token: &Token| {
            ["ADD", "DROP", "ALTER", "RENAME"].iter().any(|word| is_word(token, word))
        };
        let found = is_word(token, "ATTRIBUTE") && before.is_some_and(verb);
        before = Some(token);
        found
    })
}

impl Words<'_> {
    /// What stands behind ALTER TYPE.
    pub(super) fn alter_attributes(&mut self) -> Result<Definition> {
        let name = self.object_name()?;
        let mut actions = Vec::new();
        if self.words(&["RENAME", "ATTRIBUTE"]) {
            let from = self.identifier()?;
            self.expect_words(&["TO"])?;
            actions.push(AttributeAction::Rename { name: from, to: self.identifier()? });
            self.behavior();
            return Ok(Definition::AlterAttributes { name, actions });
        }
        loop {
            actions.push(self.attribute_action()?);
            self.behavior();
            if !self.symbol(",") {
                return Ok(Definition::AlterAttributes { name, actions });
            }
        }
    }

    fn attribute_action(&mut self) -> Result<AttributeAction> {
        if self.words(&["ADD", "ATTRIBUTE"]) {
            let name = self.identifier()?;
            let ty = self.data_type()?;
            self.no_collation()?;
            return Ok(AttributeAction::Add { name, ty });
        }
        if self.words(&["DROP", "ATTRIBUTE"]) {
            let if_exists = self.words(&["IF", "EXISTS"]);
            return Ok(AttributeAction::Drop { if_exists, name: self.identifier()? });
        }
        self.expect_words(&["ALTER", "ATTRIBUTE"])?;
        let name = self.identifier()?;
        self.words(&["SET", "DATA"]);
        self.expect_words(&["TYPE"])?;
        let ty = self.data_type()?;
        self.no_collation()?;
        Ok(AttributeAction::Type { name, ty })
    }

    fn no_collation(&mut self) -> Result<()> {
        if self.words(&["COLLATE"]) {
            crate::rewrite::collation::check_of_column(&self.object_name()?)?;
        }
        Ok(())
    }

    /// CASCADE reaches tables made OF the type; there are none.
    fn behavior(&mut self) {
        if !self.words(&["CASCADE"]) {
            self.words(&["RESTRICT"]);
        }
    }
}
