//! What conditional puts report when replies are lost, requests fail or the store stops answering.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMode};
use telesto_bucket::{
    Bucket, BucketOptions, Cause, Class, Error, Fault, FaultRates, FaultRule, Faults, MemoryStore,
    OpenBucket, PutOutcome, over,
};
use telesto_common::Env;

struct Bench {
    store: MemoryStore,
    faults: Arc<Faults>,
    bucket: Arc<OpenBucket>,
}

fn bench() -> Bench {
    bench_on(telesto_runtime::env(), FaultRates::NONE)
}

fn bench_on(env: Env, rates: FaultRates) -> Bench {
    let store = MemoryStore::new(Arc::clone(&env.clock));
    let faults = Faults::new(env.clone(), rates);
    let options = BucketOptions {
        request_timeout: Duration::from_millis(60),
        operation_timeout: Duration::from_millis(600),
        faults: Some(Arc::clone(&faults)),
        ..BucketOptions::default()
    };
    let bucket = over(Arc::new(store.clone()), "memory://test", &options, env).expect("opens");
    Bench { store, faults, bucket }
}

async fn put(bench: &Bench, body: &'static str) -> telesto_bucket::Result<PutOutcome> {
    bench.bucket.put_if_absent(Cause::Commit, "log/1", Bytes::from_static(body.as_bytes())).await
}

async fn stored(bench: &Bench) -> Option<Bytes> {
    bench.store.get(&Path::from("log/1")).await.ok()?.bytes().await.ok()
}

#[tokio::test]
async fn put_whose_reply_is_lost_is_recognised_as_created() {
    for fault in [Fault::ResetAfter, Fault::ServerErrorAfter, Fault::HangAfter] {
        let bench = bench();
        bench.faults.add(FaultRule::next(Class::Put, "log/", fault));
        assert_eq!(put(&bench, "mine").await.expect("resolved"), PutOutcome::Created, "{fault:?}");
        let counted = bench.bucket.meter().snapshot();
        assert_eq!(counted.requests(Class::Put), 1, "not repeated: {fault:?}");
        assert_eq!(counted.requests(Class::Get), 1, "read back once: {fault:?}");
    }
}

#[tokio::test]
async fn put_that_is_repeated_on_the_way_is_recognised_as_created() {
    let bench = bench();
    bench.faults.add(FaultRule::next(Class::Put, "log/", Fault::Repeat));
    assert_eq!(put(&bench, "mine").await.expect("resolved"), PutOutcome::Created);
    assert_eq!(stored(&bench).await.as_deref(), Some(&b"mine"[..]));
    assert_eq!(put(&bench, "other").await.expect("resolved"), PutOutcome::Exists);
    let counted = bench.bucket.meter().snapshot();
    assert_eq!((counted.requests(Class::Put), counted.requests(Class::Get)), (2, 2));
    // Writers that look themselves pay nothing for a lost race.
    let body = Bytes::from_static(b"third");
    let taken = bench.bucket.put_unless_taken(Cause::Commit, "log/1", body).await;
    assert_eq!(taken.expect("taken"), PutOutcome::Exists);
    assert_eq!(bench.bucket.meter().snapshot().requests(Class::Get), 2);
}

#[tokio::test]
async fn probe_of_a_store_behind_a_proxy_that_repeats_requests_finds_one_winner() {
    let bench = bench_on(telesto_runtime::env(), FaultRates { repeat: 0.5, ..FaultRates::NONE });
    let env = telesto_runtime::env();
    telesto_bucket::probe_conditional_put(&*bench.bucket, &env).await.expect("one winner");
}

/// A local folder whose last step of making an object fails.
#[derive(Debug)]
struct NoSpace {
    store: MemoryStore,
    after_the_link: bool,
    kind: std::io::ErrorKind,
    /// Failures left.
    times: std::sync::atomic::AtomicU32,
}

impl std::fmt::Display for NoSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no space")
    }
}

