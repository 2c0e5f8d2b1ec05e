//! TLS for the Postgres wire and for HTTP: certificate and key from PEM files, through rustls; and
//! whom a client's certificate names.
//!
//! # Invariants
//! TLS 1.2 and 1.3 only (rustls has nothing older); the provider is aws-lc-rs, named explicitly, so
//! that no process-wide default is needed or changed.
//! - Where clients' certificates are asked for, one that is shown must come from the authorities
//!   given and be meant for clients, or the handshake ends. Whether one must be shown is for the
//!   access rules to say. HTTP asks for none.
//! - With lists of revoked certificates, one that is shown must be known to stand: each authority
//!   of its chain needs a list that is not past its next update. So a list that nobody renews, or
//!   an authority without one, keeps clients out; it lets nobody in.
//! - After a reload no session of TLS from before is resumed: each client shows its certificate
//!   again.
//!
//! # On failure
//! [`Error::Tls`] names the file. A missing certificate never means "without TLS". A reload that
//! fails leaves all as it was.
//!
//! # Limits
//! Files are read at the start and at [`Tls::reload`]; connections that stand go on. No partial
//! (delta) or indirect lists, no OCSP.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem::PemObject,
};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig, crypto::CryptoProvider, crypto::aws_lc_rs};
use tokio_rustls::TlsAcceptor;
use x509_certificate::X509Certificate;

use crate::error::{Error, Result};

/// The PEM files that TLS is made of.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The chain that clients are shown.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities whose clients' certificates are believed; `None`: clients are asked for
    /// none.
    pub client_ca: Option<PathBuf>,
    /// Lists of certificates that these authorities have revoked.
    pub client_crl: Option<PathBuf>,
}

/// A certificate chain and its key, ready to serve.
#[derive(Clone)]
pub struct Tls {
    files: Arc<Files>,
    loaded: Arc<Mutex<Arc<Loaded>>>,
}

/// What was read from the files.
pub(crate) struct Loaded {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) http: TlsAcceptor,
    /// The chain as PEM, for SCRAM channel binding.
    pub(crate) chain_pem: Arc<[u8]>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files again, for connections from now on.
    ///
    /// # Errors
    /// [`Error::Tls`]; all stays what it was.
    pub fn reload(&self) -> Result<()> {
        let loaded = Arc::new(read(&self.files)?);
        *self.loaded.lock() = loaded;
        Ok(())
    }

    pub(crate) fn now(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.lock())
    }
}

fn fail(what: &'static str, path: &Path, reason: impl ToString) -> Error {
    Error::Tls { what, path: path.to_owned(), reason: reason.to_string() }
}

/// What a file holds of one kind; one that holds none of it is refused.
fn all_of<T: PemObject>(what: &'static str, path: &Path, pem: &[u8], kind: &str) -> Result<Vec<T>> {
    let all = T::pem_slice_iter(pem)
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|error| fail(what, path, error))?;
    if all.is_empty() { Err(fail(what, path, format!("it holds no {kind}"))) } else { Ok(all) }
}

fn content(what: &'static str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| fail(what, path, error))
}

/// Reads the files.
///
/// # Errors
/// [`Error::Tls`] when a file cannot be read, holds nothing usable, or key and certificate differ.
pub fn load(files: Files) -> Result<Tls> {
    let loaded = Arc::new(Mutex::new(Arc::new(read(&files)?)));
    Ok(Tls { files: Arc::new(files), loaded })
}

fn read(files: &Files) -> Result<Loaded> {
    let (certificate, key) = (files.certificate.as_path(), files.key.as_path());
    let chain_pem = content("certificate", certificate)?;
    let chain: Vec<CertificateDer<'static>> =
        all_of("certificate", certificate, &chain_pem, "certificate")?;
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
    let builder = match &files.client_ca {
        None => builder()?.with_no_client_auth(),
        Some(authorities) => {
            let lists = files.client_crl.as_deref();
            builder()?.with_client_cert_verifier(verifier(authorities, lists, &provider)?)
        }
    };
    let mut config =
        builder.with_single_cert(chain, secret).map_err(|error| fail("key", key, error))?;
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(Loaded {
        acceptor: TlsAcceptor::from(Arc::new(config)),
        http: TlsAcceptor::from(Arc::new(http)),
        chain_pem: chain_pem.into(),
    })
}

/// What believes the certificates that these authorities gave and, as far as the lists tell, did
/// not revoke.
fn verifier(
    authorities: &Path,
    lists: Option<&Path>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>> {
    const AUTHORITY: &str = "client authority";
    const LIST: &str = "list of revoked certificates";
    let mut roots = RootCertStore::empty();
    let pem = content(AUTHORITY, authorities)?;
    for authority in all_of::<CertificateDer<'_>>(AUTHORITY, authorities, &pem, "certificate")? {
        roots.add(authority).map_err(|error| fail(AUTHORITY, authorities, error))?;
    }
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .allow_unauthenticated();
    let Some(lists) = lists else {
        return builder.build().map_err(|error| fail(AUTHORITY, authorities, error));
    };
    let pem = content(LIST, lists)?;
    let revoked: Vec<CertificateRevocationListDer<'static>> =
        all_of(LIST, lists, &pem, "list of revoked certificates (X509 CRL)")?;
    // Of the whole chain, and what no list tells of is refused: as PostgreSQL does.
    let builder = builder.with_crls(revoked).enforce_revocation_expiration();
    builder.build().map_err(|error| fail(LIST, lists, error))
}

/// The one common name of a certificate's subject; `None`: it has none, several, or one that is no
/// text.
#[must_use]
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let read = X509Certificate::from_der(certificate).ok()?;
    let mut names = read.subject_name().iter_common_name();
    let name = names.next()?.to_string().ok()?;
    (names.next().is_none() && !name.contains('\0')).then_some(name)
}
