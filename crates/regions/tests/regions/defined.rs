//! Rows of what is defined later than they come.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_geo::PlaneKind;
use telesto_regions::Rules;
use telesto_testkit::World;
use telesto_txn::regions::{Definitions, DerivedEntries, DerivedEntry, Keeper, Meaning, Standing};
use telesto_txn::{Database as _, Level, ReadFor, TxnOptions};

use crate::harness::{Sites, rule, usual_rules, write};

/// The key that every definition writes: its value has the first letters of the keys that are
/// defined. The value of a key that begins with `m` says how many entries follow from it
/// ([`follow`]); with `!` among the letters none can be computed.
const STAMP: &str = "\0\0\0\0s";

/// Definitions as the value of [`STAMP`] has them, made in region 0.
#[derive(Debug)]
struct Letters;

#[derive(Debug)]
struct Defined(Bytes);

#[async_trait]
impl Definitions for Letters {
    fn stamp(&self) -> Bytes {
        Bytes::from_static(STAMP.as_bytes())
    }

    async fn at(
        &self,
        _: Timestamp,
        stamp: Option<&Bytes>,
    ) -> Result<Option<Arc<dyn Meaning>>, String> {
        Ok(stamp.map(|letters| Arc::new(Defined(letters.clone())) as Arc<dyn Meaning>))
    }

    fn acknowledgement(&self, _: RegionId, _: &Bytes) -> Option<(Bytes, Bytes)> {
        None
    }
}

/// Entries that follow from a row: as many as it says, of half a megabyte each.
fn follow(key: &Bytes, row: &Bytes) -> Vec<DerivedEntry> {
    let count: u32 = String::from_utf8_lossy(row).parse().expect("a number");
    let entry = |number: u32| {
        let key = format!("n{} {number:04}", String::from_utf8_lossy(key));
        let value = Bytes::from(vec![b'x'; 512 << 10]);
        DerivedEntry { key: Bytes::from(key), value }
    };
    (0..count).map(entry).collect()
}

impl Meaning for Defined {
    fn defining(&self) -> Option<RegionId> {
        Some(RegionId(0))
    }

    fn standing(&self, key: &[u8]) -> Standing {
        let known = key.first().is_none_or(|letter| *letter == 0 || self.0.contains(letter));
        if known { Standing::Known } else { Standing::NotYet }
    }

    fn entries(
        &self,
        _: RegionId,
        key: &Bytes,
        old: Option<&Bytes>,
        new: Option<&Bytes>,
    ) -> Result<DerivedEntries, String> {
        if !key.starts_with(b"m") {
            return Ok(DerivedEntries::default());
        }
        if self.0.contains(&b'!') {
            return Err("division by zero".to_owned());
        }
        let entries = |row: Option<&Bytes>| row.map(|row| follow(key, row)).unwrap_or_default();
        Ok(DerivedEntries { old: entries(old), new: entries(new) })
    }

    fn keeper(&self, _: &[u8]) -> Keeper {
        Keeper::Other
    }

    fn has_stopped(&self, _: &[u8], _: Option<&Bytes>) -> bool {
        false
    }
}

/// Three regions with definitions, of which those of `t` are made later.
async fn defined(world: &World) -> Sites {
    let mut sites = Sites::new(world, 3);
    sites.tables = Some(Arc::new(Letters));
    sites.start_all().await;
    let mut rules = usual_rules().rules().to_vec();
    rules.extend([rule(STAMP, &[0, 1, 2]), rule("t", &[0, 1, 2])]);
    for region in 0..3 {
        sites.at(region).regions.set_placement(&Rules::new(rules.clone())).await.expect("set");
    }
    sites.put(0, STAMP, "abcd").await;
    sites.quiet().await;
    sites
}

