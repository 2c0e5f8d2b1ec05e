//! Values: their text and binary forms on the wire, their stored forms in rows and keys.
//!
//! # Invariants
//! A form that is read is written to a form that reads as the same value, and that written form is
//! stable.
//!
//! # On failure
//! Panics: the finding.
//!
//! # Limits
//! Wire forms are asked for by type; the first byte of an input chooses it.

use telesto_common::key::{Direction, KeyReader, KeyWriter};
use telesto_sql::codec::key::{is_key_type, read_datum_key, write_datum_key};
use telesto_sql::codec::value::{Input, get_value, put_value};
use telesto_sql::types::sql_type::SCALARS;
use telesto_sql::types::{Datum, Numeric, SqlType, TextStyle};

use crate::Target;

pub(crate) fn targets() -> Vec<Target> {
    let plain = Target {
        name: "",
        run: |_| {},
        seeds: Vec::new,
        words: &[
            "NaN",
            "Infinity",
            "-",
            "e",
            "1e10",
            ".",
            "0x",
            "9999999999",
            "\\",
            "{",
            "}",
            ",",
            "\"",
            "NULL",
            "2024-02-29",
            "12:34:56.789",
            "+05:30",
            " BC",
            "infinity",
            "epoch",
            "P1Y2M3DT4H",
            "1 mon -2 days",
            "[1:2]=",
            "null",
            "true",
            "\\u0000",
            "\\ud83d",
            "[",
            "]",
            ":",
            "Europe/Paris",
            "24:00:00",
            "allballs",
            "J",
        ],
        // A numeric of the largest scale has 150,000 digits and is written several times.
        memory_bytes: 64 << 20,
        runs: 8_000,
    };
    vec![
        Target { name: "value_text", run: text, seeds: texts, ..plain },
        Target { name: "value_binary", run: binary, seeds: binaries, ..plain },
        Target { name: "value_stored", run: stored, seeds: stored_values, ..plain },
        Target { name: "value_key", run: in_key, seeds: key_values, ..plain },
        Target {
            name: "numeric",
            run: numeric,
            seeds: || {
                let of = |text: &str| text.as_bytes().to_vec();
                [
                    "0",
                    "-1.50",
                    "1e-20",
                    "NaN",
                    "-Infinity",
                    "123456789012345678901234567890.5",
                    ".5",
                    "1_000",
                ]
                .map(of)
                .to_vec()
            },
            ..plain
        },
    ]
}

fn types() -> Vec<SqlType> {
    let arrays = SCALARS.iter().map(|ty| ty.clone().array_of());
    SCALARS.iter().cloned().chain(arrays).collect()
}

/// The type that the first byte stands for, and the rest.
fn typed(bytes: &[u8]) -> Option<(SqlType, &[u8])> {
    let (choice, rest) = bytes.split_first()?;
    let all = types();
    Some((all[usize::from(*choice) % all.len()].clone(), rest))
}

/// Bits apart: NaN is equal to itself and -0 is not 0.
fn same(a: &Datum, b: &Datum) -> bool {
    match (a, b) {
        (Datum::Float4(a), Datum::Float4(b)) => {
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
        }
        (Datum::Float8(a), Datum::Float8(b)) => {
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
        }
        _ => a == b,
    }
}

fn text(bytes: &[u8]) {
    let Some((ty, rest)) = typed(bytes) else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    if text.contains('\0') {
        return;
    }
    let style = TextStyle::default();
    let Ok(value) = Datum::from_text(text, &ty, &style) else { return };
    let written = value.to_text(&ty, &style);
    let back = Datum::from_text(&written, &ty, &style);
    let back = back.unwrap_or_else(|error| panic!("{ty} {text:?} is written {written:?}: {error}"));
    assert!(same(&value, &back), "{ty} {text:?} -> {value:?} -> {written:?} -> {back:?}");
    assert_eq!(back.to_text(&ty, &style), written, "{ty} {text:?}: one form only");
    through_all(&value, &ty);
}

