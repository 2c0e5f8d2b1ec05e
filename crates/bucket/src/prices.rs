//! Price sheets: what a request costs, in dollars.
//!
//! # Invariants
//! Prices are data: [`BUILTIN`] holds the known stores, a user's TOML file replaces or adds sheets.
//!
//! # Limits
//! Storage per month and traffic out of the region are not metered per request; the sheet's
//! `upload_per_gb` and `download_per_gb` are what the store charges inside its region.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use telesto_meter::{Rates, Resource};

use crate::error::{Error, Result};
use crate::location::Location;
use crate::meter::Class;

/// The built-in sheets, TOML.
pub const BUILTIN: &str = include_str!("prices.toml");

/// Bytes of a gigabyte as stores bill it (2^30).
const BILLED_GB: f64 = (1_u64 << 30) as f64;

/// What one store charges, dollars.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PriceSheet {
    /// The sheet's name.
    #[serde(skip)]
    pub name: String,
    /// 1,000 PUTs (each part of a large upload is one).
    pub put_per_1000: f64,
    /// 1,000 GETs or HEADs.
    pub get_per_1000: f64,
    /// 1,000 LISTs; the price of a PUT when left out.
    #[serde(default)]
    pub list_per_1000: Option<f64>,
    /// 1,000 DELETEs.
    #[serde(default)]
    pub delete_per_1000: f64,
    /// A gigabyte sent to the store.
    #[serde(default)]
    pub upload_per_gb: f64,
    /// A gigabyte read from the store.
    #[serde(default)]
    pub download_per_gb: f64,
    /// A gigabyte kept for a month.
    pub storage_per_gb_month: f64,
    /// A processor of a node for an hour.
    #[serde(default)]
    pub cpu_per_hour: f64,
    /// A gigabyte of a node's memory for an hour.
    #[serde(default)]
    pub memory_per_gb_hour: f64,
    /// A gigabyte sent to another node.
    #[serde(default)]
    pub peer_per_gb: f64,
}

impl PriceSheet {
    /// The sheet `name` out of `toml`, falling back to the built-in ones.
    ///
    /// # Errors
    /// [`Error::BadConfig`] when the text is not a price file, a price is negative or not finite,
    /// or no sheet has that name.
    pub fn from_toml(name: &str, toml: &str) -> Result<Self> {
        let bad = |reason: String| Error::BadConfig { name: name.to_owned(), reason };
        let mut sheets: BTreeMap<String, Self> =
            toml::from_str(BUILTIN).map_err(|error| bad(error.message().to_owned()))?;
        let user: BTreeMap<String, Self> =
            toml::from_str(toml).map_err(|error| bad(error.message().to_owned()))?;
        sheets.extend(user);
        let known = sheets.keys().cloned().collect::<Vec<_>>().join(", ");
        let mut sheet =
            sheets.remove(name).ok_or_else(|| bad(format!("no such sheet; there are: {known}")))?;
        name.clone_into(&mut sheet.name);
        let all = [
            sheet.put_per_1000,
            sheet.get_per_1000,
            sheet.list_per_1000.unwrap_or_default(),
            sheet.delete_per_1000,
            sheet.upload_per_gb,
            sheet.download_per_gb,
            sheet.storage_per_gb_month,
            sheet.cpu_per_hour,
            sheet.memory_per_gb_hour,
            sheet.peer_per_gb,
        ];
        if all.iter().any(|price| !price.is_finite() || *price < 0.0) {
            return Err(bad("a price is negative or not a number".to_owned()));
        }
        Ok(sheet)
    }

    /// The one sheet of a file.
    ///
    /// # Errors
    /// As [`PriceSheet::from_toml`]; also when the file has none or several.
    pub fn only_one(file: &str, toml: &str) -> Result<Self> {
        let bad = |reason: String| Error::BadConfig { name: file.to_owned(), reason };
        let sheets: BTreeMap<String, Self> =
            toml::from_str(toml).map_err(|error| bad(error.message().to_owned()))?;
        let names: Vec<String> = sheets.into_keys().collect();
        match &names[..] {
            [name] => Self::from_toml(name, toml),
            [] => Err(bad("there is no price sheet in it".to_owned())),
            several => Err(bad(format!(
                "there are several price sheets in it: say which, as in {file}#{}",
                several.join(&format!(" or {file}#"))
            ))),
        }
    }

    /// A built-in sheet: `s3-standard`, `s3-express`, `gcs-standard`, `r2` or `free`.
    ///
    /// # Errors
    /// [`Error::BadConfig`] when no sheet has that name.
    pub fn builtin(name: &str) -> Result<Self> {
        Self::from_toml(name, "")
    }

    /// The sheet for a location: by scheme, endpoint and bucket name. A store behind an endpoint of
    /// the user's own is free. Azure has no sheet of its own: S3 Standard's stands in for it.
    pub(crate) fn for_location(location: &Location, endpoint: Option<&str>) -> Result<Self> {
        let name = match location {
            Location::Local { .. } | Location::Memory { .. } => "free",
            Location::Gcs { .. } => "gcs-standard",
            Location::Azure { .. } => "s3-standard",
            Location::S3 { bucket, .. } => match endpoint {
                Some(url) if url.contains(".r2.cloudflarestorage.com") => "r2",
                Some(url) if !url.contains(".amazonaws.com") => "free",
                _ if bucket.ends_with("--x-s3") => "s3-express",
                _ => "s3-standard",
            },
        };
        Self::builtin(name)
    }

