//! Compares the replicas of every placed key range between regions, row by row where they differ.
//!
//! ```text
//! range by range: digest of a piece in each region ── equal? ─► next piece
//!                                                   └─ no ──► labels of its keys in each ─► which rows differ
//! a row that differs: has whoever has the lesser label passed the greater one? ─ yes ─► it differs
//!                                                                              └ no ──► it is on its way: looked at again
//! ```
//! # Invariants
//! - A row is said to differ only when a region has passed the label of a version that another one
//!   has, and does not have it, or when two have different values under one label: so regions may
//!   go on working meanwhile.
//! - Of rows whose columns merge, regions tell the label of the newest write and the value with all
//!   times written out. They differ when every region has passed what any other had written by
//!   then, or all up to that label.
//! - Nothing is changed.
//!
//! # On failure
//! The first region that does not answer ends it; nothing can be said of its replicas.
//!
//! # Limits
//! Ranges by the rules of the region that it is run for. At most [`MOST`] differing rows of a range
//! are named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Env, RegionId, Timestamp};
use telesto_geo::placement::Rules;
use telesto_net::{CallLimits, Class, Client, Peer, Transport};

use crate::answer::digest_of;
use crate::config::RegionsConfig;
use crate::error::{Error, Result};
use crate::question::{Digest, Labelled, PIECE, Question, Standing, unpack_labels};
use crate::shared::SERVICE;
use crate::wire::{Header, Reply, Request};

/// Differing rows that are named, of a range.
pub const MOST: usize = 100;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Before a row that is on its way is looked at again.
const AGAIN: Duration = Duration::from_millis(100);

/// A version's time and writer, and whether it is a row (or a deleted one).
pub type Version = (Timestamp, RegionId, bool);

/// A row that is not the same everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its key.
    pub key: Bytes,
    /// What each region has; nothing when it has none.
    pub versions: Vec<(RegionId, Option<Version>)>,
}

/// What became of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// The keys.
    pub range: KeyRange,
    /// The regions that have it.
    pub regions: Vec<RegionId>,
    /// Rows in the first of them.
    pub rows: u64,
    /// Rows that differ, a hundred at most.
    pub different: Vec<Difference>,
    /// Rows that some region has not got yet, and has not said to have passed: a link is slow, or
    /// down.
    pub on_their_way: u64,
}

/// Asks the regions of a deployment, as one of them.
#[derive(Debug)]
pub struct Verifier {
    env: Env,
    deployment: u128,
    me: RegionId,
    names: BTreeMap<RegionId, String>,
    clients: BTreeMap<RegionId, Client>,
    patience: Duration,
}

