//! From an accepted socket to an authenticated client: TLS, startup message, SCRAM.
//!
//! ```text
//! client                         server
//!   SSLRequest ----------------->  S (TLS follows) or N
//!   Startup(user, database, …) ->  AuthenticationSASL … Final   (scram only)
//!                              <-  AuthenticationOk
//! ```
//!
//! # Invariants
//! - Nothing read before the TLS handshake is believed after it: bytes that came with the
//!   SSLRequest end the connection (CVE-2021-23214).
//! - Before authentication a client can hold at most one small message.
//! - Who may come in is for `authentication` to say.
//!
//! # Limits
//! Each wait takes at most `Limits::startup`; the server bounds the whole by twice that.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::startup::{Authentication, NegotiateProtocolVersion};
use telesto_common::Env;
use tokio::net::TcpStream;

use crate::config::ServerConfig;
use crate::tls::Tls;
use crate::wire::backend::Output;
use crate::wire::frontend::SMALL_FRAME_BYTES;
use crate::wire::stream::{End, Stream, Wire};
use crate::wire::{WireServer, authentication};

const PROTOCOL_3_0: u32 = 3 << 16;
const PROTOCOL_3_2: u32 = PROTOCOL_3_0 | 2;
const CANCEL: u32 = (1234 << 16) | 5678;
const SSL: u32 = (1234 << 16) | 5679;
const GSS: u32 = (1234 << 16) | 5680;

/// What a client that has connected gets to say who it is when the server hands its clients over.
const LAST_CALL: Duration = Duration::from_secs(1);

/// What a new connection wants.
#[derive(Debug)]
pub enum Started {
    /// A session.
    Session(Client),
    /// Another connection's statement cancelled.
    Cancel {
        /// Its process id.
        pid: i32,
        /// Its secret key.
        secret: Bytes,
    },
}

/// A client that may begin.
#[derive(Debug)]
pub struct Client {
    /// Authenticated, or merely stated where everyone is trusted.
    pub user: String,
    /// Database asked for.
    pub database: String,
    /// The other startup parameters, those in `options` included, in order.
    pub settings: Vec<(String, String)>,
    /// Whether cancel keys may be long (protocol 3.2).
    pub long_secret: bool,
    /// Where it is.
    pub peer: SocketAddr,
    /// It was asked for a password, and had it.
    pub showed_password: bool,
}

/// A refusal in words of the protocol.
pub(crate) fn fatal(output: &mut Output, code: &str, message: &str, hint: Option<&str>) {
    let mut fields = vec![
        (b'S', "FATAL".to_owned()),
        (b'V', "FATAL".to_owned()),
        (b'C', code.to_owned()),
        (b'M', message.to_owned()),
    ];
    fields.extend(hint.map(|hint| (b'H', hint.to_owned())));
    output.error(fields);
}

/// Leads a fresh socket through the start. The error carries the connection when the client has
/// been told why and only the goodbye is left.
///
/// # Errors
/// [`End`].
pub async fn start(
    server: &WireServer,
    socket: TcpStream,
    peer: SocketAddr,
) -> Result<(Wire, Started), (Option<Wire>, End)> {
    let WireServer { env, config, budget, stop, .. } = server;
    let new =
        |stream| Wire::new(env.clone(), stream, config.limits.clone(), Arc::clone(budget), stop);
    let mut wire = new(Stream::Plain(socket.into()));
    let mut encrypted = false;
    // One SSL and one GSS request may precede the startup message.
    for _ in 0..4 {
        let mut message = match packet(&mut wire).await {
            Ok(message) => message,
            Err(end) => return Err((None, end)),
        };
        match message.get_u32() {
            SSL if !encrypted => {
                if !wire.input().is_empty() {
                    return Err((None, End::Gone));
                }
                let answer = if config.tls.is_some() { b"S" } else { b"N" };
                if let Err(end) = answer_byte(&mut wire, answer).await {
                    return Err((None, end));
                }
                if config.tls.is_some() {
                    wire = encrypt(env, wire, config, &new).await.map_err(|end| (None, end))?;
                    encrypted = true;
                }
            }
            GSS if !encrypted => {
                if let Err(end) = answer_byte(&mut wire, b"N").await {
                    return Err((None, end));
                }
            }
            CANCEL if (8..=260).contains(&message.len()) => {
                let pid = message.get_i32();
                return Ok((wire, Started::Cancel { pid, secret: message.freeze() }));
            }
            version if version >> 16 == 3 => {
                return match session(server, &mut wire, (version, message), peer).await {
                    Ok(client) => Ok((wire, Started::Session(client))),
                    Err(end) => Err((Some(wire), end)),
                };
            }
            version => {
                let text = format!(
                    "unsupported frontend protocol {}.{}: server supports 3.0 to 3.2",
                    version >> 16,
                    version & 0xFFFF
                );
                fatal(&mut wire.output, "0A000", &text, None);
                return Err((Some(wire), End::Done));
            }
        }
    }
    Err((None, End::Gone))
}

