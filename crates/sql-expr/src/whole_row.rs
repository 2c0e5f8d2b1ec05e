//! Rows where a value is wanted, written as SQL over their fields.
//!
//! # Invariants
//! A row that an outer join made up is NULL as a whole; it is told by all its fields being NULL.
//!
//! # On failure
//! XX000: an expression made here does not parse.

use telesto_sql_parser::sqlparser::ast;
use telesto_sql_types::{Error, Result, SqlType};

use crate::ROW_TEXT;

/// A field: its name, its expression as SQL.
#[derive(Debug)]
pub struct Field {
    /// Name.
    pub name: String,
    /// Expression.
    pub sql: String,
    /// Whether it was written as an untyped literal.
    pub untyped: bool,
}

/// A row.
#[derive(Debug)]
pub struct WholeRow {
    /// Its fields.
    pub fields: Vec<Field>,
    /// It may be NULL as a whole.
    pub nullable: bool,
    /// It is written out, `ROW(…)`.
    pub written: bool,
}

/// A name in quotes.
#[must_use]
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as a literal.
#[must_use]
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// SQL made by the engine, parsed.
///
/// # Errors
/// XX000 when it does not parse.
pub fn parsed(sql: &str) -> Result<ast::Expr> {
    telesto_sql_parser::syntax::read(sql, |parser| parser.parse_expr()).map_err(|unread| {
        unread.or_else(|error| {
            Error::internal(format!("an expression made here does not parse: {error}"))
        })
    })
}

impl WholeRow {
    /// Every field with `test` after it.
    #[must_use]
    pub fn all(&self, test: &str) -> String {
        let tests: Vec<String> =
            self.fields.iter().map(|field| format!("({}) {test}", field.sql)).collect();
        if tests.is_empty() { "true".to_owned() } else { tests.join(" AND ") }
    }

    /// `sql`, or NULL when the whole row is.
    #[must_use]
    pub fn unless_null(&self, sql: String) -> String {
        if self.nullable {
            format!("CASE WHEN {} THEN NULL ELSE {sql} END", self.all("IS NULL"))
        } else {
            sql
        }
    }

    /// The row as a JSON object, text.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn json_text(&self) -> Result<String> {
        let mut parts = vec!["'{'".to_owned()];
        for (at, field) in self.fields.iter().enumerate() {
            let name = serde_json::to_string(&field.name)
                .map_err(|error| Error::internal(format!("a name as JSON: {error}")))?;
            let comma = if at == 0 { "" } else { "," };
            parts.push(literal(&format!("{comma}{name}:")));
            let value = format!("CAST(to_json({}) AS text)", field.sql);
            parts.push(format!("coalesce({value}, 'null')"));
        }
        parts.push("'}'".to_owned());
        Ok(self.unless_null(format!("concat({})", parts.join(", "))))
    }

    /// The row as json.
    ///
    /// # Errors
    /// None but internal ones.
    pub fn json(&self) -> Result<String> {
        Ok(format!("CAST({} AS json)", self.json_text()?))
    }

    /// The row as PostgreSQL writes it: `(1,"a b",)`.
    #[must_use]
    pub fn text(&self) -> String {
        self.unless_null(self.written_out(&quoted(ROW_TEXT)))
    }

    /// A call of `function` over the fields.
    #[must_use]
    pub fn written_out(&self, function: &str) -> String {
        let fields: Vec<&str> = self.fields.iter().map(|field| field.sql.as_str()).collect();
        format!("{function}({})", fields.join(", "))
    }
}

/// The row of a relation that is never NULL, with these columns, as JSON.
///
/// # Errors
/// None but internal ones.
pub fn row_as_json(relation: &str, columns: Vec<String>, json: &SqlType) -> Result<ast::Expr> {
    let field = |name: String| {
        let sql = format!("{}.{}", quoted(relation), quoted(&name));
        Field { name, sql, untyped: false }
    };
    let fields = columns.into_iter().map(field).collect();
    let row = WholeRow { fields, nullable: false, written: false };
    parsed(&format!("CAST({} AS {json})", row.json_text()?))
}