/// What a region that lost commits takes back may belong to a table whose definition waits in its
/// inbox, or has not come: it stands before nothing else, and is applied behind that.
#[test]
fn rows_that_are_taken_back_wait_for_their_definition_and_nothing_waits_for_them() {
    World::run(36, false, async |world| {
        let mut sites = defined(&world).await;
        let backup = sites.backup(1);
        sites.put(0, STAMP, "abcdt").await;
        sites.comes(1, STAMP, Some("abcdt")).await;
        sites.comes(2, STAMP, Some("abcdt")).await;
        sites.put(1, "t1", "taken back").await;
        sites.put(1, "a1", "taken back").await;
        sites.comes(2, "a1", Some("taken back")).await;
        sites.kill(1);
        sites.restore(1, &backup).await;
        sites.partition(0, 1);
        sites.start(1, 0..3).await;
        // What is waited for before anything is taken back has its time.
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(sites.get(1, "t1").await, None, "its table is not defined");
        let trouble = sites.at(1).regions.status().trouble.unwrap_or_default();
        assert!(trouble.contains("definition is not here yet"), "{trouble}");
        sites.net.heal();
        sites.comes(1, "t1", Some("taken back")).await;
        assert_eq!(sites.get(1, STAMP).await.as_deref(), Some("abcdt"));
        sites.comes(1, "a1", Some("taken back")).await;
        sites.put(1, "t2", "new").await;
        sites.quiet().await;
        for prefix in ["a", "t"] {
            let first = sites.contents(0, prefix).await;
            assert_eq!(first, sites.contents(1, prefix).await);
            assert_eq!(first, sites.contents(2, prefix).await);
        }
        assert!(sites.at(1).regions.incarnation() > 0);
        assert_eq!(sites.at(1).regions.status().trouble, None);
    });
}

