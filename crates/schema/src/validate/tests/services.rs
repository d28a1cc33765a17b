//! Services and endpoints, and what networks are made of.

use serde_json::json;

use super::causes::{Row, changed, created, global, named};
use super::with;

#[test]
fn services() {
    let service = named(json!({"spec": {"ports": [{"port": 80, "name": "a"}], "selector": {"a": "b"}}}));
    created(
        "",
        "Service",
        &service,
        &[
            ("/spec/ports", json!([]), &["Required spec.ports"]),
            ("/spec/ports", json!([{"port": 0}]), &["Invalid spec.ports[0].port", "Invalid spec.ports[0].targetPort"]),
            ("/spec/ports", json!([{"port": 80}, {"port": 81, "name": "a"}]), &["Required spec.ports[0].name"]),
            (
                "/spec/ports",
                json!([{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]),
                &["Duplicate spec.ports[1].name"],
            ),
            (
                "/spec/ports",
                json!([{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]),
                &["Duplicate spec.ports[1]"],
            ),
            ("/spec/ports", json!([{"port": 80, "protocol": "ICMP"}]), &["NotSupported spec.ports[0].protocol"]),
            (
                "/spec/ports",
                json!([{"port": 80, "targetPort": "much-too-long-name"}]),
                &["Invalid spec.ports[0].targetPort"],
            ),
            ("/spec/ports", json!([{"port": 80, "nodePort": 30_000}]), &["Forbidden spec.ports[0].nodePort"]),
            ("/spec/ports", json!([{"port": 80, "appProtocol": "a b"}]), &["Invalid spec.ports[0].appProtocol"]),
            ("/spec/type", json!("Odd"), &["NotSupported spec.type"]),
            ("/spec/type", json!("ExternalName"), &["Required spec.externalName"]),
            ("/spec/sessionAffinity", json!("Odd"), &["NotSupported spec.sessionAffinity"]),
            ("/spec/sessionAffinity", json!("ClientIP"), &[]),
            // What belongs to no affinity is forgotten with it.
            ("/spec/sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 5}}), &[]),
            ("/spec/clusterIP", json!("x"), &["Invalid spec.clusterIPs[0]"]),
            ("/spec/clusterIP", json!("None"), &[]),
            ("/spec/clusterIPs", json!(["10.0.0.1"]), &["Invalid spec.clusterIPs"]),
            ("/spec/selector", json!({"a b": "c"}), &["Invalid spec.selector"]),
            (
                "/spec/externalIPs",
                json!(["1.2.3.4", "x", "127.0.0.1", "169.254.1.1"]),
                &["Invalid spec.externalIPs[1]", "Invalid spec.externalIPs[2]", "Invalid spec.externalIPs[3]"],
            ),
            (
                "/spec/externalIPs",
                json!(["224.0.0.5", "fe80::1"]),
                &["Invalid spec.externalIPs[0]", "Invalid spec.externalIPs[1]"],
            ),
            ("/spec/externalIPs", json!(["239.1.2.3"]), &[]),
            ("/spec/loadBalancerClass", json!("x/y"), &["Forbidden spec.loadBalancerClass"]),
            (
                "/spec/loadBalancerSourceRanges",
                json!(["x"]),
                &["Invalid spec.LoadBalancerSourceRanges[0]", "Forbidden spec.LoadBalancerSourceRanges"],
            ),
            ("/spec/externalTrafficPolicy", json!("Local"), &["Invalid spec.externalTrafficPolicy"]),
            ("/spec/internalTrafficPolicy", json!("Odd"), &["NotSupported spec.internalTrafficPolicy"]),
            ("/spec/trafficDistribution", json!("Odd"), &["NotSupported spec.trafficDistribution"]),
            (
                "/metadata/annotations",
                json!({"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}),
                &["Forbidden metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]"],
            ),
            (
                "/metadata/annotations",
                json!({"service.kubernetes.io/topology-mode": "Auto", "service.kubernetes.io/topology-aware-hints": "auto"}),
                &["Invalid metadata.annotations[service.kubernetes.io/topology-mode]"],
            ),
            ("/spec/healthCheckNodePort", json!(30_000), &["Invalid spec.healthCheckNodePort"]),
            ("/spec/ipFamilies", json!(["IPv4", "IPv4"]), &["Duplicate spec.ipFamilies[1]"]),
            ("/spec/ipFamilies", json!(["IPv5"]), &["NotSupported spec.ipFamilies[0]"]),
            ("/spec/ipFamilyPolicy", json!("Odd"), &["NotSupported spec.ipFamilyPolicy"]),
            ("/metadata/name", json!("1x"), &["Invalid metadata.name"]),
        ],
    );
    let balanced = named(
        json!({"spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 30_001, "ports": [{"port": 80, "nodePort": 30_000}]}}),
    );
    created(
        "",
        "Service",
        &balanced,
        &[
            ("/spec/healthCheckNodePort", json!(null), &["Required spec.healthCheckNodePort"]),
            ("/spec/clusterIP", json!("None"), &["Invalid spec.clusterIPs[0]", "Invalid spec.clusterIPs"]),
            ("/spec/clusterIP", json!("10.0.0.2"), &["Invalid spec.clusterIPs"]),
            ("/spec/ports/0/port", json!(10_250), &["Invalid spec.ports[0]"]),
            (
                "/metadata/annotations",
                json!({"service.beta.kubernetes.io/load-balancer-source-ranges": " 10.0.0.0/8, x "}),
                &["Invalid metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]"],
            ),
            ("/metadata/annotations", json!({"service.beta.kubernetes.io/load-balancer-source-ranges": " "}), &[]),
            (
                "/spec/externalTrafficPolicy",
                json!("Odd"),
                &["NotSupported spec.externalTrafficPolicy", "Invalid spec.healthCheckNodePort"],
            ),
        ],
    );
    let headless = named(json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}));
    let external = named(json!({"spec": {"type": "ExternalName", "externalName": "a.example"}}));
    for (base, rows) in [
        (
            headless,
            vec![
                ("/spec/clusterIPs", json!(["None", "10.0.0.1"]), &["Invalid spec.clusterIPs"][..]),
                (
                    "/spec/clusterIPs",
                    json!(["None", "None"]),
                    &["Invalid spec.clusterIPs", "Invalid spec.clusterIPs[1]"],
                ),
            ],
        ),
        (
            external,
            vec![
                ("/spec/clusterIP", json!("10.0.0.1"), &["Forbidden spec.clusterIPs"][..]),
                ("/spec/clusterIPs", json!(["10.0.0.1"]), &["Forbidden spec.clusterIPs"]),
                ("/spec/ipFamilies", json!(["IPv4"]), &["Forbidden spec.ipFamilies"]),
                ("/spec/ipFamilyPolicy", json!("SingleStack"), &["Forbidden spec.ipFamilyPolicy"]),
                ("/spec/ports", json!([{"port": 80}]), &[]),
            ],
        ),
    ] {
        created("", "Service", &base, &rows);
    }
    changed(
        "",
        "Service",
        "",
        &balanced,
        &[
            ("/spec/ports/0/port", json!(81), &[]),
            ("/spec/clusterIP", json!("10.0.0.2"), &["Invalid spec.clusterIPs", "Invalid spec.clusterIPs[0]"]),
            ("/spec/loadBalancerClass", json!("a/b"), &["Invalid spec.loadBalancerClass"]),
            ("/spec/healthCheckNodePort", json!(30_002), &["Forbidden spec.healthCheckNodePort"]),
            ("/spec/ipFamilies", json!(["IPv6"]), &["Invalid spec.ipFamilies[0]"]),
        ],
    );
    changed(
        "",
        "Service",
        "status",
        &balanced,
        &[
            ("/status", json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}), &[]),
            (
                "/status",
                json!({"loadBalancer": {"ingress": [{"ip": "x"}, {"hostname": "1.2.3.4"}]}}),
                &["Invalid status.loadBalancer.ingress[0].ip", "Invalid status.loadBalancer.ingress[1].hostname"],
            ),
            (
                "/status",
                json!({"loadBalancer": {"ingress": [{"hostname": "a", "ipMode": "VIP"}]}}),
                &["Forbidden status.loadBalancer.ingress[0].ipMode"],
            ),
        ],
    );
}

#[test]
fn endpoints_and_classes() {
    let endpoints = named(json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]}));
    created(
        "",
        "Endpoints",
        &endpoints,
        &[
            ("/subsets/0/addresses", json!([]), &["Required subsets[0]"]),
            ("/subsets/0/addresses", json!([{"ip": "127.0.0.1"}]), &["Invalid subsets[0].addresses[0].ip"]),
            (
                "/subsets/0/ports",
                json!([{"port": 80}, {"port": 81, "name": "b"}]),
                &["Required subsets[0].ports[0].name"],
            ),
            ("/subsets/0/ports", json!([{"port": 0}]), &["Invalid subsets[0].ports[0].port"]),
        ],
    );
    let slice = named(json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}]}));
    created(
        "discovery.k8s.io",
        "EndpointSlice",
        &slice,
        &[
            ("/endpoints/0/addresses", json!([]), &["Required endpoints[0].addresses"]),
            ("/endpoints/0/addresses", json!(["x"]), &["Invalid endpoints[0].addresses[0]"]),
            // Nobody is led back into the machine from where he asks, or to what is beside it.
            ("/endpoints/0/addresses", json!(["127.0.0.1"]), &["Invalid endpoints[0].addresses[0]"]),
            ("/endpoints/0/addresses", json!(["169.254.169.254"]), &["Invalid endpoints[0].addresses[0]"]),
            ("/endpoints/0/addresses", json!(["0.0.0.0"]), &["Invalid endpoints[0].addresses[0]"]),
            ("/endpoints/0/addresses", json!(["224.0.0.1"]), &["Invalid endpoints[0].addresses[0]"]),
            ("/endpoints/0/hostname", json!("A"), &["Invalid endpoints[0].hostname"]),
            (
                "/endpoints/0/hints",
                json!({"forZones": [{"name": "a"}, {"name": "a"}], "forNodes": [{"name": "a"}]}),
                &["Duplicate endpoints[0].hints.forZones[1].name"],
            ),
            (
                "/endpoints/0/hints",
                json!({"forZones": [{"name": "a b"}], "forNodes": [{"name": "N"}]}),
                &["Invalid endpoints[0].hints.forZones[0].name", "Invalid endpoints[0].hints.forNodes[0].name"],
            ),
            (
                "/endpoints/0/hints",
                json!({"forNodes": (0..9).map(|node| json!({"name": format!("n{node}")})).collect::<Vec<_>>()}),
                &["TooMany endpoints[0].hints.forNodes"],
            ),
            ("/ports", json!([{"name": "a"}, {"name": "a"}]), &["Duplicate ports[1].name"]),
        ],
    );
    let slice6 = named(json!({"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::1"]}]}));
    let refused = &["Invalid endpoints[0].addresses[0]"][..];
    created(
        "discovery.k8s.io",
        "EndpointSlice",
        &slice6,
        &[
            ("/endpoints/0/addresses", json!(["::1"]), refused),
            ("/endpoints/0/addresses", json!(["fe80::1"]), refused),
            ("/endpoints/0/addresses", json!(["ff02::1"]), refused),
            ("/endpoints/0/addresses", json!(["::ffff:127.0.0.1"]), refused),
        ],
    );
    let range = global(json!({"spec": {"cidrs": ["10.0.0.0/16"]}}));
    created(
        "networking.k8s.io",
        "ServiceCIDR",
        &range,
        &[
            ("/spec/cidrs", json!(["10.0.0.0/16", "fd00::/112"]), &[]),
            ("/spec/cidrs", json!(["10.0.0.0/16", "10.1.0.0/16"]), &["Invalid spec.cidrs"]),
        ],
    );
    changed(
        "networking.k8s.io",
        "ServiceCIDR",
        "",
        &range,
        &[
            ("/metadata/labels", json!({"a": "b"}), &[]),
            ("/spec/cidrs", json!(["10.0.0.0/16", "fd00::/112"]), &[]),
            ("/spec/cidrs", json!(["10.1.0.0/16"]), &["Invalid spec.cidrs[0]"]),
            ("/spec/cidrs", json!(["fd00::/112", "10.0.0.0/16"]), &["Invalid spec.cidrs[0]"]),
        ],
    );
    changed(
        "discovery.k8s.io",
        "EndpointSlice",
        "",
        &slice,
        &[("/addressType", json!("FQDN"), &["Invalid addressType"])],
    );
    let class = global(json!({"spec": {"controller": "acme.io/foo"}}));
    created(
        "networking.k8s.io",
        "IngressClass",
        &class,
        &[
            ("/spec/controller", json!("foo"), &["Invalid spec.controller"]),
            (
                "/spec/parameters",
                json!({"kind": "K", "name": "n", "scope": "Namespace"}),
                &["Required spec.parameters.namespace"],
            ),
        ],
    );
    changed(
        "networking.k8s.io",
        "IngressClass",
        "",
        &class,
        &[("/spec/controller", json!("a.io/b"), &["Invalid spec.controller"])],
    );
    let ingress = named(
        json!({"spec": {"ingressClassName": "c", "defaultBackend": {"service": {"name": "s", "port": {"number": 1}}}}}),
    );
    created(
        "networking.k8s.io",
        "Ingress",
        &ingress,
        &[(
            "/metadata/annotations",
            json!({"kubernetes.io/ingress.class": "c"}),
            &["Invalid metadata.annotations.kubernetes.io/ingress.class"],
        )],
    );
    let tls = |name: &str| ("/spec/tls", json!([{"secretName": name}]));
    let (good, bad) = (tls("s"), tls("S"));
    let rows: [Row<'_>; 2] = [(good.0, good.1, &[]), (bad.0, bad.1.clone(), &["Invalid spec.tls[0].secretName"])];
    created("networking.k8s.io", "Ingress", &ingress, &rows);
    changed("networking.k8s.io", "Ingress", "", &ingress, &rows);
    // A name that was let in does not bar a change of something else.
    let let_in = with(ingress.clone(), &[bad]);
    changed("networking.k8s.io", "Ingress", "", &let_in, &[("/metadata/labels", json!({"a": "b"}), &[])]);
    changed(
        "networking.k8s.io",
        "Ingress",
        "status",
        &ingress,
        &[
            ("/status", json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "a.example"}]}}), &[]),
            (
                "/status",
                json!({"loadBalancer": {"ingress": [{"ip": "x"}, {"hostname": "1.2.3.4"}]}}),
                &["Invalid status.loadBalancer.ingress[0].ip", "Invalid status.loadBalancer.ingress[1].hostname"],
            ),
        ],
    );
}
