//! The objects that one state of a checkpoint consists of, named as SlateDB 0.18 names them.
//!
//! # On failure
//! A state that was collected is `Gone`: the caller asks for the newest one.
//!
//! # Limits
//! Tables of other databases (clones) are not followed: Telesto makes none.

use std::collections::BTreeSet;

use telesto_bucket::Cause;

use super::slate::SlateEngine;
use super::{Fault, Outcome};

/// Keys of states, and of tables.
type Objects = (Vec<String>, Vec<String>);

impl SlateEngine {
    /// Keys of the objects of state `id`: the states that it refers to, its own last, and its
    /// tables.
    pub(crate) async fn objects_of(&self, id: u64) -> Outcome<Objects> {
        let admin = slatedb::admin::Admin::builder(self.path.as_str(), self.store(Cause::Admin))
            .with_system_clock(self.clock.clone())
            .with_seed(self.env.random.next_u64())
            .build();
        let read = admin.read_manifest(Some(id));
        let manifest = self.bounded("reading a state of a checkpoint", read).await?;
        let gone = || Fault::Gone(format!("state {id} was collected"));
        let manifest = manifest.ok_or_else(gone)?;
        let referred: BTreeSet<u64> =
            manifest.checkpoints().iter().map(|c| c.manifest_id).collect();
        let mut states = Vec::new();
        for state in referred.into_iter().filter(|state| *state != id) {
            let read = admin.read_manifest(Some(state));
            // One that is gone already is of a job that has ended.
            if self.bounded("reading a state of a checkpoint", read).await?.is_some() {
                states.push(self.state_key(state));
            }
        }
        states.push(self.state_key(id));
        let tables: BTreeSet<String> = manifest
            .all_sst_views()
            .map(|view| format!("{}/compacted/{}.sst", self.path, view.sst.id.value()))
            .collect();
        Ok((states, tables.into_iter().collect()))
    }

    fn state_key(&self, id: u64) -> String {
        format!("{}/manifest/{id:020}.manifest", self.path)
    }
}
