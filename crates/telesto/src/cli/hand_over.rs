//! One node process after the other under one process id, with the clients of the first.
//!
//! ```text
//! SIGUSR2 ─► does the program on disk know this? ─► drain ─► database closed ─► exec of the program on disk, same arguments
//!              no: logged, nothing changes                                       │ descriptors stay open; a file in memory says which
//!                                                                                └► opens the database, serves the same sockets
//! ```
//! # Invariants
//! - Nothing is drained before the program that is to come has said that it takes clients over.
//! - A descriptor is adopted only when this process's own predecessor named it: in a file in
//!   memory, whose number the environment gives, and which has a name that no other file in memory
//!   has.
//! - The database is closed before the next process opens it: there is never a second writer.
//!
//! # On failure
//! An `exec` that fails ends the process, as a stop would. What the next process cannot start with
//! (a setting that is wrong by now) ends it too; its clients lose their connections then.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};
use telesto_common::Env;
use telesto_server::hand_over::{ClientState, Listeners, Passed, PassedClient};

/// Names the file in memory by its number.
const VARIABLE: &str = "TELESTO_HAND_OVER";
const FILE: &str = "telesto-hand-over";
/// What `telesto hand-over` prints: the form of the file below.
pub(super) const FORM: &str = "telesto hand-over 1";
/// How long the program on disk may take to say that.
const ANSWER: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// What stands in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Written<'a> {
    form: &'a str,
    sql: Option<RawFd>,
    http: Option<RawFd>,
    status: Option<RawFd>,
    clients: Vec<(RawFd, ClientState)>,
}

/// The program that comes after this process.
#[derive(Debug)]
pub(super) struct Successor {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Successor {
    /// Of this process, which must ask while its program is still where it was started from: an
    /// upgrade replaces the file.
    ///
    /// # Errors
    /// The system does not say what runs.
    pub(super) fn of_this_process() -> Result<Self, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("where this program lies cannot be found: {error}"))?;
        Ok(Self { program, arguments: std::env::args_os().skip(1).collect() })
    }

    /// Asks the program on disk whether it takes clients over.
    ///
    /// # Errors
    /// It does not, or is none.
    pub(super) async fn check(&self, env: &Env) -> Result<(), String> {
        let fail = |reason: String| format!("{}: {reason}", self.program.display());
        let mut child = Command::new(&self.program)
            .arg("hand-over")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| fail(error.to_string()))?;
        let deadline = env.deadline(ANSWER);
        let ended = async {
            loop {
                match child.try_wait() {
                    Ok(None) => env.clock.sleep(LOOK).await,
                    ended => return ended,
                }
            }
        };
        let ended = env.within(deadline, "the program to answer", ended).await;
        if !matches!(&ended, Ok(Ok(Some(status))) if status.success()) {
            // Not to be left behind; when it is gone already there is nothing to end.
            let _ = child.kill();
            let _ = child.wait();
            return Err(fail("it does not know how to take clients over".to_owned()));
        }
        let mut said = String::new();
        if let Some(output) = &mut child.stdout {
            output.read_to_string(&mut said).map_err(|error| fail(error.to_string()))?;
        }
        match said.trim() == FORM {
            true => Ok(()),
            false => Err(fail(format!("it takes clients over in another form: {:?}", said.trim()))),
        }
    }

    /// Becomes that program, with `passed`. Comes back only with the reason why not; the clients
    /// are gone then.
    pub(super) fn become_it(self, passed: Passed) -> String {
        match self.try_become(passed) {
            Ok(never) => match never {},
            Err(error) => format!("{} cannot be started: {error}", self.program.display()),
        }
    }

    fn try_become(&self, passed: Passed) -> std::io::Result<std::convert::Infallible> {
        let Listeners { sql, http, status } = &passed.listeners;
        let number = |fd: &Option<OwnedFd>| fd.as_ref().map(|fd| fd.as_raw_fd());
        let written = Written {
            form: FORM,
            sql: number(sql),
            http: number(http),
            status: number(status),
            clients: passed
                .clients
                .iter()
                .map(|client| (client.socket.as_raw_fd(), client.state.clone()))
                .collect(),
        };
        let mut file = File::from(rustix::fs::memfd_create(FILE, MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(&written)?)?;
        let sockets = passed.clients.iter().map(|client| &client.socket);
        for socket in [sql, http, status].into_iter().flatten().chain(sockets) {
            rustix::io::fcntl_setfd(socket, FdFlags::empty())?;
        }
        rustix::io::fcntl_setfd(&file, FdFlags::empty())?;
        let mut next = Command::new(&self.program);
        next.args(&self.arguments).env(VARIABLE, file.as_raw_fd().to_string());
        Err(next.exec())
    }
}

