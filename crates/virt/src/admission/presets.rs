//! Presets: what is filled in for new instances with certain labels, where they do not say it themselves.
//!
//! A preset says only a part of what a machine is: requests, CPU, firmware, clock, features, watchdog, and the policy of I/O threads. Each
//! of these is taken whole, and where an instance has it already, in whatever way, it stays. What a preset has given an instance, or
//! would have given it, an annotation says. Where two presets of one instance contradict each other, it is not made.
//!
//! They go first: what is left open then is filled in as ever, and all of it is judged. (Upstream: `applyPresets` in virt-api's
//! mutators, where presets are in no order; here they are in that of their names.)

use std::collections::BTreeMap;

use carrack_apiserver::admission::{Lookup, Needed};
use carrack_apiserver::object::{Object, meta};
use carrack_types::kubevirt::domain::Clock;
use carrack_types::kubevirt::{DomainSpec, Quantity, VirtualMachineInstance, VirtualMachineInstancePreset};
use carrack_types::resource::Object as _;
use carrack_types::selector::selects;
use carrack_types::well_known::kubevirt::GROUP;
use serde_json::{Value, json};

use super::{Faults, firmware};

/// Resource of presets.
pub(super) const PRESETS: &str = "virtualmachineinstancepresets";
/// Annotation of an instance: `true` when no preset concerns it.
const EXCLUDE: &str = "virtualmachineinstancepresets.admission.kubevirt.io/exclude";
/// What the annotations begin with that name the presets of an instance.
const APPLIED: &str = "virtualmachinepreset.kubevirt.io/";
/// What they say.
const VERSION: &str = "kubevirt.io/v1";
/// What whoever writes an instance with presets is told; upstream's words.
pub(super) const DEPRECATED: &str =
    "kubevirt.io/v1 VirtualMachineInstancePresets is now deprecated and will be removed in v2.";

/// What is looked at for an instance in a namespace.
pub(super) fn needs(namespace: &str) -> Needed {
    Needed::all(GROUP, PRESETS, namespace)
}

/// The presets of a namespace. One that cannot be read counts as none.
pub(super) fn list(namespace: &str, lookup: &dyn Lookup) -> Vec<VirtualMachineInstancePreset> {
    let read = |object: &Object| carrack_types::json::from_value(Value::Object(object.clone())).ok();
    lookup.list(GROUP, PRESETS, namespace).into_iter().filter_map(read).collect()
}

/// Completes an instance by those that choose it.
///
/// # Errors
/// Which of them contradict each other; nothing is changed then.
pub(super) fn apply(presets: &[VirtualMachineInstancePreset], vmi: &mut VirtualMachineInstance) -> Result<(), String> {
    if vmi.annotation(EXCLUDE) == Some("true") {
        return Ok(());
    }
    let labels = vmi.metadata.labels.as_ref();
    let chosen = presets.iter().filter(|preset| selects(&preset.spec.selector, labels));
    let chosen: Vec<(&str, &DomainSpec)> =
        chosen.filter_map(|preset| Some((preset.name(), preset.spec.domain.as_ref()?))).collect();
    let mut conflicts = Vec::new();
    for (number, (name, domain)) in chosen.iter().enumerate() {
        for (other, of_other) in &chosen[..number] {
            let differences = differences(domain, of_other);
            if !differences.is_empty() {
                conflicts.push(format!("presets '{name}' and '{other}' conflict: {}", together(&differences)));
            }
        }
    }
    if !conflicts.is_empty() {
        return Err(format!("VirtualMachinePresets cannot be applied due to conflicts: {}", together(&conflicts)));
    }
    for (name, domain) in chosen {
        if merge(domain, &mut vmi.spec.domain) {
            let annotations = vmi.metadata.annotations.get_or_insert_default();
            annotations.insert(format!("{APPLIED}{name}"), VERSION.to_owned());
        }
    }
    Ok(())
}