#[async_trait::async_trait]
impl object_store::ObjectStore for NoSpace {
    async fn put_opts(
        &self,
        location: &Path,
        payload: object_store::PutPayload,
        opts: object_store::PutOptions,
    ) -> object_store::Result<object_store::PutResult> {
        use std::sync::atomic::Ordering::SeqCst;
        let fails = self.times.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if !fails {
            return self.store.put_opts(location, payload, opts).await;
        }
        if self.after_the_link {
            self.store.put_opts(location, payload, opts).await?;
        }
        Err(object_store::Error::Generic {
            store: "file",
            source: Box::new(std::io::Error::from(self.kind)),
        })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: object_store::PutMultipartOptions,
    ) -> object_store::Result<Box<dyn object_store::MultipartUpload>> {
        self.store.put_multipart_opts(location, opts).await
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: object_store::GetOptions,
    ) -> object_store::Result<object_store::GetResult> {
        self.store.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: futures::stream::BoxStream<'static, object_store::Result<Path>>,
    ) -> futures::stream::BoxStream<'static, object_store::Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(
        &self,
        prefix: Option<&Path>,
    ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(
        &self,
        prefix: Option<&Path>,
    ) -> object_store::Result<object_store::ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: object_store::CopyOptions,
    ) -> object_store::Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn put_that_runs_out_of_space_after_the_object_is_visible_is_created_and_before_refused() {
    use std::io::ErrorKind;
    let env = telesto_runtime::env();
    for kind in [
        ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded,
        ErrorKind::PermissionDenied,
        ErrorKind::ReadOnlyFilesystem,
    ] {
        for after_the_link in [true, false] {
            let store = MemoryStore::new(Arc::clone(&env.clock));
            let full = NoSpace { store: store.clone(), after_the_link, kind, times: 1.into() };
            let options = BucketOptions::default();
            let bucket =
                over(Arc::new(full), "memory://full", &options, env.clone()).expect("opens");
            let body = Bytes::from_static(b"mine");
            let first = bucket.put_if_absent(Cause::Commit, "log/1", body).await;
            if after_the_link {
                assert_eq!(first.expect("it is there"), PutOutcome::Created, "{kind}");
            } else {
                let error = first.expect_err("no space");
                assert!(matches!(error, Error::Refused { .. }), "{kind}: {error}");
                assert_eq!(store.len(), 0, "nothing was changed, now or later");
            }
        }
    }
}

#[tokio::test]
async fn put_without_effect_is_repeated_until_created() {
    for fault in
        [Fault::ResetBefore, Fault::ServerError, Fault::Throttle, Fault::NoConnection, Fault::Hang]
    {
        let bench = bench();
        bench.faults.add(FaultRule { times: 2, ..FaultRule::next(Class::Put, "", fault) });
        assert_eq!(put(&bench, "mine").await.expect("resolved"), PutOutcome::Created, "{fault:?}");
        assert_eq!(stored(&bench).await.as_deref(), Some(&b"mine"[..]));
        assert_eq!(bench.bucket.meter().snapshot().requests(Class::Put), 3, "{fault:?}");
    }
}

#[tokio::test]
async fn put_on_a_taken_key_reports_exists_whatever_is_lost() {
    for fault in [None, Some(Fault::ResetAfter), Some(Fault::ResetBefore), Some(Fault::HangAfter)] {
        let bench = bench();
        bench.store.put(&Path::from("log/1"), "theirs".into()).await.expect("put");
        if let Some(fault) = fault {
            bench.faults.add(FaultRule::next(Class::Put, "", fault));
        }
        assert_eq!(put(&bench, "mine").await.expect("resolved"), PutOutcome::Exists, "{fault:?}");
        assert_eq!(stored(&bench).await.as_deref(), Some(&b"theirs"[..]));
    }
}

#[tokio::test]
async fn put_that_lands_late_is_recognised_by_its_repetition() {
    let bench = bench();
    // The connection is lost at once; the write lands while the repetition is delayed.
    bench.faults.add(FaultRule::next(Class::Put, "", Fault::Late(Duration::from_millis(20))));
    bench.faults.add(FaultRule::next(Class::Put, "", Fault::Slow(Duration::from_millis(50))));
    assert_eq!(put(&bench, "mine").await.expect("resolved"), PutOutcome::Created);
    assert_eq!(stored(&bench).await.as_deref(), Some(&b"mine"[..]));
}

#[tokio::test]
async fn put_that_cannot_be_read_back_is_indeterminate() {
    let bench = bench();
    bench.faults.add(FaultRule::next(Class::Put, "", Fault::ResetAfter));
    bench
        .faults
        .add(FaultRule { times: 10_000, ..FaultRule::next(Class::Get, "", Fault::ResetBefore) });
    let error = put(&bench, "mine").await.expect_err("cannot know");
    assert!(matches!(error, Error::Indeterminate { .. }), "{error}");
}

#[tokio::test]
async fn put_whose_attempts_all_stay_in_doubt_is_indeterminate() {
    let bench = bench();
    bench.faults.add(FaultRule { times: 10_000, ..FaultRule::next(Class::Put, "", Fault::Hang) });
    let error = put(&bench, "mine").await.expect_err("cannot know");
    assert!(matches!(error, Error::Indeterminate { .. }), "{error}");
}

