//! PodSecurity: pods keep to the level that their namespace's labels name.
//!
//! `enforce` refuses pods; `warn` tells the client, also about templates in workloads; `audit` tells
//! the audit log of the same. What comes of it is counted. Where labels say nothing, and for whom nothing holds, the server is
//! told when it starts ([`Configuration`]). <https://kubernetes.io/docs/concepts/security/pod-security-admission/>

mod baseline;
mod check;
mod configuration;
mod restricted;

use carrack_schema::validate::plain;
use carrack_types::well_known::APPARMOR_PREFIX;
use serde_json::Value;

use self::check::{Pod, Violation};
pub(crate) use self::configuration::Configuration;
use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::metrics::PodSecurityMetrics;
use crate::object::{Object, at, meta, name};
use crate::status::Status;

const PREFIX: &str = "pod-security.kubernetes.io/";
/// Pods of a namespace that are looked at when its level changes.
const MAX_PODS: usize = 3000;

pub(super) struct PodSecurity {
    pub configuration: Configuration,
    pub metrics: PodSecurityMetrics,
}

/// How much a pod may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Level> {
        match text {
            "privileged" => Some(Level::Privileged),
            "baseline" => Some(Level::Baseline),
            "restricted" => Some(Level::Restricted),
            _ => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }
}

/// A level in the form that it had in some release: `latest`, or its minor number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    level: Level,
    minor: Option<u32>,
}

impl Policy {
    /// The policy of a mode (`enforce`, `audit`, `warn`). A label that names no level makes what is enforced as strict as can
    /// be, and leaves nothing to tell of otherwise, as upstream.
    fn of(namespace: &Object, mode: &str, configuration: &Configuration) -> Policy {
        let label = |key: String| meta(namespace, "labels").and_then(|labels| labels.get(&key)).and_then(Value::as_str);
        let mut policy = configuration.default_of(mode);
        if let Some(text) = label(format!("{PREFIX}{mode}")) {
            policy.level =
                Level::parse(text).unwrap_or(if mode == "enforce" { Level::Restricted } else { Level::Privileged });
        }
        if let Some(text) = label(format!("{PREFIX}{mode}-version")) {
            policy.minor = minor(text).flatten();
        }
        policy
    }

    fn text(&self) -> String {
        match self.minor {
            None => format!("{}:latest", self.level.text()),
            Some(minor) => format!("{}:v1.{minor}", self.level.text()),
        }
    }

    /// What the pod does that it may not.
    fn violations(&self, metadata: Option<&Value>, spec: &Value) -> Vec<Violation> {
        let pod = Pod { metadata: metadata.unwrap_or(&Value::Null), spec, minor: self.minor };
        let mut found = Vec::new();
        if self.level >= Level::Baseline {
            found.extend(baseline::check(&pod, self.level == Level::Restricted));
        }
        if self.level >= Level::Restricted {
            found.extend(restricted::check(&pod));
        }
        found
    }
}

/// `latest` or `v1.N`; none for something else.
fn minor(text: &str) -> Option<Option<u32>> {
    match text.strip_prefix("v1.") {
        Some(number) => number.parse().ok().map(Some),
        None => (text == "latest").then_some(None),
    }
}

fn sentence(violations: &[Violation]) -> String {
    let one = |violation: &Violation| match violation.detail.as_str() {
        "" => violation.reason.clone(),
        detail => format!("{} ({detail})", violation.reason),
    };
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Where the template of a kind is; pods are their own.
fn template(group: &str, plural: &str) -> Option<&'static [&'static str]> {
    match (group, plural) {
        ("", "replicationcontrollers") | ("apps", "replicasets" | "deployments" | "statefulsets" | "daemonsets") => {
            Some(&["spec", "template"])
        }
        ("batch", "jobs") => Some(&["spec", "template"]),
        ("batch", "cronjobs") => Some(&["spec", "jobTemplate", "spec", "template"]),
        ("", "podtemplates") => Some(&["template"]),
        _ => None,
    }
}

/// Whether an update of a pod can change what it may do.
fn changes(attributes: &Attributes<'_>) -> bool {
    let Some(old) = attributes.old else { return true };
    let changed = |list: &str| differ(at(old, &["spec", list]), at(&attributes.object, &["spec", list]));
    ["containers", "initContainers", "ephemeralContainers"].into_iter().any(changed)
        || apparmor(old) != apparmor(&attributes.object)
}

/// Whether two lists say something else. One that is empty is as good as absent, and so is what is nothing in their items.
fn differ(one: Option<&Value>, other: Option<&Value>) -> bool {
    let is_something = |list: &Value| list.as_array().is_none_or(|items| !items.is_empty());
    let said = |list: Option<&Value>| list.filter(|list| is_something(list)).map(plain);
    one != other && said(one) != said(other)
}

