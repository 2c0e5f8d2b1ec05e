//! Counting the requests of one task: one SQL statement, one group commit.
//!
//! # Purpose
//! A [`ScopeMeter`] counts beside the bucket's own meter whatever is requested inside it, so that a
//! statement can be told what it cost.
//!
//! # Invariants
//! - A scope sees the requests of futures polled inside it ([`scoped`], [`enter`]). Scopes do not add
//!   up: inside another one only the innermost counts.
//! - Work done once for several (a group commit, a shared look at the log's tail) is counted in a scope
//!   of its own and given out in equal shares ([`ScopeMeter::add`]): hence fractions.
//! - A task spawned inside a scope is outside of it. The exception are the short tasks in which the
//!   checkpoint engine reads ahead and DataFusion runs operators, on a runtime prepared by
//!   [`follow_tasks`]: these libraries spawn by themselves, and a long scan does most of its reading there.
//!
//! # Limits
//! - On a runtime that was not prepared (a program's own, under the embedded library) what those tasks read
//!   counts for the bucket only.
//! - Which tasks are followed is told by the source file that spawns them; the versions of both
//!   libraries are pinned and a test in `crates/telesto` counts a cold scan.

use std::fmt;
use std::future::Future;
use std::ops::{AddAssign, Div, Sub};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use futures::Stream;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::task::Id;
use tokio::task::futures::TaskLocalFuture;

use crate::api::Cause;
use crate::meter::{Class, Usage};

/// Bucket requests, bytes and dollars caused by something. Fractions are shares of work done for several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// GET and HEAD requests.
    pub gets: f64,
    /// PUT and COPY requests.
    pub puts: f64,
    /// LIST requests.
    pub lists: f64,
    /// DELETE requests.
    pub deletes: f64,
    /// Body bytes sent.
    pub uploaded_bytes: f64,
    /// Body bytes received.
    pub downloaded_bytes: f64,
    /// Dollars, by the bucket's price sheet.
    pub dollars: f64,
}

impl Cost {
    fn each(self, other: Self, op: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            gets: op(self.gets, other.gets),
            puts: op(self.puts, other.puts),
            lists: op(self.lists, other.lists),
            deletes: op(self.deletes, other.deletes),
            uploaded_bytes: op(self.uploaded_bytes, other.uploaded_bytes),
            downloaded_bytes: op(self.downloaded_bytes, other.downloaded_bytes),
            dollars: op(self.dollars, other.dollars),
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = self.each(other, |a, b| a + b);
    }
}

impl Sub for Cost {
    type Output = Self;

    /// What came since `other`; never below zero.
    fn sub(self, other: Self) -> Self {
        // Sums of dollars are rounded: a difference may miss zero by the last digit.
        self.each(other, |a, b| (a - b).max(0.0))
    }
}

impl Div<f64> for Cost {
    type Output = Self;

    fn div(self, sharers: f64) -> Self {
        self.each(Self::default(), |a, _| a / sharers)
    }
}

/// `2 get, 0.5 put, 0 list, 0 delete; 310 bytes sent, 8192 received; $0.0000033`
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} get, {} put, {} list, {} delete; {:.0} bytes sent, {:.0} received; ${}",
            short(self.gets, 3),
            short(self.puts, 3),
            short(self.lists, 3),
            short(self.deletes, 3),
            self.uploaded_bytes,
            self.downloaded_bytes,
            short(self.dollars, 10),
        )
    }
}