#[tokio::test]
async fn put_that_never_reached_the_store_is_unavailable() {
    let bench = bench();
    let rule = FaultRule { times: 10_000, ..FaultRule::next(Class::Put, "", Fault::NoConnection) };
    bench.faults.add(rule);
    let error = put(&bench, "mine").await.expect_err("no connection");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert_eq!(bench.store.len(), 0);
}

#[tokio::test]
async fn bucket_that_stops_answering_ends_every_call_in_bounded_time() {
    let env = telesto_runtime::env();
    let bench = bench_on(env.clone(), FaultRates::NONE);
    bench.faults.stop_answering();
    let bound = Duration::from_secs(5);
    let all = async {
        let get = bench.bucket.get(Cause::Read, "k", None).await.expect_err("no answer");
        let list = bench.bucket.list_after(Cause::Read, "p", None, 1).await.expect_err("no answer");
        let delete = bench.bucket.delete(Cause::Gc, "k").await.expect_err("no answer");
        let put = put(&bench, "mine").await.expect_err("no answer");
        (get, list, delete, put)
    };
    let deadline = env.deadline(bound);
    let (get, list, delete, put) = env.within(deadline, "all", all).await.expect("bounded");
    for error in [get, list, delete] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    }
    assert!(matches!(put, Error::Indeterminate { .. }), "{put}");
    bench.faults.resume();
    assert!(bench.bucket.get(Cause::Read, "k", None).await.expect("answers again").is_none());
}

