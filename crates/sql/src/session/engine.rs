//! The engine: what all sessions of a process share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use telesto_bucket::table_keys::TableKeys;
use telesto_bucket::{Bucket, Meter};
use telesto_cipher::Scratch;
use telesto_common::limits::MemoryBudget;
use telesto_common::{DatabaseId, Env, Label};
use telesto_txn::peers::Answers;
use telesto_txn::{Database, TxnOptions};

use super::audit::Audit;
use super::host::Host;
use super::planner::BothExecutors;
use super::settings::Settings;
use super::visit::Visits;
use super::writes::Writes;
use super::{CancelHandle, Session};
use crate::advisory::registry::AdvisoryLocks;
use crate::advisory::remote::Remote;
use crate::advisory::session::AdvisorySession;
use crate::analyze::Refresh;
use crate::catalog::placed::StoredRules;
use crate::catalog::sequence::SequenceCache;
use crate::catalog::sizes::TableSizes;
use crate::catalog::statistics::KnownStatistics;
use crate::catalog::store::{DEFAULT_DATABASE_ID, bootstrap};
use crate::catalog::uses::TableUses;
use crate::catalog::{CatalogCache, DEFAULT_DATABASE, SequenceSession};
use crate::codec::addition::RowAdditions;
use crate::error::{Error, Result, SqlState};
use crate::notify::hub::Hub;
use crate::notify::session::Channels;
use crate::online::Upkeep;
use crate::plan::accounts::Accounts;
use crate::plan::cancel::Backends;
use crate::plan::cost::Spending;
use crate::plan::everywhere::{self, ByKey, OwnSessions};
use crate::plan::measurements::Measured;
use crate::plan::watch::Watch;
use crate::plan::{Planner, SessionView};

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct SqlOptions {
    /// Bound on the memory statements may hold together, bytes.
    pub memory_bytes: u64,
    /// Memory that is set aside for the process, bytes: priced, whether it is used or not.
    pub reserved_bytes: u64,
    /// How often a transaction is executed again after a conflict before the client gets 40001.
    pub retry_attempts: u32,
    /// Bound on the statements an explicit transaction may record for re-execution.
    pub retry_statements: usize,
    /// How often the log's tail is looked at, while sessions of this process LISTEN, for what
    /// others commit.
    pub notify_interval: Duration,
    /// The bucket's meter, for what statements tell of requests and dollars; `None`: there is no
    /// bucket.
    pub meter: Option<Arc<Meter>>,
    /// Where goes what does not fit in memory: rows of sorts, joins and cursors.
    pub scratch: Scratch,
    /// The bucket, for what statements ask of what it holds; `None`: there is none.
    pub bucket: Option<Arc<dyn Bucket>>,
    /// Where keys of tables are had from; `None`: no table has one.
    pub table_keys: Option<Arc<TableKeys>>,
}

impl Default for SqlOptions {
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            reserved_bytes: 0,
            retry_attempts: 20,
            retry_statements: 1000,
            notify_interval: Duration::from_millis(500),
            meter: None,
            scratch: Scratch::system(),
            bucket: None,
            table_keys: None,
        }
    }
}

/// Options of a session.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// The user; empty for `telesto`.
    pub user: String,
    /// Whether the user was asked for a password, and had it: then only a role may begin a session.
    /// Otherwise a name that no role has means the bootstrap superuser.
    pub proven: bool,
    /// The role that the user was when that was asked: a session does not begin as another one of
    /// the name. `None`: as whichever has it.
    pub role: Option<u32>,
    /// The database; empty for `telesto`.
    pub database: String,
    /// Where the client is; `None`: in this process.
    pub client: Option<std::net::SocketAddr>,
    /// How its connection is encrypted; `None`: not at all.
    pub encrypted: Option<Arc<crate::plan::activity::Encrypted>>,
    /// application_name
    pub application_name: String,
    /// Further start-up parameters, as if SET.
    pub parameters: Vec<(String, String)>,
    /// None of its transactions may write, and no SET or BEGIN changes that.
    pub read_only: bool,
    /// The greatest label the client has seen (a session continued elsewhere).
    pub label: Label,
    /// It is the server's own, or goes on: settings that are stored for roles and for the database
    /// are not for it.
    pub bare: bool,
    /// Who keeps records of definitions and changes of roles; `None`: nobody.
    pub audit: Option<Arc<dyn Audit>>,
}

