//! Identifiers of the parser's tree and the names they mean.
//!
//! # Invariants
//! What is written as an identifier is read back as the same name. Identifiers are cut to 63 bytes
//! where tokens are read, so nothing here does.

use telesto_sql_types::identifier::quote_ident;

use crate::sqlparser::ast::Ident;

/// The name an identifier means: folded to lower case unless quoted.
#[must_use]
pub fn fold(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

/// A name as the SQL parser's identifier, quoted when it has to be.
#[must_use]
pub fn ident(name: &str) -> Ident {
    if quote_ident(name) == name {
        Ident::new(name)
    } else {
        Ident::with_quote('"', name.replace('"', "\"\""))
    }
}
