//! Admission policies: rules of users about any object, evaluated in the process.
//!
//! Texts and status codes are upstream's (`k8s.io/apiserver/pkg/admission/plugin/policy`).

mod mutating;
mod params;
mod validating;

use carrack_cel::{Env, Program};
use carrack_schema::validate::expressions;
use serde_json::Value;

use super::select::Selection;
use super::world::Condition;
use crate::object::{Object, name};

pub(super) use mutating::mutate;
pub(super) use validating::validate;

/// Units that one policy with one binding may spend on a request.
const MAX_COST: u64 = 10_000_000;

/// A policy of either sort.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    name: String,
    selection: Selection,
    conditions: Vec<Condition>,
    variables: Vec<Condition>,
    /// `apiVersion` and `kind` of parameters.
    param_kind: Option<(String, String)>,
    ignores_failure: bool,
    validations: Vec<Validation>,
    annotations: Vec<Condition>,
    mutations: Vec<Mutation>,
    /// Whether any of its expressions asks the authorizer.
    uses_authorizer: bool,
}

/// An expression that must hold.
#[derive(Clone, Debug)]
struct Validation {
    source: String,
    program: Result<Program, String>,
    message: String,
    message_expression: Option<Program>,
    reason: String,
}

/// An expression that makes a change.
#[derive(Clone, Debug)]
struct Mutation {
    program: Result<Program, String>,
    is_patch: bool,
    /// An object literal that is not named after its place: its name, and that.
    misnamed: Option<(String, String)>,
}

/// Where a policy holds, and with which parameters.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    name: String,
    policy: String,
    selection: Selection,
    param_ref: Value,
    actions: Vec<String>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn compiled(source: &Value, env: &Env) -> Result<Program, String> {
    Program::compile(source.as_str().unwrap_or_default(), env).map_err(|error| error.to_string())
}

/// Match conditions, compiled.
pub(super) fn conditions(list: &Value, env: &Env) -> Vec<Condition> {
    items(list)
        .map(|item| Condition { name: text(&item["name"]), program: compiled(&item["expression"], env) })
        .collect()
}

impl Policy {
    pub(super) fn read(object: &Object) -> Policy {
        let spec = object.get("spec").cloned().unwrap_or_default();
        let has_params = spec["paramKind"].is_object();
        let mut variables = Vec::new();
        for (index, variable) in items(&spec["variables"]).enumerate() {
            let env = expressions::policy_env(has_params, items(&spec["variables"]).take(index));
            variables
                .push(Condition { name: text(&variable["name"]), program: compiled(&variable["expression"], &env) });
        }
        let env = expressions::policy_env(has_params, items(&spec["variables"]));
        let validation = |item: &Value| Validation {
            source: text(&item["expression"]),
            program: compiled(&item["expression"], &env),
            message: text(&item["message"]),
            message_expression: item["messageExpression"]
                .as_str()
                .and_then(|source| Program::compile(source, &env).ok()),
            reason: text(&item["reason"]),
        };
        let mutation = |item: &Value| {
            let is_patch = item["patchType"] == "JSONPatch";
            let source =
                if is_patch { &item["jsonPatch"]["expression"] } else { &item["applyConfiguration"]["expression"] };
            let program = compiled(source, &env);
            // A piece is of the whole object; what a patch puts in is named by its author.
            let whole = (!is_patch).then_some("Object");
            let misnamed = program.as_ref().ok().and_then(|program| program.misnamed(whole));
            Mutation { program, is_patch, misnamed }
        };
        let condition =
            |item: &Value| Condition { name: text(&item["key"]), program: compiled(&item["valueExpression"], &env) };
        let mut policy = Policy {
            name: name(object).to_owned(),
            selection: Selection::of_policy(&spec["matchConstraints"]),
            conditions: conditions(&spec["matchConditions"], &expressions::policy_conditions_env(has_params)),
            param_kind: has_params.then(|| (text(&spec["paramKind"]["apiVersion"]), text(&spec["paramKind"]["kind"]))),
            ignores_failure: spec["failurePolicy"] == "Ignore",
            validations: items(&spec["validations"]).map(validation).collect(),
            annotations: items(&spec["auditAnnotations"]).map(condition).collect(),
            mutations: items(&spec["mutations"]).map(mutation).collect(),
            variables,
            uses_authorizer: false,
        };
        let uses = policy.programs().any(|program| program.uses("authorizer"));
        policy.uses_authorizer = uses;
        policy
    }

    fn programs(&self) -> impl Iterator<Item = &Program> {
        let named = self.conditions.iter().chain(&self.variables).chain(&self.annotations).map(|c| &c.program);
        let checks = self.validations.iter().map(|validation| &validation.program);
        let changes = self.mutations.iter().map(|mutation| &mutation.program);
        let messages = self.validations.iter().filter_map(|validation| validation.message_expression.as_ref());
        named.chain(checks).chain(changes).filter_map(|program| program.as_ref().ok()).chain(messages)
    }
}

impl Binding {
    pub(super) fn read(object: &Object) -> Binding {
        let spec = object.get("spec").cloned().unwrap_or_default();
        Binding {
            name: name(object).to_owned(),
            policy: text(&spec["policyName"]),
            selection: Selection::of_policy(&spec["matchResources"]),
            param_ref: spec["paramRef"].clone(),
            actions: items(&spec["validationActions"]).map(text).collect(),
        }
    }
}
