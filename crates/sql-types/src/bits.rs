//! Bit strings: the values of `bit(n)` and `bit varying(n)`.
//!
//! # Invariants
//! - The first bit is the highest one of the first byte. Bits behind the last one are zero, so that
//!   equal strings have equal bytes.
//! - The order is PostgreSQL's: byte by byte, and where one is the beginning of the other by the
//!   count of bits.
//!
//! # On failure
//! What PostgreSQL answers: 22P02 for digits that are none, 22026 and 22001 for lengths that do not
//! fit, 22011 and 2202E for places outside.
//!
//! # Limits
//! At most [`MAX_BITS`] bits.

use crate::error::{Error, Result, SqlState};
use crate::sql_type::SqlType;

/// The most bits a declared length may ask for, and a value may have.
pub const MAX_BITS: u32 = 83_886_080;

/// A string of bits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BitString {
    bytes: Box<[u8]>,
    length: u32,
}

fn fault(state: SqlState, message: impl Into<String>) -> Error {
    Error::new(state, message)
}

fn too_long() -> Error {
    fault(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        "bit string length exceeds the maximum allowed (83886080)",
    )
}

fn byte_count(length: u32) -> usize {
    length.div_ceil(8) as usize
}

impl BitString {
    /// The first `length` bits of `bytes`, with zeros where there are none.
    ///
    /// # Errors
    /// 54000 when there are too many.
    pub fn new(mut bytes: Vec<u8>, length: usize) -> Result<Self> {
        let length = u32::try_from(length).ok().filter(|n| *n <= MAX_BITS).ok_or_else(too_long)?;
        bytes.resize(byte_count(length), 0);
        if let (Some(last), used @ 1..) = (bytes.last_mut(), length % 8) {
            *last &= 0xFF << (8 - used);
        }
        Ok(Self { bytes: bytes.into(), length })
    }

    /// How many bits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether there is no bit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes; behind the last bit they hold zeros.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads binary digits, also behind `b`, or hexadecimal ones behind `x`.
    ///
    /// # Errors
    /// 22P02 for anything else, 54000 for too many.
    pub fn parse(text: &str) -> Result<Self> {
        let (digits, radix, width, kind) = match text.as_bytes().first() {
            Some(b'x' | b'X') => (&text[1..], 16, 4, "hexadecimal"),
            Some(b'b' | b'B') => (&text[1..], 2, 1, "binary"),
            _ => (text, 2, 1, "binary"),
        };
        let length = digits.len() * width;
        if length > MAX_BITS as usize {
            return Err(too_long());
        }
        let mut bytes = vec![0_u8; length.div_ceil(8)];
        for (at, digit) in digits.chars().enumerate() {
            let value = digit.to_digit(radix).ok_or_else(|| {
                let message = format!("\"{digit}\" is not a valid {kind} digit");
                fault(SqlState::INVALID_TEXT_REPRESENTATION, message)
            })?;
            let from = at * width;
            bytes[from / 8] |= (value as u8) << (8 - width - from % 8);
        }
        Self::new(bytes, length)
    }

    /// The digits.
    #[must_use]
    pub fn text(&self) -> String {
        (0..self.len()).map(|at| if self.bit(at) { '1' } else { '0' }).collect()
    }

    /// The value as a constant is read: `B'…'` with `hex` false, `X'…'` with it.
    ///
    /// # Errors
    /// As [`BitString::parse`].
    pub fn literal(digits: &str, hex: bool) -> Result<Self> {
        Self::parse(&format!("{}{digits}", if hex { 'x' } else { 'b' }))
    }

    fn bit(&self, at: usize) -> bool {
        self.bytes[at / 8] >> (7 - at % 8) & 1 == 1
    }

    /// The value as `ty` holds it: cut, or filled with zeros, when asked for by an explicit cast.
    ///
    /// # Errors
    /// 22026, 22001 when it does not have the length.
    pub fn fitted(&self, ty: &SqlType, explicit: bool) -> Result<Option<Self>> {
        match ty {
            SqlType::Bit(Some(n)) if *n != self.length => {
                if explicit {
                    return Self::new(self.bytes.to_vec(), *n as usize).map(Some);
                }
                Err(fault(
                    SqlState::STRING_LENGTH_MISMATCH,
                    format!("bit string length {} does not match type {ty}", self.length),
                ))
            }
            SqlType::Varbit(Some(n)) if *n < self.length => {
                if explicit {
                    return Self::new(self.bytes.to_vec(), *n as usize).map(Some);
                }
                Err(fault(
                    SqlState::STRING_RIGHT_TRUNCATION,
                    format!("bit string too long for type {ty}"),
                ))
            }
            _ => Ok(None),
        }
    }

