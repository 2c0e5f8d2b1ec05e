//! Many processes, every misfortune of a bucket at once, from a seed: no fork, nothing acknowledged
//! lost or doubled, no stale strict read, nothing called damaged.
//!
//! Requests fail, take effect without a reply, are sent twice, listings leave out what is there;
//! the log is switched and trimmed under processes whose clocks stand still, as on a paused
//! machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use telesto_common::env::Random as _;
use telesto_common::{Env, Lsn, WriterToken};
use telesto_log::record::Entry;
use telesto_log::{Append, Error, LogKind};

use crate::support::*;

const RETENTION: Duration = Duration::from_secs(1000);
const STEPS: usize = 90;

/// What became of an append that was tried until it was clear, or given up.
#[derive(Debug, PartialEq)]
enum Told {
    Committed(Lsn),
    Not,
    Unknown,
}

struct Storm {
    seed: u64,
    random: Arc<Seeded>,
    env: Env,
    objects: Arc<Objects>,
    buckets: Vec<Arc<MemBucket>>,
    processes: Vec<Process>,
    /// Every entry that any process has seen.
    seen: BTreeMap<Lsn, ([u8; 16], Option<String>)>,
    acknowledged: Vec<(Lsn, String)>,
    unknown: Vec<String>,
    refused: Vec<String>,
}

