//! Three real processes in network namespaces of their own, through every way in which one can be
//! cut off: clients of all of them append and read; what they saw is strictly serializable, who is
//! cut off acknowledges nothing, the others go on, and all do when they hear each other again.
//!
//! One round takes less than a minute. `TELESTO_SOAK_SECONDS` is for how long rounds are run
//! (default: one). It takes root (`partitions.sh` says when that is not to be had).

#[path = "appending.rs"]
#[allow(dead_code)]
mod appending;
#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "namespaces.rs"]
#[allow(dead_code)]
mod namespaces;
#[path = "rounds.rs"]
mod rounds;
#[path = "three.rs"]
#[allow(dead_code)]
mod three;

use std::time::{Duration, Instant};

use appending::Run;
use namespaces::{Trio, both};
use rounds::Clients;
use three::{all, others};

/// What was acknowledged before the cut may reach its client after it, and a lease may last so
/// long.
const LEASE: Duration = Duration::from_millis(1500);

/// One way of being cut off.
struct Cut {
    what: &'static str,
    /// The second of each pair does not hear the first.
    pairs: Vec<(usize, usize)>,
    /// Who must commit nothing meanwhile, not even what only reads.
    mute: Option<usize>,
    /// Who must go on.
    going: Vec<usize>,
}

const SHAPES: usize = 6;

fn cut(shape: usize, owner: usize) -> Cut {
    let everybody = all();
    let [near, far] = others(owner)[..] else { unreachable!("three nodes") };
    let rest = vec![near, far];
    let to_owner = rest.iter().map(|other| (*other, owner)).collect();
    let from_owner = rest.iter().map(|other| (owner, *other)).collect();
    let (what, pairs, mute, going) = match shape {
        0 => ("the owner cut off", both(owner, &rest), Some(owner), rest),
        1 => ("an owner that only sends", to_owner, Some(owner), rest),
        2 => ("an owner that only receives", from_owner, Some(owner), rest),
        3 => (
            "owner and a follower do not hear each other",
            both(owner, &[near]),
            None,
            vec![owner, far],
        ),
        4 => ("the followers do not hear each other", both(near, &[far]), None, everybody),
        _ => ("a follower cut off", both(near, &[owner, far]), Some(near), vec![owner, far]),
    };
    Cut { what, pairs, mute, going }
}

async fn befall(trio: &Trio, run: &Run, shape: usize) {
    let owner = trio.owner().await;
    let cut = cut(shape, owner);
    let begun = Instant::now();
    trio.nets.cut(&cut.pairs);
    tokio::time::sleep(LEASE).await;
    let before = cut.mute.map(|mute| run.commits(mute));
    run.progress(&cut.going, 5, cut.what).await;
    let went_on = begun.elapsed();
    tokio::time::sleep(LEASE).await;
    run.progress(&cut.going, 3, cut.what).await;
    if let Some(mute) = cut.mute {
        assert_eq!(Some(run.commits(mute)), before, "{}: it goes on committing", cut.what);
    }
    let healed = Instant::now();
    trio.nets.heal();
    run.progress(&all(), 3, &format!("after {}", cut.what)).await;
    println!(
        "{}: the others went on within {} ms, all within {} ms of healing",
        cut.what,
        went_on.as_millis(),
        healed.elapsed().as_millis()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_processes_are_strictly_serializable_through_partitions_of_every_shape() {
    let trio = Trio::start(None);
    let mut clients = Clients::start(&trio).await;
    while clients.another_round() {
        for shape in 0..SHAPES {
            befall(&trio, &clients.run, shape).await;
        }
    }
    clients.end(&trio).await;
}
