//! Anything that speaks S3: a record is an object.
//!
//! # Invariants
//! A request is sent once; the library's retries are off.
//!
//! # On failure
//! What the store answers is [`Kind::Rejected`]; no answer is [`Kind::Unreachable`].
//!
//! # Limits
//! An update is a plain PUT: it makes an object that was not there. Credentials come from the
//! environment (`AWS_…`), region and endpoint from there or from the URL (`?region=…&endpoint=…`),
//! so that several stores can be targets at once.

use std::error::Error as _;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{self, TryStreamExt as _};
use object_store::aws::AmazonS3Builder;
use object_store::client::HttpError;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt as _, RetryConfig};
use reqwest::Url;

use crate::target::{Failure, Kind, Lane, Target, value};

/// Records written at once when loading.
const AT_ONCE: usize = 16;

/// A prefix of a store.
#[derive(Debug)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    address: String,
}

impl Objects {
    pub fn new(url: &Url) -> Result<Self, String> {
        let bucket = url.host_str().ok_or("it names no bucket")?;
        let retries = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retries);
        // The board's own time limit ends a request; the library's would be another kind of
        // failure.
        let mut client = ClientOptions::new().with_timeout_disabled();
        for (name, value) in url.query_pairs() {
            builder = match &*name {
                "region" => builder.with_region(value),
                "endpoint" => {
                    client = client.with_allow_http(value.starts_with("http://"));
                    builder.with_endpoint(value)
                }
                other => {
                    return Err(format!(
                        "nothing is known of ?{other}=; there are region and endpoint"
                    ));
                }
            };
        }
        if std::env::var("AWS_ALLOW_HTTP").is_ok_and(|allowed| allowed == "true") {
            client = client.with_allow_http(true);
        }
        let store = builder
            .with_client_options(client)
            .build()
            .map_err(|error| format!("no S3 client ({error})"))?;
        let prefix = Path::parse(url.path()).map_err(|error| error.to_string())?;
        let address = format!("s3://{bucket}/{prefix}");
        Ok(Self { store: Arc::new(store), prefix, address })
    }
}

#[async_trait]
impl Target for Objects {
    fn address(&self) -> &str {
        &self.address
    }

    async fn open(&self) -> Result<Box<dyn Lane>, Failure> {
        Ok(Box::new(Prefix { store: Arc::clone(&self.store), prefix: self.prefix.clone() }))
    }
}

struct Prefix {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

fn failure(error: &object_store::Error) -> Failure {
    let mut source: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(cause) = source {
        if cause.is::<HttpError>() {
            return Failure::of(Kind::Unreachable, error);
        }
        source = cause.source();
    }
    Failure::of(Kind::Rejected, error)
}

impl Prefix {
    fn path(&self, record: u64) -> Path {
        self.prefix.clone().join("telesto-board").join(format!("{record:012}"))
    }

    async fn put(&self, record: u64, value: String) -> Result<(), Failure> {
        let put = self.store.put(&self.path(record), value.into()).await;
        put.map(drop).map_err(|error| failure(&error))
    }
}

#[async_trait]
impl Lane for Prefix {
    async fn read(&mut self, record: u64) -> Result<Option<String>, Failure> {
        let found = match self.store.get(&self.path(record)).await {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        match found {
            Ok(bytes) => match String::from_utf8(bytes.into()) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(Failure::of(Kind::Wrong, &error)),
            },
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failure(&error)),
        }
    }

    async fn update(&mut self, record: u64, value: &str) -> Result<(), Failure> {
        self.put(record, value.to_owned()).await
    }

    async fn load(&mut self, records: Range<u64>) -> Result<(), Failure> {
        let this = &*self;
        stream::iter(records.map(Ok))
            .try_for_each_concurrent(AT_ONCE, |record| async move {
                this.put(record, value(record, 0)).await
            })
            .await
    }

    fn usable(&self) -> bool {
        true
    }
}
