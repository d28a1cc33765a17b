//! Volumes that one pod at a time may have.

use super::*;

/// What one pod at a time may have is not given to a second one of the node, whoever has let that be placed there.
#[test]
fn a_volume_for_one_pod_is_given_to_one() {
    for (modes, second_gets_it) in [
        (json!(["ReadWriteOncePod"]), false),
        (json!(["ReadWriteOnce"]), true),
        // Which of them a pod means is not known.
        (json!(["ReadWriteOncePod", "ReadOnlyMany"]), true),
    ] {
        let named = |uid: &str| -> Pod {
            let mut p = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
            (p.metadata.uid, p.metadata.name) = (Some(uid.to_owned()), Some(uid.to_owned()));
            p
        };
        let (first, second) = (named("u"), named("w"));
        let sources = claimed("Bound", "c1", "Filesystem", json!({"local": {"path": "/x"}, "accessModes": modes}));
        let mut v = Volumes::default();
        let mut at = 0;
        let mut look = |v: &mut Volumes, p: &Pod| {
            at += 1000;
            v.wanted(Time::from_unix_s(at), p, &NodeConfig::default(), &Place::default(), &sources).len()
        };
        for p in [&first, &second] {
            look(&mut v, p);
            v.journal_saved(p.metadata.uid.as_deref().unwrap(), 1);
        }
        let id = "kubernetes.io/local-volume/pv1";
        look(&mut v, &first);
        let there = staged_at(&mut v, id);
        assert!(there, "{modes}");
        assert_eq!(look(&mut v, &first), 1, "{modes}");
        v.started("u", "v", OpId(1), Some(VolumeKind::HostPath { path_type: String::new() }));
        assert_eq!(look(&mut v, &second), usize::from(second_gets_it), "{modes}: the first is about to have it");
        assert_eq!(v.done(Time(0), "u", "v", OpId(1), &Ok(Reply::Done)), None);
        assert_eq!(look(&mut v, &second), usize::from(second_gets_it), "{modes}: the first has it");
        let why = v.ready(&second).unwrap_err().remove(0).1.unwrap_or_default();
        assert_eq!(why.contains("already in use by another pod"), !second_gets_it, "{modes}: {why}");
        assert_eq!(v.next_retry("w"), None, "{modes}: it is looked at when the first has let go, and not later");
        v.unwanted(Time(0), "u");
        v.started("u", "v", OpId(2), None);
        assert_eq!(v.done(Time(0), "u", "v", OpId(2), &Ok(Reply::Done)), None);
        assert_eq!(look(&mut v, &second), 1, "{modes}: nobody has it any more");
    }
}

/// Makes a volume of the node ready, whatever that takes. Returns whether it is then.
fn staged_at(v: &mut Volumes, id: &str) -> bool {
    let told = || Told { in_use: true, ..Told::default() };
    for op in 10..20 {
        for action in v.node.step(Time(0), true, |_| USED, |_| told()).0 {
            let reply = match &action {
                StageAction::Stage(..) => Reply::Staged { device: None, identity: None },
                _ => Reply::Done,
            };
            v.node.started(&action, OpId(op));
            assert_eq!(v.node.done(Time(0), id, OpId(op), &Ok(reply)), None);
            if matches!(action, StageAction::Stage(..)) {
                return true;
            }
        }
    }
    false
}
