//! The figures of the node's own prober, and of a latency board that runs somewhere:
//! `telesto board --listen`.
//!
//! # Purpose
//! Puts what a board saw from the outside, the one thing in the console that is no SQL, beside what
//! the node's prober saw.
//!
//! # Invariants
//! - Asked of the one address that the server was started with, never of one that a visitor names:
//!   once, no redirects, no proxy.
//! - What it answers is data: bounded by [`MOST`], and shown escaped.
//!
//! # On failure
//! The reason is shown in the figures' place.
//!
//! # Limits
//! [`PATIENCE`]; plain HTTP; three of the board's windows, four of the prober's.

use std::time::Duration;

use axum::http::StatusCode;
use reqwest::{Client, Url, redirect};
use serde::{Deserialize, Serialize};
use telesto_common::Env;

use super::Part;
use crate::error::Problem;
use crate::query::{Column, Reader, Table};
use crate::routes::Console;

/// Bytes of an answer.
const MOST: usize = 4 << 20;
/// Time for it.
const PATIENCE: Duration = Duration::from_secs(5);
const WINDOWS: [&str; 3] = ["1h", "1d", "30d"];

/// What the node's prober tells. A number that is not there is unknown, and said to be; no share is
/// rounded up: not every operation was one that succeeded.
const OWN: &str = "SELECT target, operation, span AS window, operations, \
    coalesce(round(p50_ms::numeric, 2)::text, 'unknown') AS p50_ms, coalesce(round(p90_ms::numeric, 2)::text, 'unknown') AS p90_ms, \
    coalesce(round(p99_ms::numeric, 2)::text, CASE WHEN operations > 0 THEN 'failed' ELSE 'unknown' END) AS p99_ms, \
    coalesce(round(p999_ms::numeric, 2)::text, CASE WHEN operations > 0 THEN 'failed' ELSE 'unknown' END) AS p999_ms, \
    coalesce(trunc((availability * 100)::numeric, 4)::text || ' %', 'unknown') AS available, trunc(nines::numeric, 1) AS nines, \
    CASE WHEN promise_kept IS NULL THEN 'unknown' WHEN promise_kept THEN 'kept' ELSE 'broken' END AS promise, \
    round(unknown_seconds::numeric) AS unknown_seconds \
    FROM telesto_board_figures WHERE span IN ('1h', '1d', '30d', '1y') ORDER BY target, operation, since DESC";

/// The board.
#[derive(Clone, Debug, Serialize)]
pub struct Board {
    /// What the node's prober saw.
    pub own: Part,
    /// Where its own page is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    pub figures: Part,
}

#[derive(Deserialize)]
struct Report {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    error: Option<String>,
    operations: Vec<Operation>,
}

#[derive(Deserialize)]
struct Operation {
    operation: String,
    windows: Vec<Window>,
}

#[derive(Deserialize)]
struct Window {
    window: String,
    operations: u64,
    latency_ms: Latency,
    availability: Option<f64>,
    promise_kept: Option<bool>,
}

#[derive(Deserialize)]
struct Latency {
    p50: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
}

/// Reads the address of a board.
///
/// # Errors
/// What is wrong with it.
pub fn address(text: &str) -> Result<Url, String> {
    let wrong = |why: &str| {
        format!(
            "--console-board {text:?} {why}; write http://HOST:PORT, where telesto board --listen serves"
        )
    };
    let url = Url::parse(text).map_err(|error| wrong(&format!("is no URL ({error})")))?;
    if url.scheme() != "http" || url.host_str().is_none() {
        return Err(wrong("is no http URL"));
    }
    Ok(url)
}

pub async fn load(reader: &Reader, console: &Console) -> Board {
    let own = match console.options.probes {
        true => Part::of(reader, OWN).await,
        false => {
            let missing = "This node does not probe itself: start it with --probe 1.".to_owned();
            Part::Missing { missing }
        }
    };
    let Some(url) = &console.options.board else {
        let missing =
            "No board is known here: start the server with --console-board http://HOST:PORT.";
        return Board { own, page: None, figures: Part::Missing { missing: missing.to_owned() } };
    };
    let (page, figures) = outside(console.inside.env(), url).await;
    Board { own, page: Some(page), figures }
}

