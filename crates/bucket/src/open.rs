//! Opening a bucket: from a URL to the stack of stores.
//!
//! # Invariants
//! `object_store`'s own retries are off: it repeats conditional puts after 5xx answers, which may
//! have taken effect, and would then report our own object as another's.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use telesto_cipher::Keys;
use telesto_common::Env;

use crate::api::Cause;
use crate::clock::{Listening, StoreClock};
use crate::encrypted::Encrypted;
use crate::error::{Error, Result};
use crate::faults::Faulty;
use crate::hedge::Hedge;
use crate::keyring::Vault;
use crate::latency::Latent;
use crate::local::LocalStore;
use crate::location::Location;
use crate::memory::MemoryStore;
use crate::meter::Meter;
use crate::metered::Metered;
use crate::options::{BucketOptions, Hedging};
use crate::outcome::shown;
use crate::prices::PriceSheet;

/// An open bucket; see [`crate::Bucket`] for what it does.
pub struct OpenBucket {
    pub(crate) url: String,
    /// Whether listings come in key order, so that one may stop early.
    pub(crate) sorted: bool,
    pub(crate) store: Metered,
    /// What the store says of its time.
    pub(crate) clock: Arc<StoreClock>,
    pub(crate) operation_timeout: Duration,
    /// Of an encrypted database.
    vault: Option<Arc<Vault>>,
}

impl fmt::Debug for OpenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenBucket").field("url", &self.url).finish_non_exhaustive()
    }
}

impl OpenBucket {
    /// The meter of all requests to this bucket by this process.
    #[must_use]
    pub fn meter(&self) -> &Arc<Meter> {
        &self.store.meter
    }

    /// The data keys, when the database is encrypted: for what leaves memory by other ways than the
    /// bucket.
    #[must_use]
    pub fn keys(&self) -> Option<&Arc<Keys>> {
        self.vault.as_ref().map(|vault| vault.keys())
    }

    /// The same bucket, with what is read and written encrypted.
    pub(crate) fn with_vault(&self, vault: Arc<Vault>) -> Self {
        Self {
            url: self.url.clone(),
            sorted: self.sorted,
            store: self.store.clone(),
            clock: Arc::clone(&self.clock),
            operation_timeout: self.operation_timeout,
            vault: Some(vault),
        }
    }

    /// `store`, with what is read and written encrypted if the database is.
    pub(crate) fn layered(&self, store: Metered) -> Arc<dyn ObjectStore> {
        match &self.vault {
            None => Arc::new(store),
            Some(vault) => Arc::new(Encrypted { store, vault: Arc::clone(vault) }),
        }
    }

    pub(crate) fn metered(&self, cause: Cause) -> Metered {
        Metered { cause, ..self.store.clone() }
    }

    pub(crate) fn env(&self) -> &Env {
        &self.store.env
    }
}

/// From where a bucket is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReachedFrom {
    /// From this process alone: it is in memory.
    Process,
    /// From the processes of this machine: it is a folder.
    Machine,
    /// From the network.
    Network {
        /// The store's own address, where one is set.
        store: Option<IpAddr>,
    },
}

/// From where the bucket at `url` is reached. Makes no request of it; the name of an S3 endpoint is
/// looked up.
///
/// # Errors
/// [`Error::BadUrl`] when the URL cannot be used.
pub fn reached_from(url: &str, options: &BucketOptions) -> Result<ReachedFrom> {
    Ok(match Location::parse(url)? {
        Location::Local { .. } => ReachedFrom::Machine,
        Location::Memory { .. } => ReachedFrom::Process,
        Location::S3 { .. } => {
            ReachedFrom::Network { store: endpoint(options).as_deref().and_then(address_of) }
        }
        Location::Gcs { .. } | Location::Azure { .. } => ReachedFrom::Network { store: None },
    })
}

/// The address of an endpoint; a name is looked up.
fn address_of(endpoint: &str) -> Option<IpAddr> {
    let url = url::Url::parse(endpoint).ok()?;
    number(endpoint).or_else(|| {
        let name = (url.host_str()?, url.port_or_known_default()?);
        let mut found: Vec<IpAddr> = name.to_socket_addrs().ok()?.map(|at| at.ip()).collect();
        found.sort_by_key(IpAddr::is_ipv6);
        found.first().copied()
    })
}