fn binary(bytes: &[u8]) {
    let Some((ty, rest)) = typed(bytes) else { return };
    let Ok(value) = Datum::from_binary(rest, &ty) else { return };
    through_all(&value, &ty);
    let style = TextStyle::default();
    let written = value.to_text(&ty, &style);
    let back = Datum::from_text(&written, &ty, &style);
    let back =
        back.unwrap_or_else(|error| panic!("{ty} {value:?} is written {written:?}: {error}"));
    assert!(same(&value, &back), "{ty} {value:?} -> {written:?} -> {back:?}");
}

/// A value that got in by the wire comes back out of each form it may be kept in.
fn through_all(value: &Datum, ty: &SqlType) {
    let mut wire = bytes::BytesMut::new();
    value.to_binary(ty, &mut wire);
    let back = Datum::from_binary(&wire, ty);
    let back = back.unwrap_or_else(|error| panic!("{ty} {value:?} in binary: {error}"));
    assert!(same(value, &back), "{ty} {value:?} in binary is {back:?}");
    if *ty != SqlType::Unknown && *ty != SqlType::Void {
        let mut row = Vec::new();
        put_value(&mut row, value, ty)
            .unwrap_or_else(|error| panic!("{ty} {value:?} in a row: {error}"));
        let back = get_value(&mut Input(&row), ty);
        let back = back.unwrap_or_else(|error| panic!("{ty} {value:?} out of a row: {error}"));
        assert!(same(value, &back), "{ty} {value:?} out of a row is {back:?}");
    }
    if is_key_type(ty) {
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut key = KeyWriter::new();
            write_datum_key(&mut key, value, ty, direction)
                .unwrap_or_else(|error| panic!("{ty} {value:?} in a key: {error}"));
            let mut reader = KeyReader::new(key.as_slice());
            let back = read_datum_key(&mut reader, ty, direction);
            back.unwrap_or_else(|error| panic!("{ty} {value:?} out of a key: {error}"));
            assert!(reader.is_empty(), "{ty} {value:?} leaves bytes of its key");
        }
    }
}

fn stored(bytes: &[u8]) {
    let Some((ty, rest)) = typed(bytes) else { return };
    let mut input = Input(rest);
    let Ok(value) = get_value(&mut input, &ty) else { return };
    let mut again = Vec::new();
    put_value(&mut again, &value, &ty).unwrap_or_else(|error| panic!("{ty} {value:?}: {error}"));
    let back = get_value(&mut Input(&again), &ty);
    let back = back.unwrap_or_else(|error| panic!("{ty} {value:?}: {error}"));
    assert!(same(&value, &back), "{ty} {value:?} is {back:?}");
    // Anything that can be stored can be shown.
    let _ = value.to_text(&ty, &TextStyle::default());
    value.to_binary(&ty, &mut bytes::BytesMut::new());
}

fn in_key(bytes: &[u8]) {
    let Some((ty, rest)) = typed(bytes) else { return };
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut reader = KeyReader::new(rest);
        let Ok(value) = read_datum_key(&mut reader, &ty, direction) else { continue };
        let mut key = KeyWriter::new();
        write_datum_key(&mut key, &value, &ty, direction)
            .unwrap_or_else(|error| panic!("{ty} {value:?}: {error}"));
        let back = read_datum_key(&mut KeyReader::new(key.as_slice()), &ty, direction);
        let back = back.unwrap_or_else(|error| panic!("{ty} {value:?}: {error}"));
        assert!(same(&value, &back), "{ty} {value:?} is {back:?}");
    }
}

