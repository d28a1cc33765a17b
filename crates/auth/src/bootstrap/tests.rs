use std::collections::BTreeSet;

use super::*;
use crate::attributes::Attributes;
use crate::authorizer::Authorizer;
use crate::caller::{Caller, USER_CONTROLLER_MANAGER, USER_SCHEDULER, USER_VIRT_CONTROLLER};

fn authorizer() -> Authorizer {
    let mut authorizer = Authorizer::new();
    for object in objects() {
        let json = object.json.to_string();
        authorizer
            .observe(GROUP, object.kind.resource(), &object.namespace, &object.name, Some(json.as_bytes()))
            .expect("bootstrap objects are valid");
    }
    authorizer
}

#[test]
fn names_are_there_once_and_bindings_find_their_roles() {
    let objects = objects();
    let names: BTreeSet<_> = objects.iter().map(|o| (o.kind, &o.namespace, &o.name)).collect();
    assert_eq!(names.len(), objects.len());
    for object in &objects {
        assert_eq!(object.json["metadata"]["name"], object.name);
        if let Some(role) = object.json.get("roleRef") {
            let kind = if role["kind"] == "Role" { Kind::Role } else { Kind::ClusterRole };
            let namespace = if kind == Kind::Role { object.namespace.as_str() } else { "" };
            let name = role["name"].as_str().expect("a name").to_owned();
            assert!(
                objects.iter().any(|o| o.kind == kind && o.namespace == namespace && o.name == name),
                "{} refers to {name}",
                object.name
            );
        }
    }
    // Those that tools and manuals name.
    for name in [
        "cluster-admin",
        "admin",
        "edit",
        "view",
        "system:discovery",
        "system:basic-user",
        "system:public-info-viewer",
        "system:node",
        "system:kube-scheduler",
        "system:volume-scheduler",
        "system:kube-controller-manager",
        "system:controller:generic-garbage-collector",
        "system:controller:namespace-controller",
        "system:controller:service-account-controller",
        "system:node-proxier",
        "system:kube-dns",
        "system:auth-delegator",
        "kubevirt.io:admin",
        "kubevirt.io:edit",
        "kubevirt.io:view",
        "kubevirt.io:default",
        "kubevirt.io:migrate",
        "instancetype.kubevirt.io:view",
    ] {
        assert!(objects.iter().any(|o| o.kind == Kind::ClusterRole && o.name == name), "{name}");
    }
}