/// The address in an endpoint's URL, if it is there by number.
fn number(endpoint: &str) -> Option<IpAddr> {
    match url::Url::parse(endpoint).ok()?.host()? {
        url::Host::Ipv4(address) => Some(address.into()),
        url::Host::Ipv6(address) => Some(address.into()),
        url::Host::Domain("localhost") => Some(Ipv4Addr::LOCALHOST.into()),
        url::Host::Domain(_) => None,
    }
}

/// Opens the bucket at `url`: `file:///…`, a local path (`/…`, `./…`), `memory://name` (shared by
/// all who open that name in this process), `s3://bucket/prefix`, `gs://…` or `az://…`. Makes no
/// request; see [`crate::probe_conditional_put`] for the check a first start owes, and
/// [`crate::keyring::unlock`] for databases that may be encrypted.
///
/// # Errors
/// [`Error::BadUrl`] when the URL, or a setting it needs, cannot be used.
pub fn open(url: &str, options: &BucketOptions, env: Env) -> Result<Arc<OpenBucket>> {
    let location = Location::parse(url)?;
    let endpoint = endpoint(options);
    let prices = match &options.prices {
        Some(prices) => prices.clone(),
        None => PriceSheet::for_location(&location, endpoint.as_deref())?,
    };
    let bad =
        |error: object_store::Error| Error::BadUrl { url: location.url(), reason: shown(&error) };
    let clock = options.clock.clone().unwrap_or_default();
    let connector = || Listening(Arc::clone(&clock));
    let store: Arc<dyn ObjectStore> = match &location {
        Location::Local { folder } => {
            let local = LocalStore::open(folder, env.clone()).map_err(bad)?;
            let collector = local.clone();
            env.spawn("temporary file collection", async move {
                if let Err(error) = collector.collect_temporary().await {
                    tracing::warn!(error = %shown(&error), "temporary files were not collected");
                }
            });
            Arc::new(local)
        }
        Location::Memory { name } => Arc::new(MemoryStore::named(name, &env.clock)),
        Location::S3 { bucket, prefix } => {
            let mut builder = if options.environment {
                AmazonS3Builder::from_env()
            } else {
                AmazonS3Builder::new()
            };
            builder = builder
                .with_retry(no_retries())
                .with_client_options(client(options, "aws_"))
                .with_http_connector(connector());
            for (key, value) in &options.settings {
                if let Ok(key) = key.to_ascii_lowercase().parse() {
                    builder = builder.with_config(key, value);
                }
            }
            if endpoint.as_deref().is_some_and(is_loopback) {
                builder = builder.with_allow_http(true);
            }
            Arc::new(PrefixStore::new(
                builder.with_bucket_name(bucket).build().map_err(bad)?,
                prefix.clone(),
            ))
        }
        Location::Gcs { bucket, prefix } => {
            let mut builder = if options.environment {
                GoogleCloudStorageBuilder::from_env()
            } else {
                GoogleCloudStorageBuilder::new()
            };
            builder = builder
                .with_retry(no_retries())
                .with_client_options(client(options, "google_"))
                .with_http_connector(connector());
            for (key, value) in &options.settings {
                if let Ok(key) = key.to_ascii_lowercase().parse() {
                    builder = builder.with_config(key, value);
                }
            }
            Arc::new(PrefixStore::new(
                builder.with_bucket_name(bucket).build().map_err(bad)?,
                prefix.clone(),
            ))
        }
        Location::Azure { container, prefix } => {
            let mut builder = if options.environment {
                MicrosoftAzureBuilder::from_env()
            } else {
                MicrosoftAzureBuilder::new()
            };
            builder = builder
                .with_retry(no_retries())
                .with_client_options(client(options, "azure_"))
                .with_http_connector(connector());
            for (key, value) in &options.settings {
                if let Ok(key) = key.to_ascii_lowercase().parse() {
                    builder = builder.with_config(key, value);
                }
            }
            Arc::new(PrefixStore::new(
                builder.with_container_name(container).build().map_err(bad)?,
                prefix.clone(),
            ))
        }
    };
    let remote = !matches!(location, Location::Local { .. } | Location::Memory { .. });
    let sorted = match &location {
        // Directory buckets list in no particular order.
        Location::S3 { bucket, .. } => !bucket.ends_with("--x-s3"),
        _ => true,
    };
    Ok(assemble(store, location.url(), options, clock, env, prices, remote, sorted))
}

