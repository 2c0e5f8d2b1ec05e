//! Times of a region's log of which commits were lost: a session that has seen something of then
//! must not go on as if it were there.
//!
//! ```text
//! commits   ....ooooo xxx                 ooooo....     x: gone, with a lost disk or in a restored bucket
//!                   │     a gap          │
//!            newest one kept       opened again         a token of a time between the two has seen what is nowhere
//! ```
//! # Invariants
//! - A token's time is that of a commit in its region's log. What is committed after an opening has
//!   a greater time than the opening, so no token of what is there has a time in a gap.
//! - Every start of the streams since all peers were known to stand in this log is a *suspect*:
//!   what a peer shows to be lost was lost at one of them. A suspect alone refuses nothing: mostly
//!   nothing was lost, and other nodes of the region may commit as the streams start.
//!
//! # On failure
//! [`Error::LostWith`] names up to where it is there. A region that is asked for its gaps and does
//! not answer lets the session wait until its deadline; one of an older version keeps none.
//!
//! # Limits
//! What no peer has seen of a loss is not known. [`MOST`] gaps: older ones are joined, with what is
//! between them. A clock that is behind its log as the region opens makes no gap; other regions
//! know of a gap when they know of the incarnation that it began. Conservative: what had reached
//! the region where the session goes on is told to be lost, too.

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_varint};
use telesto_common::{Deadline, RegionId, Timestamp};
use telesto_txn::Reads;
use telesto_txn::service::CommitWrites;

use crate::error::{Error, Result};
use crate::question::{GAPS, Question, unknown};
use crate::rows;
use crate::shared::Shared;
use crate::store::{Store, checked};

const VERSION: u8 = 1;
/// Gaps that are kept, and suspects.
const MOST: usize = 64;

/// Between the newest commit that was kept and the opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub kept: Timestamp,
    pub opened: Timestamp,
}

impl Gap {
    fn has(&self, at: Timestamp) -> bool {
        self.kept < at && at < self.opened
    }
}

/// What a region knows of its own log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps {
    suspects: Vec<Gap>,
    lost: Vec<Gap>,
}

impl Gaps {
    /// What is stored, and this opening.
    pub async fn at_opening(store: &Store, kept: Timestamp) -> Result<Self> {
        let stored = store.row(rows::gaps(), None).await?;
        let mut gaps = match stored {
            Some(stored) => Self::decode(stored).map_err(Error::malformed("gaps of the log"))?,
            None => Self::default(),
        };
        let opened = Timestamp::from_wall_micros(store.env.clock.wall_micros());
        push(&mut gaps.suspects, Gap { kept, opened });
        Ok(gaps)
    }

    /// Up to where the log is there that somebody has seen up to `at`, if not up to there.
    fn lacks(&self, at: Timestamp) -> Option<Timestamp> {
        self.lost.iter().filter(|gap| gap.has(at)).map(|gap| gap.kept).min()
    }

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        for gaps in [&self.suspects, &self.lost] {
            put_varint(&mut out, gaps.len() as u64);
            for gap in gaps {
                out.put_u64_le(gap.kept.0);
                out.put_u64_le(gap.opened.0);
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> std::result::Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let version = cursor.u8()?;
        if version != VERSION {
            return Err(format!("version {version} of them is not known"));
        }
        let mut gaps = Self::default();
        for list in [&mut gaps.suspects, &mut gaps.lost] {
            for _ in 0..cursor.count(16)? {
                let (kept, opened) = (Timestamp(cursor.u64()?), Timestamp(cursor.u64()?));
                list.push(Gap { kept, opened });
            }
        }
        cursor.finish()?;
        Ok(gaps)
    }
}

/// Appends a gap; the oldest two are joined where there are too many.
fn push(gaps: &mut Vec<Gap>, gap: Gap) {
    gaps.push(gap);
    if gaps.len() > MOST {
        let oldest = gaps.remove(0);
        gaps[0].kept = gaps[0].kept.min(oldest.kept);
    }
}

impl Shared {
    /// Keeps that the region goes on without knowing whether it has lost something.
    pub(crate) async fn keep_suspects(&self) -> Result<()> {
        let gaps = self.gaps.lock().clone();
        self.put_gaps(&gaps).await
    }

    /// Nothing was lost but what is known to be.
    pub(crate) async fn clear_suspects(&self) -> Result<()> {
        let gaps = {
            let mut gaps = self.gaps.lock();
            gaps.suspects.clear();
            gaps.clone()
        };
        if self.store.row(rows::gaps(), None).await?.is_some_and(|stored| stored != gaps.encode()) {
            self.put_gaps(&gaps).await?;
        }
        Ok(())
    }

