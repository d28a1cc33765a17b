//! What is told of an instance, in whatever phase it is. (Upstream: `vmistats_collector.go`.)

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_types::kubevirt::VirtualMachineInstance;
use carrack_types::kubevirt::vmi::VirtualMachineInstanceStatus;
use carrack_types::resource::Object as _;
use carrack_types::well_known::kubevirt::OUTDATED_LAUNCHER_IMAGE_LABEL;

use super::machines::{ANNOTATIONS, family};
use crate::exposition::{Family, Page};
use crate::identity::launcher_pod_name;

const INFO: &str = "kubevirt_vmi_info";
/// How many there are that are alike. Upstream has Prometheus count them by rules, under today's name and the one before.
const SUMS: [&str; 2] = ["node:kubevirt_vmi_phase:sum", "kubevirt_vmi_phase_count"];
/// The labels by which they are.
const ALIKE: [&str; 12] = [
    "node",
    "phase",
    "os",
    "workload",
    "flavor",
    "instance_type",
    "preference",
    "guest_os_kernel_release",
    "guest_os_machine",
    "guest_os_arch",
    "guest_os_name",
    "guest_os_version_id",
];

pub(super) const FAMILIES: [Family; 3] = [
    family(INFO, "gauge", "Information about VirtualMachineInstances."),
    family(SUMS[0], "gauge", "Sum of VMIs per phase and node."),
    family(SUMS[1], "gauge", "[Deprecated] Replaced by node:kubevirt_vmi_phase:sum."),
];

/// An instance, as the labels that say something of it. A copy of it has the same words.
#[derive(Clone)]
pub(super) struct Instance(Arc<[(&'static str, String)]>);

impl Instance {
    /// What is told of an instance.
    pub fn of(vmi: &VirtualMachineInstance) -> Self {
        let unset = VirtualMachineInstanceStatus::default();
        let status = vmi.status.as_ref().unwrap_or(&unset);
        let (node, os) = (&status.node_name, &status.guest_os_info);
        let annotation = |name: &str| vmi.annotation(name).unwrap_or_default().to_owned();
        let described = |what: &str| annotation(&format!("{ANNOTATIONS}{what}"));
        // Its own, or the cluster's.
        let chosen = |what: &str| {
            let own = annotation(&format!("kubevirt.io/{what}-name"));
            if own.is_empty() { annotation(&format!("kubevirt.io/cluster-{what}-name")) } else { own }
        };
        let has_pod = !node.is_empty() && status.active_pods.values().any(|place| place == node);
        let must_migrate = vmi.spec.eviction_strategy.as_deref() == Some("LiveMigrate");
        let evictable = !must_migrate || vmi.is_true("LiveMigratable");
        let labels = [
            ("node", node.clone()),
            ("namespace", vmi.namespace().to_owned()),
            ("name", vmi.name().to_owned()),
            ("phase", status.phase.to_lowercase()),
            ("os", described("os")),
            ("workload", described("workload")),
            ("flavor", described("flavor")),
            ("instance_type", chosen("instancetype")),
            ("preference", chosen("preference")),
            ("guest_os_kernel_release", os.kernel_release.clone()),
            (
                "guest_os_machine",
                status.machine.as_ref().and_then(|machine| machine.r#type.clone()).unwrap_or_default(),
            ),
            ("guest_os_arch", os.machine.clone()),
            ("guest_os_name", os.name.clone()),
            ("guest_os_version_id", os.version_id.clone()),
            ("evictable", evictable.to_string()),
            ("outdated", vmi.label(OUTDATED_LAUNCHER_IMAGE_LABEL).is_some().to_string()),
            ("vmi_pod", if has_pod { launcher_pod_name(vmi.name(), vmi.uid()) } else { String::new() }),
        ];
        Self(labels.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }

    /// Tells of it.
    pub fn tell(&self, page: &mut Page) {
        let labels: Vec<(&str, &str)> = self.labels().collect();
        page.add(INFO, &labels, 1.0);
    }

    fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

/// Tells how many there are in each phase on each node.
pub(super) fn count<'a>(instances: impl Iterator<Item = &'a Instance>, page: &mut Page) {
    let mut sums: BTreeMap<Vec<(&str, &str)>, u32> = BTreeMap::new();
    for instance in instances {
        *sums.entry(instance.labels().filter(|(name, _)| ALIKE.contains(name)).collect()).or_default() += 1;
    }
    for sum in SUMS {
        sums.iter().for_each(|(labels, count)| page.add(sum, labels, f64::from(*count)));
    }
}
