//! Three regions write one row in any order of arrival; some lose what they wrote last, and one is
//! lost for good.

use super::*;
use crate::model::{Column, TableKind};
use crate::regions::TablePlacement;
use crate::{Owner, PUBLIC_OID};
use proptest::prelude::*;
use std::collections::BTreeSet;
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
        row_security: crate::policy::RowSecurity::default(),
        curated: None,
        key: None,
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Region and amount; an insert where nothing is.
    Write(usize, i32),
    Delete(usize),
    /// A version of another region comes: to, which of all that were written.
    Arrives(usize, usize),
    /// A region loses what happened last to it: so many things.
    Loses(usize, usize),
    /// It takes back what the others have of it.
    TakesBack(usize),
}

fn steps(deletes: bool, losses: bool) -> impl Strategy<Value = Vec<Step>> {
    let write = (0..REGIONS, -5_i32..20).prop_map(|(at, amount)| Step::Write(at, amount));
    let arrives = (0..REGIONS, 0_usize..64).prop_map(|(to, which)| Step::Arrives(to, which));
    let delete = (0..REGIONS).prop_map(Step::Delete);
    let loses = (0..REGIONS, 1_usize..6).prop_map(|(at, back)| Step::Loses(at, back));
    let takes_back = (0..REGIONS).prop_map(Step::TakesBack);
    let (deletes, losses) = (u32::from(deletes), u32::from(losses));
    let step = prop_oneof![
        8 => write,
        12 => arrives,
        2 * deletes => delete,
        losses => loses,
        losses => takes_back,
    ];
    proptest::collection::vec(step, 1..60)
}

/// Label, value, and which writes are in it.
type Version = (Rank, Option<Bytes>, BTreeSet<usize>);

/// What each region has of the row, and everything that was ever written.
struct World {
    table: Table,
    codec: RowCodec,
    here: Vec<Option<Version>>,
    clock: [u64; REGIONS],
    written: Vec<Written>,
    /// What each region had before each thing that happened to it, with how much it had written
    /// itself.
    before: Vec<Vec<Option<Version>>>,
    /// Not 0: what a region writes may stand on less than it has written.
    life: [u64; REGIONS],
    lives: u64,
    has_lost: [bool; REGIONS],
}

/// A version as its region wrote it.
#[derive(Clone, Debug)]
struct Written {
    version: Version,
    amount: i32,
    /// It is no more where it was written.
    lost: bool,
}

impl World {
    fn new() -> Self {
        let table = table();
        let codec = RowCodec::new(&table).expect("a codec");
        let mut world = Self {
            table,
            codec,
            here: vec![None; REGIONS],
            clock: [0; REGIONS],
            written: vec![],
            before: vec![vec![]; REGIONS],
            life: [0; REGIONS],
            lives: 0,
            has_lost: [false; REGIONS],
        };
        // Before the columns merged.
        let row = [100, 100, 0, 0].map(Datum::Int4);
        let old = crate::codec::encode_row(&world.table, b"", &row).expect("a row");
        let version = ((Timestamp(5), RegionId(0)), Some(old), BTreeSet::new());
        world.here = vec![Some(version); REGIONS];
        world.clock = [5; REGIONS];
        world
    }

