//! MutatingAdmissionPolicy: changes by JSON patch, or by a piece of an object that is merged in.

use carrack_cel::{Budget, Value as Cel};
use carrack_schema::decode::Finding;
use carrack_schema::strategic;
use serde_json::Value;

use super::super::extend::{Asked, take};
use super::super::select::Seen;
use super::super::webhook::apply_patch;
use super::super::world::{World, all_hold};
use super::super::{Attributes, Operation};
use super::validating::{INVALID, NO_ERROR, bound};
use super::{MAX_COST, Mutation, Policy, params};
use crate::kinds;
use crate::metrics::Step;
use crate::object::Object;
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
    let written = value.to_json().ok_or("the expression's value is no JSON")?;
    if mutation.is_patch {
        if !matches!(value, Cel::List(_)) {
            return Err("the expression is no list of JSONPatch".to_owned());
        }
        return apply_patch(&object, written.to_string().as_bytes());
    }
    let Value::Object(fields) = &written else { return Err("the expression is no Object".to_owned()) };
    typed(seen, &object, fields)
        .map_err(|why| format!("error applying patch: failed to convert patch object to typed object: {why}"))?;
    let merged = if seen.row.is_custom {
        let mut merged = object;
        strategic::merge(&mut merged, &written);
        merged
    } else {
        strategic::apply(object, written, seen.row.versions[seen.version].schema())
            .map_err(|error| error.to_string())?
    };
    match merged {
        Value::Object(merged) => Ok(merged),
        _ => Err("nothing is left of the object".to_owned()),
    }
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
