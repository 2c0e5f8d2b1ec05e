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
//! Each piece of a list is of a snapshot of its own. Deleted keys are those that the log still has.

use bytes::Bytes;
use telesto_common::RegionId;
use telesto_common::key::KeyRange;
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

/// Whether what is known of `of` here does not grow any more. A region that asks for itself sends nothing meanwhile.
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
        Place::Deleted(after) => {
            let ranges = ranges_of(shared, to).await?;
            let mut keys = shared.deleted(&ranges, shared.engine.applied().0).await?;
            keys.retain(|key| after.is_empty() || *key > after);
            keys.truncate(PIECE);
            match keys.last().cloned() {
                Some(last) => Ok((Place::Deleted(last), rows_of(shared, of, keys).await?)),
                None => Ok((Place::Waiting(0), Vec::new())),
            }
        }
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

/// Those of `keys` that `of` wrote last, with their labels; where columns merge, what it has written of them.
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
