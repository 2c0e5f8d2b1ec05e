//! A client that speaks SQL.
//!
//! # Invariants
//! - What a client records follows from what the session told it: committed only when COMMIT (or
//!   the end of an implicit transaction) succeeded, aborted only when an error says that nothing
//!   was changed, unknown otherwise.
//! - Every writing transaction inserts its own row into `done`, so that its fate can be read at the
//!   end.
//!
//! # On failure
//! Errors of class XX (damage), and those that say that the generator's SQL is not SQL, break the
//! run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use telesto_sql::{Error, Prepared, Session, SessionOptions, SqlEngine, SqlState};
use telesto_testkit::list_append::Ended;

use super::audit;
use super::generate::{self, Statement};
use super::rows::run;
use crate::client::Client;

const LEVELS: [&str; 4] = ["SERIALIZABLE", "SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"];

struct Talk<'a> {
    client: &'a Client,
    session: Session,
    prepared: BTreeMap<&'static str, Arc<Prepared>>,
    seq: u64,
}

/// Works until the plan's time is up.
pub(crate) async fn work(client: &Client, engine: &Arc<SqlEngine>, until: Duration) {
    let session = match engine.session(SessionOptions::default()).await {
        Ok(session) => session,
        Err(error) => return client.history.broken(format!("no session: {error}")),
    };
    let mut talk = Talk { client, session, prepared: BTreeMap::new(), seq: 0 };
    while client.world.now() < until && !talk.set_up().await {
        client.env.clock.sleep(client.env.jitter(Duration::from_millis(500))).await;
    }
    while client.world.now() < until {
        client.env.clock.sleep(client.env.jitter(Duration::from_millis(1500))).await;
        match client.below(40) {
            0 => talk.audit().await,
            1 | 2 => talk.alone().await,
            3..=5 => {
                let executor = ["auto", "datafusion", "auto"][client.below(3) as usize];
                // A session whose setting fails keeps the old one.
                let _ = run(&mut talk.session, &format!("SET telesto.executor = {executor}")).await;
                talk.transaction().await;
            }
            _ => talk.transaction().await,
        }
    }
}

/// Audits everything once the misfortunes are over; whether that worked.
pub(crate) async fn final_read(client: &Client, engine: &Arc<SqlEngine>) -> bool {
    let Ok(session) = engine.session(SessionOptions::default()).await else { return false };
    let mut talk = Talk { client, session, prepared: BTreeMap::new(), seq: 0 };
    if !talk.set_up().await {
        return false;
    }
    match audit::audit(&mut talk.session).await {
        Ok(audited) => {
            client.history.sql_final(client.session, audited);
            true
        }
        Err(error) => {
            talk.failed(&error);
            false
        }
    }
}

