//! Style sheet and scripts, built from `web/` and compiled in.
//!
//! # Purpose
//! The bundle in `assets/dist` is part of the source, so that building the server needs no npm;
//! `make console-assets` makes it anew and a test stage holds the two against each other.
//!
//! # Invariants
//! - Every file that a page loads is one of these; their URLs carry a hash of their bytes, so that
//!   browsers may keep them for good.
//! - Compressed once, when first asked for.
//!
//! # On failure
//! A file that is none of these is 404.
//!
//! # Limits
//! gzip only: every browser takes it.

use std::io::Write as _;
use std::sync::OnceLock;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::error::Problem;

struct Asset {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
    made: OnceLock<Made>,
}

struct Made {
    hash: String,
    gzip: Vec<u8>,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! asset {
    ($name:literal, $kind:expr) => {
        Asset {
            name: $name,
            kind: $kind,
            bytes: include_bytes!(concat!("../assets/dist/", $name)),
            made: OnceLock::new(),
        }
    };
}

static ASSETS: [Asset; 6] = [
    asset!("app.css", "text/css; charset=utf-8"),
    asset!("app.js", SCRIPT),
    asset!("charts.js", SCRIPT),
    asset!("editor.js", SCRIPT),
    asset!("icon.svg", "image/svg+xml"),
    asset!("licences.txt", "text/plain; charset=utf-8"),
];

impl Asset {
    fn made(&self) -> &Made {
        self.made.get_or_init(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            // Writing into memory does not fail; if it did, the file would be sent as it is.
            let written = encoder.write_all(self.bytes).and_then(|()| encoder.finish());
            Made {
                hash: blake3::hash(self.bytes).to_hex()[..16].to_owned(),
                gzip: written.unwrap_or_default(),
            }
        })
    }
}

/// The URL of a file.
pub fn url(name: &str) -> String {
    let hash =
        ASSETS.iter().find(|asset| asset.name == name).map(|asset| asset.made().hash.as_str());
    format!("/assets/{name}?{}", hash.unwrap_or_default())
}

/// `GET /assets/{name}`
pub async fn get(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return Problem::new(StatusCode::NOT_FOUND, "not_found", "no such file").into_response();
    };
    let made = asset.made();
    let gzip = headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|accepted| accepted.to_str().ok())
        .is_some_and(|accepted| accepted.contains("gzip") && !made.gzip.is_empty());
    let kind = [
        (header::CONTENT_TYPE, asset.kind),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
        (header::VARY, "accept-encoding"),
    ];
    if gzip {
        (kind, [(header::CONTENT_ENCODING, "gzip")], made.gzip.as_slice()).into_response()
    } else {
        (kind, asset.bytes).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the first page loads, compressed; the editor's script comes with the SQL page only.
    #[test]
    fn first_load_stays_small() {
        let size = |name: &str| {
            let asset = ASSETS.iter().find(|asset| asset.name == name).expect("there");
            asset.made().gzip.len()
        };
        let first = size("app.css") + size("app.js") + size("charts.js") + size("icon.svg");
        assert!(first < 60_000, "{first}");
        assert!(first + size("editor.js") < 300_000, "{}", size("editor.js"));
    }

    #[test]
    fn nothing_comes_from_another_host() {
        for asset in ASSETS.iter().filter(|asset| !asset.kind.starts_with("text/plain")) {
            let text = String::from_utf8_lossy(asset.bytes);
            for loads in ["@import", "url(http", "src=\"http", "import(\"http", "fetch(\"http"] {
                assert!(!text.contains(loads), "{}: {loads}", asset.name);
            }
        }
    }
}
