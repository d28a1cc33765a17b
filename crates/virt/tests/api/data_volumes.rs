//! Machines with templates of DataVolumes, where there is CDI and where there is none.

use super::*;

#[test]
fn templates_are_taken_where_there_are_data_volumes() {
    let cluster = Cluster::new();
    let machine = |name: &str, spec: Value, more: Value| {
        let templates = json!([{"metadata": {"name": "disk"}, "spec": spec}]);
        let mut machine = vm(json!({"metadata": {"name": name}, "spec": {"dataVolumeTemplates": templates}}));
        machine["spec"]["template"]["spec"]["volumes"] = json!([{"name": "root", "dataVolume": {"name": "disk"}}]);
        merge(&mut machine, more);
        machine
    };
    let blank = || json!({"storage": {"resources": {"requests": {"storage": "1Gi"}}}, "source": {"blank": {}}});
    let refused = cluster.admin(Method::POST, VMS, &machine("early", blank(), json!({})), 422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.dataVolumeTemplates", "{refused}");
    assert!(refused["message"].as_str().is_some_and(|m| m.contains("CDI must be installed")), "{refused}");

    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "datavolumes.cdi.kubevirt.io"},
        "spec": {"group": "cdi.kubevirt.io", "scope": "Namespaced",
            "names": {"plural": "datavolumes", "singular": "datavolume", "kind": "DataVolume"},
            "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    cluster.admin(Method::POST, definitions, &definition, 201);
    let made = cluster.admin(Method::POST, VMS, &machine("demo", blank(), json!({})), 201);
    assert_eq!(made["spec"]["dataVolumeTemplates"][0]["spec"], blank(), "nothing of it is lost");
    let refused = cluster.admin(Method::POST, VMS, &machine("other", json!({"storage": {}}), json!({})), 422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.dataVolumeTemplate[0].source.sourceRef", "{refused}");

    // Its size is that of what the template is a copy of, before there is a DataVolume.
    let claim = json!({"metadata": {"name": "golden", "labels": {"instancetype.kubevirt.io/default-preference": "linux"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    cluster.admin(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", &claim, 201);
    let copy = json!({"storage": {}, "source": {"pvc": {"name": "golden"}}});
    let infers = json!({"spec": {"preference": {"inferFromVolume": "root"}}});
    let made = cluster.admin(Method::POST, VMS, &machine("sized", copy, infers), 201);
    assert_eq!(made["spec"]["preference"]["name"], "linux", "{made}");

    // Where CDI has gone, a machine that is there can be stopped, and gets no other templates.
    cluster.admin(Method::DELETE, &format!("{definitions}/datavolumes.cdi.kubevirt.io"), &Value::Null, 200);
    let path = format!("{VMS}/demo");
    cluster.admin(Method::PATCH, &path, &json!({"spec": {"runStrategy": "Halted"}}), 200);
    let other = json!([{"metadata": {"name": "disk"}, "spec": {"pvc": {}, "source": {"upload": {}}}}]);
    cluster.admin(Method::PATCH, &path, &json!({"spec": {"dataVolumeTemplates": other}}), 422);
}
