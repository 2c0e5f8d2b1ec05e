//! Answers what regions ask beside the streams.
//!
//! # Invariants
//! - What is said of a lost region is final: nothing of it is taken any more before it is said.
//! - Rows are given to who replicates them by the rules here.
//!
//! # On failure
//! The asker is refused with the reason; nothing was changed.
//!
//! # Limits
//! Each piece of a list is of a snapshot of its own. Deleted keys are those that the log still has;
//! it is read once for all pieces, a stretch for each, however long that takes in all.

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed};
use telesto_common::key::KeyRange;
use telesto_common::{Lsn, RegionId};
use telesto_geo::RegionSet;
use telesto_geo::placement::Rules;
use telesto_shard::Read;
use telesto_txn::Database as _;
use telesto_txn::regions::Share;
use telesto_txn::service::Freshness;

use crate::error::{Error, Result};
use crate::lines::Lines;
use crate::past::Past;
use crate::question::{
    Digest, Known, Labelled, PIECE, Place, Question, Standing, pack_labels, pack_piece,
};
use crate::rows;
use crate::shared::Shared;
use crate::sort_out::read_meant;
use crate::store::Store;
use crate::wire::{Batch, KeyWrite, LabelledRow, Position};

/// Bytes of log read at a time for an answer: small entries are a request of the bucket each.
const LOG_BYTES: usize = 16 << 10;
/// Bytes of rows in an answer, about.
const PIECE_BYTES: usize = 1 << 20;

impl Question {
    /// What region `from` is told.
    pub async fn answer(self, shared: &Shared, from: RegionId) -> Result<Bytes> {
        match self {
            Self::Again { of, above } => {
                let elements = shared.inbox.lock().again(of, from, above);
                let mut past = Past::default();
                elements.iter().for_each(|element| past.absorb(&element.past));
                // Of no place in the log: only its past counts, which is that of all elements.
                let (begin, end) = (Default::default(), Position { past, ..Position::default() });
                let lines = Lines { from: of, to: from };
                Ok(Batch { begin, elements, end }.pack(lines, &Past::default()).body)
            }
            Self::Known { of } => {
                final_of(shared, of, from)?;
                let inbox = shared.inbox.lock();
                let received = inbox.received_counts().into_iter().collect();
                let passed = inbox.passed().get(&of).copied().unwrap_or_default();
                let (past, closed) = (inbox.known_all(), inbox.is_closed(of));
                let heir = shared.config.heirs.get(&of).copied();
                Ok(Known { past, received, passed, closed, heir }.encode())
            }
            Self::Have { of, from: place } => {
                final_of(shared, of, from)?;
                let (next, rows) = have(shared, of, from, place).await?;
                Ok(pack_piece(&next, &rows))
            }
            Self::Anew => {
                shared.inbox.lock().forget(from);
                Ok(Bytes::new())
            }
            Self::Gaps => Ok(crate::gaps::told(shared)),
            Self::Newest { of } => Ok(shared.inbox.lock().newest(of).encode()),
            Self::Close { at } => Ok(shared.close_for(from, at)),
            Self::Standing => {
                let passed = shared.passed.borrow().clone().into_iter().collect();
                // What is behind a snapshot is behind the times that were known before it.
                let snapshot = shared.store.begin(Freshness::Tail, None).await?;
                shared.store.release(&snapshot).await;
                let rules = shared.store.row(rows::placement(), None).await?.unwrap_or_default();
                Ok(Standing { now: snapshot.snapshot, passed, rules }.encode())
            }
            Self::Digest { range } => Ok(digest(shared, range).await?.encode()),
            Self::Labels { range } => {
                let keys = keys_of(&shared.store, range).await?;
                Ok(pack_labels(&labels(shared, keys).await?))
            }
            Self::Rows { seen, at, stamp, wanted } => {
                crate::rows_away::answer(shared, from, (seen, at), stamp, wanted).await
            }
            Self::LabelsOf { keys } => Ok(pack_labels(&labels(shared, keys).await?)),
        }
    }
}

/// Whether what is known of `of` here does not grow any more. A region that asks for itself sends
/// nothing meanwhile.
fn final_of(shared: &Shared, of: RegionId, from: RegionId) -> Result<()> {
    if of == from || !shared.peers.contains_key(&of) {
        return Ok(());
    }
    Err(Error::StillMember { region: of })
}