/// The definition itself waits for something of the lost region that comes by nobody's stream any
/// more, so that it comes only when that is waited for no longer; and what depends on the rows
/// comes behind them still.
#[test]
fn rows_of_a_lost_region_wait_for_a_definition_that_waits_for_that_region() {
    World::run(37, false, async |world| {
        let mut sites = defined(&world).await;
        sites.partition(1, 2);
        // Region 0 gets another part of it than region 1, so that it cannot give it to that.
        let cause = [("a1", Some("cause")), ("d1", Some("cause"))];
        write(&sites.at(2).engine, &cause, Label::default()).await.expect("commits");
        sites.comes(0, "a1", Some("cause")).await;
        sites.put(0, STAMP, "abcdt").await;
        sites.comes(2, STAMP, Some("abcdt")).await;
        sites.put(2, "t1", "of the lost one").await;
        sites.comes(0, "t1", Some("of the lost one")).await;
        sites.put(0, "a2", "effect").await;
        sites.kill(2);
        world.sleep(Duration::from_secs(3)).await;
        assert_eq!(sites.get(1, STAMP).await.as_deref(), Some("abcd"), "before its cause");
        sites.lost = vec![2];
        for region in 0..2 {
            sites.kill(region);
            sites.start(region, 0..2).await;
        }
        for _ in 0..6000 {
            let options =
                TxnOptions { level: Level::Serializable, read_only: true, ..TxnOptions::default() };
            let txn = sites.at(1).engine.begin(options).await.expect("begins");
            let get = async |key: &[u8]| txn.get(key, ReadFor::Query).await.expect("reads");
            let [cause, row, effect] = [get(b"a1").await, get(b"t1").await, get(b"a2").await];
            assert!(effect.is_none() || row.is_some(), "before what it has seen");
            assert!(row.is_none() || cause.is_some(), "before what it has seen");
            if effect.is_some() {
                break;
            }
            world.sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(sites.get(1, "a2").await.as_deref(), Some("effect"));
        sites.put(1, "t2", "new").await;
        sites.comes(0, "t2", Some("new")).await;
        let mut closed = false;
        for _ in 0..100 {
            closed |= matches!(sites.at(1).regions.lost_are_closed().await, Ok(true));
            world.sleep(Duration::from_millis(100)).await;
        }
        assert!(closed);
        assert_eq!(sites.contents(0, "t").await, sites.contents(1, "t").await);
    });
}

/// Rows of which much follows, and nobody but the regions that they come to knows how much.
async fn followed(world: &World, plane: PlaneKind, letters: &str) -> Sites {
    let mut sites = Sites::new(world, 3);
    sites.plane = plane;
    sites.tables = Some(Arc::new(Letters));
    sites.start_all().await;
    let mut rules = usual_rules().rules().to_vec();
    rules.extend([rule(STAMP, &[0, 1, 2]), rule("m", &[0, 1, 2])]);
    for region in 0..3 {
        sites.at(region).regions.set_placement(&Rules::new(rules.clone())).await.expect("set");
    }
    sites.put(0, STAMP, letters).await;
    sites.quiet().await;
    sites
}

/// How many entries of each row a region has, and the label of each entry that is not its row's.
async fn entries(sites: &Sites, region: usize) -> Vec<(String, usize)> {
    let rows = sites.contents(region, "m").await;
    let found = sites.contents(region, "nm").await;
    let of = |key: &Bytes| {
        let prefix = [b"n", &key[..], b" "].concat();
        let own = found.iter().filter(|(entry, ..)| entry.starts_with(&prefix));
        own.map(|(_, value, at, by)| (value.len(), *at, *by)).collect::<Vec<_>>()
    };
    let mut counts = Vec::new();
    for (key, _, at, by) in &rows {
        let own = of(key);
        assert!(own.iter().all(|entry| *entry == (512 << 10, *at, *by)), "labels of {key:?}");
        counts.push((String::from_utf8_lossy(key).into_owned(), own.len()));
    }
    assert_eq!(counts.iter().map(|(_, count)| count).sum::<usize>(), found.len(), "of no row");
    counts
}

/// One transaction, and several that come together, of which more follows than an entry of the log
/// holds: all of it is applied, at once with its row and under its label, in whatever comes later,
/// and after a crash.
#[test]
fn what_follows_from_rows_beyond_an_entry_of_the_log_is_applied_with_them() {
    World::run(38, false, async |world| {
        let sites = followed(&world, PlaneKind::Matrix, "abcdm").await;
        sites.put(0, "m1", "140").await;
        sites.comes(1, "m1", Some("140")).await;
        sites.comes(2, "m1", Some("140")).await;
        let m1 = |count| ("m1".to_owned(), count);
        assert_eq!(entries(&sites, 1).await, [m1(140)]);
        sites.put(0, "m1", "3").await;
        sites.quiet().await;
        assert_eq!(entries(&sites, 1).await, [m1(3)], "those of the row before are gone");
        sites.partition(0, 1);
        for (key, count) in [("m1", "2"), ("m2", "60"), ("m3", "60"), ("m4", "60")] {
            sites.put(0, key, count).await;
        }
        sites.put(0, "a1", "behind").await;
        sites.net.heal();
        sites.comes(1, "a1", Some("behind")).await;
        let all = vec![m1(2), ("m2".to_owned(), 60), ("m3".to_owned(), 60), ("m4".to_owned(), 60)];
        assert_eq!(entries(&sites, 1).await, all);
        sites.kill(1);
        sites.start(1, 0..3).await;
        sites.put(0, "m4", "0").await;
        sites.put(1, "a2", "from there").await;
        sites.quiet().await;
        for region in 1..3 {
            let found = entries(&sites, region).await;
            assert_eq!(found[..3], all[..3]);
            assert_eq!(found[3].1, 0);
            assert_eq!(sites.at(region).regions.status().trouble, None);
        }
        assert_eq!(sites.get(0, "a2").await.as_deref(), Some("from there"));
    });
}

/// A transaction of which something cannot be computed holds up its own stream alone, and only as
/// long as the definitions are so. Who operates the region is told.
#[test]
fn what_cannot_be_computed_of_a_row_holds_up_no_other_stream_and_comes_once_it_can() {
    for plane in [PlaneKind::Matrix, PlaneKind::Timestamp] {
        World::run(39, false, async |world| {
            let sites = followed(&world, plane, "abcdm!").await;
            sites.put(1, "a1", "before").await;
            sites.put(1, "m1", "1").await;
            sites.put(1, "a2", "behind").await;
            sites.put(2, "a3", "of another").await;
            sites.comes(0, "a1", Some("before")).await;
            world.sleep(Duration::from_secs(3)).await;
            for turn in 0..4 {
                let (key, value) = (format!("a4{turn}"), format!("{turn}"));
                sites.put(2, &key, &value).await;
                sites.comes(0, &key, Some(&value)).await;
                sites.put(0, &format!("a5{turn}"), &value).await;
                sites.comes(2, &format!("a5{turn}"), Some(&value)).await;
                world.sleep(Duration::from_secs(7)).await;
            }
            assert_eq!(sites.get(0, "a3").await.as_deref(), Some("of another"));
            assert_eq!(sites.get(0, "m1").await, None);
            assert_eq!(sites.get(0, "a2").await, None, "it has seen what it stands behind");
            let trouble = sites.at(0).regions.status().trouble.unwrap_or_default();
            assert!(trouble.contains("division by zero"), "{trouble}");
            sites.put(0, STAMP, "abcdm").await;
            sites.comes(0, "a2", Some("behind")).await;
            sites.quiet().await;
            for region in [0, 2] {
                assert_eq!(entries(&sites, region).await, [("m1".to_owned(), 1)]);
                assert_eq!(sites.at(region).regions.status().trouble, None);
            }
        });
    }
}
