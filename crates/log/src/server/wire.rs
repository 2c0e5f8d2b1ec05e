//! Requests and replies of log servers as bytes, between nodes.
//!
//! ```text
//! request: kind 1 | shard 8 | loglet 8 | token 16 | what belongs to the kind
//! reply:   kind 1 | what belongs to the kind            kind 0: an error, as text
//! ```
//! Numbers are little endian, durations microseconds (8), entries a count (4) and each after its
//! length (4).
//!
//! # Invariants
//! Both ends speak one version, agreed on when they met (`telesto_net`). What is not known is
//! refused, never guessed.
//!
//! # On failure
//! Bytes that do not fit are refused with what does not fit. An error of the other side arrives as
//! [`Error::Unavailable`] with its text: whatever failed there, from here it is a server that could
//! not answer.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use telesto_common::{Incarnation, Lsn, ShardId, WriterToken};

use super::protocol::{LogletKey, Reply, Request, Terms};
use crate::codec::cursor::{Cursor, Malformed};
use crate::error::{Error, Result};

fn put_key(out: &mut BytesMut, key: &LogletKey) {
    out.put_u64_le(key.shard.0);
    out.put_u64_le(key.loglet);
    out.put_slice(&key.token.to_bytes());
}

fn take_key(cursor: &mut Cursor) -> std::result::Result<LogletKey, Malformed> {
    Ok(LogletKey {
        shard: ShardId(cursor.u64()?),
        loglet: cursor.u64()?,
        token: WriterToken::from_bytes(cursor.array16()?),
    })
}