/// Whether an instance says that it has presets.
pub(super) fn has_some(instance: &Object) -> bool {
    let annotations = meta(instance, "annotations").and_then(Value::as_object);
    annotations.is_some_and(|all| all.keys().any(|key| key.starts_with(APPLIED)))
}

/// What is wrong with a preset. What its firmware needs of the rest of a machine, an instance may have from elsewhere, and that is
/// judged when it is whole. (Upstream: `ValidateVMIPresetSpec`.)
pub(super) fn check(preset: &VirtualMachineInstancePreset, faults: &mut Faults) {
    match &preset.spec.domain {
        Some(domain) => {
            if let Some(firmware) = &domain.firmware {
                firmware::check_alone("spec.domain.firmware", firmware, faults);
            }
        }
        None => faults.required("spec.domain", "missing domain."),
    }
}

/// Several sentences as upstream joins them.
fn together(sentences: &[String]) -> String {
    match sentences {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// What two of them both say, and not in the same way.
fn differences(one: &DomainSpec, other: &DomainSpec) -> Vec<String> {
    let requests = one.resources.requests.iter().filter_map(|(name, amount)| {
        let there = other.resources.requests.get(name).filter(|there| !is_same(amount, there))?;
        Some(format!("spec.resources.requests[{name}]: {amount} != {there}"))
    });
    let whole = parts(one).into_iter().zip(parts(other)).filter_map(|((name, one), (_, other))| {
        let (one, other) = one.zip(other)?;
        (one != other).then(|| format!("spec.{name}: {one} != {other}"))
    });
    requests.chain(whole).collect()
}

/// What is there of the parts that are taken whole, by upstream's names.
fn parts(domain: &DomainSpec) -> [(&'static str, Option<Value>); 7] {
    let clock = domain.clock.as_ref();
    [
        ("cpu", domain.cpu.as_ref().map(|cpu| json!(cpu))),
        ("firmware", domain.firmware.as_ref().map(|firmware| json!(firmware))),
        ("clock.clockoffset", clock.map(|clock| json!({"utc": clock.utc, "timezone": clock.timezone}))),
        ("clock.timer", clock.and_then(|clock| clock.timer.as_ref()).map(|timer| json!(timer))),
        ("features", domain.features.as_ref().map(|features| json!(features))),
        ("devices.watchdog", domain.devices.watchdog.as_ref().map(|watchdog| json!(watchdog))),
        ("ioThreadsPolicy", domain.io_threads_policy.as_ref().map(|policy| json!(policy))),
    ]
}

/// Fills in what is not there; tells whether something of the preset is there in the end.
fn merge(preset: &DomainSpec, into: &mut DomainSpec) -> bool {
    let (wanted, requests) = (&preset.resources.requests, &mut into.resources.requests);
    if requests.is_empty() {
        requests.clone_from(wanted);
    }
    let mut is_there = !wanted.is_empty() && are_same(wanted, requests);
    if let Some(wanted) = &preset.clock {
        let clock = into.clock.get_or_insert_with(|| Clock { timer: None, ..wanted.clone() });
        is_there |= *clock == *wanted;
        is_there |= take(wanted.timer.as_ref(), &mut clock.timer);
    }
    is_there |= take(preset.cpu.as_ref(), &mut into.cpu);
    is_there |= take(preset.firmware.as_ref(), &mut into.firmware);
    is_there |= take(preset.features.as_ref(), &mut into.features);
    is_there |= take(preset.devices.watchdog.as_ref(), &mut into.devices.watchdog);
    is_there |= take(preset.io_threads_policy.as_ref(), &mut into.io_threads_policy);
    is_there
}

/// The same for one part.
fn take<T: Clone + PartialEq>(wanted: Option<&T>, there: &mut Option<T>) -> bool {
    wanted.is_some_and(|wanted| *there.get_or_insert_with(|| wanted.clone()) == *wanted)
}

fn is_same(one: &Quantity, other: &Quantity) -> bool {
    one == other || one.amount().zip(other.amount()).is_some_and(|(one, other)| one == other)
}

fn are_same(one: &BTreeMap<String, Quantity>, other: &BTreeMap<String, Quantity>) -> bool {
    let has = |(name, amount): (&String, &Quantity)| other.get(name).is_some_and(|there| is_same(amount, there));
    one.len() == other.len() && one.iter().all(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preset(name: &str, selector: Value, domain: Value) -> VirtualMachineInstancePreset {
        let spec = json!({"selector": selector, "domain": domain});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a preset")
    }

    fn small(name: &str, domain: Value) -> VirtualMachineInstancePreset {
        preset(name, json!({"matchLabels": {"size": "small"}}), domain)
    }

    fn instance(annotations: Value, domain: Value) -> VirtualMachineInstance {
        let metadata = json!({"name": "demo", "labels": {"size": "small"}, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"domain": domain}})).expect("an instance")
    }

    /// What becomes of an instance: its domain, and the presets that its annotations name.
    fn applied(presets: &[VirtualMachineInstancePreset], mut vmi: VirtualMachineInstance) -> (DomainSpec, Vec<String>) {
        apply(presets, &mut vmi).expect("no conflict");
        let annotations = vmi.metadata.annotations.unwrap_or_default().into_iter();
        let named = annotations.filter(|(_, version)| version == VERSION);
        let named = named.filter_map(|(key, _)| key.strip_prefix(APPLIED).map(str::to_owned)).collect();
        (vmi.spec.domain, named)
    }

    fn domain(value: Value) -> DomainSpec {
        serde_json::from_value(value).expect("a domain")
    }

    #[test]
    fn a_preset_fills_in_what_an_instance_leaves_open() {
        let check = |of_preset: Value, of_instance: Value, wanted: Value, is_named: bool| {
            let (got, named) = applied(&[small("p", of_preset.clone())], instance(json!({}), of_instance.clone()));
            assert_eq!(got, domain(wanted), "{of_preset} {of_instance}");
            assert_eq!(named.len(), usize::from(is_named), "{of_preset} {of_instance}");
        };
        for part in [
            json!({"cpu": {"cores": 4}}),
            json!({"firmware": {"serial": "s"}}),
            json!({"features": {"smm": {"enabled": true}}}),
            json!({"ioThreadsPolicy": "shared"}),
            json!({"devices": {"watchdog": {"name": "dog", "i6300esb": {"action": "poweroff"}}}}),
            json!({"resources": {"requests": {"memory": "64M"}}}),
            json!({"clock": {"utc": {"offsetSeconds": 5}}}),
            json!({"clock": {"utc": {}, "timer": {"hpet": {"present": false}}}}),
        ] {
            check(part.clone(), json!({}), part.clone(), true);
            check(part.clone(), part.clone(), part, true);
        }
        // What an instance says stays, and nothing is mixed into it.
        let cores = |cores: u32| json!({"cpu": {"cores": cores}});
        check(cores(6), cores(4), cores(4), false);
        check(json!({"cpu": {"sockets": 2}}), cores(4), cores(4), false);
        let requests = |requests: Value| json!({"resources": {"requests": requests}});
        let memory = || requests(json!({"memory": "64Mi"}));
        check(requests(json!({"cpu": "1"})), memory(), memory(), false);
        check(requests(json!({"memory": "65536Ki"})), memory(), memory(), true);
        let (utc, timer) = (json!({"utc": {}}), json!({"hpet": {"present": false}}));
        let both = json!({"clock": {"utc": {}, "timer": timer}});
        check(json!({"clock": {"timezone": "UTC", "timer": timer}}), json!({ "clock": utc }), both, true);
        // The rest is none of its concern.
        check(json!({"machine": {"type": "pc"}, "memory": {"guest": "1Gi"}}), json!({}), json!({}), false);
    }

    #[test]
    fn presets_choose_by_labels() {
        let four = || json!({"cpu": {"cores": 4}});
        let check = |selector: Value, annotations: Value, chooses: bool| {
            let what = format!("{selector} {annotations}");
            let (_, named) = applied(&[preset("p", selector, four())], instance(annotations, json!({})));
            assert_eq!(named, if chooses { vec!["p"] } else { Vec::new() }, "{what}");
        };
        let exists = |operator: &str| json!({"matchExpressions": [{"key": "size", "operator": operator}]});
        check(json!({"matchLabels": {"size": "small"}}), json!({}), true);
        check(json!({"matchLabels": {"size": "large"}}), json!({}), false);
        check(exists("Exists"), json!({}), true);
        check(exists("DoesNotExist"), json!({}), false);
        check(json!({}), json!({}), true);
        check(json!({}), json!({EXCLUDE: "true"}), false);
        check(json!({}), json!({EXCLUDE: "false"}), true);
    }

    #[test]
    fn presets_that_contradict_each_other_are_told() {
        let refused = |presets: &[VirtualMachineInstancePreset]| {
            let before = instance(json!({}), json!({}));
            let mut vmi = before.clone();
            let told = apply(presets, &mut vmi).err();
            assert!(told.is_none() || vmi == before, "{told:?}");
            told
        };
        let memory = |amount: &str| json!({"resources": {"requests": {"memory": amount}}});
        let cpu = || json!({"cpu": {"cores": 4}});
        assert_eq!(refused(&[small("a", memory("64M")), small("b", memory("64000k")), small("c", cpu())]), None);
        let told = refused(&[small("a", memory("64M")), small("b", memory("128M"))]);
        let wanted = "VirtualMachinePresets cannot be applied due to conflicts: presets 'b' and 'a' conflict: \
                      spec.resources.requests[memory]: 128M != 64M";
        assert_eq!(told.as_deref(), Some(wanted));
        let clock = |clock: Value| json!({ "clock": clock });
        for (one, other, part) in [
            (cpu(), json!({"cpu": {"cores": 2}}), "spec.cpu: "),
            (json!({"firmware": {"serial": "a"}}), json!({"firmware": {"serial": "b"}}), "spec.firmware: "),
            (clock(json!({"utc": {}})), clock(json!({"timezone": "UTC"})), "spec.clock.clockoffset: "),
            (
                clock(json!({"timer": {"hpet": {"present": false}}})),
                clock(json!({"timer": {"pit": {"present": false}}})),
                "spec.clock.timer: ",
            ),
            (json!({"features": {}}), json!({"features": {"smm": {}}}), "spec.features: "),
            (
                json!({"devices": {"watchdog": {"name": "a"}}}),
                json!({"devices": {"watchdog": {"name": "b"}}}),
                "spec.devices.watchdog: ",
            ),
            (json!({"ioThreadsPolicy": "auto"}), json!({"ioThreadsPolicy": "shared"}), "spec.ioThreadsPolicy: "),
        ] {
            let told = refused(&[small("a", one), small("b", other)]).unwrap_or_default();
            assert!(told.contains(part), "{part}: {told}");
        }
        // Those that do not choose the instance say nothing.
        let large = preset("b", json!({"matchLabels": {"size": "large"}}), memory("128M"));
        assert_eq!(refused(&[small("a", memory("64M")), large]), None);
    }

    #[test]
    fn a_preset_has_a_domain() {
        let check = |domain: Value, wanted: &[&str]| {
            let mut faults = Faults::default();
            check(&small("p", domain.clone()), &mut faults);
            let fields: Vec<String> = faults.into_vec().into_iter().map(|fault| fault.field).collect();
            assert_eq!(fields, wanted, "{domain}");
        };
        check(json!(null), &["spec.domain"]);
        check(json!({}), &[]);
        check(json!({"firmware": {"serial": "a b"}}), &["spec.domain.firmware.serial"]);
        let loader = |loader: Value| json!({"firmware": {"bootloader": loader}});
        check(loader(json!({"efi": {}, "bios": {}})), &["spec.domain.firmware.bootloader"]);
        // Another preset, or the instance, has what these need.
        check(loader(json!({"efi": {}})), &[]);
        check(loader(json!({"bios": {"useSerial": true}})), &[]);
    }
}
