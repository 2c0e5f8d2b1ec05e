//! Network addresses: the values of inet and cidr.
//!
//! # Invariants
//! - Text and binary forms are those of PostgreSQL 15: inet leaves out the length of a whole
//!   address, cidr never does.
//! - The order is that of PostgreSQL's `network_ops`: IPv4 before IPv6, then the network, its
//!   length, the address. It is the order of [`Network::order_bytes`], too, which keys and
//!   DataFusion's batches hold.
//! - Bits behind the length are kept (inet); a cidr has none, which is checked where one is made.
//!
//! # On failure
//! [`Refusal`] tells a text that is no address from a cidr with bits behind its length.
//!
//! # Limits
//! The hexadecimal form of IPv4 networks (`0x0a/8`) is not read.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Address family in the binary form: IPv4.
const PGSQL_AF_INET: u8 = 2;
/// Address family in the binary form: IPv6.
const PGSQL_AF_INET6: u8 = 3;

/// An address with the length of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    v6: bool,
    bits: u8,
    /// IPv4 has its four octets in the last ones.
    address: [u8; 16],
}

/// Why a text or bytes are no inet or cidr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No address.
    Syntax,
    /// A cidr with bits set to the right of its mask.
    BitsBehindMask,
}

impl Network {
    fn new(v6: bool, bits: u32, number: u128) -> Self {
        let bits = u8::try_from(bits).unwrap_or(u8::MAX).min(if v6 { 128 } else { 32 });
        Self { v6, bits, address: number.to_be_bytes() }
    }

    fn number(&self) -> u128 {
        u128::from_be_bytes(self.address)
    }

    /// Bits of an address of this family: 32 or 128.
    #[must_use]
    pub fn width(&self) -> u32 {
        if self.v6 { 128 } else { 32 }
    }

    /// 4 or 6.
    #[must_use]
    pub fn family(&self) -> i32 {
        if self.v6 { 6 } else { 4 }
    }

    /// The length of the network in bits.
    #[must_use]
    pub fn length(&self) -> u32 {
        u32::from(self.bits)
    }

    fn mask_of(&self, bits: u32) -> u128 {
        let width = self.width();
        let all = u128::MAX >> (128 - width);
        // A shift by the whole width is none of Rust's.
        all & all.checked_shl(width - bits.min(width)).unwrap_or(0)
    }

    fn mask(&self) -> u128 {
        self.mask_of(self.length())
    }

    fn with(&self, bits: u32, number: u128) -> Self {
        Self::new(self.v6, bits, number)
    }