/// Waits until at least `count` bytes are there.
async fn bytes(wire: &mut Wire, count: usize) -> Result<(), End> {
    const WHAT: &str = "the startup message";
    let limit = wire.limits().startup;
    while wire.input().len() < count {
        match wire.read_more(Some(limit), WHAT, true).await {
            // It was accepted just before the end: it becomes a session that is passed, if it is
            // not one that says nothing.
            Err(End::Draining) if wire.is_passed_on() => {
                wire.read_more(Some(LAST_CALL.min(limit)), WHAT, false).await?;
            }
            read => read?,
        }
    }
    Ok(())
}

/// A message without a type byte: its body, version or request code first.
async fn packet(wire: &mut Wire) -> Result<BytesMut, End> {
    bytes(wire, 4).await?;
    let input = wire.input();
    let length = u32::from_be_bytes([input[0], input[1], input[2], input[3]]) as usize;
    if !(8..=SMALL_FRAME_BYTES).contains(&length) {
        // Not a Postgres client at all (a browser, a port scanner): nothing it would understand.
        return Err(End::Gone);
    }
    bytes(wire, length).await?;
    let mut message = wire.input().split_to(length);
    message.advance(4);
    Ok(message)
}

async fn answer_byte(wire: &mut Wire, answer: &[u8; 1]) -> Result<(), End> {
    wire.output.buffer().extend_from_slice(answer);
    wire.flush().await
}

async fn encrypt(
    env: &Env,
    wire: Wire,
    config: &ServerConfig,
    new: &impl Fn(Stream) -> Wire,
) -> Result<Wire, End> {
    let Some(tls) = config.tls.as_ref().map(Tls::now) else { return Err(End::Gone) };
    let (stream, early) = wire.into_parts();
    let Stream::Plain(socket) = stream else { return Err(End::Gone) };
    if !early.is_empty() {
        return Err(End::Gone);
    }
    let deadline = env.deadline(config.limits.startup);
    let accepted = env.within(deadline, "the TLS handshake", tls.acceptor.accept(socket)).await;
    match accepted {
        Ok(Ok(stream)) => Ok(new(Stream::Tls(Box::new(stream), Arc::clone(&tls.chain_pem)))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            Err(End::Gone)
        }
        Err(_) => Err(End::Stalled("the TLS handshake")),
    }
}

