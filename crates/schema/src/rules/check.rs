//! A value against the rules of its schema.

use std::collections::BTreeMap;

use carrack_cel::{Budget, EvalError, Program, Type, Value as Cel, Variables};
use serde_json::Value;

use super::{MAX_CALL_COST, MAX_OBJECT_COST, Rule, Rules, type_text};
use crate::decode::shorten;
use crate::error::{FieldError, FieldErrorKind};
use crate::schema::{Additional, ListType, Schema};

/// Checks a value; `old` is what it was, if it was.
///
/// A rule is not asked again about a value that has not changed, unless it is one that compares with the old
/// value: a rule that came later does not hold up changes elsewhere in the object.
#[must_use]
pub fn check(value: &Value, old: Option<&Value>, schema: &Schema, rules: &Rules) -> Vec<FieldError> {
    let mut walk = Walk { errors: Vec::new(), path: String::new(), budget: MAX_OBJECT_COST, spent: false };
    walk.node(value, old, schema, rules);
    walk.errors
}

/// Longest message that an expression may make.
const MAX_MESSAGE_BYTES: usize = 5 << 10;
/// More errors than this help nobody; a list may have as many as it has items.
const MAX_ERRORS: usize = 50;

struct Walk {
    errors: Vec<FieldError>,
    path: String,
    budget: u64,
    /// The budget is spent, or enough has been found: no more rules.
    spent: bool,
}

/// The items of a list as it was, found by what tells its items apart. Lists may be long, so that each is looked
/// through once.
pub(crate) struct Former<'a> {
    keys: &'a [Box<str>],
    items: BTreeMap<String, &'a Value>,
}

impl<'a> Former<'a> {
    pub(crate) fn new(old: Option<&'a Value>, list: &'a ListType) -> Former<'a> {
        let mut former = Former { keys: &[], items: BTreeMap::new() };
        if let (ListType::Map(keys), Some(Value::Array(old))) = (list, old) {
            former.keys = keys;
            for item in old {
                former.items.entry(former.key(item)).or_insert(item);
            }
        }
        former
    }

    fn key(&self, item: &Value) -> String {
        let texts = self.keys.iter().map(|key| item.get(&**key).unwrap_or(&Value::Null).to_string());
        texts.collect::<Vec<_>>().join(",")
    }

    /// What an item was; none where that cannot be told.
    pub(crate) fn of(&self, item: &Value) -> Option<&'a Value> {
        if self.items.is_empty() { None } else { self.items.get(&self.key(item)).copied() }
    }
}

fn joined(path: &str, step: &str) -> String {
    if path.is_empty() { step.to_owned() } else { format!("{path}.{step}") }
}

impl Walk {
    /// Goes on with a step added to the path.
    fn inside(&mut self, step: std::fmt::Arguments<'_>, run: impl FnOnce(&mut Self)) {
        use std::fmt::Write as _;
        let length = self.path.len();
        let written = self.path.write_fmt(step);
        debug_assert!(written.is_ok(), "writing to a string does not fail");
        shorten(&mut self.path);
        run(self);
        self.path.truncate(length);
    }

    fn node(&mut self, value: &Value, old: Option<&Value>, schema: &Schema, rules: &Rules) {
        // An absent value and null are not asked about: that is for the schema to say.
        if value.is_null() || self.spent {
            return;
        }
        let node = schema.resolve();
        self.own(value, old, node, rules);
        match value {
            Value::Object(map) => {
                for (name, child) in map {
                    let declared =
                        node.property(name).and_then(|schema| Some((schema, rules.properties.get(&**name)?)));
                    let of_map = || match &node.additional {
                        Additional::Of(values) if node.property(name).is_none() => {
                            Some((&**values, rules.values.as_deref()?))
                        }
                        _ => None,
                    };
                    if let Some((schema, rules)) = declared.or_else(of_map) {
                        let old = old.and_then(|old| old.get(name));
                        let dot = if self.path.is_empty() { "" } else { "." };
                        self.inside(format_args!("{dot}{name}"), |walk| walk.node(child, old, schema, rules));
                    }
                }
            }
            Value::Array(items) => {
                let Some((schema, rules)) = node.items.as_deref().zip(rules.items.as_deref()) else { return };
                let former = Former::new(old, &node.list);
                for (index, item) in items.iter().enumerate() {
                    self.inside(format_args!("[{index}]"), |walk| walk.node(item, former.of(item), schema, rules));
                }
            }
            _ => {}
        }
    }

