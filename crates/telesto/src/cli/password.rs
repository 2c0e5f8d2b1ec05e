//! `telesto hash-password`.

use std::io::{IsTerminal as _, Read as _};

use telesto_server::auth::{Verifier, users_line};

const MAX_PASSWORD_BYTES: u64 = 1024;

/// Reads a password, prints the users-file line.
///
/// # Errors
/// What is wrong with the user or the password.
pub fn run(user: &str) -> Result<(), String> {
    if user.is_empty() || user.len() > 63 || user.contains(['"', '\n', '\0']) {
        return Err("a user name has 1 to 63 bytes and no quotes or line breaks".to_owned());
    }
    if std::io::stdin().is_terminal() {
        eprintln!(
            "Password for {user} (it will be shown as you type; end with Enter, then Ctrl-D):"
        );
    }
    let mut password = String::new();
    std::io::stdin()
        .take(MAX_PASSWORD_BYTES)
        .read_to_string(&mut password)
        .map_err(|error| format!("the password cannot be read: {error}"))?;
    let password = password.trim_end_matches(['\n', '\r']);
    if password.is_empty() {
        return Err("the password is empty; type it, or pipe it in".to_owned());
    }
    let verifier = Verifier::of_password(&telesto_runtime::env(), password);
    println!("{}", users_line(user, &verifier));
    Ok(())
}
