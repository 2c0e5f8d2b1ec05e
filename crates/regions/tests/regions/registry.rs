//! Regions that are made, join, and leave, by what their buckets say of them.

use std::sync::Arc;

use telesto_bucket::{Bucket, BucketOptions, MemoryStore, over};
use telesto_common::{Incarnation, NodeId, RegionId};
use telesto_net::Caller;
use telesto_regions::{Error, Introduction, MEMBERS, Registry, Removed};
use telesto_testkit::World;

fn bucket(world: &World) -> Arc<dyn Bucket> {
    let store = Arc::new(MemoryStore::new(Arc::clone(&world.env.clock)));
    let bucket = over(store, "memory://test", &BucketOptions::default(), world.env.clone());
    bucket.expect("a bucket")
}

fn caller(node: u128) -> Caller {
    Caller { node: NodeId(node), incarnation: Incarnation(1) }
}

#[test]
fn regions_join_by_texts_and_find_each_other_in_their_buckets() {
    World::run(31, false, async |world| {
        let (here, there) = (bucket(&world), bucket(&world));
        assert!(Registry::load(&here).await.expect("read").is_none());
        let first = Registry::init(&world.env, "eu", NodeId(1), "eu:1");
        first.save(&here, 0).await.expect("saved");
        let (number, mut first) = Registry::load(&here).await.expect("read").expect("there");
        let invitation = first.invite("us").expect("a number is left");
        let again = first.invite("us").expect("its text may have got lost");
        assert_eq!(again, invitation, "the same text");
        first.save(&here, number).await.expect("saved");
        let late = first.save(&here, number).await;
        assert!(late.is_ok(), "the same change again is the same object");
        let mut other = first.clone();
        other.invite("asia").expect("a number is left");
        assert!(other.save(&here, number).await.is_err(), "another change has this number");
        let (second, acceptance) = Registry::join(&invitation, NodeId(2), "us:1").expect("joins");
        second.save(&there, 0).await.expect("saved");
        assert!(first.accept(&acceptance[2..]).is_err(), "cut off");
        first.accept(&acceptance).expect("accepted");
        assert!(matches!(first.invite("us"), Err(Error::Config(_))), "the name is taken");
        let (one, two) =
            (first.config(caller(1)).expect("fits"), second.config(caller(2)).expect("fits"));
        assert_eq!((one.me, two.me), (RegionId(0), RegionId(1)));
        assert_eq!((one.deployment, one.secret), (two.deployment, two.secret));
        assert_eq!(one.peers[0].node.address, "us:1");
        assert_eq!(two.peers[0].node.address, "eu:1");
        assert_eq!(two.name, "us");
        // It may introduce itself again; where it is reached from here was said by hand.
        first.move_to("us", "link:9").expect("it has joined");
        first.accept(&acceptance).expect("again");
        assert_eq!(first.config(caller(1)).expect("fits").peers[0].node.address, "link:9");
        let (_, twice) = Registry::join(&invitation, NodeId(3), "us:2").expect("joins anew");
        let refused = first.accept(&twice).expect_err("from another bucket").to_string();
        assert!(refused.contains("used twice"), "{refused}");
        assert_eq!(first.config(caller(1)).expect("fits").peers[0].node.address, "link:9");
        assert_eq!((first.plane(), one.plane.name()), ("matrix", "matrix"));
        first.set_plane("timestamp").expect("run by regions");
        assert_eq!(first.config(caller(1)).expect("fits").plane.name(), "timestamp");
        first.set_plane("eventual").expect("run by regions");
        assert_eq!(first.config(caller(1)).expect("fits").plane.name(), "eventual");
        for plane in ["cure", "nothing"] {
            assert!(matches!(first.set_plane(plane), Err(Error::Config(_))), "{plane}");
        }
        first.set_plane("matrix").expect("run by regions");
        first.save(&here, number + 1).await.expect("saved");
        let text = async |number: u64| {
            let key = format!("regions/registry/{number:016}");
            let object = here.get(telesto_bucket::Cause::Admin, &key, None).await;
            String::from_utf8(object.expect("read").expect("there").body.to_vec()).expect("text")
        };
        assert!(text(number + 2).await.starts_with("version = 1\n"), "as before there were trees");
        let star = |members, site| telesto_geo::Tree::star(members, RegionId(site));
        assert!(matches!(first.set_tree(&world.env, &star(1, 0), &["eu"]), Err(Error::Config(_))));
        assert!(first.set_tree(&world.env, &star(2, 0), &["eu", "asia"]).is_err(), "unknown");
        first.set_tree(&world.env, &star(2, 1), &["eu", "us"]).expect("all regions");
        first.set_plane("tree").expect("run by regions");
        first.save(&here, number + 2).await.expect("saved");
        assert!(text(number + 3).await.starts_with("version = 2\n"));
        let (_, read) = Registry::load(&here).await.expect("read").expect("there");
        assert_eq!(read, first);
        let config = read.config(caller(1)).expect("fits");
        assert_eq!((config.plane.name(), config.tree.as_ref()), ("tree", first.tree()));
        let newer = text(number + 3).await.replace("version = 2", "version = 4\nmore = 1");
        let newer = bytes::Bytes::from(newer);
        let key = format!("regions/registry/{:016}", number + 4);
        let put = here.put_if_absent(telesto_bucket::Cause::Admin, &key, newer).await;
        put.expect("put");
        let refused = Registry::load(&here).await.expect_err("newer").to_string();
        assert!(refused.contains("too new"), "{refused}");
        first.remove("us").expect("there");
        assert!(first.remove("eu").is_err(), "itself");
        assert!(first.config(caller(1)).expect("fits").peers.is_empty());
        assert!(first.accept(&acceptance).is_err(), "it was removed");
        first.invite("us").expect("its name is free");
        assert_eq!(first.members().last().map(|member| member.id), Some(2), "its number is not");
    });
}

