//! CloudTPS' microbenchmarks (its Figure 6): one table whose rows each refer to another row of it.
//!
//! # Invariants
//! - Which row a row refers to is a function of its number, so every answer of a join is compared
//!   with the path computed here.
//! - A transaction that changes rows is counted when it is acknowledged; at the end the rows'
//!   numbers add up to exactly that, and what the index says of every value is what the table says.
//!
//! # On failure
//! A wrong answer, or one that is no conflict, ends the run.
//!
//! # Limits
//! A changed index is counted as two records, as CloudTPS has it: the one that the row leaves and
//! the one that it enters.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::measure::{Measured, Tally, measure};
use crate::nodes::{Cluster, Counted, nothing_done};
use crate::sql::{connect, full};

/// Different values of the column that is indexed, at the beginning.
const TAGS: i64 = 100;
/// Transactions of each client before the watch starts: plans, caches.
const WARM: u32 = 20;
/// How often a transaction is tried.
const TRIES: u32 = 1000;

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// From so many rows along a path of so many references.
    Join { roots: usize, path: usize },
    /// Changes so many rows, and their entries of an index or not.
    Update { rows: usize, index: bool },
}

impl Work {
    /// Records a transaction reaches.
    pub fn records(self) -> usize {
        match self {
            Self::Join { roots, path } => roots * (path + 1),
            Self::Update { rows, index } => rows * if index { 3 } else { 1 },
        }
    }

    fn rows(self) -> usize {
        match self {
            Self::Join { roots, .. } => roots,
            Self::Update { rows, .. } => rows,
        }
    }

    fn statement(self) -> String {
        let numbers: Vec<String> = (1..=self.rows()).map(|at| format!("${at}")).collect();
        let numbers = numbers.join(", ");
        match self {
            Self::Join { path, .. } => {
                let ids: Vec<String> = (0..=path).map(|at| format!("t{at}.id")).collect();
                let mut text = format!("SELECT {} FROM cloudtps_records t0", ids.join(", "));
                for at in 1..=path {
                    let before = at - 1;
                    // Writing to a string does not fail.
                    let _ =
                        write!(text, " JOIN cloudtps_records t{at} ON t{at}.id = t{before}.next");
                }
                format!("{text} WHERE t0.id IN ({numbers})")
            }
            Self::Update { index, .. } => {
                let tag = if index { ", tag = tag + 1" } else { "" };
                format!("UPDATE cloudtps_records SET n = n + 1{tag} WHERE id IN ({numbers})")
            }
        }
    }
}

/// The table, and what has been acknowledged of it.
pub struct Records {
    count: i64,
    /// What the rows' numbers have to add up to.
    added: u64,
    /// By how much their tags have to exceed those at the beginning.
    tagged: u64,
}

/// The row that row `id` of `count` refers to.
fn next(id: i64, count: i64) -> i64 {
    (id * 7919 + 17) % count + 1
}

impl Records {
    /// Makes the table anew.
    pub async fn load(cluster: &Cluster, count: u32) -> Result<Self, String> {
        let client = connect(&cluster.nodes[0].url()).await?;
        let count = i64::from(count);
        let make = format!(
            "DROP TABLE IF EXISTS cloudtps_records; \
             CREATE TABLE cloudtps_records (id bigint PRIMARY KEY, next bigint NOT NULL, n bigint NOT NULL, tag bigint NOT NULL, note text NOT NULL); \
             INSERT INTO cloudtps_records SELECT g, (g * 7919 + 17) % {count} + 1, 0, g % {TAGS}, repeat('x', 100) FROM generate_series(1, {count}) g; \
             CREATE INDEX cloudtps_records_next ON cloudtps_records (next); \
             CREATE INDEX cloudtps_records_tag ON cloudtps_records (tag); \
             ALTER TABLE cloudtps_records ADD FOREIGN KEY (next) REFERENCES cloudtps_records (id)"
        );
        client.batch_execute(&make).await.map_err(|error| full(&error))?;
        Ok(Self { count, added: 0, tagged: 0 })
    }

