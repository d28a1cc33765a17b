//! RuntimeClass: a pod of a runtime class carries its overhead, and goes where the class runs.

use serde_json::{Value, json};

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::object::{Object, at, child_mut, str_at};
use crate::status::Status;

const GROUP: &str = "node.k8s.io";
const CLASSES: &str = "runtimeclasses";

pub(super) struct RuntimeClass;

fn wanted<'a>(attributes: &'a Attributes<'_>) -> Option<&'a str> {
    let class = str_at(&attributes.object, &["spec", "runtimeClassName"]);
    (attributes.is("", "pods") && attributes.operation == Operation::Create && !class.is_empty()).then_some(class)
}

fn class<'a>(attributes: &Attributes<'_>, lookup: &'a dyn Lookup) -> Result<Option<&'a Object>, Status> {
    let Some(name) = wanted(attributes) else { return Ok(None) };
    match lookup.get(GROUP, CLASSES, "", name) {
        Some(class) => Ok(Some(class)),
        None => Err(attributes.forbidden(&format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

impl AdmissionPlugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        wanted(attributes).map(|class| Needed::one(GROUP, CLASSES, "", class)).into_iter().collect()
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let Some(class) = class(attributes, lookup)? else { return Ok(()) };
        if let Some(overhead) = at(class, &["overhead", "podFixed"]) {
            if at(&attributes.object, &["spec", "overhead"]).is_some_and(|own| own != overhead) {
                return Err(
                    attributes.forbidden("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
                );
            }
            child_mut(&mut attributes.object, "spec").insert("overhead".to_owned(), overhead.clone());
        }
        let selector =
            at(class, &["scheduling", "nodeSelector"]).and_then(Value::as_object).cloned().unwrap_or_default();
        for (key, value) in selector {
            let spec = child_mut(&mut attributes.object, "spec");
            let own = child_mut(spec, "nodeSelector");
            if own.get(&key).is_some_and(|own| *own != value) {
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                    value.as_str().unwrap_or_default(),
                    own.get(&key).and_then(Value::as_str).unwrap_or_default()
                );
                return Err(attributes.forbidden(&why));
            }
            own.insert(key, value);
        }
        if let Some(Value::Array(more)) = at(class, &["scheduling", "tolerations"]) {
            let spec = child_mut(&mut attributes.object, "spec");
            let own = spec.entry("tolerations").or_insert_with(|| json!([]));
            if let Some(own) = own.as_array_mut() {
                for toleration in more {
                    if !own.contains(toleration) {
                        own.push(toleration.clone());
                    }
                }
            }
        }
        Ok(())
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        // A plugin behind this one may have chosen or changed the overhead.
        let Some(class) = class(attributes, lookup)? else {
            let pod_without_class = attributes.is("", "pods") && attributes.operation == Operation::Create;
            if pod_without_class && at(&attributes.object, &["spec", "overhead"]).is_some() {
                return Err(attributes
                    .forbidden("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"));
            }
            return Ok(());
        };
        match (at(class, &["overhead", "podFixed"]), at(&attributes.object, &["spec", "overhead"])) {
            (None, Some(_)) => Err(attributes
                .forbidden("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")),
            (wanted, own) if wanted != own => {
                Err(attributes.forbidden("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"))
            }
            _ => Ok(()),
        }
    }
}
