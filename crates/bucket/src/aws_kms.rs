//! AWS KMS: key-encryption keys that never leave it.
//!
//! ```text
//! ring, or key of tables ─ wrap, unwrap ─► Encrypt, Decrypt (JSON over HTTPS, signed) ─► the key's region; at most TRIES times
//! ```
//! # Invariants
//! - The object that something is wrapped for is its encryption context: KMS opens it for no other,
//!   and its audit log names it.
//! - Decrypt names the key, so that nothing is opened that another key of the account has wrapped.
//! - A request that was sent twice does no harm: wrapping is not noted anywhere but in its answer.
//!
//! # On failure
//! What KMS says, and what would help. Where it is busy, has an error of its own, or is not
//! reached, it is asked again, about ten seconds in all.
//!
//! # Limits
//! Credentials are those of the environment, as for a bucket in S3 (variables, web identity,
//! container, instance); settings given for the bucket alone do not count here. Keys pass through
//! buffers of the HTTP client, which are not wiped.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsAuthorizer, AwsCredential};
use object_store::client::{HttpClient, HttpConnector as _, HttpRequest, ReqwestConnector};
use object_store::{ClientOptions, RetryConfig};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use telesto_cipher::{Kms, KmsError, KmsKey, WrappingKey};
use telesto_common::Env;
use zeroize::Zeroizing;

/// How often KMS is asked for one thing.
const TRIES: u32 = 4;
/// The pause after the first time; it doubles.
const PAUSE: Duration = Duration::from_millis(200);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The key of the encryption context.
const CONTEXT: &str = "telesto-object";

/// A client of AWS KMS.
pub struct AwsKms {
    env: Env,
    endpoint: Option<String>,
    /// By region: who knows the credentials.
    clients: Mutex<FxHashMap<String, (AmazonS3, HttpClient)>>,
}

impl fmt::Debug for AwsKms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsKms").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// What KMS says when it does not do something.
#[derive(Deserialize)]
struct Refusal {
    #[serde(rename = "__type", default)]
    kind: String,
    #[serde(alias = "Message", default)]
    message: String,
}

/// What the program does after an answer.
enum Answer {
    Done(Zeroizing<String>),
    Wrong,
    Again(String),
    Never(String),
}

impl AwsKms {
    /// `endpoint` stands for KMS of every region, as `AWS_ENDPOINT_URL_KMS` does for other
    /// programs. Makes no request.
    #[must_use]
    pub fn new(env: Env, endpoint: Option<String>) -> Self {
        Self { env, endpoint, clients: Mutex::default() }
    }

    /// A client for the region of `key`.
    fn client(&self, key: &KmsKey) -> Result<(AmazonS3, HttpClient), KmsError> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(key.region()) {
            return Ok(client.clone());
        }
        let failed = |error: object_store::Error| failed(key, &error.to_string());
        let plain = self.endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http:"));
        let options = ClientOptions::new()
            .with_connect_timeout(REQUEST_TIMEOUT)
            .with_timeout(REQUEST_TIMEOUT)
            .with_allow_http(plain);
        let http = ReqwestConnector::default().connect(&options).map_err(failed)?;
        let retry = RetryConfig { retry_timeout: REQUEST_TIMEOUT, ..RetryConfig::default() };
        // Only its credentials are used.
        let store = AmazonS3Builder::from_env()
            .with_bucket_name("telesto")
            .with_region(key.region())
            .with_retry(retry)
            .build()
            .map_err(failed)?;
        clients.insert(key.region().to_owned(), (store.clone(), http.clone()));
        Ok((store, http))
    }

    /// Has KMS do `action` with `body`; the field `field` of its answer.
    async fn ask(
        &self,
        key: &KmsKey,
        action: &str,
        body: &serde_json::Value,
        field: &str,
    ) -> Result<Zeroizing<Vec<u8>>, KmsError> {
        let (store, http) = self.client(key)?;
        let mut pause = PAUSE;
        for left in (0..TRIES).rev() {
            let credential = store.credentials().get_credential();
            let why =
                match self.env.within_timeout(REQUEST_TIMEOUT, "credentials", credential).await {
                    Err(late) => late.to_string(),
                    Ok(Err(error)) => format!("no credentials: {error}"),
                    Ok(Ok(credential)) => {
                        let request = self.signed(key, action, body, &credential)?;
                        match answer(&http, key, request, field).await {
                            Answer::Done(text) => {
                                let bytes = STANDARD.decode(text.as_bytes()).map(Zeroizing::new);
                                return bytes.map_err(|_| {
                                    failed(key, &format!("its answer has no {field} in base64"))
                                });
                            }
                            Answer::Wrong => return Err(KmsError::Wrong),
                            Answer::Never(why) => return Err(KmsError::Failed(why)),
                            Answer::Again(why) => why,
                        }
                    }
                };
            if left == 0 {
                return Err(failed(key, &format!("{why}; tried {TRIES} times")));
            }
            tracing::warn!(key = key.arn(), why, "AWS KMS is asked again");
            self.env.clock.sleep(pause).await;
            pause *= 2;
        }
        Err(failed(key, "it was not asked"))
    }

    fn signed(
        &self,
        key: &KmsKey,
        action: &str,
        body: &serde_json::Value,
        credential: &AwsCredential,
    ) -> Result<HttpRequest, KmsError> {
        let url = self.endpoint.clone().unwrap_or_else(|| key.endpoint());
        let url = format!("{}/", url.trim_end_matches('/'));
        let built = http::Request::post(&url)
            .header("content-type", "application/x-amz-json-1.1")
            .header("x-amz-target", format!("TrentService.{action}"))
            .body(body.to_string().into());
        let mut request = built.map_err(|error| failed(key, &format!("{url}: {error}")))?;
        AwsAuthorizer::new(credential, "kms", key.region())
            .try_authorize(&mut request, None)
            .map_err(|error| failed(key, &error.to_string()))?;
        Ok(request)
    }
}

