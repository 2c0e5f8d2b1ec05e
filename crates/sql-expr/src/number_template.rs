//! Numbers by template: `to_char` and `to_number`.
//!
//! # Invariants
//! Output equals PostgreSQL 15's in the C locale for the patterns listed in [`number`]; a template
//! bounds how much of a text [`decimal`] reads.
//!
//! # Limits
//! Not there: roman numerals (`RN`), `V`, `EEEE`, `L` in output, and `V` and `EEEE` in input, which
//! return an error.

use super::from_char::FromCharError;
use super::to_char::ordinal;

/// Formats a decimal number, given as text such as `-12.345`, by `template`: digits `9` and `0`,
/// `.` or `D`, `,` or `G`, `S`, `MI`, `PL`, `SG`, `PR`, `FM`, `TH`/`th`, and quoted text.
///
/// # Errors
/// [`FromCharError::Unsupported`] for `RN`, `EEEE`, `V`, `L`; [`FromCharError::Template`].
pub fn number(template: &str, decimal: &str) -> Result<String, FromCharError> {
    let format = NumberFormat::parse(template)?;
    let (negative, magnitude) = match decimal.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, decimal),
    };
    if !magnitude.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(format.render(negative, magnitude, ""));
    }
    Ok(format.shown(negative, &round_text(magnitude, format.fraction_digits)))
}

/// Formats a floating point number that has `precision` digits: none beyond them is written.
///
/// # Errors
/// As [`number`].
pub fn float(template: &str, value: f64, precision: usize) -> Result<String, FromCharError> {
    let format = NumberFormat::parse(template)?;
    if value.is_nan() {
        return Ok(format.render(false, "NaN", ""));
    }
    let (negative, magnitude) = (value < 0.0, value.abs());
    if magnitude.is_infinite() {
        return Ok(format.render(negative, "Infinity", ""));
    }
    let left = precision.saturating_sub(format!("{magnitude:.0}").len());
    let digits = format.fraction_digits.min(left);
    Ok(format.shown(negative, &format!("{magnitude:.digits$}")))
}

