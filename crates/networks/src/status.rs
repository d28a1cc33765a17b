//! What a pod's annotation says of its networks once they are there.
//!
//! Upstream: the de-facto standard, 5.1, in Multus' layout.

use serde_json::{Value, json};

/// One network's status: its name, the interface, and what the plugins made of it (`result`).
#[must_use]
pub fn entry(name: &str, interface: &str, result: &Value, is_default: bool) -> Value {
    let interfaces = result["interfaces"].as_array().map_or(&[][..], Vec::as_slice);
    // The one in the pod: others of the name may be on the host.
    let of_pod =
        |found: &&Value| found["name"] == interface && !found["sandbox"].as_str().unwrap_or_default().is_empty();
    let index = interfaces.iter().position(|found| of_pod(&found));
    let mac = index.and_then(|index| interfaces[index]["mac"].as_str()).unwrap_or_default();
    let mut status = json!({ "name": name, "interface": interface });
    let ips = addresses(result, index);
    if !ips.is_empty() {
        status["ips"] = json!(ips);
    }
    if !mac.is_empty() {
        status["mac"] = json!(mac);
    }
    if is_default {
        status["default"] = json!(true);
    }
    status["dns"] = result.get("dns").filter(|dns| dns.is_object()).cloned().unwrap_or_else(|| json!({}));
    status
}

/// The addresses of an interface, without the lengths of their prefixes. Results before 0.3.0 have one for each family.
fn addresses(result: &Value, interface: Option<usize>) -> Vec<String> {
    let plain = |text: &str| text.split('/').next().unwrap_or(text).to_owned();
    let listed = result["ips"].as_array().into_iter().flatten().filter(|ip| match ip["interface"].as_u64() {
        Some(of) => interface.is_some_and(|index| u64::try_from(index) == Ok(of)),
        None => true,
    });
    let listed = listed.filter_map(|ip| ip["address"].as_str());
    let old = ["ip4", "ip6"].into_iter().filter_map(|family| result[family]["ip"].as_str());
    listed.chain(old).map(plain).collect()
}

/// The annotation's text.
#[must_use]
pub fn annotation(entries: &[Value]) -> String {
    serde_json::to_string_pretty(entries).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_versions() {
        let check =
            |result: Value, expected: Value| assert_eq!(entry("n/a", "net1", &result, false), expected, "{result}");
        check(
            json!({
                "interfaces": [{"name": "net1"}, {"name": "veth1", "mac": "0a:00:00:00:00:01"},
                               {"name": "net1", "mac": "0a:00:00:00:00:02", "sandbox": "/ns"}],
                "ips": [{"address": "10.1.0.2/24", "interface": 2}, {"address": "10.9.0.2/24", "interface": 1},
                        {"address": "fd00::2/64"}],
                "dns": {"nameservers": ["10.1.0.1"]},
            }),
            json!({"name": "n/a", "interface": "net1", "ips": ["10.1.0.2", "fd00::2"], "mac": "0a:00:00:00:00:02",
                   "dns": {"nameservers": ["10.1.0.1"]}}),
        );
        check(
            json!({"ip4": {"ip": "10.1.0.2/24"}}),
            json!({"name": "n/a", "interface": "net1", "ips": ["10.1.0.2"], "dns": {}}),
        );
        check(json!({}), json!({"name": "n/a", "interface": "net1", "dns": {}}));
        check(json!("nonsense"), json!({"name": "n/a", "interface": "net1", "dns": {}}));
    }

    #[test]
    fn the_pod_network_is_marked() {
        let status = entry("carrack", "eth0", &json!({}), true);
        assert_eq!(status["default"], true);
        let text = annotation(&[status]);
        assert!(serde_json::from_str::<Value>(&text).is_ok_and(|list| list[0]["interface"] == "eth0"), "{text}");
    }
}
