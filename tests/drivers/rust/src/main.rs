//! Stock Rust drivers against a running server: `telesto-drivers tokio-postgres|sqlx URL`. Exits
//! non-zero at the first mismatch.

mod sqlx_suite;
mod tokio_suite;

use std::fmt::Debug;

/// Ends the process unless both are the same.
pub fn check<T: Debug + PartialEq<U>, U: Debug>(name: &str, found: T, expected: U) {
    if found != expected {
        println!("FAILED {name}\nexpected: {expected:?}\nfound:    {found:?}");
        std::process::exit(1);
    }
    println!("ok {name}");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [suite, url] if suite == "tokio-postgres" => tokio_suite::run(url).await?,
        [suite, url] if suite == "sqlx" => sqlx_suite::run(url).await?,
        _ => {
            eprintln!("usage: telesto-drivers tokio-postgres|sqlx postgres://USER@HOST:PORT/DATABASE");
            std::process::exit(2);
        }
    }
    println!("{}: all ok", arguments[0]);
    Ok(())
}
