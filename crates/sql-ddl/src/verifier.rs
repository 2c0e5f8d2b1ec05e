//! SCRAM-SHA-256 verifiers of passwords, in PostgreSQL's text form.
//!
//! # Invariants
//! A password is never kept: what is stored proves one, and does not give it away.
//!
//! # On failure
//! 0A000 for an MD5 password. A text that only looks like a verifier is a password, as in
//! PostgreSQL.
//!
//! # Limits
//! PostgreSQL's MD5 form is refused: no client is asked for it here.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pgwire::api::auth::sasl::scram::{ScramSecret, gen_salted_password};
use telesto_sql_types::error::{Error, Result};

/// Iterations of the key derivation, as PostgreSQL's default.
const ITERATIONS: usize = 4096;
/// Iterations up to which a verifier is looked at for being that of the empty password.
const MOST_ITERATIONS: usize = 100_000;
const KEY_BYTES: usize = 32;
const PREFIX: &str = "SCRAM-SHA-256$";

/// What is kept of a password: its verifier; a verifier is kept as it is.
pub(super) fn verifier(text: &str, salt: u128) -> Result<String> {
    if is_verifier(text) {
        return Ok(text.to_owned());
    }
    if text.len() == 35
        && text.starts_with("md5")
        && text[3..].bytes().all(|b| b.is_ascii_hexdigit())
    {
        return Err(Error::unsupported("an MD5 password")
            .hint("Give the password, or its SCRAM-SHA-256 verifier."));
    }
    let salt = salt.to_be_bytes().to_vec();
    let salted = gen_salted_password(text, &salt, ITERATIONS);
    match ScramSecret::verifier_from_salted_password(salt, salted, ITERATIONS) {
        ScramSecret::Verifier { salt, iterations, stored_key, server_key } => Ok(format!(
            "{PREFIX}{iterations}:{}${}:{}",
            STANDARD.encode(&salt),
            STANDARD.encode(&stored_key),
            STANDARD.encode(&server_key)
        )),
        ScramSecret::SaltedPassword { .. } => Err(Error::internal("no verifier was made")),
    }
}

/// Whether `text` is the empty password or its verifier, which nobody may log in with.
pub(super) fn is_of_nothing(text: &str) -> bool {
    let proves_nothing = || {
        let (head, keys) = text.strip_prefix(PREFIX)?.split_once('$')?;
        let (iterations, salt) = head.split_once(':')?;
        // Deriving takes as long as the text says: more than this is not tried.
        let iterations = iterations.parse().ok().filter(|count| *count <= MOST_ITERATIONS)?;
        let salt = STANDARD.decode(salt).ok()?;
        let salted = gen_salted_password("", &salt, iterations);
        let made = ScramSecret::verifier_from_salted_password(salt, salted, iterations);
        let ScramSecret::Verifier { stored_key, .. } = made else { return None };
        Some(keys.split(':').next()? == STANDARD.encode(&stored_key))
    };
    text.is_empty() || proves_nothing() == Some(true)
}

fn is_verifier(text: &str) -> bool {
    let parts = || {
        let (head, keys) = text.strip_prefix(PREFIX)?.split_once('$')?;
        let (iterations, salt) = head.split_once(':')?;
        let (stored, server) = keys.split_once(':')?;
        iterations.parse::<usize>().ok().filter(|count| *count >= ITERATIONS)?;
        let key = |part: &str| STANDARD.decode(part).ok().filter(|key| key.len() == KEY_BYTES);
        STANDARD.decode(salt).ok().filter(|salt| !salt.is_empty())?;
        key(stored)?;
        key(server)
    };
    parts().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_kept_as_a_verifier_with_its_salt() {
        let one = verifier("pencil", 1).expect("made");
        assert!(is_verifier(&one), "{one}");
        assert!(!one.contains("pencil"));
        assert_ne!(one, verifier("pencil", 2).expect("another salt"));
        assert_eq!(verifier(&one, 3).expect("kept"), one);
    }

    #[test]
    fn verifier_of_the_empty_password_is_told() {
        let nothing = "SCRAM-SHA-256$4096:hpFyHTUsSWcR7O9P$LgZFIt6Oqdo27ZFKbZ2nV+vtnYM995pDh9ca6WSi120=:qVV5NeluNfUPkwm7Vqat25RjSPLkGeoZBQs6wVv+um4=";
        assert!(is_of_nothing("") && is_of_nothing(nothing));
        assert!(!is_of_nothing("pencil") && !is_of_nothing(&verifier("pencil", 1).expect("made")));
    }

    #[test]
    fn text_that_only_looks_like_a_verifier_is_a_password() {
        let damaged = "SCRAM-SHA-256$4096:YQ==$YQ==:YQ==";
        let made = verifier(damaged, 1).expect("made");
        assert!(made != damaged && is_verifier(&made), "{made}");
        assert!(verifier("md5d41d8cd98f00b204e9800998ecf8427e", 1).is_err());
    }
}
