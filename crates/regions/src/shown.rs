//! What a node shows of its region's streams, as bytes for the region's other nodes: the tables
//! `telesto_regions`, `telesto_links`, `telesto_conflicts`.
//!
//! # Invariants
//! What is put is taken as it was, to the microsecond.
//!
//! # On failure
//! Bytes that are no such answer are refused; a count that is not there takes no memory.

use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_string, put_varint};
use telesto_common::{RegionId, Timestamp};
use telesto_txn::regions::{ConflictView, LinkView, RegionView, RegionsView, TreeView};

/// Which of them is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Regions,
    Links,
    Conflicts,
}

impl Shown {
    pub fn number(self) -> u8 {
        match self {
            Self::Regions => 1,
            Self::Links => 2,
            Self::Conflicts => 3,
        }
    }

    pub fn of_number(number: u8) -> Result<Self, Malformed> {
        match number {
            1 => Ok(Self::Regions),
            2 => Ok(Self::Links),
            3 => Ok(Self::Conflicts),
            other => Err(format!("what is shown under number {other} is not known")),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn text(cursor: &mut Cursor) -> Result<String, Malformed> {
    Ok(String::from_utf8_lossy(&cursor.string()?).into_owned())
}

fn put_text(out: &mut BytesMut, text: Option<&str>) {
    out.put_u8(u8::from(text.is_some()));
    text.iter().for_each(|text| put_string(out, text.as_bytes()));
}

fn take_text(cursor: &mut Cursor) -> Result<Option<String>, Malformed> {
    Ok(if cursor.u8()? == 0 { None } else { Some(text(cursor)?) })
}

fn put_time(out: &mut BytesMut, time: Option<Duration>) {
    out.put_u8(u8::from(time.is_some()));
    time.iter().for_each(|time| put_varint(out, micros(*time)));
}

fn take_time(cursor: &mut Cursor) -> Result<Option<Duration>, Malformed> {
    let known = cursor.u8()? != 0;
    Ok(if known { Some(Duration::from_micros(cursor.varint()?)) } else { None })
}

pub(crate) fn put_regions(out: &mut BytesMut, view: &RegionsView) {
    out.put_u16_le(view.me.0);
    put_string(out, view.name.as_bytes());
    put_string(out, view.plane.as_bytes());
    put_varint(out, view.tree.epoch);
    put_string(out, view.tree.state.as_bytes());
    put_varint(out, view.tree.by_label);
    put_varint(out, view.tree.by_past);
    put_text(out, view.tree.trouble.as_deref());
    put_varint(out, view.conflicts);
    put_text(out, view.trouble.as_deref());
    put_varint(out, view.peers.len() as u64);
    for peer in &view.peers {
        out.put_u16_le(peer.id.0);
        put_string(out, peer.name.as_bytes());
        put_string(out, peer.address.as_bytes());
        out.put_u8(u8::from(peer.connected));
        out.put_u8(u8::from(peer.filling));
        for number in [peer.behind, peer.sent, peer.sent_bytes, peer.applied, peer.waiting as u64] {
            put_varint(out, number);
        }
        out.put_u64_le(peer.passed.0);
        put_varint(out, micros(peer.visible_after));
        put_text(out, peer.trouble.as_deref());
    }
}

pub(crate) fn take_regions(cursor: &mut Cursor) -> Result<RegionsView, Malformed> {
    let mut view = RegionsView {
        me: RegionId(cursor.u16()?),
        name: text(cursor)?,
        plane: text(cursor)?.into(),
        tree: TreeView {
            epoch: cursor.varint()?,
            state: text(cursor)?.into(),
            by_label: cursor.varint()?,
            by_past: cursor.varint()?,
            trouble: take_text(cursor)?,
        },
        conflicts: cursor.varint()?,
        trouble: take_text(cursor)?,
        peers: Vec::new(),
    };
    for _ in 0..cursor.count(21)? {
        view.peers.push(RegionView {
            id: RegionId(cursor.u16()?),
            name: text(cursor)?,
            address: text(cursor)?,
            connected: cursor.u8()? != 0,
            filling: cursor.u8()? != 0,
            behind: cursor.varint()?,
            sent: cursor.varint()?,
            sent_bytes: cursor.varint()?,
            applied: cursor.varint()?,
            waiting: usize::try_from(cursor.varint()?).unwrap_or(usize::MAX),
            passed: Timestamp(cursor.u64()?),
            visible_after: Duration::from_micros(cursor.varint()?),
            trouble: take_text(cursor)?,
        });
    }
    Ok(view)
}

pub(crate) fn put_links(out: &mut BytesMut, links: &[LinkView]) {
    put_varint(out, links.len() as u64);
    for link in links {
        out.put_u16_le(link.from.0);
        out.put_u16_le(link.to.0);
        put_time(out, link.round_trip);
        for number in [link.sent, link.sent_bytes, link.metadata_bytes] {
            put_varint(out, number);
        }
        link.visible.iter().for_each(|time| put_time(out, *time));
        put_varint(out, micros(link.age));
    }
}

pub(crate) fn take_links(cursor: &mut Cursor) -> Result<Vec<LinkView>, Malformed> {
    let count = cursor.count(12)?;
    let mut links = Vec::with_capacity(count);
    for _ in 0..count {
        links.push(LinkView {
            from: RegionId(cursor.u16()?),
            to: RegionId(cursor.u16()?),
            round_trip: take_time(cursor)?,
            sent: cursor.varint()?,
            sent_bytes: cursor.varint()?,
            metadata_bytes: cursor.varint()?,
            visible: [take_time(cursor)?, take_time(cursor)?, take_time(cursor)?],
            age: Duration::from_micros(cursor.varint()?),
        });
    }
    Ok(links)
}

pub(crate) fn put_conflicts(out: &mut BytesMut, conflicts: &[ConflictView]) {
    put_varint(out, conflicts.len() as u64);
    for conflict in conflicts {
        put_string(out, conflict.kind.as_bytes());
        put_string(out, &conflict.key);
        for (at, region) in [conflict.kept, conflict.passed_over] {
            out.put_u64_le(at.0);
            out.put_u16_le(region.0);
        }
    }
}

pub(crate) fn take_conflicts(cursor: &mut Cursor) -> Result<Vec<ConflictView>, Malformed> {
    let count = cursor.count(22)?;
    let mut conflicts = Vec::with_capacity(count);
    for _ in 0..count {
        conflicts.push(ConflictView {
            kind: text(cursor)?.into(),
            key: cursor.string()?,
            kept: (Timestamp(cursor.u64()?), RegionId(cursor.u16()?)),
            passed_over: (Timestamp(cursor.u64()?), RegionId(cursor.u16()?)),
        });
    }
    Ok(conflicts)
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;

    use super::*;

    /// One with something in each place, of these.
    pub(crate) fn view(number: u64, text: &str) -> RegionsView {
        let time = Duration::from_micros(number);
        let some = (number.is_multiple_of(2)).then(|| text.to_owned());
        let peer = RegionView {
            id: RegionId(1),
            name: text.to_owned(),
            address: "b:2".to_owned(),
            connected: number.is_multiple_of(2),
            filling: number.is_multiple_of(3),
            behind: number,
            sent: 5,
            sent_bytes: 6,
            applied: 7,
            waiting: 8,
            passed: Timestamp(number),
            visible_after: time,
            trouble: some.clone(),
        };
        RegionsView {
            me: RegionId(3),
            name: text.to_owned(),
            plane: "tree".into(),
            tree: TreeView {
                epoch: number,
                state: "late".into(),
                by_label: 3,
                by_past: 4,
                trouble: some.clone(),
            },
            peers: vec![peer.clone(), RegionView { id: RegionId(2), ..peer }],
            conflicts: 9,
            trouble: some,
        }
    }

    pub(crate) fn link(number: u64) -> LinkView {
        let time = Some(Duration::from_micros(number));
        LinkView {
            from: RegionId(1),
            to: RegionId(2),
            round_trip: time,
            sent: number,
            sent_bytes: 3,
            metadata_bytes: 2,
            visible: [None, time, time],
            age: Duration::from_micros(number),
        }
    }

    pub(crate) fn conflict(number: u64, key: &Bytes) -> ConflictView {
        ConflictView {
            kind: "update_deleted".into(),
            key: key.clone(),
            kept: (Timestamp(number), RegionId(2)),
            passed_over: (Timestamp(1), RegionId(1)),
        }
    }
}
