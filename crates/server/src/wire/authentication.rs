//! Whether a client may come in as the user it names: rules, certificate, password.
//!
//! ```text
//! rules ──> refused
//!   ├─ trust ───────────────────────────────────> in
//!   ├─ cert ──> the handshake's certificate ────> in, or refused
//!   └─ scram ─> too many wrong? ─> SASL ─> judge > in, or refused
//! ```
//!
//! # Invariants
//! - A wrong password and a user who does not exist look the same.
//! - The client learns that its password was right after that was judged (`attempts`), not before.
//! - A client that was passed at a restart stays only where it could come in by what it showed
//!   then.
//! - Each refusal is told in the audit log, as far as strangers may write there.
//!
//! # On failure
//! A refused client has been told why; [`End::Done`] is left.

use std::sync::Arc;

use bytes::BytesMut;
use pgwire::api::auth::sasl::scram::{ScramSecret, ScramServerAuth};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::startup::Authentication;
use telesto_common::Deadline;
use telesto_sql::SqlState;

use crate::access_rules::{Knock, Method};
use crate::attempts::{Attempt, Door, TooMany, failed};
use crate::audit::{SessionAudit, Stranger, Who};
use crate::auth::{Users, WRONG_PASSWORD_DELAY};
use crate::config::{Auth, ProberKey, ServerConfig};
use crate::hand_over::Passport;
use crate::tls;
use crate::wire::report::{Severity, error_fields};
use crate::wire::startup::{Client, fatal};
use crate::wire::stream::{End, Stream, Wire};
use crate::wire::{WireServer, of_connection};

/// Whether a client that was passed by the process before may stay, by what this one asks of
/// clients: its rules may be others. A password that was shown is not asked for again; a
/// certificate cannot have been, for no client of TLS is passed.
pub(super) fn may_stay(server: &WireServer, passport: &Passport) -> bool {
    if !matches!(server.config.auth, Auth::Scram(_)) {
        return true;
    }
    let knock = Knock {
        address: passport.peer.ip(),
        encrypted: false,
        user: &passport.user,
        database: &passport.database,
    };
    let asked = match &server.config.access {
        Some(rules) => rules.method(knock).unwrap_or(Method::Reject),
        None => Method::Scram,
    };
    match asked {
        Method::Trust => true,
        Method::Scram => passport.showed_password(),
        Method::Cert | Method::Reject => false,
    }
}

/// Returns when `client` may come in, and whether it showed a password; where everyone is trusted,
/// at once.
///
/// # Errors
/// [`End`]; the client has been told why.
pub(super) async fn enter(
    server: &WireServer,
    wire: &mut Wire,
    client: &Client,
) -> Result<bool, End> {
    let Auth::Scram(users) = &server.config.auth else { return Ok(false) };
    if let Some(key) = own_prober(&server.config, client) {
        return authenticate_prober(server, wire, key, client).await.map(|()| true);
    }
    match method(server, wire, client).await? {
        Method::Trust => Ok(false),
        Method::Cert => shows_certificate(server, wire, client).await.map(|()| false),
        Method::Scram | Method::Reject => {
            authenticate(server, wire, users, client).await.map(|()| true)
        }
    }
}

/// The key of this process's prober, if `client` says that it is that.
fn own_prober<'a>(config: &'a ServerConfig, client: &Client) -> Option<&'a ProberKey> {
    let says = |(name, value): &(String, String)| {
        name == "application_name" && value == ProberKey::APPLICATION
    };
    let key = config.prober.as_ref()?;
    (key.user == client.user && client.settings.iter().any(says)).then_some(key)
}

/// How the client has to show who it is, by the rules of entrance; ends the connection where it may
/// not come in.
async fn method(server: &WireServer, wire: &mut Wire, client: &Client) -> Result<Method, End> {
    let Some(rules) = &server.config.access else { return Ok(Method::Scram) };
    let knock = Knock {
        address: client.peer.ip(),
        encrypted: matches!(wire.stream(), Stream::Tls(..)),
        user: &client.user,
        database: &client.database,
    };
    let (what, text) = match rules.method(knock) {
        Some(method @ (Method::Scram | Method::Trust | Method::Cert)) => return Ok(method),
        Some(Method::Reject) => ("a rule rejects it", "an access rule rejects connection for"),
        None => ("no rule fits", "no access rule for"),
    };
    let what = format!("log-in refused: {what}");
    tell_refused(server, client, (Stranger::TurnedAway, &what), "28000").await;
    let text = format!(
        "{text} host \"{}\", user \"{}\", database \"{}\", {}",
        knock.address.to_canonical(),
        knock.user,
        knock.database,
        if knock.encrypted { "SSL encryption" } else { "no encryption" },
    );
    let hint = "The lines of this node's --access-file say who may come in.";
    fatal(&mut wire.output, "28000", &text, Some(hint));
    Err(End::Done)
}