    /// A peer has shown that something was lost; others had heard of times up to `told`.
    pub(crate) async fn keep_gaps(&self, told: Timestamp) -> Result<()> {
        let gaps = {
            let mut gaps = self.gaps.lock();
            for mut suspect in std::mem::take(&mut gaps.suspects) {
                suspect.opened = suspect.opened.max(Timestamp(told.0.saturating_add(1)));
                push(&mut gaps.lost, suspect);
            }
            gaps.clone()
        };
        self.put_gaps(&gaps).await
    }

    async fn put_gaps(&self, gaps: &Gaps) -> Result<()> {
        let row = checked(rows::gaps(), Some(gaps.encode()), Timestamp::MAX);
        let writes = CommitWrites::Inline(vec![row]);
        self.store.commit(writes, Reads::default(), Timestamp::ZERO).await.map(|_| ())
    }

    /// Refuses what somebody has seen up to `seen` of `region`, where that region has lost some of
    /// it.
    pub(crate) async fn check_kept(
        &self,
        region: RegionId,
        seen: Timestamp,
        by: Deadline,
    ) -> Result<()> {
        let lacks = match region == self.config.me {
            true => self.gaps.lock().lacks(seen),
            false => self.gaps_of(region, seen, by).await?.lacks(seen),
        };
        match lacks {
            None => Ok(()),
            Some(passed) => Err(Error::LostWith { region, wanted: seen, passed }),
        }
    }

    /// The gaps of another region, as many as its incarnation that is known here has begun.
    async fn gaps_of(&self, region: RegionId, seen: Timestamp, by: Deadline) -> Result<Gaps> {
        let incarnation = self.inbox.lock().known().incarnation(region);
        if incarnation == 0 {
            return Ok(Gaps::default());
        }
        if let Some((of, gaps)) = self.gaps_elsewhere.lock().get(&region)
            && *of == incarnation
        {
            return Ok(gaps.clone());
        }
        loop {
            let question = Question::Gaps;
            let asked = self.question(region, &question);
            match self.env.within(by, "asking a region what it has lost", asked).await {
                Ok(Ok(answer)) => {
                    let gaps = Gaps::decode(answer);
                    let gaps = gaps.map_err(Error::malformed("another region's gaps"))?;
                    self.gaps_elsewhere.lock().insert(region, (incarnation, gaps.clone()));
                    return Ok(gaps);
                }
                // Any other refusal, as of a region that is about to stop, says nothing of what it
                // has lost.
                Ok(Err(Error::Refused { reason, .. })) if reason.contains(&unknown(GAPS)) => {
                    tracing::warn!(%region, reason, "a region of an older version does not say what it has lost");
                    return Ok(Gaps::default());
                }
                Ok(Err(_)) if !by.passed(self.env.clock.monotonic()) => {
                    self.env.clock.sleep(self.config.beat).await;
                }
                _ => {
                    let passed = self.passed.borrow().get(&region).copied().unwrap_or_default();
                    return Err(self.not_here(region, seen, passed));
                }
            }
        }
    }
}

/// What another region is told.
pub(crate) fn told(shared: &Shared) -> Bytes {
    let lost = shared.gaps.lock().lost.clone();
    Gaps { suspects: Vec::new(), lost }.encode()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(kept: u64, opened: u64) -> Gap {
        Gap { kept: Timestamp(kept), opened: Timestamp(opened) }
    }

    #[test]
    fn what_was_kept_and_what_came_after_is_no_loss() {
        let gaps = Gaps { suspects: vec![gap(50, 60)], lost: vec![gap(10, 20), gap(15, 30)] };
        for at in [0, 10, 30, 50, 55, 60] {
            assert_eq!(gaps.lacks(Timestamp(at)), None, "{at}");
        }
        for (at, kept) in [(11, 10), (19, 10), (20, 15), (29, 15)] {
            assert_eq!(gaps.lacks(Timestamp(at)), Some(Timestamp(kept)), "{at}");
        }
        assert_eq!(Gaps::decode(gaps.encode()), Ok(gaps));
        assert!(Gaps::decode(Bytes::from_static(&[9])).is_err());
    }

    #[test]
    fn oldest_gaps_are_joined_and_nothing_that_was_lost_is_forgotten() {
        let mut gaps = Vec::new();
        for number in 0..MOST as u64 + 3 {
            push(&mut gaps, gap(number * 10, number * 10 + 5));
        }
        assert_eq!(gaps.len(), MOST);
        assert_eq!(gaps[0], gap(0, 35));
    }
}
