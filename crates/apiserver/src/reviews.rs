//! Questions that are posted as objects and answered on the spot: may somebody do something, who am I,
//! whose token is this.

use carrack_auth::{Attributes, Caller, Secret};
use carrack_schema::error::FieldError;
use carrack_schema::validate::names;
use serde_json::{Value, json};

use crate::accept;
use crate::body::Response;
use crate::context::Cx;
use crate::convert::set_type;
use crate::dispatch;
use crate::env::rfc3339_s;
use crate::object::{Object, at, child_mut, str_at};
use crate::registry::{decode, meta};
use crate::server::ApiServer;
use crate::status::Status;

/// Answers the review in the body.
pub(crate) async fn create(server: &ApiServer, cx: &mut Cx<'_>, body: &[u8]) -> Result<Response, Status> {
    accept::whole(cx.headers)?;
    let mut review = decode::object(cx, body)?;
    let caller = cx.caller.clone();
    let status = match &*cx.row.plural {
        "selfsubjectreviews" => json!({"userInfo": user_info(&caller)}),
        plural @ ("selfsubjectaccessreviews" | "subjectaccessreviews" | "localsubjectaccessreviews") => {
            let faults = access_faults(cx, plural, &review);
            if !faults.is_empty() {
                return Err(meta::invalid(cx, "", &faults));
            }
            let whose = if plural == "selfsubjectaccessreviews" { caller } else { subject(&review) };
            access(cx, &whose, &review).await?
        }
        "selfsubjectrulesreviews" => rules(cx, &caller, &review).await?,
        "tokenreviews" => token(server, cx, &review).await?,
        _ => return Err(Status::no_such_path()),
    };
    let created = rfc3339_s(cx.server.env.now());
    let (api_version, kind) = (cx.api_version(), cx.row.kind.to_string());
    set_type(&mut review, &api_version, &kind);
    child_mut(&mut review, "metadata").insert("creationTimestamp".to_owned(), created.into());
    review.insert("status".to_owned(), status);
    Ok(dispatch::created(review))
}

fn user_info(caller: &Caller) -> Value {
    let mut info = json!({"username": caller.user, "groups": caller.groups});
    if !caller.uid.is_empty() {
        info["uid"] = caller.uid.clone().into();
    }
    if !caller.extra.is_empty() {
        info["extra"] = json!(caller.extra);
    }
    info
}

fn texts(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default()
}

/// The user that a review asks about.
fn subject(review: &Object) -> Caller {
    let user = str_at(review, &["spec", "user"]).to_owned();
    let groups = texts(at(review, &["spec", "groups"]));
    let extra = at(review, &["spec", "extra"])
        .and_then(Value::as_object)
        .map(|extra| extra.iter().map(|(key, values)| (key.clone(), texts(Some(values)))).collect())
        .unwrap_or_default();
    Caller { user, uid: str_at(review, &["spec", "uid"]).to_owned(), groups, extra }
}

/// What is wrong with a question about access (`pkg/apis/authorization/validation`).
fn access_faults(cx: &Cx<'_>, plural: &str, review: &Object) -> Vec<FieldError> {
    let field = |name: &str| at(review, &["spec", name]).cloned().unwrap_or_default();
    let (resource, path) = (field("resourceAttributes"), field("nonResourceAttributes"));
    let mut faults = Vec::new();
    match (resource.is_null(), path.is_null()) {
        (false, false) => {
            let why = "cannot be specified in combination with resourceAttributes";
            faults.push(FieldError::invalid("spec.nonResourceAttributes", path.clone(), why));
        }
        (true, true) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            faults.push(FieldError::invalid("spec.resourceAttributes", Value::Null, why));
        }
        _ => {}
    }
    for (selector, form) in [("fieldSelector", None), ("labelSelector", Some(names::label_value as Form))] {
        selector_faults(&resource[selector], selector, form, &mut faults);
    }
    let is_nobody = str_at(review, &["spec", "user"]).is_empty() && texts(at(review, &["spec", "groups"])).is_empty();
    if plural != "selfsubjectaccessreviews" && is_nobody {
        let why = "at least one of user or group must be specified";
        faults.push(FieldError::invalid("spec.user", "", why));
    }
    let is_local = plural == "localsubjectaccessreviews";
    let metadata = review.get("metadata").cloned().unwrap_or_default();
    let is_ours = |name: &str| name == "managedFields" || (is_local && name == "namespace");
    if metadata.as_object().into_iter().flatten().any(|(name, value)| !is_ours(name) && !is_unset(value)) {
        let why = if is_local { "must be empty except for namespace" } else { "must be empty" };
        faults.push(FieldError::invalid("metadata", metadata, why));
    }
    if is_local {
        let given = resource["namespace"].as_str().unwrap_or_default();
        if !resource.is_null() && given != cx.namespace().unwrap_or_default() {
            let why = "must match metadata.namespace";
            faults.push(FieldError::invalid("spec.resourceAttributes.namespace", given, why));
        }
        if !path.is_null() {
            let why = "disallowed on this kind of request";
            faults.push(FieldError::invalid("spec.nonResourceAttributes", path, why));
        }
    }
    faults
}

