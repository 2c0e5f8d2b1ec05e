//! What a region knows of itself and of the others, kept in its own bucket, so that any of its
//! nodes finds it there.
//!
//! ```text
//! first region: init ── invite "us" ──► text ──► second region: join ──► text ──► first region (and every other): accept
//! ```
//! # Invariants
//! - Each change is a new object under `regions/registry/`, numbered; of two changes at the same
//!   time one fails and changes nothing.
//! - A number is given once, and one region alone gives them. That of an invitation that was taken
//!   back is not given again either: somebody may have joined with it where nobody here has heard
//!   of it, and two regions of one number write over each other's rows. Where two were given the
//!   same one all the same, or one text was used twice, the second is not taken in: names and nodes
//!   tell them apart.
//! - Who is left out is said to each region by a person. Only a region that is about to open, which
//!   has nothing yet, believes the others.
//! - Where no tree of serializers was ever planned, objects are of version 1, as regions of before
//!   trees read them.
//!
//! # On failure
//! [`Error::Config`] says what to do; [`Error::Malformed`] for an object of another version.
//!
//! # Limits
//! Invitations hold the deployment's secret: they are to be kept as a password is. Old objects
//! stay; they are few and small. A deployment has [`MEMBERS`] regions in its life, those that were
//! left out and invitations that were taken back included.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use telesto_bucket::{Bucket, Cause, PutOutcome};
use telesto_common::{Env, NodeId, RegionId};
use telesto_geo::{PlaneKind, Tree};
use telesto_net::{Caller, Peer};

use crate::config::{Introduction, PeerRegion, RegionsConfig, runs};
use crate::error::{Error, Result};
use crate::member::{Member, decoded, hex, unhex};
use crate::past::MEMBERS;
use crate::tree::Plan;

/// What was done with a region that is not to be one any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It had joined: those that stay exchange what they have of it.
    LeftOut,
    /// It had not joined, as far as is known: its invitation is taken back.
    TakenBack,
    /// As far as is known here it had not joined. Its invitation is another region's to take back;
    /// here nobody who joins with it is taken in.
    Refused,
}

const PREFIX: &str = "regions/registry";
const VERSION: u32 = 1;
/// With a tree, or on plane `tree`.
const VERSION_TREE: u32 = 2;
/// With a region that takes over the definitions of a lost one.
const VERSION_HEIR: u32 = 3;
/// Objects listed at a time.
const LIST: usize = 1000;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    version: u32,
    deployment: String,
    secret: String,
    plane: String,
    me: u16,
    members: Vec<Member>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tree: Option<Plan>,
}

impl Registry {
    /// The registry of a deployment's first region, number 0, carried by `node` at `address`.
    #[must_use]
    pub fn init(env: &Env, name: &str, node: NodeId, address: &str) -> Self {
        let secret = [env.random_u128().to_le_bytes(), env.random_u128().to_le_bytes()].concat();
        Self {
            version: VERSION,
            deployment: hex(&env.random_u128().to_le_bytes()),
            secret: hex(&secret),
            plane: "matrix".to_owned(),
            me: 0,
            tree: None,
            members: vec![Member {
                node: Some((node, address.to_owned())),
                ..Member::invited(0, name)
            }],
        }
    }

    /// The newest registry in a region's bucket, with its number; nothing when it is a region
    /// alone.
    ///
    /// # Errors
    /// The bucket's; [`Error::Malformed`].
    pub async fn load(bucket: &Arc<dyn Bucket>) -> Result<Option<(u64, Self)>> {
        let mut newest = None;
        loop {
            let after = newest.as_deref();
            let listed = bucket.list_after(Cause::Admin, PREFIX, after, LIST).await?;
            let Some(last) = listed.last() else { break };
            newest = Some(last.key.clone());
        }
        let Some(key) = newest else { return Ok(None) };
        let malformed = || Error::malformed("the registry of regions");
        let number = key.rsplit('/').next().and_then(|number| number.parse().ok());
        let number =
            number.ok_or_else(|| malformed()(format!("{key} does not end in a number")))?;
        let Some(object) = bucket.get(Cause::Admin, &key, None).await? else { return Ok(None) };
        let text = std::str::from_utf8(&object.body).map_err(|e| malformed()(e.to_string()))?;
        Ok(Some((number, Self::parse(text)?)))
    }

