//! Priority: a pod's class becomes its number, and nobody sets the number. One class at most is that of pods that name none, and
//! those of the system stay: without them nobody could make a pod that names one.

use serde_json::Value;

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::object::{Object, child_mut, name, str_at};
use crate::status::Status;

pub(super) struct Priority;

const GROUP: &str = "scheduling.k8s.io";
const CLASSES: &str = "priorityclasses";
/// Classes that cannot be deleted.
const OF_SYSTEM: [&str; 2] = ["system-node-critical", "system-cluster-critical"];

impl AdmissionPlugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if is_said(attributes) {
            return vec![Needed::all(GROUP, CLASSES, "")];
        }
        if !attributes.is("", "pods") || attributes.operation != Operation::Create {
            return Vec::new();
        }
        match str_at(&attributes.object, &["spec", "priorityClassName"]) {
            "" => vec![Needed::all(GROUP, CLASSES, "")],
            class => vec![Needed::one(GROUP, CLASSES, "", class)],
        }
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if !attributes.is("", "pods") {
            return Ok(());
        }
        match attributes.operation {
            Operation::Create => {}
            Operation::Update => {
                keep(attributes);
                return Ok(());
            }
            Operation::Delete | Operation::Connect => return Ok(()),
        }
        let wanted = str_at(&attributes.object, &["spec", "priorityClassName"]).to_owned();
        let class = if wanted.is_empty() {
            default_class(lookup.list(GROUP, CLASSES, ""))
        } else {
            match lookup.get(GROUP, CLASSES, "", &wanted) {
                Some(class) => Some(class),
                None => {
                    return Err(attributes.forbidden(&format!("no PriorityClass with name {wanted} was found")));
                }
            }
        };
        let value = class.and_then(|class| class.get("value")).and_then(Value::as_i64).unwrap_or(0);
        let policy = class.map_or("", |class| str_at(class, &["preemptionPolicy"]));
        let policy = if policy.is_empty() { "PreemptLowerPriority" } else { policy };
        let class_name = class.map(|class| name(class).to_owned());
        let given = attributes.object.get("spec").and_then(|spec| spec.get("priority")).and_then(Value::as_i64);
        if given.is_some_and(|given| given != value) {
            return Err(attributes.forbidden(&format!(
                "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name",
                given.unwrap_or_default()
            )));
        }
        let given = str_at(&attributes.object, &["spec", "preemptionPolicy"]);
        if !given.is_empty() && given != policy {
            return Err(attributes.forbidden(&format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
            )));
        }
        let spec = child_mut(&mut attributes.object, "spec");
        if let Some(class_name) = class_name {
            spec.insert("priorityClassName".to_owned(), class_name.into());
        }
        spec.insert("priority".to_owned(), value.into());
        spec.insert("preemptionPolicy".to_owned(), policy.into());
        Ok(())
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let name_of_class = attributes.name.as_str();
        if attributes.operation == Operation::Delete
            && attributes.is(GROUP, CLASSES)
            && OF_SYSTEM.contains(&name_of_class)
        {
            return Err(attributes.forbidden("this priority class is the system's and cannot be deleted"));
        }
        if !is_said(attributes) || !is_default(&attributes.object) {
            return Ok(());
        }
        match default_class(lookup.list(GROUP, CLASSES, "")).map(name).filter(|other| *other != name_of_class) {
            Some(other) => Err(attributes.forbidden(&format!(
                "PriorityClass {other} is marked as the global default already, of which there can be only one"
            ))),
            None => Ok(()),
        }
    }
}

/// Whether somebody says what a class is.
fn is_said(attributes: &Attributes<'_>) -> bool {
    attributes.is(GROUP, CLASSES) && matches!(attributes.operation, Operation::Create | Operation::Update)
}

/// Who replaces a pod need not repeat what its class has given it.
fn keep(attributes: &mut Attributes<'_>) {
    let Some(Value::Object(before)) = attributes.old.and_then(|old| old.get("spec")) else { return };
    let spec = child_mut(&mut attributes.object, "spec");
    for field in ["priority", "preemptionPolicy"] {
        let said = spec.get(field).is_some_and(|value| !value.is_null());
        if let Some(value) = before.get(field).filter(|_| !said) {
            spec.insert(field.to_owned(), value.clone());
        }
    }
}

fn is_default(class: &Object) -> bool {
    class.get("globalDefault").and_then(Value::as_bool) == Some(true)
}

/// The class of pods that name none: the global default with the lowest value.
fn default_class(classes: Vec<&Object>) -> Option<&Object> {
    classes.into_iter().filter(|class| is_default(class)).min_by_key(|class| class.get("value").and_then(Value::as_i64))
}