    /// The last `length` bits of a number in two's complement, filled with its sign.
    ///
    /// # Errors
    /// 54000.
    pub fn of_integer(value: i64, length: usize) -> Result<Self> {
        let mut out =
            Self::new(vec![if value < 0 { 0xFF } else { 0 }; length.div_ceil(8)], length)?;
        for at in 0..length.min(64) {
            out.put(length - 1 - at, value >> at & 1 == 1);
        }
        Ok(out)
    }

    /// The bits as a number of `width` bits in two's complement; `None` when there are more.
    #[must_use]
    pub fn to_integer(&self, width: usize) -> Option<i64> {
        if self.len() > width {
            return None;
        }
        let value = (0..self.len()).fold(0_u64, |n, at| n << 1 | u64::from(self.bit(at)));
        Some(if width == 32 { i64::from(value as u32 as i32) } else { value as i64 })
    }

    fn put(&mut self, at: usize, bit: bool) {
        let mask = 1 << (7 - at % 8);
        if bit {
            self.bytes[at / 8] |= mask;
        } else {
            self.bytes[at / 8] &= !mask;
        }
    }

    /// Both, bit by bit.
    ///
    /// # Errors
    /// 22026, naming `what`, when they are not of one length.
    pub fn combined(&self, other: &Self, what: &str, with: fn(u8, u8) -> u8) -> Result<Self> {
        if self.length != other.length {
            return Err(fault(
                SqlState::STRING_LENGTH_MISMATCH,
                format!("cannot {what} bit strings of different sizes"),
            ));
        }
        let bytes = self.bytes.iter().zip(&*other.bytes).map(|(a, b)| with(*a, *b)).collect();
        Self::new(bytes, self.len())
    }

    /// Every bit turned.
    ///
    /// # Errors
    /// None that a value can have.
    pub fn inverted(&self) -> Result<Self> {
        Self::new(self.bytes.iter().map(|byte| !byte).collect(), self.len())
    }

    /// Moved by `by` places to the left, to the right where that is negative; zeros come after.
    ///
    /// # Errors
    /// None that a value can have.
    pub fn shifted(&self, by: i64) -> Result<Self> {
        let length = self.len();
        let steps = usize::try_from(by.unsigned_abs()).unwrap_or(usize::MAX);
        let zeros = Self::new(Vec::new(), length)?;
        if steps >= length {
            return Ok(zeros);
        }
        if by >= 0 {
            return self.part(steps, length).and_then(|kept| Self::new(kept.bytes.into(), length));
        }
        Self::new(Vec::new(), steps)?.joined(&self.part(0, length - steps)?)
    }

    /// One behind the other.
    ///
    /// # Errors
    /// 54000.
    pub fn joined(&self, other: &Self) -> Result<Self> {
        let length = self.len() + other.len();
        let mut bytes = self.bytes.to_vec();
        let shift = self.length % 8;
        if shift == 0 {
            bytes.extend_from_slice(&other.bytes);
        } else {
            bytes.reserve(other.bytes.len() + 1);
            for byte in &*other.bytes {
                if let Some(last) = bytes.last_mut() {
                    *last |= byte >> shift;
                }
                bytes.push(byte << (8 - shift));
            }
        }
        Self::new(bytes, length)
    }

    /// The bits from `from` to before `to`, counted from 0 and inside the string.
    fn part(&self, from: usize, to: usize) -> Result<Self> {
        let (first, shift) = (from / 8, from % 8);
        let kept = &self.bytes[first.min(self.bytes.len())..];
        let bytes = (0..kept.len()).map(|at| {
            let next = kept.get(at + 1).copied().unwrap_or(0);
            (u16::from_be_bytes([kept[at], next]) << shift >> 8) as u8
        });
        Self::new(bytes.take((to - from).div_ceil(8)).collect(), to - from)
    }

