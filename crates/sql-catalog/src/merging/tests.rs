//! Three regions write one row in any order of arrival.

use super::*;
use crate::model::{Column, TableKind};
use crate::regions::TablePlacement;
use crate::{Owner, PUBLIC_OID};
use proptest::prelude::*;
use telesto_common::TableId;

const REGIONS: usize = 3;

fn table() -> Table {
    let column = |id: u16, name: &str, ty| Column::new(id, name.to_owned(), ty);
    Table {
        id: TableId(20_000),
        storage: TableId(20_000),
        schema: PUBLIC_OID,
        name: "t".to_owned(),
        owner: Owner::BOOTSTRAP,
        acl: None,
        kind: TableKind::default(),
        columns: vec![
            column(1, "v", SqlType::Int4),
            column(2, "hits", SqlType::Int4),
            column(3, "top", SqlType::Int4),
            column(4, "low", SqlType::Int4),
        ],
        primary: None,
        indexes: Vec::new(),
        building: Vec::new(),
        next_index: 1,
        checks: Vec::new(),
        foreign_keys: Vec::new(),
        comment: None,
        type_oid: 20_001,
        on_commit: crate::model::OnCommit::default(),
        constraint_comments: Vec::new(),
        placement: TablePlacement {
            merging: Some(Merging { era: 7, counters: vec![2], max: vec![3], min: vec![4] }),
            ..TablePlacement::default()
        },
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Region and amount; an insert where nothing is.
    Write(usize, i32),
    Delete(usize),
    /// A version of another region comes: to, which of all that were written.
    Arrives(usize, usize),
}

fn steps(deletes: bool) -> impl Strategy<Value = Vec<Step>> {
    let write = (0..REGIONS, -5_i32..20).prop_map(|(at, amount)| Step::Write(at, amount));
    let arrives = (0..REGIONS, 0_usize..64).prop_map(|(to, which)| Step::Arrives(to, which));
    let delete = (0..REGIONS).prop_map(Step::Delete);
    let weight = u32::from(deletes);
    proptest::collection::vec(prop_oneof![4 => write, 6 => arrives, weight => delete], 1..40)
}

type Version = (Rank, Option<Bytes>);

/// What each region has of the row, and everything that was ever written.
struct World {
    table: Table,
    codec: RowCodec,
    here: Vec<Option<Version>>,
    clock: [u64; REGIONS],
    written: Vec<Version>,
}

impl World {
    fn new() -> Self {
        let table = table();
        let codec = RowCodec::new(&table).expect("a codec");
        let mut world =
            Self { table, codec, here: vec![None; REGIONS], clock: [0; REGIONS], written: vec![] };
        // Before the columns merged.
        let row = [100, 100, 0, 0].map(Datum::Int4);
        let old = crate::codec::encode_row(&world.table, &row).expect("a row");
        let version = ((Timestamp(5), RegionId(0)), Some(old));
        world.here = vec![Some(version); REGIONS];
        world.clock = [5; REGIONS];
        world
    }

    fn merger(&self) -> Merger<'_> {
        Merger::of(&self.table, &self.codec).expect("merges")
    }

    fn commit(&mut self, region: usize, value: Option<Bytes>) {
        self.clock[region] += 10;
        let version = ((Timestamp(self.clock[region]), RegionId(region as u16)), value);
        self.here[region] = Some(version.clone());
        self.written.push(version);
    }

    fn write(&mut self, region: usize, amount: i32) {
        let me = RegionId(region as u16);
        let here = self.here[region].clone();
        let merger = self.merger();
        let bytes = match &here {
            Some((_, Some(bytes))) => {
                let mut row = self.codec.decode(bytes).expect("a row");
                let number = |at: usize| match row[at] {
                    Datum::Int4(value) => value,
                    _ => panic!("{row:?}"),
                };
                let (hits, top, low) = (number(1), number(2), number(3));
                row = [amount, hits + amount, top.max(amount), low.min(amount)]
                    .map(Datum::Int4)
                    .to_vec();
                merger.updated(me, bytes, &row).expect("written").0
            }
            gone => {
                let gone = gone.as_ref().map_or(FIRST, |(rank, value)| {
                    merger.newest(*rank, value.as_ref()).expect("newest")
                });
                let row = [amount; 4].map(Datum::Int4).to_vec();
                merger.inserted(me, gone, &row).expect("written").0
            }
        };
        self.commit(region, Some(bytes));
    }

    fn arrive(&mut self, to: usize, version: &Version) {
        let (rank, value) = version;
        let here = self.here[to].clone();
        let here = here.as_ref().map(|(rank, value)| (*rank, value.as_ref()));
        let (joined, _) = self.merger().join(here, (*rank, value.as_ref())).expect("joined");
        self.clock[to] = self.clock[to].max(rank.0.0);
        if let Joined::Becomes(value) = joined {
            self.here[to] = Some((*rank, value));
        }
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Write(region, amount) => self.write(*region, *amount),
                Step::Delete(region) => {
                    if matches!(self.here[*region], Some((_, Some(_)))) {
                        self.commit(*region, None);
                    }
                }
                Step::Arrives(to, which) => {
                    if !self.written.is_empty() {
                        let version = self.written[which % self.written.len()].clone();
                        self.arrive(*to, &version);
                    }
                }
            }
        }
        // In the end everything has come everywhere, in another order to each.
        for to in 0..REGIONS {
            let mut all = self.written.clone();
            if to == 1 {
                all.reverse();
            }
            let turn = to % all.len().max(1);
            all.rotate_left(turn);
            for version in all {
                self.arrive(to, &version);
            }
        }
    }

    /// What a region has, with all times written out.
    fn seen(&self, region: usize) -> Option<(State, Row)> {
        let (rank, value) = self.here[region].as_ref()?;
        let value = value.as_ref()?;
        let state = self.merger().resolved(*rank, value).expect("a state").0;
        Some((state, self.codec.decode(value).expect("a row")))
    }
}

