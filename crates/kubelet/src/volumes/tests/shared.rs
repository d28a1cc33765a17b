//! Volumes of the node that several pods have.

use super::*;

/// Who reads only may come first, and the others have parts of the same mount.
#[test]
fn who_reads_only_keeps_nobody_from_writing() {
    let local = ("kubernetes.io/local-volume/pv1", json!({"local": {"path": "/x"}}));
    let flex = ("flexvolume-v/d/pv1", json!({"flexVolume": {"driver": "v/d"}}));
    let read_only = ("flexvolume-v/d/pv1", json!({"flexVolume": {"driver": "v/d", "readOnly": true}}));
    for ((unique, volume), modes, is_read_only) in [
        (&local, json!(["ReadWriteOnce"]), false),
        (&local, json!(["ReadOnlyMany", "ReadWriteOnce"]), false),
        (&local, json!(["ReadOnlyMany"]), true),
        (&flex, json!(["ReadWriteOnce"]), false),
        (&flex, json!(["ReadOnlyMany"]), true),
        // Nobody writes to this one.
        (&read_only, json!(["ReadWriteOnce"]), true),
    ] {
        let p = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}}]));
        let mut source = volume.clone();
        source["accessModes"] = modes.clone();
        let sources = claimed("Bound", "c1", "Filesystem", source);
        let mut v = Volumes::default();
        for at in [1000, 2000] {
            let actions = v.wanted(Time::from_unix_s(at), &p, &NodeConfig::default(), &Place::default(), &sources);
            assert!(actions.is_empty(), "{modes}: it is not there for the node yet");
            v.journal_saved("u", 1);
        }
        let of_node = v.node.get(unique).map(|staging| staging.origin.read_only);
        let of_pod = v.origin("u", "v").map(|origin| origin.read_only);
        assert_eq!((of_node, of_pod), (Some(is_read_only), Some(true)), "{volume} {modes}");
    }
}