    /// `substring(bits from start for length)`, counted from 1; without a length up to the end.
    ///
    /// # Errors
    /// 22011 for a negative length.
    pub fn substring(&self, start: i64, length: Option<i64>) -> Result<Self> {
        let end = self.len() as i64 + 1;
        let to = match length {
            Some(length) if length < 0 => return Err(negative_length()),
            Some(length) => start.saturating_add(length).min(end),
            None => end,
        };
        let from = start.max(1);
        if to <= from {
            return Ok(Self::default());
        }
        self.part(from as usize - 1, to as usize - 1)
    }

    /// `overlay(self placing new from start for length)`.
    ///
    /// # Errors
    /// 22011 for a start before the first bit, 22003 for places beyond integers, 54000.
    pub fn overlaid(&self, new: &Self, start: i64, length: i64) -> Result<Self> {
        if start <= 0 {
            return Err(negative_length());
        }
        let after = i32::try_from(start + length)
            .map_err(|_| fault(SqlState::NUMERIC_OUT_OF_RANGE, "integer out of range"))?;
        let head = self.substring(1, Some(start - 1))?;
        head.joined(new)?.joined(&self.substring(i64::from(after), None)?)
    }

    /// Where `part` begins for the first time, from 1; 0: nowhere.
    ///
    /// # Errors
    /// 57014 when the statement is cancelled.
    pub fn position(&self, part: &Self) -> Result<usize> {
        if self.is_empty() || part.len() > self.len() {
            return Ok(0);
        }
        let mut steps = crate::interrupt::Steps::default();
        for from in 0..=self.len() - part.len() {
            let mut same = true;
            for at in 0..part.len() {
                steps.step()?;
                if self.bit(from + at) != part.bit(at) {
                    same = false;
                    break;
                }
            }
            if same {
                return Ok(from + 1);
            }
        }
        Ok(0)
    }

    fn index(&self, at: i64) -> Result<usize> {
        usize::try_from(at).ok().filter(|at| *at < self.len()).ok_or_else(|| {
            let last = i64::from(self.length) - 1;
            let message = format!("bit index {at} out of valid range (0..{last})");
            fault(SqlState::ARRAY_SUBSCRIPT_ERROR, message)
        })
    }

    /// Bit `at`, from 0 on.
    ///
    /// # Errors
    /// 2202E outside of the string.
    pub fn get(&self, at: i64) -> Result<bool> {
        self.index(at).map(|at| self.bit(at))
    }

    /// The value with bit `at` set to `bit`.
    ///
    /// # Errors
    /// 2202E outside of the string, 22023 for a bit that is neither 0 nor 1.
    pub fn with(&self, at: i64, bit: i64) -> Result<Self> {
        let at = self.index(at)?;
        if !(0..=1).contains(&bit) {
            return Err(fault(SqlState::INVALID_PARAMETER_VALUE, "new bit must be 0 or 1"));
        }
        let mut out = self.clone();
        out.put(at, bit == 1);
        Ok(out)
    }

    /// How many bits are set.
    #[must_use]
    pub fn ones(&self) -> i64 {
        self.bytes.iter().map(|byte| i64::from(byte.count_ones())).sum()
    }

    /// Bytes that are ordered as the values are: the bytes with `00` written as `00 FF`, `00`, and
    /// how many bits of the last byte count (0 without any, else 1 to 8).
    #[must_use]
    pub fn order_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes.len() + 4);
        for byte in &*self.bytes {
            out.push(*byte);
            if *byte == 0 {
                out.push(0xFF);
            }
        }
        let used = if self.is_empty() { 0 } else { (self.length - 1) % 8 + 1 };
        out.extend_from_slice(&[0, used as u8]);
        out
    }

    /// Reads what [`BitString::order_bytes`] wrote; `None` for other bytes.
    #[must_use]
    pub fn from_order_bytes(input: &[u8]) -> Option<Self> {
        let (body, end) = input.split_last_chunk::<2>()?;
        let mut bytes = Vec::with_capacity(body.len());
        let mut rest = body.iter();
        while let Some(byte) = rest.next() {
            bytes.push(*byte);
            if *byte == 0 && *rest.next()? != 0xFF {
                return None;
            }
        }
        let unused = match end {
            [0, 0] if bytes.is_empty() => 0,
            [0, used @ 1..=8] if !bytes.is_empty() => 8 - usize::from(*used),
            _ => return None,
        };
        let length = bytes.len() * 8 - unused;
        Self::whole(&bytes, length)
    }

    /// The bits of `bytes`, which hold exactly `length` of them and zeros behind; `None` when they
    /// do not.
    #[must_use]
    pub fn whole(bytes: &[u8], length: usize) -> Option<Self> {
        if length > MAX_BITS as usize || length.div_ceil(8) != bytes.len() {
            return None;
        }
        let value = Self::new(bytes.to_vec(), length).ok()?;
        (*value.bytes == *bytes).then_some(value)
    }

    /// How a row holds it: how many bits the last byte has to spare, and the bytes.
    #[must_use]
    pub fn stored(&self) -> Vec<u8> {
        let mut out = vec![(self.bytes.len() * 8 - self.len()) as u8];
        out.extend_from_slice(&self.bytes);
        out
    }

    /// Reads what [`BitString::stored`] wrote; `None` for other bytes.
    #[must_use]
    pub fn from_stored(input: &[u8]) -> Option<Self> {
        let (spare, bytes) = input.split_first()?;
        let length = (bytes.len() * 8).checked_sub(usize::from(*spare))?;
        Self::whole(bytes, length)
    }
}

