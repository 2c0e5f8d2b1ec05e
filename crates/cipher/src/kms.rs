//! Key-encryption keys that stay in a key management service.
//!
//! # Purpose
//! A key file names such a key by its ARN where it would have the key itself: the service wraps and
//! unwraps, and tells nobody the key. Who talks to the service is the caller's: this crate opens no
//! connection.
//!
//! # Invariants
//! What is wrapped is bound to the object that it is wrapped for (its encryption context), as with
//! a key of the file itself.
//!
//! # On failure
//! [`KmsError::Wrong`] when the service says that it is not what that key wrapped for that object;
//! all else says what to do.
//!
//! # Limits
//! AWS KMS. Keys by their own ARN, not by an alias: an alias may be given another key, which does
//! not open what the one before wrapped.

use std::fmt::{self, Display};

use async_trait::async_trait;

use crate::ring::WrappingKey;

/// What an ARN begins with.
pub(crate) const ARN: &str = "arn:";

/// A key of AWS KMS: `arn:aws:kms:REGION:ACCOUNT:key/ID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsKey {
    arn: String,
    partition: String,
    region: String,
}

impl KmsKey {
    /// From its ARN.
    ///
    /// # Errors
    /// Why it is none, and what would be.
    pub fn parse(arn: &str) -> Result<Self, String> {
        let part = |part: &str| {
            let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
            !part.is_empty() && part.len() <= 64 && part.chars().all(good)
        };
        let parts: Vec<&str> = arn.split(':').collect();
        let ["arn", partition, "kms", region, account, key] = parts[..] else {
            return Err(format!(
                "{arn:?} is no key of AWS KMS: arn:aws:kms:REGION:ACCOUNT:key/ID is one"
            ));
        };
        if key.starts_with("alias/") {
            return Err(format!(
                "{arn:?} is an alias, which may be given another key that does not open what this one wrapped; give the key's own ARN (aws kms describe-key shows it)"
            ));
        }
        if ![partition, region, account].iter().all(|name| part(name))
            || !key.strip_prefix("key/").is_some_and(part)
        {
            return Err(format!(
                "{arn:?} is no key of AWS KMS: arn:aws:kms:REGION:ACCOUNT:key/ID is one"
            ));
        }
        let (partition, region) = (partition.to_owned(), region.to_owned());
        Ok(Self { arn: arn.to_owned(), partition, region })
    }

    /// Its ARN.
    #[must_use]
    pub fn arn(&self) -> &str {
        &self.arn
    }

    /// The region of AWS in which it is.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Where that region's KMS is.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let behind = if self.partition == "aws-cn" { ".cn" } else { "" };
        format!("https://kms.{}.amazonaws.com{behind}", self.region)
    }
}

impl Display for KmsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.arn)
    }
}

/// What a key management service did not do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KmsError {
    /// This was not wrapped with that key for that object.
    #[error("it was not wrapped with this key for this object, or it is damaged")]
    Wrong,
    /// It was refused, or the service was not reached: why, and what to do.
    #[error("{0}")]
    Failed(String),
}

/// A client of a key management service.
#[async_trait]
pub trait Kms: fmt::Debug + Send + Sync {
    /// Wraps `plain` with `key`, for `object` only.
    async fn wrap(
        &self,
        key: &KmsKey,
        plain: &WrappingKey,
        object: &str,
    ) -> Result<Vec<u8>, KmsError>;

    /// Takes what `key` wrapped for `object` out again.
    async fn unwrap(
        &self,
        key: &KmsKey,
        wrapped: &[u8],
        object: &str,
    ) -> Result<WrappingKey, KmsError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_an_arn_of_a_key_and_nothing_else() {
        let arn = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab";
        let key = KmsKey::parse(arn).expect("a key");
        assert_eq!((key.arn(), key.region()), (arn, "eu-west-1"));
        assert_eq!(key.endpoint(), "https://kms.eu-west-1.amazonaws.com");
        let china =
            KmsKey::parse("arn:aws-cn:kms:cn-north-1:111122223333:key/mrk-1").expect("a key");
        assert_eq!(china.endpoint(), "https://kms.cn-north-1.amazonaws.com.cn");
        for wrong in [
            "arn:aws:kms:eu-west-1:111122223333:alias/telesto",
            "arn:aws:s3:eu-west-1:111122223333:key/1",
            "arn:aws:kms::111122223333:key/1",
            "arn:aws:kms:evil.example/:111122223333:key/1",
            "arn:aws:kms:eu-west-1:111122223333:key/",
            "arn:aws:kms:eu-west-1:111122223333:key/1:2",
            "arn:",
        ] {
            let error = KmsKey::parse(wrong).expect_err(wrong);
            assert!(error.contains(wrong) && error.contains("key"), "{error}");
        }
    }
}
