//! Live migrations: one that nobody would carry out is refused, and does not wait for ever.
//!
//! (Upstream: `migration-create-admitter.go` in virt-api, its words and its code 400 included.)

use carrack_apiserver::Status;
use carrack_apiserver::admission::{Attributes, Lookup, Needed, Operation};
use carrack_apiserver::object::str_at;
use carrack_types::kubevirt::VirtualMachineInstance;
use carrack_types::well_known::kubevirt::GROUP;

use super::Faults;
use super::plugin::{INSTANCES, read, refuse};

/// Whether a request asks for a migration.
pub(super) fn begins(attributes: &Attributes<'_>) -> bool {
    attributes.is(GROUP, "virtualmachineinstancemigrations") && attributes.operation == Operation::Create
}

/// The instance that is to move.
pub(super) fn needs(attributes: &Attributes<'_>) -> Vec<Needed> {
    let name = instance_of(attributes);
    if name.is_empty() { Vec::new() } else { vec![Needed::one(GROUP, INSTANCES, attributes.namespace, name)] }
}

/// Whether somebody would carry it out.
///
/// # Errors
/// 422 where no instance is named, 400 with the reason why the one that is named cannot move.
pub(super) fn check(attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
    let name = instance_of(attributes);
    if name.is_empty() {
        let mut faults = Faults::default();
        faults.required("spec.vmiName", "vmiName is missing");
        return refuse(attributes, faults.into_vec());
    }
    let Some(stored) = lookup.get(GROUP, INSTANCES, attributes.namespace, name) else {
        return Err(Status::bad_request(format!("the VMI \"{}/{name}\" does not exist", attributes.namespace)));
    };
    refusal(&read(attributes, stored)?).map_or(Ok(()), |why| Err(Status::bad_request(why)))
}

fn instance_of<'a>(attributes: &'a Attributes<'_>) -> &'a str {
    str_at(&attributes.object, &["spec", "vmiName"])
}

/// Why an instance cannot move, if it says so.
fn refusal(vmi: &VirtualMachineInstance) -> Option<String> {
    if vmi.is_final() {
        return Some("Cannot migrate VMI in finalized state.".to_owned());
    }
    let against = vmi.condition("LiveMigratable").filter(|condition| condition.status == "False")?;
    Some(format!("Cannot migrate VMI, Reason: {}, Message: {}", against.reason, against.message))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::refusal;

    #[test]
    fn only_what_can_move_is_asked_to() {
        let check = |phase: &str, migratable: Value, wanted: Option<&str>| {
            let conditions: Vec<Value> = migratable
                .as_str()
                .map(|status| json!({"type": "LiveMigratable", "status": status, "reason": "R", "message": "m"}))
                .into_iter()
                .collect();
            let status = json!({"phase": phase, "conditions": conditions});
            let vmi = json!({"metadata": {"name": "demo"}, "status": status});
            let vmi = serde_json::from_value(vmi).expect("an instance");
            assert_eq!(refusal(&vmi).as_deref(), wanted, "{phase} {migratable}");
        };
        check("Running", json!("True"), None);
        check("Scheduling", Value::Null, None);
        check("Running", json!("False"), Some("Cannot migrate VMI, Reason: R, Message: m"));
        for phase in ["Succeeded", "Failed"] {
            check(phase, json!("True"), Some("Cannot migrate VMI in finalized state."));
        }
    }
}
