//! From a schema to its rules, or to what is wrong with them.

use carrack_cel::{Env, Program, Type};
use serde_json::Value;

use super::declare::{most, type_of};
use super::{MAX_RULE_ESTIMATE, MAX_SCHEMA_ESTIMATE, Rule, Rules};
use crate::error::{FieldError, FieldErrorKind};
use crate::schema::{Additional, ListType, Schema};

/// Rules, and what is wrong with them: errors with paths that start at the schema.
pub type Problem = FieldError;

/// The reasons that a rule may give, with what kind of error they make.
const REASONS: [(&str, FieldErrorKind); 4] = [
    ("FieldValueInvalid", FieldErrorKind::Invalid),
    ("FieldValueForbidden", FieldErrorKind::Forbidden),
    ("FieldValueRequired", FieldErrorKind::Required),
    ("FieldValueDuplicate", FieldErrorKind::Duplicate),
];

/// Compiles the rules of a schema; what is wrong with them is told with paths below `path`.
#[must_use]
pub fn compile(schema: &Schema, path: &str) -> (Rules, Vec<Problem>) {
    let mut compiler = Compiler { problems: Vec::new(), total: 0 };
    let rules = compiler.node(schema, path, &Place { is_root: true, count: 1, correlatable: None });
    if compiler.total > MAX_SCHEMA_ESTIMATE {
        let text = format!(
            "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of {} (try simplifying the rule(s), or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
            factor(compiler.total, MAX_SCHEMA_ESTIMATE)
        );
        compiler.problems.push(FieldError::forbidden(path, text));
    }
    (rules, compiler.problems)
}

fn factor(cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    if factor > 100.0 { "more than 100x".to_owned() } else { format!("{factor:.1}x") }
}

struct Compiler {
    problems: Vec<Problem>,
    total: u64,
}

/// Where a node is.
struct Place {
    is_root: bool,
    /// How many values of it an object may have.
    count: u64,
    /// The path of the list above whose items cannot be told apart, if there is one.
    correlatable: Option<String>,
}

impl Compiler {
    fn node(&mut self, schema: &Schema, path: &str, place: &Place) -> Rules {
        let node = schema.resolve();
        let mut rules = Rules::default();
        // A node that stands for a built-in type has no rules of its own.
        if schema.reference.is_some() {
            return rules;
        }
        let written = node.rare.as_ref().and_then(|rare| rare.validations.as_ref()).and_then(Value::as_array);
        if let Some(written) = written.filter(|written| !written.is_empty()) {
            let type_ = type_of(schema, "selfType", place.is_root);
            for (index, value) in written.iter().enumerate() {
                let path = format!("{path}.x-kubernetes-validations[{index}]");
                rules.own.extend(self.rule(value, &type_, schema, &path, place));
            }
            rules.type_ = Some(type_);
        }
        let below = |count: u64, correlatable: Option<String>| Place { is_root: false, count, correlatable };
        for (name, property) in &node.properties {
            if place.is_root && &**name == "metadata" {
                continue;
            }
            let path = format!("{path}.properties[{name}]");
            let child = self.node(property, &path, &below(place.count, place.correlatable.clone()));
            if !child.is_empty() {
                rules.properties.insert(name.clone(), child);
            }
        }
        if let Some(items) = &node.items {
            let uncorrelatable = (!matches!(node.list, ListType::Map(_))).then(|| path.to_owned());
            let place = below(place.count.saturating_mul(most(schema)), place.correlatable.clone().or(uncorrelatable));
            let child = self.node(items, &format!("{path}.items"), &place);
            rules.items = (!child.is_empty()).then(|| Box::new(child));
        }
        if let Additional::Of(values) = &node.additional {
            let place = below(place.count.saturating_mul(most(schema)), place.correlatable.clone());
            let child = self.node(values, &format!("{path}.additionalProperties"), &place);
            rules.values = (!child.is_empty()).then(|| Box::new(child));
        }
        rules
    }