#[test]
fn who_may_do_what() {
    let authorizer = authorizer();
    let check = |caller: &Caller, a: Attributes<'_>, want: bool| {
        let got = authorizer.authorize(caller, &a);
        assert_eq!(got.allowed(), want, "{} {a:?}: {got:?}", caller.user);
    };
    let at = Attributes::resource;
    let anybody = Caller::anonymous();
    let user = Caller::new("jane", Vec::<String>::new());
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        check(&anybody, Attributes::path("get", path), true);
    }
    for path in ["/api", "/apis", "/apis/apps/v1", "/openapi/v2", "/openapi/v3/apis"] {
        check(&anybody, Attributes::path("get", path), false);
        check(&user, Attributes::path("get", path), true);
    }
    check(&anybody, Attributes::path("get", "/metrics"), false);
    check(&anybody, at("list", "", "pods"), false);
    for (group, resource) in [("subresources.kubevirt.io", "version"), ("kubevirt.io", "kubevirts")] {
        check(&anybody, at("get", group, resource), false);
        check(&user, at("get", group, resource), true);
    }
    for shared in ["virtualmachineclusterinstancetypes", "virtualmachineclusterpreferences"] {
        check(&user, at("list", "instancetype.kubevirt.io", shared), true);
        check(&user, at("create", "instancetype.kubevirt.io", shared), false);
        check(&anybody, at("list", "instancetype.kubevirt.io", shared), false);
    }
    check(&user, at("list", "instancetype.kubevirt.io", "virtualmachineinstancetypes").in_namespace("default"), false);
    check(&user, at("create", "authorization.k8s.io", "selfsubjectaccessreviews"), true);
    check(&anybody, at("create", "authorization.k8s.io", "selfsubjectaccessreviews"), false);
    check(&user, at("list", "", "pods").in_namespace("default"), false);

    let scheduler = Caller::new(USER_SCHEDULER, Vec::<String>::new());
    check(&scheduler, at("create", "", "pods").with_subresource("binding").in_namespace("ns"), true);
    check(&scheduler, at("watch", "", "pods"), true);
    check(&scheduler, at("list", "", "secrets"), false);
    check(
        &scheduler,
        at("update", "coordination.k8s.io", "leases").in_namespace("kube-system").named("kube-scheduler"),
        true,
    );
    check(&scheduler, at("update", "coordination.k8s.io", "leases").in_namespace("kube-node-lease").named("n1"), false);
    check(
        &scheduler,
        at("get", "", "configmaps").in_namespace("kube-system").named("extension-apiserver-authentication"),
        true,
    );

    let controllers = Caller::new(USER_CONTROLLER_MANAGER, Vec::<String>::new());
    check(&controllers, at("delete", "kubevirt.io", "virtualmachineinstances").in_namespace("ns").named("x"), true);
    check(&controllers, at("update", "", "namespaces").with_subresource("finalize").named("ns"), true);
    check(&controllers, at("create", "", "configmaps").in_namespace("ns"), true);
    check(&controllers, at("create", "", "pods").in_namespace("ns"), true);
    check(
        &controllers,
        at("patch", "example.com", "fleets").with_subresource("scale").in_namespace("ns").named("x"),
        true,
    );
    check(
        &controllers,
        at("get", "custom.metrics.k8s.io", "pods").with_subresource("requests").in_namespace("ns").named("*"),
        true,
    );
    let cleaner = Caller::new("system:serviceaccount:kube-system:podcertificaterequestcleaner", Vec::<String>::new());
    for (resource, allowed) in [("podcertificaterequests", true), ("certificatesigningrequests", false)] {
        check(&cleaner, at("delete", "certificates.k8s.io", resource).in_namespace("ns").named("x"), allowed);
    }
    check(&controllers, at("escalate", "rbac.authorization.k8s.io", "clusterroles"), false);
    check(&controllers, at("impersonate", "", "users").named("x"), false);
    check(
        &controllers,
        at("sign", "certificates.k8s.io", "signers").named("kubernetes.io/kube-apiserver-client"),
        false,
    );

    let virt = Caller::new(USER_VIRT_CONTROLLER, Vec::<String>::new());
    check(&virt, at("create", "", "pods").in_namespace("ns"), true);
    check(
        &virt,
        at("patch", "kubevirt.io", "virtualmachines").with_subresource("status").in_namespace("ns").named("x"),
        true,
    );
    check(&virt, at("create", "snapshot.storage.k8s.io", "volumesnapshots").in_namespace("ns"), true);
    check(&virt, at("create", "snapshot.kubevirt.io", "virtualmachinesnapshotcontents").in_namespace("ns"), true);
    check(&virt, at("delete", "", "persistentvolumeclaims").in_namespace("ns").named("x"), true);
    let freeze = at("update", "subresources.kubevirt.io", "virtualmachineinstances").with_subresource("freeze");
    check(&virt, freeze.in_namespace("ns").named("x"), true);
    check(&virt, at("create", "apiextensions.k8s.io", "customresourcedefinitions"), false);
    check(&virt, at("get", "", "secrets").in_namespace("ns").named("x"), false);
    check(&virt, at("create", "", "pods").with_subresource("exec").in_namespace("ns"), false);
    check(&virt, at("delete", "", "nodes").named("n1"), false);
    for (verb, namespace, allowed) in [
        ("create", "kubevirt", true),
        ("patch", "kubevirt-node-lease", true),
        ("create", "kubevirt-node-lease", true),
        ("delete", "kubevirt-node-lease", false),
        ("update", "kube-node-lease", false),
        ("patch", "kube-system", false),
    ] {
        let leases = at(verb, "coordination.k8s.io", "leases").in_namespace(namespace).named("n1");
        check(&virt, leases, allowed);
    }
    let handler = Caller::virt_handler("n1");
    check(&handler, at("patch", "", "nodes").named("n1"), true);
    check(
        &handler,
        at("patch", "kubevirt.io", "virtualmachineinstances").with_subresource("status").in_namespace("ns").named("x"),
        true,
    );
    check(&handler, at("create", "authentication.k8s.io", "tokenreviews"), true);
    check(&handler, at("create", "authorization.k8s.io", "subjectaccessreviews"), true);
    check(&handler, at("create", "", "pods").in_namespace("ns"), false);
    check(&handler, at("get", "", "secrets").in_namespace("ns").named("x"), false);
    check(&handler, at("delete", "kubevirt.io", "virtualmachineinstances").in_namespace("ns").named("x"), false);

    // A kubelet gets nothing from RBAC: what the node authorizer refuses stays refused.
    let kubelet = Caller::node("n1");
    check(&kubelet, at("get", "", "nodes").named("n1"), true);
    check(&kubelet, at("get", "", "nodes").named("n2"), false);
    check(&kubelet, at("list", "", "secrets"), false);
    check(&kubelet, at("delete", "", "nodes").named("n1"), false);
    let kubelet_client = Caller::new("kube-apiserver-kubelet-client", Vec::<String>::new());
    check(&kubelet_client, at("create", "", "nodes").named("n1").with_subresource("proxy"), true);
    check(&kubelet_client, at("list", "", "pods"), false);
}

