//! Which IP families a service has.
//!
//! Pure; upstream's `initIPFamilyFields` in `pkg/registry/core/service/storage/alloc.go`.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::range::Family;
use crate::object::{Object, str_at};

/// A fault: field of the spec, reason, text.
pub(super) type Fault = (String, &'static str, String);

fn texts(spec: &Object, field: &str) -> Vec<String> {
    spec.get(field)
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default()
}

/// The addresses that a spec names (`None` for headless).
pub(super) fn addresses(spec: &Object) -> Vec<String> {
    texts(spec, "clusterIPs")
}

/// The families of a spec.
pub(super) fn families(spec: &Object) -> Vec<Family> {
    texts(spec, "ipFamilies").iter().filter_map(|family| Family::parse(family)).collect()
}

fn is_headless(spec: &Object) -> bool {
    str_at(spec, &["clusterIP"]) == "None"
}

/// Whether a service of this spec has cluster addresses at all.
pub(super) fn has_addresses(spec: &Object) -> bool {
    str_at(spec, &["type"]) != "ExternalName" && !is_headless(spec)
}

/// A client that knows `clusterIP` alone says with it what `clusterIPs` begins with (upstream's `normalizeClusterIPs`).
/// Where the two are said and differ, validation tells.
pub(super) fn settle_addresses(spec: &mut Object, old: Option<&Object>) {
    let (first, all) = (str_at(spec, &["clusterIP"]).to_owned(), addresses(spec));
    let follows = all.is_empty() || old.is_some_and(|old| addresses(old) == all);
    if !first.is_empty() && all.first() != Some(&first) && follows {
        spec.insert("clusterIPs".to_owned(), json!([first]));
    }
}

/// Completes `ipFamilyPolicy` and `ipFamilies`. `configured` are the families that the cluster has,
/// its own first.
pub(super) fn complete(spec: &mut Object, configured: &[Family], updates: bool) -> Result<(), Fault> {
    if str_at(spec, &["type"]) == "ExternalName" {
        // It has none; validation tells who gives it some.
        return Ok(());
    }
    let given = addresses(spec);
    let mut families = families(spec);
    let named = families.len();
    for (index, text) in given.iter().enumerate() {
        let Ok(address) = text.parse::<IpAddr>() else { continue };
        let family = Family::of(address);
        match families.get(index) {
            None if index == families.len() => families.push(family),
            Some(named) if *named != family => {
                let text = format!("expected an {} value as indicated by `ipFamilies[{index}]`", named.text());
                return Err((
                    format!("clusterIPs[{index}]"),
                    "FieldValueInvalid",
                    format!("Invalid value: {:?}: {text}", given[index]),
                ));
            }
            _ => {}
        }
    }
    let headless = is_headless(spec);
    let selects = spec.get("selector").and_then(Value::as_object).is_some_and(|selector| !selector.is_empty());
    let anywhere = headless && !selects;
    let policy = match str_at(spec, &["ipFamilyPolicy"]) {
        "" if anywhere && !updates => "RequireDualStack",
        "" if families.len() == 2 => "RequireDualStack",
        "" => "SingleStack",
        given => given,
    }
    .to_owned();
    if families.is_empty() {
        families.push(configured.first().copied().unwrap_or(Family::V4));
    }
    if !anywhere {
        for (index, family) in families.iter().enumerate().take(named.max(given.len())) {
            if !configured.contains(family) {
                let text = format!("Invalid value: {:?}: not configured on this cluster", family.text());
                return Err((format!("ipFamilies[{index}]"), "FieldValueInvalid", text));
            }
        }
        if policy == "RequireDualStack" && configured.len() < 2 {
            let text = format!("Invalid value: {policy:?}: this cluster is not configured for dual-stack services");
            return Err(("ipFamilyPolicy".to_owned(), "FieldValueInvalid", text));
        }
    }
    if policy == "SingleStack" && families.len() == 2 {
        if !updates || named == 2 && given.len() == 2 {
            let text = "must be RequireDualStack or PreferDualStack when multiple `ipFamilies` are specified";
            if !updates {
                return Err((
                    "ipFamilyPolicy".to_owned(),
                    "FieldValueInvalid",
                    format!("Invalid value: {policy:?}: {text}"),
                ));
            }
        }
        families.truncate(1);
        truncate(spec, "clusterIPs");
    }
    let both = configured.len() == 2 || (anywhere && policy == "RequireDualStack");
    if policy != "SingleStack" && families.len() == 1 && both {
        families.push(families[0].other());
    }
    spec.insert("ipFamilyPolicy".to_owned(), policy.into());
    spec.insert("ipFamilies".to_owned(), families.iter().map(|family| family.text()).collect::<Vec<_>>().into());
    Ok(())
}

fn truncate(spec: &mut Object, field: &str) {
    if let Some(list) = spec.get_mut(field).and_then(Value::as_array_mut) {
        list.truncate(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &[Family] = &[Family::V4];
    const BOTH: &[Family] = &[Family::V4, Family::V6];

    fn check(spec: Value, configured: &[Family], want: &str) {
        let mut object = spec.as_object().cloned().expect("an object");
        settle_addresses(&mut object, None);
        let got = match complete(&mut object, configured, false) {
            Ok(()) => {
                let families: Vec<_> = families(&object).into_iter().map(Family::text).collect();
                format!("{} {}", str_at(&object, &["ipFamilyPolicy"]), families.join(","))
            }
            Err((field, _, text)) => format!("{field}: {text}"),
        };
        assert_eq!(got, want, "{spec}");
    }

    #[test]
    fn families_are_completed() {
        let selects = json!({"a": "b"});
        check(json!({"selector": selects}), V4, "SingleStack IPv4");
        check(json!({"selector": selects}), BOTH, "SingleStack IPv4");
        check(json!({"selector": selects, "ipFamilyPolicy": "PreferDualStack"}), V4, "PreferDualStack IPv4");
        check(json!({"selector": selects, "ipFamilyPolicy": "PreferDualStack"}), BOTH, "PreferDualStack IPv4,IPv6");
        check(
            json!({"selector": selects, "ipFamilyPolicy": "RequireDualStack"}),
            V4,
            "ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        );
        check(
            json!({"selector": selects, "ipFamilies": ["IPv6"]}),
            V4,
            "ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        );
        check(json!({"selector": selects, "ipFamilies": ["IPv6"]}), BOTH, "SingleStack IPv6");
        check(json!({"selector": selects, "clusterIP": "fd00::1"}), BOTH, "SingleStack IPv6");
        check(json!({"selector": selects, "clusterIPs": ["10.0.0.1", "fd00::1"]}), BOTH, "RequireDualStack IPv4,IPv6");
        check(json!({"selector": selects, "ipFamilies": ["IPv6", "IPv4"]}), BOTH, "RequireDualStack IPv6,IPv4");
        check(
            json!({"selector": selects, "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6", "IPv4"]}),
            BOTH,
            "ipFamilyPolicy: Invalid value: \"SingleStack\": must be RequireDualStack or PreferDualStack when multiple `ipFamilies` are specified",
        );
        check(
            json!({"selector": selects, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv6"]}),
            BOTH,
            "clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value as indicated by `ipFamilies[0]`",
        );
        check(json!({"clusterIP": "None"}), V4, "RequireDualStack IPv4,IPv6");
        check(json!({"clusterIP": "None", "selector": selects}), V4, "SingleStack IPv4");
        check(json!({"type": "ExternalName"}), V4, " ");
        check(json!({"type": "ExternalName", "ipFamilies": ["IPv4"]}), V4, " IPv4");
    }
}
