//! Tells in the status of each ValidatingAdmissionPolicy what is odd about its expressions.
//!
//! Upstream: kube-controller-manager's validatingadmissionpolicy-status controller. What it finds are
//! warnings; a policy holds whether it has been looked at or not.

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_schema::crd::resource_info;
use carrack_schema::rules::typing::{TypedKind, named_resources, type_warnings};
use carrack_schema::table;
use carrack_types::definition::Definition;
use carrack_types::resource::Object as _;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use serde_json::{Value, json};

/// The controller.
pub struct PolicyStatus;

/// A kind by its group and version, and by what it is called: its plural or its kind.
fn find(view: &View<'_>, group: &str, version: &str, is: impl Fn(&str, &str) -> bool) -> Option<TypedKind> {
    let typed = |row: &table::ResourceInfo| {
        let found = row.versions.iter().find(|known| known.served && known.name == version)?;
        Some(TypedKind::new(group, version, &row.kind, found.schema()))
    };
    if let Some(row) = table::builtin().iter().find(|row| row.group == group && is(&row.plural, &row.kind)) {
        return typed(row);
    }
    let crd = view
        .cache::<Definition>()
        .iter()
        .find(|crd| crd.spec.group == group && is(&crd.spec.names.plural, &crd.spec.names.kind))?;
    let row = resource_info(&serde_json::to_value(crd.as_ref()).ok()?).ok()?;
    typed(&row)
}

fn status(view: &View<'_>, policy: &Value, generation: i64) -> Value {
    let kinds: Vec<TypedKind> = named_resources(policy)
        .iter()
        .filter_map(|(group, version, plural)| find(view, group, version, |known, _| known == plural))
        .collect();
    let kind = &policy["spec"]["paramKind"];
    let api_version = kind["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let wanted = kind["kind"].as_str().unwrap_or_default();
    let params = if wanted.is_empty() { None } else { find(view, group, version, |_, known| known == wanted) };
    let warnings: Vec<Value> = type_warnings(policy, &kinds, params.as_ref())
        .into_iter()
        .map(|warning| json!({"fieldRef": warning.field, "warning": warning.text}))
        .collect();
    // A patch takes away what an earlier look has found.
    let warnings = if warnings.is_empty() { Value::Null } else { warnings.into() };
    json!({"observedGeneration": generation, "typeChecking": {"expressionWarnings": warnings}})
}

impl Controller for PolicyStatus {
    fn name(&self) -> &'static str {
        "validatingadmissionpolicy-status-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<ValidatingAdmissionPolicy>();
        // A kind that a policy names may come after it.
        setup.watch::<Definition>(|_, _| Vec::new());
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(policy) = view.get::<ValidatingAdmissionPolicy>("", &key.name).filter(|p| !p.is_deleting()) else {
            return Plan::none();
        };
        let generation = policy.metadata.generation.unwrap_or(0);
        if policy.status.as_ref().and_then(|status| status.observed_generation) == Some(generation) {
            return Plan::none();
        }
        match serde_json::to_value(policy.as_ref()) {
            Ok(value) => {
                Plan::none().patch_status(policy.as_ref(), json!({"status": status(view, &value, generation)}))
            }
            Err(error) => Plan::failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;

    use super::*;
    use crate::testing::of;

    fn look(validation: &str, status: Value, crds: Vec<Value>) -> Vec<Value> {
        let policy = json!({"metadata": {"name": "p", "uid": "u", "resourceVersion": "1", "generation": 2}, "status": status, "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["CREATE"]},
                {"apiGroups": ["x.io"], "apiVersions": ["v1"], "resources": ["things"], "operations": ["CREATE"]}]},
            "validations": [{"expression": validation}]}});
        let caches =
            Caches::new().with::<ValidatingAdmissionPolicy>([of(policy)]).with::<Definition>(crds.into_iter().map(of));
        let plan = PolicyStatus.reconcile(&Key::new("", "p"), &caches.view(), Time::from_unix_s(1));
        plan.writes
            .iter()
            .map(|write| match write {
                carrack_engine::Write::Patch { patch, sub, .. } if *sub == "status" => patch["status"].clone(),
                _ => panic!("something else is written"),
            })
            .collect()
    }

    #[test]
    fn what_does_not_fit_is_told_once() {
        let good = json!({"observedGeneration": 2, "typeChecking": {"expressionWarnings": null}});
        assert_eq!(look("object.spec.replicas > 1", json!({}), vec![]), [good]);
        assert_eq!(look("object.spec.replicas > 1", json!({"observedGeneration": 2}), vec![]), Vec::<Value>::new());
        let told = look("object.spec.none > 1", json!({"observedGeneration": 1}), vec![]);
        let warning = &told[0]["typeChecking"]["expressionWarnings"][0];
        assert_eq!(warning["fieldRef"], "spec.validations[0].expression");
        assert!(
            warning["warning"].as_str().is_some_and(|text| text.starts_with("apps/v1, Kind=Deployment: ")),
            "{told:?}"
        );
    }

    #[test]
    fn kinds_of_users_count_too() {
        let crd = json!({"metadata": {"name": "things.x.io"}, "spec": {"group": "x.io", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}}]}});
        let told = look("has(object.spec) && object.metadata.name != 'a'", json!({}), vec![crd.clone()]);
        assert_eq!(told[0]["typeChecking"]["expressionWarnings"], Value::Null);
        let told = look("object.spec.replicas > 1", json!({}), vec![crd]);
        let text = told[0]["typeChecking"]["expressionWarnings"][0]["warning"].as_str().unwrap_or_default().to_owned();
        assert!(text.starts_with("x.io/v1, Kind=Thing: ") && !text.contains("Deployment"), "{text}");
    }
}