/// Ends the connection unless the client showed its user's certificate. The handshake has seen that
/// it is one of the authorities'.
async fn shows_certificate(
    server: &WireServer,
    wire: &mut Wire,
    client: &Client,
) -> Result<(), End> {
    let shown = match wire.stream() {
        Stream::Tls(stream, _) => stream.get_ref().1.peer_certificates().and_then(<[_]>::first),
        Stream::Plain(_) => None,
    };
    let (what, text) = match shown.map(tls::common_name) {
        Some(Some(name)) if name == client.user => return Ok(()),
        Some(_) => (
            "log-in refused: the certificate names another",
            format!("certificate authentication failed for user \"{}\"", client.user),
        ),
        None => (
            "log-in refused: no certificate was shown",
            "connection requires a valid client certificate".to_owned(),
        ),
    };
    tell_refused(server, client, (Stranger::TurnedAway, what), "28000").await;
    let hint = "The access rule asks for a certificate whose one common name (CN) is the user's, from an authority in --tls-client-ca.";
    fatal(&mut wire.output, "28000", &text, Some(hint));
    Err(End::Done)
}

/// Ends the connection unless the client knows its user's password. Nothing is asked from where too
/// many were wrong.
async fn authenticate(
    server: &WireServer,
    wire: &mut Wire,
    users: &Users,
    client: &Client,
) -> Result<(), End> {
    let WireServer { env, config, engine, .. } = server;
    let attempts = &server.clients.attempts;
    let attempt = match attempts.begin(Door::Sql, &client.user, client.peer.ip()) {
        Ok(attempt) => attempt,
        Err(refused) => return Err(limited(server, wire, client, refused).await),
    };
    let deadline = env.deadline(config.limits.startup);
    let asked = env.within(deadline, "looking a role up", engine.log_in_of(&client.user)).await;
    let known = match asked {
        Ok(Ok(known)) => known,
        Ok(Err(error)) => {
            wire.output.error(error_fields(&error, Severity::Fatal));
            return Err(End::Done);
        }
        Err(_) => return Err(End::Stalled("looking a role up")),
    };
    let secret = users.verifier_of(&client.user, &known).secret();
    match proves(server, wire, secret, Some(attempt), deadline).await? {
        Ok(true) => Ok(()),
        Ok(false) => Err(wrong(server, wire, client).await),
        Err(refused) => Err(limited(server, wire, client, refused).await),
    }
}

/// Ends the connection unless the client knows the prober's secret. No rule and no guesser keeps
/// the prober out: its secret is drawn at each start and too long to be guessed.
async fn authenticate_prober(
    server: &WireServer,
    wire: &mut Wire,
    key: &ProberKey,
    client: &Client,
) -> Result<(), End> {
    let deadline = server.env.deadline(server.config.limits.startup);
    if proves(server, wire, key.verifier.secret(), None, deadline).await? == Ok(true) {
        return Ok(());
    }
    failed(Door::Sql, "password");
    Err(wrong(server, wire, client).await)
}

/// Whether the client knows the password of `secret`, or why that is not told.
async fn proves(
    server: &WireServer,
    wire: &mut Wire,
    secret: ScramSecret,
    attempt: Option<Attempt>,
    deadline: Deadline,
) -> Result<Result<bool, TooMany>, End> {
    let chain = match wire.stream() {
        Stream::Tls(_, chain) => Some(Arc::clone(chain)),
        Stream::Plain(_) => None,
    };
    let judge = |right| attempt.map_or(Ok(right), |attempt| attempt.judge(right));
    let dialogue = scram(wire, secret, judge, chain.as_deref());
    match server.env.within(deadline, "authentication", dialogue).await {
        Ok(proven) => proven,
        Err(_) => Err(End::Stalled("authentication")),
    }
}

