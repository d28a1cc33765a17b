//! Priority: a pod's class becomes its number, and nobody sets the number.

use serde_json::Value;

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::object::{Object, child_mut, name, str_at};
use crate::status::Status;

pub(super) struct Priority;

const GROUP: &str = "scheduling.k8s.io";
const CLASSES: &str = "priorityclasses";

impl AdmissionPlugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if !attributes.is("", "pods") || attributes.operation != Operation::Create {
            return Vec::new();
        }
        match str_at(&attributes.object, &["spec", "priorityClassName"]) {
            "" => vec![Needed::all(GROUP, CLASSES, "")],
            class => vec![Needed::one(GROUP, CLASSES, "", class)],
        }
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if !attributes.is("", "pods") || attributes.operation != Operation::Create {
            return Ok(());
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
}

/// The class of pods that name none: the global default with the lowest value.
fn default_class(classes: Vec<&Object>) -> Option<&Object> {
    classes
        .into_iter()
        .filter(|class| class.get("globalDefault").and_then(Value::as_bool) == Some(true))
        .min_by_key(|class| class.get("value").and_then(Value::as_i64))
}