impl Verifier {
    /// As the region of `config`, whose node is `own`; rows that are on their way are waited for so
    /// long.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(
        env: &Env,
        transport: &Arc<dyn Transport>,
        config: &RegionsConfig,
        own: Peer,
        patience: Duration,
    ) -> Result<Self> {
        config.check()?;
        let mut verifier = Self {
            env: env.clone(),
            deployment: config.deployment,
            me: config.me,
            names: BTreeMap::from([(config.me, config.name.clone())]),
            clients: BTreeMap::new(),
            patience,
        };
        let mut add = |id: RegionId, node: Peer| {
            let (transport, limits) = (Arc::clone(transport), CallLimits::default());
            let client = Client::new(env, transport, node, config.caller, Class::Append, limits);
            verifier.clients.insert(id, client);
        };
        add(config.me, own);
        for peer in &config.peers {
            add(peer.id, peer.node.clone());
        }
        verifier.names.extend(config.peers.iter().map(|peer| (peer.id, peer.name.clone())));
        Ok(verifier)
    }

    /// What a region is called.
    #[must_use]
    pub fn name(&self, region: RegionId) -> String {
        self.names.get(&region).cloned().unwrap_or_else(|| format!("region {region}"))
    }

    /// Compares every range that two or more regions have.
    ///
    /// # Errors
    /// The network's; [`Error::Refused`].
    pub async fn compare(&self) -> Result<Vec<Compared>> {
        let rules = self.standing(self.me).await?.rules;
        let rules = if rules.is_empty() {
            Rules::default()
        } else {
            Rules::decode(rules).map_err(Error::malformed("placement"))?
        };
        let mut all = Vec::new();
        for rule in rules.rules() {
            let regions: Vec<RegionId> =
                rule.regions.iter().filter(|region| self.clients.contains_key(region)).collect();
            if regions.len() > 1 {
                all.push(self.compare_range(rule.range.clone(), regions).await?);
            }
        }
        Ok(all)
    }

    async fn compare_range(&self, range: KeyRange, regions: Vec<RegionId>) -> Result<Compared> {
        let mut compared = Compared {
            range: range.clone(),
            regions: regions.clone(),
            rows: 0,
            different: Vec::new(),
            on_their_way: 0,
        };
        let Some((first, others)) = regions.split_first() else { return Ok(compared) };
        let mut rest = range;
        loop {
            let digest = self.digest(*first, &rest).await?;
            compared.rows += digest.rows;
            let piece = match &digest.through {
                Some(through) => {
                    KeyRange { start: rest.start.clone(), end: KeyRange::point(through).end }
                }
                None => rest.clone(),
            };
            let mut suspects = BTreeSet::new();
            for other in others {
                let theirs = self.labels_within(*other, &piece).await?;
                if digest_of(&theirs) != digest.hash {
                    let ours = self.labels_within(*first, &piece).await?;
                    suspects.extend(unlike(&ours, &theirs));
                }
            }
            self.judge(suspects, &regions, &mut compared).await?;
            if digest.through.is_none() {
                return Ok(compared);
            }
            rest.start = piece.end;
        }
    }

    /// Says of rows that differ at a glance whether they do.
    async fn judge(
        &self,
        mut suspects: BTreeSet<Bytes>,
        regions: &[RegionId],
        compared: &mut Compared,
    ) -> Result<()> {
        let by = self.env.deadline(self.patience);
        while !suspects.is_empty() {
            let mut standing = BTreeMap::new();
            for region in regions {
                standing.insert(*region, self.standing(*region).await?);
            }
            let keys: Vec<Bytes> = suspects.iter().take(PIECE).cloned().collect();
            let mut versions: BTreeMap<RegionId, BTreeMap<Bytes, Labelled>> = BTreeMap::new();
            for region in regions {
                let labels = self.labels_of(*region, keys.clone()).await?;
                let by_key = labels.into_iter().map(|labelled| (labelled.key.clone(), labelled));
                versions.insert(*region, by_key.collect());
            }
            for key in keys {
                let found: Vec<_> = regions
                    .iter()
                    .map(|region| (*region, versions.get(region).and_then(|all| all.get(&key))))
                    .collect();
                match verdict(&found, &standing, &self.clients) {
                    Verdict::Same => {
                        suspects.remove(&key);
                    }
                    Verdict::Differs => {
                        suspects.remove(&key);
                        if compared.different.len() < MOST {
                            let version = |labelled: &Labelled| {
                                (labelled.at, labelled.source, labelled.value.is_some())
                            };
                            let versions =
                                found.iter().map(|(region, one)| (*region, one.map(version)));
                            compared
                                .different
                                .push(Difference { key, versions: versions.collect() });
                        }
                    }
                    Verdict::OnItsWay => {}
                }
            }
            if by.passed(self.env.clock.monotonic()) {
                compared.on_their_way += suspects.len() as u64;
                return Ok(());
            }
            if !suspects.is_empty() {
                self.env.clock.sleep(AGAIN).await;
            }
        }
        Ok(())
    }

    async fn ask(&self, to: RegionId, question: &Question) -> Result<Bytes> {
        let Some(client) = self.clients.get(&to) else { return Err(Error::UnknownRegion(to)) };
        let header = Header { deployment: self.deployment, from: self.me, to };
        let request = Request::Ask(question.encode()).encode(header);
        let reply = client.call(SERVICE, request, self.env.deadline(TIMEOUT)).await?;
        match Reply::decode(reply).map_err(Error::malformed("another region's reply"))? {
            Reply::Answer(answer) => Ok(answer),
            Reply::Refused(reason) => Err(Error::Refused { region: to, reason }),
            _ => Err(Error::malformed("another region's answer")("it is none".to_owned())),
        }
    }

    async fn standing(&self, of: RegionId) -> Result<Standing> {
        let answer = self.ask(of, &Question::Standing).await?;
        Standing::decode(answer).map_err(Error::malformed("how a region stands"))
    }

    async fn digest(&self, of: RegionId, range: &KeyRange) -> Result<Digest> {
        let answer = self.ask(of, &Question::Digest { range: range.clone() }).await?;
        Digest::decode(answer).map_err(Error::malformed("a digest"))
    }

    async fn labels_of(&self, of: RegionId, keys: Vec<Bytes>) -> Result<Vec<Labelled>> {
        let answer = self.ask(of, &Question::LabelsOf { keys }).await?;
        unpack_labels(answer).map_err(Error::malformed("labels of rows"))
    }

    /// All of a range.
    async fn labels_within(&self, of: RegionId, range: &KeyRange) -> Result<Vec<Labelled>> {
        let (mut rest, mut all) = (range.clone(), Vec::new());
        loop {
            let answer = self.ask(of, &Question::Labels { range: rest.clone() }).await?;
            let labels = unpack_labels(answer).map_err(Error::malformed("labels of rows"))?;
            let Some(last) = labels.last() else { return Ok(all) };
            rest.start = KeyRange::point(&last.key).end;
            all.extend(labels);
        }
    }
}

