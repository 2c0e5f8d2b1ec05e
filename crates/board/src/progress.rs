//! Bars on standard error while records are loaded.
//!
//! # Invariants
//! One bar a target that loads; none for one that has its records. Where standard error is no
//! terminal nothing is drawn.

use std::collections::BTreeMap;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use parking_lot::Mutex;

/// The bars of a board.
#[derive(Debug, Default)]
pub struct Bars {
    all: MultiProgress,
    bars: Mutex<BTreeMap<String, ProgressBar>>,
}

impl Bars {
    /// Shows that `target` has `done` of `records`.
    pub fn show(&self, target: &str, done: u64, records: u64) {
        let mut bars = self.bars.lock();
        if done >= records {
            if let Some(bar) = bars.remove(target) {
                bar.finish_and_clear();
            }
            return;
        }
        let bar = bars.entry(target.to_owned()).or_insert_with(|| {
            let template =
                "{prefix}: loading {wide_bar} {human_pos}/{human_len} records, {eta} left";
            let style = ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = self.all.add(ProgressBar::new(records));
            bar.with_style(style).with_prefix(target.to_owned())
        });
        bar.set_position(done);
    }
}
