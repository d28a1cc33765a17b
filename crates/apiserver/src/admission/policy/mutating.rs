//! MutatingAdmissionPolicy: changes by JSON patch, or by a piece of an object that is merged in.

use carrack_cel::{Budget, Value as Cel};
use carrack_schema::apply;
use carrack_schema::decode::{Finding, whole_numbers};
use serde_json::Value;

use super::super::extend::{Asked, take};
use super::super::select::Seen;
use super::super::world::{World, all_hold};
use super::super::{Attributes, Operation};
use super::validating::{INVALID, NO_ERROR, bound};
use super::{MAX_COST, Mutation, Policy, params};
use crate::kinds;
use crate::metrics::Step;
use crate::object::Object;
use crate::registry::operations::{self, Fault, Missing};
use crate::status::Status;

/// Lets all policies that are bound to the request change its object.
pub(in crate::admission) async fn mutate(asked: &Asked<'_>, attributes: &mut Attributes<'_>) -> Result<(), Status> {
    // There is no object that could be changed.
    if matches!(attributes.operation, Operation::Delete | Operation::Connect) {
        return Ok(());
    }
    for binding in asked.hooks.mutating_bindings.values() {
        let Some(policy) = asked.hooks.mutating_policies.get(&binding.policy) else { continue };
        let Some(seen) = bound(policy, binding, asked, attributes) else { continue };
        let since = asked.cx.server.env.now();
        let changed = match params::find(asked, policy, binding, attributes.namespace).await {
            Err(why) => Err(format!("failed to configure binding: {why}")),
            Ok(all) => {
                let mut changed = Ok(());
                for params in all {
                    match change(asked, attributes, policy, seen, &params).await? {
                        Ok(Some(object)) => take(asked, attributes, seen, object).await?,
                        Ok(None) => {}
                        Err(why) => changed = Err(why),
                    }
                }
                changed
            }
        };
        let told = match &changed {
            Ok(()) => ("allow", NO_ERROR),
            Err(_) if policy.ignores_failure => ("allow", INVALID),
            Err(_) => ("deny", INVALID),
        };
        let took = asked.cx.server.env.now().duration_since(since);
        asked.cx.server.metrics.admission.policy(Step::Admit, (&policy.name, &binding.name), told, took);
        match changed {
            Ok(()) => {}
            Err(why) if policy.ignores_failure => {
                tracing::warn!(policy = policy.name, binding = binding.name, %why, "a policy cannot be evaluated, and goes without");
            }
            Err(why) => {
                let text = format!("policy '{}' with binding '{}' denied request: {why}", policy.name, binding.name);
                return Err(attributes.forbidden(&text));
            }
        }
    }
    Ok(())
}

/// The object as the policy would have it; none when it changes nothing.
async fn change(
    asked: &Asked<'_>,
    attributes: &Attributes<'_>,
    policy: &Policy,
    seen: Seen<'_>,
    params: &Value,
) -> Result<Result<Option<Object>, String>, Status> {
    let (before, old) = asked.both(attributes, seen).await?;
    let request = asked.request(attributes, seen);
    let namespace = asked.namespace.clone().map_or(Value::Null, Value::Object);
    let work = |authorizer: Option<&carrack_auth::Authorizer>| {
        let mut object = before.clone();
        for (index, mutation) in policy.mutations.iter().enumerate() {
            // Each one sees what those before it did.
            let mut world = World::new(attributes.caller, &request, &object, &old);
            world.set("params", params);
            world.set("namespaceObject", &namespace);
            world.compose(&policy.variables);
            if let Some(authorizer) = authorizer {
                world.authorize_by(authorizer);
            }
            if index == 0 && !all_hold(&policy.conditions, &world)? {
                return Ok(None);
            }
            object = Value::Object(step(seen, mutation, &world, object.clone())?);
        }
        Ok(match object {
            Value::Object(changed) if Value::Object(changed.clone()) != before => Some(changed),
            _ => None,
        })
    };
    if policy.uses_authorizer {
        return asked.cx.server.with_authorizer(|authorizer| work(Some(authorizer))).await;
    }
    Ok(work(None))
}