    /// Lets `clients` of each node do `work` for `time`.
    pub async fn measure(
        &mut self,
        cluster: &Cluster,
        work: Work,
        clients: u32,
        time: Duration,
        (idle, seed): (Counted, u64),
    ) -> Result<Measured, String> {
        if i64::try_from(work.rows()).unwrap_or(i64::MAX) > self.count {
            return Err("a transaction takes more rows than there are; give more --rows".to_owned());
        }
        let mut opened = Vec::new();
        for (node, url) in (0_u64..).zip(cluster.urls()) {
            for number in 0..u64::from(clients) {
                let seed = seed ^ (node << 40) ^ (number << 20) ^ 0x9e37_79b9_7f4a_7c15;
                opened.push(One::open(&url, work, self.count, seed).await?);
            }
        }
        let warm = u64::from(WARM) * opened.len() as u64;
        let until = Instant::now() + time;
        let clients = opened.into_iter().map(|client| client.work(until)).collect();
        let measured = measure(cluster, idle, clients).await?;
        if let Work::Update { rows, index } = work {
            let changed = (measured.tally.times.len() + warm) * rows as u64;
            self.added += changed;
            self.tagged += if index { changed } else { 0 };
        }
        Ok(measured)
    }

    /// Whether the table and its index say what was acknowledged.
    pub async fn check(&self, cluster: &Cluster) -> Result<(), String> {
        // At the last node: what was acknowledged by any has to be seen there.
        let url = cluster.urls().pop().ok_or("no nodes")?;
        let client = connect(&url).await?;
        let all = "SELECT id, n, tag FROM cloudtps_records ORDER BY id";
        let rows = client.query(all, &[]).await.map_err(|error| full(&error))?;
        let rows: Vec<Stored> = rows
            .iter()
            .map(|row| Stored { id: row.get(0), n: row.get(1), tag: row.get(2) })
            .collect();
        self.agrees(&rows)?;
        let mut by_tag: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for row in &rows {
            by_tag.entry(row.tag).or_default().push(row.id);
        }
        let by_index = "SELECT id FROM cloudtps_records WHERE tag = $1 ORDER BY id";
        let by_index = client.prepare(by_index).await.map_err(|error| full(&error))?;
        for (tag, ids) in &by_tag {
            let found = client.query(&by_index, &[tag]).await.map_err(|error| full(&error))?;
            let found: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
            if found != *ids {
                return Err(format!(
                    "the index has {} rows with tag {tag}, the table {}: please report this with the nodes' folders",
                    found.len(),
                    ids.len()
                ));
            }
        }
        println!(
            "{} changes of rows are there, each once; the index has the rows of all {} values that the table has.",
            self.added,
            by_tag.len()
        );
        Ok(())
    }

    /// Whether rows in the order of their ids are those that were made, with the changes that were
    /// acknowledged.
    fn agrees(&self, rows: &[Stored]) -> Result<(), String> {
        if !rows.iter().map(|row| row.id).eq(1..=self.count) {
            return Err(format!(
                "rows 1 to {} were made, and these {} are not they: please report this with the nodes' folders",
                self.count,
                rows.len()
            ));
        }
        let added: i64 = rows.iter().map(|row| row.n).sum();
        let tagged: i64 = rows.iter().map(|row| row.tag - row.id % TAGS).sum();
        for (what, found, told) in [("numbers", added, self.added), ("tags", tagged, self.tagged)] {
            if u64::try_from(found) != Ok(told) {
                return Err(format!(
                    "{told} changes of {what} were acknowledged, and the rows say {found}: please report this with the nodes' folders"
                ));
            }
        }
        Ok(())
    }
}

/// A row as it is at the end.
struct Stored {
    id: i64,
    n: i64,
    tag: i64,
}

/// One client.
struct One {
    client: Client,
    statement: Statement,
    work: Work,
    count: i64,
    random: SmallRng,
    tally: Tally,
}

impl One {
    async fn open(url: &str, work: Work, count: i64, seed: u64) -> Result<Self, String> {
        let client = connect(url).await?;
        let statement = client.prepare(&work.statement()).await.map_err(|error| full(&error))?;
        let (random, tally) = (SmallRng::seed_from_u64(seed), Tally::new()?);
        let mut one = Self { client, statement, work, count, random, tally };
        for _ in 0..WARM {
            one.once().await?;
        }
        one.tally = Tally::new()?;
        Ok(one)
    }

    async fn work(mut self, until: Instant) -> Result<Tally, String> {
        while Instant::now() < until {
            self.once().await?;
        }
        Ok(self.tally)
    }

