//! Composite types: the fields of a row under one name, and how such a type is named in stored
//! definitions.
//!
//! # Invariants
//! - A field has a **number** that is never given to another field of the type. Stored values name
//!   their fields by it, so that adding, dropping and renaming fields rewrites no row: a number
//!   that a value does not have is NULL, one that the type does not have any more is skipped.
//! - A type is its OID: two [`CompositeType`]s of one OID are equal, whatever fields they know.
//!   Fields come from the catalog of the statement that uses them.
//! - A value is held as the text of its fields ([`crate::record`]), each in the form that no
//!   setting changes (ISO dates, UTC, all digits of floating point numbers); [`shown`] writes it as
//!   a session shows it.
//!
//! # Limits
//! Fields of domains and of regclass and its kin are refused where a type is defined. A table's row
//! type is no such type.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::enums::quoted;
use crate::error::{Error, Result, SqlState};
use crate::record::{self, MAX_ROW_BYTES};
use crate::{Datum, SqlType, TextStyle};

/// One field of a composite type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompositeField {
    /// `attnum`; never used again once the field is dropped.
    pub number: u16,
    /// Name.
    pub name: String,
    /// Type.
    pub ty: SqlType,
}

/// A composite type with its fields in order.
#[derive(Clone)]
pub struct CompositeType {
    /// OID.
    pub oid: u32,
    /// OID of its array type.
    pub array_oid: u32,
    /// Its schema's name.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Fields.
    pub fields: Vec<CompositeField>,
    types: Arc<[SqlType]>,
}

impl CompositeType {
    /// A type of these fields.
    #[must_use]
    pub fn new(
        (oid, array_oid): (u32, u32),
        schema: String,
        name: String,
        fields: Vec<CompositeField>,
    ) -> Self {
        let types = fields.iter().map(|field| field.ty.clone()).collect();
        Self { oid, array_oid, schema, name, fields, types }
    }

    /// A type of which only the OID is known yet.
    #[must_use]
    pub fn unlinked(oid: u32) -> Self {
        Self::new((oid, 0), String::new(), String::new(), Vec::new())
    }

    /// The types of the fields.
    #[must_use]
    pub fn types(&self) -> &Arc<[SqlType]> {
        &self.types
    }

    /// Where the field called `name` stands.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }
}

impl PartialEq for CompositeType {
    fn eq(&self, other: &Self) -> bool {
        self.oid == other.oid
    }
}

impl Eq for CompositeType {}

impl Hash for CompositeType {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.oid.hash(state);
    }
}

/// Short: types are printed to tell one plan from another.
impl fmt::Debug for CompositeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Composite({})", self.oid)
    }
}

impl fmt::Display for CompositeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.schema.is_empty() && self.schema != crate::PUBLIC {
            write!(f, "{}.", quoted(&self.schema))?;
        }
        f.write_str(&quoted(&self.name))
    }
}

/// Stored as the OID.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(
    ty: &Arc<CompositeType>,
    out: S,
) -> std::result::Result<S::Ok, S::Error> {
    ty.oid.serialize(out)
}

/// A stored OID, to be linked.
///
/// # Errors
/// The deserializer's.
pub fn deserialize<'de, D: Deserializer<'de>>(
    input: D,
) -> std::result::Result<Arc<CompositeType>, D::Error> {
    u32::deserialize(input).map(|oid| Arc::new(CompositeType::unlinked(oid)))
}

fn malformed(text: &str, detail: &str) -> Error {
    Error::new(
        SqlState::INVALID_TEXT_REPRESENTATION,
        format!("malformed record literal: \"{text}\""),
    )
    .detail(detail.to_owned())
}

/// The texts of the fields in a literal from outside, as PostgreSQL's `record_in` reads them;
/// `None` is NULL.
fn literal(text: &str, fields: usize) -> Result<Vec<Option<String>>> {
    let wrong = |detail: &str| malformed(text, detail);
    let space = |c: char| c.is_ascii_whitespace() || c == '\u{b}';
    let mut rest = text.trim_start_matches(space).chars().peekable();
    if rest.next() != Some('(') {
        return Err(wrong("Missing left parenthesis."));
    }
    let mut found = Vec::with_capacity(fields);
    let mut steps = crate::interrupt::Steps::default();
    for at in 0..fields {
        // A comma stands before each field but the first.
        if at > 0 && rest.next_if_eq(&',').is_none() {
            return Err(wrong("Too few columns."));
        }
        if matches!(rest.peek(), Some(',' | ')')) {
            found.push(None);
            continue;
        }
        let (mut field, mut inside) = (String::new(), false);
        while inside || !matches!(rest.peek(), Some(',' | ')')) {
            steps.step()?;
            match rest.next().ok_or_else(|| wrong("Unexpected end of input."))? {
                '\\' => {
                    field.push(rest.next().ok_or_else(|| wrong("Unexpected end of input."))?);
                }
                '"' if !inside => inside = true,
                '"' if rest.next_if_eq(&'"').is_some() => field.push('"'),
                '"' => inside = false,
                c => field.push(c),
            }
        }
        found.push(Some(field));
    }
    match rest.next() {
        Some(')') => {}
        Some(',') => return Err(wrong("Too many columns.")),
        _ if fields == 0 => return Err(wrong("Too many columns.")),
        _ => return Err(wrong("Unexpected end of input.")),
    }
    if rest.any(|c| !space(c)) {
        return Err(wrong("Junk after right parenthesis."));
    }
    Ok(found)
}

