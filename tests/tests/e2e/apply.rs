//! Server-side apply with a real kubectl: ownership, conflicts, force, what would change, and going over to it from the
//! older way of applying.

use carrack_e2e::{Kubectl, Sandbox, assert_contains};

fn web(replicas: Option<u32>, image: &str) -> String {
    let replicas = replicas.map_or_else(String::new, |replicas| format!("  replicas: {replicas}\n"));
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n{replicas}  selector: {{matchLabels: {{app: web}}}}\n  \
         template:\n    metadata: {{labels: {{app: web}}}}\n    spec: {{containers: [{{name: c, image: {image}}}]}}\n"
    )
}

const CRD: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [id]
                items: {type: object, required: [id], properties: {id: {type: string}, n: {type: integer}}}
"#;

/// An object's managers, which kubectl shows only when it is asked to.
fn managers_of(kubectl: &Kubectl<'_>, kind: &str, name: &str) -> serde_json::Value {
    let text = kubectl.ok(&["get", kind, name, "-o", "json", "--show-managed-fields"]);
    let object: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    object["metadata"]["managedFields"].clone()
}

#[test]
fn fields_belong_to_who_applies_them() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    let server_side = ["apply", "--server-side", "-f", "-"];
    let with =
        |more: &[&'static str]| -> Vec<&'static str> { server_side.into_iter().chain(more.iter().copied()).collect() };

    // Created, then owned: kubectl says so, shows it, and leaves alone what is as it should be.
    let said = kubectl.run(&server_side).input(web(Some(1), "registry.example/a")).ok();
    assert_contains(&said, &["deployment.apps/web serverside-applied"]);
    let shown = kubectl.ok(&["get", "deployment", "web", "-o", "yaml", "--show-managed-fields"]);
    assert_contains(&shown, &["manager: kubectl", "operation: Apply", "f:replicas: {}", r#"k:{"name":"c"}"#]);
    assert!(!kubectl.ok(&["get", "deployment", "web", "-o", "yaml"]).contains("managedFields"));
    let revision = || {
        let list = managers_of(&kubectl, "deployment", "web");
        let owners = list.as_array().expect("managers").iter().filter(|entry| entry["operation"] == "Apply").cloned();
        serde_json::Value::from(owners.collect::<Vec<_>>())
    };
    let before = revision();
    kubectl.run(&server_side).input(web(Some(1), "registry.example/a")).done();
    assert_eq!(revision(), before);

    // Somebody else meets a conflict, which names field and manager; force takes the field over.
    let ci = with(&["--field-manager=ci"]);
    let output = kubectl.run(&ci).input(web(Some(2), "registry.example/a")).output();
    assert_eq!(output.code, Some(1), "{output}");
    assert_contains(
        &output.stderr,
        &["Apply failed with 1 conflict: conflict with \"kubectl\": .spec.replicas", "--force-conflicts"],
    );
    let dry = with(&["--field-manager=ci", "--force-conflicts", "--dry-run=server", "-o", "jsonpath={.spec.replicas}"]);
    assert_eq!(kubectl.run(&dry).input(web(Some(2), "registry.example/a")).ok(), "2");
    assert_eq!(kubectl.field("deployment", "web", "/spec/replicas"), 1);
    let forced = with(&["--field-manager=ci", "--force-conflicts"]);
    kubectl.run(&forced).input(web(Some(2), "registry.example/a")).done();
    assert_eq!(kubectl.field("deployment", "web", "/spec/replicas"), 2);

    // What would change, before it does. (kubectl diff ends with 1 where something would.)
    let diff = kubectl.run(&["diff", "--server-side", "-f", "-"]).input(web(None, "registry.example/b")).output();
    assert_eq!(diff.code, Some(2), "{diff}");
    assert_contains(&diff.stderr, &["conflict with \"ci\"", ".image"]);
    let same = kubectl.run(&["diff", "--server-side", "-f", "-"]).input(web(None, "registry.example/a")).output();
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), ""), "{same}");
    let diff = ["diff", "--server-side", "--force-conflicts", "-f", "-"];
    let diff = kubectl.run(&diff).input(web(None, "registry.example/b")).output();
    assert_eq!(diff.code, Some(1), "{diff}");
    assert_contains(&diff.stdout, &["-      - image: registry.example/a", "+      - image: registry.example/b"]);

    // `kubectl scale` owns the count under its own name.
    kubectl.ok(&["scale", "deployment", "web", "--replicas=0"]);
    let output = kubectl.run(&ci).input(web(Some(2), "registry.example/a")).output();
    assert_contains(
        &output.stderr,
        &["conflict with \"kubectl\" with subresource \"scale\" using apps/v1: .spec.replicas"],
    );

    // A field that the kind does not have is refused, by the schema.
    let bad = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndata: {a: b}\ndatum: {}\n";
    let output = kubectl.run(&server_side).input(bad).output();
    assert_contains(&output.stderr, &["field not declared in schema"]);
}

#[test]
fn custom_resources_and_those_who_used_to_apply_otherwise() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(CRD);
    kubectl.ok(&["wait", "--for=condition=Established", "crd/gadgets.example.com"]);
    let gadget = |parts: &str| {
        format!("apiVersion: example.com/v1\nkind: Gadget\nmetadata: {{name: g}}\nspec: {{parts: [{parts}]}}\n")
    };
    let apply = |manager: &str, manifest: String| {
        let manager = format!("--field-manager={manager}");
        kubectl.run(&["apply", "--server-side", &manager, "-f", "-"]).input(manifest).done();
    };
    apply("one", gadget("{id: a, n: 1}"));
    apply("two", gadget("{id: b, n: 2}"));
    assert_eq!(kubectl.ok(&["get", "gadget", "g", "-o", "jsonpath={.spec.parts[*].id}"]), "a b");
    apply("one", gadget(""));
    assert_eq!(kubectl.ok(&["get", "gadget", "g", "-o", "jsonpath={.spec.parts[*].id}"]), "b");

    // From client-side apply: kubectl takes over what it applied before, and its annotation keeps in step.
    let map = |data: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {data}\n");
    kubectl.apply(&map("{a: \"1\", b: \"1\"}"));
    kubectl.run(&["apply", "--server-side", "-f", "-"]).input(map("{a: \"2\"}")).done();
    let object = kubectl.get("configmap", "m").expect("it");
    assert_eq!(object["data"], serde_json::json!({"a": "2"}), "what is not applied any more is gone");
    let managers = managers_of(&kubectl, "configmap", "m");
    let managers: Vec<&str> =
        managers.as_array().expect("managers").iter().filter_map(|entry| entry["manager"].as_str()).collect();
    assert_eq!(managers, ["kubectl", "kubectl-last-applied"]);
    assert_contains(&kubectl.ok(&["apply", "view-last-applied", "configmap", "m"]), &["a: \"2\""]);
    // And back.
    kubectl.apply(&map("{c: \"3\"}"));
    assert_eq!(kubectl.field("configmap", "m", "/data/c"), "3");
}
