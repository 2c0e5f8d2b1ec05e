//! How to open a bucket.
//!
//! # Invariants
//! Secrets given as settings never appear in `Debug` output or messages.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use telesto_cipher::Keys;

use crate::clock::StoreClock;
use crate::faults::Faults;
use crate::latency::LatencyModel;
use crate::prices::PriceSheet;

/// Whether slow reads get a second request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hedging {
    /// On for remote stores, off for `file://` and `memory://`.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always (once enough reads were seen to know the p95).
    On,
}

/// How to open a bucket. `Default` suits production.
#[derive(Clone)]
pub struct BucketOptions {
    /// Store settings by the names of the `object_store` crate (`aws_endpoint_url`,
    /// `aws_access_key_id`, `aws_region`, `google_service_account`, `azure_storage_account_key`,
    /// …). They win over the environment.
    pub settings: BTreeMap<String, String>,
    /// Whether `AWS_*`, `GOOGLE_*` and `AZURE_*` environment variables are read.
    pub environment: bool,
    /// Bound on one request; one second more is given per 4 MiB of body.
    pub request_timeout: Duration,
    /// Bound on one call of [`crate::Bucket`], retries included.
    pub operation_timeout: Duration,
    /// Hedged second GET.
    pub hedging: Hedging,
    /// Price sheet; `None` chooses by the URL (see `docs/operating/prices.md`).
    pub prices: Option<PriceSheet>,
    /// Where a store of the caller's says what its clock is with each answer; `None`: only stores
    /// reached by HTTP tell the time.
    pub clock: Option<Arc<StoreClock>>,
    /// Encrypts everything with these keys, which never change. For simulation and tests: a
    /// database's own come from [`crate::keyring::unlock`].
    pub keys: Option<Arc<Keys>>,
    /// Adds modelled latency below the trait.
    pub latency: Option<LatencyModel>,
    /// Adds faults below the trait.
    pub faults: Option<Arc<Faults>>,
}

impl Default for BucketOptions {
    fn default() -> Self {
        Self {
            settings: BTreeMap::new(),
            environment: true,
            request_timeout: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(30),
            hedging: Hedging::Auto,
            prices: None,
            clock: None,
            keys: None,
            latency: None,
            faults: None,
        }
    }
}

impl fmt::Debug for BucketOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of settings may be secrets: names only.
        f.debug_struct("BucketOptions")
            .field("settings", &self.settings.keys().collect::<Vec<_>>())
            .field("environment", &self.environment)
            .field("request_timeout", &self.request_timeout)
            .field("operation_timeout", &self.operation_timeout)
            .field("hedging", &self.hedging)
            .field("prices", &self.prices)
            .field("latency", &self.latency)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_debug_hides_setting_values() {
        let mut options = BucketOptions::default();
        options.settings.insert("aws_secret_access_key".into(), "hush-hush".into());
        let text = format!("{options:?}");
        assert!(text.contains("aws_secret_access_key") && !text.contains("hush-hush"));
    }
}