/// A value of `ty` from its text, as `style` reads it.
///
/// # Errors
/// 22P02 for a text that is no record of so many fields; those of the fields' types.
pub fn parse(text: &str, ty: &CompositeType, style: &TextStyle) -> Result<Datum> {
    let texts = literal(text, ty.fields.len())?;
    let read = |(text, ty): (Option<String>, &SqlType)| match text {
        None => Ok(Datum::Null),
        Some(text) => Datum::from_text(&text, ty, style),
    };
    let values: Vec<Datum> =
        texts.into_iter().zip(ty.types.iter()).map(read).collect::<Result<_>>()?;
    made(&values, ty)
}

/// The value of `ty` with these fields, one for each of the type's.
///
/// # Errors
/// 54000 when its text is too long.
pub fn made(values: &[Datum], ty: &CompositeType) -> Result<Datum> {
    written(values, &ty.types, &TextStyle::default()).map(Datum::text)
}

/// The fields of a value.
///
/// # Errors
/// XX000 when it is no value of the type.
pub fn fields(value: &Datum, ty: &CompositeType) -> Result<Vec<Datum>> {
    let text = value.as_str().ok_or_else(|| Error::internal(format!("a value of type {ty}")))?;
    record::fields(text, &ty.types)
}

/// The text of a value as a session shows it.
#[must_use]
pub fn shown(text: &str, ty: &CompositeType, style: &TextStyle) -> String {
    let written = record::fields(text, &ty.types).and_then(|v| written(&v, &ty.types, style));
    // What does not read back goes as the text it is: nothing is left out.
    written.unwrap_or_else(|_| text.to_owned())
}

fn written(values: &[Datum], types: &[SqlType], style: &TextStyle) -> Result<String> {
    let mut out = String::from("(");
    for (at, (value, ty)) in values.iter().zip(types).enumerate() {
        if at > 0 {
            out.push(',');
        }
        if !value.is_null() {
            record::push_field(&mut out, &value.to_text(ty, style), MAX_ROW_BYTES)?;
        }
    }
    out.push(')');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> CompositeType {
        let field = |number, name: &str, ty| CompositeField { number, name: name.to_owned(), ty };
        let fields = vec![field(1, "a", SqlType::Int4), field(2, "b", SqlType::Text)];
        CompositeType::new((16_500, 16_501), String::new(), "pair".to_owned(), fields)
    }

    fn detail(text: &str) -> String {
        let error = parse(text, &pair(), &TextStyle::default()).expect_err("malformed");
        format!("{error:?}")
    }

    #[test]
    fn literals_are_read_as_postgresql_reads_them() {
        let read = |text: &str| {
            let value = parse(text, &pair(), &TextStyle::default()).expect("a pair");
            value.as_str().expect("text").to_owned()
        };
        for (given, kept) in [
            ("(1,x)", "(1,x)"),
            (" ( 1 ,\"a b\") ", "(1,\"a b\")"),
            ("(,)", "(,)"),
            ("(1,)", "(1,)"),
            ("(1,\"\")", "(1,\"\")"),
            (r#"(7,a\,b"c""d")"#, r#"(7,"a,bc""d")"#),
        ] {
            assert_eq!(read(given), kept, "{given}");
        }
        for (given, why) in [
            ("1,x)", "Missing left parenthesis."),
            ("(1)", "Too few columns."),
            ("(1,x,2)", "Too many columns."),
            ("(1,x", "Unexpected end of input."),
            ("(1,x) y", "Junk after right parenthesis."),
        ] {
            assert!(detail(given).contains(why), "{given}: {}", detail(given));
        }
        assert!(detail("(z,x)").contains("invalid input syntax for type integer"));
    }
}