    fn merger(&self) -> Merger<'_> {
        Merger::of(&self.table, &self.codec).expect("merges")
    }

    fn commit(&mut self, region: usize, value: Option<Bytes>, amount: i32) {
        self.clock[region] += 10;
        let mut holds =
            self.here[region].as_ref().map_or_else(BTreeSet::new, |here| here.2.clone());
        holds.insert(self.written.len());
        let version = ((Timestamp(self.clock[region]), RegionId(region as u16)), value, holds);
        self.becomes(region, version.clone());
        self.written.push(Written { version, amount, lost: false });
    }

    fn becomes(&mut self, region: usize, version: Version) {
        self.before[region].push(self.here[region].take());
        self.here[region] = Some(version);
    }

    fn loses(&mut self, region: usize, back: usize) {
        for _ in 0..back {
            let Some(before) = self.before[region].pop() else { break };
            let gone = self.here[region].take();
            // Own writes that come last are lost with it, newest first.
            let me = RegionId(region as u16);
            if let Some((rank, ..)) = gone
                && let Some(own) = self.written.iter_mut().find(|w| w.version.0 == rank)
                && rank.1 == me
            {
                own.lost = true;
            }
            self.here[region] = before;
        }
        self.lives += 1;
        self.life[region] = self.lives;
        self.has_lost[region] = true;
    }

    /// What `from` has of `of` comes to `to`.
    fn share(&mut self, from: usize, of: usize, to: usize) {
        let Some((rank, value, mut holds)) = self.here[from].clone() else { return };
        let of = RegionId(of as u16);
        holds.retain(|which| self.written[*which].version.0.1 == of);
        let share = match &value {
            Some(value) => super::share(&self.table, &self.codec, rank, value, of).expect("read"),
            None => Share::Whole,
        };
        match share {
            Share::Whole if rank.1 == of => self.arrive(to, &(rank, value, holds)),
            Share::Whole | Share::Nothing => {}
            Share::This(rank, value) => {
                assert_eq!(rank.1, of);
                self.arrive(to, &(rank, value, holds));
            }
        }
    }

    fn takes_back(&mut self, region: usize, gone: Option<usize>) {
        if self.life[region] != 0 {
            let others = (0..REGIONS).filter(|from| *from != region && Some(*from) != gone);
            for from in others {
                self.share(from, region, region);
            }
            self.life[region] = 0;
        }
    }

    fn write(&mut self, region: usize, amount: i32) {
        let me = Author { region: RegionId(region as u16), life: self.life[region] };
        let here = self.here[region].clone();
        let merger = self.merger();
        let bytes = match &here {
            Some((rank, Some(bytes), _)) => {
                let mut row = self.codec.decode_clear(bytes).expect("a row");
                let number = |at: usize| match row[at] {
                    Datum::Int4(value) => value,
                    _ => panic!("{row:?}"),
                };
                let (hits, top, low) = (number(1), number(2), number(3));
                row = [amount, hits + amount, top.max(amount), low.min(amount)]
                    .map(Datum::Int4)
                    .to_vec();
                merger.updated(me, Some(*rank), bytes, &row).expect("written").0
            }
            gone => {
                let gone = gone.as_ref().map_or(FIRST, |(rank, value, _)| {
                    merger.newest(*rank, value.as_ref()).expect("newest")
                });
                let row = [amount; 4].map(Datum::Int4).to_vec();
                merger.inserted(me, gone, &row).expect("written").0
            }
        };
        self.commit(region, Some(bytes), amount);
    }

    fn arrive(&mut self, to: usize, version: &Version) {
        let (rank, value, came) = version;
        let here = self.here[to].clone();
        let mut holds = here.as_ref().map_or_else(BTreeSet::new, |here| here.2.clone());
        holds.extend(came);
        let here = here.as_ref().map(|(rank, value, _)| (*rank, value.as_ref()));
        let (joined, _) = self.merger().join(here, (*rank, value.as_ref())).expect("joined");
        self.clock[to] = self.clock[to].max(rank.0.0);
        if let Joined::Becomes(value) = joined {
            self.becomes(to, (*rank, value, holds));
        }
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Write(region, amount) => self.write(*region, *amount),
                Step::Delete(region) => {
                    if matches!(self.here[*region], Some((_, Some(_), _))) {
                        self.commit(*region, None, 0);
                    }
                }
                Step::Arrives(to, which) => {
                    let streams: Vec<usize> =
                        (0..self.written.len()).filter(|w| !self.written[*w].lost).collect();
                    if !streams.is_empty() {
                        self.comes(*to, streams[which % streams.len()]);
                    }
                }
                Step::Loses(region, back) => self.loses(*region, *back),
                Step::TakesBack(region) => self.takes_back(*region, None),
            }
        }
    }

    /// A version comes from where it was written, by its stream.
    fn comes(&mut self, to: usize, which: usize) {
        let version = self.written[which].version.clone();
        self.arrive(to, &version);
    }

    /// Everything comes everywhere, in another order to each, but for what is lost; `gone` is lost
    /// for good: those that stay exchange what they have of it.
    fn end(&mut self, gone: Option<usize>) {
        let stay: Vec<usize> = (0..REGIONS).filter(|region| Some(*region) != gone).collect();
        for region in &stay {
            self.takes_back(*region, gone);
        }
        for to in &stay {
            let of_gone = |w: &Written| Some(usize::from(w.version.0.1.0)) == gone;
            let mut all: Vec<usize> = (0..self.written.len())
                .filter(|w| !self.written[*w].lost && !of_gone(&self.written[*w]))
                .collect();
            if *to == 1 {
                all.reverse();
            }
            let turn = to % all.len().max(1);
            all.rotate_left(turn);
            for which in all {
                self.comes(*to, which);
            }
            for from in stay.iter().filter(|from| *from != to) {
                if let Some(gone) = gone {
                    self.share(*from, gone, *to);
                }
                // Who has lost something fills the others anew.
                if let Some(version) = self.here[*from].clone().filter(|_| self.has_lost[*from]) {
                    self.arrive(*to, &version);
                }
            }
        }
    }

    /// What a region has, with all times written out.
    fn seen(&self, region: usize) -> Option<(State, Row)> {
        let (rank, value, _) = self.here[region].as_ref()?;
        let value = value.as_ref()?;
        let state = self.merger().resolved(*rank, value).expect("a state").0;
        // What verifies replicas compares this.
        let written = written_out(&self.table, &self.codec, *rank, value).expect("read");
        if let Some((_, bytes)) = written {
            let again = self.merger().resolved(FIRST, &bytes).expect("a state").0;
            assert_eq!(again, state);
        }
        Some((state, self.codec.decode_clear(value).expect("a row")))
    }
}