/// Who makes the definitions in the place of a lost region is kept, and is one that stays.
#[test]
fn successor_of_a_lost_region_is_kept_with_it() {
    World::run(1, false, async |world| {
        let bucket = bucket(&world);
        let mut us = Registry::init(&world.env, "us", NodeId(1), "us:1");
        let text = us.invite("eu").expect("invites");
        let (mut eu, _) = Registry::join(&text, NodeId(2), "eu:1").expect("joins");
        let refused = eu.remove_lost("us", None).expect_err("nobody would define").to_string();
        assert!(refused.contains("--successor"), "{refused}");
        for none in ["mars", "us"] {
            let refused = eu.remove_lost("us", Some(none)).expect_err(none).to_string();
            assert!(refused.contains("that stays"), "{refused}");
        }
        eu.remove_lost("us", Some("eu")).expect("lost");
        eu.save(&bucket, 0).await.expect("saved");
        let (_, read) = Registry::load(&bucket).await.expect("reads").expect("is there");
        let config = read.config(caller(2)).expect("fits");
        assert_eq!(config.lost, [RegionId(0)]);
        assert_eq!(config.heirs.get(&RegionId(0)), Some(&RegionId(1)));
        // Said once more, without a name, the name stays.
        let mut again = read;
        again.remove_lost("us", None).expect("lost already");
        assert_eq!(again.config(caller(2)).expect("fits").heirs, config.heirs);
    });
}