fn failed(key: &KmsKey, why: &str) -> KmsError {
    KmsError::Failed(format!(
        "AWS KMS does not answer for the key {key}: {why}; check the network, AWS_ENDPOINT_URL_KMS and the credentials of this machine, then start again"
    ))
}

/// Sends `request`, and reads what is said.
async fn answer(http: &HttpClient, key: &KmsKey, request: HttpRequest, field: &str) -> Answer {
    let response = match http.execute(request).await {
        Ok(response) => response,
        Err(error) => return Answer::Again(error.to_string()),
    };
    let status = response.status();
    let body = match response.into_body().bytes().await {
        Ok(body) => body,
        Err(error) => return Answer::Again(error.to_string()),
    };
    if status.is_success() {
        let mut fields: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        return match fields.get_mut(field).map(serde_json::Value::take) {
            Some(serde_json::Value::String(text)) => Answer::Done(Zeroizing::new(text)),
            _ => Answer::Again(format!("its answer has no {field}")),
        };
    }
    let refusal = serde_json::from_slice(&body)
        .unwrap_or(Refusal { kind: status.to_string(), message: String::new() });
    refused(key, status.is_server_error(), &refusal)
}

/// What a refusal means.
fn refused(key: &KmsKey, server_error: bool, refusal: &Refusal) -> Answer {
    // Some servers say com.amazonaws.kms#NotFoundException.
    let kind = refusal.kind.rsplit('#').next().unwrap_or_default();
    let said = format!("{kind}: {}", refusal.message);
    let help = match kind {
        "InvalidCiphertextException" | "IncorrectKeyException" => return Answer::Wrong,
        "ThrottlingException" | "KMSInternalException" | "DependencyTimeoutException" => {
            return Answer::Again(said);
        }
        _ if server_error => return Answer::Again(said),
        "AccessDeniedException" => {
            "allow the identity of this machine kms:Encrypt and kms:Decrypt with that key"
        }
        "NotFoundException" => {
            "look whether the key was deleted, and whether the ARN is right; what a deleted key has wrapped nobody can read"
        }
        "DisabledException" | "KMSInvalidStateException" => {
            "enable the key, or cancel its deletion, then start again"
        }
        "InvalidKeyUsageException" => "give a symmetric key for ENCRYPT_DECRYPT",
        _ => "check the credentials of this machine and its clock, then start again",
    };
    Answer::Never(format!("AWS KMS refuses the key {key}: {said}; {help}"))
}

#[async_trait]
impl Kms for AwsKms {
    async fn wrap(
        &self,
        key: &KmsKey,
        plain: &WrappingKey,
        object: &str,
    ) -> Result<Vec<u8>, KmsError> {
        let plain = Zeroizing::new(STANDARD.encode(plain.as_slice()));
        let body = serde_json::json!({
            "KeyId": key.arn(), "Plaintext": *plain, "EncryptionContext": { CONTEXT: object }
        });
        let wrapped = self.ask(key, "Encrypt", &body, "CiphertextBlob").await?;
        Ok(wrapped.to_vec())
    }

    async fn unwrap(
        &self,
        key: &KmsKey,
        wrapped: &[u8],
        object: &str,
    ) -> Result<WrappingKey, KmsError> {
        let body = serde_json::json!({
            "KeyId": key.arn(), "CiphertextBlob": STANDARD.encode(wrapped), "EncryptionContext": { CONTEXT: object }
        });
        let plain = self.ask(key, "Decrypt", &body, "Plaintext").await?;
        Ok(Zeroizing::new(plain.as_slice().try_into().map_err(|_| KmsError::Wrong)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart_and_say_what_to_do() {
        let key = KmsKey::parse("arn:aws:kms:eu-west-1:111122223333:key/1").unwrap();
        let of = |kind: &str, server_error| {
            let refusal = Refusal { kind: kind.to_owned(), message: "so it is".to_owned() };
            refused(&key, server_error, &refusal)
        };
        assert!(matches!(of("InvalidCiphertextException", false), Answer::Wrong));
        assert!(matches!(of("com.amazonaws.kms#IncorrectKeyException", false), Answer::Wrong));
        assert!(matches!(of("ThrottlingException", false), Answer::Again(_)));
        assert!(matches!(of("503 Service Unavailable", true), Answer::Again(_)));
        for (kind, help) in [
            ("AccessDeniedException", "kms:Decrypt"),
            ("NotFoundException", "ARN"),
            ("DisabledException", "enable"),
            ("KMSInvalidStateException", "deletion"),
            ("UnrecognizedClientException", "credentials"),
        ] {
            let Answer::Never(why) = of(kind, false) else { panic!("{kind}") };
            assert!(
                why.contains(help) && why.contains(key.arn()) && why.contains("so it is"),
                "{why}"
            );
        }
    }
}