impl Ord for BitString {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bytes.cmp(&other.bytes).then_with(|| self.length.cmp(&other.length))
    }
}

impl PartialOrd for BitString {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

fn negative_length() -> Error {
    fault(SqlState::SUBSTRING_ERROR, "negative substring length not allowed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits() -> impl Strategy<Value = String> {
        "[01]{0,26}"
    }

    fn read(text: &str) -> BitString {
        BitString::parse(text).expect(text)
    }

    proptest! {
        #[test]
        fn order_bytes_are_ordered_as_values_and_read_back(a in bits(), b in "(0{0,9}|1{0,9}|[01]{0,20})") {
            let (a, b) = (read(&a), read(&b));
            prop_assert_eq!(a.order_bytes().cmp(&b.order_bytes()), a.cmp(&b));
            prop_assert_eq!(BitString::from_order_bytes(&a.order_bytes()), Some(a.clone()));
            prop_assert_eq!(BitString::from_stored(&a.stored()), Some(a));
        }

        #[test]
        fn operations_are_those_on_digits(a in bits(), b in bits(), from in 0_usize..30, by in -30_i64..30) {
            let (x, y) = (read(&a), read(&b));
            prop_assert_eq!(x.joined(&y).expect("short").text(), format!("{a}{b}"));
            let cut: String = a.chars().skip(from).take(5).collect();
            prop_assert_eq!(x.substring(from as i64 + 1, Some(5)).expect("part").text(), cut);
            let moved: String = (0..a.len() as i64)
                .map(|at| usize::try_from(at + by).ok().and_then(|at| a.chars().nth(at)).unwrap_or('0'))
                .collect();
            prop_assert_eq!(x.shifted(by).expect("shift").text(), moved);
            let found = if a.is_empty() { 0 } else { a.find(&b).map_or(0, |at| at + 1) };
            prop_assert_eq!(x.position(&y).expect("position"), found);
        }

        #[test]
        fn integers_come_back(value in any::<i64>(), length in 0_usize..80) {
            let wide = BitString::of_integer(value, 64).expect("64 bits");
            prop_assert_eq!(wide.to_integer(64), Some(value));
            let digits: String = format!("{:0>80}", format!("{value:064b}").replace('-', ""));
            let filled = if value < 0 { digits.replacen('0', "1", 16) } else { digits };
            let cut = BitString::of_integer(value, length).expect("few bits");
            prop_assert_eq!(cut.text(), filled[80 - length..].to_owned());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            for value in [BitString::from_order_bytes(&bytes), BitString::from_stored(&bytes)].into_iter().flatten() {
                prop_assert_eq!(read(&value.text()), value);
            }
        }
    }

    #[test]
    fn hexadecimal_and_binary_digits_are_read() {
        assert_eq!(read("x1F").text(), "00011111");
        assert_eq!(read("b101").text(), "101");
        assert_eq!(
            BitString::parse("x1G").expect_err("G").message(),
            "\"G\" is not a valid hexadecimal digit"
        );
        assert_eq!(
            BitString::parse("102").expect_err("2").message(),
            "\"2\" is not a valid binary digit"
        );
    }
}