    async fn once(&mut self) -> Result<(), String> {
        let mut ids: Vec<i64> = Vec::with_capacity(self.work.rows());
        while ids.len() < self.work.rows() {
            let id = self.random.random_range(1..=self.count);
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let parameters: Vec<&(dyn ToSql + Sync)> = ids.iter().map(|id| id as _).collect();
        let begun = Instant::now();
        for _ in 0..TRIES {
            let answer = match self.work {
                Work::Join { .. } => self.client.query(&self.statement, &parameters).await,
                Work::Update { rows, .. } => {
                    let changed = self.client.execute(&self.statement, &parameters).await;
                    if changed.as_ref().is_ok_and(|changed| *changed != rows as u64) {
                        return Err(format!("an update of {rows} rows changed {changed:?}"));
                    }
                    changed.map(|_| Vec::new())
                }
            };
            match answer {
                Ok(rows) => {
                    self.tally.done(begun);
                    return match self.work {
                        Work::Join { path, .. } => {
                            let of = |row: &Row| (0..=path).map(|at| row.get(at)).collect();
                            verified(rows.iter().map(of).collect(), ids, path, self.count)
                        }
                        Work::Update { .. } => Ok(()),
                    };
                }
                Err(error) if error.code().is_some_and(|code| nothing_done(code.code())) => {
                    self.tally.conflicts += 1;
                }
                Err(error) => return Err(full(&error)),
            }
        }
        Err(format!(
            "an update met a conflict {TRIES} times in a row; give more --rows or fewer --clients"
        ))
    }
}

/// Whether a join's rows are the paths from `roots`.
fn verified(
    mut found: Vec<Vec<i64>>,
    mut roots: Vec<i64>,
    path: usize,
    count: i64,
) -> Result<(), String> {
    found.sort_unstable();
    roots.sort_unstable();
    let computed = paths(&roots, path, count);
    match found == computed {
        true => Ok(()),
        false => Err(format!(
            "a join from {roots:?} gave {found:?}, which is not {computed:?}: please report this with the nodes' folders"
        )),
    }
}

/// What a join from each of `roots` along `path` references has to give.
fn paths(roots: &[i64], path: usize, count: i64) -> Vec<Vec<i64>> {
    let from = |root: &i64| {
        std::iter::successors(Some(*root), |id| Some(next(*id, count))).take(path + 1).collect()
    };
    roots.iter().map(from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_references_and_stay_among_the_rows() {
        assert_eq!(paths(&[1, 4], 2, 10), [vec![1, 7, 1], vec![4, 4, 4]]);
        assert!((1..=1000).all(|id| (1..=1000).contains(&next(id, 1000))));
    }

    #[test]
    fn joins_that_miss_or_repeat_a_row_or_go_elsewhere_are_told() {
        let right = vec![vec![4, 4], vec![1, 7]];
        assert_eq!(verified(right.clone(), vec![1, 4], 1, 10), Ok(()));
        for wrong in [
            vec![vec![1, 7]],
            vec![vec![1, 7], vec![4, 4], vec![4, 4]],
            vec![vec![1, 8], vec![4, 4]],
        ] {
            assert!(verified(wrong.clone(), vec![1, 4], 1, 10).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn rows_that_are_missing_and_changes_that_are_lost_or_done_twice_are_told() {
        let records = Records { count: 2, added: 3, tagged: 1 };
        let rows = |list: &[(i64, i64, i64)]| -> Vec<Stored> {
            list.iter().map(|(id, n, tag)| Stored { id: *id, n: *n, tag: *tag }).collect()
        };
        assert_eq!(records.agrees(&rows(&[(1, 2, 1), (2, 1, 3)])), Ok(()));
        for wrong in [
            [(1, 2, 1), (2, 0, 3)],
            [(1, 2, 1), (2, 2, 3)],
            [(1, 2, 1), (2, 1, 2)],
            [(1, 2, 1), (1, 1, 3)],
        ] {
            assert!(records.agrees(&rows(&wrong)).is_err(), "{wrong:?}");
        }
        assert!(records.agrees(&rows(&[(1, 3, 2)])).is_err());
    }

    #[test]
    fn statements_take_as_many_records_as_they_say() {
        let join = Work::Join { roots: 2, path: 2 };
        assert_eq!((join.records(), Work::Update { rows: 2, index: true }.records()), (6, 6));
        assert_eq!(
            join.statement(),
            "SELECT t0.id, t1.id, t2.id FROM cloudtps_records t0 JOIN cloudtps_records t1 ON t1.id = t0.next \
             JOIN cloudtps_records t2 ON t2.id = t1.next WHERE t0.id IN ($1, $2)"
        );
    }
}
