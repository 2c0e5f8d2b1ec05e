//! Binary forms of arrays, as clients send them.

use bytes::{BufMut, BytesMut};
use telesto_sql_types::{Datum, EnumLabel, EnumType, SqlType, TextStyle};

/// One row of `elements`, sent as an array over the type with that OID.
fn array_of(oid: u32, elements: &[&[u8]]) -> BytesMut {
    let mut out = BytesMut::new();
    for word in [1, 0, oid, elements.len() as u32, 1] {
        out.put_u32(word);
    }
    for element in elements {
        out.put_u32(element.len() as u32);
        out.put_slice(element);
    }
    out
}

#[test]
fn element_types_of_users_are_not_told_apart_by_their_oids() {
    let label = EnumLabel { oid: 17_002, sort: 1.0, order: vec![1], label: "ok".to_owned() };
    let mood = EnumType {
        oid: 17_000,
        array_oid: 17_001,
        schema: String::new(),
        name: "mood".to_owned(),
        labels: vec![label.into()],
    };
    let moods = SqlType::Enum(mood.into()).array_of();
    for oid in [17_000, 25, 90_000] {
        let read = Datum::from_binary(&array_of(oid, &[b"ok"]), &moods);
        let read = read.map(|value| value.to_text(&moods, &TextStyle::default()));
        assert_eq!(read.ok().as_deref(), Some("{ok}"), "{oid}");
    }
    // PostgreSQL's own are the same everywhere.
    let read = Datum::from_binary(&array_of(25, &[&[0, 0, 0, 1]]), &SqlType::Int4.array_of());
    assert_eq!(read.err().map(|error| error.code().0), Some("42804"));
    // Of another database's type with that OID: the bytes decide.
    let read = Datum::from_binary(&array_of(17_000, &[b"x"]), &SqlType::Int4.array_of());
    assert_eq!(read.err().map(|error| error.code().0), Some("08P01"));
}