    /// Reads a text form.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn parse(text: &str, cidr: bool) -> Result<Self, Refusal> {
        let value = if text.contains(':') { parse_v6(text) } else { parse_v4(text, cidr) };
        let value = value.ok_or(Refusal::Syntax)?;
        if cidr && value.network() != value { Err(Refusal::BitsBehindMask) } else { Ok(value) }
    }

    /// The address alone.
    #[must_use]
    pub fn host(&self) -> String {
        if self.v6 {
            v6_text(&self.address)
        } else {
            Ipv4Addr::from(self.number() as u32).to_string()
        }
    }

    /// The text form.
    #[must_use]
    pub fn text(&self, cidr: bool) -> String {
        if !cidr && self.length() == self.width() { self.host() } else { self.whole_text() }
    }

    /// Address and length, always: what a cast to text gives.
    #[must_use]
    pub fn whole_text(&self) -> String {
        format!("{}/{}", self.host(), self.bits)
    }

    /// The shortest text of a cidr: of IPv4 without the octets behind its length.
    #[must_use]
    pub fn abbreviated(&self) -> String {
        let length = self.length();
        if self.v6 {
            return format!("{}/{length}", v6_network_text(&self.address, length));
        }
        let octets = (self.number() as u32).to_be_bytes();
        let shown = length.div_ceil(8).max(1) as usize;
        let octets: Vec<_> = octets[..shown].iter().map(u8::to_string).collect();
        format!("{}/{length}", octets.join("."))
    }

    /// The address with zeros behind the length.
    #[must_use]
    pub fn network(&self) -> Self {
        self.with(self.length(), self.number() & self.mask())
    }

    /// The last address of the network.
    #[must_use]
    pub fn broadcast(&self) -> Self {
        self.with(self.length(), self.number() | self.host_bits())
    }

    fn host_bits(&self) -> u128 {
        !self.mask() & self.mask_of(self.width())
    }

    /// The mask of the network, as an address.
    #[must_use]
    pub fn netmask(&self) -> Self {
        self.with(self.width(), self.mask())
    }

    /// The bits behind the mask, as an address.
    #[must_use]
    pub fn hostmask(&self) -> Self {
        self.with(self.width(), self.host_bits())
    }

    /// The same address with another length; −1 is the whole address. `None`: no such length.
    #[must_use]
    pub fn with_length(&self, length: i64) -> Option<Self> {
        let width = self.width();
        let length = if length == -1 { width } else { u32::try_from(length).ok()? };
        (length <= width).then(|| self.with(length, self.number()))
    }

    /// Whether `other`'s network is in this one, or is this one unless `strictly`.
    #[must_use]
    pub fn contains(&self, other: &Self, strictly: bool) -> bool {
        let longer = other.bits > self.bits || (!strictly && other.bits == self.bits);
        self.v6 == other.v6 && longer && (self.number() ^ other.number()) & self.mask() == 0
    }

    /// Whether one of both contains the other.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other, false) || other.contains(self, false)
    }

    /// Whether both are of one family.
    #[must_use]
    pub fn same_family(&self, other: &Self) -> bool {
        self.v6 == other.v6
    }

    /// The smallest network that contains both; `None`: two families.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Option<Self> {
        if !self.same_family(other) {
            return None;
        }
        let differ = (self.number() ^ other.number()) << (128 - self.width());
        let common = differ.leading_zeros().min(self.length()).min(other.length());
        Some(self.with(common, self.number()).network())
    }

    /// The address so many further on; `None`: there is none.
    #[must_use]
    pub fn plus(&self, addend: i128) -> Option<Self> {
        let step = addend.unsigned_abs();
        let number = if addend < 0 {
            self.number().checked_sub(step)?
        } else {
            self.number().checked_add(step)?
        };
        (number <= self.mask_of(self.width())).then(|| self.with(self.length(), number))
    }

    /// How far two addresses of one family are apart; `None`: more than a bigint holds.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Option<i64> {
        let (a, b) = (self.number(), other.number());
        let apart = i128::try_from(a.abs_diff(b)).ok()?;
        i64::try_from(if a < b { -apart } else { apart }).ok()
    }

    /// Bit by bit, with the longer length; `None`: two families.
    #[must_use]
    pub fn bitwise(&self, other: &Self, with: fn(u128, u128) -> u128) -> Option<Self> {
        let length = self.length().max(other.length());
        let combined = || self.with(length, with(self.number(), other.number()));
        self.same_family(other).then(combined)
    }

    /// All bits turned round.
    #[must_use]
    pub fn inverted(&self) -> Self {
        self.with(self.length(), !self.number() & self.mask_of(self.width()))
    }

    fn octets(&self, number: u128) -> impl Iterator<Item = u8> {
        number.to_be_bytes().into_iter().skip(if self.v6 { 0 } else { 12 })
    }

    /// Bytes in the order of the values: family, network, length, address.
    #[must_use]
    pub fn order_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(34);
        out.push(self.family() as u8);
        out.extend(self.octets(self.network().number()));
        out.push(self.bits);
        out.extend(self.octets(self.number()));
        out
    }

    /// Reads [`Network::order_bytes`]; `None`: these are none.
    #[must_use]
    pub fn from_order_bytes(bytes: &[u8]) -> Option<Self> {
        let (family, rest) = bytes.split_first()?;
        let octets = if *family == 6 { 16 } else { 4 };
        let value = Self::from_stored(rest.get(octets..)?)?;
        (value.family() == i32::from(*family)).then_some(value)
    }

    /// Length and address: what rows hold.
    #[must_use]
    pub fn stored(&self) -> Vec<u8> {
        std::iter::once(self.bits).chain(self.octets(self.number())).collect()
    }

    /// Reads [`Network::stored`]; `None`: these are none.
    #[must_use]
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        let (bits, octets) = bytes.split_first()?;
        Self::from_octets(u32::from(*bits), octets)
    }

    fn from_octets(bits: u32, octets: &[u8]) -> Option<Self> {
        let v6 = match octets.len() {
            4 => false,
            16 => true,
            _ => return None,
        };
        let number = octets.iter().fold(0_u128, |number, octet| number << 8 | u128::from(*octet));
        (bits <= if v6 { 128 } else { 32 }).then(|| Self::new(v6, bits, number))
    }

    /// The binary form on the wire.
    #[must_use]
    pub fn to_wire(&self, cidr: bool) -> Vec<u8> {
        let family = if self.v6 { PGSQL_AF_INET6 } else { PGSQL_AF_INET };
        let octets = (self.width() / 8) as u8;
        let head = [family, self.bits, u8::from(cidr), octets];
        head.into_iter().chain(self.octets(self.number())).collect()
    }

    /// Reads [`Network::to_wire`]; `None`: these are none, or no cidr.
    #[must_use]
    pub fn from_wire(bytes: &[u8], cidr: bool) -> Option<Self> {
        let [family, bits, _, octets, address @ ..] = bytes else { return None };
        let value = Self::from_octets(u32::from(*bits), address)?;
        let family_fits = *family == if value.v6 { PGSQL_AF_INET6 } else { PGSQL_AF_INET };
        let fits = family_fits && usize::from(*octets) == address.len();
        (fits && !(cidr && value.network() != value)).then_some(value)
    }
}

