//! ValidatingAdmissionPolicy.

use std::collections::{BTreeMap, BTreeSet};

use carrack_cel::{Budget, EvalError, Value as Cel};
use serde_json::{Value, json};

use super::super::Attributes;
use super::super::extend::Asked;
use super::super::select::Seen;
use super::super::world::{World, all_hold};
use super::{Binding, MAX_COST, Policy, Validation, params};
use crate::metrics::Step;
use crate::status::{Status, known_reason};

/// A validation that does not hold, or of which that cannot be said. What becomes of either is the binding's to say.
struct Failure {
    message: String,
    reason: &'static str,
    /// Which one of its policy it is.
    index: usize,
    /// What went wrong, in the words of upstream's metrics.
    error: &'static str,
}

/// What a policy says of a request.
#[derive(Default)]
struct Said {
    failures: Vec<Failure>,
    /// For the audit log, by key.
    annotations: Vec<(String, String)>,
    /// Why something for the audit log cannot be said, where the request does not go on without: whatever the binding
    /// does with failures.
    untold: Option<String>,
}

/// What became of a policy: what it says, or why nothing can be said at all.
type Outcome = Result<Said, String>;

/// Longest message that an expression may make, in bytes; upstream's bound.
const MAX_MESSAGE_BYTES: usize = 5 << 10;

/// What went wrong with an expression, in the words of upstream's metrics.
pub(super) const NO_ERROR: &str = "no_error";
pub(super) const INVALID: &str = "invalid_error";
const NOT_COMPILED: &str = "compile_error";
const EXHAUSTED: &str = "out_of_budget";

/// The annotation of an audit event that has what was found and is to be audited
/// (`k8s.io/apiserver/pkg/admission/plugin/policy/validating/dispatcher.go`).
const AUDIT_FAILURES: &str = "validation.policy.admission.k8s.io/validation_failure";
/// An annotation's value that is longer is cut, in bytes; upstream's bound.
const MAX_ANNOTATION_BYTES: usize = 10 * 1024;

/// Asks all policies that are bound to the request.
pub(in crate::admission) async fn validate(asked: &Asked<'_>, attributes: &Attributes<'_>) -> Result<(), Status> {
    let mut denied: Option<Status> = None;
    let mut audited: Vec<Value> = Vec::new();
    let mut annotations: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for binding in asked.hooks.bindings.values() {
        let Some(policy) = asked.hooks.policies.get(&binding.policy) else { continue };
        let Some(seen) = bound(policy, binding, asked, attributes) else { continue };
        let since = asked.cx.server.env.now();
        let mut told: Option<(&'static str, &'static str)> = None;
        let outcomes: Vec<Outcome> = match params::find(asked, policy, binding, attributes.namespace).await {
            Err(why) => vec![Err(format!("failed to configure binding: {why}"))],
            Ok(all) => {
                let mut outcomes = Vec::new();
                for params in all {
                    outcomes.push(Ok(evaluate(asked, attributes, policy, seen, &params).await?));
                }
                outcomes
            }
        };
        for outcome in outcomes {
            let Said { failures, annotations: said, untold } = match outcome {
                Ok(said) => said,
                Err(why) if policy.ignores_failure => {
                    tracing::warn!(policy = policy.name, binding = binding.name, %why, "a policy cannot be evaluated, and goes without");
                    told.get_or_insert(("allow", INVALID));
                    continue;
                }
                Err(why) => {
                    let failure = Failure { message: why, reason: "Invalid", index: 0, error: INVALID };
                    denied.get_or_insert(refusal(attributes, policy, binding, &failure));
                    told = Some(("deny", INVALID));
                    continue;
                }
            };
            for (key, value) in said {
                annotations.entry(format!("{}/{key}", policy.name)).or_default().insert(value);
            }
            for failure in failures {
                for action in &binding.actions {
                    let word = match action.as_str() {
                        "Deny" => {
                            denied.get_or_insert_with(|| refusal(attributes, policy, binding, &failure));
                            "deny"
                        }
                        "Warn" => {
                            asked.cx.note(format!(
                                "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                                policy.name, binding.name, failure.message
                            ));
                            "warn"
                        }
                        _ => {
                            audited.push(json!({
                                "message": failure.message,
                                "policy": policy.name,
                                "binding": binding.name,
                                "expressionIndex": failure.index,
                                "validationActions": binding.actions,
                            }));
                            "audit"
                        }
                    };
                    // A refusal outweighs what is merely said.
                    if word == "deny" || told.is_none_or(|(action, _)| action == "allow") {
                        told = Some((word, failure.error));
                    }
                }
            }
            if let Some(why) = untold {
                let failure = Failure { message: why, reason: "Invalid", index: 0, error: INVALID };
                denied.get_or_insert_with(|| refusal(attributes, policy, binding, &failure));
                told = Some(("deny", INVALID));
            }
        }
        let took = asked.cx.server.env.now().duration_since(since);
        let told = told.unwrap_or(("allow", NO_ERROR));
        asked.cx.server.metrics.admission.policy(Step::Validate, (&policy.name, &binding.name), told, took);
    }
    for (key, values) in annotations {
        asked.cx.annotate(key, values.into_iter().collect::<Vec<_>>().join(", "));
    }
    if !audited.is_empty() {
        asked.cx.annotate(AUDIT_FAILURES, Value::from(audited).to_string());
    }
    denied.map_or(Ok(()), Err)
}

