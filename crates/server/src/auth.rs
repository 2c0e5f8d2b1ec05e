//! Users and their SCRAM-SHA-256 verifiers (RFC 5802, RFC 7677), in PostgreSQL's stored form.
//!
//! # Purpose
//! A users file holds one `"user" "SCRAM-SHA-256$iterations:salt$stored key:server key"` a line,
//! the form of PgBouncer's `userlist.txt` and of `pg_authid.rolpassword`. No password is stored.
//!
//! # Invariants
//! - A user who does not exist gets the same dialogue as one with a wrong password: a made-up salt
//!   that is stable for that name and this process, and a verifier that no password fits.
//! - Keys never appear in `Debug` output.
//!
//! # Limits
//! Names are at most 63 bytes, files at most 4 MiB. The file is read at start.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pgwire::api::auth::sasl::scram::{ScramSecret, gen_salted_password};
use telesto_common::Env;
use telesto_sql::session::users::LogIn;

use crate::error::{Error, Result};

/// Iterations of the key derivation for new verifiers, as PostgreSQL's default.
pub const ITERATIONS: usize = 4096;
/// What a guesser waits after each wrong password.
pub const WRONG_PASSWORD_DELAY: Duration = Duration::from_millis(300);
const MAX_ITERATIONS: usize = 1_000_000;
const KEY_BYTES: usize = 32;
const SALT_BYTES: usize = 16;
const MAX_FILE_BYTES: u64 = 4 << 20;

/// What the server keeps of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    salt: Vec<u8>,
    iterations: usize,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

impl Verifier {
    /// The verifier of `password` with a fresh salt.
    #[must_use]
    pub fn of_password(env: &Env, password: &str) -> Self {
        Self::with_salt(password, env.random_u128().to_be_bytes().to_vec(), ITERATIONS)
    }

    fn with_salt(password: &str, salt: Vec<u8>, iterations: usize) -> Self {
        let salted = gen_salted_password(password, &salt, iterations);
        match ScramSecret::verifier_from_salted_password(salt, salted, iterations) {
            ScramSecret::Verifier { salt, iterations, stored_key, server_key } => {
                Self { salt, iterations, stored_key, server_key }
            }
            ScramSecret::SaltedPassword { salt, .. } => {
                // The constructor is documented to return a verifier; this one accepts nobody.
                Self { salt, iterations, stored_key: vec![0; KEY_BYTES], server_key: Vec::new() }
            }
        }
    }

    /// Reads PostgreSQL's text form.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> std::result::Result<Self, &'static str> {
        let rest = text.strip_prefix("SCRAM-SHA-256$").ok_or("it is no SCRAM-SHA-256 verifier")?;
        let (head, keys) = rest.split_once('$').ok_or("the keys are missing")?;
        let (iterations, salt) = head.split_once(':').ok_or("the salt is missing")?;
        let (stored, server) = keys.split_once(':').ok_or("the server key is missing")?;
        let iterations =
            iterations.parse::<usize>().map_err(|_| "the iteration count is no number")?;
        if !(ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
            return Err("the iteration count is outside 4096 to 1000000");
        }
        let decode = |part: &str| STANDARD.decode(part).map_err(|_| "a part is not base64");
        let (salt, stored_key, server_key) = (decode(salt)?, decode(stored)?, decode(server)?);
        if salt.is_empty() || stored_key.len() != KEY_BYTES || server_key.len() != KEY_BYTES {
            return Err("a part has the wrong length");
        }
        Ok(Self { salt, iterations, stored_key, server_key })
    }

    /// For the SCRAM dialogue.
    #[must_use]
    pub fn secret(&self) -> ScramSecret {
        ScramSecret::Verifier {
            salt: self.salt.clone(),
            iterations: self.iterations,
            stored_key: self.stored_key.clone(),
            server_key: self.server_key.clone(),
        }
    }

    /// Whether `password` is the one this was made of. Takes milliseconds by design.
    #[must_use]
    pub fn accepts(&self, password: &str) -> bool {
        let other = Self::with_salt(password, self.salt.clone(), self.iterations);
        // Compared in constant time: every byte is looked at.
        let differing = other
            .stored_key
            .iter()
            .zip(&self.stored_key)
            .fold(0u8, |differing, (a, b)| differing | (a ^ b));
        differing == 0 && other.stored_key.len() == self.stored_key.len()
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SCRAM-SHA-256${}:{}${}:{}",
            self.iterations,
            STANDARD.encode(&self.salt),
            STANDARD.encode(&self.stored_key),
            STANDARD.encode(&self.server_key)
        )
    }
}

/// Who may connect.
#[derive(Debug)]
pub struct Users {
    users: BTreeMap<String, Verifier>,
    /// Makes the salts of users who do not exist.
    mock_seed: u128,
}

impl Users {
    /// These users.
    #[must_use]
    pub fn new(env: &Env, users: BTreeMap<String, Verifier>) -> Self {
        Self { users, mock_seed: env.random_u128() }
    }

