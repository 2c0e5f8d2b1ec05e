//! Sizes and durations as people write them: `512MiB`, `90s`, `24h`.
//!
//! # Invariants
//! Text that means nothing is refused; nothing is guessed. A bare number has no unit and is
//! refused, except `0`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..at].parse::<f64>().ok().filter(|number| number.is_finite())?;
    Some((number, text[at..].trim()))
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = || format!("{text:?} is no size; write one like 512MiB, 2GiB or 64KB");
        let (number, unit) = split(text).ok_or_else(fail)?;
        let factor: f64 = match unit.to_ascii_lowercase().as_str() {
            "b" => 1.0,
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            "kib" | "k" => 1024.0,
            "mib" | "m" => 1024.0 * 1024.0,
            "gib" | "g" => 1024.0 * 1024.0 * 1024.0,
            "tib" | "t" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            "" if number == 0.0 => 1.0,
            _ => return Err(fail()),
        };
        Ok(Self((number * factor) as u64))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail =
            || format!("{text:?} is no length of time; write one like 500ms, 90s, 5m, 24h or 7d");
        let (number, unit) = split(text).ok_or_else(fail)?;
        let seconds = match unit.to_ascii_lowercase().as_str() {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "" if number == 0.0 => 1.0,
            _ => return Err(fail()),
        };
        Duration::try_from_secs_f64(number * seconds).map(Self).map_err(|_| fail())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        if value.fract() == 0.0 {
            write!(f, "{value:.0}{unit}")
        } else {
            write!(f, "{value:.1}{unit}")
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(
    deserializer: D,
) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_parse_with_their_unit_only() {
        assert_eq!("512MiB".parse(), Ok(Bytes(512 << 20)));
        assert_eq!("1.5 GiB".parse(), Ok(Bytes(3 << 29)));
        assert_eq!("64kb".parse(), Ok(Bytes(64_000)));
        assert_eq!("90s".parse(), Ok(Span(Duration::from_secs(90))));
        assert_eq!("0.5h".parse(), Ok(Span(Duration::from_secs(1800))));
        assert_eq!("0".parse(), Ok(Span(Duration::ZERO)));
        for bad in ["", "12", "x", "1 parsec", "-1s", "1e400s", "..s"] {
            assert!(bad.parse::<Bytes>().is_err() && bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_print_in_the_unit_that_fits() {
        assert_eq!(Bytes(512 << 20).to_string(), "512MiB");
        assert_eq!(Bytes(1536).to_string(), "1.5KiB");
    }
}
