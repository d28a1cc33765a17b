//! ValidatingAdmissionPolicy.

use std::collections::BTreeSet;

use carrack_cel::{Budget, EvalError, Value as Cel};
use serde_json::Value;

use super::super::Attributes;
use super::super::extend::Asked;
use super::super::world::{World, all_hold};
use super::{Binding, MAX_COST, Policy, Validation, params};
use crate::status::{Status, known_reason};

/// A validation that does not hold.
struct Failure {
    message: String,
    reason: &'static str,
}

/// What became of a policy: what does not hold, or why it cannot be said.
type Outcome = Result<Vec<Failure>, String>;

/// Asks all policies that are bound to the request.
pub(in crate::admission) async fn validate(asked: &Asked<'_>, attributes: &Attributes<'_>) -> Result<(), Status> {
    let mut denied: Option<Status> = None;
    for binding in asked.hooks.bindings.values() {
        let Some(policy) = asked.hooks.policies.get(&binding.policy) else { continue };
        let Some(version) = bound_version(policy, binding, asked, attributes) else { continue };
        let outcomes = match params::find(asked, policy, binding, attributes.namespace).await {
            Err(why) => vec![Err(format!("failed to configure binding: {why}"))],
            Ok(all) => {
                let mut outcomes = Vec::new();
                for params in all {
                    outcomes.push(evaluate(asked, attributes, policy, version, &params).await?);
                }
                outcomes
            }
        };
        for outcome in outcomes {
            let failures = match outcome {
                Ok(failures) => failures,
                Err(why) if policy.ignores_failure => {
                    tracing::warn!(policy = policy.name, binding = binding.name, %why, "a policy cannot be evaluated, and goes without");
                    continue;
                }
                Err(why) => {
                    let status = refusal(attributes, policy, binding, &Failure { message: why, reason: "Invalid" });
                    denied.get_or_insert(status);
                    continue;
                }
            };
            for failure in failures {
                for action in &binding.actions {
                    match action.as_str() {
                        "Deny" => {
                            denied.get_or_insert_with(|| refusal(attributes, policy, binding, &failure));
                        }
                        "Warn" => asked.cx.note(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                            policy.name, binding.name, failure.message
                        )),
                        _ => tracing::info!(
                            policy = policy.name,
                            binding = binding.name,
                            resource = %attributes.row.group_resource(),
                            name = attributes.name,
                            message = failure.message,
                            "a policy does not hold"
                        ),
                    }
                }
            }
        }
    }
    denied.map_or(Ok(()), Err)
}

/// The version in which the policy wants to see the object, if it and its binding are about the request.
pub(super) fn bound_version(
    policy: &Policy,
    binding: &Binding,
    asked: &Asked<'_>,
    attributes: &Attributes<'_>,
) -> Option<usize> {
    let namespace = asked.namespace.as_ref();
    let version = policy.selection.version_for(attributes, namespace)?;
    if binding.selection.has_rules() {
        binding.selection.version_for(attributes, namespace)?;
    } else if !binding.selection.selects(attributes, namespace) {
        return None;
    }
    Some(version)
}

fn refusal(attributes: &Attributes<'_>, policy: &Policy, binding: &Binding, failure: &Failure) -> Status {
    let text = format!(
        "ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {}",
        policy.name, binding.name, failure.message
    );
    let mut status = attributes.forbidden(&text);
    status.reason = failure.reason;
    status.code = match failure.reason {
        "Unauthorized" => 401,
        "Forbidden" => 403,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    status.because("", text, "")
}

async fn evaluate(
    asked: &Asked<'_>,
    attributes: &Attributes<'_>,
    policy: &Policy,
    version: usize,
    params: &Value,
) -> Result<Outcome, Status> {
    let (object, old) = asked.both(attributes, version).await?;
    let request = asked.request(attributes, version);
    let mut world = World::new(attributes.caller, &request, &object, &old);
    world.set("params", params);
    world.set("namespaceObject", &asked.namespace.clone().map_or(Value::Null, Value::Object));
    world.compose(&policy.variables);
    if policy.uses_authorizer {
        let judge = |authorizer: &carrack_auth::Authorizer| {
            let mut world = World::new(attributes.caller, &request, &object, &old);
            world.set("params", params);
            world.set("namespaceObject", &asked.namespace.clone().map_or(Value::Null, Value::Object));
            world.compose(&policy.variables);
            world.authorize_by(authorizer);
            judge(policy, &world)
        };
        return asked.cx.server.with_authorizer(judge).await;
    }
    Ok(judge(policy, &world))
}

fn judge(policy: &Policy, world: &World<'_>) -> Outcome {
    if !all_hold(&policy.conditions, world)? {
        return Ok(Vec::new());
    }
    let mut budget = Budget::new(MAX_COST);
    let mut failures = Vec::new();
    for validation in &policy.validations {
        let result = match &validation.program {
            Ok(program) => program.eval(world, &mut budget),
            Err(why) => return Err(format!("compilation error: {why}")),
        };
        match result {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => failures.push(failure(validation, world, &mut budget)),
            Ok(_) => return Err(format!("expression '{}' is no boolean", validation.source)),
            Err(EvalError::Exhausted) => {
                return Err(
                    "validation failed due to running out of cost budget, no further validation rules will be run"
                        .to_owned(),
                );
            }
            Err(error) => return Err(format!("expression '{}' resulted in error: {error}", validation.source)),
        }
    }
    let mut keys = BTreeSet::new();
    for annotation in &policy.annotations {
        let value = match &annotation.program {
            Ok(program) => program.eval(world, &mut budget).map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        let value = value.map_err(|why| format!("audit annotation '{}' resulted in error: {why}", annotation.name))?;
        if let Some(text) = value.as_str().filter(|_| keys.insert(&annotation.name)) {
            tracing::debug!(policy = policy.name, key = annotation.name, value = text, "audit annotation");
        }
    }
    Ok(failures)
}

fn failure(validation: &Validation, world: &World<'_>, budget: &mut Budget) -> Failure {
    let written = validation.message_expression.as_ref().and_then(|program| program.eval(world, budget).ok());
    let written = written.as_ref().and_then(Cel::as_str).map(str::trim);
    let message = match written.filter(|text| !text.is_empty() && !text.contains('\n')) {
        Some(text) => text.to_owned(),
        None if validation.message.trim().is_empty() => format!("failed expression: {}", validation.source.trim()),
        None => validation.message.trim().to_owned(),
    };
    let reason = known_reason(&validation.reason);
    Failure { message, reason: if reason.is_empty() { "Invalid" } else { reason } }
}