    /// Reads a users file: see the module's page.
    ///
    /// # Errors
    /// [`Error::Users`] names the line.
    pub fn read(env: &Env, path: &Path) -> Result<Self> {
        let fail =
            |line: usize, reason: String| Error::Users { path: path.to_owned(), line, reason };
        let size = std::fs::metadata(path).map_err(|error| fail(0, error.to_string()))?.len();
        if size > MAX_FILE_BYTES {
            return Err(fail(0, format!("it has {size} bytes, at most {MAX_FILE_BYTES} are read")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| fail(0, error.to_string()))?;
        let mut users = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with(';') || line.starts_with('#') {
                continue;
            }
            let (user, verifier) = two_quoted(line)
                .ok_or_else(|| fail(number, "expected two quoted texts".to_owned()))?;
            if user.is_empty() || user.len() > 63 {
                return Err(fail(number, "a user name has 1 to 63 bytes".to_owned()));
            }
            let verifier =
                Verifier::parse(verifier).map_err(|reason| fail(number, reason.to_owned()))?;
            if users.insert(user.to_owned(), verifier).is_some() {
                return Err(fail(number, format!("user {user:?} is there twice")));
            }
        }
        if users.is_empty() {
            return Err(fail(0, "it names no user".to_owned()));
        }
        Ok(Self::new(env, users))
    }

    /// Their names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.users.keys().cloned().collect()
    }

    /// The verifier of `user` by what the database knows of the role: its own password comes before
    /// that of the users file. One that no password fits where nobody may log in.
    #[must_use]
    pub fn verifier_of(&self, user: &str, known: &LogIn) -> Verifier {
        match known {
            LogIn::Role(Some(text)) => match Verifier::parse(text) {
                Ok(verifier) => verifier,
                Err(reason) => {
                    tracing::warn!(user, reason, "the stored password of a role cannot be used");
                    self.closed(user)
                }
            },
            LogIn::Role(None) => self.verifier(user),
            // Without a role a proven user gets as far as being told so.
            LogIn::Unknown => self.verifier(user),
            LogIn::Closed => self.closed(user),
        }
    }

    /// The verifier of `user`, or one that no password fits.
    #[must_use]
    pub fn verifier(&self, user: &str) -> Verifier {
        self.users.get(user).cloned().unwrap_or_else(|| self.closed(user))
    }

    /// A verifier that no password fits, always the same for a name.
    fn closed(&self, user: &str) -> Verifier {
        let seed = format!("{:032x}/{user}", self.mock_seed);
        let mut salt = gen_salted_password(&seed, b"salt of a user who does not exist", 1);
        salt.truncate(SALT_BYTES);
        // A stored key is a hash; that of all zeros has no known origin.
        Verifier {
            salt,
            iterations: ITERATIONS,
            stored_key: vec![0; KEY_BYTES],
            server_key: vec![0; KEY_BYTES],
        }
    }
}

/// Whether `password` fits `verifier`. The key is derived off the async threads.
pub async fn proves(env: &Env, verifier: Verifier, password: String) -> bool {
    env.blocking("checking a password", move || verifier.accepts(&password)).await == Ok(true)
}

/// `"a" "b"` taken apart; `""` inside a text is a quote and not allowed in our names.
fn two_quoted(line: &str) -> Option<(&str, &str)> {
    let (first, rest) = line.strip_prefix('"')?.split_once('"')?;
    let (second, rest) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
    rest.trim().is_empty().then_some((first, second))
}

/// The line of a users file.
#[must_use]
pub fn users_line(user: &str, verifier: &Verifier) -> String {
    format!("\"{user}\" \"{verifier}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn verifier_of_password_round_trips_and_accepts_only_it() {
        let env = telesto_runtime::env();
        let verifier = Verifier::of_password(&env, "pencil");
        let again = Verifier::parse(&verifier.to_string()).expect("parses");
        assert_eq!(again, verifier);
        assert!(again.accepts("pencil"));
        assert!(!again.accepts("pencils"));
        assert!(!format!("{again:?}").contains(&STANDARD.encode(&again.stored_key)));
    }

    #[test]
    fn verifier_from_postgres_matches_its_password() {
        // RFC 7677 §3: salt W22ZaJ0SNY7soEsUEjb6gQ==, password "pencil", 4096 iterations.
        let text = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
        let verifier = Verifier::parse(text).expect("parses");
        assert!(verifier.accepts("pencil"));
        assert!(!verifier.accepts("Pencil"));
    }

    #[test]
    fn verifier_that_is_damaged_is_refused() {
        for text in
            ["", "md5abc", "SCRAM-SHA-256$1:YQ==$YQ==:YQ==", "SCRAM-SHA-256$4096:YQ==$YQ==:YQ=="]
        {
            assert!(Verifier::parse(text).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn users_file_with_a_bad_line_names_it() {
        let env = telesto_runtime::env();
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("users");
        let good = users_line("ada", &Verifier::of_password(&env, "x"));
        std::fs::write(&path, format!("# people\n\n{good}\n")).expect("written");
        let users = Users::read(&env, &path).expect("read");
        assert!(users.verifier("ada").accepts("x"));
        assert!(!users.verifier("eve").accepts("x"));
        assert_eq!(users.verifier("eve").salt, users.verifier("eve").salt);
        assert_ne!(users.verifier("eve").salt, users.verifier("mallory").salt);
        std::fs::write(&path, format!("{good}\n\"bob\" \"secret\"\n")).expect("written");
        let error = Users::read(&env, &path).expect_err("a cleartext password");
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
