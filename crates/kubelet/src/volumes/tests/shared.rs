//! Volumes of the node that several pods have.

use super::*;

/// Who reads only may come first, and the others have parts of the same mount.
#[test]
fn who_reads_only_keeps_nobody_from_writing() {
    for (modes, is_read_only) in [
        (json!(["ReadWriteOnce"]), false),
        (json!(["ReadOnlyMany", "ReadWriteOnce"]), false),
        (json!(["ReadOnlyMany"]), true),
    ] {
        let p = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}}]));
        let sources = claimed("Bound", "c1", "Filesystem", json!({"local": {"path": "/x"}, "accessModes": modes}));
        let mut v = Volumes::default();
        for at in [1000, 2000] {
            let actions = v.wanted(Time::from_unix_s(at), &p, &NodeConfig::default(), &Place::default(), &sources);
            assert!(actions.is_empty(), "{modes}: it is not there for the node yet");
            v.journal_saved("u", 1);
        }
        let of_node = v.node.get("kubernetes.io/local-volume/pv1").map(|staging| staging.origin.read_only);
        let of_pod = v.origin("u", "v").map(|origin| origin.read_only);
        assert_eq!((of_node, of_pod), (Some(is_read_only), Some(true)), "{modes}");
    }
}