fn apparmor(object: &Object) -> Vec<(&String, &Value)> {
    let annotations = meta(object, "annotations").and_then(Value::as_object).into_iter().flatten();
    annotations.filter(|(key, _)| key.starts_with(APPARMOR_PREFIX)).collect()
}

impl PodSecurity {
    fn is_pod(attributes: &Attributes<'_>) -> bool {
        (&*attributes.row.group, &*attributes.row.plural) == ("", "pods")
            && matches!(attributes.subresource, "" | "ephemeralcontainers" | "resize")
            && match attributes.operation {
                Operation::Create => attributes.subresource.is_empty(),
                Operation::Update => changes(attributes),
                Operation::Delete | Operation::Connect => false,
            }
    }

    fn template<'a>(attributes: &'a Attributes<'_>) -> Option<&'a Value> {
        if attributes.operation == Operation::Delete || !attributes.subresource.is_empty() {
            return None;
        }
        at(&attributes.object, template(&attributes.row.group, &attributes.row.plural)?)
    }

    /// The metadata and the spec that are held against policies: a pod's, or a template's.
    fn subject<'a>(attributes: &'a Attributes<'_>) -> Option<(Option<&'a Value>, Option<&'a Value>)> {
        match Self::template(attributes) {
            Some(template) => Some((template.get("metadata"), template.get("spec"))),
            None if Self::is_pod(attributes) => {
                Some((attributes.object.get("metadata"), attributes.object.get("spec")))
            }
            None => None,
        }
    }

    /// By what the pod or the template is not looked at.
    fn exempts(&self, attributes: &Attributes<'_>) -> Option<&'static str> {
        let (_, spec) = Self::subject(attributes)?;
        self.configuration.exempts(attributes, spec)
    }

    fn policy(&self, namespace: &Object, mode: &str) -> Policy {
        Policy::of(namespace, mode, &self.configuration)
    }

    /// What a pod or a template does that a mode of its namespace does not want.
    fn would_violate(&self, attributes: &Attributes<'_>, namespace: &Object, mode: &str) -> Option<String> {
        let (metadata, spec) = Self::subject(attributes)?;
        let policy = self.policy(namespace, mode);
        let violations = policy.violations(metadata, spec.unwrap_or(&Value::Null));
        let text = || format!("would violate PodSecurity {:?}: {}", policy.text(), sentence(&violations));
        (!violations.is_empty()).then(text)
    }

    /// Counts that a pod or a template was held against the policy of a mode.
    fn count(&self, attributes: &Attributes<'_>, namespace: &Object, mode: &'static str, is_allowed: bool) {
        let Policy { level, minor } = self.policy(namespace, mode);
        self.metrics.evaluated(attributes, mode, (level.text(), minor), is_allowed);
    }

    /// The namespace's new policy, when it has become stricter.
    fn tightened(&self, attributes: &Attributes<'_>) -> Option<Policy> {
        if attributes.operation != Operation::Update
            || !attributes.is("", "namespaces")
            || self.configuration.exempts_namespace(&attributes.name)
        {
            return None;
        }
        let new = self.policy(&attributes.object, "enforce");
        let old = self.policy(attributes.old?, "enforce");
        (new != old && new.level >= old.level && new.level > Level::Privileged).then_some(new)
    }
}

