//! Regions by hand: every message is carried by the test.

use bytes::Bytes;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_geo::{
    Address, Attach, Envelope, Error, Message, Outgoing, PlaneConfig, PlaneKind, Region,
    RegionConfig, RegionOutput, RegionSet, SerializerId, Tree, TreeLabel,
};

const START: u64 = 1_000_000;

fn region(me: u16, members: usize, plane: PlaneConfig) -> Region {
    let me = RegionId(me);
    Region::new(&RegionConfig { me, members, plane, planted: None }, START).expect("a region")
}

fn regions(members: u16, kind: PlaneKind) -> Vec<Region> {
    (0..members).map(|me| region(me, usize::from(members), PlaneConfig::new(kind))).collect()
}

fn set(regions: &[u16]) -> RegionSet {
    regions.iter().map(|region| RegionId(*region)).collect()
}

/// Commits and returns the label and what is to be carried.
fn commit(region: &mut Region, now: u64, placement: &[u16]) -> (Label, Vec<Outgoing>) {
    let mut out = RegionOutput::default();
    let label = region.commit(now, 1, set(placement), Bytes::from_static(b"w"), &mut out);
    (label, out.send)
}

fn carry(from: u16, region: &mut Region, now: u64, message: &Outgoing) -> RegionOutput {
    let mut out = RegionOutput::default();
    let from = Address::Region(RegionId(from));
    region.receive(now, from, message.bytes.clone(), &mut out).expect("a correct peer");
    out
}

fn labels(out: &RegionOutput) -> Vec<Label> {
    out.apply.iter().map(|transaction| transaction.label).collect()
}

/// x goes from 0 to 3 only; its effect goes 0, 1, 2 and from there to 3. No region on that way has
/// x.
fn around(kind: PlaneKind) -> (Vec<Label>, Vec<Label>, [Label; 2]) {
    let mut r = regions(4, kind);
    let (x, late) = commit(&mut r[0], START + 1, &[0, 3]);
    let (_, y) = commit(&mut r[0], START + 2, &[0, 1]);
    assert_eq!(labels(&carry(0, &mut r[1], START + 3, &y[0])).len(), 1);
    let (_, z) = commit(&mut r[1], START + 4, &[1, 2]);
    assert_eq!(labels(&carry(1, &mut r[2], START + 5, &z[0])).len(), 1);
    let (w, early) = commit(&mut r[2], START + 6, &[2, 3]);
    let before = labels(&carry(2, &mut r[3], START + 7, &early[0]));
    let after = labels(&carry(0, &mut r[3], START + 8, &late[0]));
    (before, after, [x, w])
}

#[test]
fn matrix_waits_for_a_cause_that_no_region_on_the_way_has() {
    let (before, after, causal) = around(PlaneKind::Matrix);
    assert_eq!(before, []);
    assert_eq!(after, causal);
}

#[test]
fn eventual_does_not_wait() {
    let (before, after, [x, w]) = around(PlaneKind::Eventual);
    assert_eq!((before, after), (vec![w], vec![x]));
}

#[test]
fn matrix_waits_for_nothing_concurrent_and_says_each_count_once() {
    let mut r = regions(3, PlaneKind::Matrix);
    let (_, slow) = commit(&mut r[0], START + 1, &[0, 2]);
    let (_, quick) = commit(&mut r[1], START + 2, &[1, 2]);
    assert_eq!(labels(&carry(1, &mut r[2], START + 3, &quick[0])).len(), 1);
    assert_eq!(labels(&carry(0, &mut r[2], START + 4, &slow[0])).len(), 1);
    // What 1 has of 0's, 2 must have too: its next transaction to 2 says so, the one after that
    // need not.
    let (_, both) = commit(&mut r[0], START + 5, &[0, 1, 2]);
    carry(0, &mut r[1], START + 6, &both[0]);
    let (_, first) = commit(&mut r[1], START + 7, &[1, 2]);
    let (_, second) = commit(&mut r[1], START + 8, &[1, 2]);
    assert_eq!((first[0].metadata_bytes, second[0].metadata_bytes), (15, 13));
}

#[test]
fn session_is_attached_by_what_was_sent_after_its_token_and_not_by_what_was_sent_before() {
    for kind in [PlaneKind::Matrix, PlaneKind::Timestamp] {
        let mut r = regions(2, kind);
        let beat = |r: &mut Region, now| {
            let mut out = RegionOutput::default();
            r.tick(now, &mut out);
            out.send.remove(0)
        };
        let before = beat(&mut r[0], START + 60_000);
        let token = r[0].token(START + 10);
        carry(0, &mut r[1], START + 60_001, &before);
        let Ok(Attach::Waiting(id)) = r[1].attach(&token) else {
            panic!("{kind}: attached by a beat from before its token");
        };
        let after = beat(&mut r[0], START + 120_000);
        assert_eq!(carry(0, &mut r[1], START + 120_001, &after).attached, [id]);
        // What the session writes now is above what it saw.
        assert!(commit(&mut r[1], START, &[1]).0.timestamp > token.timestamp);
    }
}

#[test]
fn announced_session_is_attached_by_its_announcement() {
    for kind in [PlaneKind::Matrix, PlaneKind::Timestamp] {
        let mut r = regions(2, kind);
        let mut out = RegionOutput::default();
        let token = r[0].migrate(START + 1, RegionId(1), &mut out).unwrap();
        let Ok(Attach::Waiting(id)) = r[1].attach(&token) else { panic!("{kind}: too early") };
        assert_eq!(carry(0, &mut r[1], START + 2, &out.send[0]).attached, [id]);
        assert_eq!(r[1].attach(&token), Ok(Attach::Ready));
    }
}

