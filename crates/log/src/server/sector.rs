//! Sectors and batches: the file format of a log server's segments.
//!
//! # Format
//! A segment is a sequence of 512-byte sectors; a batch is what one write put on disk: one or more
//! whole sectors. Sector *i* of a file:
//!
//! ```text
//! 0..4    CRC-32C of bytes 4..512
//! 4..6    bytes of payload used
//! 6       flags: 1 first of its batch, 2 last, 4 segment header, 8 seal, 16 encrypted
//! 7       zero
//! 8..16   i
//! 16..24  number of the first sector of its batch
//! 24..504 payload, then zeros
//! 504..512 "TELESTO\n"
//! ```
//! # Invariants
//! - An acknowledged sector is never written again: batches are padded to whole sectors.
//! - One batch is under way at a time, so only the last one of a file can be unfinished.
//! - A file may end in zeros: free space, made ahead of the writes.
//!
//! # Torn or damaged
//! A sector is *unwritten* when the file ends in it or its trailer ends in two or more zero bytes
//! (what comes before them as it should be). Every written sector's trailer has eight non-zero
//! bytes, so one changed byte never makes a written sector look unwritten: it stays a written
//! sector with a wrong checksum, which is damage. An unwritten sector is an unfinished write only
//! in the last batch: when any sector of a later batch follows it, it is damage too.

use bytes::{BufMut, Bytes, BytesMut};

/// Bytes of a sector.
pub const SECTOR: usize = 512;
const PAYLOAD_AT: usize = 24;
const TRAILER_AT: usize = 504;
/// Payload bytes of a sector.
pub const PAYLOAD: usize = TRAILER_AT - PAYLOAD_AT;
/// Last bytes of every written sector.
pub const TRAILER: [u8; 8] = *b"TELESTO\n";

/// First sector of its batch.
pub const FIRST: u8 = 1;
/// Last sector of its batch.
pub const LAST: u8 = 2;
/// Its batch is the segment's header.
pub const HEADER: u8 = 4;
/// Its batch seals the loglet.
pub const SEAL: u8 = 8;
/// The payload of its batch is encrypted.
pub const ENCRYPTED: u8 = 16;

/// Encodes a batch whose first sector will be sector `first` of the file.
pub fn encode_batch(first: u64, kind: u8, payload: &[u8]) -> Bytes {
    let count = payload.len().div_ceil(PAYLOAD).max(1);
    let mut out = BytesMut::with_capacity(count * SECTOR);
    for index in 0..count {
        let part = &payload[index * PAYLOAD..payload.len().min((index + 1) * PAYLOAD)];
        let mut flags = kind;
        flags |= if index == 0 { FIRST } else { 0 };
        flags |= if index + 1 == count { LAST } else { 0 };
        let start = out.len();
        out.put_u32_le(0);
        out.put_u16_le(part.len() as u16);
        out.put_u8(flags);
        out.put_u8(0);
        out.put_u64_le(first + index as u64);
        out.put_u64_le(first);
        out.put_slice(part);
        out.put_bytes(0, PAYLOAD - part.len());
        out.put_slice(&TRAILER);
        let checksum = crc32c::crc32c(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
    }
    out.freeze()
}

/// What stands in a sector.
#[derive(Debug, PartialEq, Eq)]
pub enum Sector<'a> {
    /// A whole sector.
    Written { flags: u8, batch: u64, payload: &'a [u8] },
    /// Not written, or not to its end.
    Unwritten,
    /// Written, and changed since.
    Damaged(String),
}

/// Looks at sector `number` of a file; `bytes` is shorter when the file ends in it.
pub fn look(number: u64, bytes: &[u8]) -> Sector<'_> {
    if bytes.len() < SECTOR {
        return Sector::Unwritten;
    }
    let trailer = &bytes[TRAILER_AT..SECTOR];
    let zeros = trailer.iter().rev().take_while(|b| **b == 0).count();
    if zeros >= 2 && trailer[..8 - zeros] == TRAILER[..8 - zeros] {
        return Sector::Unwritten;
    }
    let word = |at: usize| {
        let mut raw = [0; 8];
        raw.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(raw)
    };
    let stored = word(0) as u32;
    let computed = crc32c::crc32c(&bytes[4..SECTOR]);
    let used = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
    if stored != computed {
        Sector::Damaged(format!("checksum {computed:08x}, stored {stored:08x}"))
    } else if trailer != TRAILER || used > PAYLOAD || word(8) != number || word(16) > number {
        Sector::Damaged(format!("it is sector {} of some other file", word(8)))
    } else {
        Sector::Written {
            flags: bytes[6],
            batch: word(16),
            payload: &bytes[PAYLOAD_AT..PAYLOAD_AT + used],
        }
    }
}

/// A whole batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch {
    /// `HEADER`, `SEAL` or 0, with `ENCRYPTED` where it is.
    pub kind: u8,
    /// Number of its first sector.
    pub first: u64,
    /// Sectors.
    pub sectors: u64,
    /// Its payload.
    pub payload: Bytes,
}

/// What comes next in a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A batch.
    Batch(Batch),
    /// The end, cleanly.
    End,
    /// An unfinished write: it was never acknowledged.
    Unfinished,
}

/// Damage: the byte offset and what is wrong.
pub type Damage = (u64, String);