#[test]
fn people_get_aggregated_roles() {
    let mut authorizer = authorizer();
    let mut bind = |user: &str, role: &str| {
        let json = json!({
            "subjects": [{"kind": "User", "name": user}],
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        });
        authorizer.observe(GROUP, "rolebindings", "ns", user, Some(json.to_string().as_bytes())).expect("valid")
    };
    for role in ["admin", "edit", "view", "kubevirt.io:migrate"] {
        bind(role, role);
    }
    let check = |user: &str, a: Attributes<'_>, want: bool| {
        let caller = Caller::new(user, Vec::<String>::new());
        let a = a.in_namespace("ns");
        assert_eq!(authorizer.authorize(&caller, &a).allowed(), want, "{user} {a:?}");
    };
    let at = Attributes::resource;
    let vm = |verb| at(verb, "kubevirt.io", "virtualmachines");
    let sub = |verb, what| at(verb, "subresources.kubevirt.io", "virtualmachineinstances").with_subresource(what);
    // (request, view, edit, admin)
    for (a, view, edit, admin) in [
        (at("get", "", "pods"), true, true, true),
        (at("get", "", "secrets"), false, true, true),
        (at("create", "apps", "deployments"), false, true, true),
        (at("create", "", "pods").with_subresource("exec"), false, true, true),
        (at("create", GROUP, "rolebindings"), false, false, true),
        (at("update", "", "resourcequotas"), false, false, false),
        (vm("list"), true, true, true),
        (vm("create"), false, true, true),
        (vm("deletecollection"), false, false, true),
        (sub("get", "console"), false, true, true),
        (sub("get", "guestosinfo"), true, true, true),
        (sub("update", "pause"), false, true, true),
        (sub("get", "sev/fetchcertchain"), true, true, true),
        (sub("get", "vsock"), false, false, false),
        (at("get", "snapshot.kubevirt.io", "virtualmachinesnapshots"), true, true, true),
        (at("watch", "migrations.kubevirt.io", "migrationpolicies"), true, true, true),
        (at("create", "migrations.kubevirt.io", "migrationpolicies"), false, false, false),
        (at("list", "kubevirt.io", "virtualmachineinstancemigrations"), true, true, true),
    ] {
        check("view", a, view);
        check("edit", a, edit);
        check("admin", a, admin);
    }
    // To move machines, tenants need a role of its own.
    for a in [
        at("update", "subresources.kubevirt.io", "virtualmachines").with_subresource("migrate"),
        at("create", "kubevirt.io", "virtualmachineinstancemigrations"),
        at("delete", "kubevirt.io", "virtualmachineinstancemigrations"),
    ] {
        for role in ["view", "edit", "admin"] {
            check(role, a, false);
        }
        check("kubevirt.io:migrate", a, true);
    }
}