fn put_time(out: &mut BytesMut, time: Duration) {
    out.put_u64_le(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
}

fn put_entries(out: &mut BytesMut, entries: &[Bytes]) {
    out.put_u32_le(entries.len() as u32);
    for entry in entries {
        out.put_u32_le(entry.len() as u32);
        out.put_slice(entry);
    }
}

fn take_entries(cursor: &mut Cursor) -> std::result::Result<Vec<Bytes>, Malformed> {
    let count = cursor.u32()? as usize;
    cursor.strings(count)
}

fn put_terms(out: &mut BytesMut, terms: &Terms) {
    out.put_slice(&terms.holder.to_bytes());
    put_time(out, terms.lease);
    out.put_u64_le(terms.committed.0);
}

fn take_terms(cursor: &mut Cursor) -> std::result::Result<Terms, Malformed> {
    Ok(Terms {
        holder: WriterToken::from_bytes(cursor.array16()?),
        lease: Duration::from_micros(cursor.u64()?),
        committed: Lsn(cursor.u64()?),
    })
}

/// `None` as a zero.
fn put_option<T>(out: &mut BytesMut, value: Option<T>, put: impl FnOnce(&mut BytesMut, T)) {
    out.put_u8(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

fn take_bool(cursor: &mut Cursor) -> std::result::Result<bool, Malformed> {
    match cursor.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("{other} is neither yes nor no")),
    }
}

fn take_option<T>(
    cursor: &mut Cursor,
    take: impl FnOnce(&mut Cursor) -> std::result::Result<T, Malformed>,
) -> std::result::Result<Option<T>, Malformed> {
    Ok(if take_bool(cursor)? { Some(take(cursor)?) } else { None })
}

/// The bytes of a request.
pub fn encode_request(request: &Request) -> Bytes {
    let mut out = BytesMut::new();
    let mut head = |kind: u8, key: &LogletKey| {
        out.put_u8(kind);
        put_key(&mut out, key);
    };
    match request {
        Request::Create { key, start, server } => {
            head(1, key);
            out.put_u64_le(start.0);
            put_option(&mut out, *server, |out, server| out.put_u64_le(server.0));
        }
        Request::Store { key, first, entries, repair, terms } => {
            head(2, key);
            out.put_u64_le(first.0);
            out.put_u8(u8::from(*repair));
            put_option(&mut out, terms.as_ref(), put_terms);
            put_entries(&mut out, entries);
        }
        Request::Seal { key, holder } => {
            head(3, key);
            put_option(&mut out, *holder, |out, holder| out.put_slice(&holder.to_bytes()));
        }
        Request::Confirm { key, terms } => {
            head(4, key);
            put_terms(&mut out, terms);
        }
        Request::Follow { key, from, max_bytes, wait } => {
            head(5, key);
            out.put_u64_le(from.0);
            out.put_u64_le(*max_bytes as u64);
            put_time(&mut out, *wait);
        }
        Request::Skip { key, to } => {
            head(6, key);
            out.put_u64_le(to.0);
        }
        Request::Read { key, from, max_bytes } => {
            head(7, key);
            out.put_u64_le(from.0);
            out.put_u64_le(*max_bytes as u64);
        }
        Request::Tail { key } => head(8, key),
        Request::Release { key, below } => {
            head(9, key);
            out.put_u64_le(below.0);
        }
        Request::Remove { key, over } => {
            head(10, key);
            out.put_u8(u8::from(*over));
        }
        Request::Identify { shard } => {
            head(11, &LogletKey { shard: *shard, loglet: 0, token: WriterToken(0) });
        }
    }
    out.freeze()
}

/// Reads a request.
pub fn decode_request(bytes: Bytes) -> std::result::Result<Request, Malformed> {
    let mut cursor = Cursor::new(bytes);
    let kind = cursor.u8()?;
    let key = take_key(&mut cursor)?;
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let request = match kind {
        1 => {
            let start = Lsn(cursor.u64()?);
            let server = take_option(&mut cursor, |c| Ok(Incarnation(c.u64()?)))?;
            Request::Create { key, start, server }
        }
        2 => {
            let first = Lsn(cursor.u64()?);
            let repair = take_bool(&mut cursor)?;
            let terms = take_option(&mut cursor, take_terms)?;
            Request::Store { key, first, entries: take_entries(&mut cursor)?, repair, terms }
        }
        3 => {
            let holder = take_option(&mut cursor, |c| Ok(WriterToken::from_bytes(c.array16()?)))?;
            Request::Seal { key, holder }
        }
        4 => Request::Confirm { key, terms: take_terms(&mut cursor)? },
        5 => Request::Follow {
            key,
            from: Lsn(cursor.u64()?),
            max_bytes: size(cursor.u64()?),
            wait: Duration::from_micros(cursor.u64()?),
        },
        6 => Request::Skip { key, to: Lsn(cursor.u64()?) },
        7 => {
            let from = Lsn(cursor.u64()?);
            Request::Read { key, from, max_bytes: size(cursor.u64()?) }
        }
        8 => Request::Tail { key },
        9 => Request::Release { key, below: Lsn(cursor.u64()?) },
        10 => Request::Remove { key, over: take_bool(&mut cursor)? },
        11 => Request::Identify { shard: key.shard },
        kind => return Err(format!("a request of kind {kind} to a log server is not known")),
    };
    cursor.finish()?;
    Ok(request)
}

/// The bytes of an answer.
pub fn encode_reply(reply: &Result<Reply>) -> Bytes {
    let mut out = BytesMut::new();
    match reply {
        Err(error) => {
            out.put_u8(0);
            out.put_slice(error.to_string().as_bytes());
        }
        Ok(Reply::Done) => out.put_u8(1),
        Ok(Reply::Stored { next, leased }) => {
            out.put_u8(2);
            out.put_u64_le(next.0);
            out.put_u8(u8::from(*leased));
        }
        Ok(Reply::Refused { next, sealed }) => {
            out.put_u8(3);
            out.put_u64_le(next.0);
            out.put_u8(u8::from(*sealed));
        }
        Ok(Reply::Tail { first, next, sealed, committed, leased, doubtful }) => {
            out.put_u8(4);
            out.put_u64_le(first.0);
            out.put_u64_le(next.0);
            out.put_u64_le(committed.0);
            for flag in [sealed, leased, doubtful] {
                out.put_u8(u8::from(*flag));
            }
        }
        Ok(Reply::Followed { entries, committed, sealed }) => {
            out.put_u8(5);
            out.put_u64_le(committed.0);
            out.put_u8(u8::from(*sealed));
            put_entries(&mut out, entries);
        }
        Ok(Reply::Server { incarnation }) => {
            out.put_u8(6);
            out.put_u64_le(incarnation.0);
        }
        Ok(Reply::Entries(entries)) => {
            out.put_u8(7);
            put_entries(&mut out, entries);
        }
        Ok(Reply::Unknown) => out.put_u8(8),
    }
    out.freeze()
}

/// Reads an answer of the server at `peer`.
pub fn decode_reply(shard: ShardId, peer: &str, bytes: Bytes) -> Result<Reply> {
    let unavailable = |reason| Error::Unavailable { shard, reason };
    let mut cursor = Cursor::new(bytes);
    let mut parse = || -> std::result::Result<Result<Reply>, Malformed> {
        let reply = match cursor.u8()? {
            0 => {
                let text = cursor.take(cursor.remaining())?;
                let text = String::from_utf8_lossy(&text).into_owned();
                return Ok(Err(unavailable(format!("log server at {peer}: {text}"))));
            }
            1 => Reply::Done,
            2 => Reply::Stored { next: Lsn(cursor.u64()?), leased: take_bool(&mut cursor)? },
            3 => Reply::Refused { next: Lsn(cursor.u64()?), sealed: take_bool(&mut cursor)? },
            4 => {
                let (first, next) = (Lsn(cursor.u64()?), Lsn(cursor.u64()?));
                let committed = Lsn(cursor.u64()?);
                let sealed = take_bool(&mut cursor)?;
                let leased = take_bool(&mut cursor)?;
                let doubtful = take_bool(&mut cursor)?;
                Reply::Tail { first, next, sealed, committed, leased, doubtful }
            }
            5 => {
                let committed = Lsn(cursor.u64()?);
                let sealed = take_bool(&mut cursor)?;
                Reply::Followed { entries: take_entries(&mut cursor)?, committed, sealed }
            }
            6 => Reply::Server { incarnation: Incarnation(cursor.u64()?) },
            7 => Reply::Entries(take_entries(&mut cursor)?),
            8 => Reply::Unknown,
            kind => return Err(format!("an answer of kind {kind} is not known")),
        };
        cursor.clone().finish()?;
        Ok(Ok(reply))
    };
    parse().unwrap_or_else(|reason| {
        Err(unavailable(format!("the log server at {peer} answered what is no answer: {reason}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: LogletKey = LogletKey { shard: ShardId(3), loglet: 9, token: WriterToken(77) };

    fn requests() -> Vec<Request> {
        let key = KEY;
        let terms =
            Terms { holder: WriterToken(5), lease: Duration::from_millis(500), committed: Lsn(11) };
        let entries = vec![Bytes::from_static(b"one"), Bytes::new()];
        let wait = Duration::from_millis(700);
        vec![
            Request::Create { key, start: Lsn(4), server: Some(Incarnation(8)) },
            Request::Create { key, start: Lsn(4), server: None },
            Request::Store { key, first: Lsn(5), entries, repair: false, terms: Some(terms) },
            Request::Store { key, first: Lsn(5), entries: vec![], repair: true, terms: None },
            Request::Seal { key, holder: Some(WriterToken(6)) },
            Request::Seal { key, holder: None },
            Request::Confirm { key, terms },
            Request::Follow { key, from: Lsn(7), max_bytes: 99, wait },
            Request::Skip { key, to: Lsn(50) },
            Request::Read { key, from: Lsn(7), max_bytes: 99 },
            Request::Tail { key },
            Request::Release { key, below: Lsn(6) },
            Request::Remove { key, over: true },
            Request::Identify { shard: key.shard },
        ]
    }

    #[test]
    fn requests_round_trip_and_cut_or_longer_ones_are_refused() {
        for request in requests() {
            let bytes = encode_request(&request);
            assert_eq!(decode_request(bytes.clone()), Ok(request.clone()));
            for cut in 0..bytes.len() {
                assert!(decode_request(bytes.slice(..cut)).is_err(), "{request:?} cut at {cut}");
            }
            let longer = [&bytes[..], b"x"].concat();
            assert!(decode_request(longer.into()).is_err(), "{request:?}");
        }
    }

    #[test]
    fn replies_round_trip_and_what_is_no_reply_is_an_error() {
        let entries = vec![Bytes::from_static(b"one"), Bytes::new()];
        for reply in [
            Reply::Done,
            Reply::Stored { next: Lsn(1), leased: true },
            Reply::Refused { next: Lsn(2), sealed: true },
            Reply::Tail {
                first: Lsn(1),
                next: Lsn(2),
                sealed: false,
                committed: Lsn(3),
                leased: true,
                doubtful: true,
            },
            Reply::Followed { entries: entries.clone(), committed: Lsn(9), sealed: true },
            Reply::Server { incarnation: Incarnation(4) },
            Reply::Entries(entries),
            Reply::Unknown,
        ] {
            let bytes = encode_reply(&Ok(reply.clone()));
            let read = |bytes| decode_reply(KEY.shard, "b", bytes);
            for cut in 0..bytes.len() {
                assert!(read(bytes.slice(..cut)).is_err(), "{reply:?} cut at {cut}");
            }
            assert_eq!(read(bytes).expect("whole"), reply);
        }
        let error = Error::Closed { shard: KEY.shard };
        let read = decode_reply(KEY.shard, "b", encode_reply(&Err(error)));
        assert!(read.expect_err("an error").to_string().contains("was closed"));
    }
}
