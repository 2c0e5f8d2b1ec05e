//! Frontend messages: framing and parsing.
//!
//! # Purpose
//! Cuts the byte stream into frames and reads each into a borrowed message. `pgwire`'s own decoder
//! is not used for this direction: it panics on truncated bodies, replaces invalid UTF-8 silently
//! and copies every parameter.
//!
//! # Invariants
//! - Total: any bytes give a message, "more needed", or a [`ProtocolError`]; nothing panics.
//! - A message never reads past its own frame, and a frame with bytes left over is an error.
//!
//! # Limits
//! A frame's length is checked against [`small_or`] before its body is buffered.

use bytes::{Buf as _, BytesMut};

/// Longest frame of the messages that never need to be long, bytes (as in PostgreSQL).
pub const SMALL_FRAME_BYTES: usize = 10_000;

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The type byte names no frontend message.
    #[error(
        "invalid frontend message type {0}; the client does not speak the Postgres protocol, version 3"
    )]
    UnknownType(u8),
    /// The length field is impossible or over the limit.
    #[error(
        "message of type {kind:?} claims {claimed} bytes, at most {limit} are accepted; make it smaller or raise --max-message"
    )]
    Length {
        /// Type byte.
        kind: char,
        /// Bytes claimed.
        claimed: usize,
        /// Bytes accepted.
        limit: usize,
    },
    /// The body does not have the form its type demands.
    #[error("malformed message of type {kind:?}: {reason}; the client or its driver is at fault")]
    Malformed {
        /// Type byte.
        kind: char,
        /// What is wrong.
        reason: &'static str,
    },
}

/// What a Describe or Close names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A prepared statement.
    Statement,
    /// A portal.
    Portal,
}

/// The body of a Bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind<'a> {
    /// Portal to make; empty for the unnamed one.
    pub portal: &'a str,
    /// Statement to bind.
    pub statement: &'a str,
    /// Parameter formats: none (all text), one for all, or one each.
    pub parameter_formats: Vec<i16>,
    /// Parameter values; `None` is NULL.
    pub parameters: Vec<Option<&'a [u8]>>,
    /// Result formats: none (all text), one for all, or one each.
    pub result_formats: Vec<i16>,
}

