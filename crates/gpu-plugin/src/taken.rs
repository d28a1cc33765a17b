//! Whether GPUs that were chosen for a container are others' already.
//!
//! What was chosen is written on the pod, where whoever may change the pod can write something else, and a pod that names its node
//! itself has seen no extender. What was granted is the plugin's own word, in the kubelet's checkpoint: by that a container gets no
//! GPU of which others have too much. A pod that has ended, or is there no more, has none.

use carrack_gpu_extender::CORES;
use carrack_gpu_extender::demand::Want;
use carrack_types::pod::is_terminal;
use carrack_types::resource::Object as _;

use crate::checkpoint::Held;
use crate::owner::{CORES_GRANTED, Grant, Known, VISIBLE};

/// What a container was granted: its GPUs, and how much of each.
fn granted(held: &Held) -> Option<(Vec<&str>, u64)> {
    let env = held.env.as_ref()?;
    let uuids: Vec<&str> = env.get(VISIBLE)?.split(',').collect();
    let cores: u64 = env.get(CORES_GRANTED)?.parse().ok()?;
    let each = cores / u64::try_from(uuids.len()).ok()?.max(1);
    Some((uuids, each))
}

/// What is to be granted, unless others have it.
///
/// # Errors
/// Which GPU is theirs.
pub(crate) fn checked(known: Known<'_>, grant: Grant) -> Result<Grant, String> {
    let is_anothers = |held: &&Held| {
        let pod = known.pods.iter().find(|pod| pod.uid() == held.uid);
        pod.is_some_and(|pod| !is_terminal(pod) && format!("{}/{}", pod.namespace(), pod.name()) != grant.pod)
    };
    let others: Vec<(Vec<&str>, u64)> = known.held.iter().filter(is_anothers).filter_map(granted).collect();
    let wanted = match grant.want {
        Want::Share { cores, .. } => u64::from(cores),
        Want::Whole(_) => u64::from(CORES),
    };
    for gpu in grant.gpus.iter().filter_map(|number| known.inventory.gpus.get(*number)) {
        let of_it = others.iter().filter(|(uuids, _)| uuids.contains(&gpu.uuid.as_str()));
        let used = of_it.map(|(_, cores)| *cores).fold(0, u64::saturating_add);
        if used.saturating_add(wanted) > u64::from(CORES) {
            let (uuid, container, pod) = (&gpu.uuid, &grant.container, &grant.pod);
            return Err(format!("GPU {uuid}, which is written down for container {container} of {pod}, is others'"));
        }
    }
    Ok(grant)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use carrack_gpu_extender::Names;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::inventory::Inventory;

    fn pod(name: &str, phase: &str) -> Pod {
        let metadata = json!({"namespace": "d", "name": name, "uid": name});
        serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).expect("a pod")
    }

    fn held(uid: &str, visible: &str, cores: &str) -> Held {
        let env = [(VISIBLE, visible), (CORES_GRANTED, cores)].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let ids = BTreeSet::new();
        Held { uid: uid.into(), container: "c".into(), ids, env: Some(BTreeMap::from(env)) }
    }

    #[test]
    fn nobody_gets_what_others_were_granted() {
        let (names, inventory) = (Names::default(), Inventory::made_up("2x1Gi").expect("GPUs"));
        let pods = [pod("own", "Pending"), pod("other", "Running"), pod("over", "Succeeded")];
        let (share, whole) = (|cores| Want::Share { cores, memory: 1 }, Want::Whole(1));
        for (noted, want, is_free) in [
            (vec![], whole, true),
            (vec![held("other", "GPU-fake-0", "100")], share(1), false),
            (vec![held("other", "GPU-fake-1", "100")], whole, true),
            (vec![held("other", "GPU-fake-0,GPU-fake-1", "200")], whole, false),
            (vec![held("other", "GPU-fake-0", "60")], share(40), true),
            (vec![held("other", "GPU-fake-0", "60")], share(41), false),
            (vec![held("other", "GPU-fake-0", "60")], whole, false),
            // Its own init container hands it on, and who has ended or is gone has nothing.
            (vec![held("own", "GPU-fake-0", "100")], whole, true),
            (vec![held("over", "GPU-fake-0", "100"), held("gone", "GPU-fake-0", "100")], whole, true),
        ] {
            let known = Known { names: &names, node: "n", pods: &pods, held: &noted, inventory: &inventory };
            let grant = Grant { pod: "d/own".into(), container: "c".into(), gpus: vec![0], gone: vec![], want };
            assert_eq!(checked(known, grant).is_ok(), is_free, "{noted:?} {want:?}");
        }
    }
}
