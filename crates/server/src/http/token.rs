//! The session token of one region: what a client has seen there, as an opaque text. Between
//! regions a signed one is used ([`super::session`]).
//!
//! # Stored form
//! base64url without padding of: `01` (format), kind (1), source region (2), timestamp (8), target
//! (4), CRC-32 (4) of what precedes it; integers big endian.
//!
//! # Invariants
//! `decode(encode(label)) = label`. A token only ever raises what a read must include, up to the
//! newest commit of the database: a forged one can make its bearer look at the log's tail, or is
//! refused.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use telesto_common::{Label, LabelKind, RegionId, Timestamp};

/// The header that carries the token.
pub const SESSION_HEADER: &str = "telesto-session";

const FORMAT: u8 = 1;
const BODY_BYTES: usize = 16;

/// A label as a token.
#[must_use]
pub fn encode(label: Label) -> String {
    let mut raw = Vec::with_capacity(BODY_BYTES + 4);
    raw.extend_from_slice(&[FORMAT, label.kind as u8]);
    raw.extend_from_slice(&label.source.0.to_be_bytes());
    raw.extend_from_slice(&label.timestamp.0.to_be_bytes());
    raw.extend_from_slice(&label.target.to_be_bytes());
    raw.extend_from_slice(&checksum(&raw).to_be_bytes());
    URL_SAFE_NO_PAD.encode(raw)
}

/// The label in a token; `None` when it is none of ours.
#[must_use]
pub fn decode(token: &str) -> Option<Label> {
    let raw = URL_SAFE_NO_PAD.decode(token.trim()).ok()?;
    let (body, sum) = raw.split_last_chunk::<4>()?;
    if body.len() != BODY_BYTES || body[0] != FORMAT || checksum(body) != u32::from_be_bytes(*sum) {
        return None;
    }
    let kind = match body[1] {
        0 => LabelKind::Update,
        1 => LabelKind::Migration,
        2 => LabelKind::EpochChange,
        _ => return None,
    };
    let source = RegionId(u16::from_be_bytes(body[2..4].try_into().ok()?));
    let timestamp = Timestamp(u64::from_be_bytes(body[4..12].try_into().ok()?));
    let target = u32::from_be_bytes(body[12..16].try_into().ok()?);
    Some(Label { kind, source, timestamp, target })
}

/// CRC-32 (IEEE), bit by bit: sixteen bytes a request need no table.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xEDB8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn checksum_of_the_reference_text_is_the_published_one() {
        assert_eq!(checksum(b"123456789"), 0xCBF4_3926);
    }

    proptest! {
        #[test]
        fn token_of_any_label_round_trips(kind in 0u8..3, source: u16, timestamp: u64, target: u32) {
            let kind = [LabelKind::Update, LabelKind::Migration, LabelKind::EpochChange][usize::from(kind)];
            let label = Label { kind, source: RegionId(source), timestamp: Timestamp(timestamp), target };
            prop_assert_eq!(decode(&encode(label)), Some(label));
        }

        #[test]
        fn token_with_one_character_changed_is_refused(timestamp: u64, at in 0usize..27, to in "[A-Za-z0-9_-]") {
            let token = encode(Label::update(RegionId(1), Timestamp(timestamp)));
            let mut changed = token.clone();
            changed.replace_range(at..=at, &to);
            if changed != token {
                // The last character carries unused bits: equal bytes may be written in two ways.
                prop_assert!(decode(&changed).is_none() || at == 26);
            }
        }

        #[test]
        fn token_of_any_text_never_panics(text in ".{0,60}") {
            let _ = decode(&text);
        }
    }
}