/// The part of the statements' memory that plans which are kept have beside it.
const KEPT_PLANS_SHARE: u64 = 16;

/// SQL over one [`Database`].
#[derive(Debug)]
pub struct SqlEngine {
    pub(super) database: Arc<dyn Database>,
    pub(super) env: Env,
    pub(super) options: SqlOptions,
    pub(super) database_id: DatabaseId,
    pub(crate) catalogs: CatalogCache,
    sequences: Arc<SequenceCache>,
    sizes: Arc<TableSizes>,
    uses: Arc<TableUses>,
    pub(super) memory: Arc<MemoryBudget>,
    /// What plans that are kept may take: a small part of the memory beside, for all of them.
    kept_plans: Arc<MemoryBudget>,
    /// What sessions know of texts: a small part of the memory beside, for all of them.
    pub(super) texts: super::texts::TextStore,
    advisory: Arc<AdvisoryLocks>,
    pub(super) backends: Arc<Backends>,
    own_sessions: Arc<OwnSessions>,
    hub: Arc<Hub>,
    measured: Arc<Measured>,
    watch: Arc<Watch>,
    pub(super) planner: Arc<dyn Planner>,
    pub(crate) upkeep: Upkeep,
    pub(crate) refresh: Refresh,
    pub(super) writes: Writes,
    accounts: Arc<Accounts>,
    sessions: AtomicU64,
    /// When the newest catalog was last looked at for a request that is no session's.
    pub(super) looked: Mutex<Option<Duration>>,
    /// Who executes statements of other regions here.
    visits: Arc<Visits>,
    /// What sessions here have other regions execute.
    pub(super) places: Arc<super::places::Places>,
}