    /// Stores it as the one after number `after` (0: the first).
    ///
    /// # Errors
    /// The bucket's; [`Error::Config`] when another change was made meanwhile.
    pub async fn save(&self, bucket: &Arc<dyn Bucket>, after: u64) -> Result<()> {
        let key = format!("{PREFIX}/{:016}", after + 1);
        match bucket.put_if_absent(Cause::Admin, &key, Bytes::from(self.text()?)).await? {
            PutOutcome::Created => Ok(()),
            PutOutcome::Exists => Err(Error::Config(
                "the registry of regions was changed by another command meanwhile; nothing was changed by this one: run it again".to_owned(),
            )),
        }
    }

    /// The region that gives numbers to others, as far as is known here: of those that have joined
    /// and have not left the one with the least number. A number that another one gave would be
    /// known to nobody else until the region that got it has started.
    fn inviter(&self) -> Option<&Member> {
        self.members.iter().filter(|member| member.stays()).min_by_key(|member| member.id)
    }

    /// Whether that is this one.
    fn gives_numbers(&self) -> bool {
        self.inviter().is_some_and(|inviter| inviter.id == self.me)
    }

    /// Reserves a number for a new region; gives the text with which it joins. Of one that is
    /// invited already, the same text again.
    ///
    /// # Errors
    /// [`Error::Config`] when another region gives numbers, when a region of that name has joined
    /// or no number is left.
    pub fn invite(&mut self, name: &str) -> Result<String> {
        if let Some(inviter) = self.inviter().filter(|member| member.id != self.me) {
            return Err(Error::Config(format!(
                "regions are invited in region {}, so that no two get the same number: run `telesto region invite` on its bucket; if it is gone, run `telesto region remove` of it in each region that stays first",
                inviter.name
            )));
        }
        let called = self.members.iter().find(|member| member.name == name && !member.removed);
        let id = match called {
            Some(member) if member.node.is_some() => {
                return Err(Error::Config(format!(
                    "there is a region {name} already; choose another name"
                )));
            }
            // The text may have got lost: it is the same one.
            Some(invited) => invited.id,
            None => self.take_number(name)?,
        };
        let invited = Self { me: id, ..self.clone() };
        Ok(hex(invited.text()?.as_bytes()))
    }

    /// A new number for the region `name`.
    fn take_number(&mut self, name: &str) -> Result<u16> {
        let id = self.members.iter().map(|member| member.id + 1).max().unwrap_or_default();
        if usize::from(id) >= MEMBERS {
            return Err(Error::Config(format!(
                "no number is left: a deployment has {MEMBERS} regions in its life, and no number is given twice, neither that of a region that was removed nor that of an invitation that was taken back; dump the database and restore it into new regions"
            )));
        }
        self.members.push(Member::invited(id, name));
        Ok(id)
    }

    /// How many regions can still be invited.
    #[must_use]
    pub fn numbers_left(&self) -> usize {
        let taken = self.members.iter().map(|member| usize::from(member.id) + 1).max();
        MEMBERS.saturating_sub(taken.unwrap_or_default())
    }

    /// The registry of a region that was invited, and the text with which the others accept it.
    ///
    /// # Errors
    /// [`Error::Malformed`] when `invitation` is none.
    pub fn join(invitation: &str, node: NodeId, address: &str) -> Result<(Self, String)> {
        let mut registry = Self::parse(&decoded(invitation)?)?;
        let me = registry.me;
        let own = registry.members.iter_mut().find(|member| member.id == me);
        let own = own.ok_or_else(|| {
            Error::malformed("the invitation")("it does not name the region it is for".to_owned())
        })?;
        own.node = Some((node, address.to_owned()));
        let accepted = registry.introduction()?;
        Ok((registry, accepted))
    }