/// The form of a value.
type Form = fn(&str) -> names::Problem;

/// Whether a client in Go has said nothing there.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// What is wrong with a selector of what a question is about: of fields, or of labels, whose values have a form. Operators
/// that are not known here are let through, for clients of later releases.
fn selector_faults(selector: &Value, name: &str, form: Option<Form>, faults: &mut Vec<FieldError>) {
    if selector.is_null() {
        return;
    }
    let path = format!("spec.resourceAttributes.{name}");
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    let parts = selector["requirements"].as_array().map_or(&[][..], Vec::as_slice);
    match (raw.is_empty(), parts.is_empty()) {
        (false, false) => {
            let why = "may not specified at the same time as requirements";
            faults.push(FieldError::invalid(format!("{path}.rawSelector"), raw, why));
        }
        (true, true) => {
            let why = format!("when {path} is specified, requirements or rawSelector is required");
            faults.push(FieldError::required(format!("{path}.requirements"), why));
        }
        _ => {}
    }
    for (index, part) in parts.iter().enumerate() {
        let path = format!("{path}.requirements[{index}]");
        let key = part["key"].as_str().unwrap_or_default();
        if form.is_none() && key.is_empty() {
            faults.push(FieldError::required(format!("{path}.key"), "must be specified"));
        } else if form.is_some() {
            let problem = names::qualified_name(key);
            faults.extend(problem.map(|why| FieldError::invalid(format!("{path}.key"), key, why)));
        }
        let values = texts(part.get("values"));
        match part["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                faults.push(FieldError::required(format!("{path}.values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                faults.push(FieldError::forbidden(format!("{path}.values"), why));
            }
            _ => {}
        }
        for (index, value) in values.into_iter().enumerate() {
            let problem = form.and_then(|form| form(&value));
            faults.extend(problem.map(|why| FieldError::invalid(format!("{path}.values[{index}]"), value, why)));
        }
    }
}

/// The field selector that a question is about, as text; those that are given in parts are put together of what a
/// selector can say (`FieldSelectorAsSelector` of `k8s.io/apiserver/pkg/authorization`).
fn field_selector(review: &Object) -> String {
    let Some(selector) = at(review, &["spec", "resourceAttributes", "fieldSelector"]) else { return String::new() };
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    let parts = selector["requirements"].as_array().into_iter().flatten().filter_map(|part| {
        let values = texts(part.get("values"));
        let [value] = &values[..] else { return None };
        let value = value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
        // No path of a field has these, and one that had would be read as more than one part.
        let key = part["key"].as_str().filter(|key| !key.contains([',', '=', '!', '\\']))?;
        match part["operator"].as_str()? {
            "In" => Some(format!("{key}={value}")),
            "NotIn" => Some(format!("{key}!={value}")),
            _ => None,
        }
    });
    if raw.is_empty() { parts.collect::<Vec<_>>().join(",") } else { raw.to_owned() }
}