/// A label whose source has taken something by time waits until time is stable past that here too.
#[test]
fn tree_label_with_a_floor_waits_until_time_is_stable_past_it() {
    let tree = Tree::star(3, RegionId(0));
    let mut two = region(2, 3, PlaneConfig::tree(tree));
    let mut one = region(1, 3, PlaneConfig::new(PlaneKind::Eventual));
    let (y, sent) = commit(&mut one, START + 50, &[1, 2]);
    assert_eq!(labels(&carry(1, &mut two, START + 51, &sent[0])), []);
    let floor = Timestamp::from_wall_micros(START + 40);
    let label = TreeLabel { label: y, interest: set(&[2]), floor };
    let message = Message::Label { epoch: 0, label };
    let (bytes, _) = Envelope { generation: 0, message }.encode();
    let serializer = Address::Serializer(SerializerId { epoch: 0, index: 0 });
    let mut out = RegionOutput::default();
    two.receive(START + 52, serializer, bytes, &mut out).unwrap();
    assert_eq!(labels(&out), [], "region 0 has not passed the floor");
    // The cause, which no label announced; then 0's time passes the floor.
    let mut zero = region(0, 3, PlaneConfig::new(PlaneKind::Timestamp));
    let (x, _) = commit(&mut zero, START + 30, &[0, 2]);
    let message = Message::Payload {
        label: x,
        meta: telesto_geo::Meta::None,
        data: Bytes::from_static(b"x"),
    };
    let (bytes, _) = Envelope { generation: 0, message }.encode();
    two.receive(START + 53, Address::Region(RegionId(0)), bytes, &mut out).unwrap();
    assert_eq!(labels(&out), []);
    let at = Timestamp::from_wall_micros(START + 45);
    let message = Message::Beat { at, meta: telesto_geo::Meta::None };
    let (bytes, _) = Envelope { generation: 0, message }.encode();
    two.receive(START + 54, Address::Region(RegionId(0)), bytes, &mut out).unwrap();
    assert_eq!(labels(&out), [x, y]);
}

#[test]
fn change_of_planes_holds_the_new_plane_back_until_the_old_one_is_empty() {
    let mut r = regions(3, PlaneKind::Matrix);
    let (old, slow) = commit(&mut r[0], START + 1, &[0, 2]);
    let plane = PlaneConfig::new(PlaneKind::Eventual);
    let mut marks = Vec::new();
    for region in &mut r {
        let mut out = RegionOutput::default();
        region.change_plane(START + 2, 1, &plane, &mut out).unwrap();
        marks.push(out.send);
    }
    let to_two = |sent: &[Outgoing]| {
        sent.iter().find(|o| o.to == Address::Region(RegionId(2))).cloned().unwrap()
    };
    carry(1, &mut r[2], START + 3, &to_two(&marks[1]));
    let (new, sent) = commit(&mut r[1], START + 4, &[1, 2]);
    assert_eq!(labels(&carry(1, &mut r[2], START + 5, &sent[0])), []);
    assert_eq!(r[2].pending(), 1);
    // A session that saw it must not be attached by the old plane.
    let token = r[1].token(START + 6);
    assert!(matches!(r[2].attach(&token), Ok(Attach::Waiting(_))));
    assert_eq!(labels(&carry(0, &mut r[2], START + 7, &slow[0])), [old]);
    let out = carry(0, &mut r[2], START + 8, &to_two(&marks[0]));
    assert_eq!(labels(&out), [new]);
    assert_eq!(out.attached.len(), 1);
    assert_eq!((r[2].plane(), r[2].generation()), (PlaneKind::Eventual, (1, false)));
}

#[test]
fn lone_region_changes_trees_at_once() {
    let mut r = region(0, 1, PlaneConfig::tree(Tree::star(1, RegionId(0))));
    let mut out = RegionOutput::default();
    r.change_tree(START, Tree::star(1, RegionId(0)).with_epoch(3), &mut out).unwrap();
    assert_eq!(r.epoch(), Some((3, false)));
}

#[test]
fn what_is_out_of_turn_is_refused() {
    let plane = PlaneConfig::new(PlaneKind::Matrix);
    let config = RegionConfig { me: RegionId(0), members: 17, plane: plane.clone(), planted: None };
    assert!(matches!(Region::new(&config, START), Err(Error::TooManyRegions { limit: 16, .. })));
    let mut r = region(0, 2, plane.clone());
    let mut out = RegionOutput::default();
    let refused = r.change_plane(START, 2, &plane, &mut out);
    assert!(matches!(refused, Err(Error::ChangeRefused { asked: 2, .. })));
    let refused = r.change_tree(START, Tree::star(2, RegionId(0)), &mut out);
    assert!(matches!(refused, Err(Error::NoTree { plane: "matrix" })));
    let nowhere = Label::update(RegionId(2), Timestamp(1));
    assert!(matches!(r.attach(&nowhere), Err(Error::UnknownRegion { members: 2, .. })));
    let garbage = Bytes::from_static(b"\x09");
    assert!(r.receive(START, Address::Region(RegionId(1)), garbage, &mut out).is_err());
}