/// Rounds a non-negative decimal text to `digits` after the point, half away from zero.
fn round_text(text: &str, digits: usize) -> String {
    let (integer, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut all: Vec<u8> = integer
        .bytes()
        .chain(fraction.bytes().chain(std::iter::repeat(b'0')).take(digits))
        .collect();
    if fraction.as_bytes().get(digits).is_some_and(|d| *d >= b'5') {
        let mut at = all.len();
        loop {
            if at == 0 {
                all.insert(0, b'1');
                break;
            }
            at -= 1;
            if all[at] == b'9' {
                all[at] = b'0';
            } else {
                all[at] += 1;
                break;
            }
        }
    }
    let split = all.len() - digits;
    let mut out: String = all[..split].iter().map(|b| char::from(*b)).collect();
    if digits > 0 {
        out.push('.');
        out.extend(all[split..].iter().map(|b| char::from(*b)));
    }
    out
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Nine,
    Zero,
    Point,
    Group,
    Literal(String),
    Sign,
    Minus,
    Plus,
    SignOrMinus,
    Ordinal(bool),
}

#[derive(Debug, Default)]
struct NumberFormat {
    parts: Vec<Part>,
    fill: bool,
    brackets: bool,
    integer_digits: usize,
    fraction_digits: usize,
    /// Integer digit position (from the left) from which zeros are written.
    zero_from: Option<usize>,
    explicit_sign: bool,
    /// `S` before the digits: the sign, plus too, stands directly before the first digit.
    leading_sign: bool,
    /// `S` behind digits.
    trailing_sign: bool,
    /// There is a decimal point.
    point: bool,
}

impl NumberFormat {
    fn parse(template: &str) -> Result<Self, FromCharError> {
        let mut format = Self { fill: true, ..Self::default() };
        let mut after_point = false;
        let mut rest = template;
        while let Some(c) = rest.chars().next() {
            let upper2 = rest.get(..2).map(str::to_ascii_uppercase).unwrap_or_default();
            let mut used = c.len_utf8();
            format.check(&upper2, c)?;
            match (upper2.as_str(), c) {
                ("FM", _) => (format.fill, used) = (false, 2),
                ("PR", _) => (format.brackets, used) = (true, 2),
                ("MI", _) => {
                    format.parts.push(Part::Minus);
                    (format.explicit_sign, used) = (true, 2);
                }
                ("PL", _) => {
                    format.parts.push(Part::Plus);
                    (format.explicit_sign, used) = (true, 2);
                }
                ("SG", _) => {
                    format.parts.push(Part::SignOrMinus);
                    (format.explicit_sign, used) = (true, 2);
                }
                ("TH", _) => {
                    format.parts.push(Part::Ordinal(c == 'T'));
                    used = 2;
                }
                ("RN" | "EE", _) => {
                    return Err(FromCharError::Unsupported(format!("to_char pattern {upper2:?}")));
                }
                (_, '9' | '0') => {
                    if after_point {
                        format.fraction_digits += 1;
                    } else {
                        if c == '0' && format.zero_from.is_none() {
                            format.zero_from = Some(format.integer_digits);
                        }
                        format.integer_digits += 1;
                    }
                    format.parts.push(if c == '0' { Part::Zero } else { Part::Nine });
                }
                (_, '.' | 'D' | 'd') => {
                    (after_point, format.point) = (true, true);
                    format.parts.push(Part::Point);
                }
                (_, ',' | 'G' | 'g') => format.parts.push(Part::Group),
                (_, 'S' | 's') if format.integer_digits == 0 && !after_point => {
                    format.leading_sign = true
                }
                (_, 'S' | 's') => {
                    format.parts.push(Part::Sign);
                    (format.explicit_sign, format.trailing_sign) = (true, true);
                }
                (_, 'V' | 'v' | 'L' | 'l') => {
                    return Err(FromCharError::Unsupported(format!("to_char pattern {c:?}")));
                }
                (_, '"') => {
                    let inner = &rest[1..];
                    let end = inner.find('"').unwrap_or(inner.len());
                    format.parts.push(Part::Literal(inner[..end].to_owned()));
                    used = (end + 2).min(rest.len());
                }
                // PostgreSQL knows them, and writes nothing.
                (_, 'B' | 'b' | 'C' | 'c') => {}
                _ => format.parts.push(Part::Literal(c.to_string())),
            }
            rest = &rest[used..];
        }
        Ok(format)
    }

    /// Refuses what does not go with the parts before it.
    fn check(&self, upper2: &str, c: char) -> Result<(), FromCharError> {
        let has = |part: &Part| self.parts.contains(part);
        let minus = has(&Part::Minus) || has(&Part::SignOrMinus);
        let plus = has(&Part::Plus) || has(&Part::SignOrMinus);
        let sign = self.leading_sign || self.trailing_sign;
        let wrong = match (upper2, c) {
            ("PR", _) if sign || plus || minus => {
                "cannot use \"PR\" and \"S\"/\"PL\"/\"MI\"/\"SG\" together"
            }
            ("MI", _) if sign => "cannot use \"S\" and \"MI\" together",
            ("PL", _) if sign => "cannot use \"S\" and \"PL\" together",
            ("SG", _) if sign => "cannot use \"S\" and \"SG\" together",
            (_, '9') if self.brackets => "\"9\" must be ahead of \"PR\"",
            (_, '0') if self.brackets => "\"0\" must be ahead of \"PR\"",
            (_, '.' | 'D' | 'd') if self.point => "multiple decimal points",
            ("SG", _) => return Ok(()),
            (_, 'S' | 's') if sign => "cannot use \"S\" twice",
            (_, 'S' | 's') if plus || minus || self.brackets => {
                "cannot use \"S\" and \"PL\"/\"MI\"/\"SG\"/\"PR\" together"
            }
            _ => return Ok(()),
        };
        Err(FromCharError::Template(wrong))
    }

    /// A number that is rounded already.
    fn shown(&self, negative: bool, rounded: &str) -> String {
        let (integer, fraction) = rounded.split_once('.').unwrap_or((rounded, ""));
        let negative = negative && rounded.bytes().any(|b| b.is_ascii_digit() && b != b'0');
        self.render(negative, integer.trim_start_matches('0'), fraction)
    }

    /// The digit from which on zeros are written: before the point only where the template asks for
    /// it or nothing else is left.
    fn zeros_from(&self, integer: &str) -> usize {
        match self.zero_from {
            Some(at) => at,
            None if integer.is_empty() && self.fraction_digits == 0 => {
                self.integer_digits.saturating_sub(1)
            }
            None => usize::MAX,
        }
    }

    /// What a part that is a sign writes.
    fn sign(&self, part: &Part, negative: bool) -> Option<char> {
        let blank = || self.fill.then_some(' ');
        match (part, negative) {
            (Part::Minus, false) | (Part::Plus, true) => blank(),
            (_, true) => Some('-'),
            (_, false) => Some('+'),
        }
    }

    /// Writes the parts up to the first one for which the number has no digit: there the text ends,
    /// whatever the template says behind it.
    fn render(&self, negative: bool, integer: &str, fraction: &str) -> String {
        // Zero is a digit, too.
        let overflow = integer.len().max(1) > self.integer_digits;
        let missing = self.integer_digits.saturating_sub(integer.len());
        let zero_from = self.zeros_from(integer);
        let first_written = missing.min(zero_from);
        let mut out = String::new();
        let mut sign_written = self.explicit_sign || self.brackets;
        let leading_sign_slot = !sign_written;
        let put_sign = |out: &mut String, written: &mut bool| {
            if leading_sign_slot && !*written {
                out.push_str(match (negative, self.leading_sign, self.fill) {
                    (true, _, _) => "-",
                    (false, true, _) => "+",
                    (false, false, true) => " ",
                    (false, false, false) => "",
                });
                *written = true;
            }
        };
        let mut position = 0;
        let mut fraction_at = 0;
        let mut after_point = false;
        let kept_fraction =
            if self.fill { fraction.len() } else { self.last_kept_fraction(fraction) };
        // Where the sign goes: in front of the first digit written; blanks stand before it.
        for part in &self.parts {
            match part {
                Part::Nine | Part::Zero if after_point => {
                    if !overflow && fraction_at >= fraction.len() {
                        return self.ended(negative, out, true);
                    }
                    if overflow || fraction_at < kept_fraction {
                        out.push_str(if overflow {
                            "#"
                        } else {
                            &fraction[fraction_at..=fraction_at]
                        });
                    }
                    fraction_at += 1;
                }
                Part::Nine | Part::Zero => {
                    if overflow {
                        put_sign(&mut out, &mut sign_written);
                        out.push('#');
                    } else if position >= missing {
                        put_sign(&mut out, &mut sign_written);
                        out.push_str(&integer[position - missing..=position - missing]);
                    } else if position >= first_written && position >= zero_from {
                        put_sign(&mut out, &mut sign_written);
                        out.push('0');
                    } else if position + 1 == self.integer_digits
                        && !self.fill
                        && self.fraction_digits > 0
                        && kept_fraction == 0
                    {
                        // Nothing else is left of it.
                        put_sign(&mut out, &mut sign_written);
                        out.push('0');
                    } else if self.fill {
                        out.push(' ');
                    }
                    position += 1;
                }
                Part::Group => {
                    if overflow || position > first_written {
                        out.push(',');
                    } else if self.fill {
                        out.push(' ');
                    }
                }
                Part::Point if fraction.is_empty() && !overflow => {
                    return self.ended(negative, out, true);
                }
                Part::Point => {
                    put_sign(&mut out, &mut sign_written);
                    after_point = true;
                    out.push('.');
                }
                Part::Literal(text) => out.push_str(text),
                Part::Sign | Part::SignOrMinus | Part::Minus | Part::Plus => {
                    out.extend(self.sign(part, negative));
                }
                // PostgreSQL writes it behind whole numbers that are not negative.
                Part::Ordinal(_) if negative || overflow || self.point => {}
                Part::Ordinal(upper) => {
                    let digits = if integer.is_empty() { "0" } else { integer };
                    let text = ordinal(digits);
                    out.push_str(&if *upper { text.to_uppercase() } else { text.to_owned() });
                }
            }
        }
        self.ended(negative, out, false)
    }

    /// The text with its brackets; with the first only where it is `cut`.
    fn ended(&self, negative: bool, out: String, cut: bool) -> String {
        if !self.brackets {
            return out;
        }
        let mut whole = self.bracketed(negative, out);
        if cut && (negative || self.fill) {
            whole.pop();
        }
        whole
    }

    /// As `PR` has it: negative numbers in angle brackets.
    fn bracketed(&self, negative: bool, out: String) -> String {
        let blanks = out.len() - out.trim_start_matches(' ').len();
        let (pad, digits) = out.split_at(blanks);
        match (negative, self.fill) {
            (true, _) => format!("{pad}<{digits}>"),
            (false, true) => format!(" {pad}{digits} "),
            (false, false) => out,
        }
    }

    /// With `FM`, fraction digits asked for by `9` lose their trailing zeros.
    fn last_kept_fraction(&self, fraction: &str) -> usize {
        let mut keep = 0;
        let mut seen_point = false;
        let mut at = 0;
        for part in &self.parts {
            match part {
                Part::Point => seen_point = true,
                Part::Nine | Part::Zero if seen_point => {
                    at += 1;
                    if *part == Part::Zero {
                        keep = at;
                    }
                }
                _ => {}
            }
        }
        keep.max(fraction.trim_end_matches('0').len())
    }
}

/// Reads a number by template, as PostgreSQL does: each digit of the template takes a digit at
/// most, what else the template holds takes its own characters where they stand, and what is left
/// of the text is not looked at.
///
/// # Errors
/// [`FromCharError::Number`] when there is no digit; [`FromCharError::Unsupported`].
pub fn decimal(template: &str, text: &str) -> Result<String, FromCharError> {
    let format = NumberFormat::parse(template)?;
    let mut reader = Reader {
        text: text.as_bytes(),
        at: 0,
        sign: None,
        digits: String::new(),
        after_point: false,
        fraction: 0,
        format: &format,
    };
    for part in &format.parts {
        if reader.at >= reader.text.len() {
            break;
        }
        reader.part(part);
    }
    let number = reader.digits.trim_end_matches('.');
    if !number.contains(|c: char| c.is_ascii_digit()) {
        return Err(FromCharError::Number(format!(
            "invalid input syntax for type numeric: \"{}{number}\"",
            reader.sign.map_or(' ', char::from)
        )));
    }
    let sign = if reader.sign == Some(b'-') { "-" } else { "" };
    Ok(format!("{sign}{number}"))
}

/// A text that is read by a template.
struct Reader<'t> {
    text: &'t [u8],
    at: usize,
    sign: Option<u8>,
    digits: String,
    after_point: bool,
    fraction: usize,
    format: &'t NumberFormat,
}

