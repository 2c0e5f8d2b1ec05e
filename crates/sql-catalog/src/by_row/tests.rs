use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use telesto_common::key::Direction;
use telesto_geo::placement::{Placement as _, Rules};
use telesto_sql_types::SqlType;

use super::*;
use crate::model::{Column, Index, IndexColumn, TableKind};
use crate::object::Object;
use crate::regions::{Home, Region, TablePlacement};
use crate::store::{StoredObject, encode_object};
use crate::{DEFAULT_DATABASE_ID, Owner};

const TABLE: TableId = TableId(20_000);

fn index(id: u32, first: Direction, then: usize) -> Index {
    Index {
        oid: 20_100 + id,
        id,
        name: format!("i{id}"),
        columns: vec![IndexColumn::plain(0, first), IndexColumn::plain(then, Direction::Ascending)],
        unique: id == 0,
        deferral: None,
        nulls_not_distinct: false,
        include: Vec::new(),
        constraint_oid: None,
        predicate: None,
        comment: None,
    }
}

fn table(values: &[(&str, &[u16])]) -> Table {
    let column = |id: u16, name: &str, ty| Column::new(id, name.to_owned(), ty);
    let place = |regions: &[u16]| ValuePlace { regions: regions.to_vec(), ..ValuePlace::default() };
    let values = values.iter().map(|(value, regions)| ((*value).to_owned(), place(regions)));
    Table {
        id: TABLE,
        storage: TABLE,
        schema: crate::PUBLIC_OID,
        name: "t".to_owned(),
        owner: Owner::BOOTSTRAP,
        acl: None,
        kind: TableKind::default(),
        columns: vec![column(1, "region", SqlType::Text), column(2, "id", SqlType::Text)],
        primary: Some(index(0, Direction::Ascending, 1)),
        indexes: vec![index(1, Direction::Descending, 1)],
        building: Vec::new(),
        next_index: 2,
        checks: Vec::new(),
        foreign_keys: Vec::new(),
        comment: None,
        type_oid: 20_001,
        on_commit: crate::model::OnCommit::default(),
        constraint_comments: Vec::new(),
        placement: TablePlacement {
            home: Home::Row,
            by_row: Some(ByRow { column: 1, named: false, values: values.collect() }),
            sent_by_all: true,
            ..TablePlacement::default()
        },
        row_security: crate::policy::RowSecurity::default(),
        key: None,
        curated: None,
    }
}

/// Regions us, eu and ap, as region `me` sees them.
fn catalog(me: u16, table: Table) -> CatalogSnapshot {
    let mut catalog = CatalogSnapshot {
        database: DEFAULT_DATABASE_ID,
        me: RegionId(me),
        ..CatalogSnapshot::default()
    };
    for (id, name) in [(0, "us"), (1, "eu"), (2, "ap")] {
        let (oid, name) = (19_000 + u32::from(id), name.to_owned());
        catalog.insert(Object::Region(Region {
            oid,
            id,
            name,
            address: String::new(),
            defines: None,
        }));
    }
    catalog.insert(Object::Table(table));
    catalog.index();
    catalog
}

/// The keys of a row: its own, and its entry's.
fn keys(table: &Table, region: &str, id: &str) -> [Bytes; 2] {
    [table.primary.as_ref(), table.indexes.first()].map(|index| {
        let index = index.expect("an index");
        let values = [Datum::text(region), Datum::text(id)];
        let key = codec::index_prefix_key(DEFAULT_DATABASE_ID, table, index, &values);
        key.expect("a key").finish()
    })
}

#[test]
fn what_is_not_all_here_is_refused_with_those_who_have_it() {
    let table = table(&[("eu", &[1, 0]), ("us", &[0]), ("ap", &[2, 0, 1])]);
    let catalog = catalog(1, table.clone());
    let whole = codec::table_range(DEFAULT_DATABASE_ID, &table, 0);
    let of = |value: &str| {
        let parts = catalog.row_parts(&table).expect("parts").parts();
        let mut own =
            parts.iter().filter(|part| part.value == value && whole.contains(&part.range.start));
        own.next().expect("a part").range.clone()
    };
    assert!(catalog.check_placed(&of("eu")).is_ok());
    assert!(catalog.check_placed(&of("ap")).is_ok());
    let error = catalog.check_placed(&of("us")).expect_err("not in eu");
    assert_eq!(error.regions, [RegionId(0)]);
    assert!(
        error.message.contains("('us')") && error.message.contains("region \"eu\""),
        "{error:?}"
    );
    // All of it is in us alone; of ap and us together too.
    assert_eq!(catalog.check_placed(&whole).expect_err("not all").regions, [RegionId(0)]);
    // What is beside all values can have no rows.
    let (ap, eu) = (of("ap"), of("eu"));
    assert!(catalog.check_placed(&KeyRange::new(ap.end.clone(), eu.start.clone())).is_ok());
    assert_eq!(catalog.placed_of(&whole), [ap.clone(), eu]);
    let part = KeyRange::new(keys(&table, "ap", "m")[0].clone(), whole.end.clone());
    assert_eq!(catalog.placed_of(&part)[0], KeyRange::new(part.start.clone(), ap.end));
    // Keys that are looked up together.
    let [eu, us] = ["eu", "us"].map(|value| keys(&table, value, "1")[0].clone());
    let both = [&eu[..], &us[..]];
    assert_eq!(catalog.check_keys(both.into_iter()).expect_err("us").regions, [RegionId(0)]);
    assert!(catalog.check_keys([&eu[..]].into_iter()).is_ok());
}