/// Reads the batch that starts at sector `first` of a file with bytes `file`.
///
/// # Errors
/// Damage anywhere in it, or behind an unfinished write.
pub fn next_batch(file: &[u8], first: u64) -> Result<Next, Damage> {
    let at = |number: u64| &file[(number as usize * SECTOR).min(file.len())..];
    let clipped = |number: u64| {
        let rest = at(number);
        &rest[..rest.len().min(SECTOR)]
    };
    if at(first).iter().all(|byte| *byte == 0) {
        // Nothing more, or free space that the file was made to reach into ahead.
        return Ok(Next::End);
    }
    let mut payload = BytesMut::new();
    let mut number = first;
    loop {
        let offset = number * SECTOR as u64;
        match look(number, clipped(number)) {
            Sector::Damaged(reason) => return Err((offset, reason)),
            Sector::Unwritten => return unfinished(file, first, number),
            Sector::Written { flags, batch, payload: part } => {
                if batch != first || (flags & FIRST != 0) != (number == first) {
                    return Err((offset, format!("it belongs to the batch at sector {batch}")));
                }
                payload.put_slice(part);
                number += 1;
                if flags & LAST != 0 {
                    return Ok(Next::Batch(Batch {
                        kind: flags & (HEADER | SEAL | ENCRYPTED),
                        first,
                        sectors: number - first,
                        payload: payload.freeze(),
                    }));
                }
            }
        }
    }
}

/// The batch at `first` is unfinished at sector `number`: nothing of a later batch may follow.
fn unfinished(file: &[u8], first: u64, number: u64) -> Result<Next, Damage> {
    let sectors = (file.len() as u64).div_ceil(SECTOR as u64);
    for later in number..sectors {
        let start = later as usize * SECTOR;
        match look(later, &file[start..file.len().min(start + SECTOR)]) {
            Sector::Damaged(reason) => return Err((start as u64, reason)),
            Sector::Written { batch, .. } if batch != first => {
                return Err((
                    number * SECTOR as u64,
                    "it is empty although later batches follow".into(),
                ));
            }
            Sector::Written { .. } | Sector::Unwritten => {}
        }
    }
    Ok(Next::Unfinished)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn batches_of_any_payloads_round_trip_and_garbage_never_panics(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 1..6),
            garbage in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let mut file = Vec::new();
            for payload in &payloads {
                let first = (file.len() / SECTOR) as u64;
                file.extend_from_slice(&encode_batch(first, 0, payload));
            }
            let mut next = 0;
            for payload in &payloads {
                let Ok(Next::Batch(batch)) = next_batch(&file, next) else { panic!("no batch") };
                prop_assert_eq!(&batch.payload[..], &payload[..]);
                next += batch.sectors;
            }
            prop_assert_eq!(next_batch(&file, next), Ok(Next::End));
            let _ = next_batch(&garbage, 0);
        }
    }

    fn file() -> (Vec<u8>, Vec<u64>) {
        let mut file = encode_batch(0, HEADER, b"header").to_vec();
        let mut starts = vec![0];
        for payload in [&b"one"[..], &[7; 1500], b"", &[0; 481]] {
            let first = (file.len() / SECTOR) as u64;
            starts.push(first);
            file.extend_from_slice(&encode_batch(first, 0, payload));
        }
        (file, starts)
    }

    fn scan(file: &[u8]) -> Result<(Vec<u64>, bool), Damage> {
        let (mut found, mut next) = (Vec::new(), 0);
        loop {
            match next_batch(file, next)? {
                Next::Batch(batch) => {
                    found.push(batch.first);
                    next += batch.sectors;
                }
                Next::End => return Ok((found, false)),
                Next::Unfinished => return Ok((found, true)),
            }
        }
    }

    #[test]
    fn batches_of_every_size_read_back() {
        let (file, starts) = file();
        assert_eq!(scan(&file), Ok((starts, false)));
        let Ok(Next::Batch(batch)) = next_batch(&file, 2) else { panic!("no batch") };
        assert_eq!(&batch.payload[..], &[7; 1500]);
        assert_eq!(batch.sectors, 4);
    }

    #[test]
    fn every_byte_changed_in_any_way_is_damage_never_an_unfinished_write() {
        let (file, _) = file();
        for position in 0..file.len() {
            for change in [0x01_u8, 0x80, 0xFF, file[position]] {
                if change == 0 {
                    continue;
                }
                let mut damaged = file.clone();
                damaged[position] ^= change; // the last change makes the byte zero
                let result = scan(&damaged);
                assert!(result.is_err(), "byte {position} ^ {change:#x}: {result:?}");
            }
        }
    }

    #[test]
    fn file_cut_anywhere_in_the_last_batch_is_an_unfinished_write() {
        let (file, starts) = file();
        let last = *starts.last().expect("some") as usize * SECTOR;
        for end in last + 1..file.len() {
            let (found, unfinished) = scan(&file[..end]).expect("no damage");
            assert_eq!((found.len(), unfinished), (starts.len() - 1, true), "cut at {end}");
        }
    }

    #[test]
    fn sector_zeroed_or_half_written_is_unfinished_in_the_last_batch_and_damage_before() {
        let (file, starts) = file();
        let last = *starts.last().expect("some") as usize;
        for number in 0..file.len() / SECTOR {
            for keep in [0, 1, 24, 300, 505, 510] {
                let mut torn = file.clone();
                torn[number * SECTOR + keep..(number + 1) * SECTOR].fill(0);
                let result = scan(&torn);
                if number >= last {
                    assert_eq!(result, Ok((starts[..starts.len() - 1].to_vec(), true)));
                } else {
                    assert!(result.is_err(), "sector {number} kept {keep}: {result:?}");
                }
            }
        }
    }

    #[test]
    fn zeros_after_the_last_batch_are_free_space() {
        let (mut file, starts) = file();
        file.extend_from_slice(&[0; 4 * SECTOR]);
        assert_eq!(scan(&file), Ok((starts, false)));
    }
}