impl Reader<'_> {
    fn here(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    /// Over a whole character.
    fn skip_character(&mut self) {
        self.at += 1;
        while self.at < self.text.len() && self.here() & 0xC0 == 0x80 {
            self.at += 1;
        }
    }

    /// Over up to `count` characters that cannot be of a number.
    fn skip_other(&mut self, count: usize) {
        for _ in 0..count {
            if self.at >= self.text.len() || b"0123456789.,+-".contains(&self.here()) {
                return;
            }
            self.skip_character();
        }
    }

    fn sign_or_skip(&mut self, signs: &[u8]) {
        if signs.contains(&self.here()) {
            self.sign = Some(self.here());
            self.at += 1;
        } else {
            self.skip_other(1);
        }
    }

    fn part(&mut self, part: &Part) {
        match part {
            Part::Nine | Part::Zero | Part::Point => self.digit(matches!(part, Part::Point)),
            Part::Group if self.format.fill && self.here() == b',' => self.at += 1,
            // `S` has no place of its own: its sign stands beside the digits.
            Part::Group | Part::Sign => {}
            Part::Ordinal(_) => self.skip_other(2),
            Part::Minus => self.sign_or_skip(b"-"),
            Part::Plus => self.sign_or_skip(b"+"),
            Part::SignOrMinus => self.sign_or_skip(b"+-"),
            Part::Literal(text) => {
                for _ in text.chars() {
                    if self.at < self.text.len() {
                        self.skip_character();
                    }
                }
            }
        }
    }

    fn digit(&mut self, point: bool) {
        if self.here() == b' ' {
            self.at += 1;
        }
        if self.at >= self.text.len() {
            return;
        }
        let bracket = self.format.brackets && self.here() == b'<';
        if self.sign.is_none()
            && !point
            && self.digits.is_empty()
            && (bracket || matches!(self.here(), b'-' | b'+'))
            && (!self.format.trailing_sign || self.format.leading_sign)
        {
            self.sign = Some(if self.here() == b'+' { b'+' } else { b'-' });
            self.at += 1;
        }
        if self.at >= self.text.len() {
            return;
        }
        let mut read = false;
        if self.here().is_ascii_digit() {
            if self.after_point && self.fraction == self.format.fraction_digits {
                return self.at += 1;
            }
            self.digits.push(char::from(self.here()));
            self.fraction += usize::from(self.after_point);
            read = true;
        } else if self.format.point && !self.after_point && self.here() == b'.' {
            self.digits.push('.');
            self.after_point = true;
            read = true;
        }
        let next = self.text.get(self.at + 1).copied();
        if self.sign.is_none() && self.digits.contains(|c: char| c.is_ascii_digit()) {
            let signed = self.format.leading_sign || self.format.trailing_sign;
            if signed && read && matches!(next, Some(b'-' | b'+')) {
                self.sign = next;
                self.at += 1;
            } else if !read
                && !signed
                && self.format.explicit_sign
                && matches!(self.here(), b'-' | b'+')
            {
                self.sign = Some(self.here());
            }
        }
        self.at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_templates_render_as_in_postgres() {
        for (template, value, expected) in [
            ("9999", "12", "   12"),
            ("0000", "12", " 0012"),
            ("999.99", "-12.345", " -12.35"),
            ("FM999.99", "12.5", "12.5"),
            ("FM990.00", "0.5", "0.50"),
            ("9,999", "1234", " 1,234"),
            ("9,999", "12", "    12"),
            ("S999", "12", " +12"),
            ("999", "1234", " ###"),
            ("99.99", "0.5", "   .50"),
        ] {
            let shown = number(template, value).unwrap();
            assert_eq!(shown, expected, "{template} {value}");
        }
    }

    #[test]
    fn numbers_by_template_read_as_in_postgres() {
        for (template, text, expected) in [
            ("99G999D9S", "12,454.8-", "-12454.8"),
            ("99G", "12,500", "12"),
            ("999", "12345", "123"),
            ("9.99", "1.2345", "1.23"),
            ("S999", "-12", "-12"),
            ("999MI", "12-", "-12"),
            ("999PR", "<12>", "-12"),
            ("99th", "12th", "12"),
        ] {
            assert_eq!(decimal(template, text).as_deref(), Ok(expected), "{template} {text}");
        }
        assert!(matches!(decimal("999", "abc"), Err(FromCharError::Number(_))));
    }
}
