//! Rules of entrance: who may come to the Postgres port from where, and how they show who they are.
//!
//! # Stored form
//! A text of lines like PostgreSQL's `pg_hba.conf`; `#` begins a comment:
//! ```text
//! # type    database  user     address         method
//! hostssl   all       app,etl  10.0.0.0/8      scram-sha-256
//! host      telesto   all      127.0.0.1/32    trust
//! hostssl   all       backup   all             cert
//! host      all       all      all             reject
//! ```
//!
//! # Invariants
//! - The first line that fits decides; where none fits, nobody comes in.
//! - A line for a database holds under every name of that database.
//! - `trust` is for loopback addresses only; `cert` is for `hostssl`, and for nodes that ask for
//!   certificates.
//! - A file with a wrong line is refused as a whole: at the start the server does not run, at a
//!   reload the rules before stay.
//!
//! # On failure
//! [`Error::AccessFile`] names file and line.
//!
//! # Limits
//! [`MAX_BYTES`], [`MAX_RULES`]. There are no Unix-domain sockets, so `local` is refused; so are
//! `+role`, `@file`, regular expressions, host names, `samehost`, `samenet`, `sameuser`,
//! `samerole`, `replication`, other methods and their options. HTTP is let in by the same rules, as
//! a client of database `telesto`, and asks for a password in any case; so `cert` lets nobody in
//! there.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use telesto_sql::catalog::DEFAULT_DATABASE;

use crate::error::{Error, Result};

/// Bytes of a file, at most.
pub const MAX_BYTES: u64 = 1 << 20;
/// Rules of a file, at most.
pub const MAX_RULES: usize = 10_000;

/// How a client shows who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By its password.
    Scram,
    /// Not at all.
    Trust,
    /// By a certificate whose common name is the user's.
    Cert,
    /// It does not come in.
    Reject,
}

/// A client that wants in.
#[derive(Clone, Copy, Debug)]
pub struct Knock<'a> {
    /// Where it is.
    pub address: IpAddr,
    /// Whether it speaks TLS.
    pub encrypted: bool,
    /// The user it names.
    pub user: &'a str,
    /// The database it names.
    pub database: &'a str,
}

/// The rules do not let somebody in over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "user {user:?} is not let in over HTTP: {why}; the lines of this node's --access-file say who may come in"
)]
pub struct NotOverHttp {
    /// The user it names.
    pub user: String,
    /// Which rule, or none.
    pub why: &'static str,
}

/// Which names a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    All,
    These(Vec<String>),
}

impl Names {
    fn fit(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.iter().any(|known| known == name),
        }
    }
}

/// Which addresses a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    All,
    Within(IpAddr, u8),
}

