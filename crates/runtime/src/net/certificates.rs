//! Who belongs to a cluster: certificates made from a join token, or given.
//!
//! ```text
//! join token ─► key of the cluster's authority (Ed25519, the same on every node that has the token)
//!            ─► this node's certificate, made at its start: <node>.node.telesto
//! ```
//! # Invariants
//! - Whoever has the join token can speak as any node: it is a secret like a root password, and
//!   never leaves the node.
//! - Nothing is stored: a node that starts again makes its key and certificate anew.
//! - TLS 1.3 only, by aws-lc-rs, named explicitly.
//!
//! # On failure
//! [`Error::Certificates`] says what does not fit.
//!
//! # Limits
//! A certificate cannot be taken back; a new join token on every node does that.

use std::fmt;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519,
};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use telesto_common::NodeId;
use telesto_net::{Error, Result};

/// What goes before the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410).
const PKCS8_ED25519: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The secret that makes a node one of a cluster's.
#[derive(Clone)]
pub struct JoinToken(String);

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken(…)")
    }
}

impl JoinToken {
    /// The fewest characters that a token may have: 128 bits in hexadecimal digits.
    pub const SHORTEST: usize = 32;

    /// The token that an operator gave.
    ///
    /// # Errors
    /// [`Error::Certificates`] when it is too short to be a secret.
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.len() < Self::SHORTEST {
            return Err(Error::Certificates {
                reason: format!("the join token has less than {} characters", Self::SHORTEST),
            });
        }
        Ok(Self(text.to_owned()))
    }
}

/// The name in a node's certificate.
pub(super) fn name_of(node: NodeId) -> String {
    format!("{node}.node.telesto")
}

/// Whether `certificate`, which was verified, is that of `node`.
pub(super) fn names(certificate: &CertificateDer<'_>, node: NodeId) -> bool {
    let parsed = rustls::server::ParsedCertificate::try_from(certificate);
    let name = ServerName::try_from(name_of(node));
    match (parsed, name) {
        (Ok(parsed), Ok(name)) => verify_server_name(&parsed, &name).is_ok(),
        _ => false,
    }
}

/// This node's certificate and key, and whom it trusts.
#[derive(Clone, Debug)]
pub struct Certificates {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

fn unfit(error: impl fmt::Display) -> Error {
    Error::Certificates { reason: error.to_string() }
}

impl Certificates {
    /// Those of `node` in the cluster of `token`.
    ///
    /// # Errors
    /// [`Error::Certificates`].
    pub fn from_token(token: &JoinToken, node: NodeId) -> Result<Self> {
        let seed = blake3::derive_key("telesto cluster authority, version 1", token.0.as_bytes());
        let key = [&PKCS8_ED25519[..], &seed[..]].concat();
        let key = PrivatePkcs8KeyDer::from(key);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519).map_err(unfit)?;
        let mut params = CertificateParams::new(Vec::<String>::new()).map_err(unfit)?;
        params.distinguished_name.push(DnType::CommonName, "telesto cluster");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = params.self_signed(&key).map_err(unfit)?;
        let issuer = Issuer::new(params, key);
        let own = KeyPair::generate().map_err(unfit)?;
        let mut params = CertificateParams::new(vec![name_of(node)]).map_err(unfit)?;
        params.distinguished_name.push(DnType::CommonName, name_of(node));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&own, &issuer).map_err(unfit)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.serialize_der()));
        Self::of(&[authority.der().clone()], vec![certificate.der().clone()], key)
    }

    /// Those that an operator gives, all PEM: the certificates of the cluster's authorities, this
    /// node's chain, its key. The node's certificate must name it (`<node>.node.telesto`).
    ///
    /// # Errors
    /// [`Error::Certificates`].
    pub fn given(authorities: &[u8], chain: &[u8], key: &[u8]) -> Result<Self> {
        let all = |pem: &[u8]| -> Result<Vec<CertificateDer<'static>>> {
            CertificateDer::pem_slice_iter(pem)
                .collect::<std::result::Result<_, _>>()
                .map_err(unfit)
        };
        let key = PrivateKeyDer::from_pem_slice(key).map_err(unfit)?;
        Self::of(&all(authorities)?, all(chain)?, key)
    }

    fn of(
        authorities: &[CertificateDer<'static>],
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self> {
        let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority.clone()).map_err(unfit)?;
        }
        let roots = Arc::new(roots);
        let versions = [&rustls::version::TLS13];
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(unfit)?
            .with_client_cert_verifier(verifier.build().map_err(unfit)?)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unfit)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(unfit)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unfit)?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    pub(super) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}