impl AdmissionPlugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if Self::subject(attributes).is_some() {
            return vec![Needed::one("", "namespaces", "", attributes.namespace)];
        }
        if self.tightened(attributes).is_some() {
            return vec![Needed::all("", "pods", &attributes.name)];
        }
        Vec::new()
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if attributes.is("", "namespaces") && attributes.operation != Operation::Delete {
            return labels(attributes);
        }
        let is_pod = Self::is_pod(attributes);
        if !is_pod && Self::template(attributes).is_none() {
            return Ok(());
        }
        let Some(namespace) = lookup.get("", "namespaces", "", attributes.namespace) else { return Ok(()) };
        if self.exempts(attributes).is_some() {
            self.metrics.exempted(attributes);
            return Ok(());
        }
        // Counted whether or not there is a log that tells of it. Upstream counts what passes where it is enforced alone.
        if self.would_violate(attributes, namespace, "audit").is_some() {
            self.count(attributes, namespace, "audit", false);
        }
        if !is_pod {
            return Ok(());
        }
        let policy = self.policy(namespace, "enforce");
        let spec = attributes.object.get("spec").unwrap_or(&Value::Null);
        let violations = policy.violations(attributes.object.get("metadata"), spec);
        self.count(attributes, namespace, "enforce", violations.is_empty());
        if violations.is_empty() {
            return Ok(());
        }
        Err(attributes.forbidden(&format!("violates PodSecurity {:?}: {}", policy.text(), sentence(&violations))))
    }

    fn warnings(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<String> {
        if let Some(policy) = self.tightened(attributes) {
            return existing(&policy, attributes, &lookup.list("", "pods", &attributes.name));
        }
        let Some(namespace) = lookup.get("", "namespaces", "", attributes.namespace) else { return Vec::new() };
        // What is enforced the same way has passed for a pod.
        let has_passed = || self.policy(namespace, "warn") == self.policy(namespace, "enforce");
        if self.exempts(attributes).is_some() || (Self::is_pod(attributes) && has_passed()) {
            return Vec::new();
        }
        let warned = self.would_violate(attributes, namespace, "warn");
        if warned.is_some() {
            self.count(attributes, namespace, "warn", false);
        }
        warned.into_iter().collect()
    }

    fn annotations(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<(String, String)> {
        let is_pod = Self::is_pod(attributes);
        if !is_pod && Self::template(attributes).is_none() {
            return Vec::new();
        }
        if let Some(by) = self.exempts(attributes) {
            return vec![(format!("{PREFIX}exempt"), by.to_owned())];
        }
        let Some(namespace) = lookup.get("", "namespaces", "", attributes.namespace) else { return Vec::new() };
        let enforced = is_pod.then(|| (format!("{PREFIX}enforce-policy"), self.policy(namespace, "enforce").text()));
        let violations = self.would_violate(attributes, namespace, "audit");
        enforced.into_iter().chain(violations.map(|text| (format!("{PREFIX}audit-violations"), text))).collect()
    }
}

/// Labels that name no level or version are refused.
fn labels(attributes: &Attributes<'_>) -> Result<(), Status> {
    let mut faults = Vec::new();
    let labels = meta(&attributes.object, "labels").and_then(Value::as_object);
    for mode in ["enforce", "audit", "warn"] {
        for (key, good, why) in [
            (
                format!("{PREFIX}{mode}"),
                (|text: &str| Level::parse(text).is_some()) as fn(&str) -> bool,
                "must be one of privileged, baseline, restricted",
            ),
            (format!("{PREFIX}{mode}-version"), |text: &str| minor(text).is_some(), "must be \"latest\" or \"v1.x\""),
        ] {
            let Some(value) = labels.and_then(|labels| labels.get(&key)).and_then(Value::as_str) else { continue };
            let before = attributes.old.and_then(|old| meta(old, "labels")).and_then(|l| l.get(&key));
            if !good(value) && before.and_then(Value::as_str) != Some(value) {
                let field = format!("metadata.labels[{key}]");
                faults.push(("FieldValueInvalid".to_owned(), field, format!("Invalid value: {value:?}: {why}")));
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(Status::invalid("", "Namespace", &attributes.name, &faults)) }
}

/// Which pods of a namespace its new level would refuse.
fn existing(policy: &Policy, attributes: &Attributes<'_>, pods: &[&Object]) -> Vec<String> {
    let mut by_fault: Vec<(String, Vec<&str>)> = Vec::new();
    for pod in pods.iter().take(MAX_PODS) {
        let violations = policy.violations(pod.get("metadata"), pod.get("spec").unwrap_or(&Value::Null));
        if violations.is_empty() {
            continue;
        }
        let reasons = violations.iter().map(|v| v.reason.as_str()).collect::<Vec<_>>().join(", ");
        match by_fault.iter_mut().find(|(known, _)| *known == reasons) {
            Some((_, names)) => names.push(name(pod)),
            None => by_fault.push((reasons, vec![name(pod)])),
        }
    }
    if by_fault.is_empty() {
        return Vec::new();
    }
    let mut warnings = vec![format!(
        "existing pods in namespace {:?} violate the new PodSecurity enforce level {:?}",
        attributes.name,
        policy.text()
    )];
    warnings.extend(by_fault.into_iter().map(|(reasons, names)| match names.as_slice() {
        [one] => format!("{one}: {reasons}"),
        [first, others @ ..] => {
            let plural = if others.len() == 1 { "" } else { "s" };
            format!("{first} (and {} other pod{plural}): {reasons}", others.len())
        }
        [] => reasons,
    }));
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_nothing_changes_nothing() {
        for (one, other, expected) in [
            (json!(null), json!([]), false),
            (json!([{"name": "c", "tty": false, "args": []}]), json!([{"name": "c"}]), false),
            (json!([{"name": "c"}]), json!([]), true),
            (json!([{"name": "c", "securityContext": {"privileged": true}}]), json!([{"name": "c"}]), true),
            (json!([{"name": "c", "securityContext": {"runAsUser": 0}}]), json!([{"name": "c"}]), true),
        ] {
            let given = |value: &Value| (!value.is_null()).then(|| value.clone());
            let (a, b) = (given(&one), given(&other));
            assert_eq!(differ(a.as_ref(), b.as_ref()), expected, "{one} and {other}");
            assert_eq!(differ(b.as_ref(), a.as_ref()), expected, "{other} and {one}");
        }
    }
}