impl Network {
    fn fits(self, address: IpAddr) -> bool {
        match (self, address.to_canonical()) {
            (Self::All, _) => true,
            (Self::Within(IpAddr::V4(net), bits), IpAddr::V4(address)) => {
                let differing = u32::from(net) ^ u32::from(address);
                differing.checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
            }
            (Self::Within(IpAddr::V6(net), bits), IpAddr::V6(address)) => {
                let differing = u128::from(net) ^ u128::from(address);
                differing.checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    fn is_loopback(self) -> bool {
        match self {
            Self::All => false,
            Self::Within(address, bits) => {
                address.is_loopback() && bits >= if address.is_ipv4() { 8 } else { 128 }
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// With TLS only, without only, or either.
    encrypted: Option<bool>,
    database: Names,
    user: Names,
    network: Network,
    method: Method,
}

/// The rules of a file.
#[derive(Debug)]
pub struct AccessRules {
    path: PathBuf,
    /// Whether clients are asked for certificates.
    certificates: bool,
    rules: Mutex<Arc<Vec<Rule>>>,
}

impl AccessRules {
    /// Reads a file, for a node that asks clients for certificates or does not.
    ///
    /// # Errors
    /// [`Error::AccessFile`] names the line.
    pub fn read(path: &Path, certificates: bool) -> Result<Arc<Self>> {
        let rules = Mutex::new(Arc::new(read(path, certificates)?));
        Ok(Arc::new(Self { path: path.to_owned(), certificates, rules }))
    }

    /// Reads the file again; sessions that stand are left alone.
    ///
    /// # Errors
    /// [`Error::AccessFile`]; the rules stay what they were.
    pub fn reload(&self) -> Result<()> {
        let rules = Arc::new(read(&self.path, self.certificates)?);
        *self.rules.lock() = rules;
        Ok(())
    }

    /// What the first rule that fits says; `None`: none fits, and the client does not come in.
    #[must_use]
    pub fn method(&self, knock: Knock<'_>) -> Option<Method> {
        let rules = Arc::clone(&self.rules.lock());
        let fits = |rule: &&Rule| {
            rule.encrypted.is_none_or(|encrypted| encrypted == knock.encrypted)
                && rule.database.fit(own_name(knock.database))
                && rule.user.fit(knock.user)
                && rule.network.fits(knock.address)
        };
        rules.iter().find(fits).map(|rule| rule.method)
    }

    /// Whether `user` may come in over HTTP, with a password.
    ///
    /// # Errors
    /// Why not.
    pub fn over_http(
        &self,
        address: IpAddr,
        encrypted: bool,
        user: &str,
    ) -> std::result::Result<(), &'static str> {
        match self.method(Knock { address, encrypted, user, database: DEFAULT_DATABASE }) {
            Some(Method::Scram | Method::Trust) => Ok(()),
            Some(Method::Cert) => Err("its rule asks for a certificate, which HTTP does not take"),
            Some(Method::Reject) => Err("a rule rejects it"),
            None => Err("no rule fits"),
        }
    }
}

/// The name of a database by which rules know it: `postgres` is another name of the one there is,
/// and no way around a line for that.
fn own_name(database: &str) -> &str {
    if database == "postgres" { DEFAULT_DATABASE } else { database }
}

fn read(path: &Path, certificates: bool) -> Result<Vec<Rule>> {
    let fail = |line, reason| Error::AccessFile { path: path.to_owned(), line, reason };
    let size = std::fs::metadata(path).map_err(|error| fail(0, error.to_string()))?.len();
    if size > MAX_BYTES {
        return Err(fail(0, format!("it has {size} bytes, at most {MAX_BYTES} are read")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| fail(0, error.to_string()))?;
    let mut rules = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words = words(line).map_err(|reason| fail(number, reason))?;
        if words.is_empty() {
            continue;
        }
        if rules.len() == MAX_RULES {
            return Err(fail(number, format!("there are more than {MAX_RULES} rules")));
        }
        let rule = rule(&words).map_err(|reason| fail(number, reason))?;
        if rule.method == Method::Cert && !certificates {
            let reason =
                "cert needs --tls-client-ca: clients are asked for no certificate".to_owned();
            return Err(fail(number, reason));
        }
        rules.push(rule);
    }
    if rules.is_empty() {
        return Err(fail(0, "it has no rule, so that nobody could come in".to_owned()));
    }
    Ok(rules)
}

/// A part of a line: a text, and whether it was quoted and so stands for itself.
type Word = (String, bool);

/// The fields of a line, each a list.
fn words(line: &str) -> std::result::Result<Vec<Vec<Word>>, String> {
    let mut fields: Vec<Vec<Word>> = Vec::new();
    let mut characters = line.chars().peekable();
    let mut goes_on = false;
    while let Some(&character) = characters.peek() {
        match character {
            '#' => break,
            ',' => {
                characters.next();
                if fields.is_empty() {
                    return Err("it begins with a comma".to_owned());
                }
                goes_on = true;
            }
            c if c.is_whitespace() => {
                characters.next();
            }
            _ => {
                let word = word(&mut characters)?;
                match fields.last_mut() {
                    Some(last) if goes_on => last.push(word),
                    _ => fields.push(vec![word]),
                }
                goes_on = false;
            }
        }
    }
    if goes_on { Err("it ends with a comma".to_owned()) } else { Ok(fields) }
}

fn word(
    characters: &mut std::iter::Peekable<std::str::Chars<'_>>,
) -> std::result::Result<Word, String> {
    let mut text = String::new();
    if characters.next_if_eq(&'"').is_some() {
        for character in characters.by_ref() {
            if character == '"' {
                return Ok((text, true));
            }
            text.push(character);
        }
        return Err("a quote is not closed".to_owned());
    }
    while let Some(character) =
        characters.next_if(|c| !c.is_whitespace() && !matches!(c, ',' | '#' | '"'))
    {
        text.push(character);
    }
    Ok((text, false))
}

fn rule(fields: &[Vec<Word>]) -> std::result::Result<Rule, String> {
    let [kind, database, user, address, method] = fields else {
        return Err(format!(
            "it has {} fields; write: host|hostssl|hostnossl DATABASE USER ADDRESS METHOD",
            fields.len()
        ));
    };
    let encrypted = match one(kind)? {
        "host" => None,
        "hostssl" => Some(true),
        "hostnossl" => Some(false),
        "local" => {
            return Err(
                "there are no Unix-domain sockets here: write host, with 127.0.0.1/32".to_owned()
            );
        }
        other => return Err(format!("{other:?} is no type; write host, hostssl or hostnossl")),
    };
    let network = network(one(address)?)?;
    let method = match one(method)? {
        "scram-sha-256" => Method::Scram,
        "reject" => Method::Reject,
        "cert" if encrypted == Some(true) => Method::Cert,
        "cert" => return Err("cert is for hostssl only: certificates come with TLS".to_owned()),
        "trust" if network.is_loopback() => Method::Trust,
        "trust" => {
            return Err(
                "trust is for loopback addresses only (127.0.0.1/32, ::1/128); write scram-sha-256"
                    .to_owned(),
            );
        }
        other => {
            return Err(format!(
                "{other:?} is no method here; write scram-sha-256, cert, trust or reject"
            ));
        }
    };
    let mut database = names(database, &["sameuser", "samerole", "samegroup", "replication"])?;
    if let Names::These(names) = &mut database {
        names.iter_mut().for_each(|name| *name = own_name(name).to_owned());
    }
    let user = names(user, &[])?;
    Ok(Rule { encrypted, database, user, network, method })
}

fn one(field: &[Word]) -> std::result::Result<&str, String> {
    match field {
        [(word, _)] => Ok(word),
        _ => Err("only databases and users may be lists".to_owned()),
    }
}

fn names(field: &[Word], refused: &[&str]) -> std::result::Result<Names, String> {
    let mut names = Vec::new();
    for (word, quoted) in field {
        if !quoted && word == "all" {
            return Ok(Names::All);
        }
        if !quoted && (word.starts_with(['+', '@', '/']) || refused.contains(&word.as_str())) {
            return Err(format!(
                "{word:?} is not supported: write names, or all (quoted it is a name)"
            ));
        }
        if word.is_empty() {
            return Err("a name is empty".to_owned());
        }
        names.push(word.clone());
    }
    Ok(Names::These(names))
}

fn network(text: &str) -> std::result::Result<Network, String> {
    if text == "all" {
        return Ok(Network::All);
    }
    let wrong = || format!("{text:?} is no network; write ADDRESS/BITS like 10.0.0.0/8, or all");
    let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let bits: u8 = bits.parse().map_err(|_| wrong())?;
    if let (IpAddr::V6(_), plain @ IpAddr::V4(_)) = (address, address.to_canonical()) {
        // Clients have their IPv4 address in rules, by whichever socket they come: this would fit
        // nobody.
        return Err(format!("{text:?} is an IPv4 network in IPv6's writing; write {plain}/BITS"));
    }
    let most = if address.is_ipv4() { 32 } else { 128 };
    if bits > most {
        return Err(wrong());
    }
    Ok(Network::Within(address, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Arc<AccessRules>> {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("access");
        std::fs::write(&path, text).expect("written");
        AccessRules::read(&path, false)
    }

    fn knock<'a>(address: &str, encrypted: bool, user: &'a str, database: &'a str) -> Knock<'a> {
        Knock { address: address.parse().expect("an address"), encrypted, user, database }
    }

    #[test]
    fn first_line_that_fits_decides_and_none_means_no() {
        let rules = parse(
            "# who\n\nhostssl all app,\"all\" 10.0.0.0/8 scram-sha-256 # net\nhost telesto ada 10.1.0.0/16 reject\n\
             host telesto ada 10.0.0.0/8 scram-sha-256\nhostnossl all eve ::1/128 trust\nhost all root 0.0.0.0/0 reject\n\
             host all six 2001:db8:0:1::/64 reject\nhost all six 2001:db8::/32 scram-sha-256\nhost postgres pg all reject\n",
        )
        .expect("reads");
        for (address, encrypted, user, database, method) in [
            ("10.9.9.9", true, "app", "x", Some(Method::Scram)),
            ("::ffff:10.9.9.9", true, "all", "x", Some(Method::Scram)),
            ("10.9.9.9", false, "app", "x", None),
            ("11.0.0.1", true, "app", "x", None),
            ("10.1.2.3", true, "ada", "telesto", Some(Method::Reject)),
            ("10.2.2.3", true, "ada", "telesto", Some(Method::Scram)),
            ("10.2.2.3", true, "ada", "other", None),
            ("::1", false, "eve", "x", Some(Method::Trust)),
            ("::2", false, "eve", "x", None),
            ("::1", true, "eve", "x", None),
            ("192.0.2.1", false, "root", "x", Some(Method::Reject)),
            ("2001:db8::1", false, "root", "x", None),
            ("2001:db8:0:1::1", false, "six", "x", Some(Method::Reject)),
            ("2001:db8:0:2::1", false, "six", "x", Some(Method::Scram)),
            ("2001:db9::1", false, "six", "x", None),
            ("32.1.13.184", false, "six", "x", None),
            // The same database by its other name.
            ("10.1.2.3", true, "ada", "postgres", Some(Method::Reject)),
            ("10.9.9.9", false, "pg", "telesto", Some(Method::Reject)),
            ("10.9.9.9", false, "pg", "postgres", Some(Method::Reject)),
            ("10.9.9.9", true, "bob", "x", None),
        ] {
            let knock = knock(address, encrypted, user, database);
            assert_eq!(rules.method(knock), method, "{knock:?}");
        }
    }

    #[test]
    fn wrong_lines_are_named() {
        let good = "host all all 127.0.0.1/32 trust\n";
        for line in [
            "host all all 10.0.0.0/8 trust",
            "host all all all trust",
            "host all all 127.0.0.0/7 trust",
            "host all all 10.0.0.0/33 reject",
            "host all all db.example reject",
            // It would let through whom it is meant to reject.
            "host all all ::ffff:10.0.0.0/104 reject",
            "host all all 10.0.0.0 reject",
            "host all all 10.0.0.0/8 md5",
            "host all all 10.0.0.0/8",
            "host all all 10.0.0.0/8 reject option=1",
            "host sameuser all all reject",
            "host all +admins all reject",
            "host all a, all",
            "host all \"a all reject",
            "local all all trust",
            "local all all all trust",
            "hosts all all all reject",
            "host all all all cert",
            // Nobody is asked for one.
            "hostssl all all all cert",
        ] {
            let error = parse(&format!("{good}{line}\n")).expect_err(line).to_string();
            assert!(error.contains("access:2: "), "{error}");
        }
        assert!(parse("# nobody\n").is_err());
    }

    #[test]
    fn file_that_became_wrong_leaves_the_rules_that_were() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("access");
        std::fs::write(&path, "host all ada all scram-sha-256\n").expect("written");
        let rules = AccessRules::read(&path, false).expect("reads");
        let of = |user| rules.method(knock("192.0.2.1", false, user, "telesto"));
        std::fs::write(&path, "host all bob all scram-sha-256\nhost\n").expect("written");
        assert!(rules.reload().is_err());
        assert_eq!((of("ada"), of("bob")), (Some(Method::Scram), None));
        std::fs::write(&path, "host all bob all scram-sha-256\n").expect("written");
        rules.reload().expect("reads");
        assert_eq!((of("ada"), of("bob")), (None, Some(Method::Scram)));
    }
}
