//! What befalls processes, machines, clocks, disks and the log while clients work.
//!
//! # Invariants
//! - What happens, to whom and for how long follows from the seed.
//! - Nothing here may cost an acknowledged commit: a local directory is put back to an older state
//!   only once everything is in the bucket.

use std::sync::Arc;
use std::time::Duration;

use telesto_log::LogKind;
use telesto_testkit::World;
use telesto_txn::{Database as _, Engine};

use crate::disk::Ailment;
use crate::plan::Plan;
use crate::run::Run;

/// How long a node may take to ship everything before its directory is put back.
const SHIPPING: Duration = Duration::from_secs(60);

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

#[derive(Clone, Copy, Debug)]
enum Misfortune {
    Crash,
    Freeze,
    Pause,
    ClockStep,
    WildClock,
    SilentBucket,
    SwitchLog,
    Fold,
    DiskFull,
    SyncFails,
    DiskHangs,
    PowerLoss,
    Restore,
}

impl Misfortune {
    /// One of those that may befall a run of `plan`, the frequent ones more often.
    fn draw(plan: &Plan, world: &World) -> Self {
        let local = plan.log == LogKind::Quorum || plan.switches;
        let weights = [
            (Self::Crash, 8, true),
            (Self::Freeze, 4, true),
            (Self::Pause, 4, plan.pauses),
            (Self::ClockStep, 4, true),
            (Self::WildClock, 2, plan.wild_clocks),
            (Self::SilentBucket, 2, true),
            (Self::SwitchLog, 12, plan.switches),
            (Self::Fold, 2, true),
            (Self::DiskFull, 3, local && plan.sick_disk),
            (Self::SyncFails, 3, local && plan.sick_disk),
            (Self::DiskHangs, 1, local && plan.sick_disk),
            (Self::PowerLoss, 2, local && plan.sick_disk),
            (Self::Restore, 3, local && plan.restores),
        ];
        let possible = weights.iter().filter(|(_, _, possible)| *possible);
        let mut left = world.draw(possible.clone().map(|(_, weight, _)| weight).sum());
        for (misfortune, weight, _) in possible {
            if left < *weight {
                return *misfortune;
            }
            left -= weight;
        }
        Self::Crash
    }
}

impl Run {
    pub(crate) async fn strike(&mut self, number: usize) {
        let world = self.shared.world.clone();
        match Misfortune::draw(&self.shared.plan, &world) {
            Misfortune::Crash => {
                world.trace(|| format!("node {number} crashes"));
                self.nodes[number].crash(&self.shared);
            }
            Misfortune::Freeze => self.freeze(number),
            Misfortune::Pause => self.pause(number),
            Misfortune::ClockStep => {
                // Small steps are as frequent as large ones.
                let most: u64 = [2_000, 500_000, 240_000_000][world.draw(3) as usize];
                let skew = world.draw(most) as i64 - most as i64 / 2;
                world.trace(|| format!("clock of node {number} is off by {skew} us"));
                self.nodes[number].process.set_clock_skew(skew);
            }
            Misfortune::WildClock => {
                let days = [3650, 1, -1, -3650][world.draw(4) as usize];
                world.trace(|| format!("clock of node {number} is off by {days} days"));
                self.nodes[number].process.set_clock_skew(days * DAY);
            }
            Misfortune::SilentBucket => {
                let outage = world.env.jitter(Duration::from_secs(20));
                world.trace(|| format!("node {number} has no bucket for {outage:?}"));
                let faults = Arc::clone(&self.nodes[number].faults);
                faults.stop_answering();
                let hand = world.clone();
                world.env.spawn("resume", async move {
                    hand.sleep(outage).await;
                    faults.resume();
                });
            }
            Misfortune::SwitchLog => self.switch_log(number),
            Misfortune::Fold => self.fold(number),
            Misfortune::DiskFull => self.disk(Ailment { full: true, ..Ailment::default() }, 10),
            Misfortune::SyncFails => self.failed_sync(number).await,
            Misfortune::DiskHangs => {
                self.disk(Ailment { hangs: true, ..Ailment::default() }, 240);
                // Whoever opens the log now meets it.
                self.nodes[number].crash(&self.shared);
            }
            Misfortune::PowerLoss => {
                world.trace(|| "the machine loses its power".to_owned());
                for node in &mut self.nodes {
                    node.crash(&self.shared);
                }
                self.shared.disk.power_loss();
            }
            Misfortune::Restore => self.restore_directory().await,
        }
    }

    /// A short while, now and then longer than entries are kept.
    fn while_away(&self) -> (Duration, bool) {
        let (world, retention) = (&self.shared.world, self.shared.plan.retention);
        let past = world.draw(3) == 0;
        let away = if past {
            retention * 4 + world.env.jitter(retention)
        } else {
            world.env.jitter(retention / 2)
        };
        (away, past)
    }

    fn freeze(&self, number: usize) {
        let world = self.shared.world.clone();
        let (frozen, _) = self.while_away();
        world.trace(|| format!("node {number} freezes for {frozen:?}"));
        let process = self.nodes[number].process.clone();
        process.freeze();
        let hand = world.clone();
        world.env.spawn("thaw", async move {
            hand.sleep(frozen).await;
            hand.trace(|| format!("{} thaws", process.name));
            process.thaw();
        });
    }

