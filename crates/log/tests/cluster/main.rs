//! A cluster of nodes that keep the newest log for each other, in a simulated world.

mod nodes;
mod scenarios;
mod storm;
