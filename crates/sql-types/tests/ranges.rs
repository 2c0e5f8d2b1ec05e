//! Ranges and multiranges: binary forms as PostgreSQL sends them, and operators beside sets of
//! numbers.

use std::collections::BTreeSet;

use bytes::BytesMut;
use proptest::prelude::*;
use telesto_sql_types::ranges::{Bound, contain, have, overlap};
use telesto_sql_types::{Datum, Multirange, Range, RangeKind, SqlType, TextStyle};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
        .collect()
}

/// What `range_send`, `multirange_send` and `array_send` of PostgreSQL 15 give.
#[test]
fn binary_forms_are_those_of_postgres() {
    use RangeKind as K;
    let style = TextStyle::default();
    let range = SqlType::Range;
    for (ty, text, hex) in [
        (range(K::Int4), "[1,5)", "0200000004000000010000000400000005"),
        (range(K::Num), "empty", "01"),
        (range(K::Num), "(1.50,)", "100000000c000200000000000200011388"),
        (range(K::Date), "[2020-01-01,2020-01-06)", "020000000400001c890000000400001c8e"),
        (range(K::Ts), "(,\"2020-01-01 10:00:00\"]", "0c0000000800023e0fe886c800"),
        (range(K::Int8), "(,)", "18"),
        (
            range(K::Tstz),
            "[\"2020-01-01 10:00:00+00\",\"2020-01-01 10:00:00+00\"]",
            "060000000800023e0fe886c8000000000800023e0fe886c800",
        ),
        (
            SqlType::Multirange(K::Int4),
            "{[1,3),[5,8)}",
            "00000002000000110200000004000000010000000400000003000000110200000004000000050000000400000008",
        ),
        (SqlType::Multirange(K::Num), "{}", "00000000"),
        (
            range(K::Int4).array_of(),
            "{\"[1,2)\",NULL}",
            "000000010000000100000f400000000200000001000000110200000004000000010000000400000002ffffffff",
        ),
    ] {
        let value = Datum::from_text(text, &ty, &style).expect(text);
        assert_eq!(value.to_text(&ty, &style), text);
        let mut out = BytesMut::new();
        value.to_binary(&ty, &mut out);
        assert_eq!(out, bytes(hex), "{text}");
        assert_eq!(Datum::from_binary(&out, &ty).expect(text), value);
        for short in 0..out.len() {
            assert!(Datum::from_binary(&out[..short], &ty).is_err(), "{short} bytes of {text}");
        }
    }
    // What a client sends need not be canonical; it must be in order.
    let closed = bytes("0600000004000000010000000400000005");
    let value = Datum::from_binary(&closed, &range(K::Int4)).expect("a range");
    assert_eq!(value.to_text(&range(K::Int4), &style), "[1,6)");
    let turned = bytes("0200000004000000050000000400000001");
    let refused = Datum::from_binary(&turned, &range(K::Int4)).expect_err("turned round");
    assert_eq!(refused.code().to_string(), "22000");
}

/// The numbers from -8 to 8 that are in a range; its bounds are between -6 and 6, so that infinity
/// shows at the ends.
fn members(parts: &[Range]) -> BTreeSet<i32> {
    (-8..=8).filter(|at| parts.iter().any(|part| part.has(&Datum::Int4(*at)))).collect()
}

fn ranges() -> impl Strategy<Value = Range> {
    let bound = || (proptest::option::weighted(0.85, -6_i32..=6), any::<bool>());
    (bound(), bound()).prop_map(|(a, b)| {
        let (a, b) = match (a.0, b.0) {
            (Some(x), Some(y)) if x > y => (b, a),
            _ => (a, b),
        };
        let end = |(at, inclusive): (Option<i32>, bool)| {
            Bound::new(at.map_or(Datum::Null, Datum::Int4), inclusive)
        };
        Range::new(RangeKind::Int4, end(a), end(b)).expect("bounds in order")
    })
}

fn multiranges() -> impl Strategy<Value = Multirange> {
    proptest::collection::vec(ranges(), 0..5)
        .prop_map(|parts| Multirange::new(RangeKind::Int4, parts).expect("few parts"))
}