    fn rule(&mut self, written: &Value, type_: &Type, schema: &Schema, path: &str, place: &Place) -> Option<Rule> {
        let text = |key: &str| written.get(key).and_then(Value::as_str).unwrap_or_default();
        let source = text("rule");
        if source.trim().is_empty() {
            self.problems.push(FieldError::required(format!("{path}.rule"), "rule is not specified"));
            return None;
        }
        let optional_old_self = written.get("optionalOldSelf").and_then(Value::as_bool);
        let old_type = match optional_old_self {
            Some(true) => Type::Optional(std::sync::Arc::new(type_.clone())),
            _ => type_.clone(),
        };
        let env = Env::new().with("self", type_.clone()).with("oldSelf", old_type);
        let program = match Program::compile(source, &env) {
            Ok(program) if program.result.fits(&Type::Bool) => Ok(program),
            Ok(_) => Err("cel expression must evaluate to a bool".to_owned()),
            Err(error) => Err(format!("compilation failed: {error}")),
        };
        match &program {
            Err(why) => self.problems.push(FieldError::invalid(format!("{path}.rule"), source, why.clone())),
            Ok(program) => self.judge(program, optional_old_self, path, place),
        }
        let message_expression = self.message_expression(text("messageExpression"), &env, path);
        let message = text("message");
        if written.get("message").is_some() && message.trim().is_empty() {
            self.problems.push(FieldError::invalid(
                format!("{path}.message"),
                message,
                "message must be non-empty if specified",
            ));
        } else if message.trim().contains('\n') {
            self.problems.push(FieldError::invalid(
                format!("{path}.message"),
                message,
                "message must not contain line breaks",
            ));
        }
        if source.contains('\n') && message.is_empty() && message_expression.is_none() {
            let text = "message or messageExpression must be specified if rule contains line breaks";
            self.problems.push(FieldError::required(format!("{path}.message"), text));
        }
        let reason = text("reason");
        let found = REASONS.iter().find(|(name, _)| *name == reason);
        if found.is_none() && !reason.is_empty() {
            let names = REASONS.map(|(name, _)| name);
            self.problems.push(FieldError::not_supported(format!("{path}.reason"), reason, &names));
        }
        let field_path = self.field_path(text("fieldPath"), schema, path);
        Some(Rule {
            source: source.to_owned(),
            program,
            message: message.trim().to_owned(),
            message_expression,
            reason: found.map_or(FieldErrorKind::Invalid, |(_, kind)| *kind),
            field_path,
            optional_old_self: optional_old_self == Some(true),
        })
    }

    /// Whether the rule may be where it is, and whether it may cost what it does.
    fn judge(&mut self, program: &Program, optional_old_self: Option<bool>, path: &str, place: &Place) {
        let transition = program.uses("oldSelf");
        if transition && let Some(list) = &place.correlatable {
            let text = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
            self.problems.push(FieldError::invalid(format!("{path}.rule"), "", text));
        }
        if !transition && optional_old_self.is_some() {
            let text = "may not be set if oldSelf is not used in rule";
            let given = optional_old_self.unwrap_or_default();
            self.problems.push(FieldError::invalid(format!("{path}.optionalOldSelf"), given, text));
        }
        let cost = program.worst_cost.saturating_mul(place.count);
        self.total = self.total.saturating_add(cost);
        if cost > MAX_RULE_ESTIMATE {
            let text = format!(
                "estimated rule cost exceeds budget by factor of {} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
                factor(cost, MAX_RULE_ESTIMATE)
            );
            self.problems.push(FieldError::forbidden(format!("{path}.rule"), text));
        }
    }

    fn message_expression(&mut self, source: &str, env: &Env, path: &str) -> Option<Program> {
        if source.is_empty() {
            return None;
        }
        let path = format!("{path}.messageExpression");
        if source.trim().is_empty() {
            self.problems.push(FieldError::required(path, "must be non-empty if specified"));
            return None;
        }
        match Program::compile(source, env) {
            Ok(program) if program.result.fits(&Type::string()) => Some(program),
            Ok(_) => {
                self.problems.push(FieldError::invalid(path, source, "messageExpression must evaluate to a string"));
                None
            }
            Err(error) => {
                let text = format!("messageExpression compilation failed: {error}");
                self.problems.push(FieldError::invalid(path, source, text));
                None
            }
        }
    }

    /// The steps of `.a['b.c'].d`; each must be a property of the schema.
    fn field_path(&mut self, text: &str, schema: &Schema, path: &str) -> Vec<String> {
        let mut steps = Vec::new();
        let mut rest = text.trim();
        let mut node = schema.resolve();
        while !rest.is_empty() {
            let step = if let Some(quoted) = rest.strip_prefix("['") {
                quoted.split_once("']")
            } else {
                rest.strip_prefix('.').map(|after| {
                    let end = after.find(['.', '[']).unwrap_or(after.len());
                    after.split_at(end)
                })
            };
            let found = step.and_then(|(name, after)| Some((name, after, node.child(name)?)));
            let Some((name, after, child)) = found.filter(|(name, ..)| !name.is_empty()) else {
                let why = "fieldPath must be a valid path to a property of the schema: does not refer to a valid field";
                self.problems.push(FieldError::invalid(format!("{path}.fieldPath"), text, why));
                return Vec::new();
            };
            steps.push(name.to_owned());
            (rest, node) = (after, child.resolve());
        }
        steps
    }
}