/// Refuses a client from where too many passwords were wrong; whether this one was is not told.
async fn limited(server: &WireServer, wire: &mut Wire, client: &Client, refused: TooMany) -> End {
    let what = (Stranger::TurnedAway, "log-in refused: too many failed ones");
    tell_refused(server, client, what, "28000").await;
    let text = format!("too many failed log-ins of user \"{}\" from here", client.user);
    let hint = format!("Try again in {} s.", refused.seconds());
    fatal(&mut wire.output, "28000", &text, Some(&hint));
    End::Done
}

/// Refuses a client whose password was wrong.
async fn wrong(server: &WireServer, wire: &mut Wire, client: &Client) -> End {
    let what = "log-in refused: wrong password, or no such user";
    tell_refused(server, client, (Stranger::Guessed, what), "28P01").await;
    server.env.clock.sleep(WRONG_PASSWORD_DELAY).await;
    let text = format!("password authentication failed for user \"{}\"", client.user);
    fatal(&mut wire.output, "28P01", &text, None);
    End::Done
}

/// Keeps a record of a log-in that was refused.
async fn tell_refused(
    server: &WireServer,
    client: &Client,
    (stranger, what): (Stranger, &str),
    state: &'static str,
) {
    let Some(log) = &server.config.audit else { return };
    // The last one counts.
    let mut settings = client.settings.iter().rev();
    let application = settings.find(|(name, _)| name == "application_name");
    let who = Who {
        user: client.user.clone(),
        client: Some(client.peer),
        door: Door::Sql,
        application: application.map(|(_, value)| value.clone()).unwrap_or_default(),
        database: client.database.clone(),
    };
    let event = of_connection(what, Some(SqlState(state)));
    SessionAudit::new(log, who).tell_stranger(stranger, event).await;
}

/// The SASL dialogue; what `judge` makes of whether the client knows the password. The client is
/// told that it does after that only.
async fn scram(
    wire: &mut Wire,
    secret: ScramSecret,
    judge: impl FnOnce(bool) -> Result<bool, TooMany>,
    chain_pem: Option<&[u8]>,
) -> Result<Result<bool, TooMany>, End> {
    let mut server = ScramServerAuth::new();
    let mut mechanisms = Vec::new();
    if chain_pem.is_some_and(|chain| server.configure_certificate(chain).is_ok()) {
        mechanisms.push("SCRAM-SHA-256-PLUS".to_owned());
    }
    mechanisms.push("SCRAM-SHA-256".to_owned());
    let say = |wire: &mut Wire, message| {
        wire.output.message(&PgWireBackendMessage::Authentication(message));
    };
    say(wire, Authentication::SASL(mechanisms.clone()));
    let first = password(wire).await?;
    let Some((mechanism, data)) = sasl_initial(&first) else { return Ok(judge(false)) };
    if !mechanisms.iter().any(|known| known.as_bytes() == mechanism) {
        return Ok(judge(false));
    }
    let Ok((challenge, waiting)) = server.on_client_first_message_with_secret(data, secret) else {
        return Ok(judge(false));
    };
    say(wire, Authentication::SASLContinue(challenge.into()));
    let last = password(wire).await?;
    let signature = waiting.on_client_final_message(&last);
    let judged = judge(signature.is_ok());
    if let (Ok(true), Ok(signature)) = (&judged, signature) {
        say(wire, Authentication::SASLFinal(signature.into()));
    }
    Ok(judged)
}

async fn password(wire: &mut Wire) -> Result<BytesMut, End> {
    let limit = wire.limits().startup;
    const WHAT: &str = "the password";
    let read = match wire.frame(Some(limit), WHAT, true).await {
        // It becomes a session that is passed; the drain has its own bound.
        Err(End::Draining) if wire.is_passed_on() => wire.frame(Some(limit), WHAT, false).await,
        read => read,
    };
    match read? {
        (b'p', body) => Ok(body),
        _ => Err(End::Gone),
    }
}

/// Mechanism and data of a SASLInitialResponse.
pub(super) fn sasl_initial(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = body.iter().position(|byte| *byte == 0)?;
    let (mechanism, rest) = (&body[..end], &body[end + 1..]);
    let (length, data) = rest.split_first_chunk::<4>()?;
    (u32::from_be_bytes(*length) as usize == data.len()).then_some((mechanism, data))
}
