//! Presets, and the instances that they complete.

use super::*;

#[test]
fn a_new_instance_is_completed_by_the_presets_that_choose_it() {
    let cluster = Cluster::new();
    let presets = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstancepresets";
    let preset = |name: &str, domain: Value| {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePreset", "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"size": "small"}}, "domain": domain}})
    };
    let instance = |name: &str, size: &str| {
        let mut instance = vmi();
        merge(&mut instance, json!({"metadata": {"name": name, "labels": {"size": size}}}));
        instance
    };
    let cores = |cores: u32| json!({"devices": {}, "cpu": {"cores": cores}});
    cluster.admin(Method::POST, presets, &preset("four", cores(4)), 201);
    let is_told = |told: &[String]| told.iter().any(|told| told.contains("VirtualMachineInstancePresets is now"));
    assert!(is_told(&cluster.warnings(VMIS, &instance("chosen", "small"))));
    let chosen = cluster.admin(Method::GET, &format!("{VMIS}/chosen"), &Value::Null, 200);
    assert_eq!(chosen["spec"]["domain"]["cpu"]["cores"], 4, "{chosen}");
    assert_eq!(chosen["metadata"]["annotations"]["virtualmachinepreset.kubevirt.io/four"], "kubevirt.io/v1");
    assert!(!is_told(&cluster.warnings(VMIS, &instance("other", "large"))));
    let other = cluster.admin(Method::GET, &format!("{VMIS}/other"), &Value::Null, 200);
    assert_eq!(other["spec"]["domain"]["cpu"]["cores"], 1, "{other}");

    cluster.admin(Method::POST, presets, &preset("two", cores(2)), 201);
    let refused = cluster.admin(Method::POST, VMIS, &instance("torn", "small"), 422);
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("presets 'two' and 'four' conflict: spec.cpu: "), "{refused}");
    // What a preset has brought in is judged as if the instance had said it.
    cluster.admin(Method::DELETE, &format!("{presets}/four"), &Value::Null, 200);
    cluster.admin(Method::DELETE, &format!("{presets}/two"), &Value::Null, 200);
    let odd = json!({"devices": {}, "cpu": {"cores": 1, "realtime": {}}});
    cluster.admin(Method::POST, presets, &preset("odd", odd), 201);
    let refused = cluster.admin(Method::POST, VMIS, &instance("odd", "small"), 422);
    let causes = refused["details"]["causes"].to_string();
    assert!(causes.contains("spec.domain.cpu.realtime"), "{refused}");
    let mut bare = preset("bare", json!({}));
    bare["spec"].as_object_mut().expect("a spec").remove("domain");
    let refused = cluster.admin(Method::POST, presets, &bare, 422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.domain", "{refused}");
}