/// A number that two regions were given is refused where the second of them is taken in, and
/// nothing is put in the place of the first.
#[test]
fn number_is_never_given_to_two_regions() {
    World::run(2, false, async |world| {
        let mut us = Registry::init(&world.env, "us", NodeId(1), "us:1");
        let text = us.invite("eu").expect("invites");
        let (mut eu, accepted) = Registry::join(&text, NodeId(2), "eu:1").expect("joins");
        us.accept(&accepted).expect("accepted");
        let refused = eu.invite("africa").expect_err("not the one that gives numbers").to_string();
        assert!(refused.contains("in region us"), "{refused}");
        // An invitation that was made before regions looked at that: it has the number of the next
        // one.
        let mut older = us.clone();
        let africa = older.invite("africa").expect("invites");
        let asia = us.invite("asia").expect("invites");
        let (_, africa) = Registry::join(&africa, NodeId(3), "africa:1").expect("joins");
        let (_, asia) = Registry::join(&asia, NodeId(4), "asia:1").expect("joins");
        // Before the one that was invited here has joined, and afterwards.
        let invited = us.clone();
        let refused = us.accept(&africa).expect_err("the number is asia's").to_string();
        assert!(refused.contains("africa") && refused.contains("asia"), "{refused}");
        assert_eq!(us, invited);
        us.accept(&asia).expect("accepted");
        let taken = us.clone();
        us.accept(&africa).expect_err("the number is asia's");
        assert_eq!(us, taken);
        // One that has joined nobody's list yet takes in the first, and then no other.
        eu.accept(&africa).expect("accepted");
        eu.accept(&asia).expect_err("the number is africa's");
        // The same name under another number is refused, too.
        let mut later = taken.clone();
        later.remove("asia").expect("there");
        let again = later.invite("asia").expect("its name is free");
        let (_, again) = Registry::join(&again, NodeId(5), "asia:2").expect("joins");
        let refused = us.accept(&again).expect_err("there is one of that name").to_string();
        assert!(refused.contains("region remove"), "{refused}");
        later.accept(&again).expect("accepted");
        // Who gives numbers has left: the next one does.
        eu.remove("us").expect("there");
        eu.invite("brazil").expect("invites");
    });
}

/// What `by` says of one that joined, or of itself.
fn said(by: u16, text: &str) -> Introduction {
    Introduction { by: RegionId(by), text: text.to_owned() }
}

/// Nobody can tell whether somebody has joined with an invitation that was taken back, where this
/// region does not hear of it: two regions of one number would write over each other's rows.
#[test]
fn number_of_an_invitation_that_is_taken_back_is_not_given_again() {
    World::run(3, false, async |world| {
        let mut us = Registry::init(&world.env, "us", NodeId(1), "us:1");
        let old = us.invite("eu").expect("invites");
        assert_eq!(us.remove("eu").expect("there"), Removed::TakenBack);
        assert!(us.remove("eu").is_err(), "that is all");
        let text = us.invite("eu").expect("invites");
        let (_, old) = Registry::join(&old, NodeId(2), "eu:1").expect("joins");
        assert!(us.accept(&old).is_err(), "its name is the other one's");
        let (eu, accepted) = Registry::join(&text, NodeId(3), "eu:1").expect("joins");
        assert_eq!(eu.me(), RegionId(2));
        us.accept(&accepted).expect("accepted");
        let refused = us.accept(&old).expect_err("taken back").to_string();
        assert!(refused.contains("region eu"), "{refused}");
        assert_eq!(us.remove("eu").expect("there"), Removed::LeftOut);
        assert_eq!(us.config(caller(1)).expect("fits").lost, [RegionId(2)]);
        let refused = us.accept(&old).expect_err("taken back").to_string();
        assert!(refused.contains("removed"), "{refused}");
        assert_eq!(us.numbers_left(), MEMBERS - 3);
        for _ in 0..MEMBERS - 3 {
            us.invite("r").expect("a number is left");
            us.remove("r").expect("taken back");
        }
        let refused = us.invite("one more").expect_err("no number is left").to_string();
        assert!(refused.contains("no number is left"), "{refused}");
        assert_eq!(us.numbers_left(), 0);
    });
}

/// `us` and `eu`, which knows of the invitation of ap, and that invitation.
fn with_hearsay(world: &World) -> (Registry, Registry, String) {
    let mut us = Registry::init(&world.env, "us", NodeId(1), "us:1");
    let ap = us.invite("ap").expect("invites");
    let text = us.invite("eu").expect("invites");
    let (eu, accepted) = Registry::join(&text, NodeId(2), "eu:1").expect("joins");
    us.accept(&accepted).expect("accepted");
    (us, eu, ap)
}

/// What a registry says of a region to others.
fn told(registry: &Registry, of: u16) -> String {
    let others = registry.config(caller(1)).expect("fits").others;
    let found = others.into_iter().find(|(id, _)| id.0 == of);
    found.expect("it is told of").1
}

