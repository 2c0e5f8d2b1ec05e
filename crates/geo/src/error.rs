//! The error type of the geo layer. Each message says what to do next.

use telesto_common::RegionId;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between regions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bytes of a message do not decode.
    #[error(
        "malformed message between regions at byte {offset}: {reason}; tear the link down and resume it, and upgrade the older region first if their versions differ"
    )]
    Malformed {
        /// Offset of the first byte that does not fit.
        offset: usize,
        /// What was expected.
        reason: &'static str,
    },
    /// A region that is not a member is named.
    #[error(
        "region {region} is not one of the {members} members; add it with `telesto region invite`, or begin a new session without the old token"
    )]
    UnknownRegion {
        /// The region named.
        region: RegionId,
        /// How many members there are.
        members: usize,
    },
    /// More regions than a plane has room for.
    #[error(
        "the {plane} plane serves up to {limit} regions, not {members}; choose the `tree` plane"
    )]
    TooManyRegions {
        /// The plane.
        plane: &'static str,
        /// Its limit.
        limit: usize,
        /// The number of members.
        members: usize,
    },
    /// A change of plane or tree is under way, or the number of the new one is not greater.
    #[error("cannot change to {what} {asked}: {reason}; retry when the change under way is done")]
    ChangeRefused {
        /// `generation` or `epoch`.
        what: &'static str,
        /// The number asked for.
        asked: u32,
        /// Why not.
        reason: &'static str,
    },
    /// The plane has no tree to change.
    #[error("the {plane} plane has no tree; change to the tree plane first")]
    NoTree {
        /// The plane in use.
        plane: &'static str,
    },
    /// Serializers and links do not form a tree with every region as a leaf.
    #[error("not a tree of serializers: {reason}; let the solver make one")]
    NotATree {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A solver's input is out of its range.
    #[error("the tree solver cannot use this input: {reason}; correct it and run it again")]
    Unsolvable {
        /// What is wrong with it.
        reason: &'static str,
    },
}