impl Ord for Network {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |value: &Self| (value.v6, value.network().number(), value.bits, value.number());
        place(self).cmp(&place(other))
    }
}

impl PartialOrd for Network {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A length behind a slash: digits, nothing else.
fn length(text: &str, most: u32) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|bits| digits && *bits <= most)
}

/// Of a cidr the last octets may be missing, of an inet those behind its length.
fn parse_v4(text: &str, cidr: bool) -> Option<Network> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(length(bits, 32)?)),
        None => (text, None),
    };
    let mut octets = [0_u8; 4];
    let mut count = 0;
    for part in address.split('.') {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        // Any number of zeros may stand in front.
        let octet = part.trim_start_matches('0');
        let octet = if octet.is_empty() { 0 } else { octet.parse().ok()? };
        *octets.get_mut(count).filter(|_| digits)? = octet;
        count += 1;
    }
    let bits = match bits {
        Some(bits) => bits,
        None if count == 4 => 32,
        None if cidr => class_length(octets[0], count),
        None => return None,
    };
    let given = count as u32 * 8;
    // An inet's length may not reach beyond what is written; a cidr is filled up with zeros.
    if !cidr && bits / 8 > given / 8 {
        return None;
    }
    Some(Network::new(false, bits, u128::from(u32::from_be_bytes(octets))))
}

/// The length of a network by the class of its address, or what is written of it.
fn class_length(first: u8, count: usize) -> u32 {
    let class = match first {
        240.. => 32,
        224.. => 8,
        192.. => 24,
        128.. => 16,
        _ => 8,
    };
    match class.max(count as u32 * 8) {
        8 if first == 224 => 4,
        bits => bits,
    }
}

fn parse_v6(text: &str) -> Option<Network> {
    let (address, bits) = match text.split_once('/') {
        // No zeros in front.
        Some((_, bits)) if bits.len() > 1 && bits.starts_with('0') => return None,
        Some((address, bits)) => (address, length(bits, 128)?),
        None => (text, 128),
    };
    let address: Ipv6Addr = address.parse().ok()?;
    Some(Network::new(true, bits, address.into()))
}

/// The longest run of words that are zero, the first of several: where it begins, and its length.
fn zeros(words: &[u16]) -> (usize, usize) {
    let (mut best, mut from) = ((0, 0), 0);
    for (at, word) in words.iter().enumerate() {
        if *word != 0 {
            from = at + 1;
        } else if at + 1 - from > best.1 {
            best = (from, at + 1 - from);
        }
    }
    best
}

fn words(address: &[u8; 16]) -> Vec<u16> {
    address.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect()
}

/// As `inet_ntop` writes it: the last 32 bits of mapped and compatible addresses as IPv4.
fn v6_text(address: &[u8; 16]) -> String {
    let words = words(address);
    let (from, count) = match zeros(&words) {
        (_, 0 | 1) => (usize::MAX, 0),
        run => run,
    };
    let as_v4 = from == 0
        && (count == 6 || (count == 7 && words[7] != 1) || (count == 5 && words[5] == 0xFFFF));
    let mut out = String::new();
    let mut at = 0;
    while at < words.len() {
        if at == from {
            out.push(':');
            at += count;
            if at == words.len() {
                out.push(':');
            }
            continue;
        }
        if at != 0 {
            out.push(':');
        }
        if at == 6 && as_v4 {
            let [.., a, b, c, d] = *address;
            let _ = write!(out, "{a}.{b}.{c}.{d}");
            break;
        }
        let _ = write!(out, "{:x}", words[at]);
        at += 1;
    }
    out
}

