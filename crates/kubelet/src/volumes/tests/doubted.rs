//! Volumes of CSI drivers that say more than they have done.

use super::*;

use carrack_types::volume::csi_unique_name;

/// Lets the node's volumes do what they ask for. Returns what that was.
fn step(v: &mut Volumes, id: &str) -> Vec<&'static str> {
    let users = v.users_in_use().remove(id).unwrap_or_default();
    let told = Told { in_use: true, attached: None, users };
    let mut node = std::mem::take(&mut v.node);
    let uses = v.uses();
    let of = |id: &str| uses.get(id).copied().unwrap_or_default();
    let (actions, _) = node.step(Time(0), true, of, |_| told.clone());
    let mut did = Vec::new();
    for action in actions {
        let (what, reply) = match &action {
            StageAction::Record(_) => ("record", Reply::Done),
            StageAction::Stage(..) => ("stage", Reply::Staged { device: None, identity: None }),
            StageAction::Unstage(_) => ("unstage", Reply::Done),
            StageAction::Drop(_) => ("drop", Reply::Done),
        };
        node.started(&action, OpId(1000));
        assert_eq!(node.done(Time(0), id, OpId(1000), &Ok(reply)), None);
        did.push(what);
    }
    v.node = node;
    did
}

/// A driver that says that a volume is staged is asked once more when it can give nobody a part of it; and is not where somebody
/// has one, since it is there then.
#[test]
fn a_volume_of_which_nobody_gets_a_part_is_staged_anew() {
    let named = |uid: &str| -> Pod {
        let mut p = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
        (p.metadata.uid, p.metadata.name) = (Some(uid.to_owned()), Some(uid.to_owned()));
        p
    };
    let (first, second, id) = (named("u"), named("w"), csi_unique_name("d", "h"));
    let mut sources = claimed("Bound", "c1", "Filesystem", json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
    sources.objects.push(json!({"kind": "CSIDriver", "metadata": {"name": "d"}, "spec": {"attachRequired": false}}));
    let mut v = Volumes::default();
    let look = |v: &mut Volumes, s: i64, p: &Pod| {
        let count = v.wanted(Time::from_unix_s(s), p, &NodeConfig::default(), &Place::default(), &sources).len();
        v.journal_saved(p.metadata.uid.as_deref().unwrap(), 1);
        count
    };
    let publish = |v: &mut Volumes, uid: &str, works: bool| {
        v.started(uid, "v", OpId(1), Some(VolumeKind::HostPath { path_type: String::new() }));
        let outcome = if works { Ok(Reply::Done) } else { Err(OpError::Failed("nothing is there".into())) };
        assert_eq!(v.done(Time(0), uid, "v", OpId(1), &outcome).is_none(), works);
    };
    for _ in 0..2 {
        assert_eq!(look(&mut v, 0, &first), 0);
    }
    for expected in ["record", "stage"] {
        assert_eq!(step(&mut v, &id), [expected]);
    }
    assert_eq!(look(&mut v, 0, &first), 1);
    publish(&mut v, "u", false);
    assert_eq!(look(&mut v, 9, &first), 0, "it waits until the volume is staged");
    assert_eq!(step(&mut v, &id), ["stage"]);
    assert_eq!(look(&mut v, 9, &first), 1);
    publish(&mut v, "u", true);
    for _ in 0..2 {
        assert_eq!(look(&mut v, 9, &second), 0);
    }
    assert_eq!(step(&mut v, &id), [""; 0]);
    assert_eq!(look(&mut v, 9, &second), 1);
    publish(&mut v, "w", false);
    assert_eq!(step(&mut v, &id), [""; 0], "the first has its part");
    assert_eq!(look(&mut v, 99, &second), 1);
}