/// A number of at most `digits` decimals, without trailing zeros.
fn short(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Counts of one task, for `EXPLAIN ANALYZE` and per-statement accounting.
#[derive(Debug, Default)]
pub struct ScopeMeter {
    cause: Option<Cause>,
    totals: Mutex<Cost>,
}

impl ScopeMeter {
    /// A scope that only counts.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A scope whose reads through [`crate::Bucket::object_store`] count as `cause`, whatever that
    /// store was made for: the checkpoint engine has one store for foreground and background.
    #[must_use]
    pub fn for_cause(cause: Cause) -> Arc<Self> {
        Arc::new(Self { cause: Some(cause), totals: Mutex::default() })
    }

    /// What was counted so far.
    #[must_use]
    pub fn totals(&self) -> Cost {
        *self.totals.lock()
    }

    /// Adds a share of something that was counted elsewhere.
    pub fn add(&self, share: Cost) {
        *self.totals.lock() += share;
    }
}

tokio::task_local! {
    static SCOPE: Arc<ScopeMeter>;
}

/// Runs `future` so that the requests it makes count in `scope` too.
pub fn scoped<F: Future>(scope: Arc<ScopeMeter>, future: F) -> TaskLocalFuture<Arc<ScopeMeter>, F> {
    // Not an async fn: that would hold large futures twice.
    SCOPE.scope(scope, future)
}

/// Runs `work` inside `scope`: polls something by hand.
pub fn enter<R>(scope: &Arc<ScopeMeter>, work: impl FnOnce() -> R) -> R {
    SCOPE.sync_scope(Arc::clone(scope), work)
}

/// The scope this task runs in, to take along into a task it spawns.
#[must_use]
pub fn current_scope() -> Option<Arc<ScopeMeter>> {
    SCOPE.try_with(Arc::clone).ok().or_else(followed_scope)
}

/// The cause the current scope gives to reads.
pub(crate) fn cause() -> Option<Cause> {
    current_scope().and_then(|scope| scope.cause)
}

pub(crate) fn add_request(class: Class, usage: Usage, dollars: f64) {
    // Outside any scope there is nothing to add to.
    let Some(scope) = current_scope() else { return };
    let requests = usage.requests as f64;
    let mut cost = Cost {
        uploaded_bytes: usage.uploaded_bytes as f64,
        downloaded_bytes: usage.downloaded_bytes as f64,
        dollars,
        ..Cost::default()
    };
    match class {
        Class::Get | Class::Head => cost.gets = requests,
        Class::Put | Class::Copy => cost.puts = requests,
        Class::List => cost.lists = requests,
        Class::Delete => cost.deletes = requests,
    }
    scope.add(cost);
}

/// A stream whose requests count in a scope, whoever pulls it.
#[derive(Debug)]
pub struct ScopedStream<S> {
    inner: S,
    scope: Arc<ScopeMeter>,
}

impl<S> ScopedStream<S> {
    /// `inner`, polled inside `scope`.
    pub fn new(inner: S, scope: Arc<ScopeMeter>) -> Self {
        Self { inner, scope }
    }
}

impl<S: Stream + Unpin> Stream for ScopedStream<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.get_mut();
        enter(&this.scope, || Pin::new(&mut this.inner).poll_next(context))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

/// The scopes of followed tasks, as long as these live.
static FOLLOWED: LazyLock<Mutex<FxHashMap<Id, Arc<ScopeMeter>>>> = LazyLock::new(Mutex::default);
/// How many there are: where none is followed, nothing is locked.
static FOLLOWED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes the tasks that SlateDB's scans and DataFusion's operators spawn on a runtime count in the scope
/// they are spawned from.
pub fn follow_tasks(runtime: &mut tokio::runtime::Builder) -> &mut tokio::runtime::Builder {
    runtime
        .on_task_spawn(|task| {
            if !is_followed(task.spawned_at().file()) {
                return;
            }
            let Some(scope) = current_scope() else { return };
            FOLLOWED.lock().insert(task.id(), scope);
            FOLLOWED_COUNT.fetch_add(1, Ordering::Release);
        })
        .on_task_terminate(|task| {
            if FOLLOWED_COUNT.load(Ordering::Acquire) == 0 {
                return;
            }
            if FOLLOWED.lock().remove(&task.id()).is_some() {
                FOLLOWED_COUNT.fetch_sub(1, Ordering::Release);
            }
        })
}

/// Whether a task spawned in this source file lives no longer than what spawned it. SlateDB starts its
/// read-ahead in `utils.rs`; its lasting tasks start elsewhere.
fn is_followed(file: &str) -> bool {
    file.contains("datafusion") || (file.contains("slatedb") && file.ends_with("utils.rs"))
}

fn followed_scope() -> Option<Arc<ScopeMeter>> {
    if FOLLOWED_COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    FOLLOWED.lock().get(&tokio::task::try_id()?).cloned()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    fn get() {
        add_request(Class::Get, Usage { requests: 1, ..Usage::default() }, 0.5);
    }

    #[tokio::test]
    async fn innermost_scope_counts_and_streams_keep_theirs() {
        let (outer, inner) = (ScopeMeter::new(), ScopeMeter::new());
        let stream = futures::stream::poll_fn(|_| {
            get();
            Poll::Ready(None::<()>)
        });
        let stream = ScopedStream::new(stream, Arc::clone(&outer));
        scoped(Arc::clone(&outer), async {
            get();
            scoped(Arc::clone(&inner), async { get() }).await;
        })
        .await;
        assert_eq!((outer.totals().gets, inner.totals().gets), (1.0, 1.0));
        assert_eq!(stream.count().await, 0);
        assert_eq!(outer.totals().gets, 2.0, "pulled outside, counted inside");
        outer.add(Cost { puts: 1.0, dollars: 0.3, ..Cost::default() } / 4.0);
        let since = outer.totals() - inner.totals();
        assert_eq!(
            since.to_string(),
            "1 get, 0.25 put, 0 list, 0 delete; 0 bytes sent, 0 received; $0.575"
        );
    }

    #[test]
    fn spawned_task_is_followed_only_when_a_library_spawned_it() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = follow_tasks(builder.worker_threads(1)).build().expect("runtime");
        let scope = ScopeMeter::new();
        runtime.block_on(scoped(Arc::clone(&scope), async {
            let spawned = tokio::runtime::Handle::current().spawn(async { get() });
            spawned.await.expect("ran");
        }));
        assert_eq!(scope.totals().gets, 0.0, "this file is no library");
        assert!(is_followed("/registry/slatedb-0.18.0/src/utils.rs"));
        assert!(!is_followed("/registry/slatedb-0.18.0/src/dispatcher.rs"));
        assert!(is_followed("/registry/datafusion-common-runtime-55.2.0/src/common.rs"));
        assert!(FOLLOWED.lock().is_empty());
    }
}
