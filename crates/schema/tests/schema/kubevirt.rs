//! KubeVirt's kinds come as custom resources, and those of snapshots of volumes: their definitions are good ones, and a
//! machine as users write it goes all the way.

#![expect(clippy::expect_used, reason = "a test says what it needs")]

use carrack_schema::{ResourceInfo, crd, decode, default, print, prune, table, validate};
use serde_json::{Value, json};

fn definitions() -> Vec<Value> {
    carrack_types::kubevirt::crds()
}

fn row(kind: &str) -> ResourceInfo {
    let of_kind = |d: &&Value| d["spec"]["names"]["kind"] == kind;
    let definitions = definitions();
    crd::resource_info(definitions.iter().find(of_kind).expect(kind)).expect(kind)
}

#[test]
fn definitions_are_good() {
    let info = table::find_kind("apiextensions.k8s.io", "CustomResourceDefinition").expect("definitions");
    let version = info.version("v1").expect("v1");
    for definition in definitions().into_iter().chain(carrack_types::snapshots::crds()) {
        let name = definition["metadata"]["name"].as_str().expect("a name").to_owned();
        let mut object = definition.clone();
        assert_eq!(decode::conform(&mut object, version.schema()), Ok(vec![]), "{name}");
        default::apply(info, "v1", &mut object);
        assert_eq!(validate::create(info, "v1", &object), vec![], "{name}");
        crd::resource_info(&object).expect(&name);
    }
}

fn machine() -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "demo", "namespace": "default"}, "spec": {
        "runStrategy": "Always",
        "template": {"metadata": {"labels": {"kubevirt.io/vm": "demo"}}, "spec": {
            "domain": {"devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}], "interfaces": [{"name": "default", "masquerade": {}}]},
                "resources": {"requests": {"memory": "256Mi"}}},
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "containerDisk": {"image": "demo:latest"}}]}}}})
}

#[test]
fn a_machine_goes_all_the_way() {
    let info = row("VirtualMachine");
    let version = info.storage_version().expect("a version");
    let mut object = machine();
    assert_eq!(prune::prune(&mut object, version.schema()), Ok(vec![]));
    default::apply(&info, &version.name, &mut object);
    assert_eq!(validate::create(&info, &version.name, &object), vec![]);
    let headings: Vec<_> =
        print::columns(&info, version).into_iter().filter(|c| c.priority == 0).map(|c| c.name).collect();
    assert_eq!(headings, ["Name", "Age", "Status", "Ready"]);
    object["status"] = json!({"printableStatus": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    object["metadata"]["creationTimestamp"] = json!("2026-01-02T11:59:00Z");
    let cells = print::cells(&info, version, &object, "2026-01-02T12:00:00Z".parse().expect("a time"));
    assert_eq!(json!(cells), json!(["demo", "60s", "Running", "True"]));
}

#[test]
fn a_machine_with_mistakes_is_refused_by_name() {
    let info = row("VirtualMachine");
    let version = info.storage_version().expect("a version");
    let mut object = machine();
    object["spec"]["template"]["spec"]["domain"]["devices"]["diskz"] = json!([]);
    let found = prune::prune(&mut object, version.schema()).expect("no embedded resource");
    let findings: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(findings, ["unknown field \"spec.template.spec.domain.devices.diskz\""]);
    object["spec"]["runStrategy"] = json!(3);
    let errors = validate::create(&info, &version.name, &object);
    assert_eq!(
        errors.first().map(|e| (e.path.as_str(), e.reason())),
        Some(("spec.runStrategy", "FieldValueTypeInvalid"))
    );
}
