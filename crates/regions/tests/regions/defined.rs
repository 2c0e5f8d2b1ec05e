//! Rows of what is defined later than they come.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_regions::Rules;
use telesto_testkit::World;
use telesto_txn::regions::{Definitions, DerivedEntries, Keeper, Meaning, Standing};
use telesto_txn::{Database as _, Level, ReadFor, TxnOptions};

use crate::harness::{Sites, rule, usual_rules, write};

/// The key that every definition writes: its value has the first letters of the keys that are defined.
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
        _: &Bytes,
        _: Option<&Bytes>,
        _: Option<&Bytes>,
    ) -> Result<DerivedEntries, String> {
        Ok(DerivedEntries::default())
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

/// What a region that lost commits takes back may belong to a table whose definition waits in its inbox, or has not come: it stands before
/// nothing else, and is applied behind that.
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

/// The definition itself waits for something of the lost region that comes by nobody's stream any more, so that it comes only when that is
/// waited for no longer; and what depends on the rows comes behind them still.
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
