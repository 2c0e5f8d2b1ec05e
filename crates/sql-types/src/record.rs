//! Rows as values: PostgreSQL's anonymous `record`, held in its text form `(1,"a b",)`.
//!
//! # Invariants
//! - The text is what PostgreSQL shows; it is made by the server alone (no text from outside
//!   becomes a record), so every field reads back as its type.
//! - The types of the fields are the [`SqlType::Record`]'s, not the value's.
//!
//! # Limits
//! Fields that are regclass or its kin count as text: only their names are in the record.

use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};

use crate::error::{Error, Result, SqlState};
use crate::{CompositeType, Datum, SqlType, TextStyle};

/// What the fields of a row are called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Names {
    /// `f1`, `f2`, …: the row is written out.
    Numbered,
    /// As the columns that it was made of.
    Of(Arc<[String]>),
    /// The value is of several expressions whose fields are called differently: what runs decides.
    Differing,
}

/// The fields of a [`SqlType::Record`]. Types differ where names do, so that no call over one is
/// taken for a call over the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecordType {
    types: Arc<[SqlType]>,
    names: Names,
    of_table: bool,
}

impl RecordType {
    /// Fields without names of their own.
    #[must_use]
    pub fn numbered(types: Arc<[SqlType]>) -> Self {
        Self { types, names: Names::Numbered, of_table: false }
    }

    /// The row of a relation; `of_table`: PostgreSQL's type of it is called after a table or a
    /// view.
    #[must_use]
    pub fn named(types: Arc<[SqlType]>, names: Arc<[String]>, of_table: bool) -> Self {
        Self { types, names: Names::Of(names), of_table }
    }

    /// The types.
    #[must_use]
    pub fn types(&self) -> &Arc<[SqlType]> {
        &self.types
    }

    /// The names; `None`: they differ from value to value.
    #[must_use]
    pub fn names(&self) -> Option<Vec<String>> {
        match &self.names {
            Names::Numbered => Some((1..=self.types.len()).map(|n| format!("f{n}")).collect()),
            Names::Of(names) => Some(names.to_vec()),
            Names::Differing => None,
        }
    }

    /// Whether it is the row of a table or a view, which is sent as text.
    #[must_use]
    pub fn is_of_table(&self) -> bool {
        self.of_table
    }

    /// The same fields without modifiers.
    #[must_use]
    pub fn without_modifiers(&self) -> Self {
        let types = self.types.iter().map(SqlType::without_modifier).collect();
        Self { types, ..self.clone() }
    }

    /// What a value is that is one of two rows with fields of the same types.
    fn joined(&self, other: &Self) -> Self {
        let types = self.types.iter().zip(other.types.iter());
        Self {
            types: types.map(|(one, two)| one_of_two(one, two)).collect(),
            names: if self.names == other.names { self.names.clone() } else { Names::Differing },
            of_table: self.of_table && other.of_table,
        }
    }
}

impl Deref for RecordType {
    type Target = [SqlType];

    fn deref(&self) -> &[SqlType] {
        &self.types
    }
}

/// The type of a value that is of one or of the other type, which are alike but for what rows in
/// them call their fields.
#[must_use]
pub fn one_of_two(one: &SqlType, two: &SqlType) -> SqlType {
    match (one, two) {
        (SqlType::Record(Some(a)), SqlType::Record(Some(b))) if a.len() == b.len() => {
            SqlType::Record(Some(Arc::new(a.joined(b))))
        }
        (SqlType::Array(a), SqlType::Array(b)) => one_of_two(a, b).array_of(),
        (SqlType::Unknown, other) => other.clone(),
        (one, _) => one.clone(),
    }
}

/// Longest text of a row, bytes.
pub const MAX_ROW_BYTES: usize = 16 << 20;

/// What PostgreSQL answers to a record from outside.
pub(crate) fn refused() -> Error {
    Error::new(
        SqlState::FEATURE_NOT_SUPPORTED,
        "input of anonymous composite types is not implemented",
    )
}

/// The type a field of type `ty` is read back as.
#[must_use]
pub fn field_type(ty: &SqlType) -> SqlType {
    match ty.of_values() {
        SqlType::Unknown => SqlType::Unknown,
        SqlType::Void => SqlType::Text,
        ty if ty.is_reg() => SqlType::Text,
        SqlType::Array(element) => field_type(element).array_of(),
        ty => ty.without_modifier(),
    }
}