impl SqlEngine {
    /// Opens SQL over `database`; creates the catalog in a fresh one.
    ///
    /// # Errors
    /// Whatever the database runs into.
    pub async fn open(
        database: Arc<dyn Database>,
        env: Env,
        options: SqlOptions,
    ) -> Result<Arc<Self>> {
        crate::expr::registry::install(&crate::system::FUNCTIONS)?;
        database.add_with(Arc::new(RowAdditions));
        database.place_by(Arc::new(StoredRules));
        // Several processes may open a fresh bucket at once: one creates, the others conflict and
        // find it.
        let mut attempt = 0;
        loop {
            let txn = database.begin(TxnOptions::default()).await?;
            // A region that has joined others got their catalog before it opened SQL.
            let first = database.region() == crate::catalog::regions::FOUNDER;
            let created = first && bootstrap(&txn, DEFAULT_DATABASE_ID, &env).await?;
            if !created {
                txn.rollback();
                break;
            }
            match txn.commit().await {
                Ok(_) => break,
                Err(telesto_txn::Error::Conflict { .. }) if attempt < options.retry_attempts => {
                    attempt += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let texts = super::texts::TextStore::new(options.memory_bytes / super::texts::SHARE);
        let memory = MemoryBudget::new(options.memory_bytes);
        let kept_plans = MemoryBudget::new(options.memory_bytes / KEPT_PLANS_SHARE);
        let backends: Arc<Backends> = Arc::default();
        let hub = Hub::open(
            Arc::clone(&database),
            env.clone(),
            DEFAULT_DATABASE_ID,
            options.notify_interval,
        );
        let (uses, measured): (Arc<TableUses>, Arc<Measured>) = Default::default();
        let statistics = Arc::new(KnownStatistics::counting(Arc::clone(&uses)));
        let catalogs = CatalogCache::of(database.region())
            .with_keys(options.table_keys.clone())
            .with_statistics(statistics);
        let remote = Remote::new(Arc::clone(&database), env.clone(), DEFAULT_DATABASE_ID);
        let advisory = AdvisoryLocks::new(remote, env.clone());
        let own_sessions = OwnSessions::new(
            Arc::clone(&backends),
            Arc::clone(&uses),
            Arc::clone(&measured),
            Arc::clone(&advisory),
        );
        if let Some(peers) = database.peers() {
            peers.answer_with(Arc::clone(&own_sessions) as Arc<dyn Answers>);
        }
        let accounts = {
            let (meter, bucket) = (options.meter.clone(), options.bucket.clone());
            Accounts::new(&env, &database, meter, bucket, options.reserved_bytes)
        };
        let visits: Arc<Visits> = Arc::default();
        let reader: Weak<Visits> = Arc::downgrade(&visits);
        database.read_with(reader);
        let engine = Arc::new(Self {
            accounts,
            database,
            env,
            options,
            database_id: DEFAULT_DATABASE_ID,
            catalogs,
            sequences: Arc::default(),
            sizes: Arc::default(),
            uses,
            memory,
            kept_plans,
            texts,
            advisory,
            backends,
            own_sessions,
            hub,
            measured,
            watch: Arc::default(),
            planner: Arc::new(BothExecutors),
            upkeep: Upkeep::default(),
            refresh: Refresh::default(),
            writes: Writes::default(),
            sessions: AtomicU64::new(0),
            looked: Mutex::default(),
            visits,
            places: Arc::default(),
        });
        engine.visits.of(&engine);
        crate::job_costs::count(&engine);
        Ok(engine)
    }

    /// A new session.
    ///
    /// # Errors
    /// 3D000 when the database does not exist, 22023 for a bad start-up parameter.
    pub async fn session(self: &Arc<Self>, mut options: SessionOptions) -> Result<Session> {
        let or_default = |name: String| {
            if name.is_empty() { DEFAULT_DATABASE.to_owned() } else { name }
        };
        let database = or_default(std::mem::take(&mut options.database));
        if database != DEFAULT_DATABASE && database != "postgres" {
            return Err(Error::new(
                SqlState::INVALID_CATALOG_NAME,
                format!("database \"{database}\" does not exist"),
            )
            .hint("There is one database, called telesto."));
        }
        let user = or_default(std::mem::take(&mut options.user));
        let mut role = self.log_in(&user, options.proven, options.role).await?;
        let slot = role.slot.take();
        let (settings, warnings) = self.beginning(role, user, &mut options).await?;
        let mut session = self.session_of(settings, options.client);
        session.shown.change().encrypted = options.encrypted.take();
        for warning in warnings {
            session.notices.warning(warning.code(), warning.message());
        }
        (session.label, session.audit) = (options.label, options.audit);
        session.slot = slot;
        Ok(session)
    }

    /// A session for a statement of one in another region, which has these settings and has seen
    /// what `label` stands for here. Its transaction began at `started_micros`.
    pub(super) fn session_for(
        self: &Arc<Self>,
        settings: Settings,
        label: Label,
        started_micros: i64,
    ) -> Session {
        let mut session = self.session_of(settings, None);
        (session.label, session.visits) = (label, Some(started_micros));
        Arc::make_mut(&mut session.live).visits = true;
        session
    }

    fn session_of(self: &Arc<Self>, settings: Settings, client: Option<SocketAddr>) -> Session {
        let settings = Arc::new(settings);
        let now = super::pg_micros(self.env.clock.wall_micros());
        let shown = Arc::new(crate::plan::activity::Shown::of(
            (&settings.session_user, settings.session_role),
            now,
        ));
        {
            let mut shown = shown.change();
            shown.client = client;
            shown.application_name.clone_from(&settings.application_name);
        }
        let id = self.sessions.fetch_add(1, Ordering::Relaxed);
        let prepared = super::named::Statements::new(&self.memory);
        Session {
            sequences: Arc::new(SequenceSession::new(
                Arc::clone(&self.database),
                self.env.clone(),
                Arc::clone(&self.sequences),
            )),
            engine: Arc::clone(self),
            defaults: Arc::clone(&settings),
            set_aside: Default::default(),
            capped: None,
            spending: Spending::new(Arc::clone(&self.accounts), &settings),
            settings,
            cancel: CancelHandle::new(Arc::clone(&self.env.clock), &self.memory),
            statement: 0,
            committing: None,
            shown,
            notices: Arc::default(),
            configured: Arc::default(),
            slot: None,
            block: None,
            ending: Arc::default(),
            lost: 0,
            catalog: None,
            label: Label::default(),
            owed: None,
            source: None,
            live: Arc::new(SessionView {
                statements: prepared.shown(),
                locks: Some(Arc::clone(&self.advisory)),
                sizes: Arc::clone(&self.sizes),
                uses: Arc::clone(&self.uses),
                backends: Arc::clone(&self.backends),
                database: Some(Arc::clone(&self.database)),
                measured: Arc::clone(&self.measured),
                watch: Arc::clone(&self.watch),
                kept_plans: Some(Arc::clone(&self.kept_plans)),
                accounts: Some(Arc::clone(&self.accounts)),
                ..SessionView::default()
            }),
            prepared,
            reported: BTreeMap::new(),
            temp: None,
            texts: super::texts::Texts::default(),
            cursors: super::cursor::Cursors::default(),
            advisory: Arc::new(AdvisorySession::new(Arc::clone(&self.advisory), id)),
            deferred: Arc::default(),
            random: Arc::default(),
            channels: Arc::new(Channels::new(Arc::clone(&self.hub), id)),
            several: false,
            pipelined: false,
            writes_follow: false,
            wrote: false,
            audit: None,
            visits: None,
            places: super::places::OfSession::default(),
            spent: Duration::ZERO,
        }
    }

    /// Statements that are executed for other regions have the turns, and the limits, of `host`
    /// from here on. Only the first one counts.
    pub fn hosted_by(&self, host: Arc<dyn Host>) {
        self.visits.at(host);
    }

    /// From here on cancel requests that arrive at other nodes are tried by `by_key`, too.
    pub fn cancelled_by(&self, by_key: ByKey) {
        self.own_sessions.cancelled_by(by_key);
    }

    /// Tries a client's cancel request on all other nodes; whether one of them has the session.
    pub async fn cancel_elsewhere(&self, pid: i32, key: &[u8]) -> bool {
        everywhere::cancel(&self.database, pid, key).await
    }

    /// Whether sessions of other nodes may be asked for by their process id.
    #[must_use]
    pub fn has_peers(&self) -> bool {
        self.database.peers().is_some()
    }

    /// The database below.
    #[must_use]
    pub fn database(&self) -> &Arc<dyn Database> {
        &self.database
    }

    /// What this process has counted of tables.
    pub(crate) fn table_uses(&self) -> &Arc<TableUses> {
        &self.uses
    }

    /// What this process knows of the rows of tables.
    #[must_use]
    pub fn statistics(&self) -> &Arc<KnownStatistics> {
        self.catalogs.statistics()
    }

    /// Who measures this process, for the system tables that show it.
    #[must_use]
    pub fn measured(&self) -> &Arc<Measured> {
        &self.measured
    }

    /// Notices what its sessions do now, and what is unlike it used to be; the server asks for it
    /// every [`LOOK`](crate::plan::watch::LOOK).
    pub fn look_around(&self) {
        let now = self.env.clock.wall_micros();
        self.watch.look(now, &self.backends, &self.accounts, &self.measured);
    }

    /// Why the last write of a session of this process could not be made durable; `None`: it could,
    /// or none has been tried.
    #[must_use]
    pub fn write_trouble(&self) -> Option<Error> {
        self.writes.trouble()
    }

    /// Who has spent what.
    #[must_use]
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// The seams.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.env
    }
}