impl Talk<'_> {
    fn below(&self) -> impl FnMut(u64) -> u64 + use<> {
        let random = Arc::clone(&self.client.env.random);
        move |limit| random.next_u64() % limit.max(1)
    }

    /// Looks at an error; whether it leaves open what became of the transaction it ended, if that
    /// was at its commit.
    fn failed(&self, error: &Error) -> bool {
        let code = error.code();
        let text = code.to_string();
        if text.starts_with("XX") || text == "42601" || text == "0A000" {
            self.client.history.broken(format!("session {}: {error:?}", self.client.session));
        }
        self.client.world.trace(|| format!("session {} failed: {error:?}", self.client.session));
        code == SqlState::TRANSACTION_RESOLUTION_UNKNOWN || code == SqlState::ADMIN_SHUTDOWN
    }

    /// Creates the tables unless they are there; whether they are there now.
    async fn set_up(&mut self) -> bool {
        let there = run(&mut self.session, "SELECT count(*) FROM pg_class WHERE relname = 'done'");
        match there.await {
            Ok(found) if found.rows == [[Some("1".to_owned())]] => return true,
            Ok(_) => {}
            Err(error) => {
                self.failed(&error);
                return false;
            }
        }
        let created = run(&mut self.session, generate::SCHEMA).await;
        if let Err(error) = &created {
            self.failed(error);
            self.roll_back().await;
        }
        created.is_ok()
    }

    async fn roll_back(&mut self) {
        if let Err(error) = run(&mut self.session, "ROLLBACK").await {
            self.failed(&error);
        }
    }

    /// Compares everything in one snapshot, while the others work.
    async fn audit(&mut self) {
        match audit::audit(&mut self.session).await {
            Ok(audited) => {
                for violation in audited.violations {
                    self.client.history.broken(format!("audit while working: {violation}"));
                }
            }
            Err(error) => {
                self.failed(&error);
                self.roll_back().await;
            }
        }
    }

    async fn alone(&mut self) {
        let Some(sql) = generate::alone(&mut self.below()) else { return };
        if let Err(error) = run(&mut self.session, sql).await {
            self.failed(&error);
        }
    }

    async fn transaction(&mut self) {
        self.seq += 1;
        let (session, seq) = (self.client.session, self.seq);
        let ended = if self.client.below(3) == 0 {
            self.implicit(seq).await
        } else {
            match self.block(seq).await {
                Ok(()) => self.commit().await,
                Err(error) => {
                    self.failed(&error);
                    self.roll_back().await;
                    Ended::Aborted
                }
            }
        };
        self.client.world.trace(|| format!("session {session} transaction {seq} {ended:?}"));
        self.client.history.count(ended);
        self.client.history.sql_ends(session, seq, ended);
    }

    fn mark(&self, seq: u64) -> String {
        format!("INSERT INTO done VALUES ({}, {seq})", self.client.session)
    }

    /// Statements without a block: a simple query of several, or a pipeline of prepared ones up to
    /// Sync.
    async fn implicit(&mut self, seq: u64) -> Ended {
        let Some(statement) = generate::statement(&mut self.below()) else {
            return Ended::Aborted;
        };
        let mark = self.mark(seq);
        let result = if self.client.below(2) == 0 {
            run(&mut self.session, &format!("{}; {mark}", statement.text())).await.map(drop)
        } else {
            self.pipeline(&statement, &mark).await
        };
        match result {
            Ok(()) => Ended::Committed,
            Err(error) => {
                let open = self.failed(&error);
                if open { Ended::Unknown } else { Ended::Aborted }
            }
        }
    }

    async fn pipeline(&mut self, statement: &Statement, mark: &str) -> Result<(), Error> {
        self.prepared(statement).await?;
        let mark = self.session.prepare(mark, &[]).await?;
        self.executed(&mark, Vec::new()).await?;
        self.session.sync().await
    }

    /// A block, up to its COMMIT.
    async fn block(&mut self, seq: u64) -> Result<(), Error> {
        let level = LEVELS[self.client.below(LEVELS.len() as u64) as usize];
        run(&mut self.session, &format!("BEGIN ISOLATION LEVEL {level}")).await?;
        let mark = self.mark(seq);
        run(&mut self.session, &mark).await?;
        for _ in 0..1 + self.client.below(4) {
            let saved = self.client.below(2) == 0;
            if saved {
                run(&mut self.session, "SAVEPOINT s").await?;
            }
            let failed = self.statement().await.err();
            match failed {
                None if saved && self.client.below(8) == 0 => {
                    run(&mut self.session, "ROLLBACK TO s").await?;
                }
                None => {}
                Some(error) if saved && !self.failed(&error) => {
                    run(&mut self.session, "ROLLBACK TO s").await?;
                }
                Some(error) => return Err(error),
            }
            if self.client.below(4) == 0 {
                let pause = self.client.env.jitter(Duration::from_millis(200));
                self.client.env.clock.sleep(pause).await;
            }
        }
        Ok(())
    }

    async fn statement(&mut self) -> Result<(), Error> {
        let mut below = self.below();
        if below(25) == 0 {
            let Some(sql) = generate::definition(&mut below) else { return Ok(()) };
            return run(&mut self.session, sql).await.map(drop);
        }
        let Some(statement) = generate::statement(&mut below) else { return Ok(()) };
        if below(2) == 0 {
            self.prepared(&statement).await
        } else {
            run(&mut self.session, &statement.text()).await.map(drop)
        }
    }

    /// Runs `statement` as prepared by this session, now or long before.
    async fn prepared(&mut self, statement: &Statement) -> Result<(), Error> {
        let prepared = match self.prepared.get(statement.sql) {
            Some(prepared) => Arc::clone(prepared),
            None => {
                let prepared = self.session.prepare(statement.sql, &[]).await?;
                self.prepared.insert(statement.sql, Arc::clone(&prepared));
                prepared
            }
        };
        let values = statement.values.iter().map(generate::Value::datum).collect();
        self.executed(&prepared, values).await
    }

    async fn executed(
        &mut self,
        prepared: &Arc<Prepared>,
        values: Vec<telesto_sql::Datum>,
    ) -> Result<(), Error> {
        let result = self.session.execute(prepared, values).await?;
        let mut collected = super::rows::Collected::default();
        if let Err(error) = telesto_sql::ResultSink::result(&mut collected, result).await {
            self.session.fail();
            return Err(error);
        }
        Ok(())
    }

    async fn commit(&mut self) -> Ended {
        match run(&mut self.session, "COMMIT").await {
            Ok(done) if done.tag == "COMMIT" => Ended::Committed,
            Ok(_) => Ended::Aborted,
            Err(error) => {
                if self.failed(&error) {
                    Ended::Unknown
                } else {
                    Ended::Aborted
                }
            }
        }
    }
}
