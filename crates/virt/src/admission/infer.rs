//! Instance types and preferences that a machine does not name itself: labels of what its volume comes from do.
//!
//! ```text
//!   volume ─┬────────────────► claim
//!           └► DataVolume ─┬─► claim that it is copied from
//!                          └─► DataSource ─► claim
//! ```
//!
//! What comes first on the way and has the label counts. A DataVolume is as the machine's template of it says, where it has one.
//! DataVolumes and DataSources are there where somebody has defined them.
//! (Upstream: `pkg/instancetype/infer`; the words are its own.)

use carrack_apiserver::admission::{Lookup, Needed};
use carrack_apiserver::object::{Object, at, child_mut, meta, str_at};
use serde_json::{Value, json};

/// The group of DataVolumes and DataSources.
const DATA: &str = "cdi.kubevirt.io";
const CLAIMS: &str = "persistentvolumeclaims";

/// One of the two that a machine may leave open: its field of the spec, and the labels that say its name and its kind.
struct Matcher {
    field: &'static str,
    name: &'static str,
    kind: &'static str,
}

const INSTANCETYPE: Matcher = Matcher {
    field: "instancetype",
    name: "instancetype.kubevirt.io/default-instancetype",
    kind: "instancetype.kubevirt.io/default-instancetype-kind",
};
const PREFERENCE: Matcher = Matcher {
    field: "preference",
    name: "instancetype.kubevirt.io/default-preference",
    kind: "instancetype.kubevirt.io/default-preference-kind",
};

/// Why nothing can be inferred.
enum Failure {
    /// Where the volume comes from says nothing; a machine may go without, then.
    Untold(String),
    /// What is named is not there.
    Missing(String),
}

/// Whether a machine leaves it to a volume what its instance type or its preference is.
pub(super) fn wants(machine: &Object) -> bool {
    [INSTANCETYPE, PREFERENCE].iter().any(|matcher| volume_of(machine, matcher).is_some())
}

/// Puts what is inferred into a machine's spec, and says which objects were looked for.
///
/// # Errors
/// Why it cannot be.
pub(super) fn complete(
    machine: &mut Object,
    namespace: &str,
    lookup: &dyn Lookup,
    asked: &mut Vec<Needed>,
) -> Result<(), String> {
    for matcher in [INSTANCETYPE, PREFERENCE] {
        let Some(volume) = volume_of(machine, &matcher).map(str::to_owned) else { continue };
        let may_fail = str_at(machine, &["spec", matcher.field, "inferFromVolumeFailurePolicy"]) == "Ignore";
        let mut search = Search { lookup, namespace, matcher: &matcher, asked };
        let found = search.by_volume(machine, &volume);
        let spec = child_mut(machine, "spec");
        match found {
            Ok(found) => {
                spec.insert(matcher.field.to_owned(), found);
                // One that may go without has memory of its own for then, which an instance type has no room for.
                if may_fail
                    && matcher.field == INSTANCETYPE.field
                    && let Some(domain) =
                        spec.get_mut("template").and_then(|template| template.pointer_mut("/spec/domain"))
                    && let Some(domain) = domain.as_object_mut()
                {
                    domain.remove("memory");
                }
            }
            Err(Failure::Untold(_)) if may_fail => {
                spec.remove(matcher.field);
            }
            Err(Failure::Untold(why) | Failure::Missing(why)) => return Err(why),
        }
    }
    Ok(())
}

/// The volume that a matcher leaves it to. None of one that contradicts itself, or of a machine that is refused anyway: what is wrong
/// with these is told otherwise.
fn volume_of<'a>(machine: &'a Object, matcher: &Matcher) -> Option<&'a str> {
    let text = |name: &str| str_at(machine, &["spec", matcher.field, name]);
    let policy = at(machine, &["spec", matcher.field, "inferFromVolumeFailurePolicy"]);
    let is_sound = text("name").is_empty()
        && text("kind").is_empty()
        && policy.is_none_or(|policy| policy == "Ignore" || policy == "Reject");
    Some(text("inferFromVolume")).filter(|volume| !volume.is_empty() && is_sound)
}

/// The way from a volume to the labels of one matcher.
struct Search<'a> {
    lookup: &'a dyn Lookup,
    /// The machine's.
    namespace: &'a str,
    matcher: &'a Matcher,
    /// What was looked for on the way.
    asked: &'a mut Vec<Needed>,
}

