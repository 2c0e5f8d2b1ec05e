//! What passes after the hello.
//!
//! ```text
//! 1 request   number 8 | service 2 | microseconds left 8 | body
//! 2 reply     number 8 | body
//! 3 refused   number 8 | reason
//! 4 tick      (the client's, when it has nothing else to say)
//! 5 tock      (the answer)
//! ```
//! # Invariants
//! A deadline travels as the time that is left: clocks of two nodes are never compared.
//!
//! # On failure
//! Anything else is malformed and ends the connection.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed};

/// The longest frame, bytes: the largest entry of a log and a batch of small ones fit.
pub const MAX_FRAME_BYTES: usize = 72 << 20;

/// Which part of a node a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service(pub u16);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Request { number: u64, service: Service, left: Duration, body: Bytes },
    Reply { number: u64, body: Bytes },
    Refused { number: u64, reason: String },
    Tick,
    Tock,
}

impl Frame {
    /// Bytes of a request's frame besides its body.
    pub const OVERHEAD_BYTES: usize = 19;

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Request { number, service, left, body } => {
                out.reserve(Self::OVERHEAD_BYTES + body.len());
                out.put_u8(1);
                out.put_u64_le(*number);
                out.put_u16_le(service.0);
                out.put_u64_le(u64::try_from(left.as_micros()).unwrap_or(u64::MAX));
                out.put_slice(body);
            }
            Self::Reply { number, body } => {
                out.reserve(9 + body.len());
                out.put_u8(2);
                out.put_u64_le(*number);
                out.put_slice(body);
            }
            Self::Refused { number, reason } => {
                out.put_u8(3);
                out.put_u64_le(*number);
                out.put_slice(reason.as_bytes());
            }
            Self::Tick => out.put_u8(4),
            Self::Tock => out.put_u8(5),
        }
        out.freeze()
    }

    /// The frame for the connection that it is fed to, counted as sent. Its length stands before
    /// it, in 4 bytes.
    pub fn sent(&self) -> Bytes {
        let bytes = self.encode();
        metrics::counter!("telesto_net_sent_messages_total").increment(1);
        metrics::counter!("telesto_net_sent_bytes_total").increment(4 + bytes.len() as u64);
        bytes
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        match cursor.u8()? {
            1 => {
                let number = cursor.u64()?;
                let service = Service(cursor.u16()?);
                let left = Duration::from_micros(cursor.u64()?);
                let body = cursor.take(cursor.remaining())?;
                Ok(Self::Request { number, service, left, body })
            }
            2 => {
                let number = cursor.u64()?;
                Ok(Self::Reply { number, body: cursor.take(cursor.remaining())? })
            }
            3 => {
                let number = cursor.u64()?;
                let reason = cursor.take(cursor.remaining())?;
                Ok(Self::Refused { number, reason: String::from_utf8_lossy(&reason).into_owned() })
            }
            4 => cursor.finish().map(|()| Self::Tick),
            5 => cursor.finish().map(|()| Self::Tock),
            kind => Err(format!("a frame of kind {kind} is not known")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn frames_round_trip_and_any_bytes_are_read_or_refused(
            number in any::<u64>(),
            service in any::<u16>(),
            micros in any::<u64>(),
            body in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let bytes = Bytes::from(body.clone());
            let left = Duration::from_micros(micros);
            let reason = String::from_utf8_lossy(&body).into_owned();
            for frame in [
                Frame::Request { number, service: Service(service), left, body: bytes.clone() },
                Frame::Reply { number, body: bytes.clone() },
                Frame::Refused { number, reason },
                Frame::Tick,
                Frame::Tock,
            ] {
                prop_assert_eq!(Frame::decode(frame.encode()), Ok(frame));
            }
            let _ = Frame::decode(bytes);
        }
    }
}