fn numeric(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // Multiplication is quadratic: digits enough to matter, few enough to be quick.
    if text.len() > 200 {
        return;
    }
    let Some(value) = Numeric::parse(text) else { return };
    let written = value.to_string();
    let back =
        Numeric::parse(&written).unwrap_or_else(|| panic!("{text:?} is written {written:?}"));
    assert_eq!((&back, back.scale()), (&value, value.scale()), "{text:?} is written {written:?}");
    assert_eq!(value.sub(&value).is_nan(), !matches!(value, Numeric::Finite { .. }), "{text:?}");
    let _ = (
        value.to_i64(),
        value.to_f64(),
        value.normalized(),
        value.rounded(2),
        value.truncated(-2),
        value.neg(),
    );
    let _ = (value.mul(&value), value.div(&Numeric::new(7, 1)), value.rem(&Numeric::new(7, 1)));
}

const TEXTS: &[(&str, &[&str])] = &[
    ("boolean", &["t", "off"]),
    ("smallint", &["-32768"]),
    ("integer", &["2147483647"]),
    ("bigint", &["-9223372036854775808"]),
    ("numeric", &["1.50", "NaN", "1e300"]),
    ("real", &["1.5e-10", "-0", "Infinity"]),
    ("double precision", &["1e308", "NaN"]),
    ("text", &["it's"]),
    ("bytea", &["\\xdead", "a\\000b"]),
    ("uuid", &["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("date", &["2024-02-29", "4713-01-01 BC", "infinity"]),
    ("time without time zone", &["23:59:59.999999", "24:00"]),
    ("timestamp without time zone", &["2024-02-29 12:34:56.789", "-infinity"]),
    (
        "timestamp with time zone",
        &["2024-02-29 12:34:56+05:30", "1900-01-01 00:00 Europe/Amsterdam"],
    ),
    ("interval", &["1 year 2 mons -3 days 04:05:06.7", "P1Y2M3DT4H5M6S", "-178000000 years"]),
    ("json", &["{\"a\": [1, null]}"]),
    ("jsonb", &["{\"b\": 1e3, \"aa\": \"\\u00e9\", \"b\": [true, 1.50]}"]),
    ("integer[]", &["{1,NULL,3}", "[2:3][0:1]={{1,2},{3,4}}"]),
    ("text[]", &["{a,\"b,c\",\"NULL\",\"\\\\\\\"\"}"]),
];

/// Values of every type: the index that chooses it, the value.
fn samples() -> Vec<(u8, SqlType, Datum, &'static str)> {
    let mut out = Vec::new();
    for (at, ty) in types().into_iter().enumerate() {
        for text in
            TEXTS.iter().filter(|(name, _)| *name == ty.to_string()).flat_map(|(_, texts)| *texts)
        {
            let value = Datum::from_text(text, &ty, &TextStyle::default());
            let value = value.unwrap_or_else(|error| panic!("{ty} {text}: {error}"));
            out.push((at as u8, ty.clone(), value, *text));
        }
    }
    assert!(out.len() > 25, "the names of the types have changed: {} samples", out.len());
    out
}

fn texts() -> Vec<Vec<u8>> {
    samples().iter().map(|(at, _, _, text)| [&[*at][..], text.as_bytes()].concat()).collect()
}

fn binaries() -> Vec<Vec<u8>> {
    let form = |(at, ty, value, _): &(u8, SqlType, Datum, &str)| {
        let mut out = bytes::BytesMut::from(&[*at][..]);
        value.to_binary(ty, &mut out);
        out.to_vec()
    };
    samples().iter().map(form).collect()
}

fn stored_values() -> Vec<Vec<u8>> {
    let form = |(at, ty, value, _): &(u8, SqlType, Datum, &str)| {
        let mut out = vec![*at];
        put_value(&mut out, value, ty).expect("a sample is a value of its type");
        out
    };
    samples().iter().map(form).collect()
}

fn key_values() -> Vec<Vec<u8>> {
    let form = |(at, ty, value, _): &(u8, SqlType, Datum, &str)| {
        let mut key = KeyWriter::new();
        write_datum_key(&mut key, value, ty, Direction::Ascending).ok()?;
        Some([&[*at][..], key.as_slice()].concat())
    };
    samples().iter().filter_map(form).collect()
}