impl<'a> Search<'a> {
    fn get(&mut self, group: &str, resource: &str, namespace: &str, name: &str) -> Result<&'a Object, Failure> {
        let missing = || {
            let dot = if group.is_empty() { "" } else { "." };
            Failure::Missing(format!("{resource}{dot}{group} \"{name}\" not found"))
        };
        if namespace.is_empty() || name.is_empty() {
            return Err(missing());
        }
        self.asked.push(Needed::one(group, resource, namespace, name));
        self.lookup.get(group, resource, namespace, name).ok_or_else(missing)
    }

    /// What the labels of an object say.
    fn told(&self, object: &Object) -> Result<Value, Failure> {
        let label = |name: &str| meta(object, "labels")?.get(name)?.as_str();
        let Some(name) = label(self.matcher.name) else {
            let why = format!("unable to find required {} label on the volume", self.matcher.name);
            return Err(Failure::Untold(why));
        };
        let kind = label(self.matcher.kind).filter(|kind| !kind.is_empty());
        Ok(kind.map_or_else(|| json!({ "name": name }), |kind| json!({ "name": name, "kind": kind })))
    }

    fn by_volume(&mut self, machine: &Object, name: &str) -> Result<Value, Failure> {
        let volumes = at(machine, &["spec", "template", "spec", "volumes"]).and_then(Value::as_array);
        let Some(volume) = volumes.into_iter().flatten().find(|volume| volume["name"] == name) else {
            return Err(Failure::Missing(format!("unable to find volume {name} to infer defaults")));
        };
        let text = |source: &str, field: &str| volume[source][field].as_str().unwrap_or_default();
        if volume["persistentVolumeClaim"].is_object() {
            self.by_claim(self.namespace, text("persistentVolumeClaim", "claimName"))
        } else if volume["dataVolume"].is_object() {
            let name = text("dataVolume", "name");
            let templates = at(machine, &["spec", "dataVolumeTemplates"]).and_then(Value::as_array);
            let template = templates.into_iter().flatten().find(|template| template["metadata"]["name"] == name);
            match template.and_then(Value::as_object) {
                // What it makes is as the template says, and may not be there yet.
                Some(template) => self.by_source(template),
                None => self.by_data_volume(name),
            }
        } else {
            let why = format!("unable to infer defaults from volume {name} as type is not supported");
            Err(Failure::Untold(why))
        }
    }

    fn by_claim(&mut self, namespace: &str, name: &str) -> Result<Value, Failure> {
        let claim = self.get("", CLAIMS, namespace, name)?;
        self.told(claim)
    }

    fn by_data_volume(&mut self, name: &str) -> Result<Value, Failure> {
        let Ok(volume) = self.get(DATA, "datavolumes", self.namespace, name) else {
            // It may go once its claim is there, which bears its name.
            return self.by_claim(self.namespace, name);
        };
        self.by_source(volume)
    }

    /// What a DataVolume says itself, or what it is copied from: `volume` is it, or a template of one.
    fn by_source(&mut self, volume: &Object) -> Result<Value, Failure> {
        if let Ok(told) = self.told(volume) {
            return Ok(told);
        }
        let text = |path: &[&str]| str_at(volume, path);
        if at(volume, &["spec", "source", "pvc"]).is_some() {
            let [namespace, name] = ["namespace", "name"].map(|field| text(&["spec", "source", "pvc", field]));
            let namespace = if namespace.is_empty() { self.namespace } else { namespace };
            return self.by_claim(namespace, name);
        }
        let Some(source) = at(volume, &["spec", "sourceRef"]) else {
            let why = "unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported";
            return Err(Failure::Untold(why.to_owned()));
        };
        let kind = text(&["spec", "sourceRef", "kind"]);
        if kind != "DataSource" {
            let why = format!("unable to infer defaults from DataVolumeSourceRef as Kind {kind} is not supported");
            return Err(Failure::Untold(why));
        }
        let namespace = source["namespace"].as_str().unwrap_or(self.namespace);
        self.by_data_source(namespace, text(&["spec", "sourceRef", "name"]))
    }

    fn by_data_source(&mut self, namespace: &str, name: &str) -> Result<Value, Failure> {
        let source = self.get(DATA, "datasources", namespace, name)?;
        if let Ok(told) = self.told(source) {
            return Ok(told);
        }
        if at(source, &["spec", "source", "pvc"]).is_none() {
            let why = "unable to infer defaults from DataSource that doesn't provide DataVolumeSourcePVC";
            return Err(Failure::Untold(why.to_owned()));
        }
        let [namespace, name] = ["namespace", "name"].map(|field| str_at(source, &["spec", "source", "pvc", field]));
        self.by_claim(namespace, name)
    }
}
