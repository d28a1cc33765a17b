//! Volumes that were taken from the node while that was not heard.

use super::*;

const ID: &str = "flexvolume-v/d/pv1";

/// A pod of a claim whose volume the control plane attaches.
fn named(uid: &str) -> Pod {
    let mut p = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
    (p.metadata.uid, p.metadata.name) = (Some(uid.to_owned()), Some(uid.to_owned()));
    p
}

/// Lets the node's volumes look at what the Node says, and does what they ask for. Returns what that was, and whether pods are
/// to look again.
fn step(v: &mut Volumes, attached: bool) -> (Vec<&'static str>, bool) {
    step_at(v, Time(0), attached, true)
}

/// The same at a time; what is asked for may fail.
fn step_at(v: &mut Volumes, now: Time, attached: bool, works: bool) -> (Vec<&'static str>, bool) {
    let users = v.users_in_use().remove(ID).unwrap_or_default();
    let told = Told { in_use: true, attached: attached.then(|| "/dev/x".to_owned()), users };
    let mut node = std::mem::take(&mut v.node);
    let uses = v.uses();
    let of = |id: &str| uses.get(id).copied().unwrap_or_default();
    let (actions, newly) = node.step(now, true, of, |_| told.clone());
    let mut did = Vec::new();
    for action in actions {
        let (what, reply) = match &action {
            StageAction::Record(_) => ("record", Reply::Done),
            StageAction::Stage(..) => ("stage", Reply::Staged { device: Some("/dev/x".into()), identity: None }),
            StageAction::Unstage(_) => ("unstage", Reply::Done),
            StageAction::Drop(_) => ("drop", Reply::Done),
        };
        node.started(&action, OpId(1000));
        let outcome = if works { Ok(reply) } else { Err(OpError::Failed("busy".into())) };
        assert_eq!(node.done(now, ID, OpId(1000), &outcome).is_none(), works);
        did.push(what);
    }
    v.node = node;
    (did, !newly.is_empty())
}

/// How many parts a pod gets now.
fn look(v: &mut Volumes, p: &Pod, sources: &Fixed) -> usize {
    let count = v.wanted(Time(0), p, &NodeConfig::default(), &Place::default(), sources).len();
    v.journal_saved(p.metadata.uid.as_deref().unwrap(), 1);
    count
}

/// The volume as a pod `u` has it.
fn had(sources: &Fixed) -> Volumes {
    let (mut v, first) = (Volumes::default(), named("u"));
    for _ in 0..2 {
        look(&mut v, &first, sources);
    }
    for expected in ["record", "stage", "record"] {
        assert_eq!(step(&mut v, true).0, [expected]);
    }
    assert_eq!(look(&mut v, &first, sources), 1);
    v.started("u", "v", OpId(1), Some(VolumeKind::HostPath { path_type: String::new() }));
    assert_eq!(v.done(Time(0), "u", "v", OpId(1), &Ok(Reply::Done)), None);
    v
}

fn attaching() -> Fixed {
    let claimed = claimed("Bound", "c1", "Filesystem", json!({"flexVolume": {"driver": "v/d"}}));
    Fixed { flex_attaches: true, ..claimed }
}

#[test]
fn what_is_still_mounted_is_given_to_nobody_and_undone() {
    let sources = attaching();
    for stays in [true, false] {
        let (mut v, second) = (had(&sources), named("w"));
        v.unwanted(Time(0), "u");
        v.started("u", "v", OpId(2), None);
        assert_eq!(v.done(Time(0), "u", "v", OpId(2), &Ok(Reply::Done)), None);
        for _ in 0..2 {
            assert_eq!(look(&mut v, &second, &sources), 0, "nobody has been told of it");
        }
        let did = step(&mut v, stays).0;
        assert_eq!(did, if stays { vec![] } else { vec!["unstage"] }, "{stays}");
        assert_eq!(look(&mut v, &second, &sources), usize::from(stays));
        if !stays {
            assert_eq!(step(&mut v, false).0, ["record"], "there is no device any more");
            assert_eq!(step(&mut v, false).0, [""; 0]);
            assert_eq!(step(&mut v, true).0, ["stage"]);
            assert_eq!(look(&mut v, &second, &sources), 1);
        }
    }
}

/// What lies there from before is not taken for what is attached since.
#[test]
fn what_could_not_be_undone_is_undone_before_it_is_made_ready() {
    let sources = attaching();
    let (mut v, second) = (had(&sources), named("w"));
    v.unwanted(Time(0), "u");
    v.started("u", "v", OpId(2), None);
    assert_eq!(v.done(Time(0), "u", "v", OpId(2), &Ok(Reply::Done)), None);
    for _ in 0..2 {
        look(&mut v, &second, &sources);
    }
    assert_eq!(step_at(&mut v, Time(0), false, false).0, ["unstage"]);
    assert_eq!(look(&mut v, &second, &sources), 0);
    for expected in ["unstage", "record", "stage"] {
        assert_eq!(step_at(&mut v, Time::from_unix_s(10), true, true).0, [expected]);
    }
    assert_eq!(look(&mut v, &second, &sources), 1);
}

#[test]
fn who_has_a_part_keeps_it() {
    let sources = attaching();
    let (mut v, first, second) = (had(&sources), named("u"), named("w"));
    for _ in 0..2 {
        look(&mut v, &second, &sources);
    }
    assert_eq!(step(&mut v, false).0, [""; 0]);
    assert_eq!(look(&mut v, &second, &sources), 0, "it is not attached");
    assert!(v.ready(&first).is_ok());
    // The Node was made anew, say, and is told of what is attached by and by.
    assert_eq!(step(&mut v, true), (vec![], true));
    assert_eq!(look(&mut v, &second, &sources), 1);
}