impl Storm {
    async fn new(seed: u64) -> Self {
        let (objects, env) = (Arc::new(Objects::default()), telesto_runtime::env());
        let random = Arc::new(Seeded::new(seed));
        let disk = sim_disk(seed, &env);
        let mut buckets = Vec::new();
        let mut processes = Vec::new();
        for node in 1..=3_u128 {
            let bucket = MemBucket::new(&objects);
            bucket.tell_time();
            let mut options = options(node, 1);
            options.retention = RETENTION;
            if node == 1 {
                options = quorum_options(node, 1, &disk);
                options.retention = RETENTION;
                options.kind = LogKind::Bucket;
                processes.push(create(&bucket, &env, options).await);
            } else {
                processes.push(open(&bucket, &env, options).await.expect("opens"));
            }
            let draws = Arc::clone(&random);
            bucket.hook(move |class, _| match (class, draws.next_u64() % 100) {
                ("put", 0..12) => Fault::LoseReply,
                ("put", 12..22) => Fault::Twice,
                ("put" | "delete", 22..26) | ("get" | "list", 0..4) => Fault::Fail,
                _ => Fault::None,
            });
            let draws = Arc::clone(&random);
            // Archive objects have no names to ask for; but what was there before a listing began
            // is in it.
            bucket.distort_lists(move |page| {
                page.retain(|object| {
                    object.key.contains("/archive/") || !draws.next_u64().is_multiple_of(5)
                });
            });
            buckets.push(bucket);
        }
        Self {
            seed,
            random,
            env,
            objects,
            buckets,
            processes,
            seen: BTreeMap::new(),
            acknowledged: Vec::new(),
            unknown: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn below(&self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    /// Nothing is damaged here; a process that slept too long begins again.
    async fn settle(&mut self, number: usize, error: Error) {
        assert!(!matches!(error, Error::Corrupt { .. }), "seed {}: {error}", self.seed);
        if matches!(error, Error::Trimmed { .. }) {
            let process = &self.processes[number];
            let (start, env) = (process.log.start(), process.env.clone());
            if let Ok(hash) = process.log.hash_before(start, soon(&env)).await {
                let log = process.log.clone();
                self.processes[number] = Process { log, env, next: start, hash, applied: vec![] };
            }
        }
    }

    fn note(&mut self, number: usize) {
        let seed = self.seed;
        for entry in &self.processes[number].applied {
            let Entry { lsn, hash, .. } = entry;
            let known = self.seen.entry(*lsn).or_insert_with(|| (*hash, said(entry)));
            assert_eq!(known.0, *hash, "seed {seed}: process {number} has another entry at {lsn}");
        }
    }

    /// As the layers above do: the same slot again until the outcome is clear.
    async fn say(&mut self, number: usize, text: &str) -> Told {
        let mut tried: Vec<WriterToken> = Vec::new();
        for _ in 0..30 {
            let process = &mut self.processes[number];
            let error = match process.try_say(text).await {
                Ok(Append::Committed(entry)) => return Told::Committed(entry.lsn),
                Ok(Append::Taken { .. }) => {
                    let at = process.next;
                    match process.catch_up().await {
                        Ok(()) => {}
                        Err(error) if tried.is_empty() || process.next == at => {
                            self.settle(number, error).await;
                            if self.processes[number].next != at {
                                return if tried.is_empty() { Told::Not } else { Told::Unknown };
                            }
                            continue;
                        }
                        Err(error) => self.settle(number, error).await,
                    }
                    let process = &self.processes[number];
                    let holder = process.applied.iter().find(|entry| entry.lsn == at);
                    match holder {
                        Some(holder) if tried.contains(&holder.writer) => {
                            return Told::Committed(at);
                        }
                        Some(_) => tried.clear(),
                        None if tried.is_empty() => {}
                        None => return Told::Unknown,
                    }
                    continue;
                }
                Err(Error::Indeterminate { writer, .. }) => {
                    tried.push(writer);
                    continue;
                }
                Err(error) => error,
            };
            let over = matches!(error, Error::NotOwner { .. } | Error::Trimmed { .. });
            let by_itself = matches!(error, Error::Trimmed { .. });
            self.settle(number, error).await;
            if over {
                // The append that was told it is trimmed may have made an object that nobody reads.
                let unsure = by_itself || !tried.is_empty();
                return if unsure { Told::Unknown } else { Told::Not };
            }
        }
        if tried.is_empty() { Told::Not } else { Told::Unknown }
    }

    /// A strict read: without a look only where the process says that it needs none.
    async fn read(&mut self, number: usize) {
        let process = &mut self.processes[number];
        // An owner that has just taken over does not know yet what came before its loglet.
        let knows_all =
            process.log.is_local_sequencer() && process.next >= process.log.chain().active().start;
        if !knows_all && let Err(error) = process.catch_up().await {
            return self.settle(number, error).await;
        }
        let process = &self.processes[number];
        let first = process.applied.first().map_or(process.next, |entry| entry.lsn);
        for (lsn, text) in self.acknowledged.iter().filter(|(lsn, _)| *lsn >= first) {
            let found = process.applied.iter().find(|entry| entry.lsn == *lsn);
            let found = found.and_then(said);
            assert_eq!(found.as_ref(), Some(text), "seed {}: stale on {number}", self.seed);
        }
    }

    async fn trim(&mut self, number: usize) {
        if let Err(error) = self.processes[number].catch_up().await {
            return self.settle(number, error).await;
        }
        self.note(number);
        let below = self.processes[number].next;
        self.objects.advance(RETENTION + Duration::from_secs(1));
        let by = soon(&self.env);
        if let Err(error) = self.processes[number].log.trim(below, by).await {
            self.settle(number, error).await;
        }
    }

    async fn step(&mut self, step: usize) {
        let number = self.below(3) as usize;
        match self.below(20) {
            0 | 1 => {
                let to = if self.below(2) == 0 { LogKind::Quorum } else { LogKind::Bucket };
                let by = soon(&self.env);
                if let Err(error) = self.processes[0].log.switch(to, by).await {
                    self.settle(0, error).await;
                }
            }
            2 => self.trim(number).await,
            3..8 => self.read(number).await,
            _ => {
                let text = format!("{step}");
                match self.say(number, &text).await {
                    Told::Committed(lsn) => self.acknowledged.push((lsn, text)),
                    Told::Unknown => self.unknown.push(text),
                    Told::Not => self.refused.push(text),
                }
            }
        }
        self.note(number);
        self.note(0);
    }

    /// All is well again: the whole log is read by its owner and judged.
    async fn judge(&mut self) {
        for bucket in &self.buckets {
            bucket.unhook();
            bucket.distort_lists(|_| {});
        }
        let by = soon(&self.env);
        self.processes[0].log.switch(LogKind::Bucket, by).await.expect("switches");
        for number in 0..3 {
            for _ in 0..2 {
                if let Err(error) = self.processes[number].catch_up().await {
                    self.settle(number, error).await;
                }
            }
            self.read(number).await;
            self.note(number);
        }
        let fresh = open(&MemBucket::new(&self.objects), &self.env, options(9, 1)).await;
        let mut fresh = fresh.unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
        fresh.catch_up().await.expect("reads");
        self.processes.push(fresh);
        self.note(3);
        let seed = self.seed;
        let texts: Vec<&String> =
            self.seen.values().filter_map(|(_, text)| text.as_ref()).collect();
        let count = |text: &String| texts.iter().filter(|found| **found == text).count();
        for (lsn, text) in &self.acknowledged {
            assert_eq!(self.seen.get(lsn).and_then(|(_, t)| t.as_ref()), Some(text), "seed {seed}");
            assert_eq!(count(text), 1, "seed {seed}: {text} is doubled");
        }
        assert!(self.unknown.iter().all(|text| count(text) <= 1), "seed {seed}: doubled");
        for text in &self.refused {
            assert_eq!(count(text), 0, "seed {seed}: {text} was told not to be there");
        }
        let (first, last) = (self.seen.keys().next(), self.seen.keys().last());
        let span = last.map_or(0, |l| l.0) - first.map_or(0, |l| l.0) + 1;
        assert_eq!(span, self.seen.len() as u64, "seed {seed}: no gaps");
    }
}

#[tokio::test]
async fn storm_of_misfortunes_loses_doubles_and_forks_nothing() {
    let (mut acknowledged, mut unknown) = (0, 0);
    for seed in 0..120 {
        let mut storm = Storm::new(seed).await;
        for step in 0..STEPS {
            storm.step(step).await;
        }
        storm.judge().await;
        acknowledged += storm.acknowledged.len();
        unknown += storm.unknown.len();
    }
    assert!(acknowledged > 120 * 20, "{acknowledged} acknowledged, {unknown} unknown");
}