#[test]
fn reconciling() {
    let desired =
        |name: &str, kind| objects().into_iter().find(|o| o.kind == kind && o.name == name).expect("is there");
    let role = desired("system:basic-user", Kind::ClusterRole);
    assert_eq!(reconcile(&role, None), Some(role.json.clone()));
    assert_eq!(reconcile(&role, Some(&role.json)), None, "nothing to do");

    // What an administrator adds stays; what is missing comes back.
    let mut stored = role.json.clone();
    stored["metadata"]["resourceVersion"] = json!("7");
    stored["metadata"]["labels"]["mine"] = json!("x");
    stored["rules"] = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["nodes"]}]);
    let merged = reconcile(&role, Some(&stored)).expect("an update");
    assert_eq!(merged["metadata"]["resourceVersion"], "7");
    assert_eq!(merged["metadata"]["labels"]["mine"], "x");
    assert_eq!(merged["rules"].as_array().map(Vec::len), Some(3));
    assert_eq!(merged["rules"][0]["resources"][0], "nodes");
    assert_eq!(reconcile(&role, Some(&merged)), None);

    // Broader rules cover it.
    stored["rules"] = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    assert_eq!(reconcile(&role, Some(&stored)), None);

    let mut off = stored.clone();
    off["metadata"]["annotations"][AUTOUPDATE_ANNOTATION] = json!("false");
    off["rules"] = Value::Null;
    assert_eq!(reconcile(&role, Some(&off)), None, "switched off");

    let binding = desired("system:discovery", Kind::ClusterRoleBinding);
    let mut stored = binding.json.clone();
    stored["subjects"] = json!([{"apiGroup": GROUP, "kind": "User", "name": "x"}]);
    let merged = reconcile(&binding, Some(&stored)).expect("an update");
    assert_eq!(merged["subjects"].as_array().map(Vec::len), Some(2));
    stored["roleRef"]["name"] = json!("other");
    assert_eq!(reconcile(&binding, Some(&stored)), None, "meant so by somebody");

    // Of KubeVirt's, what an older release gave is gone.
    let role = desired("kubevirt.io:default", Kind::ClusterRole);
    let mut stored = role.json.clone();
    stored["metadata"]["labels"]["mine"] = json!("x");
    stored["rules"][0]["resourceNames"] = Value::Null;
    assert_eq!(reconcile(&role, Some(&stored)), None, "the same rules, written otherwise");
    stored["rules"] = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let exact = reconcile(&role, Some(&stored)).expect("an update");
    assert_eq!((&exact["rules"], &exact["metadata"]["labels"]["mine"]), (&role.json["rules"], &json!("x")));
    stored["metadata"]["annotations"][AUTOUPDATE_ANNOTATION] = json!("false");
    assert_eq!(reconcile(&role, Some(&stored)), None, "switched off");
    let binding = desired("kubevirt.io:default", Kind::ClusterRoleBinding);
    let mut stored = binding.json.clone();
    let labels = stored["metadata"]["labels"].as_object_mut().expect("labels");
    assert!(labels.remove("kubevirt.io").is_some(), "an older release gave none");
    let subjects = stored["subjects"].as_array_mut().expect("subjects");
    subjects.push(json!({"apiGroup": GROUP, "kind": "Group", "name": "system:unauthenticated"}));
    assert_eq!(reconcile(&binding, Some(&stored)), Some(binding.json));

    // An aggregated role's computed rules are left alone.
    let admin = desired("admin", Kind::ClusterRole);
    let mut stored = admin.json.clone();
    stored["rules"] = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    assert_eq!(reconcile(&admin, Some(&stored)), None);

    // A binding without subjects stays as it is stored (null, or no field at all).
    let node = desired("system:node", Kind::ClusterRoleBinding);
    let mut stored = node.json.clone();
    stored["subjects"] = Value::Null;
    assert_eq!(reconcile(&node, Some(&stored)), None);
}