fn step(seen: Seen<'_>, mutation: &Mutation, world: &World<'_>, object: Value) -> Result<Object, String> {
    let program = mutation.program.as_ref().map_err(|why| format!("compilation error: {why}"))?;
    let value = program.eval(world, &mut Budget::new(MAX_COST)).map_err(|error| error.to_string())?;
    let mut written = value.to_json().ok_or("the expression's value is no JSON")?;
    // As upstream writes them, whole numbers have no point.
    whole_numbers(&mut written);
    if let Some((found, place)) = &mutation.misnamed {
        return Err(format!(
            "type mismatch: unexpected type name {found:?}, expected {place:?}, which matches field name path from root Object type"
        ));
    }
    if mutation.is_patch {
        if !matches!(value, Cel::List(_)) {
            return Err("the expression is no list of JSONPatch".to_owned());
        }
        patches(&written)?;
        return patched(object, written);
    }
    let Value::Object(fields) = &written else { return Err("the expression is no Object".to_owned()) };
    typed(seen, &object, fields)
        .map_err(|why| format!("error applying patch: failed to convert patch object to typed object: {why}"))?;
    let schema = seen.row.versions[seen.version].schema();
    let atomics = apply::atomics(fields, schema);
    if !atomics.is_empty() {
        let places = atomics.join(", ");
        return Err(format!(
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {places}"
        ));
    }
    let Value::Object(mut merged) = object else { return Err("there is no object".to_owned()) };
    apply::merge_piece(&mut merged, fields, schema);
    Ok(merged)
}

/// The object with a list of JSONPatch applied to it.
fn patched(object: Value, written: Value) -> Result<Object, String> {
    let patch: json_patch::Patch = serde_json::from_value(written).map_err(|error| format!("JSONPath: {error}"))?;
    let mut changed = object.clone();
    let changed = match operations::apply(&mut changed, &patch, Missing::Fault) {
        Ok(()) => changed,
        // What is not as it is tested stays as it is.
        Err(Fault::Unfit { untrue: true, .. }) => object,
        Err(fault) => return Err(format!("JSONPath: {fault}")),
    };
    match changed {
        Value::Object(changed) => Ok(changed),
        _ => Err("nothing is left of the object".to_owned()),
    }
}

/// Whether each item of a list has the fields of a JSONPatch alone, with what they may be.
fn patches(written: &Value) -> Result<(), String> {
    for operation in written.as_array().into_iter().flatten() {
        let Value::Object(fields) = operation else { return Err("an item of the list is no JSONPatch".to_owned()) };
        for (field, value) in fields {
            match field.as_str() {
                "value" => {}
                "op" | "path" | "from" if value.is_string() => {}
                "op" | "path" | "from" => return Err(format!("unexpected type for JSONPatchType '{field}' field")),
                other => return Err(format!("unexpected JSONPatchType field: {other}")),
            }
        }
    }
    Ok(())
}

/// Whether what is to be merged into an object has the fields of its kind alone. What is posted to a subresource may be of a kind
/// of its own.
fn typed(seen: Seen<'_>, object: &Value, fields: &Object) -> Result<(), String> {
    let row = seen.row;
    if object["kind"] != *row.kind {
        return Ok(());
    }
    let unknown =
        kinds::conform(row, &row.versions[seen.version], &mut fields.clone()).map_err(|error| error.to_string())?;
    let first = unknown.into_iter().find_map(|finding| match finding {
        Finding::Unknown(path) => Some(path),
        Finding::Duplicate(_) | Finding::Twice { .. } => None,
    });
    first.map_or(Ok(()), |path| Err(format!(".{path}: field not declared in schema")))
}
