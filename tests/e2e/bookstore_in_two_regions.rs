//! The bookstore in two regions, with an application server in each: the demo itself, short.
//!
//! # Invariants
//! What is checked is in the demo: what buyers were told is there in their region, the shop adds up
//! in both, and the replicas are equal.

use super::harness::demo;

/// The applications are processes that know one address each; what eu's writes goes to us and comes
/// back.
#[test]
fn bookstore_runs_unchanged_in_two_regions_and_adds_up_in_both() {
    let mut command = demo(&["bookstore", "--regions", "--customers", "80", "--items", "60"]);
    command.args(["--clients", "3", "--seconds", "8", "--mix", "ordering"]);
    let output = command.output().expect("telesto-demo runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{wrong}");
    for expected in ["== in region us", "== in region eu", "Region eu: the shop adds up"] {
        assert!(said.contains(expected), "{said}");
    }
    // Else nothing was bought away from home.
    let forwarded = said.lines().find_map(|line| line.strip_prefix("Region eu forwarded "));
    let count = forwarded.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count > 20), "{said}");
}
