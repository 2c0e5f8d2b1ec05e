//! Text input of the types that are bytes: bytea and uuid.

use crate::error::{Error, Result, SqlState};

/// Reads a bytea, in hexadecimal or escaped.
///
/// # Errors
/// 22P02, 22023.
pub(crate) fn parse_bytea(text: &str) -> Result<Vec<u8>> {
    if let Some(hex) = text.strip_prefix("\\x") {
        let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        if !digits.len().is_multiple_of(2) {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                "invalid hexadecimal data: odd number of digits",
            ));
        }
        return digits
            .chunks(2)
            .map(|pair| {
                let digit = |b: u8| (b as char).to_digit(16);
                match (digit(pair[0]), digit(pair[1])) {
                    (Some(a), Some(b)) => Ok((a * 16 + b) as u8),
                    _ => Err(Error::new(
                        SqlState::INVALID_PARAMETER_VALUE,
                        format!("invalid hexadecimal digit in \"{text}\""),
                    )),
                }
            })
            .collect();
    }
    escaped_bytes(text)
}

/// Reads the bytes of a text in the format `escape`: a backslash stands before another, or before
/// three octal digits.
///
/// # Errors
/// 22P02.
pub fn escaped_bytes(text: &str) -> Result<Vec<u8>> {
    let syntax =
        || Error::new(SqlState::INVALID_TEXT_REPRESENTATION, "invalid input syntax for type bytea");
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] != b'\\' {
            out.push(bytes[i]);
            i += 1;
        } else if bytes.get(i + 1) == Some(&b'\\') {
            out.push(b'\\');
            i += 2;
        } else {
            let octal = bytes.get(i + 1..i + 4).ok_or_else(syntax)?;
            if !(b'0'..=b'3').contains(&octal[0])
                || !octal[1..].iter().all(|b| (b'0'..=b'7').contains(b))
            {
                return Err(syntax());
            }
            out.push((octal[0] - b'0') * 64 + (octal[1] - b'0') * 8 + (octal[2] - b'0'));
            i += 4;
        }
    }
    Ok(out)
}

/// Reads a uuid; `None` when it is none.
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let body = text.strip_prefix('{').map_or(Some(text), |t| t.strip_suffix('}'))?;
    let mut digits = Vec::with_capacity(32);
    for (i, b) in body.bytes().enumerate() {
        if b == b'-' {
            // a hyphen may follow any group of four digits
            if digits.is_empty() || digits.len() % 4 != 0 || i + 1 == body.len() {
                return None;
            }
        } else {
            digits.push((b as char).to_digit(16)? as u8);
        }
    }
    if digits.len() != 32 {
        return None;
    }
    let mut out = [0; 16];
    for (byte, pair) in out.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] * 16 + pair[1];
    }
    Some(out)
}
