//! Connections to servers that speak the Postgres wire: of targets and of the store.
//!
//! # Invariants
//! - A connection that is dropped is closed at once, answered or not: a server that stands still
//!   does not collect them.
//! - With `sslmode=require` nothing is sent to a server whose certificate is not signed, for its
//!   host, by an authority that this machine trusts.
//!
//! # On failure
//! A URL that means nothing, or a machine that trusts no authority, is refused when the target is
//! made.
//!
//! # Limits
//! Without `sslmode=require` there is no TLS, whatever the server offers: libpq would use it
//! unverified.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use telesto_common::Env;
use telesto_common::env::Task;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A connection that ends with its handle.
pub(crate) struct Connection {
    pub client: Client,
    task: Arc<dyn Task>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Where to connect to.
pub(crate) struct Server {
    env: Env,
    config: Config,
    tls: Option<MakeRustlsConnect>,
    address: String,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// The server that `url` names; connects later.
    pub fn new(env: &Env, url: &str) -> Result<Self, String> {
        Self::trusting(env, url, || {
            let found = rustls_native_certs::load_native_certs();
            match found.certs {
                certs if certs.is_empty() => Err(format!(
                    "this machine has no certificates of authorities to check sslmode=require with ({:?}); install ca-certificates, or set SSL_CERT_FILE",
                    found.errors
                )),
                certs => Ok(certs),
            }
        })
    }

    /// As [`Server::new`], with the authorities to trust.
    fn trusting(
        env: &Env,
        url: &str,
        authorities: impl FnOnce() -> Result<Vec<CertificateDer<'static>>, String>,
    ) -> Result<Self, String> {
        let mut config: Config =
            url.parse().map_err(|error| format!("it is no Postgres URL ({error})"))?;
        if config.get_hosts().is_empty() {
            return Err("it names no host".to_owned());
        }
        let tls = match config.get_ssl_mode() {
            SslMode::Require => Some(connector(authorities()?)?),
            _ => None,
        };
        if config.get_application_name().is_none() {
            config.application_name("telesto board");
        }
        let address = shown(&config);
        Ok(Self { env: env.clone(), config, tls, address })
    }

    /// Host, port and database; no user, no password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Connects.
    pub async fn connect(&self) -> Result<Connection, tokio_postgres::Error> {
        // Its end is what the operations on it tell.
        let (client, task) = match &self.tls {
            Some(tls) => {
                let (client, connection) = self.config.connect(tls.clone()).await?;
                (client, self.env.spawn("board connection", async move { drop(connection.await) }))
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await?;
                (client, self.env.spawn("board connection", async move { drop(connection.await) }))
            }
        };
        Ok(Connection { client, task })
    }
}

fn connector(authorities: Vec<CertificateDer<'static>>) -> Result<MakeRustlsConnect, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("no TLS client ({error})"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// Host, port and database of a configuration.
fn shown(config: &Config) -> String {
    let ports = config.get_ports();
    let host = |(at, host): (usize, &Host)| {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            #[cfg(unix)]
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    };
    let hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    format!("postgres://{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    #[test]
    fn address_shows_no_user_and_no_password() {
        let config = "postgres://ada:secret@db.example:5433/shop?application_name=x";
        let shown = shown(&config.parse().expect("a URL"));
        assert_eq!(shown, "postgres://db.example:5433/shop");
    }

    /// Lets every client in, over TLS; says whether the first one came.
    async fn let_in(listener: TcpListener, acceptor: TlsAcceptor) -> bool {
        let (mut socket, _) = listener.accept().await.expect("a client");
        let mut request = [0; 8];
        socket.read_exact(&mut request).await.expect("a request for TLS");
        assert_eq!(request, [0, 0, 0, 8, 4, 210, 22, 47]);
        socket.write_all(b"S").await.expect("sent");
        let Ok(mut stream) = acceptor.accept(socket).await else { return false };
        let mut startup = [0; 512];
        if !stream.read(&mut startup).await.is_ok_and(|bytes| bytes > 0) {
            return false;
        }
        // AuthenticationOk, ReadyForQuery.
        let greeting = [&b"R\0\0\0\x08\0\0\0\0"[..], &b"Z\0\0\0\x05I"[..]].concat();
        stream.write_all(&greeting).await.expect("sent");
        true
    }

    #[tokio::test]
    async fn sslmode_require_takes_a_certificate_that_is_trusted_and_no_other() {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("protocols")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("a certificate with its key");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let other = generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        for (trusted, welcome) in [(cert.der(), true), (other.cert.der(), false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
            let port = listener.local_addr().expect("an address").port();
            let env = telesto_runtime::env();
            let url = format!("postgres://ada@localhost:{port}/shop?sslmode=require");
            let server = Server::trusting(&env, &url, || Ok(vec![trusted.clone()]));
            let server = server.expect("a server");
            let connecting = async {
                let connected = server.connect().await;
                connected.map(drop).map_err(|error| format!("{error:?}"))
            };
            let (came, connected) = futures::join!(let_in(listener, acceptor.clone()), connecting);
            assert_eq!((came, connected.is_ok()), (welcome, welcome), "{connected:?}");
        }
    }
}
