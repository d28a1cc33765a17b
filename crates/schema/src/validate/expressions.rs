//! What expressions about requests may name: those of webhooks' match conditions and of admission policies.
//!
//! Objects of requests may be of any kind, so that their types are known only when they are there.

use carrack_cel::{Env, ObjectOf, Program, Type};
use serde_json::Value;

use super::access::{Errors, Place};
use crate::error::FieldError;

fn request() -> Env {
    Env::new()
        .with("object", Type::Dyn)
        .with("oldObject", Type::Dyn)
        .with("request", Type::Dyn)
        .with("authorizer", Type::Opaque("Authorizer"))
}

/// Of a webhook's match conditions.
#[must_use]
pub fn conditions_env() -> Env {
    request()
}

/// Of a policy's match conditions.
#[must_use]
pub fn policy_conditions_env(has_params: bool) -> Env {
    let env = request().with("namespaceObject", Type::Dyn);
    if has_params { env.with("params", Type::Dyn) } else { env }
}

/// Of a policy's other expressions, which see `variables` of these names.
pub fn policy_env<'a>(has_params: bool, variables: impl Iterator<Item = &'a Value>) -> Env {
    let mut known = ObjectOf { name: "kubernetes.variables".to_owned(), ..ObjectOf::default() };
    for name in variables.filter_map(|variable| variable["name"].as_str()) {
        known.fields.insert(name.into(), carrack_cel::Field { json: name.into(), type_: Type::Dyn });
    }
    policy_conditions_env(has_params)
        .with("variables", Type::Object(known.into()))
        .with_struct("Object")
        .with_struct("JSONPatch")
}

/// An error unless the expression compiles and gives what is wanted; and what it costs at most, if it does.
pub(super) fn compiles(place: &Place<'_>, field: &str, env: &Env, wanted: &[Type], errors: &mut Errors) -> Option<u64> {
    let source = place.needs_text(field, errors)?;
    let problem = match Program::compile(source, env) {
        Err(error) => format!("compilation failed: {error}"),
        Ok(program) if wanted.iter().any(|wanted| program.result.fits(wanted)) => return Some(program.worst_cost),
        Ok(program) => {
            let wanted: Vec<String> = wanted.iter().map(Type::to_string).collect();
            format!("must evaluate to {}, but is {}", wanted.join(" or "), program.result)
        }
    };
    errors.push(FieldError::invalid(place.path_of(field), source, problem));
    None
}

/// `matchConditions`
pub(super) fn conditions(object: &Place<'_>, env: &Env, errors: &mut Errors) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in object.items("matchConditions").enumerate() {
        if index == 64 {
            errors.push(FieldError::too_many(object.path_of("matchConditions"), index + 1, 64));
            return;
        }
        compiles(&condition, "expression", env, &[Type::Bool], errors);
        if let Some(name) = condition.needs_text("name", errors) {
            condition.has_form("name", super::names::qualified_name, errors);
            if seen.contains(&name) {
                errors.push(FieldError::duplicate(condition.path_of("name"), name));
            }
            seen.push(name);
        }
    }
}
