//! The two worlds: latencies and prices of today's S3 and of the paper's.
//!
//! # Invariants
//! Figures of the paper are those of its Tables 1 and 2 and of §2; today's are the product's own
//! models and price sheets.
//!
//! # Limits
//! - Today's queue: 15 ms at the median and 30 ms at the 90th percentile a request are assumed, not
//!   measured.
//! - The paper's clients were outside of Amazon's network and paid for each byte; today's are in
//!   the bucket's region and do not.

use std::time::Duration;

use telesto_bucket::latency::{LatencyModel, Spread};
use telesto_bucket::{BucketOptions, Hedging, PriceSheet};

use crate::error::Result;

/// What requests to the queue service cost, dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueuePrices {
    pub name: &'static str,
    /// 1,000 messages sent.
    pub send_per_1000: f64,
    /// 1,000 receives or deletes.
    pub other_per_1000: f64,
    /// A gigabyte moved, either way.
    pub per_gb: f64,
}

/// Times of the queue service.
#[derive(Clone, Copy, Debug)]
pub struct QueueTimes {
    pub send: Spread,
    pub receive: Spread,
    pub delete: Spread,
}

/// A world.
#[derive(Clone, Debug)]
pub struct Setting {
    pub latency: LatencyModel,
    pub prices: PriceSheet,
    pub queue_times: QueueTimes,
    /// What dollars are printed with.
    pub queue_prices: QueuePrices,
    /// Another reading of the paper's prices.
    pub queue_prices_as_stated: Option<QueuePrices>,
    /// How long an overwritten object may still be read.
    pub lag: Duration,
}

const fn spread(p50: u64, p90: u64) -> Spread {
    Spread { p50: Duration::from_millis(p50), p90: Duration::from_millis(p90) }
}

/// §2.1: requests by thousands (a GET is a tenth of a PUT), every byte by the gigabyte (§6.1).
const PAPER_SHEET: &str = "[paper]
put_per_1000 = 0.01
get_per_1000 = 0.001
upload_per_gb = 0.18
download_per_gb = 0.18
storage_per_gb_month = 0.15
";

impl Setting {
    /// S3 Standard from inside its region.
    pub fn today() -> Result<Self> {
        Ok(Self {
            latency: LatencyModel::S3_STANDARD,
            prices: PriceSheet::builtin("s3-standard")?,
            queue_times: QueueTimes {
                send: spread(15, 30),
                receive: spread(15, 30),
                delete: spread(15, 30),
            },
            queue_prices: QueuePrices {
                name: "$0.0004 per 1,000 requests of any kind",
                send_per_1000: 0.0004,
                other_per_1000: 0.0004,
                per_gb: 0.0,
            },
            queue_prices_as_stated: None,
            lag: Duration::ZERO,
        })
    }

    /// November 2007. Table 1 is nearly a line: 0.103 s and 278,000 bytes a second (10 KB in 0.14
    /// s, 100 KB in 0.47 s where 0.45 was measured, 1 MB in 3.87 s); a write takes three times as
    /// long (§2.1). The variance was negligible (§6.3).
    pub fn paper() -> Result<Self> {
        Ok(Self {
            latency: LatencyModel {
                get: spread(103, 113),
                put: spread(309, 339),
                slow_share: 0.0,
                slow_factor: 1.0,
                bytes_per_second: 278_000,
                upload_bytes_per_second: 92_700,
            },
            prices: PriceSheet::from_toml("paper", PAPER_SHEET)?,
            queue_times: QueueTimes {
                send: spread(310, 340),
                receive: spread(160, 176),
                delete: spread(160, 176),
            },
            queue_prices: QueuePrices {
                name: "$0.10 per 1,000 requests of any kind",
                send_per_1000: 0.1,
                other_per_1000: 0.1,
                per_gb: 0.18,
            },
            queue_prices_as_stated: Some(QueuePrices {
                name: "$0.01 per 1,000 messages sent",
                send_per_1000: 0.01,
                other_per_1000: 0.0,
                per_gb: 0.18,
            }),
            lag: Duration::from_millis(500),
        })
    }

    /// How a process of this world reaches its bucket. The bounds on waits are long: an upload of
    /// some megabytes takes minutes in the paper's world.
    pub fn bucket(&self, hedging: Hedging) -> BucketOptions {
        BucketOptions {
            environment: false,
            request_timeout: Duration::from_secs(600),
            operation_timeout: Duration::from_secs(1800),
            hedging,
            prices: Some(self.prices.clone()),
            latency: Some(self.latency),
            ..BucketOptions::default()
        }
    }

    /// How long it takes until a PUT of `bytes` has returned and everybody reads what it wrote,
    /// nine times of ten. Its effect is in the middle.
    pub fn put_padding(&self, bytes: u64) -> Duration {
        let rate = self.latency.upload_bytes_per_second.max(1) as f64;
        let put = self.latency.put.p90 + Duration::from_secs_f64(bytes as f64 / rate);
        put.max(put / 2 + self.lag)
    }
}