#[tokio::test]
async fn racing_writers_under_faults_have_exactly_one_winner() {
    let env = telesto_runtime::env();
    let rates = FaultRates {
        throttle: 0.1,
        server_error: 0.1,
        reset_before: 0.1,
        reset_after: 0.2,
        slow: 0.1,
        slow_by: Duration::from_millis(30),
        late: 0.05,
        hang: 0.02,
        repeat: 0.2,
    };
    let first = bench_on(env.clone(), rates);
    for round in 0..40 {
        let key = format!("slot/{round}");
        let racers = (0..16).map(|racer| {
            let (bucket, key) = (Arc::clone(&first.bucket), key.clone());
            async move {
                let body = Bytes::from(format!("body {racer}"));
                (body.clone(), bucket.put_if_absent(Cause::Commit, &key, body).await)
            }
        });
        let outcomes = futures::future::join_all(racers).await;
        let held = first.store.get(&Path::from(key)).await.expect("somebody won");
        let held = held.bytes().await.expect("body");
        for (body, outcome) in outcomes {
            match outcome {
                Ok(PutOutcome::Created) => assert_eq!(body, held, "round {round}"),
                Ok(PutOutcome::Exists) => assert_ne!(body, held, "round {round}"),
                Err(Error::Indeterminate { .. } | Error::Unavailable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(first.faults.struck() > 50);
}

#[tokio::test]
async fn requests_are_metered_by_cause_scope_and_price() {
    use telesto_bucket::meter::scoped;
    use telesto_bucket::{PriceSheet, ScopeMeter};

    let env = telesto_runtime::env();
    let options = BucketOptions {
        prices: Some(PriceSheet::builtin("s3-standard").expect("known")),
        ..BucketOptions::default()
    };
    let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
    let bucket = over(store, "memory://metered", &options, env).expect("opens");
    let scope = ScopeMeter::for_cause(Cause::Read);
    let engine = bucket.object_store(Cause::Checkpoint);
    let work = async {
        let body = Bytes::from_static(b"12345");
        bucket.put_if_absent(Cause::Commit, "a/1", body).await.expect("put");
        engine.get(&Path::from("a/1")).await.expect("get");
    };
    scoped(Arc::clone(&scope), work).await;
    engine.put_opts(&Path::from("m"), "1".into(), PutMode::Create.into()).await.expect("put");
    bucket.list_after(Cause::Open, "a", None, 10).await.expect("list");

    let totals = scope.totals();
    assert_eq!((totals.gets, totals.puts, totals.uploaded_bytes), (1.0, 1.0, 5.0));
    assert!((totals.dollars - (0.005 + 0.0004) / 1000.0).abs() < 1e-12);
    let counted = bucket.meter().snapshot();
    let of = |class, cause| counted.total(|c, w| c == class && w == cause).requests;
    assert_eq!(of(Class::Put, Cause::Commit), 1);
    assert_eq!(of(Class::Get, Cause::Read), 1, "the scope's cause wins for reads");
    assert_eq!(of(Class::Put, Cause::Checkpoint), 1);
    assert_eq!(of(Class::List, Cause::Open), 1);
    assert!((counted.dollars() - (3.0 * 0.005 + 0.0004) / 1000.0).abs() < 1e-12);
}

/// Options of a bucket that hedges, and where its faults come from.
fn hedging(env: &telesto_common::Env) -> (BucketOptions, Arc<Faults>) {
    let faults = Faults::new(env.clone(), FaultRates::NONE);
    let options = BucketOptions {
        hedging: telesto_bucket::Hedging::On,
        faults: Some(Arc::clone(&faults)),
        ..BucketOptions::default()
    };
    (options, faults)
}

#[tokio::test]
async fn slow_read_is_hedged_and_the_hedge_is_metered() {
    let env = telesto_runtime::env();
    let (options, faults) = hedging(&env);
    let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
    store.put(&Path::from("k"), "v".into()).await.expect("put");
    let bucket = over(store, "memory://hedged", &options, env.clone()).expect("opens");
    for _ in 0..128 {
        bucket.get(Cause::Read, "k", None).await.expect("get").expect("there");
    }
    let before = bucket.meter().snapshot();
    faults.add(FaultRule::next(Class::Get, "k", Fault::Slow(Duration::from_secs(8))));
    let get = bucket.get(Cause::Read, "k", None);
    let deadline = env.deadline(Duration::from_secs(4));
    let object = env.within(deadline, "the read", get).await.expect("hedged");
    assert_eq!(&object.expect("get").expect("there").body[..], b"v");
    let counted = bucket.meter().snapshot().since(&before).total(|_, _| true);
    assert_eq!((counted.requests, counted.hedges), (2, 1));
}

#[tokio::test]
async fn reads_that_find_nothing_are_hedged_by_their_own_times() {
    let env = telesto_runtime::env();
    let (options, faults) = hedging(&env);
    let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
    let bucket = over(store, "memory://missing", &options, env.clone()).expect("opens");
    for _ in 0..128 {
        assert!(bucket.get(Cause::Read, "k", None).await.expect("get").is_none());
    }
    let before = bucket.meter().snapshot();
    faults.add(FaultRule::next(Class::Get, "k", Fault::Slow(Duration::from_secs(8))));
    let get = bucket.get(Cause::Read, "k", None);
    let deadline = env.deadline(Duration::from_secs(4));
    let found = env.within(deadline, "the read", get).await.expect("hedged");
    assert!(found.expect("get").is_none());
    let counted = bucket.meter().snapshot().since(&before).total(|_, _| true);
    assert_eq!((counted.requests, counted.hedges), (2, 1));
}

/// Slows each request down once, and notes what it was asked for.
#[derive(Debug, Default)]
struct Slowing(std::sync::Mutex<Vec<telesto_meter::Resource>>);

impl telesto_bucket::meter::Guard for Slowing {
    fn ask(&self, resource: telesto_meter::Resource, attempt: u32) -> telesto_bucket::meter::Toll {
        use telesto_bucket::meter::Toll;
        if attempt > 0 {
            return Toll::Free;
        }
        self.0.lock().expect("no panic").push(resource);
        Toll::Wait(Duration::from_millis(50))
    }

    fn spent(&self, _: &telesto_meter::Charge) {}
}

#[tokio::test]
async fn read_that_its_cap_slows_is_not_asked_for_twice_and_listings_are_asked_for() {
    use telesto_bucket::meter::scoped;
    use telesto_bucket::{Hedging, ScopeMeter};
    use telesto_meter::Resource;

    let env = telesto_runtime::env();
    let options = BucketOptions { hedging: Hedging::On, ..BucketOptions::default() };
    let store = Arc::new(MemoryStore::new(Arc::clone(&env.clock)));
    store.put(&Path::from("k"), "v".into()).await.expect("put");
    let bucket = over(store, "memory://slowed", &options, env.clone()).expect("opens");
    // What is usual is far below the time that the cap has reads wait.
    for _ in 0..128 {
        bucket.get(Cause::Read, "k", None).await.expect("get").expect("there");
    }
    let guard = Arc::new(Slowing::default());
    let scope = ScopeMeter::for_cause(Cause::Read);
    scope.set_guard(Some(Arc::clone(&guard) as Arc<_>));
    let before = bucket.meter().snapshot();
    scoped(scope, async {
        bucket.get(Cause::Read, "k", None).await.expect("get").expect("there");
        bucket.list_after(Cause::Read, "", None, 10).await.expect("lists");
    })
    .await;
    let counted = bucket.meter().snapshot().since(&before).total(|_, _| true);
    assert_eq!((counted.requests, counted.hedges), (2, 0));
    assert_eq!(*guard.0.lock().expect("no panic"), [Resource::Gets, Resource::Lists]);
}
