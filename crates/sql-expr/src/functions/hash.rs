//! MD5, SHA-2, hexadecimal and base64, for the SQL functions of those names.
//!
//! MD5 (RFC 1321) is small and fixed; it is here so that the layer needs no further dependency.
//! None guards anything: passwords are the server's affair.
//!
//! # On failure
//! Data may have hundreds of megabytes: the errors are those of the look whether the statement is
//! to end.

use std::sync::LazyLock;

use sha2::Digest;
use telesto_sql_types::error::Result;
use telesto_sql_types::interrupt::{self, Steps};

/// Bytes that are digested between two looks whether the statement is to end.
const PART: usize = 1 << 20;

/// The sines of whole radians, scaled (RFC 1321, section 3.4).
static SINES: LazyLock<[u32; 64]> = LazyLock::new(|| {
    std::array::from_fn(|round| (((round + 1) as f64).sin().abs() * 4_294_967_296.0) as u32)
});

/// MD5, as 32 hexadecimal digits.
pub fn md5_hex(data: &[u8]) -> Result<String> {
    let (sines, mut steps) = (&*SINES, Steps::default());
    const SHIFTS: [u32; 16] = [7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21];
    let mut state: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for block in padded(data).chunks_exact(64) {
        steps.step()?;
        let word = |at: usize| {
            u32::from_le_bytes([
                block[at * 4],
                block[at * 4 + 1],
                block[at * 4 + 2],
                block[at * 4 + 3],
            ])
        };
        let [mut a, mut b, mut c, mut d] = state;
        for round in 0..64_usize {
            let (mix, at) = match round / 16 {
                0 => ((b & c) | (!b & d), round),
                1 => ((d & b) | (!d & c), (5 * round + 1) % 16),
                2 => (b ^ c ^ d, (3 * round + 5) % 16),
                _ => (c ^ (b | !d), (7 * round) % 16),
            };
            let sum = a.wrapping_add(mix).wrapping_add(sines[round]).wrapping_add(word(at));
            (a, d, c) = (d, c, b);
            b = b.wrapping_add(sum.rotate_left(SHIFTS[round / 16 * 4 + round % 4]));
        }
        for (s, v) in state.iter_mut().zip([a, b, c, d]) {
            *s = s.wrapping_add(v);
        }
    }
    hex(&state.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

/// A digest of the SHA-2 family.
pub fn sha2<D: Digest>(data: &[u8]) -> Result<Vec<u8>> {
    let mut digest = D::new();
    for part in data.chunks(PART) {
        interrupt::check()?;
        digest.update(part);
    }
    Ok(digest.finalize().to_vec())
}

/// The message, a one bit, zeros, and its length in bits, to a multiple of 64 bytes.
fn padded(data: &[u8]) -> Vec<u8> {
    let bits = (data.len() as u64).wrapping_mul(8);
    let mut out = data.to_vec();
    out.push(0x80);
    while out.len() % 64 != 56 {
        out.push(0);
    }
    out.extend_from_slice(&bits.to_le_bytes());
    out
}

/// Lower-case hexadecimal.
pub fn hex(data: &[u8]) -> Result<String> {
    let (mut out, mut steps) = (String::with_capacity(data.len() * 2), Steps::default());
    let digit = |digit: u8| char::from(b"0123456789abcdef"[usize::from(digit & 15)]);
    for byte in data {
        steps.step()?;
        out.push(digit(byte >> 4));
        out.push(digit(*byte));
    }
    Ok(out)
}

/// Bytes of hexadecimal text; blanks are skipped; `None` when malformed.
pub fn unhex(text: &str) -> Result<Option<Vec<u8>>> {
    let (mut out, mut high) = (Vec::with_capacity(text.len() / 2), None);
    let mut steps = Steps::default();
    for c in text.chars().filter(|c| !c.is_ascii_whitespace()) {
        steps.step()?;
        let Some(digit) = c.to_digit(16).and_then(|d| u8::try_from(d).ok()) else {
            return Ok(None);
        };
        match high.take() {
            Some(high) => out.push(high << 4 | digit),
            None => high = Some(digit),
        }
    }
    Ok(high.is_none().then_some(out))
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with a line break after 76 characters, as PostgreSQL writes it.
pub fn base64(data: &[u8]) -> Result<String> {
    let mut out = String::with_capacity(data.len() / 3 * 4 + 8);
    let mut steps = Steps::default();
    for (at, chunk) in data.chunks(3).enumerate() {
        steps.step()?;
        if at > 0 && at % 19 == 0 {
            out.push('\n');
        }
        let word =
            chunk.iter().enumerate().fold(0_u32, |w, (i, b)| w | u32::from(*b) << (16 - 8 * i));
        for digit in 0..4 {
            if digit <= chunk.len() {
                out.push(char::from(BASE64[(word >> (18 - 6 * digit)) as usize & 63]));
            } else {
                out.push('=');
            }
        }
    }
    Ok(out)
}

/// Bytes of base64 text; white space is skipped; `None` when malformed.
pub fn unbase64(text: &str) -> Result<Option<Vec<u8>>> {
    let clean: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    if !clean.len().is_multiple_of(4) {
        return Ok(None);
    }
    let mut steps = Steps::default();
    let mut out = Vec::with_capacity(clean.len() / 4 * 3);
    let blocks = clean.len() / 4;
    for (at, block) in clean.chunks_exact(4).enumerate() {
        steps.step()?;
        let pad = block.iter().rev().take_while(|b| **b == b'=').count();
        if pad > 2 || (pad > 0 && at + 1 != blocks) {
            return Ok(None);
        }
        let mut word = 0_u32;
        for byte in &block[..4 - pad] {
            let Some(digit) = BASE64.iter().position(|b| b == byte) else { return Ok(None) };
            word = word << 6 | digit as u32;
        }
        word <<= 6 * pad;
        out.extend_from_slice(&word.to_be_bytes()[1..4 - pad]);
    }
    Ok(Some(out))
}

#[cfg(test)]
mod tests {
    use sha2::Sha256;

    use super::*;

    #[test]
    fn digests_of_published_messages_are_the_published_ones() {
        assert_eq!(md5_hex(b"").unwrap(), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(md5_hex(b"message digest").unwrap(), "f96b697d7cb7938d525a2f31aaf161d0");
        assert_eq!(
            hex(&sha2::<Sha256>(b"abc").unwrap()).unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let long = vec![b'a'; 200];
        assert_eq!(md5_hex(&long).unwrap(), "887f30b43b2867f4a9accceee7d16e6c");
    }

    #[test]
    fn base64_and_hex_round_trip_every_length() {
        for length in 0..130_usize {
            let data: Vec<u8> = (0..length).map(|i| (i * 37 % 256) as u8).collect();
            assert_eq!(unbase64(&base64(&data).unwrap()).unwrap(), Some(data.clone()));
            assert_eq!(unhex(&hex(&data).unwrap()).unwrap(), Some(data));
        }
        assert_eq!(unbase64("ab=c").unwrap(), None);
        assert_eq!(unhex("abc").unwrap(), None);
    }
}