async fn access(cx: &Cx<'_>, caller: &Caller, review: &Object) -> Result<Value, Status> {
    let field = |path: &[&str]| str_at(review, path);
    let field_selector = field_selector(review);
    let attributes = if at(review, &["spec", "resourceAttributes"]).is_some() {
        Attributes {
            verb: field(&["spec", "resourceAttributes", "verb"]),
            group: field(&["spec", "resourceAttributes", "group"]),
            version: field(&["spec", "resourceAttributes", "version"]),
            resource: field(&["spec", "resourceAttributes", "resource"]),
            subresource: field(&["spec", "resourceAttributes", "subresource"]),
            name: field(&["spec", "resourceAttributes", "name"]),
            namespace: field(&["spec", "resourceAttributes", "namespace"]),
            path: "",
            field_selector: &field_selector,
        }
    } else {
        let verb = field(&["spec", "nonResourceAttributes", "verb"]);
        Attributes::path(verb, field(&["spec", "nonResourceAttributes", "path"]))
    };
    let decision = cx.server.with_authorizer(|authorizer| authorizer.authorize(caller, &attributes)).await?;
    let mut status = json!({"allowed": decision.allowed()});
    if !decision.reason().is_empty() {
        status["reason"] = decision.reason().into();
    }
    Ok(status)
}

async fn rules(cx: &Cx<'_>, caller: &Caller, review: &Object) -> Result<Value, Status> {
    let namespace = str_at(review, &["spec", "namespace"]);
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let effective = cx.server.with_authorizer(|authorizer| authorizer.rbac.rules_for(caller, namespace)).await?;
    let (mut resource_rules, mut path_rules) = (Vec::new(), Vec::new());
    for rule in &effective.rules {
        if rule.non_resource_urls.is_empty() {
            let mut shown = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                shown["resourceNames"] = json!(rule.resource_names);
            }
            resource_rules.push(shown);
        } else {
            path_rules.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    let mut status = json!({
        "resourceRules": resource_rules, "nonResourceRules": path_rules, "incomplete": !effective.errors.is_empty(),
    });
    if !effective.errors.is_empty() {
        status["evaluationError"] = effective.errors.join("; ").into();
    }
    Ok(status)
}

async fn token(server: &ApiServer, cx: &Cx<'_>, review: &Object) -> Result<Value, Status> {
    let token = str_at(review, &["spec", "token"]);
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let refused = |why: String| json!({"authenticated": false, "user": {}, "error": why});
    let Some(authenticator) = &server.inner.authenticator else {
        return Ok(refused("no tokens are accepted here".to_owned()));
    };
    let now_unix_s = cx.server.env.now().as_second();
    let audiences = texts(at(review, &["spec", "audiences"]));
    let for_us = audiences.is_empty() || audiences.iter().any(|one| authenticator.api_audiences().contains(one));
    let token = Secret::new(token);
    match cx.server.token_caller(&token).await {
        // It is good for this server alone.
        Ok(Some(_)) if !for_us => return Ok(refused("the token is for other audiences".to_owned())),
        Ok(Some(caller)) => {
            return Ok(json!({
                "authenticated": true, "user": user_info(&caller), "audiences": authenticator.api_audiences(),
            }));
        }
        Ok(None) => {}
        Err(status) => return Ok(refused(status.message)),
    }
    let presented = match authenticator.present_token(&token, &audiences, now_unix_s) {
        Ok(presented) => presented,
        Err(error) => return Ok(refused(error.to_string())),
    };
    let accepted = match &presented {
        carrack_auth::authn::Presented::Token(verified) => verified.audiences().to_vec(),
        carrack_auth::authn::Presented::Caller(_) => authenticator.api_audiences().to_vec(),
    };
    Ok(match cx.server.confirmed(presented, now_unix_s).await {
        Ok(caller) => json!({"authenticated": true, "user": user_info(&caller), "audiences": accepted}),
        Err(error) => refused(error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_selectors_as_text() {
        let part = |operator: &str, values: &[&str]| json!({"key": "k", "operator": operator, "values": values});
        for (selector, want) in [
            (Value::Null, ""),
            (json!({"rawSelector": "a=b,c!=d"}), "a=b,c!=d"),
            (json!({"requirements": [part("In", &["x"]), part("NotIn", &["y"])]}), "k=x,k!=y"),
            (json!({"requirements": [part("In", &["x", "y"]), part("Exists", &[])]}), ""),
            (json!({"requirements": [part("In", &["x,spec.nodeName=n"])]}), r"k=x\,spec.nodeName\=n"),
        ] {
            let review = json!({"spec": {"resourceAttributes": {"fieldSelector": selector}}});
            let Value::Object(review) = review else { panic!("no object") };
            assert_eq!(field_selector(&review), want, "{review:?}");
        }
    }
}