/// The ranges that `region` replicates by the rules here, definitions first.
async fn ranges_of(shared: &Shared, region: RegionId) -> Result<Vec<KeyRange>> {
    let rules = shared.store.row(rows::placement(), None).await?;
    Ok(crate::fold::rules_of(rules)?.gained(&Rules::default(), region))
}

async fn have(
    shared: &Shared,
    of: RegionId,
    to: RegionId,
    place: Place,
) -> Result<(Place, Vec<LabelledRow>)> {
    let store = &shared.store;
    match place {
        Place::Rows(after) => {
            let mut ranges = ranges_of(shared, to).await?;
            ranges.sort_by(|a, b| a.start.cmp(&b.start));
            let behind = if after.is_empty() { after } else { KeyRange::point(&after).end };
            for mut range in ranges {
                if !range.end.is_empty() && range.end <= behind {
                    continue;
                }
                range.start = range.start.max(behind.clone());
                let keys = keys_of(store, range).await?;
                if let Some(last) = keys.last().cloned() {
                    let rows = rows_of(shared, of, keys).await?;
                    return Ok((Place::Rows(last), rows));
                }
            }
            Ok((Place::Deleted(Bytes::new()), Vec::new()))
        }
        Place::Deleted(place) => deleted(shared, (of, to), Stretch::decode(place)).await,
        Place::Waiting(skipped) => {
            let (mut rows, count) = shared.inbox.lock().waiting_rows(of, skipped, PIECE_BYTES);
            let rules = crate::fold::rules_of(store.row(rows::placement(), None).await?)?;
            let placed = |regions: RegionSet| regions.has(to);
            use telesto_geo::placement::Placement as _;
            rows.retain(|row| placed(rules.regions(&row.write.key)));
            let next = if count == 0 { Place::End } else { Place::Waiting(skipped + count) };
            Ok((next, rows))
        }
        Place::End => Ok((Place::End, Vec::new())),
    }
}

/// Where in this region's log its deletes go on. Who asks gives it back as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    /// Everything before is told.
    from: Lsn,
    /// Of a stretch that has more deletes than a piece: its end, and the key behind which it goes
    /// on.
    part: Option<(Lsn, Bytes)>,
}

impl Stretch {
    /// It begins so, as no key does.
    const MARK: &[u8] = b"\xff\xffdeletes";

    fn encode(&self) -> Bytes {
        let mut out = BytesMut::from(Self::MARK);
        out.put_u64_le(self.from.0);
        if let Some((end, behind)) = &self.part {
            out.put_u64_le(end.0);
            out.put_slice(behind);
        }
        out.freeze()
    }

    /// The beginning of the log, where it is another thing: nothing, or a key, from when this node
    /// was of an older version.
    fn decode(place: Bytes) -> Self {
        let mut cursor = Cursor::new(place);
        let mut read = || -> std::result::Result<Self, Malformed> {
            if cursor.take(Self::MARK.len())? != Self::MARK {
                return Err("another place".to_owned());
            }
            let from = Lsn(cursor.u64()?);
            let part = match cursor.remaining() {
                0 => None,
                _ => {
                    let end = Lsn(cursor.u64()?);
                    Some((end, cursor.take(cursor.remaining())?))
                }
            };
            Ok(Self { from, part })
        };
        read().unwrap_or(Self { from: Lsn(0), part: None })
    }
}

/// Deletes of `of`, of what `to` replicates, in the next stretch of the log.
async fn deleted(
    shared: &Shared,
    (of, to): (RegionId, RegionId),
    Stretch { from, part }: Stretch,
) -> Result<(Place, Vec<LabelledRow>)> {
    let through = part.as_ref().map_or(shared.engine.applied().0, |(end, _)| *end);
    let from = from.max(shared.engine.log().start());
    if from > through {
        return Ok((Place::Waiting(0), Vec::new()));
    }
    let ranges = ranges_of(shared, to).await?;
    // The rest of a stretch is read as far as it went before.
    let until = part.is_none().then(|| shared.env.deadline(shared.config.timeout / 4));
    let (mut keys, end) =
        shared.deleted_between(&ranges, (from, through), LOG_BYTES, until).await?;
    if let Some((_, behind)) = part {
        keys.retain(|key| *key > behind);
    }
    let more = keys.len() > PIECE;
    keys.truncate(PIECE);
    let next = match keys.last().filter(|_| more) {
        Some(last) => Stretch { from, part: Some((end, last.clone())) },
        None => Stretch { from: end.next(), part: None },
    };
    Ok((Place::Deleted(next.encode()), rows_of(shared, of, keys).await?))
}

