//! Questions to the authorizer: `authorizer.group('apps').resource('deployments').check('create').allowed()`.

use std::sync::Arc;

use super::{Called, Cx, Found, Opaque, text, truth};
use crate::value::Value;

/// What the authorizer is asked, as far as it has been said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    stage: Stage,
    /// Namespace and name of the service account that it is about, when it is not the one who made the request.
    pub service_account: Option<(String, String)>,
    /// The path, if it is not about a resource.
    pub path: String,
    /// API group.
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Field selector.
    pub field_selector: String,
    /// Verb.
    pub verb: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Authorizer,
    Path,
    Group,
    Resource,
}

impl Check {
    pub(super) fn kind(&self) -> &'static str {
        match self.stage {
            Stage::Authorizer => "Authorizer",
            Stage::Path => "PathCheck",
            Stage::Group => "GroupCheck",
            Stage::Resource => "ResourceCheck",
        }
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self.stage {
            Stage::Authorizer => "kubernetes.authorization.Authorizer",
            Stage::Path => "kubernetes.authorization.PathCheck",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
        }
    }

    /// The value of the variable `authorizer`.
    pub fn authorizer() -> Value {
        Value::Opaque(Opaque::Check(Arc::new(Check::default())))
    }

    /// The value of `authorizer.requestResource`.
    pub fn of_request(group: &str, resource: &str, subresource: &str, namespace: &str, name: &str) -> Value {
        let check = Check {
            stage: Stage::Resource,
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..Check::default()
        };
        Value::Opaque(Opaque::Check(Arc::new(check)))
    }
}

pub(super) fn call(function: &str, args: &[Value], cx: &mut Cx<'_>) -> Found {
    match args {
        [Value::Opaque(Opaque::Decision(decision))] => match function {
            "allowed" => truth(decision.allowed),
            "reason" => text(decision.reason.as_str()),
            "errored" => truth(decision.error.is_some()),
            "error" => text(decision.error.clone().unwrap_or_default()),
            _ => None,
        },
        [Value::Opaque(Opaque::Check(check)), Value::String(first), rest @ ..] => {
            let second = match rest {
                [] => None,
                [Value::String(second)] => Some(second),
                _ => return None,
            };
            said(function, (**check).clone(), first, second.map(|text| &**text), cx)
        }
        _ => None,
    }
}

/// The question with one more thing said, or its answer.
fn said(function: &str, mut check: Check, first: &str, second: Option<&str>, cx: &mut Cx<'_>) -> Found {
    let first = first.to_owned();
    match (function, check.stage, second) {
        ("path", Stage::Authorizer, None) => (check.stage, check.path) = (Stage::Path, first),
        ("group", Stage::Authorizer, None) => (check.stage, check.group) = (Stage::Group, first),
        ("serviceAccount", Stage::Authorizer, Some(name)) => check.service_account = Some((first, name.to_owned())),
        ("resource", Stage::Group, None) => (check.stage, check.resource) = (Stage::Resource, first),
        ("subresource", Stage::Resource, None) => check.subresource = first,
        ("namespace", Stage::Resource, None) => check.namespace = first,
        ("name", Stage::Resource, None) => check.name = first,
        ("fieldSelector", Stage::Resource, None) => check.field_selector = first,
        // Authorization by labels is not one of ours; the answer without it is the narrower one.
        ("labelSelector", Stage::Resource, None) => {}
        ("check", Stage::Path | Stage::Resource, None) => {
            check.verb = first;
            let decision = cx.bindings.authorize(&check);
            return Some(Called::Ok(Value::Opaque(Opaque::Decision(Arc::new(decision)))));
        }
        _ => return None,
    }
    Some(Ok(Value::Opaque(Opaque::Check(Arc::new(check)))))
}