/// A frontend message after startup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frontend<'a> {
    /// Simple query.
    Query(&'a str),
    /// Parse.
    Parse {
        /// Statement to make; empty for the unnamed one.
        name: &'a str,
        /// Its text.
        query: &'a str,
        /// Parameter types given beforehand; 0 is "infer".
        types: Vec<u32>,
    },
    /// Bind.
    Bind(Bind<'a>),
    /// Describe.
    Describe(Target, &'a str),
    /// Execute.
    Execute {
        /// Portal.
        portal: &'a str,
        /// Most rows to send; 0 is all.
        max_rows: u32,
    },
    /// Close.
    Close(Target, &'a str),
    /// Flush.
    Flush,
    /// Sync.
    Sync,
    /// Terminate.
    Terminate,
    /// A piece of COPY input.
    CopyData(&'a [u8]),
    /// End of COPY input.
    CopyDone,
    /// The client gives its COPY up.
    CopyFail(&'a str),
    /// A password or SASL message, raw.
    Password(&'a [u8]),
    /// A call of a function by its OID, raw.
    FunctionCall(&'a [u8]),
}

/// The limit for a frame of `kind`: `large` for those that carry user data.
#[must_use]
pub fn small_or(kind: u8, large: usize) -> Option<usize> {
    match kind {
        b'Q' | b'P' | b'B' | b'd' | b'F' => Some(large),
        b'D' | b'E' | b'C' | b'H' | b'S' | b'X' | b'c' | b'f' | b'p' => {
            Some(large.min(SMALL_FRAME_BYTES))
        }
        _ => None,
    }
}

/// What the buffer holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Framing {
    /// A whole frame: its type and body, taken off the buffer.
    Frame(u8, BytesMut),
    /// More bytes are needed; the frame under way has this many in all (5 while unknown).
    Need(usize),
}

/// Takes the next frame off `buffer` if it is whole.
///
/// # Errors
/// [`ProtocolError`] when what starts there can become no acceptable frame; the stream is lost.
pub fn next_frame(buffer: &mut BytesMut, limit: usize) -> Result<Framing, ProtocolError> {
    let Some(&kind) = buffer.first() else { return Ok(Framing::Need(5)) };
    let limit = small_or(kind, limit).ok_or(ProtocolError::UnknownType(kind))?;
    let Some(raw) = buffer.get(1..5) else { return Ok(Framing::Need(5)) };
    let claimed = u32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]]) as usize;
    if claimed < 4 || claimed > limit {
        return Err(ProtocolError::Length { kind: char::from(kind), claimed, limit });
    }
    if buffer.len() < claimed + 1 {
        return Ok(Framing::Need(claimed + 1));
    }
    let mut frame = buffer.split_to(claimed + 1);
    frame.advance(5);
    Ok(Framing::Frame(kind, frame))
}

/// Reads the body of a frame.
///
/// # Errors
/// [`ProtocolError::Malformed`]; the stream itself stays in step.
pub fn parse(kind: u8, body: &[u8]) -> Result<Frontend<'_>, ProtocolError> {
    let mut reader = Reader { kind, rest: body };
    let message = match kind {
        b'Q' => Frontend::Query(reader.text()?),
        b'P' => {
            let (name, query) = (reader.text()?, reader.text()?);
            let count = reader.u16()?;
            Frontend::Parse { name, query, types: reader.many(count, 4, Reader::u32)? }
        }
        b'B' => {
            let (portal, statement) = (reader.text()?, reader.text()?);
            let count = reader.u16()?;
            let parameter_formats = reader.many(count, 2, Reader::i16)?;
            let count = reader.u16()?;
            let parameters = reader.many(count, 4, Reader::value)?;
            let count = reader.u16()?;
            let result_formats = reader.many(count, 2, Reader::i16)?;
            Frontend::Bind(Bind {
                portal,
                statement,
                parameter_formats,
                parameters,
                result_formats,
            })
        }
        b'D' => {
            let target = reader.target()?;
            Frontend::Describe(target, reader.text()?)
        }
        b'C' => {
            let target = reader.target()?;
            Frontend::Close(target, reader.text()?)
        }
        b'E' => {
            let portal = reader.text()?;
            // PostgreSQL takes a negative count as "all".
            let max_rows = u32::try_from(reader.u32()? as i32).unwrap_or(0);
            Frontend::Execute { portal, max_rows }
        }
        b'H' => Frontend::Flush,
        b'S' => Frontend::Sync,
        b'X' => Frontend::Terminate,
        b'd' => Frontend::CopyData(reader.all()),
        b'c' => Frontend::CopyDone,
        b'f' => Frontend::CopyFail(reader.text()?),
        b'p' => Frontend::Password(reader.all()),
        b'F' => Frontend::FunctionCall(reader.all()),
        other => return Err(ProtocolError::UnknownType(other)),
    };
    if reader.rest.is_empty() { Ok(message) } else { Err(reader.malformed("bytes are left over")) }
}

/// Reads elements off one body.
struct Reader<'a> {
    kind: u8,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn malformed(&self, reason: &'static str) -> ProtocolError {
        ProtocolError::Malformed { kind: char::from(self.kind), reason }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], ProtocolError> {
        if count > self.rest.len() {
            return Err(self.malformed("it ends early"));
        }
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(taken)
    }

    fn all(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    fn text(&mut self) -> Result<&'a str, ProtocolError> {
        let end = self
            .rest
            .iter()
            .position(|byte| *byte == 0)
            .ok_or_else(|| self.malformed("a text has no end"))?;
        let raw = self.take(end)?;
        self.take(1)?;
        std::str::from_utf8(raw)
            .map_err(|_| self.malformed("invalid byte sequence for encoding \"UTF8\""))
    }

    fn u16(&mut self) -> Result<u16, ProtocolError> {
        let raw = self.take(2)?;
        Ok(u16::from_be_bytes([raw[0], raw[1]]))
    }

    fn i16(&mut self) -> Result<i16, ProtocolError> {
        Ok(self.u16()? as i16)
    }

    fn u32(&mut self) -> Result<u32, ProtocolError> {
        let raw = self.take(4)?;
        Ok(u32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]]))
    }

    fn value(&mut self) -> Result<Option<&'a [u8]>, ProtocolError> {
        match self.u32()? as i32 {
            -1 => Ok(None),
            length => {
                let length =
                    usize::try_from(length).map_err(|_| self.malformed("a negative length"))?;
                self.take(length).map(Some)
            }
        }
    }

    fn target(&mut self) -> Result<Target, ProtocolError> {
        match self.take(1)?[0] {
            b'S' => Ok(Target::Statement),
            b'P' => Ok(Target::Portal),
            _ => Err(self.malformed("it names neither a statement nor a portal")),
        }
    }

    /// `count` elements of at least `least_bytes` each; checked before memory is taken.
    fn many<T>(
        &mut self,
        count: u16,
        least_bytes: usize,
        read: impl Fn(&mut Self) -> Result<T, ProtocolError>,
    ) -> Result<Vec<T>, ProtocolError> {
        let count = usize::from(count);
        if count * least_bytes > self.rest.len() {
            return Err(self.malformed("it ends early"));
        }
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            out.push(read(self)?);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, body: &[u8]) -> BytesMut {
        let mut out = BytesMut::from(&[kind][..]);
        out.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn frame_split_at_every_byte_asks_for_the_rest() {
        let whole = frame(b'Q', b"select 1\0");
        for cut in 0..whole.len() {
            let mut part = BytesMut::from(&whole[..cut]);
            let need = if cut < 5 { 5 } else { whole.len() };
            assert_eq!(next_frame(&mut part, 1000), Ok(Framing::Need(need)));
        }
        let mut buffer = whole;
        let Ok(Framing::Frame(kind, body)) = next_frame(&mut buffer, 1000) else {
            panic!("no frame")
        };
        assert_eq!(parse(kind, &body), Ok(Frontend::Query("select 1")));
        assert!(buffer.is_empty());
    }

    #[test]
    fn frame_longer_than_its_limit_is_refused_before_its_body_comes() {
        let mut buffer = BytesMut::from(&b"Q\x7f\xff\xff\xff"[..]);
        assert!(matches!(next_frame(&mut buffer, 1000), Err(ProtocolError::Length { .. })));
        let mut buffer = BytesMut::from(&b"S\x00\x00\x7f\xff"[..]);
        assert!(matches!(next_frame(&mut buffer, 1 << 20), Err(ProtocolError::Length { .. })));
        let mut buffer = BytesMut::from(&b"S\x00\x00\x00\x03"[..]);
        assert!(matches!(next_frame(&mut buffer, 1 << 20), Err(ProtocolError::Length { .. })));
    }

    #[test]
    fn bind_with_null_and_formats_parses() {
        let mut body = b"p\0s\0".to_vec();
        body.extend_from_slice(&[0, 1, 0, 1]);
        body.extend_from_slice(&[0, 2, 0, 0, 0, 2, 7, 8, 255, 255, 255, 255]);
        body.extend_from_slice(&[0, 2, 0, 0, 0, 1]);
        assert_eq!(
            parse(b'B', &body),
            Ok(Frontend::Bind(Bind {
                portal: "p",
                statement: "s",
                parameter_formats: vec![1],
                parameters: vec![Some(&[7, 8][..]), None],
                result_formats: vec![0, 1],
            }))
        );
        body.push(0);
        assert!(matches!(parse(b'B', &body), Err(ProtocolError::Malformed { .. })));
    }

    #[test]
    fn text_that_is_not_utf8_is_refused() {
        assert!(matches!(parse(b'Q', b"\xff\xfe\0"), Err(ProtocolError::Malformed { .. })));
    }

    proptest! {
        #[test]
        fn parse_of_any_bytes_never_panics(kind in any::<u8>(), body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(kind, &body);
            let mut buffer = BytesMut::from(&body[..]);
            let _ = next_frame(&mut buffer, 1 << 20);
        }

        #[test]
        fn bind_of_any_shape_never_reads_past_its_end(cut in 0usize..40) {
            let mut body = b"p\0s\0".to_vec();
            body.extend_from_slice(&[0, 1, 0, 1, 0, 2, 0, 0, 0, 2, 7, 8, 255, 255, 255, 255, 0, 1, 0, 1]);
            body.truncate(cut);
            prop_assert_eq!(parse(b'B', &body).is_ok(), cut >= 24);
        }
    }
}