/// The words of a network that its length reaches, as PostgreSQL abbreviates them.
fn v6_network_text(address: &[u8; 16], bits: u32) -> String {
    if bits == 0 {
        return "::".to_owned();
    }
    let words = words(address);
    let shown = (bits.div_ceil(16) as usize).max(2);
    let (from, count) = zeros(&words[..shown]);
    let mapped = count == 5 && words[5] == 0xFFFF;
    let compatible = count == 7 && address[14] != 0 && address[15] != 1;
    let as_v4 = count != shown && from == 0 && (count == 6 || mapped || compatible);
    let mut out = String::new();
    for at in 0..shown {
        if (from..from + count).contains(&at) {
            if at == from {
                out.push(':');
            }
            if at == shown - 1 {
                out.push(':');
            }
        } else if as_v4 && at > 5 {
            let (high, low) = (address[at * 2], address[at * 2 + 1]);
            let _ = write!(out, "{}{high}", if at == 6 { ':' } else { '.' });
            if at != 7 || bits > 120 {
                let _ = write!(out, ".{low}");
            }
        } else {
            let colon = if out.is_empty() { "" } else { ":" };
            let _ = write!(out, "{colon}{:x}", words[at]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_read_and_written_as_by_postgres() {
        for (text, cidr, want) in [
            ("192.168.1.5", false, "192.168.1.5"),
            ("192.168.1.5/24", false, "192.168.1.5/24"),
            ("192.168.1.5/32", false, "192.168.1.5"),
            ("10/8", false, "10.0.0.0/8"),
            ("010.001.2.3", false, "10.1.2.3"),
            ("192.168.1", true, "192.168.1.0/24"),
            ("10", true, "10.0.0.0/8"),
            ("224", true, "224.0.0.0/4"),
            ("10.1.2.3", true, "10.1.2.3/32"),
            ("::1", false, "::1"),
            ("::ffff:1.2.3.4", false, "::ffff:1.2.3.4"),
            ("2001:0DB8::0:1", false, "2001:db8::1"),
            ("2001:db8::/32", true, "2001:db8::/32"),
            ("1:0:0:2:0:0:0:3", false, "1:0:0:2::3"),
            ("::/0", false, "::/0"),
        ] {
            assert_eq!(Network::parse(text, cidr).map(|n| n.text(cidr)), Ok(want.to_owned()));
        }
        for (text, cidr) in [
            ("", false),
            ("10", false),
            ("1.2.3.4.5", false),
            ("256.1.1.1", false),
            ("1.2.3.4/33", false),
            ("1.2.3.4/", false),
            ("10/24", false),
            (" 1.2.3.4", false),
            ("1..2.3", false),
            ("::1/129", false),
            ("::1/064", false),
            ("1::2::3", false),
        ] {
            assert_eq!(Network::parse(text, cidr), Err(Refusal::Syntax), "{text}");
        }
        assert_eq!(Network::parse("10.1.2.3/8", true), Err(Refusal::BitsBehindMask));
    }

    prop_compose! {
        fn network()(v6: bool, bits in 0_u32..=128, number: u128, few in 0_u128..3) -> Network {
            // Few values, so that equal networks of different lengths meet.
            let number = if number & 1 == 0 { few << 8 | few } else { number };
            let number = if v6 { number } else { number & u128::from(u32::MAX) };
            Network::new(v6, bits, number)
        }
    }

    proptest! {
        #[test]
        fn stored_forms_keep_value_and_order(a in network(), b in network()) {
            prop_assert_eq!(Network::from_order_bytes(&a.order_bytes()), Some(a));
            prop_assert_eq!(Network::from_stored(&a.stored()), Some(a));
            prop_assert_eq!(Network::from_wire(&a.to_wire(false), false), Some(a));
            prop_assert_eq!(Network::parse(&a.text(false), false), Ok(a));
            let n = a.network();
            prop_assert_eq!(Network::parse(&n.text(true), true), Ok(n));
            prop_assert_eq!(a.order_bytes().cmp(&b.order_bytes()), a.cmp(&b));
        }
    }
}