#[test]
fn who_is_getting_a_value_neither_reads_it_nor_is_said_to_have_it() {
    let mut table = table(&[("eu", &[1, 0])]);
    let place = |table: &mut Table, at| {
        let rule = table.placement.by_row.as_mut().expect("a rule");
        rule.values.get_mut("eu").expect("a value").gaining =
            Some(Gaining { at, regions: vec![0] });
    };
    place(&mut table, 7);
    let whole = codec::table_range(DEFAULT_DATABASE_ID, &table, 0);
    let error = catalog(0, table.clone()).check_placed(&whole).expect_err("on its way");
    assert!(error.message.contains("still being sent"), "{error:?}");
    assert_eq!(error.regions, [RegionId(1)]);
    assert_eq!(
        catalog(2, table.clone()).check_placed(&whole).expect_err("no").regions,
        [RegionId(1)]
    );
    assert!(catalog(1, table.clone()).check_placed(&whole).is_ok());
    // Nothing is removed from who may have to send it.
    assert!(catalog(2, table).rows_elsewhere().is_empty());
}

#[test]
fn what_belongs_elsewhere_is_told_when_nobody_waits_for_it() {
    let table = table(&[("eu", &[1]), ("us", &[0, 1])]);
    let rows = |me| catalog(me, table.clone()).rows_elsewhere();
    assert_eq!((rows(0).len(), rows(1).len(), rows(2).len()), (2, 0, 4));
    assert!(rows(0)[0].contains(&keys(&table, "eu", "x")[0]));
}

#[test]
fn foreign_key_is_kept_where_it_holds_the_column_and_homes_are_the_same() {
    let key = |own: &[usize], other: &[usize]| ForeignKey {
        oid: 1,
        name: "k".to_owned(),
        columns: own.to_vec(),
        referenced: TABLE,
        referenced_columns: other.to_vec(),
        referenced_index: 0,
        on_delete: crate::ForeignKeyAction::NoAction,
        delete_columns: Vec::new(),
        on_update: crate::ForeignKeyAction::NoAction,
        match_kind: crate::ForeignKeyMatch::Simple,
        deferrable: false,
        initially_deferred: false,
        validated: true,
    };
    let keeps = |child: &Table, parent: &Table, key: &ForeignKey| {
        let rule = |table: &Table| table.placement.by_row.clone().expect("a rule");
        ByRow::keeps((child, &rule(child)), (parent, &rule(parent)), key)
    };
    let (one, same) = (table(&[("a", &[1]), ("b", &[0])]), table(&[("a", &[1, 2]), ("b", &[0])]));
    assert!(keeps(&one, &same, &key(&[0, 1], &[0, 1])));
    assert!(!keeps(&one, &same, &key(&[1], &[1])), "it does not hold the column");
    assert!(!keeps(&one, &same, &key(&[0, 1], &[1, 0])), "it holds it crosswise");
    let other = table(&[("a", &[2, 1]), ("b", &[0])]);
    assert!(!keeps(&one, &other, &key(&[0, 1], &[0, 1])), "a is written elsewhere");
}

#[test]
fn older_versions_refuse_the_table_also_when_it_was_reset() {
    let mut placed = table(&[("eu", &[1])]);
    for _ in 0..2 {
        let bytes = encode_object(&Object::Table(placed.clone())).expect("encodes");
        assert_eq!(bytes[0], 11);
        match StoredObject::decode(&bytes).expect("decodes") {
            Object::Table(read) => assert_eq!(read, placed),
            other => panic!("{other:?}"),
        }
        placed.placement = TablePlacement { sent_by_all: true, ..TablePlacement::default() };
    }
}

proptest! {
    /// Every key of a row is in the part of its value and in no other, whatever the value begins
    /// with, and goes where the value does.
    #[test]
    fn keys_of_a_row_are_in_the_part_of_its_value(
        values in prop::collection::btree_set("[ab\0é]{0,3}", 1..5),
        value in "[ab\0é]{0,3}",
        id in "[ab\0]{0,2}",
    ) {
        let named: Vec<(&str, &[u16])> = values.iter().enumerate()
            .map(|(at, value)| (value.as_str(), &[[0_u16, 1], [1, 2], [2, 0]][at % 3][..at % 2 + 1]))
            .collect();
        let table = table(&named);
        let catalog = catalog(0, table.clone());
        let rules: Rules = catalog.rules().expect("regions");
        let parts = Arc::new(catalog.row_parts(&table).expect("parts").clone());
        for key in keys(&table, &value, &id) {
            let part = parts.part_of(&key).map(|part| part.value.as_str());
            prop_assert_eq!(part, values.get(&value).map(String::as_str));
            let met: Vec<_> = parts.meeting(&KeyRange::point(&key)).map(|part| part.value.clone()).collect();
            prop_assert_eq!(met, part.map(str::to_owned).into_iter().collect::<Vec<_>>());
            let expected: RegionSet = named.iter().filter(|(named, _)| *named == value)
                .flat_map(|(_, regions)| regions.iter().map(|id| RegionId(*id))).collect();
            prop_assert_eq!(rules.regions(&key), expected);
        }
    }
}
