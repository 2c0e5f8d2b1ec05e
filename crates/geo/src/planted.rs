//! Bugs that the simulation plants, to prove that it would find them.
//!
//! # Invariants
//! Only who makes a [`crate::RegionConfig`] or a serializer can plant: no setting, environment
//! variable or build feature does.
//!
//! # On failure
//! A name that is not known is refused with the list of those that are.
//!
//! # Limits
//! One at a time.

use std::str::FromStr;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The label sink now and then sends a later label first.
    LabelBeforeCause,
    /// What a transaction carries of other regions' columns is not merged.
    ColumnNotMerged,
    /// A serializer forgets interests behind its neighbour serializers now and then.
    LostInterest,
    /// Labels of the next tree are taken before the old tree has brought everything.
    EpochsMixed,
    /// A session is attached before what it saw is there.
    StaleAttach,
    /// The new tree is taken when its first label is stable in time: the rule of Saturn §6.2.
    PaperSlowSwitch,
    /// Labels do not say that their source has taken something by time.
    UnseenFallback,
    /// A resumed link leaves out the first message that was not acknowledged.
    ResumeSkips,
    /// Between real regions: labels leave before those of their causes have come.
    UngatedLabels,
    /// Between real regions: a tree's order is followed before everything is here that was
    /// committed before its epoch.
    EarlyTree,
    /// Between real regions: in the order of times a region from which nothing waits is taken to
    /// have none to come.
    OpenTime,
    /// Between real regions: a serializer lets labels of different regions overtake each other now
    /// and then.
    SerializerReorders,
}

impl Bug {
    /// Those that the simulation of the state machines plants, with their names.
    pub const ALL: [(&'static str, Self); 8] = [
        ("label-before-cause", Self::LabelBeforeCause),
        ("column-not-merged", Self::ColumnNotMerged),
        ("lost-interest", Self::LostInterest),
        ("epochs-mixed", Self::EpochsMixed),
        ("stale-attach", Self::StaleAttach),
        ("paper-slow-switch", Self::PaperSlowSwitch),
        ("unseen-fallback", Self::UnseenFallback),
        ("resume-skips", Self::ResumeSkips),
    ];
}

impl FromStr for Bug {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, bug)| *bug).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(known, _)| *known).collect();
            format!("{name:?} is no planted bug; there are {}", names.join(", "))
        })
    }
}