/// An invitation is taken back and given anew, under the same name: who has heard of the first one
/// takes in who has joined with the second, whether the first was taken back there, too, or not.
#[test]
fn region_whose_invitation_was_given_anew_is_taken_in_by_all() {
    World::run(6, false, async |world| {
        for taken_back_there in [false, true] {
            let (mut us, mut eu, old) = with_hearsay(&world);
            us.remove("ap").expect("taken back");
            if taken_back_there {
                assert_eq!(eu.remove("ap").expect("there"), Removed::Refused);
            }
            let text = us.invite("ap").expect("invites");
            let (ap, accepted) = Registry::join(&text, NodeId(3), "ap:1").expect("joins");
            us.hear(&said(ap.me().0, &accepted), false).expect("of itself");
            eu.hear(&said(0, &told(&us, ap.me().0)), false).expect("of ap");
            let config = eu.config(caller(2)).expect("fits");
            let peers: Vec<_> = config.peers.iter().map(|peer| peer.id).collect();
            assert_eq!(peers, [RegionId(0), ap.me()]);
            assert!(config.lost.is_empty());
            // Who joins with the first one is taken in by nobody.
            let (_, late) = Registry::join(&old, NodeId(4), "ap:2").expect("joins");
            assert!(us.accept(&late).is_err() && eu.accept(&late).is_err());
            let again = eu.config(caller(2)).expect("fits").peers;
            assert!(again.iter().map(|peer| peer.id).eq(peers));
        }
    });
}

/// Whoever was refused before it was known to have joined has sent something to others: it is left
/// out as one that has joined, and those that stay exchange what they have of it.
#[test]
fn region_that_has_joined_elsewhere_before_it_was_refused_is_closed() {
    World::run(7, false, async |world| {
        // It has joined us, where eu has not heard of it; and eu, where us has not.
        let (us, eu, text) = with_hearsay(&world);
        let (_, of_ap) = Registry::join(&text, NodeId(3), "ap:1").expect("joins");
        for (mut here, mut there, done) in
            [(eu.clone(), us.clone(), Removed::Refused), (us, eu, Removed::TakenBack)]
        {
            there.hear(&said(1, &of_ap), false).expect("of itself");
            assert_eq!(here.remove("ap").expect("there"), done);
            assert!(here.config(caller(1)).expect("fits").lost.is_empty());
            here.hear(&said(there.me().0, &told(&there, 1)), false).expect("of ap");
            let config = here.config(caller(1)).expect("fits");
            assert_eq!((config.peers.len(), &config.lost[..]), (1, &[RegionId(1)][..]));
            let once = here.clone();
            here.hear(&said(there.me().0, &told(&there, 1)), false).expect("of ap");
            assert_eq!(here, once);
            // The other one is told by a person, and not by this one.
            there.hear(&said(here.me().0, &told(&here, 1)), false).expect("taken");
            assert!(there.config(caller(1)).expect("fits").lost.is_empty());
            assert_eq!(there.remove("ap").expect("there"), Removed::LeftOut);
            assert_eq!(there.config(caller(1)).expect("fits").lost, [RegionId(1)]);
        }
    });
}

/// A region is left out where nobody has told of it yet.
#[test]
fn removal_of_a_region_that_is_not_known_yet_is_to_be_said_again() {
    World::run(8, false, async |world| {
        let mut us = Registry::init(&world.env, "us", NodeId(1), "us:1");
        let texts = ["eu", "ap"].map(|name| us.invite(name).expect("invites"));
        let (mut eu, of_eu) = Registry::join(&texts[0], NodeId(2), "eu:1").expect("joins");
        let (_, of_ap) = Registry::join(&texts[1], NodeId(3), "ap:1").expect("joins");
        us.accept(&of_eu).expect("accepted");
        us.accept(&of_ap).expect("accepted");
        for refused in [eu.remove("ap").map(|_| ()), eu.remove_lost("ap", None)] {
            let refused = refused.expect_err("not known").to_string();
            assert!(refused.contains("run this again when the list shows it"), "{refused}");
        }
        eu.hear(&said(0, &told(&us, 2)), false).expect("of ap");
        assert_eq!(eu.remove("ap").expect("there"), Removed::LeftOut);
        let refused = eu.remove("ap").expect_err("that is all").to_string();
        assert!(refused.contains("left out here already"), "{refused}");
    });
}

