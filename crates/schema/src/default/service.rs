//! Defaults of services. Their IP families depend on the cluster and are the API server's.

use serde_json::Value;

use super::fields::{Fields, at, each, set, set_text, text, with_new};

pub(super) fn service(object: &mut Fields) {
    with_new(object, "spec", |spec| {
        set_text(spec, "sessionAffinity", "None");
        set_text(spec, "type", "ClusterIP");
        let kind = text(spec, "type").to_owned();
        if text(spec, "sessionAffinity") == "None" {
            // Who asks for none need not know what has been there.
            spec.remove("sessionAffinityConfig");
        }
        if text(spec, "sessionAffinity") == "ClientIP" {
            with_new(spec, "sessionAffinityConfig", |config| {
                with_new(config, "clientIP", |client| set(client, "timeoutSeconds", 10_800))
            });
        }
        each(spec, "ports", |port| {
            set_text(port, "protocol", "TCP");
            let unset = match port.get("targetPort") {
                None | Some(Value::Null) => true,
                Some(Value::Number(number)) => number.as_i64() == Some(0),
                Some(target) => target == "",
            };
            if unset && let Some(number) = port.get("port").cloned() {
                port.insert("targetPort".to_owned(), number);
            }
        });
        if kind == "ExternalName" {
            return;
        }
        set_text(spec, "internalTrafficPolicy", "Cluster");
        let outside = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
        if outside || matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
            set_text(spec, "externalTrafficPolicy", "Cluster");
        }
        if kind == "LoadBalancer" {
            set(spec, "allocateLoadBalancerNodePorts", true);
        }
    });
    at(object, &["status", "loadBalancer"], |balancer| {
        each(balancer, "ingress", |ingress| {
            if !text(ingress, "ip").is_empty() {
                set_text(ingress, "ipMode", "VIP");
            }
        });
    });
}
