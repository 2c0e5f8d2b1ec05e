//! Bugs that the simulation plants: mends taken out again, to prove that it would find what they
//! mend.
//!
//! # Purpose
//! A test that cannot fail proves nothing, and a mend whose fault no test would see can be lost
//! again. The place of each mend asks [`crate::Env::planted`] whether to behave as before it.
//!
//! # Invariants
//! Only who makes an [`crate::Env`] can plant: every real one is made with [`Planted::NONE`]. No
//! setting, environment variable or build feature reaches this.

/// A mend that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A process that gives the log away goes on to answer strict reads by what it has.
    OwnsWhileHandingOver,
    /// A gap in a listing of the log is taken for damage.
    GapIsDamage,
    /// A put that is answered "exists" is taken for another's, though its own object stands there.
    ExistsIsAnothers,
    /// How long this process was away is measured by its monotonic clock alone.
    OneClock,
    /// A segment is let go although nothing was written to the one after it, and a recovery that
    /// misses the entry before that one does not look for it in the archive.
    ReleasesLastBatch,
    /// What the page cache has is taken for durable after a life whose sync may have failed.
    TrustsPageCache,
    /// A commit that is shipped while it is being counted keeps later ones from the archive.
    ShipsUncounted,
    /// A local directory is believed although the bucket reaches further.
    TrustsOldDirectory,
    /// Waits for the local disk have no bound while a log is opened.
    HangsWithDisk,
    /// An entry that was trimmed meanwhile is reported as damage.
    TrimmedIsDamage,
    /// Rows of a part are read from it although the checkpoint has them, and it may be deleted.
    ReadsFoldedParts,
    /// Parts are deleted by their age alone, and the checkpoint interval has no bound.
    PartsByAge,
    /// A process that is behind the checkpoint reads the whole log into its tail.
    UnboundedFollower,
    /// Time is read before it is closed.
    ReadsOpenTime,
    /// A clock that is far ahead moves the region's time.
    AnyClock,
    /// An entry counts as committed when one of several log servers has it.
    AcknowledgesEarly,
    /// A fail-over goes on with what one log server of several says.
    SealsMinority,
    /// An owner answers strict reads by what it has although no log server promises it anything any
    /// more.
    OwnsAfterThaw,
    /// A log server that may have forgotten a loglet counts towards a majority.
    CountsForgetful,
    /// A reader that waits for news on a log server does not learn that the loglet has ended there.
    ParksReaders,
    /// What one log server has is told to another as committed, though no majority has it.
    TellsUncommitted,
    /// Entries at the end of a loglet count as committed although one log server alone has them.
    KeepsOneCopy,
    /// An owner counts entries that a recovery gave to sealed log servers as its own that a
    /// majority has.
    CountsRepairs,
    /// A checkpoint is opened anew without regard to a fold of the same process that goes on
    /// meanwhile.
    OpensUnawares,
    /// When an entry is committed those behind it, which are under way still, are acknowledged,
    /// too.
    AnswersAhead,
    /// A transaction is validated without regard to what is under way before it.
    ForgetsUnderWay,
    /// What was to stand behind an entry whose place another one has taken is appended where it was
    /// to stand.
    GoesOnBehindLost,
    /// A follower shows what a majority of the log servers has although their owner may not know
    /// it, and answers without it.
    ShowsUnheard,
}

impl Bug {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::OwnsWhileHandingOver,
        Self::GapIsDamage,
        Self::ExistsIsAnothers,
        Self::OneClock,
        Self::ReleasesLastBatch,
        Self::TrustsPageCache,
        Self::ShipsUncounted,
        Self::TrustsOldDirectory,
        Self::HangsWithDisk,
        Self::TrimmedIsDamage,
        Self::ReadsFoldedParts,
        Self::PartsByAge,
        Self::UnboundedFollower,
        Self::ReadsOpenTime,
        Self::AnyClock,
        Self::AcknowledgesEarly,
        Self::SealsMinority,
        Self::OwnsAfterThaw,
        Self::CountsForgetful,
        Self::ParksReaders,
        Self::TellsUncommitted,
        Self::KeepsOneCopy,
        Self::CountsRepairs,
        Self::OpensUnawares,
        Self::AnswersAhead,
        Self::ForgetsUnderWay,
        Self::GoesOnBehindLost,
        Self::ShowsUnheard,
    ];
}

/// Which bugs are planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted(u64);

impl Planted {
    /// None: what every real process has.
    pub const NONE: Self = Self(0);

    /// Only `bug`.
    #[must_use]
    pub fn only(bug: Bug) -> Self {
        Self(1 << bug as u64)
    }

    /// Whether `bug` is planted.
    #[must_use]
    pub fn has(self, bug: Bug) -> bool {
        self.0 & (1 << bug as u64) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_bug_is_the_only_one_and_none_has_none() {
        for one in Bug::ALL {
            assert!(!Planted::NONE.has(*one));
            for other in Bug::ALL {
                assert_eq!(Planted::only(*one).has(*other), one == other);
            }
        }
    }
}