/// Keys of which two regions do not have the same version.
fn unlike(ours: &[Labelled], theirs: &[Labelled]) -> BTreeSet<Bytes> {
    let by_key = |labels: &[Labelled]| -> BTreeMap<Bytes, Labelled> {
        labels.iter().map(|labelled| (labelled.key.clone(), labelled.clone())).collect()
    };
    let (ours, theirs) = (by_key(ours), by_key(theirs));
    let keys = ours.keys().chain(theirs.keys());
    keys.filter(|key| ours.get(*key) != theirs.get(*key)).cloned().collect()
}

enum Verdict {
    Same,
    Differs,
    OnItsWay,
}

fn verdict(
    found: &[(RegionId, Option<&Labelled>)],
    standing: &BTreeMap<RegionId, Standing>,
    members: &BTreeMap<RegionId, Client>,
) -> Verdict {
    let newest = found.iter().filter_map(|(_, one)| *one).max_by_key(|one| (one.at, one.source));
    let Some(newest) = newest else { return Verdict::Same };
    if found.iter().any(|(_, one)| one.is_some_and(|one| one.merges)) {
        return joined_verdict(found, newest.at, standing);
    }
    let mut verdict = Verdict::Same;
    for (region, one) in found {
        match one {
            Some(one) if (one.at, one.source) == (newest.at, newest.source) => {
                if one.value != newest.value {
                    return Verdict::Differs;
                }
            }
            _ => {
                // A mark of a delete goes when its time has come; then nothing is the same as
                // deleted.
                if one.is_none_or(|one| one.value.is_none()) && newest.value.is_none() {
                    continue;
                }
                let Some(stands) = standing.get(region) else { return Verdict::OnItsWay };
                let of_source =
                    |(id, at): &(RegionId, Timestamp)| (*id == newest.source).then_some(*at);
                let passed = if *region == newest.source {
                    stands.now
                } else {
                    stands.passed.iter().find_map(of_source).unwrap_or_default()
                };
                // Of a region that is gone nothing comes any more.
                if passed >= newest.at || !members.contains_key(&newest.source) {
                    return Verdict::Differs;
                }
                verdict = Verdict::OnItsWay;
            }
        }
    }
    verdict
}

/// Of copies that are joined: one that has not seen as much as another may have its label.
fn joined_verdict(
    found: &[(RegionId, Option<&Labelled>)],
    newest: Timestamp,
    standing: &BTreeMap<RegionId, Standing>,
) -> Verdict {
    let seen = |one: &Option<&Labelled>| one.map(|one| (one.at, one.source, one.value));
    if found.iter().all(|(_, one)| seen(one) == seen(&found[0].1)) {
        return Verdict::Same;
    }
    let has_all_of = |stands: &Standing, of: RegionId, theirs: &Standing| {
        let passed = stands.passed.iter().find(|(id, _)| *id == of).map(|(_, at)| *at);
        passed.unwrap_or_default() >= newest.min(theirs.now)
    };
    for (region, _) in found {
        let Some(stands) = standing.get(region) else { return Verdict::OnItsWay };
        let others = standing.iter().filter(|(of, _)| *of != region);
        if !others.into_iter().all(|(of, theirs)| has_all_of(stands, *of, theirs)) {
            return Verdict::OnItsWay;
        }
    }
    Verdict::Differs
}

impl Compared {
    /// Whether the replicas are equal, as far as everything has come.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.different.is_empty() && self.on_their_way == 0
    }
}
