//! Bucket URLs.
//!
//! # Invariants
//! - Equal places parse to equal locations: a trailing slash makes no difference, local paths are
//!   made absolute.
//! - Credentials inside a URL are refused, and the refused URL is not repeated with them.

use std::path::{Component, Path as FilePath, PathBuf};

use object_store::path::Path;
use url::Url;

use crate::error::{Error, Result};

/// Where a bucket lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// A local folder.
    Local { folder: PathBuf },
    /// A store of this process, by name.
    Memory { name: String },
    /// S3 or anything that speaks its protocol.
    S3 { bucket: String, prefix: Path },
    /// Google Cloud Storage.
    Gcs { bucket: String, prefix: Path },
    /// Azure Blob Storage.
    Azure { container: String, prefix: Path },
}

impl Location {
    /// Parses a URL or a local path that starts with `/`, `./` or `../`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad = |reason: &str| Error::BadUrl { url: shown(text), reason: reason.to_owned() };
        let text = text.trim();
        if text.is_empty() {
            return Err(bad("it is empty"));
        }
        if !text.contains("://") {
            let local = text.starts_with('/') || text == "." || text == "..";
            if local || text.starts_with("./") || text.starts_with("../") {
                return local_folder(FilePath::new(text)).map_err(|reason| bad(&reason));
            }
            return Err(bad("it has no scheme (a local folder is written /path or ./path)"));
        }
        if text.strip_prefix("file://").is_some_and(|path| !path.starts_with('/')) {
            return Err(bad("file:// needs an absolute path, as in file:///var/lib/telesto"));
        }
        let url = Url::parse(text).map_err(|error| bad(&error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad(
                "it holds credentials; give them by environment variables or settings instead",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it has a ? or # part; give options as settings instead"));
        }
        let host = url.host_str().unwrap_or_default().to_owned();
        let prefix = || Path::from_url_path(url.path()).map_err(|error| bad(&error.to_string()));
        let need_host = |kind: &str| {
            if host.is_empty() {
                Err(bad(&format!("the {kind}'s name is missing")))
            } else {
                Ok(host.clone())
            }
        };
        match url.scheme() {
            "file" => {
                let path = url.to_file_path().map_err(|()| bad("its path is not a local path"))?;
                local_folder(&path).map_err(|reason| bad(&reason))
            }
            "memory" => {
                let path = url.path().trim_matches('/');
                let name = if path.is_empty() { host } else { format!("{host}/{path}") };
                if name.is_empty() {
                    return Err(bad("memory:// needs a name, as in memory://test"));
                }
                Ok(Self::Memory { name })
            }
            "s3" | "s3a" => Ok(Self::S3 { bucket: need_host("bucket")?, prefix: prefix()? }),
            "gs" => Ok(Self::Gcs { bucket: need_host("bucket")?, prefix: prefix()? }),
            "az" | "azure" | "abfs" | "abfss" => {
                Ok(Self::Azure { container: need_host("container")?, prefix: prefix()? })
            }
            other => Err(bad(&format!("the scheme {other:?} is not known"))),
        }
    }

    /// The canonical URL, without credentials.
    pub(crate) fn url(&self) -> String {
        let join = |scheme: &str, host: &str, prefix: &Path| {
            if prefix.as_ref().is_empty() {
                format!("{scheme}://{host}")
            } else {
                format!("{scheme}://{host}/{prefix}")
            }
        };
        match self {
            Self::Local { folder } => format!("file://{}", folder.display()),
            Self::Memory { name } => format!("memory://{name}"),
            Self::S3 { bucket, prefix } => join("s3", bucket, prefix),
            Self::Gcs { bucket, prefix } => join("gs", bucket, prefix),
            Self::Azure { container, prefix } => join("az", container, prefix),
        }
    }
}

/// Makes a path absolute and free of `.` and `..` without asking the disk (the folder may not
/// exist yet).
fn local_folder(path: &FilePath) -> std::result::Result<Location, String> {
    let absolute = std::path::absolute(path).map_err(|error| error.to_string())?;
    let mut folder = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => {
                folder.pop();
            }
            Component::CurDir => {}
            other => folder.push(other),
        }
    }
    if folder.to_str().is_none() {
        return Err("the path is not UTF-8".to_owned());
    }
    if folder.parent().is_none() {
        return Err("the root folder cannot be a bucket".to_owned());
    }
    Ok(Location::Local { folder })
}

/// The URL as it may be shown: without user, password and query.
fn shown(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    match text.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = host.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_of_each_scheme_parses_and_prints_canonically() {
        for (given, canonical) in [
            ("s3://b/x/y/", "s3://b/x/y"),
            ("s3://b", "s3://b"),
            ("gs://b/p", "gs://b/p"),
            ("az://c/p", "az://c/p"),
            ("memory://t", "memory://t"),
            ("memory://t/u", "memory://t/u"),
            ("file:///var/lib/x/", "file:///var/lib/x"),
            ("/var/lib/../x", "file:///var/x"),
        ] {
            let location = Location::parse(given).expect(given);
            assert_eq!(location.url(), canonical);
            assert_eq!(Location::parse(canonical).expect(canonical), location);
        }
        let here = std::env::current_dir().expect("current folder");
        let expected = Location::Local { folder: here.join("telesto-data") };
        assert_eq!(Location::parse("./telesto-data").expect("relative"), expected);
    }

    #[test]
    fn url_that_cannot_be_used_is_refused_with_a_reason() {
        for (given, reason) in [
            ("", "empty"),
            ("telesto-data", "no scheme"),
            ("file://data", "absolute"),
            ("ftp://x/y", "scheme"),
            ("s3:///x", "name is missing"),
            ("memory://", "needs a name"),
            ("/", "root folder"),
            ("s3://b/p?x=1", "settings"),
        ] {
            let error = Location::parse(given).expect_err(given).to_string();
            assert!(error.contains(reason), "{given}: {error}");
        }
    }

    #[test]
    fn url_with_credentials_is_refused_without_repeating_them() {
        let error = Location::parse("s3://key:hush@bucket/p?sig=hush").expect_err("refused");
        assert!(!error.to_string().contains("hush"), "{error}");
        assert!(error.to_string().contains("credentials"));
    }
}