/// The first keys of a range.
async fn keys_of(store: &Store, range: KeyRange) -> Result<Vec<Bytes>> {
    let snapshot = store.begin(Freshness::Tail, None).await?;
    let found = store.scan(range, snapshot.snapshot).await;
    store.release(&snapshot).await;
    let mut bytes = 0;
    let fits = |row: &telesto_shard::Row| {
        let fits = bytes < PIECE_BYTES;
        bytes += row.key.len() + row.value.len();
        fits
    };
    Ok(found?.into_iter().take_while(fits).map(|row| row.key).take(PIECE).collect())
}

/// Those of `keys` that `of` wrote last, with their labels; where columns merge, what it has
/// written of them.
async fn rows_of(shared: &Shared, of: RegionId, keys: Vec<Bytes>) -> Result<Vec<LabelledRow>> {
    let mut rows = Vec::new();
    let (reads, meaning) = read_meant(&shared.store, &shared.tables, keys.clone()).await?;
    for (key, read) in keys.into_iter().zip(reads) {
        let Read::Found(version) = read else { continue };
        let (at, source) = shared.store.rank(&version);
        let share = match (&meaning, &version.value) {
            (Some(meaning), Some(value)) => {
                meaning.share(&key, (at, source), value, of).map_err(Error::Definitions)?
            }
            _ => Share::Whole,
        };
        match share {
            Share::Whole if source == of => {
                let write = KeyWrite { key, value: version.value };
                rows.push(LabelledRow { source, at, write });
            }
            Share::Whole | Share::Nothing => {}
            Share::This((at, source), value) => {
                rows.push(LabelledRow { source, at, write: KeyWrite { key, value } });
            }
        }
    }
    Ok(rows)
}

/// The labels of `keys`, of those that were ever there.
async fn labels(shared: &Shared, mut keys: Vec<Bytes>) -> Result<Vec<Labelled>> {
    keys.truncate(PIECE);
    let mut labels = Vec::new();
    let (reads, meaning) = read_meant(&shared.store, &shared.tables, keys.clone()).await?;
    for (key, read) in keys.into_iter().zip(reads) {
        let Read::Found(version) = read else { continue };
        let (at, source) = shared.store.rank(&version);
        let mut labelled = Labelled { key, at, source, value: None, merges: false };
        let Some(value) = version.value else {
            labels.push(labelled);
            continue;
        };
        labelled.value = Some(hash_of(&value));
        if let Some(meaning) = &meaning {
            let written = meaning.written_out(&labelled.key, (at, source), &value);
            if let Some((at, source, value)) = written.map_err(Error::Definitions)? {
                let value = Some(hash_of(&value));
                labelled = Labelled { at, source, value, merges: true, ..labelled };
            }
        }
        labels.push(labelled);
    }
    Ok(labels)
}

fn short(hash: &blake3::Hash) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&hash.as_bytes()[..16]);
    short
}

fn hash_of(value: &[u8]) -> [u8; 16] {
    short(&blake3::hash(value))
}

/// What the first rows of a range amount to: keys, labels and values.
async fn digest(shared: &Shared, range: KeyRange) -> Result<Digest> {
    let keys = keys_of(&shared.store, range).await?;
    let through = keys.last().cloned();
    let labels = labels(shared, keys).await?;
    Ok(Digest { through, rows: labels.len() as u64, hash: digest_of(&labels) })
}

/// The same of rows whose labels are known.
pub(crate) fn digest_of(labels: &[Labelled]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&pack_labels(labels));
    short(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretch_is_read_back_and_a_key_of_an_older_version_is_the_beginning() {
        let from = Lsn(77);
        for part in [None, Some((Lsn(99), Bytes::new())), Some((Lsn(99), Bytes::from("key")))] {
            let stretch = Stretch { from, part };
            assert_eq!(Stretch::decode(stretch.encode()), stretch);
        }
        let beginning = Stretch { from: Lsn(0), part: None };
        for other in ["", "\0\0\0\u{1}a key that is longer than any place"] {
            assert_eq!(Stretch::decode(Bytes::from(other)), beginning);
        }
    }
}