/// What the process that was this one before passes; nothing for one that was started.
///
/// # Errors
/// What it passed cannot be read: the clients are lost.
pub(super) fn received() -> Result<Passed, String> {
    let Some(number) = std::env::var_os(VARIABLE) else { return Ok(Passed::default()) };
    let number = number.to_str().and_then(|number| number.parse::<RawFd>().ok());
    let fail = |reason: &dyn std::fmt::Display| format!("{VARIABLE}: {reason}; unset it to start");
    let number = number.ok_or_else(|| fail(&"expected the number of a descriptor"))?;
    // A process started by hand from a node's own environment has the variable and not the file.
    if !is_called(number, &format!("/memfd:{FILE}")) {
        return Ok(Passed::default());
    }
    read(adopt(number).map_err(|error| fail(&error))?).map_err(|error| fail(&error))
}

fn read(file: OwnedFd) -> std::io::Result<Passed> {
    let mut file = File::from(file);
    file.rewind()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let written: Written<'_> = serde_json::from_str(&text)?;
    if written.form != FORM {
        return Err(std::io::Error::other(format!("{:?} is another form", written.form)));
    }
    let socket = |number: RawFd| match is_called(number, "socket:") {
        true => adopt(number),
        false => Err(std::io::Error::other(format!("descriptor {number} is no socket"))),
    };
    let listeners = Listeners {
        sql: written.sql.map(socket).transpose()?,
        http: written.http.map(socket).transpose()?,
        status: written.status.map(socket).transpose()?,
    };
    let clients = written.clients.into_iter();
    let clients =
        clients.map(|(number, state)| Ok(PassedClient { socket: socket(number)?, state }));
    Ok(Passed { listeners, clients: clients.collect::<std::io::Result<_>>()? })
}

/// Whether the descriptor is open and the system calls it so.
fn is_called(number: RawFd, name: &str) -> bool {
    let link = std::fs::read_link(Path::new("/proc/self/fd").join(number.to_string()));
    link.is_ok_and(|link| link.as_os_str().as_encoded_bytes().starts_with(name.as_bytes()))
}

/// The descriptor that the process before left open, for this process alone.
fn adopt(number: RawFd) -> std::io::Result<OwnedFd> {
    #[allow(
        unsafe_code,
        reason = "a descriptor that was left open over an exec has a number and nothing else"
    )]
    // SAFETY: it is open (its name was just read), and nobody in this process owns it: it was named
    // by the process before, in whose place this one runs, and each number is adopted once, before
    // anything else is opened by number.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(owned.as_fd(), FdFlags::CLOEXEC)?;
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn successor(program: &str) -> Successor {
        Successor { program: PathBuf::from(program), arguments: Vec::new() }
    }

    #[tokio::test]
    async fn program_that_takes_no_clients_over_is_told_before_anything_is_drained() {
        let env = telesto_runtime::env();
        for (program, why) in [
            ("/nonexistent/telesto", "No such file"),
            ("/bin/false", "does not know"),
            ("/bin/true", "another form"),
        ] {
            let error = successor(program).check(&env).await.expect_err(program);
            assert!(error.contains(program) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn descriptors_are_known_by_what_the_system_calls_them() {
        let file = rustix::fs::memfd_create(FILE, MemfdFlags::CLOEXEC).expect("made");
        let other = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).expect("made");
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let name = format!("/memfd:{FILE}");
        assert!(is_called(file.as_raw_fd(), &name));
        assert!(!is_called(other.as_raw_fd(), &name), "somebody else's");
        assert!(is_called(socket.as_raw_fd(), "socket:") && !is_called(1_000_000, "socket:"));
    }
}
