//! When two templates of pods are the same: one list that is empty and one that is not there make the same pods.
//!
//! The API server stores no empty lists, nor a `tty: false`, and upstream's controllers compare without them
//! (`equality.Semantic`). An older one stored them: a set that it made from a manifest with `tolerations: []` is still that of
//! the template without.

use carrack_schema::validate::plain;
use k8s_openapi::api::core::v1::PodTemplateSpec;

/// Whether pods of one template are as those of the other.
pub(crate) fn same_template(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    if a == b {
        return true;
    }
    // Most that differ do so here, and need not be written out.
    let images = |template: &PodTemplateSpec| {
        let containers = template.spec.iter().flat_map(|s| s.containers.iter());
        containers.map(|c| (c.name.clone(), c.image.clone())).collect::<Vec<_>>()
    };
    if images(a) != images(b) {
        return false;
    }
    let said = |template: &PodTemplateSpec| plain(&serde_json::to_value(template).unwrap_or_default());
    said(a) == said(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::of;
    use serde_json::{Value, json};

    fn check(a: &Value, b: &Value, expected: bool) {
        let template = |spec: &Value| {
            let mut whole =
                json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
            spec.as_object().into_iter().flatten().for_each(|(key, value)| whole["spec"][key] = value.clone());
            of::<PodTemplateSpec>(whole)
        };
        assert_eq!(same_template(&template(a), &template(b)), expected, "{a} and {b}");
        assert_eq!(same_template(&template(b), &template(a)), expected, "{b} and {a}");
    }

    #[test]
    fn what_is_empty_is_as_what_is_not_there() {
        let none = json!({});
        let container = |more: Value| {
            let mut container = json!({"name": "c", "image": "i"});
            more.as_object().into_iter().flatten().for_each(|(key, value)| container[key] = value.clone());
            json!({ "containers": [container] })
        };
        for (same, spec) in [
            (true, json!({"tolerations": [], "nodeSelector": {}, "volumes": []})),
            (true, container(json!({"env": [], "resources": {"limits": {}, "requests": {}}}))),
            (true, json!({"hostNetwork": false, "hostIPC": false})),
            (true, container(json!({"tty": false, "ports": [], "volumeMounts": []}))),
            (false, json!({"hostNetwork": true})),
            (false, json!({"automountServiceAccountToken": false})),
            (false, container(json!({"tty": true}))),
            (false, json!({"tolerations": [{"operator": "Exists"}]})),
            (false, json!({"nodeSelector": {"a": "b"}})),
            (false, json!({"affinity": {}})),
            (false, json!({"securityContext": {}})),
            (false, container(json!({"image": "j"}))),
            (false, container(json!({"args": ["x"]}))),
        ] {
            // Resources are there in both, as the API server has them.
            let base = if spec["containers"][0]["resources"].is_object() {
                container(json!({"resources": {}}))
            } else {
                none.clone()
            };
            check(&base, &spec, same);
        }
        let empty_dir = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
        check(&empty_dir, &json!({"volumes": [{"name": "v"}]}), false);
        let flex = |more: Value| json!({"volumes": [{"name": "v", "flexVolume": {"driver": "d", "options": more}}]});
        check(&flex(json!({})), &flex(Value::Null), true);
        check(&flex(json!({"a": ""})), &flex(json!({})), false);
    }
}