/// The texts of the fields; `None` is NULL.
fn split(text: &str) -> Vec<Option<String>> {
    let inner = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(text);
    let mut fields = Vec::new();
    let (mut field, mut quoted, mut inside) = (String::new(), false, false);
    let mut rest = inner.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' if inside && rest.peek() == Some(&'"') => {
                rest.next();
                field.push('"');
            }
            '"' => {
                inside = !inside;
                quoted = true;
            }
            '\\' => field.extend(rest.next()),
            ',' if !inside => {
                let text = std::mem::take(&mut field);
                fields.push((quoted || !text.is_empty()).then_some(text));
                quoted = false;
            }
            c => field.push(c),
        }
    }
    fields.push((quoted || !field.is_empty()).then_some(field));
    fields
}

/// Appends a field that is not NULL, in quotes where they are needed.
///
/// # Errors
/// 54000 before the text is longer than `most` bytes; those of [`crate::interrupt::check`].
pub fn push_field(out: &mut String, text: &str, most: usize) -> Result<()> {
    crate::interrupt::check_long()?;
    let doubled = memchr::memchr2_iter(b'"', b'\\', text.as_bytes()).count();
    if out.len() + text.len() + doubled > most {
        return Err(Error::new(
            SqlState::PROGRAM_LIMIT_EXCEEDED,
            format!(
                "a row written out is longer than {most} bytes; rows in rows double their quotes"
            ),
        ));
    }
    let special =
        |c: char| c.is_ascii_whitespace() || matches!(c, '"' | '(' | ')' | ',' | '\\' | '\u{b}');
    if !text.is_empty() && !text.contains(special) {
        out.push_str(text);
        return Ok(());
    }
    out.push('"');
    let (mut steps, mut from) = (crate::interrupt::Steps::default(), 0);
    for at in memchr::memchr2_iter(b'"', b'\\', text.as_bytes()) {
        steps.step()?;
        // The sign itself begins the next piece.
        out.push_str(&text[from..=at]);
        from = at;
    }
    out.push_str(&text[from..]);
    out.push('"');
    Ok(())
}

/// Of each field of a record's text whether it is NULL.
#[must_use]
pub fn nulls(text: &str) -> Vec<bool> {
    split(text).iter().map(Option::is_none).collect()
}

