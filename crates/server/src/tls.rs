//! TLS for the Postgres wire and for HTTP: certificate and key from PEM files, through rustls; and whom a client's certificate names.
//!
//! # Invariants
//! TLS 1.2 and 1.3 only (rustls has nothing older); the provider is aws-lc-rs, named explicitly, so
//! that no process-wide default is needed or changed.
//! - Where clients' certificates are asked for, one that is shown must come from the authorities given and be meant for clients,
//!   or the handshake ends. Whether one must be shown is for the access rules to say. HTTP asks for none.
//!
//! # On failure
//! [`Error::Tls`] names the file. A missing certificate never means "without TLS".
//!
//! # Limits
//! No lists of revoked certificates: take the role its LOGIN, or reject the user by a rule. Files are read at the start.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, crypto::aws_lc_rs};
use tokio_rustls::TlsAcceptor;
use x509_certificate::X509Certificate;

use crate::error::{Error, Result};

/// A certificate chain and its key, ready to serve.
#[derive(Clone)]
pub struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) http: TlsAcceptor,
    /// The chain as PEM, for SCRAM channel binding.
    pub(crate) chain_pem: Arc<[u8]>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

fn fail(what: &'static str, path: &Path, reason: impl ToString) -> Error {
    Error::Tls { what, path: path.to_owned(), reason: reason.to_string() }
}

fn certificates(
    what: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_slice_iter(pem)
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|error| fail(what, path, error))?;
    if all.is_empty() { Err(fail(what, path, "it holds no certificate")) } else { Ok(all) }
}

/// Reads a PEM certificate chain and key, and the PEM certificates of the authorities whose clients' certificates are believed.
///
/// # Errors
/// [`Error::Tls`] when a file cannot be read, holds nothing usable, or key and certificate differ.
pub fn load(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Tls> {
    let read = |what, path: &Path| std::fs::read(path).map_err(|error| fail(what, path, error));
    let chain_pem = read("certificate", certificate)?;
    let chain = certificates("certificate", certificate, &chain_pem)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| fail("key", key, error))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = || {
        ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| fail("certificate", certificate, error))
    };
    let mut http = builder()?
        .with_no_client_auth()
        .with_single_cert(chain.clone(), secret.clone_key())
        .map_err(|error| fail("key", key, error))?;
    http.alpn_protocols = vec![b"http/1.1".to_vec()];
    let builder = match client_ca {
        None => builder()?.with_no_client_auth(),
        Some(path) => {
            let what = "client authority";
            let mut roots = RootCertStore::empty();
            for authority in certificates(what, path, &read(what, path)?)? {
                roots.add(authority).map_err(|error| fail(what, path, error))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                    .allow_unauthenticated()
                    .build()
                    .map_err(|error| fail(what, path, error))?;
            builder()?.with_client_cert_verifier(verifier)
        }
    };
    let mut config =
        builder.with_single_cert(chain, secret).map_err(|error| fail("key", key, error))?;
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(Tls {
        acceptor: TlsAcceptor::from(Arc::new(config)),
        http: TlsAcceptor::from(Arc::new(http)),
        chain_pem: chain_pem.into(),
    })
}

/// The one common name of a certificate's subject; `None`: it has none, several, or one that is no text.
#[must_use]
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let read = X509Certificate::from_der(certificate).ok()?;
    let mut names = read.subject_name().iter_common_name();
    let name = names.next()?.to_string().ok()?;
    (names.next().is_none() && !name.contains('\0')).then_some(name)
}
