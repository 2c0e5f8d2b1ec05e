//! Session tokens: what a session has seen, as one label, signed.
//!
//! # Invariants
//! - Constant size: [`TOKEN_BYTES`], whatever the session did and however many regions there are.
//! - Only who has the deployment's secret can make one: a made-up time would let a client move a
//!   region's clock.
//!
//! # On failure
//! [`Error::Token`] says what is wrong; nothing was done.
//!
//! # Limits
//! Tokens do not expire; a region that has what a token stands for goes on with it at once. The
//! signature is BLAKE3's keyed mode (a MAC as HMAC is), cut to 16 bytes.

use std::fmt::Write as _;

use telesto_common::{Label, RegionId, Timestamp};

use crate::error::{Error, Result};

/// Bytes of a token; its text form has twice as many characters.
pub const TOKEN_BYTES: usize = 1 + 2 + 8 + 16;
const VERSION: u8 = 1;
const SIGNED_BYTES: usize = 1 + 2 + 8;

fn signature(secret: &[u8; 32], deployment: u128, signed: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(b"telesto session token");
    hasher.update(&deployment.to_le_bytes());
    hasher.update(signed);
    hasher.finalize()
}

/// The token of a session that has seen everything of `source` up to `at`.
pub(crate) fn sign(secret: &[u8; 32], deployment: u128, source: RegionId, at: Timestamp) -> String {
    let mut bytes = Vec::with_capacity(TOKEN_BYTES);
    bytes.push(VERSION);
    bytes.extend_from_slice(&source.0.to_be_bytes());
    bytes.extend_from_slice(&at.0.to_be_bytes());
    let mac = signature(secret, deployment, &bytes);
    bytes.extend_from_slice(&mac.as_bytes()[..16]);
    bytes.iter().fold(String::with_capacity(TOKEN_BYTES * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What a token stands for.
pub(crate) fn verify(secret: &[u8; 32], deployment: u128, token: &str) -> Result<Label> {
    let digits = token.trim().as_bytes();
    if digits.len() != TOKEN_BYTES * 2 {
        return Err(Error::Token("it has another length"));
    }
    let mut bytes = [0_u8; TOKEN_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok();
        *byte = pair
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
            .ok_or(Error::Token("it is not hexadecimal"))?;
    }
    let (signed, mac) = bytes.split_at(SIGNED_BYTES);
    let mut expected = [0_u8; 16];
    expected.copy_from_slice(&signature(secret, deployment, signed).as_bytes()[..16]);
    // Every byte is looked at, so that the time taken tells nothing of where they differ.
    let differs = expected.iter().zip(mac).fold(0, |all, (one, other)| all | (one ^ other));
    if differs != 0 {
        return Err(Error::Token("another deployment signed it, or it was changed"));
    }
    if signed[0] != VERSION {
        return Err(Error::Token("its version is not known here; upgrade this node"));
    }
    let source = RegionId(u16::from_be_bytes([signed[1], signed[2]]));
    let mut at = [0; 8];
    at.copy_from_slice(&signed[3..]);
    Ok(Label::update(source, Timestamp(u64::from_be_bytes(at))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_read_back_and_any_change_of_it_is_refused() {
        let secret = [7; 32];
        let token = sign(&secret, 5, RegionId(3), Timestamp(99));
        assert_eq!(token.len(), TOKEN_BYTES * 2);
        let label = verify(&secret, 5, &token).expect("its own");
        assert_eq!((label.source, label.timestamp), (RegionId(3), Timestamp(99)));
        assert!(verify(&secret, 6, &token).is_err(), "another deployment");
        assert!(verify(&[8; 32], 5, &token).is_err(), "another secret");
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).expect("digits");
            assert!(verify(&secret, 5, &changed).is_err(), "changed at {at}");
        }
        assert!(verify(&secret, 5, "").is_err());
        assert!(verify(&secret, 5, &"é".repeat(27)).is_err());
    }
}
