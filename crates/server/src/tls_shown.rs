//! What `pg_stat_ssl` shows of a connection: version and cipher in OpenSSL's words, and the
//! client's certificate.
//!
//! # Invariants
//! Names are written as PostgreSQL writes them: `/O=…/CN=…`, values in the escapes of RFC 2253, cut
//! after [`NAME_BYTES`].
//!
//! # Limits
//! Attributes of names that are not known here are shown by their number (`/1.2.3=…`), values that
//! are no text in hexadecimal (`#…`).

use std::fmt::Write as _;

use rustls::{CipherSuite, ProtocolVersion, ServerConnection};
use telesto_sql::plan::activity::{ClientCertificate, Encrypted};
use x509_certificate::X509Certificate;
use x509_certificate::rfc3280::Name;

/// Bytes that are shown of a name: as many as a `name` of PostgreSQL has.
const NAME_BYTES: usize = 63;

/// Attributes of names, as OpenSSL calls them.
const ATTRIBUTES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// Of a connection whose handshake is done.
pub(crate) fn of(connection: &ServerConnection) -> Encrypted {
    let version = match connection.protocol_version() {
        Some(ProtocolVersion::TLSv1_3) => "TLSv1.3".to_owned(),
        Some(ProtocolVersion::TLSv1_2) => "TLSv1.2".to_owned(),
        other => format!("{other:?}"),
    };
    let suite = connection.negotiated_cipher_suite().map(|suite| suite.suite());
    let (cipher, bits) = suite.map_or((String::new(), 0), cipher);
    let shown = connection.peer_certificates().and_then(<[_]>::first);
    let client =
        shown.and_then(|der| X509Certificate::from_der(der).ok()).map(|read| ClientCertificate {
            subject: name(read.subject_name()),
            serial: decimal(read.serial_number_asn1().as_slice()),
            issuer: name(read.issuer_name()),
        });
    Encrypted { version, cipher, bits, client }
}

/// A cipher suite's name in OpenSSL's words, and the bits of its key.
fn cipher(suite: CipherSuite) -> (String, u32) {
    let known = match suite {
        CipherSuite::TLS13_AES_256_GCM_SHA384 => ("TLS_AES_256_GCM_SHA384", 256),
        CipherSuite::TLS13_AES_128_GCM_SHA256 => ("TLS_AES_128_GCM_SHA256", 128),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => ("TLS_CHACHA20_POLY1305_SHA256", 256),
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => {
            ("ECDHE-ECDSA-AES256-GCM-SHA384", 256)
        }
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => {
            ("ECDHE-ECDSA-AES128-GCM-SHA256", 128)
        }
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => {
            ("ECDHE-ECDSA-CHACHA20-POLY1305", 256)
        }
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => ("ECDHE-RSA-AES256-GCM-SHA384", 256),
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => ("ECDHE-RSA-AES128-GCM-SHA256", 128),
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => {
            ("ECDHE-RSA-CHACHA20-POLY1305", 256)
        }
        other => return (format!("{other:?}"), 0),
    };
    (known.0.to_owned(), known.1)
}

fn name(name: &Name) -> String {
    let mut text = String::new();
    for attribute in name.iter_attributes() {
        let number = attribute.typ.to_string();
        let known = ATTRIBUTES.iter().find(|(known, _)| *known == number);
        text.push('/');
        text.push_str(known.map_or(number.as_str(), |(_, word)| word));
        text.push('=');
        match attribute.to_string() {
            Ok(value) => escape(&value, &mut text),
            Err(_) => {
                text.push('#');
                for byte in attribute.value.as_slice() {
                    // Writing to a text does not fail.
                    let _ = write!(text, "{byte:02X}");
                }
            }
        }
    }
    text.truncate(text.floor_char_boundary(NAME_BYTES));
    text
}

/// As RFC 2253 writes a value, but letters beyond ASCII as they are.
fn escape(value: &str, text: &mut String) {
    let last = value.chars().count().saturating_sub(1);
    for (at, character) in value.chars().enumerate() {
        match character {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => {
                text.push('\\');
                text.push(character);
            }
            '#' if at == 0 => text.push_str("\\#"),
            ' ' if at == 0 || at == last => text.push_str("\\ "),
            control if control.is_ascii_control() => {
                // Writing to a text does not fail.
                let _ = write!(text, "\\{:02X}", u32::from(control));
            }
            plain => text.push(plain),
        }
    }
}

/// The number that these bytes are, the highest first.
fn decimal(bytes: &[u8]) -> String {
    let mut digits = vec![0_u8];
    for byte in bytes {
        let mut carry = u32::from(*byte);
        for digit in &mut digits {
            let value = u32::from(*digit) * 256 + carry;
            // A digit, below ten.
            *digit = (value % 10) as u8;
            carry = value / 10;
        }
        while carry > 0 {
            digits.push((carry % 10) as u8);
            carry /= 10;
        }
    }
    digits.iter().rev().map(|digit| char::from(b'0' + digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_are_decimal() {
        assert_eq!(decimal(&[]), "0");
        assert_eq!(decimal(&[0]), "0");
        assert_eq!(decimal(&[0x10, 0x01]), "4097");
        assert_eq!(decimal(&[0xff; 20]), "1461501637330902918203684832716283019655932542975");
    }

    #[test]
    fn values_of_names_are_escaped_as_in_rfc_2253() {
        let mut text = String::new();
        escape("# a, \"b\"+\u{1}\u{e9} ", &mut text);
        assert_eq!(text, "\\# a\\, \\\"b\\\"\\+\\01\u{e9}\\ ");
    }
}