proptest! {
    #[test]
    fn operators_of_ranges_are_those_of_sets(a in ranges(), b in ranges()) {
        let (x, y) = (members(a.parts()), members(b.parts()));
        prop_assert_eq!(a.is_empty(), x.is_empty());
        prop_assert_eq!(a == b, x == y);
        prop_assert_eq!(a.contains(&b), y.is_subset(&x));
        prop_assert_eq!(a.overlaps(&b), !x.is_disjoint(&y));
        prop_assert_eq!(members(a.intersection(&b).parts()), &x & &y);
        let there = !x.is_empty() && !y.is_empty();
        prop_assert_eq!(a.is_before(&b), there && x.last() < y.first());
        prop_assert_eq!(a.ends_within(&b), there && x.last() <= y.last());
        prop_assert_eq!(a.begins_within(&b), there && x.first() >= y.first());
        let next = |x: &BTreeSet<i32>, y: &BTreeSet<i32>| {
            matches!((x.last(), y.first()), (Some(x), Some(y)) if *x + 1 == *y)
        };
        prop_assert_eq!(a.touches(&b), next(&x, &y) || next(&y, &x));
        if let Ok(whole) = a.union(&b) {
            prop_assert_eq!(members(whole.parts()), &x | &y);
        } else {
            prop_assert!(there && !a.overlaps(&b) && !a.touches(&b));
        }
        match a.difference(&b) {
            Ok(rest) => prop_assert_eq!(members(rest.parts()), &x - &y),
            Err(_) => prop_assert!(x.first() < y.first() && x.last() > y.last()),
        }
    }

    #[test]
    fn operators_of_multiranges_are_those_of_sets(a in multiranges(), b in multiranges(), at in -8_i32..=8) {
        let (x, y) = (members(a.parts()), members(b.parts()));
        prop_assert_eq!(a == b, x == y);
        prop_assert_eq!(contain(a.parts(), b.parts()), y.is_subset(&x));
        prop_assert_eq!(overlap(a.parts(), b.parts()), !x.is_disjoint(&y));
        prop_assert_eq!(have(a.parts(), &Datum::Int4(at)), x.contains(&at));
        for (made, want) in [
            (a.union(&b), &x | &y),
            (a.intersection(&b), &x & &y),
            (a.difference(&b), &x - &y),
        ] {
            let made = made.expect("few parts");
            prop_assert_eq!(members(made.parts()), want);
            // In order, and neither overlapping nor touching.
            for pair in made.parts().windows(2) {
                prop_assert!(pair[0].is_before(&pair[1]) && !pair[0].touches(&pair[1]));
            }
        }
        let hull = a.hull();
        prop_assert_eq!(hull.is_empty(), x.is_empty());
        prop_assert!(contain(hull.parts(), a.parts()));
    }

    #[test]
    fn stored_and_ordered_bytes_give_the_value_back(a in ranges(), b in multiranges()) {
        let kind = RangeKind::Int4;
        prop_assert_eq!(Range::from_stored(&a.stored(), kind).expect("stored"), a.clone());
        prop_assert_eq!(Range::from_order_bytes(&a.order_bytes(), kind).expect("ordered"), a);
        prop_assert_eq!(Multirange::from_stored(&b.stored(), kind).expect("stored"), b.clone());
        prop_assert_eq!(Multirange::from_order_bytes(&b.order_bytes(), kind).expect("ordered"), b);
    }

    #[test]
    fn bytes_and_texts_of_any_kind_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..40), text in "[\\[({]?[-0-9a-z\",\\\\. ]{0,12}[\\])}]?[\\])},]?") {
        let style = TextStyle::default();
        for kind in RangeKind::ALL {
            let _ = Range::from_stored(&raw, kind);
            let _ = Multirange::from_stored(&raw, kind);
            let _ = Multirange::from_order_bytes(&raw, kind);
            for ty in [SqlType::Range(kind), SqlType::Multirange(kind)] {
                let _ = Datum::from_binary(&raw, &ty);
                if let Ok(value) = Datum::from_text(&text, &ty, &style) {
                    let shown = value.to_text(&ty, &style);
                    prop_assert_eq!(Datum::from_text(&shown, &ty, &style).expect("its own text"), value);
                }
            }
        }
    }
}