    /// The text with which the others accept this region.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn introduction(&self) -> Result<String> {
        let own = self.members.iter().find(|member| member.id == self.me);
        let own = own.ok_or_else(|| {
            Error::malformed("the registry of regions")("it does not name its region".to_owned())
        })?;
        own.text()
    }

    /// The secret that all regions share, as text.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Lets the region called `name` be reached at another address.
    ///
    /// # Errors
    /// [`Error::Config`] when no region of that name has joined.
    pub fn move_to(&mut self, name: &str, address: &str) -> Result<()> {
        let found = self.members.iter_mut().find(|member| member.name == name && !member.removed);
        let node = found.and_then(|member| member.node.as_mut());
        let (_, at) = node.ok_or_else(|| {
            Error::Config(format!("no region {name} has joined; `telesto region list` shows them"))
        })?;
        address.clone_into(at);
        Ok(())
    }

    /// Whether the registry has been changed since number `number` was read.
    ///
    /// # Errors
    /// The bucket's.
    pub async fn is_newer(bucket: &Arc<dyn Bucket>, number: u64) -> Result<bool> {
        let next = format!("{PREFIX}/{:016}", number + 1);
        Ok(bucket.get(Cause::Admin, &next, None).await?.is_some())
    }

    /// Takes in a region that has joined. Of one that is known on the same node the address stays
    /// as it is: it introduces itself again when it is refused for a moment, and somebody may have
    /// said where it is reached from here.
    ///
    /// # Errors
    /// [`Error::Malformed`]; [`Error::Config`] when it is this region, or was removed, when its
    /// number or its name is another region's, or when the region of that number has joined on
    /// another node.
    pub fn accept(&mut self, acceptance: &str) -> Result<()> {
        let new = Member::parse(acceptance)?;
        let mut changed = self.clone();
        changed.clear_name_for(&new)?;
        changed.take_in(new)?;
        *self = changed;
        Ok(())
    }

    fn take_in(&mut self, new: Member) -> Result<()> {
        match self.members.iter_mut().find(|member| member.id == new.id) {
            // Also where that one has not joined yet: its invitation has the number.
            Some(known) if known.name != new.name => Err(Error::Config(format!(
                "number {} is that of region {}, and region {} was given it too: two regions have invited at the same time. Nothing was changed; invite region {} anew and join it with a new bucket",
                new.id, known.name, new.name, new.name
            ))),
            Some(known) if new.id == self.me || known.removed => Err(Error::Config(format!(
                "region {} is this one, or was removed; invite it anew",
                known.name
            ))),
            Some(known) if known.node.is_none() => {
                *known = new;
                Ok(())
            }
            Some(known) if known.is_elsewhere(&new) => Err(used_twice(&known.name)),
            Some(_) => Ok(()),
            // Another region invited it.
            None => {
                self.members.push(new);
                Ok(())
            }
        }
    }

    /// Sees that no other region has the name of one that has joined. An older invitation to that
    /// name, of which nobody has joined here, was taken back where it was made: else the name would
    /// not have been given again.
    fn clear_name_for(&mut self, new: &Member) -> Result<()> {
        let gives_numbers = self.gives_numbers();
        let mut others = self.members.iter_mut().filter(|member| member.id != new.id);
        let Some(other) = others.find(|member| member.name == new.name && !member.removed) else {
            return Ok(());
        };
        if !gives_numbers && other.is_hearsay() && other.id < new.id {
            other.removed = true;
            return Ok(());
        }
        Err(Error::Config(format!(
            "there is a region {} already, with number {}, and the one that joined has number {}: if it takes the place of that one, run `telesto region remove {}` here first; else join it anew under another name",
            new.name, other.id, new.id, new.name
        )))
    }

    /// Takes in what a region says of itself, as [`Registry::accept`], or of a third one: that it
    /// has joined. Nothing that is known of a third one here changes by that; but one that was
    /// refused here, before it was known to have joined, is left out as one that has. A region that
    /// is `opening` has joined a moment ago, and takes who was left out meanwhile for such, too.
    ///
    /// # Errors
    /// [`Error::Malformed`]; [`Error::Config`] when its number or its name is another region's, or
    /// when it is known on another node.
    pub fn hear(&mut self, said: &Introduction, opening: bool) -> Result<()> {
        let mut third = Member::parse(&said.text)?;
        let itself = third.id == said.by.0;
        if third.id == self.me && !itself {
            return Ok(());
        }
        let known = self.members.iter_mut().find(|member| member.id == third.id);
        match known {
            Some(known) if third.removed && opening && known.name == third.name => {
                *known = third;
                self.number_version();
                Ok(())
            }
            Some(known) if known.is_refused_unseen() && known.name == third.name => {
                if let Some(node) = third.node.take() {
                    known.has_joined_after_all(node);
                }
                Ok(())
            }
            _ if itself => self.accept(&said.text),
            Some(known) if third.removed || known.removed => Ok(()),
            Some(known) if known.node.is_some() && known.name == third.name => {
                match known.is_elsewhere(&third) {
                    true => Err(used_twice(&known.name)),
                    false => Ok(()),
                }
            }
            // Nobody here has anything of it.
            None if third.removed => {
                self.members.push(third);
                self.number_version();
                Ok(())
            }
            _ => self.accept(&said.text),
        }
    }

    /// The plane by which this region applies what the others send.
    #[must_use]
    pub fn plane(&self) -> &str {
        &self.plane
    }

    /// Lets this region apply what the others send by another plane.
    ///
    /// # Errors
    /// [`Error::Config`] for one that regions do not run.
    pub fn set_plane(&mut self, plane: &str) -> Result<()> {
        runs(plane.parse().map_err(Error::Config)?)?;
        plane.clone_into(&mut self.plane);
        self.number_version();
        Ok(())
    }

    /// The tree of serializers that this region tells the others.
    #[must_use]
    pub fn tree(&self) -> Option<&Plan> {
        self.tree.as_ref()
    }

    /// Has this region tell the others of a tree. `names` are those of the regions, in the order of
    /// the tree's leaves and sites.
    ///
    /// # Errors
    /// [`Error::Config`] when they are not the regions that have joined, or it is no tree.
    pub fn set_tree(&mut self, env: &Env, tree: &Tree, names: &[&str]) -> Result<()> {
        let joined = || self.members.iter().filter(|member| member.stays());
        let id = |name: &&str| {
            let found = joined().find(|member| member.name == *name);
            found.map(|member| RegionId(member.id)).ok_or_else(|| {
                Error::Config(format!(
                    "there is no region {name} here; `telesto region list` shows those that there are"
                ))
            })
        };
        let ids = names.iter().map(id).collect::<Result<Vec<_>>>()?;
        let after = self.tree.as_ref().map_or(0, |plan| plan.number);
        let plan = Plan::new(env, after, tree, &ids)?;
        plan.check(joined().map(|member| RegionId(member.id)).collect())?;
        if let Some(left_out) = joined().find(|member| !names.contains(&member.name.as_str())) {
            return Err(Error::Config(format!(
                "the tree has no leaf for region {}; plan it with all regions",
                left_out.name
            )));
        }
        self.tree = Some(plan);
        self.number_version();
        Ok(())
    }

    fn number_version(&mut self) {
        let tree = self.tree.is_some() || self.plane == PlaneKind::Tree.name();
        let heir = self.members.iter().any(|member| member.heir.is_some());
        self.version = match (heir, tree) {
            (true, _) => VERSION_HEIR,
            (false, true) => VERSION_TREE,
            (false, false) => VERSION,
        };
    }

    /// Leaves a region out from the next start on, for ever. Of one that has joined those that stay
    /// exchange what they have: what one of them has had of it, others may wait for. Also of one
    /// that was left out by a version that did not do so.
    ///
    /// # Errors
    /// [`Error::Config`] when there is no such other region.
    pub fn remove(&mut self, name: &str) -> Result<Removed> {
        let (me, gives_numbers) = (self.me, self.gives_numbers());
        let others =
            self.members.iter_mut().filter(|member| member.name == name && member.id != me);
        let open = |member: &&mut Member| !member.removed || member.node.is_some() && !member.lost;
        let found = others.filter(open).max_by_key(|member| (!member.removed, member.id));
        let Some(found) = found else { return Err(self.unknown(name)) };
        found.removed = true;
        found.lost = found.node.is_some();
        Ok(match (found.lost, gives_numbers) {
            (true, _) => Removed::LeftOut,
            (false, true) => Removed::TakenBack,
            (false, false) => Removed::Refused,
        })
    }

    /// That there is no other region `name` to leave out.
    fn unknown(&self, name: &str) -> Error {
        let mut others = self.members.iter().filter(|member| member.id != self.me);
        Error::Config(match others.any(|member| member.name == name) {
            true => format!("region {name} was left out here already"),
            false => format!(
                "there is no other region {name} here; `telesto region list` shows them. If it has joined elsewhere, this region will hear of it: run this again when the list shows it"
            ),
        })
    }

    /// As [`Registry::remove`], of a region that is gone for good with what it had: those that stay
    /// exchange what they have of it. Also of one that was left out before. `heir` is the name of
    /// the region that makes the definitions from then on, if the lost one made them.
    ///
    /// # Errors
    /// [`Error::Config`] when there is no such other region, when `heir` is none that stays, or
    /// when the region that was the first is lost and has no heir.
    pub fn remove_lost(&mut self, name: &str, heir: Option<&str>) -> Result<()> {
        let me = self.me;
        let stays = |heir: &str| {
            let mut joined = self.members.iter().filter(|member| member.stays());
            let found = joined.find(|member| member.name == heir && heir != name);
            found.map(|member| member.id).ok_or_else(|| {
                Error::Config(format!(
                    "there is no region {heir} that stays; `telesto region list` shows them"
                ))
            })
        };
        let heir = heir.map(stays).transpose()?;
        // A name may have been given again since.
        let others =
            self.members.iter_mut().filter(|member| member.name == name && member.id != me);
        let found = others.max_by_key(|member| (!member.removed, member.id));
        let Some(found) = found else { return Err(self.unknown(name)) };
        if found.id == 0 && heir.is_none() && found.heir.is_none() {
            return Err(Error::Config(format!(
                "region {name} made the definitions, unless they were given to another one: say with --successor which region makes them from now on (the same one in each region that stays)"
            )));
        }
        found.removed = true;
        found.lost = true;
        found.heir = heir.or(found.heir);
        self.number_version();
        Ok(())
    }

    /// This region's number: the engine is to be opened with it.
    #[must_use]
    pub fn me(&self) -> RegionId {
        RegionId(self.me)
    }

    /// The regions, removed ones too.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// What [`crate::Regions::start`] takes, on the node `caller`.
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::Config`].
    pub fn config(&self, caller: Caller) -> Result<RegionsConfig> {
        let field = |name: &str| {
            Error::malformed("the registry of regions")(format!("its {name} is not of its length"))
        };
        let deployment = unhex(&self.deployment).and_then(|bytes| bytes.try_into().ok());
        let deployment = u128::from_le_bytes(deployment.ok_or_else(|| field("deployment"))?);
        let secret = unhex(&self.secret).and_then(|bytes| bytes.try_into().ok());
        let secret = secret.ok_or_else(|| field("secret"))?;
        let mut config = RegionsConfig::new(self.me(), deployment, secret, caller);
        config.plane = self.plane.parse().map_err(Error::Config)?;
        config.tree.clone_from(&self.tree);
        config.introduction = Some(self.introduction()?);
        let joined = self.members.iter().filter(|m| m.id != self.me && m.node.is_some());
        let told = joined.map(|member| Ok((RegionId(member.id), member.text()?)));
        config.others = told.collect::<Result<_>>()?;
        let lost = self.members.iter().filter(|member| member.lost);
        config.lost = lost.clone().map(|member| RegionId(member.id)).collect();
        config.heirs = lost.filter_map(|m| Some((RegionId(m.id), RegionId(m.heir?)))).collect();
        for member in self.members.iter().filter(|member| !member.removed) {
            if member.id == self.me {
                config.name.clone_from(&member.name);
            } else if let Some((node, address)) = &member.node {
                config.peers.push(PeerRegion {
                    id: RegionId(member.id),
                    name: member.name.clone(),
                    node: Peer { node: *node, address: address.clone() },
                });
            }
        }
        config.check()?;
        Ok(config)
    }

    fn text(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::Config(error.to_string()))
    }

    fn parse(text: &str) -> Result<Self> {
        let malformed = || Error::malformed("the registry of regions");
        // First of all: a newer one may have fields that are not known here.
        let Versioned { version } =
            toml::from_str(text).map_err(|error| malformed()(error.to_string()))?;
        if !(VERSION..=VERSION_HEIR).contains(&version) {
            return Err(malformed()(format!(
                "version {version} is too new: up to {VERSION_HEIR} are known here"
            )));
        }
        let registry: Self =
            toml::from_str(text).map_err(|error| malformed()(error.to_string()))?;
        if let Some(tree) = &registry.tree {
            tree.tree()?;
        }
        Ok(registry)
    }
}

/// One invitation, from which two buckets were made a region.
fn used_twice(name: &str) -> Error {
    Error::Config(format!(
        "region {name} has joined on another node already: its invitation was used twice, or its bucket was made anew. Nothing was changed; run `telesto region remove {name}` for each region that stays, and invite it anew"
    ))
}

/// What every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}
