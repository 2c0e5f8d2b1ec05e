//! What users do, and how often.
//!
//! Saturn draws from Benevenuto, Rodrigues, Cha and Almeida, "Characterizing user behavior in
//! online social networks" (IMC 2009): 92 % of what users do is browsing, the rest writes; the most
//! of it is about friends.
//!
//! # Invariants
//! The shares add up to 100.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! The study's table has 41 activities and Saturn's does not print what it made of them. Here they
//! are eight; the 92 % and their order are the study's, the shares inside are rounded by us.

use rand::Rng as _;
use rand::rngs::SmallRng;

/// Whose data an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The user's own.
    Own,
    /// A friend's.
    Friend,
    /// Anybody's.
    Anybody,
}

/// An operation of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Looks at a friend's updates.
    BrowseFriend,
    /// Looks at a friend's photos.
    BrowsePhotos,
    /// Looks at its own page.
    BrowseOwn,
    /// Looks for somebody, and at what it finds.
    Search,
    /// Writes on its own page.
    Post,
    /// Writes on its own page about what a friend has written.
    Comment,
    /// Writes to a friend.
    Message,
    /// Changes its settings.
    Settings,
}

/// The operations and their shares.
pub const MIX: [(Operation, u32); 8] = [
    (Operation::BrowseFriend, 40),
    (Operation::BrowsePhotos, 27),
    (Operation::BrowseOwn, 15),
    (Operation::Search, 10),
    (Operation::Post, 3),
    (Operation::Comment, 3),
    (Operation::Message, 1),
    (Operation::Settings, 1),
];

impl Operation {
    /// Draws one; `writes` times as many writes as there are in the mix.
    pub fn draw(writes: f64, random: &mut SmallRng) -> Self {
        let share = |(operation, share): &(Self, u32)| {
            f64::from(*share) * if operation.writes() { writes } else { 1.0 }
        };
        let mut at = random.random::<f64>() * MIX.iter().map(share).sum::<f64>();
        for entry in &MIX {
            at -= share(entry);
            if at < 0.0 {
                return entry.0;
            }
        }
        Self::Settings
    }

    /// Whether it changes something.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Post | Self::Comment | Self::Message | Self::Settings)
    }

    /// Whose data it needs.
    #[must_use]
    pub fn subject(self) -> Subject {
        match self {
            Self::BrowseOwn | Self::Post | Self::Settings => Subject::Own,
            Self::BrowseFriend | Self::BrowsePhotos | Self::Comment | Self::Message => {
                Subject::Friend
            }
            Self::Search => Subject::Anybody,
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn ninety_two_of_a_hundred_operations_browse() {
        let all: u32 = MIX.iter().map(|(_, share)| share).sum();
        let browse: u32 =
            MIX.iter().filter(|(what, _)| !what.writes()).map(|(_, share)| share).sum();
        assert_eq!((all, browse), (100, 92));
        let mut random = SmallRng::seed_from_u64(3);
        let mut drawn =
            |writes| (0..20_000).filter(|_| Operation::draw(writes, &mut random).writes()).count();
        assert!((1_300..1_900).contains(&drawn(1.0)), "8 %");
        assert!((5_800..6_800).contains(&drawn(5.0)), "40 of 132");
    }
}