    fn own(&mut self, value: &Value, old: Option<&Value>, node: &Schema, rules: &Rules) {
        let Some(type_) = &rules.type_ else { return };
        let unchanged = old == Some(value);
        let mut variables: Option<Variables> = None;
        // In which form the value before is there already: it may be as long as the request, and the rules many.
        let mut has_optional_old: Option<bool> = None;
        for rule in &rules.own {
            let transition = rule.is_transition();
            if (unchanged && !transition) || (transition && old.is_none() && !rule.optional_old_self) {
                continue;
            }
            let variables =
                variables.get_or_insert_with(|| Variables(BTreeMap::from([("self", Cel::from_json(value, type_))])));
            if transition && has_optional_old != Some(rule.optional_old_self) {
                variables.0.insert("oldSelf", old_self(old, type_, rule.optional_old_self));
                has_optional_old = Some(rule.optional_old_self);
            }
            self.ask(rule, variables, node);
            self.spent |= self.errors.len() >= MAX_ERRORS;
            if self.spent {
                return;
            }
        }
    }

    /// Evaluates within what is left for the object.
    fn eval(&mut self, program: &Program, variables: &Variables) -> Result<Cel, EvalError> {
        let mut budget = Budget::new(self.budget.min(MAX_CALL_COST));
        let result = program.eval(variables, &mut budget);
        self.budget = self.budget.saturating_sub(budget.spent());
        result
    }

    fn ask(&mut self, rule: &Rule, variables: &Variables, node: &Schema) {
        let kind = type_text(node);
        let path = self.path.clone();
        let program = match &rule.program {
            Ok(program) => program,
            Err(why) => {
                self.errors.push(FieldError::invalid(path, kind, format!("rule compile error: {why}")));
                return;
            }
        };
        match self.eval(program, variables) {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => {
                let detail = self.message(rule, variables);
                let path = rule.field_path.iter().fold(path, |path, step| {
                    if step.contains('.') { format!("{path}[{step}]") } else { joined(&path, step) }
                });
                let value = match rule.reason {
                    FieldErrorKind::Invalid | FieldErrorKind::Duplicate => Some(kind.into()),
                    _ => None,
                };
                let mut error = FieldError::forbidden(path, detail);
                (error.kind, error.value) = (rule.reason, value);
                self.errors.push(error);
            }
            Ok(_) => self.errors.push(FieldError::invalid(path, kind, format!("no boolean: {}", rule.source))),
            Err(EvalError::Exhausted) => {
                let text = if self.budget == 0 {
                    "validation failed due to running out of cost budget, no further validation rules will be run"
                        .to_owned()
                } else {
                    format!(
                        "call cost exceeds limit for rule: {}, no further validation rules will be run due to call cost exceeds limit",
                        rule.source
                    )
                };
                self.errors.push(FieldError::invalid(path, kind, text));
                self.spent = true;
            }
            Err(error) => {
                let text = format!("{error} evaluating rule: {}", rule.source);
                self.errors.push(FieldError::invalid(path, kind, text));
            }
        }
    }

    fn message(&mut self, rule: &Rule, variables: &Variables) -> String {
        let written = rule.message_expression.as_ref().and_then(|program| self.eval(program, variables).ok());
        let written = written.as_ref().and_then(Cel::as_str).map(str::trim);
        // A message that is empty, of several lines or very long is as good as none, as upstream has it.
        match written.filter(|text| !text.is_empty() && !text.contains('\n') && text.len() <= MAX_MESSAGE_BYTES) {
            Some(text) => text.to_owned(),
            None if rule.message.is_empty() => format!("failed rule: {}", rule.source.trim()),
            None => rule.message.clone(),
        }
    }
}

fn old_self(old: Option<&Value>, type_: &Type, optional: bool) -> Cel {
    match (old, optional) {
        (Some(old), false) => Cel::from_json(old, type_),
        (Some(old), true) => Cel::Optional(Some(std::sync::Arc::new(Cel::from_json(old, type_)))),
        (None, _) => Cel::Optional(None),
    }
}