async fn outside(env: &Env, url: &Url) -> (String, Part) {
    let read = env.within(env.deadline(PATIENCE), "the board", read(url)).await;
    let read =
        read.unwrap_or_else(|_| Err(format!("it gave no answer within {} s", PATIENCE.as_secs())));
    let figures = read.and_then(|body| table(&body)).map_err(|why| {
        Problem::new(
            StatusCode::BAD_GATEWAY,
            "board",
            format!("the board at {url} shows nothing: {why}; see that telesto board --listen runs there"),
        )
    });
    (url.to_string(), figures.into())
}

async fn read(url: &Url) -> Result<Vec<u8>, String> {
    let text = |error: reqwest::Error| error.to_string();
    let client =
        Client::builder().no_proxy().redirect(redirect::Policy::none()).build().map_err(text)?;
    let mut at = url.clone();
    at.set_path("/board.json");
    let mut answer =
        client.get(at).send().await.and_then(reqwest::Response::error_for_status).map_err(text)?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(text)? {
        if body.len() + chunk.len() > MOST {
            return Err(format!("its answer has more than {MOST} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn table(body: &[u8]) -> Result<Table, String> {
    let report: Report = serde_json::from_slice(body)
        .map_err(|error| format!("its answer is no board's ({error})"))?;
    let column = |(name, number): (&str, bool)| Column {
        name: name.to_owned(),
        kind: String::new(),
        number,
    };
    let columns = [
        ("target", false),
        ("operation", false),
        ("window", false),
        ("operations", true),
        ("p50_ms", true),
        ("p99_ms", true),
        ("p999_ms", true),
        ("availability", true),
        ("promise", false),
        ("error", false),
    ];
    let millis = |value: Option<f64>| value.map(|value| format!("{value:.2}"));
    let mut rows = Vec::new();
    for target in &report.targets {
        for operation in &target.operations {
            for window in
                operation.windows.iter().filter(|own| WINDOWS.contains(&own.window.as_str()))
            {
                let promise = match window.promise_kept {
                    Some(true) => "kept",
                    Some(false) => "broken",
                    None => "unknown",
                };
                rows.push(vec![
                    Some(target.name.clone()),
                    Some(operation.operation.clone()),
                    Some(window.window.clone()),
                    Some(window.operations.to_string()),
                    millis(window.latency_ms.p50),
                    millis(window.latency_ms.p99),
                    millis(window.latency_ms.p999),
                    window.availability.and_then(|share| crate::show::share(share, 1.0)),
                    Some(promise.to_owned()),
                    target.error.clone(),
                ]);
            }
        }
    }
    Ok(Table { columns: columns.map(column).to_vec(), rows, ..Table::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_a_board_becomes_rows() {
        let body = br#"{"board": "b", "targets": [{"name": "telesto", "error": null, "operations": [{"operation": "read", "windows": [
            {"window": "run", "operations": 1, "latency_ms": {"p50": 1, "p99": 1, "p999": 1, "max": 1}, "availability": 1.0, "promise_kept": true},
            {"window": "1h", "operations": 600, "latency_ms": {"p50": 0.81, "p99": null, "p999": null}, "availability": 0.99999, "promise_kept": false}]}]}]}"#;
        let table = table(body).expect("reads");
        assert_eq!(table.rows.len(), 1);
        assert_eq!(table.first("p50_ms"), Some("0.81"));
        assert_eq!(table.first("p99_ms"), None);
        assert_eq!(table.first("availability"), Some("99.99 %"));
        assert_eq!(table.first("promise"), Some("broken"));
        assert!(super::table(b"<html>").is_err() && super::table(b"{}").is_err());
    }

    #[test]
    fn address_of_a_board_is_plain_http() {
        assert!(address("http://127.0.0.1:8090").is_ok());
        for bad in ["", "127.0.0.1:8090", "https://x", "file:///etc/passwd", "gopher://x"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
