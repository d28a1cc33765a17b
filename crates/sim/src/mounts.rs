//! What kubelets take for mounted, beside what is.

use carrack_kubelet::KubeletCore;

use crate::invariants::Breach;
use crate::node::Node;
use crate::observer::{Observer, deleting, text, uid};

/// Checks what a kubelet knows after a step. A pod that has ended or is to go is left out: a call of a kubelet that has died
/// since may still unmount what is its.
pub(crate) fn known(core: &KubeletCore, node: &Node, observer: &Observer, breaches: &mut Vec<Breach>) {
    let stays = |of: &str| {
        let mut pods = observer.all("pod");
        pods.any(|pod| uid(pod) == of && !deleting(pod) && text(pod, "/spec/restartPolicy") == "Always")
    };
    for (of, path) in core.mounts() {
        if !node.disk.has(of, path) && stays(of) {
            let what = format!("node{}'s kubelet takes {path} of pod {of} for mounted, and it is not", node.number);
            breaches.push(Breach::new("known-mounts-are-there", what));
        }
    }
}