/// Who is lost for good, if anybody.
fn gone() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![2 => Just(None), 1 => (0..REGIONS).prop_map(Some)]
}

proptest! {
    #[test]
    fn replicas_agree_in_whichever_order_writes_and_deletes_come(
        steps in steps(true, true),
        gone in gone(),
    ) {
        let mut world = World::new();
        world.run(&steps);
        world.end(gone);
        let mut stay = (0..REGIONS).filter(|region| Some(*region) != gone);
        let first = world.seen(stay.next().expect("one"));
        for region in stay {
            prop_assert_eq!(&world.seen(region), &first, "region {}", region);
        }
    }

    #[test]
    fn no_increment_is_lost_and_extremes_stay(steps in steps(false, false)) {
        let mut world = World::new();
        world.run(&steps);
        world.end(None);
        let amounts: Vec<i32> = world.written.iter().map(|written| written.amount).collect();
        let (_, row) = world.seen(2).expect("a row");
        prop_assert_eq!(&row[1], &Datum::Int4(100 + amounts.iter().sum::<i32>()));
        let top = amounts.iter().copied().fold(0, i32::max);
        prop_assert_eq!(&row[2], &Datum::Int4(top));
        let low = amounts.iter().copied().fold(0, i32::min);
        prop_assert_eq!(&row[3], &Datum::Int4(low));
    }

    #[test]
    fn what_anybody_had_got_of_a_region_that_lost_it_counts(
        steps in steps(false, true),
        gone in gone(),
    ) {
        let mut world = World::new();
        world.run(&steps);
        world.end(gone);
        let stays = (0..REGIONS).find(|region| Some(*region) != gone).expect("one");
        let (_, row) = world.seen(stays).expect("a row");
        let here = world.here[stays].as_ref().expect("a row");
        let count: i32 = here.2.iter().map(|which| world.written[*which].amount).sum();
        prop_assert_eq!(&row[1], &Datum::Int4(100 + count));
    }
}

#[test]
fn extreme_does_not_go_back_and_counter_stays_in_its_type() {
    let world = World::new();
    let merger = world.merger();
    let me = RegionId(1);
    let row = |hits: i32, top: i32| [1, hits, top, 0].map(Datum::Int4).to_vec();
    let author = Author::certain(me);
    let (bytes, _) = merger.inserted(author, FIRST, &row(i32::MAX - 1, 9)).expect("written");
    let error = merger.updated(author, None, &bytes, &row(5, 8)).expect_err("refused");
    assert_eq!(error.code().0, "23514");
    let one = merger.updated(author, None, &bytes, &row(i32::MAX, 9)).expect("written").0;
    let other = Author::certain(RegionId(2));
    let (other, _) = merger.inserted(other, FIRST, &row(7, 3)).expect("written");
    let (at, later) = ((Timestamp(10), me), (Timestamp(11), RegionId(2)));
    let (joined, _) = merger.join(Some((at, Some(&one))), (later, Some(&other))).expect("joined");
    let Joined::Becomes(Some(bytes)) = joined else { panic!("{joined:?}") };
    assert_eq!(world.codec.decode_clear(&bytes).expect("a row"), row(i32::MAX, 9));
}
