//! What a service's spec becomes: carried over from before, completed, with addresses and ports.
//!
//! Pure; upstream's `pkg/registry/core/service/storage` and `strategy.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::families::{self, addresses, has_addresses};
use super::range::{Cidr, Family, choose_port};
use crate::object::{Object, str_at};

/// What there is to hand out.
pub(super) struct Pool<'a> {
    pub ranges: &'a [Cidr],
    pub configured: &'a [Family],
    pub node_ports: (u16, u16),
    /// Addresses and ports that are taken, as text.
    pub addresses: &'a [&'a str],
    pub ports: &'a [&'a str],
}

/// Why a service cannot be had so.
#[derive(Debug)]
pub(super) enum Fault {
    /// A field of the spec, the cause's reason, the text.
    Field(String, &'static str, String),
    /// Nothing is left.
    Full(&'static str),
}

impl From<families::Fault> for Fault {
    fn from((field, reason, text): families::Fault) -> Fault {
        Fault::Field(field, reason, text)
    }
}

fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Fault {
    Fault::Field(field.into(), "FieldValueInvalid", format!("Invalid value: {value}: {why}"))
}

fn kind(spec: &Object) -> &str {
    str_at(spec, &["type"])
}

fn needs_node_ports(spec: &Object) -> bool {
    match kind(spec) {
        "NodePort" => true,
        "LoadBalancer" => spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    }
}

fn needs_health_check_port(spec: &Object) -> bool {
    kind(spec) == "LoadBalancer" && str_at(spec, &["externalTrafficPolicy"]) == "Local"
}

/// The number that a field names, whether or not there is such a port; 0 is none.
fn number_of(value: Option<&Value>) -> Option<i64> {
    value.and_then(Value::as_i64).filter(|number| *number != 0)
}

fn port_of(value: Option<&Value>) -> Option<u16> {
    number_of(value).and_then(|number| u16::try_from(number).ok())
}

fn ports(spec: &Object) -> &[Value] {
    spec.get("ports").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// All node ports of a spec, each once.
pub(super) fn node_ports(spec: &Object) -> Vec<u16> {
    let own = ports(spec).iter().filter_map(|port| port_of(port.get("nodePort")));
    let all: BTreeSet<u16> = own.chain(port_of(spec.get("healthCheckNodePort"))).collect();
    all.into_iter().collect()
}

/// Makes `spec` whole. `old` is what it was.
pub(super) fn allocate(
    spec: &mut Object,
    old: Option<&Object>,
    pool: &Pool<'_>,
    mut random: impl FnMut() -> u64,
) -> Result<(), Fault> {
    if let Some(old) = old {
        carry_over(spec, old);
        drop_what_was(spec, old);
    }
    families::settle_addresses(spec, old);
    families::complete(spec, pool.configured, old.is_some())?;
    if has_addresses(spec) {
        give_addresses(spec, old, pool, &mut random)?;
    }
    give_ports(spec, old, pool, &mut random)
}

/// What a client that replaces a service has left out stays.
fn carry_over(spec: &mut Object, old: &Object) {
    if kind(spec) != "ExternalName" && kind(old) != "ExternalName" {
        let lacks =
            [("clusterIP", str_at(spec, &["clusterIP"]).is_empty()), ("clusterIPs", addresses(spec).is_empty())];
        for (field, _) in lacks.into_iter().filter(|(_, is_unset)| *is_unset) {
            if let Some(value) = old.get(field) {
                spec.insert(field.to_owned(), value.clone());
            }
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if let (false, Some(value)) = (spec.contains_key(field), old.get(field)) {
                spec.insert(field.to_owned(), value.clone());
            }
        }
    }
    if needs_node_ports(spec) && needs_node_ports(old) {
        let identity = |port: &Value| (port["port"].as_i64(), port["protocol"].as_str().map(str::to_owned));
        // Of two that are the same, the first counts.
        let before: BTreeMap<_, Option<u16>> =
            ports(old).iter().rev().map(|port| (identity(port), port_of(port.get("nodePort")))).collect();
        let mut used: BTreeSet<u16> = ports(spec).iter().filter_map(|port| port_of(port.get("nodePort"))).collect();
        for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            if number_of(port.get("nodePort")).is_some() {
                continue;
            }
            let found = before.get(&identity(port)).copied().flatten();
            if let Some(node_port) = found.filter(|node_port| used.insert(*node_port)) {
                port["nodePort"] = node_port.into();
            }
        }
    }
    if needs_health_check_port(spec)
        && needs_health_check_port(old)
        && number_of(spec.get("healthCheckNodePort")).is_none()
        && let Some(port) = old.get("healthCheckNodePort")
    {
        spec.insert("healthCheckNodePort".to_owned(), port.clone());
    }
}

/// What belonged to the type that it no longer has goes, unless the client has set it anew.
fn drop_what_was(spec: &mut Object, old: &Object) {
    let drop_same = |spec: &mut Object, fields: &[&str]| {
        for field in fields {
            if spec.get(*field) == old.get(*field) {
                spec.remove(*field);
            }
        }
    };
    if kind(spec) == "ExternalName" && kind(old) != "ExternalName" {
        drop_same(spec, &["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"]);
    }
    if kind(old) == "ExternalName" && kind(spec) != "ExternalName" {
        drop_same(spec, &["externalName"]);
    }
    if needs_node_ports(old) && !needs_node_ports(spec) && kind(spec) != "LoadBalancer" {
        let before: Vec<Option<u16>> = ports(old).iter().map(|port| port_of(port.get("nodePort"))).collect();
        for (index, port) in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten().enumerate() {
            if before.get(index).copied().flatten() == port_of(port.get("nodePort"))
                && let Some(port) = port.as_object_mut()
            {
                port.remove("nodePort");
            }
        }
    }
    if needs_health_check_port(old) && !needs_health_check_port(spec) {
        drop_same(spec, &["healthCheckNodePort"]);
    }
    if kind(old) == "LoadBalancer" && kind(spec) != "LoadBalancer" {
        drop_same(spec, &["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    let external = |spec: &Object| matches!(kind(spec), "NodePort" | "LoadBalancer");
    if external(old) && !external(spec) {
        drop_same(spec, &["externalTrafficPolicy"]);
    }
}

fn give_addresses(
    spec: &mut Object,
    old: Option<&Object>,
    pool: &Pool<'_>,
    random: &mut impl FnMut() -> u64,
) -> Result<(), Fault> {
    let had: Vec<String> = old.map(addresses).unwrap_or_default();
    let families = families::families(spec);
    let mut all = addresses(spec);
    // With addresses of its own, a service has said which one is the first.
    let is_told_the_first = all.is_empty();
    all.truncate(families.len());
    let taken: BTreeSet<&str> = pool.addresses.iter().copied().collect();
    for (index, family) in families.iter().enumerate() {
        let ranges: Vec<&Cidr> = pool.ranges.iter().filter(|range| range.family() == *family).collect();
        match all.get(index) {
            // What was given stays; that it is another one now is told by validation.
            Some(_) if had.get(index).is_some() => {}
            Some(text) => {
                let refuse = |why: String| {
                    Err(invalid("clusterIPs", &json!([text]), &format!("failed to allocate IP {text}: {why}")))
                };
                // A text that is no address is told by validation.
                let Ok(address) = text.parse::<IpAddr>() else { continue };
                if !ranges.iter().any(|range| range.offers(address)) {
                    let shown: Vec<String> = ranges.iter().map(ToString::to_string).collect();
                    return refuse(format!(
                        "the provided IP ({text}) is not in the valid range. The range of valid IPs is {}",
                        shown.join(", ")
                    ));
                }
                if taken.contains(address.to_string().as_str()) {
                    return refuse("provided IP is already allocated".to_owned());
                }
            }
            None => {
                let draw = random();
                let is_taken = |address: IpAddr| taken.contains(address.to_string().as_str());
                let found = ranges.iter().find_map(|range| range.choose(draw, is_taken));
                let address = found.ok_or(Fault::Full("failed to allocate a serviceIP: range is full"))?;
                all.push(address.to_string());
            }
        }
    }
    if let Some(first) = all.first().filter(|_| is_told_the_first) {
        spec.insert("clusterIP".to_owned(), first.clone().into());
    }
    spec.insert("clusterIPs".to_owned(), all.into());
    Ok(())
}

fn give_ports(
    spec: &mut Object,
    old: Option<&Object>,
    pool: &Pool<'_>,
    random: &mut impl FnMut() -> u64,
) -> Result<(), Fault> {
    let had: BTreeSet<u16> = old.map(node_ports).unwrap_or_default().into_iter().collect();
    let taken: BTreeSet<u16> = pool.ports.iter().filter_map(|port| port.parse().ok()).collect();
    let (first, last) = pool.node_ports;
    let check = |field: String, number: i64| {
        let port = u16::try_from(number).ok().filter(|port| had.contains(port) || (first..=last).contains(port));
        let Some(port) = port else {
            let why = format!("provided port is not in the valid range. The range of valid ports is {first}-{last}");
            return Err(invalid(field, &number.into(), &why));
        };
        if taken.contains(&port) && !had.contains(&port) {
            return Err(invalid(field, &number.into(), "provided port is already allocated"));
        }
        Ok(port)
    };
    let allocates = needs_node_ports(spec);
    let mut own: BTreeSet<u16> = node_ports(spec).into_iter().collect();
    // A port that is offered over several protocols has one node port for all.
    let mut by_port: BTreeMap<(i64, String), u16> = BTreeMap::new();
    let health_check = needs_health_check_port(spec);
    let mut draw = |own: &BTreeSet<u16>| {
        choose_port(pool.node_ports, random(), |port| taken.contains(&port) || own.contains(&port))
            .ok_or(Fault::Full("failed to allocate a nodePort: range is full"))
    };
    if allocates || kind(spec) == "LoadBalancer" {
        for (index, port) in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten().enumerate() {
            let number = port["port"].as_i64().unwrap_or(0);
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            let node_port = match number_of(port.get("nodePort")) {
                Some(given) => check(format!("ports[{index}].nodePort"), given)?,
                None if !allocates => continue,
                None => {
                    let mut same =
                        by_port.range((number, String::new())..).take_while(|((known, _), _)| *known == number);
                    match same.find(|((_, over), _)| *over != protocol).map(|(_, node_port)| *node_port) {
                        Some(shared) => shared,
                        None => draw(&own)?,
                    }
                }
            };
            own.insert(node_port);
            by_port.insert((number, protocol), node_port);
            port["nodePort"] = node_port.into();
        }
    }
    if health_check {
        match number_of(spec.get("healthCheckNodePort")) {
            Some(given) => {
                check("healthCheckNodePort".to_owned(), given)?;
            }
            None => {
                let port = draw(&own)?;
                spec.insert("healthCheckNodePort".to_owned(), port.into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_ports_are_looked_up() {
        const MANY: u32 = 100_000;
        let given = (0..MANY).map(|number| json!({"port": number, "protocol": "TCP", "nodePort": 30000}));
        let shared = (0..MANY).map(|number| json!({"port": MANY, "protocol": format!("p{number}")}));
        let ports: Vec<Value> = given.chain(shared).collect();
        let spec = json!({"type": "NodePort", "clusterIP": "None", "ports": ports});
        let mut spec = spec.as_object().cloned().expect("an object");
        let pool =
            Pool { ranges: &[], configured: &[Family::V4], node_ports: (30_000, 32_767), addresses: &[], ports: &[] };
        for old in [None, Some(spec.clone())] {
            allocate(&mut spec, old.as_ref(), &pool, || 7).expect("there is room");
            let last = spec["ports"].as_array().and_then(|ports| ports.last()).map(|port| &port["nodePort"]);
            assert!(last.is_some_and(Value::is_u64), "{last:?}");
        }
    }
}