    /// The names of the sheets in `toml` and of the built-in ones.
    ///
    /// # Errors
    /// As [`PriceSheet::from_toml`].
    pub fn names(toml: &str) -> Result<Vec<String>> {
        let mut names = std::collections::BTreeSet::new();
        for text in [BUILTIN, toml] {
            let sheets: BTreeMap<String, Self> = toml::from_str(text).map_err(|error| {
                Error::BadConfig { name: "prices".to_owned(), reason: error.message().to_owned() }
            })?;
            names.extend(sheets.into_keys());
        }
        Ok(names.into_iter().collect())
    }

    /// Its prices of units.
    #[must_use]
    pub fn rates(&self) -> Rates {
        Rates::FREE
            .per_1000(Resource::Gets, self.get_per_1000)
            .per_1000(Resource::Puts, self.put_per_1000)
            .per_1000(Resource::Lists, self.list_per_1000.unwrap_or(self.put_per_1000))
            .per_1000(Resource::Deletes, self.delete_per_1000)
            .with(Resource::Sent, self.upload_per_gb, BILLED_GB)
            .with(Resource::Received, self.download_per_gb, BILLED_GB)
            .with(Resource::Peers, self.peer_per_gb, BILLED_GB)
            .with(Resource::Memory, self.memory_per_gb_hour, Resource::Memory.units() as f64)
            .with(Resource::Cpu, self.cpu_per_hour, 3600e9)
    }

    /// Dollars for `requests` of a class that moved these bytes.
    #[must_use]
    pub fn dollars(&self, class: Class, requests: u64, uploaded: u64, downloaded: u64) -> f64 {
        let per_1000 = match class {
            Class::Get | Class::Head => self.get_per_1000,
            Class::Put | Class::Copy => self.put_per_1000,
            Class::List => self.list_per_1000.unwrap_or(self.put_per_1000),
            Class::Delete => self.delete_per_1000,
        };
        requests as f64 * per_1000 / 1000.0
            + uploaded as f64 / BILLED_GB * self.upload_per_gb
            + downloaded as f64 / BILLED_GB * self.download_per_gb
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_sheets_price_requests_as_published() {
        let s3 = PriceSheet::builtin("s3-standard").expect("known");
        assert!((s3.dollars(Class::Put, 1000, 1 << 30, 0) - 0.005).abs() < 1e-12);
        assert!((s3.dollars(Class::List, 1000, 0, 0) - 0.005).abs() < 1e-12);
        assert!((s3.dollars(Class::Head, 1000, 0, 0) - 0.0004).abs() < 1e-12);
        let express = PriceSheet::builtin("s3-express").expect("known");
        assert!((express.dollars(Class::Put, 0, 1 << 30, 0) - 0.0032).abs() < 1e-12);
        assert!((express.dollars(Class::Get, 0, 0, 1 << 30) - 0.0006).abs() < 1e-12);
        for name in ["gcs-standard", "r2", "free"] {
            assert_eq!(PriceSheet::builtin(name).expect("known").name, name);
        }
    }

    #[test]
    fn user_sheet_replaces_builtin_and_bad_files_are_refused() {
        let mine =
            "[s3-standard]\nput_per_1000 = 1.0\nget_per_1000 = 2.0\nstorage_per_gb_month = 0";
        let sheet = PriceSheet::from_toml("s3-standard", mine).expect("parses");
        assert!((sheet.dollars(Class::Put, 1, 0, 0) - 0.001).abs() < 1e-12);
        assert_eq!(PriceSheet::only_one("f.toml", mine).expect("one").name, "s3-standard");
        let two = format!("{mine}\n{}", mine.replace("s3-standard", "mine"));
        let error = PriceSheet::only_one("f.toml", &two).expect_err("two").to_string();
        assert!(error.contains("f.toml#mine or f.toml#s3-standard"), "{error}");
        for (name, text, reason) in [
            ("nope", "", "there are: free, gcs-standard"),
            ("x", "[x]\nput = 1", "unknown field"),
            ("x", "[x]\nput_per_1000=-1\nget_per_1000=0\nstorage_per_gb_month=0", "negative"),
            ("x", "not toml", "expected"),
        ] {
            let error = PriceSheet::from_toml(name, text).expect_err(name).to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn sheet_is_chosen_by_store_and_endpoint() {
        let name = |url: &str, endpoint: Option<&str>| {
            let location = Location::parse(url).expect(url);
            PriceSheet::for_location(&location, endpoint).expect(url).name
        };
        assert_eq!(name("s3://b", None), "s3-standard");
        assert_eq!(name("s3://b--use1-az4--x-s3", None), "s3-express");
        assert_eq!(name("s3://b", Some("http://127.0.0.1:9000")), "free");
        assert_eq!(name("s3://b", Some("https://s3.eu-west-1.amazonaws.com")), "s3-standard");
        assert_eq!(name("s3://b", Some("https://a.r2.cloudflarestorage.com")), "r2");
        assert_eq!(name("gs://b", None), "gcs-standard");
        assert_eq!(name("memory://b", None), "free");
    }
}
