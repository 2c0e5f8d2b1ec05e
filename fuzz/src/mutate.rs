//! Changes inputs at random, without looking at what code they reach.
//!
//! # Invariants
//! The same generator state gives the same changes. An input stays below [`MAX_BYTES`].

use rand::Rng;
use rand::seq::IndexedRandom as _;

/// Longest input, bytes.
pub const MAX_BYTES: usize = 4096;

const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    0x7FFF_FFFF_FFFF_FFFF,
    u64::MAX,
];

/// A changed copy of `input`; `others` give pieces to mix in, `words` pieces to insert.
pub fn mutate(rng: &mut impl Rng, input: &[u8], others: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut out = input.to_vec();
    // Mostly one change: a good input is worth staying close to.
    for _ in 0..1 + rng.random_range(0..4_u32).saturating_sub(1) * rng.random_range(0..3) {
        change(rng, &mut out, others, words);
    }
    out.truncate(MAX_BYTES);
    out
}

fn change(rng: &mut impl Rng, out: &mut Vec<u8>, others: &[Vec<u8>], words: &[&str]) {
    let at = rng.random_range(0..=out.len());
    let span = |rng: &mut dyn rand::RngCore, length: usize| {
        let from = (rng.next_u32() as usize) % (length + 1);
        let most = (length - from).min(64);
        from..from + if most == 0 { 0 } else { rng.next_u32() as usize % (most + 1) }
    };
    match rng.random_range(0..10_u32) {
        0 if !out.is_empty() => {
            let at = at.min(out.len() - 1);
            out[at] ^= 1 << rng.random_range(0..8);
        }
        1 if !out.is_empty() => {
            let at = at.min(out.len() - 1);
            out[at] = rng.random();
        }
        2 => {
            // A number that is some limit, as a field of some width and order.
            let number =
                NUMBERS.choose(rng).copied().unwrap_or(0).wrapping_add(rng.random_range(0..3));
            let width = [1, 2, 4, 8][rng.random_range(0..4)];
            let big = number.to_be_bytes();
            let little = number.to_le_bytes();
            let field = if rng.random() { &big[8 - width..] } else { &little[..width] };
            let end = (at + width).min(out.len());
            out.splice(at..if rng.random() { end } else { at }, field.iter().copied());
        }
        3 => {
            let range = span(rng, out.len());
            out.drain(range);
        }
        4 => {
            let piece = out[span(rng, out.len())].to_vec();
            let times = if rng.random_range(0..20) == 0 { rng.random_range(1..200) } else { 1 };
            let room = MAX_BYTES.saturating_sub(out.len());
            let piece = piece.repeat(times);
            out.splice(at..at, piece.into_iter().take(room));
        }
        5 => out.truncate(at),
        6 | 7 if !words.is_empty() => {
            let word = words.choose(rng).copied().unwrap_or_default();
            let end = if rng.random() { at } else { (at + word.len()).min(out.len()) };
            out.splice(at..end, word.bytes());
        }
        8 => {
            if let Some(other) = others.choose(rng) {
                let piece = other[span(rng, other.len())].to_vec();
                let end = if rng.random() { at } else { (at + piece.len()).min(out.len()) };
                out.splice(at..end, piece);
            }
        }
        _ => {
            let count = rng.random_range(1..9);
            let noise: Vec<u8> = (0..count).map(|_| rng.random()).collect();
            out.splice(at..at, noise);
        }
    }
}
