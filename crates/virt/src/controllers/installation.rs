//! Says on the KubeVirt object that virtual machines can be had.
//!
//! Upstream's operator installs its components and then sets condition Available, for which install scripts wait
//! (`kubectl wait kubevirt kubevirt --for condition=Available`). Here the components are this program; while its
//! controllers run, they are there.

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::kubevirt::{Condition, KubeVirt, set_condition};
use serde_json::json;

use crate::KUBEVIRT_VERSION;
use crate::diff::merge_patch;

/// Keeps the status of the KubeVirt object.
pub struct InstallationController;

impl Controller for InstallationController {
    fn name(&self) -> &'static str {
        "kubevirt"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<KubeVirt>();
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(installation) = view.get::<KubeVirt>(&key.namespace, &key.name) else { return Plan::none() };
        let old = installation.status.clone().unwrap_or_default();
        let mut new = old.clone();
        "Deployed".clone_into(&mut new.phase);
        for version in
            [&mut new.observed_kube_virt_version, &mut new.target_kube_virt_version, &mut new.operator_version]
        {
            KUBEVIRT_VERSION.clone_into(version);
        }
        new.observed_generation = installation.metadata.generation.unwrap_or(0);
        for (kind, status, reason, message) in [
            ("Available", "True", "AllComponentsReady", "All components are ready."),
            ("Created", "True", "AllResourcesCreated", "All resources were created."),
            ("Progressing", "False", "AllComponentsReady", "All components are ready."),
            ("Degraded", "False", "AllComponentsReady", "All components are ready."),
        ] {
            set_condition(&mut new.conditions, Condition::new(kind, status, reason, message), &now.meta());
        }
        match merge_patch(&old, &new) {
            Some(patch) => Plan::none().patch_status(installation.as_ref(), json!({"status": patch})),
            None => Plan::none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use carrack_engine::{Controller, Key, Time, Write};
    use carrack_types::kubevirt::KubeVirt;
    use serde_json::{Value, json};

    use super::InstallationController;

    #[test]
    fn says_so_once() {
        let plan = |status: Value| {
            let object: KubeVirt = carrack_types::json::from_value(json!({
                "metadata": {"name": "kubevirt", "namespace": "kubevirt", "uid": "u", "generation": 1}, "status": status}))
            .expect("an installation");
            let caches = Caches::new().with([object]);
            InstallationController.reconcile(&Key::new("kubevirt", "kubevirt"), &caches.view(), Time::from_unix_s(9))
        };
        let first = plan(json!({}));
        let [Write::Patch { sub: "status", patch, .. }] = &first.writes[..] else { panic!("{first:?}") };
        assert_eq!(patch["status"]["phase"], "Deployed");
        assert_eq!(patch["status"]["conditions"][0]["type"], "Available");
        assert!(plan(patch["status"].clone()).writes.is_empty());
    }
}
