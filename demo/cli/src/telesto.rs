//! The telesto program, which the demos run as anybody would.
//!
//! # Invariants
//! It is what `TELESTO_BIN` names, else the file `telesto` beside this program, where cargo puts
//! both. No other is looked for: a demo of one version does not start nodes of another one that
//! happens to be installed.
//!
//! # On failure
//! Where it was looked for, and how to get it.

use std::path::{Path, PathBuf};

/// Names the program.
const VARIABLE: &str = "TELESTO_BIN";

/// Where it is.
///
/// # Errors
/// It is not there.
pub fn program() -> Result<PathBuf, String> {
    let own = std::env::current_exe()
        .map_err(|error| format!("this program does not know where it is ({error}); set {VARIABLE} to the telesto program"))?;
    find(std::env::var_os(VARIABLE).map(PathBuf::from), &own)
}

fn find(named: Option<PathBuf>, own: &Path) -> Result<PathBuf, String> {
    if let Some(named) = named {
        return match named.is_file() {
            true => Ok(named),
            false => Err(format!(
                "{VARIABLE} is {:?}, and no file is there; set it to the telesto program",
                named.display().to_string()
            )),
        };
    }
    let beside = own.with_file_name("telesto");
    match beside.is_file() {
        true => Ok(beside),
        false => Err(format!(
            "the demos run the telesto program, which is not at {}; build it (cargo build -p telesto), put it there, or set {VARIABLE} to it",
            beside.display()
        )),
    }
}

/// The folder `bucket` in `folder`, as a node is told of it.
///
/// # Errors
/// Its name is no UTF-8.
pub fn bucket_in(folder: &Path) -> Result<String, String> {
    let folder = std::path::absolute(folder.join("bucket"))
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let name = folder.to_str().map(str::to_owned);
    name.ok_or_else(|| {
        format!("the folder {} has no UTF-8 name; name another with --data-dir", folder.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_the_one_named_else_the_one_beside_and_its_absence_is_told() {
        let folder = tempfile::tempdir().expect("folder");
        let own = folder.path().join("telesto-demo");
        let beside = folder.path().join("telesto");
        let told = find(None, &own).expect_err("nothing is there");
        assert!(told.contains(&beside.display().to_string()) && told.contains(VARIABLE), "{told}");
        std::fs::write(&beside, "").expect("written");
        assert_eq!(find(None, &own), Ok(beside.clone()));
        // The one that is named is meant, even when another is there.
        let named = folder.path().join("other");
        let told = find(Some(named.clone()), &own).expect_err("nothing is there");
        assert!(told.contains(&named.display().to_string()), "{told}");
        std::fs::write(&named, "").expect("written");
        assert_eq!(find(Some(named.clone()), &own), Ok(named));
    }
}