/// Compares the texts of two records of these types, field by field, NULL last.
#[must_use]
pub fn compare(a: &str, b: &str, types: &[SqlType]) -> Ordering {
    let (Ok(left), Ok(right)) = (fields(a, types), fields(b, types)) else { return a.cmp(b) };
    let pairs = left.iter().zip(&right).zip(types);
    let order = pairs.map(|((l, r), ty)| match (l.is_null(), r.is_null()) {
        (false, false) => l.cmp_typed(r, ty),
        (left, right) => left.cmp(&right),
    });
    order.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// The fields of a record's text.
///
/// # Errors
/// XX000 when they are not of these types.
pub fn fields(text: &str, types: &[SqlType]) -> Result<Vec<Datum>> {
    if types.is_empty() {
        return Ok(Vec::new());
    }
    let texts = split(text);
    if texts.len() != types.len() {
        return Err(Error::internal(format!("a record of {} fields: {text}", types.len())));
    }
    let style = TextStyle::default();
    let read = |(text, ty): (Option<String>, &SqlType)| match (text, ty) {
        (None, _) => Ok(Datum::Null),
        (Some(text), SqlType::Record(_)) => Ok(Datum::text(text)),
        (Some(text), SqlType::Array(row)) if matches!(**row, SqlType::Record(_)) => {
            rows(&text, row)
        }
        (Some(text), ty) => Datum::from_text(&text, ty, &style),
    };
    texts.into_iter().zip(types).map(read).collect()
}

/// An array of records from the text that the server made of it.
fn rows(text: &str, row: &SqlType) -> Result<Datum> {
    let value = Datum::from_text(text, &SqlType::Text.array_of(), &TextStyle::default())?;
    let Datum::Array(array) = value else { return Ok(value) };
    let mut array = Arc::unwrap_or_clone(array);
    array.element = row.clone();
    Ok(Datum::Array(Arc::new(array)))
}

/// PostgreSQL's `record_send`: the number of fields, and of each its type's OID and its value.
pub(crate) fn to_binary(text: &str, types: &[SqlType], out: &mut BytesMut) {
    // The server made the text, of these types. Were one not to read back, every field would go as
    // the text it is: no field is left out.
    let texts = || -> Vec<(Datum, SqlType)> {
        let texts = split(text).into_iter();
        texts.map(|text| (text.map_or(Datum::Null, Datum::text), SqlType::Text)).collect()
    };
    let values = match fields(text, types) {
        Ok(values) => values.into_iter().zip(types.iter().cloned()).collect(),
        Err(_) => texts(),
    };
    out.put_i32(values.len() as i32);
    for (value, ty) in &values {
        out.put_u32(ty.oid());
        if value.is_null() {
            out.put_i32(-1);
            continue;
        }
        let at = out.len();
        out.put_i32(0);
        value.to_binary(ty, out);
        let length = (out.len() - at - 4) as i32;
        out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }
}

/// A value of a composite type from PostgreSQL's `record_recv` form.
pub(crate) fn from_binary(bytes: &[u8], ty: &CompositeType) -> Result<Datum> {
    fn word(input: &mut &[u8]) -> Result<i32> {
        let short =
            || Error::new(SqlState::PROTOCOL_VIOLATION, "insufficient data left in message");
        let (head, tail) = input.split_first_chunk().ok_or_else(short)?;
        *input = tail;
        Ok(i32::from_be_bytes(*head))
    }
    let mut input = bytes;
    let count = word(&mut input)?;
    if usize::try_from(count) != Ok(ty.fields.len()) {
        let message = format!("wrong number of columns: {count}, expected {}", ty.fields.len());
        return Err(Error::new(SqlState::DATATYPE_MISMATCH, message));
    }
    let mut values = Vec::with_capacity(ty.fields.len());
    for (at, field) in ty.fields.iter().enumerate() {
        let oid = word(&mut input)? as u32;
        if crate::binary::are_different(oid, field.ty.oid()) {
            return Err(Error::new(
                SqlState::DATATYPE_MISMATCH,
                format!(
                    "binary data has type {oid} instead of expected {} ({}) in record column {}",
                    field.ty.oid(),
                    field.ty.without_modifier(),
                    at + 1
                ),
            ));
        }
        let length = word(&mut input)?;
        if length == -1 {
            values.push(Datum::Null);
            continue;
        }
        let split = usize::try_from(length).ok().and_then(|n| input.split_at_checked(n));
        let Some((value, rest)) = split else {
            return Err(Error::new(
                SqlState::INVALID_BINARY_REPRESENTATION,
                "insufficient data left in message",
            ));
        };
        values.push(Datum::from_binary(value, &field.ty)?);
        input = rest;
    }
    if !input.is_empty() {
        return Err(Error::new(
            SqlState::INVALID_BINARY_REPRESENTATION,
            format!("incorrect binary data format for type {ty}"),
        ));
    }
    crate::composites::made(&values, ty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_composite_value_goes_out_in_binary_and_comes_back() {
        let field = |number, ty| crate::CompositeField { number, name: format!("f{number}"), ty };
        let inner = CompositeType::new(
            (17_000, 17_001),
            String::new(),
            "inner".to_owned(),
            vec![field(1, SqlType::Text), field(3, SqlType::Int2)],
        );
        let fields = vec![field(1, SqlType::Composite(inner.into())), field(2, SqlType::Float8)];
        let outer = CompositeType::new((17_002, 17_003), String::new(), "outer".to_owned(), fields);
        for text in ["(\"(\"\"a b\"\",3)\",0.1)", "(,)", "(\"(,)\",1e+300)"] {
            let mut out = BytesMut::new();
            to_binary(text, outer.types(), &mut out);
            let back = from_binary(&out, &outer).expect("a value");
            assert_eq!(back.as_str(), Some(text));
            for cut in 0..out.len() {
                assert!(from_binary(&out[..cut], &outer).is_err(), "{cut} bytes of {text}");
            }
        }
    }

    #[test]
    fn fields_are_read_as_they_are_written() {
        let types = [SqlType::Int4, SqlType::Text, SqlType::Text, SqlType::Text, SqlType::Bool];
        let read = fields(r#"(-1,"a ""b\\,(",,"",t)"#, &types).expect("a record");
        let text = |text: &str| Datum::text(text);
        assert_eq!(
            read,
            [Datum::Int4(-1), text("a \"b\\,("), Datum::Null, text(""), Datum::Bool(true)]
        );
        assert!(fields("(1,2)", &types).is_err());
        assert!(fields("()", &[]).expect("no fields").is_empty());
        assert_eq!(fields("()", &[SqlType::Int4]).expect("a field"), [Datum::Null]);
    }

    #[test]
    fn a_record_inside_a_record_is_sent_in_binary() {
        let inner = SqlType::Record(Some(RecordType::numbered([SqlType::Int2].into()).into()));
        let mut out = BytesMut::new();
        to_binary("(7,\"(3)\")", &[SqlType::Int4, inner], &mut out);
        let sent = [
            &[0, 0, 0, 2][..],
            &[0, 0, 0, 23, 0, 0, 0, 4, 0, 0, 0, 7],
            &[0, 0, 8, 201, 0, 0, 0, 14, 0, 0, 0, 1, 0, 0, 0, 21, 0, 0, 0, 2, 0, 3],
        ];
        assert_eq!(&out[..], sent.concat());
        out.clear();
        to_binary("(x)", &[SqlType::Int4], &mut out);
        assert_eq!(&out[..], [0, 0, 0, 1, 0, 0, 0, 25, 0, 0, 0, 1, b'x']);
    }
}