    fn pause(&self, number: usize) {
        let world = self.shared.world.clone();
        if self.nodes[number].process.is_paused() {
            // Its end, and what its clock then says, are settled.
            return;
        }
        let (paused, past) = self.while_away();
        // Where the store tells no time and the wall clock stays behind, no clock tells of a pause:
        // `docs/architecture/log.md`, Limits.
        let told = self.shared.plan.tells_time || !past;
        let wall_jumps = !told || world.draw(2) == 0;
        world.trace(|| format!("node {number} is paused for {paused:?}, wall jumps: {wall_jumps}"));
        let process = self.nodes[number].process.clone();
        process.pause();
        let hand = world.clone();
        world.env.spawn("resume", async move {
            hand.sleep(paused).await;
            hand.trace(|| format!("{} goes on", process.name));
            process.resume(wall_jumps);
        });
    }

    fn fold(&self, number: usize) {
        let world = &self.shared.world;
        world.trace(|| format!("node {number} folds"));
        if let Some(engine) = self.nodes[number].engine.clone() {
            let fold = self.nodes[number].process.run(async move {
                // Failing is one of the things a fold may do under faults.
                let _ = engine.fold().await;
            });
            world.env.spawn("fold", async move {
                fold.await;
            });
        }
    }

    /// The disk ails for up to `seconds`.
    fn disk(&self, ailment: Ailment, seconds: u64) {
        let world = self.shared.world.clone();
        let lasts = world.env.jitter(Duration::from_secs(seconds));
        world.trace(|| format!("the disk ails for {lasts:?}: {ailment:?}"));
        self.shared.disk.ail(ailment);
        let (hand, disk) = (world.clone(), self.shared.disk.clone());
        world.env.spawn("the disk is well", async move {
            hand.sleep(lasts).await;
            disk.ail(Ailment::default());
        });
    }

    /// Syncs fail; half of the time every process dies of it, one is started again and believes
    /// what it reads, and the machine loses its power.
    async fn failed_sync(&mut self, number: usize) {
        let world = self.shared.world.clone();
        self.disk(Ailment { sync_fails: true, ..Ailment::default() }, 3);
        if world.draw(2) == 0 {
            return;
        }
        world.sleep(world.env.jitter(Duration::from_secs(2))).await;
        world.trace(|| "every process dies, the page cache stays".to_owned());
        for node in &mut self.nodes {
            node.crash(&self.shared);
        }
        self.shared.disk.ail(Ailment::default());
        self.start(number).await;
        world.sleep(world.env.jitter(Duration::from_secs(6))).await;
        world.trace(|| "the machine loses its power".to_owned());
        for node in &mut self.nodes {
            node.crash(&self.shared);
        }
        self.shared.disk.power_loss();
    }

    /// The node that sequences the log, if one is known to.
    fn owner(&self) -> Option<usize> {
        self.nodes.iter().position(|node| {
            let sequences = |engine: &Arc<Engine>| engine.log().is_local_sequencer();
            !node.process.is_dead() && node.engine.as_ref().is_some_and(sequences)
        })
    }

    /// Has a node switch the log to the other kind, while everybody works. Only the owner can give
    /// it back to all.
    fn switch_log(&self, number: usize) {
        let world = self.shared.world.clone();
        let number = self.owner().unwrap_or(number);
        let Some(engine) = self.nodes[number].engine.clone() else { return };
        let to = match engine.log().kind() {
            LogKind::Bucket => LogKind::Quorum,
            LogKind::Quorum => LogKind::Bucket,
        };
        world.trace(|| format!("node {number} switches the log to {to}"));
        let by = world.env.deadline(Duration::from_secs(20));
        let switch = self.nodes[number].process.run(async move {
            engine.log().switch(to, by).await.map_err(|error| error.to_string())
        });
        let hand = world.clone();
        world.env.spawn("switch", async move {
            let outcome = switch.await;
            hand.trace(|| format!("switch by node {number}: {outcome:?}"));
        });
    }

    /// Makes a copy of the local directory, or puts the last one back: the owner stops as it
    /// should, so that everything is in the bucket, and finds older files at its next start.
    async fn restore_directory(&mut self) {
        let world = self.shared.world.clone();
        // A copy without the newest part of the log is refused, and rightly: nothing says what was
        // in it.
        let backup = self.backup.take().filter(|backup| self.shared.disk.is_as_wide_as(backup));
        let Some(backup) = backup else {
            world.trace(|| "the local directory is copied".to_owned());
            self.backup = Some(self.shared.disk.backup());
            return;
        };
        let Some(owner) = self.owner() else { return };
        for (other, node) in self.nodes.iter_mut().enumerate() {
            if other != owner {
                node.crash(&self.shared);
            }
        }
        let Some(engine) = self.nodes[owner].engine.clone() else { return };
        let stopped = self.nodes[owner].process.run(async move { engine.shutdown().await });
        let stopped = world.env.within(world.env.deadline(SHIPPING), "shipping", stopped).await;
        self.nodes[owner].crash(&self.shared);
        let shipped = matches!(stopped, Ok(Some(Ok(()))));
        world.trace(|| format!("the owner, node {owner}, has stopped; all shipped: {shipped}"));
        // The log may have gone on with a new part while its owner stopped (a full disk ends a
        // part).
        if shipped && self.shared.disk.is_as_wide_as(&backup) {
            world.trace(|| "the local directory is put back".to_owned());
            self.shared.disk.restore(&backup);
        }
    }
}