/// As what the policy wants to see the object, if it and its binding are about the request.
pub(super) fn bound<'a>(
    policy: &Policy,
    binding: &Binding,
    asked: &Asked<'_>,
    attributes: &Attributes<'a>,
) -> Option<Seen<'a>> {
    let namespace = asked.namespace.as_ref();
    let seen = policy.selection.seen_as(attributes, namespace)?;
    if binding.selection.has_rules() {
        binding.selection.seen_as(attributes, namespace)?;
    } else if !binding.selection.selects(attributes, namespace) {
        return None;
    }
    Some(seen)
}

fn refusal(attributes: &Attributes<'_>, policy: &Policy, binding: &Binding, failure: &Failure) -> Status {
    let text = format!(
        "ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {}",
        policy.name, binding.name, failure.message
    );
    let mut status = attributes.forbidden(&text);
    status.reason = failure.reason.into();
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
    seen: Seen<'_>,
    params: &Value,
) -> Result<Said, Status> {
    let (object, old) = asked.both(attributes, seen).await?;
    let request = asked.request(attributes, seen);
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

fn judge(policy: &Policy, world: &World<'_>) -> Said {
    let mut failures = Vec::new();
    let mut fault = |index: usize, error: &'static str, why: String| {
        if policy.ignores_failure {
            tracing::warn!(policy = policy.name, %why, "a policy's expression cannot be evaluated, and goes without");
        } else {
            failures.push(Failure { message: why, reason: "Invalid", index, error });
        }
    };
    match all_hold(&policy.conditions, world) {
        Ok(true) => {}
        Ok(false) => return Said::default(),
        Err(why) => {
            fault(0, INVALID, why);
            return Said { failures, ..Said::default() };
        }
    }
    let mut budget = Budget::new(MAX_COST);
    let mut untrue = Vec::new();
    for (index, validation) in policy.validations.iter().enumerate() {
        let result = match &validation.program {
            Ok(program) => program.eval(world, &mut budget),
            Err(why) => {
                fault(index, NOT_COMPILED, format!("compilation error: {why}"));
                continue;
            }
        };
        match result {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => untrue.push(failure((index, validation), world, &mut budget)),
            Ok(_) => fault(index, INVALID, format!("expression '{}' is no boolean", validation.source)),
            Err(EvalError::Exhausted) => {
                let why =
                    "validation failed due to running out of cost budget, no further validation rules will be run";
                fault(index, EXHAUSTED, why.to_owned());
                break;
            }
            Err(error) => {
                fault(index, INVALID, format!("expression '{}' resulted in error: {error}", validation.source));
            }
        }
    }
    failures.extend(untrue);
    failures.sort_by_key(|failure| failure.index);
    let (mut annotations, mut untold) = (Vec::new(), None);
    for annotation in &policy.annotations {
        let value = match &annotation.program {
            Ok(program) => program.eval(world, &mut budget).map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        let value = match value {
            Ok(value) => value,
            Err(why) => {
                let why = format!("audit annotation '{}' resulted in error: {why}", annotation.name);
                if policy.ignores_failure {
                    // What does not hold does not hold all the same.
                    tracing::warn!(policy = policy.name, %why, "a policy leaves something unsaid");
                } else {
                    untold.get_or_insert(why);
                }
                continue;
            }
        };
        // An expression that gives null gives no annotation.
        if let Some(text) = value.as_str().map(str::trim).filter(|text| !text.is_empty()) {
            let end = text.floor_char_boundary(MAX_ANNOTATION_BYTES);
            annotations.push((annotation.name.clone(), text[..end].to_owned()));
        }
    }
    Said { failures, annotations, untold }
}

fn failure((index, validation): (usize, &Validation), world: &World<'_>, budget: &mut Budget) -> Failure {
    let written = validation.message_expression.as_ref().and_then(|program| program.eval(world, budget).ok());
    let written = written.as_ref().and_then(Cel::as_str).map(str::trim);
    let is_message = |text: &&str| !text.is_empty() && !text.contains('\n') && text.len() <= MAX_MESSAGE_BYTES;
    let message = match written.filter(is_message) {
        Some(text) => text.to_owned(),
        None if validation.message.trim().is_empty() => format!("failed expression: {}", validation.source.trim()),
        None => validation.message.trim().to_owned(),
    };
    let reason = known_reason(&validation.reason);
    Failure { message, reason: if reason.is_empty() { "Invalid" } else { reason }, index, error: NO_ERROR }
}