/// A region of whose leaving an older version has not taken the rest is left out once more.
#[test]
fn region_that_has_left_is_given_up_by_all_also_when_it_was_removed_before() {
    World::run(4, false, async |world| {
        let bucket = bucket(&world);
        let mut us = Registry::init(&world.env, "us", NodeId(1), "us:1");
        let text = us.invite("eu").expect("invites");
        let (_, accepted) = Registry::join(&text, NodeId(2), "eu:1").expect("joins");
        us.accept(&accepted).expect("accepted");
        us.remove("eu").expect("there");
        us.save(&bucket, 0).await.expect("saved");
        let key = "regions/registry/0000000000000001";
        let stored = bucket.get(telesto_bucket::Cause::Admin, key, None).await.expect("read");
        let body = stored.expect("there").body;
        let before = std::str::from_utf8(&body).expect("text").replace("lost = true\n", "");
        assert_ne!(before.as_bytes(), body);
        let next = "regions/registry/0000000000000002";
        let put = bucket.put_if_absent(telesto_bucket::Cause::Admin, next, before.into()).await;
        put.expect("put");
        let (_, mut older) = Registry::load(&bucket).await.expect("reads").expect("there");
        assert!(older.config(caller(1)).expect("fits").lost.is_empty());
        older.remove("eu").expect("once more");
        assert_eq!(older.config(caller(1)).expect("fits").lost, [RegionId(1)]);
        assert!(older.remove("eu").is_err(), "that is all");
    });
}

/// What a region says of a third one adds to what is known, and changes nothing; but in a region
/// that opens.
#[test]
fn what_is_said_of_a_third_region_makes_it_known_and_changes_nothing() {
    World::run(5, false, async |world| {
        let mut us = Registry::init(&world.env, "us", NodeId(1), "us:1");
        let texts = ["eu", "ap"].map(|name| us.invite(name).expect("invites"));
        let (mut eu, of_eu) = Registry::join(&texts[0], NodeId(2), "eu:1").expect("joins");
        let (mut ap, of_ap) = Registry::join(&texts[1], NodeId(3), "ap:1").expect("joins");
        us.hear(&said(1, &of_eu), false).expect("of itself");
        us.hear(&said(2, &of_ap), false).expect("of itself");
        let others = us.config(caller(1)).expect("fits").others;
        let ids: Vec<_> = others.iter().map(|(id, _)| id.0).collect();
        assert_eq!(ids, [1, 2]);
        eu.hear(&said(0, &others[1].1), false).expect("of ap");
        ap.hear(&said(0, &others[0].1), true).expect("of eu");
        assert_eq!(eu.config(caller(2)).expect("fits").peers.len(), 2);
        assert_eq!(ap.config(caller(3)).expect("fits").peers.len(), 2);
        // Of what is known nothing changes, whatever is said; not by one that speaks from another
        // node, either.
        let (_, twice) = Registry::join(&texts[1], NodeId(4), "ap:2").expect("joins twice");
        let before = eu.clone();
        eu.hear(&said(0, &of_ap), false).expect("known");
        eu.hear(&said(0, &of_eu), false).expect("of this one");
        for by in [0, 2] {
            let refused = eu.hear(&said(by, &twice), false).expect_err("known").to_string();
            assert!(refused.contains("used twice"), "{refused}");
        }
        assert_eq!(eu, before);
        // Who is left out is said by a person; one that opens has nothing of it.
        us.remove_lost("eu", None).expect("there");
        let others = us.config(caller(1)).expect("fits").others;
        let mut opening = ap.clone();
        ap.hear(&said(0, &others[0].1), false).expect("taken");
        assert_eq!(ap.config(caller(3)).expect("fits").peers.len(), 2);
        opening.hear(&said(0, &others[0].1), true).expect("taken");
        let config = opening.config(caller(3)).expect("fits");
        assert_eq!((config.peers.len(), &config.lost[..]), (1, &[RegionId(1)][..]));
        assert!(opening.accept(&of_eu).is_err(), "it was removed");
    });
}
