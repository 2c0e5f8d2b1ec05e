//! TLS for the Postgres wire: certificate and key from PEM files, through rustls.
//!
//! # Invariants
//! TLS 1.2 and 1.3 only (rustls has nothing older); the provider is aws-lc-rs, named explicitly, so
//! that no process-wide default is needed or changed.
//!
//! # On failure
//! [`Error::Tls`] names the file. A missing certificate never means "without TLS".

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use rustls::{ServerConfig, crypto::aws_lc_rs};
use tokio_rustls::TlsAcceptor;

use crate::error::{Error, Result};

/// A certificate chain and its key, ready to serve.
#[derive(Clone)]
pub struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    /// The chain as PEM, for SCRAM channel binding.
    pub(crate) chain_pem: Arc<[u8]>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Reads a PEM certificate chain and key.
///
/// # Errors
/// [`Error::Tls`] when a file cannot be read, holds nothing usable, or key and certificate differ.
pub fn load(certificate: &Path, key: &Path) -> Result<Tls> {
    let fail = |what: &'static str, path: &Path, reason: String| Error::Tls {
        what,
        path: path.to_owned(),
        reason,
    };
    let chain_pem = std::fs::read(certificate)
        .map_err(|error| fail("certificate", certificate, error.to_string()))?;
    let chain = CertificateDer::pem_slice_iter(&chain_pem)
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|error| fail("certificate", certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(fail("certificate", certificate, "it holds no certificate".to_owned()));
    }
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| fail("key", key, error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| fail("certificate", certificate, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| fail("key", key, error.to_string()))?;
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), chain_pem: chain_pem.into() })
}