proptest! {
    #[test]
    fn replicas_agree_in_whichever_order_writes_and_deletes_come(steps in steps(true)) {
        let mut world = World::new();
        world.run(&steps);
        let first = world.seen(0);
        for region in 1..REGIONS {
            prop_assert_eq!(&world.seen(region), &first, "region {}", region);
        }
    }

    #[test]
    fn no_increment_is_lost_and_extremes_stay(steps in steps(false)) {
        let mut world = World::new();
        world.run(&steps);
        let amounts: Vec<i32> = steps.iter().filter_map(|step| match step {
            Step::Write(_, amount) => Some(*amount),
            _ => None,
        }).collect();
        let (_, row) = world.seen(2).expect("a row");
        prop_assert_eq!(&row[1], &Datum::Int4(100 + amounts.iter().sum::<i32>()));
        let top = amounts.iter().copied().fold(0, i32::max);
        prop_assert_eq!(&row[2], &Datum::Int4(top));
        let low = amounts.iter().copied().fold(0, i32::min);
        prop_assert_eq!(&row[3], &Datum::Int4(low));
    }
}

#[test]
fn extreme_does_not_go_back_and_counter_stays_in_its_type() {
    let world = World::new();
    let merger = world.merger();
    let me = RegionId(1);
    let row = |hits: i32, top: i32| [1, hits, top, 0].map(Datum::Int4).to_vec();
    let (bytes, _) = merger.inserted(me, FIRST, &row(i32::MAX - 1, 9)).expect("written");
    let error = merger.updated(me, &bytes, &row(5, 8)).expect_err("refused");
    assert_eq!(error.code().0, "23514");
    let one = merger.updated(me, &bytes, &row(i32::MAX, 9)).expect("written").0;
    let (other, _) = merger.inserted(RegionId(2), FIRST, &row(7, 3)).expect("written");
    let (at, later) = ((Timestamp(10), me), (Timestamp(11), RegionId(2)));
    let (joined, _) = merger.join(Some((at, Some(&one))), (later, Some(&other))).expect("joined");
    let Joined::Becomes(Some(bytes)) = joined else { panic!("{joined:?}") };
    assert_eq!(world.codec.decode(&bytes).expect("a row"), row(i32::MAX, 9));
}