/// A bucket over a store of the caller's (the simulation's shared [`MemoryStore`], a store with
/// planted bugs). Listings of `store` must be in key order.
///
/// # Errors
/// [`Error::BadConfig`] when the price sheet cannot be used.
pub fn over(
    store: Arc<dyn ObjectStore>,
    url: &str,
    options: &BucketOptions,
    env: Env,
) -> Result<Arc<OpenBucket>> {
    let prices = match &options.prices {
        Some(prices) => prices.clone(),
        None => PriceSheet::builtin("free")?,
    };
    let clock = options.clock.clone().unwrap_or_default();
    Ok(assemble(store, url.to_owned(), options, clock, env, prices, false, true))
}

/// As [`over`], for a store whose listings are in no particular order.
///
/// # Errors
/// As [`over`].
pub fn over_unordered(
    store: Arc<dyn ObjectStore>,
    url: &str,
    options: &BucketOptions,
    env: Env,
) -> Result<Arc<OpenBucket>> {
    let prices = match &options.prices {
        Some(prices) => prices.clone(),
        None => PriceSheet::builtin("free")?,
    };
    let clock = options.clock.clone().unwrap_or_default();
    Ok(assemble(store, url.to_owned(), options, clock, env, prices, false, false))
}

#[allow(clippy::too_many_arguments, reason = "made in one place, from its parts")]
fn assemble(
    mut store: Arc<dyn ObjectStore>,
    url: String,
    options: &BucketOptions,
    clock: Arc<StoreClock>,
    env: Env,
    prices: PriceSheet,
    remote: bool,
    sorted: bool,
) -> Arc<OpenBucket> {
    if let Some(faults) = &options.faults {
        store = Arc::new(Faulty::new(store, Arc::clone(faults)));
    }
    if let Some(model) = options.latency {
        store = Arc::new(Latent::new(store, model, env.clone()));
    }
    let hedged = match options.hedging {
        Hedging::Auto => remote,
        Hedging::Off => false,
        Hedging::On => true,
    };
    let store = Metered {
        inner: store,
        meter: Meter::new(prices),
        hedge: hedged.then(|| Arc::new(Hedge::default())),
        env,
        cause: Cause::Admin,
        request_timeout: options.request_timeout,
    };
    let operation_timeout = options.operation_timeout;
    let fixed = |keys: &Arc<Keys>| Arc::new(Vault::fixed(Arc::clone(keys), store.env.clone()));
    let vault = options.keys.as_ref().map(fixed);
    Arc::new(OpenBucket { url, sorted, store, clock, operation_timeout, vault })
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::from_secs(30), ..RetryConfig::default() }
}

/// HTTP client settings: from the environment and the settings, with our time-outs as the ground.
/// The client's own time-out only backs up ours.
fn client(options: &BucketOptions, prefix: &str) -> ClientOptions {
    let mut client = ClientOptions::new()
        .with_connect_timeout(options.request_timeout.min(Duration::from_secs(5)))
        .with_timeout(Duration::from_secs(600));
    let environment = std::env::vars_os()
        .filter(|_| options.environment)
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    for (key, value) in environment.chain(options.settings.clone()) {
        let key = key.to_ascii_lowercase();
        if let Some(Ok(key)) = key.strip_prefix(prefix).map(str::parse) {
            client = client.with_config(key, value);
        }
    }
    client
}

/// The S3 endpoint in force, if one is set.
fn endpoint(options: &BucketOptions) -> Option<String> {
    let names = ["aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint"];
    let set = |name: &&str| {
        options
            .settings
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.clone())
    };
    let environment = |name: &&str| {
        std::env::var(name.to_ascii_uppercase()).ok().filter(|value| !value.is_empty())
    };
    names
        .iter()
        .find_map(set)
        .or_else(|| names.iter().filter(|_| options.environment).find_map(environment))
}

/// Whether an endpoint is on this machine, where plain HTTP is nobody's business.
fn is_loopback(endpoint: &str) -> bool {
    number(endpoint).is_some_and(|address| address.is_loopback())
}

/// The key as a store path. Only a key in canonical form is taken: two spellings of one object
/// would be two keys to everybody above.
pub(crate) fn path(key: &str) -> Result<Path> {
    let refused = |reason: String| Error::Refused { key: key.to_owned(), reason };
    let path = Path::parse(key).map_err(|error| refused(error.to_string()))?;
    if path.as_ref() != key {
        return Err(refused("a key neither starts nor ends with a slash".to_owned()));
    }
    Ok(path)
}