async fn session(
    server: &WireServer,
    wire: &mut Wire,
    (version, body): (u32, BytesMut),
    peer: SocketAddr,
) -> Result<Client, End> {
    let Some(parameters) = parameters(&body) else {
        fatal(
            &mut wire.output,
            "08P01",
            "invalid startup packet layout: expected terminated UTF-8 texts",
            None,
        );
        return Err(End::Done);
    };
    let spoken = if version >= PROTOCOL_3_2 { PROTOCOL_3_2 } else { PROTOCOL_3_0 };
    let unknown: Vec<String> =
        parameters.keys().filter(|name| name.starts_with("_pq_.")).cloned().collect();
    if version != spoken || !unknown.is_empty() {
        let answer = NegotiateProtocolVersion::new(spoken as i32, unknown);
        wire.output.message(&PgWireBackendMessage::NegotiateProtocolVersion(answer));
    }
    let mut client = Client {
        user: String::new(),
        database: String::new(),
        settings: Vec::new(),
        long_secret: spoken == PROTOCOL_3_2,
        peer,
        showed_password: false,
    };
    // What the packet names itself goes over what its options say.
    let mut given = Vec::new();
    for (name, value) in parameters {
        match name.as_str() {
            "user" => client.user = value,
            "database" => client.database = value,
            "options" => match options(&value) {
                Ok(settings) => client.settings.extend(settings),
                Err(option) => {
                    let text =
                        format!("invalid command-line argument for server process: {option}");
                    fatal(&mut wire.output, "42601", &text, Some("Use -c name=value."));
                    return Err(End::Done);
                }
            },
            "replication" if matches!(value.as_str(), "" | "false" | "off" | "no" | "0") => {}
            "replication" => {
                let text = "the replication protocol is not supported";
                let hint = "Connect without the parameter replication; COPY takes data out.";
                fatal(&mut wire.output, "0A000", text, Some(hint));
                return Err(End::Done);
            }
            name if name.starts_with("_pq_.") => {}
            _ => given.push((name, value)),
        }
    }
    client.settings.append(&mut given);
    if client.user.is_empty() {
        fatal(
            &mut wire.output,
            "28000",
            "no PostgreSQL user name specified in startup packet",
            None,
        );
        return Err(End::Done);
    }
    if client.database.is_empty() {
        client.database.clone_from(&client.user);
    }
    client.showed_password = authentication::enter(server, wire, &client).await?;
    wire.output.message(&PgWireBackendMessage::Authentication(Authentication::Ok));
    Ok(client)
}

/// Pairs of terminated texts up to an empty name, exactly filling `body`.
fn parameters(body: &[u8]) -> Option<BTreeMap<String, String>> {
    let mut texts = body.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    let mut out = BTreeMap::new();
    loop {
        let name = std::str::from_utf8(texts.next()?).ok()?;
        if name.is_empty() {
            return texts.next().is_none().then_some(out);
        }
        let value = std::str::from_utf8(texts.next()?).ok()?;
        out.insert(name.to_owned(), value.to_owned());
    }
}

/// Settings in the `options` parameter: `-c name=value` and `--name=value`; a backslash escapes.
fn options(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => word.get_or_insert_default().extend(characters.next()),
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    let mut out = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let setting = if word == "-c" {
            words.next().ok_or_else(|| word.clone())?
        } else if let Some(rest) = word.strip_prefix("-c").or_else(|| word.strip_prefix("--")) {
            rest.to_owned()
        } else {
            return Err(word);
        };
        let (name, value) = setting.split_once('=').ok_or_else(|| setting.clone())?;
        out.push((name.replace('-', "_"), value.to_owned()));
    }
    Ok(out)
}

/// For `crate::fuzz`.
pub(crate) mod fuzz {
    /// The body of a startup message, of a SASL response, and the words of `options`.
    pub fn startup(bytes: &[u8]) {
        let _ = crate::wire::authentication::sasl_initial(bytes);
        if let Some(parameters) = super::parameters(bytes) {
            let texts: usize =
                parameters.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
            assert!(texts < bytes.len(), "more came out than went in");
        }
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = super::options(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn startup_parameters_parse_only_when_whole() {
        let good = parameters(b"user\0ada\0database\0d\0\0").expect("parses");
        assert_eq!(good.get("user").map(String::as_str), Some("ada"));
        for bad in [&b""[..], b"\0\0", b"user\0", b"user\0ada", b"user\0ada\0", b"user\0\xff\0\0"] {
            assert_eq!(parameters(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn options_with_escapes_give_settings() {
        assert_eq!(
            options(r"-c search_path=a\ b --statement-timeout=5 -cwork=1"),
            Ok(vec![
                ("search_path".to_owned(), "a b".to_owned()),
                ("statement_timeout".to_owned(), "5".to_owned()),
                ("work".to_owned(), "1".to_owned()),
            ])
        );
        assert!(options("-x").is_err());
        assert!(options("-c").is_err());
    }

    proptest! {
        #[test]
        fn startup_parsers_of_any_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parameters(&body);
            let _ = crate::wire::authentication::sasl_initial(&body);
            let _ = options(&String::from_utf8_lossy(&body));
        }
    }
}
