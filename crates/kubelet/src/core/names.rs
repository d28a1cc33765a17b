//! What is told of the name resolution that pods get (upstream: `pkg/kubelet/network/dns`).

use carrack_engine::{EventRecord, Time};

use super::worker::Worker;
use super::{Fx, KubeletCore};
use crate::spec::sandbox;

impl KubeletCore {
    /// A pod's sandbox is about to be made: whoever looks at the pod is told what it does not get of what it is to resolve names with.
    ///
    /// Upstream warns of each pod as well that has the node's name servers since nobody has told the kubelet the cluster's
    /// (`MissingClusterDNS`): here a cluster need not have any, and a pod's normal life has no warnings.
    pub(super) fn tell_of_names(&mut self, now: Time, w: &Worker, fx: &mut Fx) {
        for message in sandbox::dns_troubles(&w.pod, &self.config, &self.host.resolver) {
            self.event(now, EventRecord::warning(w.pod.as_ref(), "DNSConfigForming", message), fx);
        }
    }
}
