//! What expressions about a request see: `object`, `oldObject`, `request`, `authorizer` and the rest.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use carrack_auth::{Attributes as Question, Authorizer, Caller};
use carrack_cel::{Bindings, Budget, Check, Decision, EvalError, Program, Type, Value as Cel};
use serde_json::Value;

/// A condition of a webhook or a policy: its name, and the expression or why there is none.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub name: String,
    pub program: Result<Program, String>,
}

/// Units that the conditions of one webhook or policy may spend on a request.
pub(crate) const MAX_CONDITIONS_COST: u64 = 2_500_000;

/// How many variables may each be computed for the sake of the next: each takes stack.
const MAX_VARIABLE_DEPTH: usize = 16;

/// The variables of one evaluation.
pub(crate) struct World<'a> {
    values: BTreeMap<&'static str, Cel>,
    /// Expressions of `variables`, in their order; each may use those before it.
    composed: &'a [Condition],
    computed: RefCell<BTreeMap<String, Result<Cel, EvalError>>>,
    /// How deep variables that use each other are being computed.
    depth: Cell<usize>,
    authorizer: Option<&'a Authorizer>,
    caller: &'a Caller,
}

impl<'a> World<'a> {
    pub(crate) fn new(caller: &'a Caller, request: &Value, object: &Value, old: &Value) -> World<'a> {
        let dynamic = |value: &Value| Cel::from_json(value, &Type::Dyn);
        let values =
            BTreeMap::from([("request", dynamic(request)), ("object", dynamic(object)), ("oldObject", dynamic(old))]);
        World { values, composed: &[], computed: RefCell::default(), depth: Cell::new(0), authorizer: None, caller }
    }

    pub(crate) fn set(&mut self, name: &'static str, value: &Value) {
        self.values.insert(name, Cel::from_json(value, &Type::Dyn));
        self.computed = RefCell::default();
    }

    pub(crate) fn compose(&mut self, variables: &'a [Condition]) {
        self.composed = variables;
    }

    /// With the authorizer at hand; `request` is where `authorizer.requestResource` points.
    pub(crate) fn authorize_by(&mut self, authorizer: &'a Authorizer) {
        self.authorizer = Some(authorizer);
    }
}

impl Bindings for World<'_> {
    fn get(&self, name: &str) -> Option<Cel> {
        match name {
            "authorizer" => Some(Check::authorizer()),
            _ => self.values.get(name).cloned(),
        }
    }

    fn field(&self, name: &str, field: &str, budget: &mut Budget) -> Option<Result<Cel, EvalError>> {
        if name == "authorizer" && field == "requestResource" {
            let request = self.values.get("request").and_then(Cel::to_json).unwrap_or_default();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let resource = &request["requestResource"];
            return Some(Ok(Check::of_request(
                &text(&resource["group"]),
                &text(&resource["resource"]),
                &text(&request["requestSubResource"]),
                &text(&request["namespace"]),
                &text(&request["name"]),
            )));
        }
        if name != "variables" {
            return None;
        }
        if let Some(known) = self.computed.borrow().get(field) {
            return Some(known.clone());
        }
        let missing = || EvalError::Failed(format!("no such key: {field}"));
        // Those before it only: an expression that names itself would not have compiled.
        let value = match self.composed.iter().find(|variable| variable.name == field) {
            None => Err(missing()),
            Some(variable) => match &variable.program {
                Ok(_) if self.depth.get() >= MAX_VARIABLE_DEPTH => Err(EvalError::Failed(format!(
                    "variables that use each other nest more than {MAX_VARIABLE_DEPTH} deep"
                ))),
                Ok(program) => {
                    self.depth.set(self.depth.get() + 1);
                    let value = program.eval(self, budget);
                    self.depth.set(self.depth.get() - 1);
                    value
                }
                Err(why) => Err(EvalError::Failed(why.clone())),
            },
        };
        self.computed.borrow_mut().insert(field.to_owned(), value.clone());
        Some(value)
    }

    fn authorize(&self, check: &Check) -> Decision {
        let Some(authorizer) = self.authorizer else {
            return Decision {
                allowed: false,
                reason: String::new(),
                error: Some("no authorizer is at hand".to_owned()),
            };
        };
        let account;
        let caller = match &check.service_account {
            None => self.caller,
            Some((namespace, name)) => {
                let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
                account = Caller::new(format!("system:serviceaccount:{namespace}:{name}"), groups);
                &account
            }
        };
        let question = if check.path.is_empty() {
            Question {
                verb: &check.verb,
                group: &check.group,
                version: "*",
                resource: &check.resource,
                subresource: &check.subresource,
                name: &check.name,
                namespace: &check.namespace,
                path: "",
                field_selector: &check.field_selector,
            }
        } else {
            Question::path(&check.verb, &check.path)
        };
        let decision = authorizer.authorize(caller, &question);
        Decision { allowed: decision.allowed(), reason: decision.reason().to_owned(), error: None }
    }
}

/// Whether all conditions hold. The first that does not decides; an error counts when none says no.
pub(crate) fn all_hold(conditions: &[Condition], world: &World<'_>) -> Result<bool, String> {
    let mut budget = Budget::new(MAX_CONDITIONS_COST);
    let mut faults = Vec::new();
    for condition in conditions {
        let result = match &condition.program {
            Ok(program) => program.eval(world, &mut budget).map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        match result {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => return Ok(false),
            Ok(_) => faults.push(format!("match condition {:?} is no boolean", condition.name)),
            Err(why) => faults.push(format!("match condition {:?}: {why}", condition.name)),
        }
    }
    if faults.is_empty() { Ok(true) } else { Err(faults.join(", ")) }
}
