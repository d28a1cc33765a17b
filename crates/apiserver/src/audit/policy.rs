//! The audit policy: which requests are noted, and how much of them.
//!
//! `audit.k8s.io/v1 Policy`; the first rule that matches decides.
//! <https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/>

use carrack_auth::Caller;
use carrack_schema::decode::{self, Format, Limits};
use serde::Deserialize;

use crate::route::RequestInfo;

/// How much of a request is noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// Who, what, when, with which outcome.
    Metadata,
    /// And what was sent.
    Request,
    /// And what was answered.
    RequestResponse,
}

impl Level {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// When in a request's life it is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Stage {
    /// It has come.
    RequestReceived,
    /// Its reply has begun and goes on for long.
    ResponseStarted,
    /// It is answered.
    ResponseComplete,
    /// It broke the server.
    Panic,
}

impl Stage {
    pub(super) fn text(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// What is noted of which requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    api_version: String,
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde_json::Value,
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Rule {
    level: Level,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// What the policy says of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    pub level: Level,
    pub omit_stages: Vec<Stage>,
    pub omit_managed_fields: bool,
}

impl Policy {
    /// Reads a policy file's text, in YAML or JSON.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Policy, String> {
        let parsed = decode::parse(text, Format::Yaml, Limits::default()).map_err(|error| error.to_string())?;
        let policy: Policy = serde_json::from_value(parsed.value).map_err(|error| error.to_string())?;
        if (policy.api_version.as_str(), policy.kind.as_str()) != ("audit.k8s.io/v1", "Policy") {
            return Err(format!("{} {} is not audit.k8s.io/v1 Policy", policy.api_version, policy.kind));
        }
        if policy.rules.is_empty() {
            return Err("the policy has no rules".to_owned());
        }
        Ok(policy)
    }

    pub(super) fn decide(&self, caller: &Caller, info: &RequestInfo) -> Decision {
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(caller, info)) else { return Decision::default() };
        let mut omit_stages = self.omit_stages.clone();
        omit_stages.extend(&rule.omit_stages);
        let level = if is_secret(info) { rule.level.min(Level::Metadata) } else { rule.level };
        let omit_managed_fields = rule.omit_managed_fields.unwrap_or(self.omit_managed_fields);
        Decision { level, omit_stages, omit_managed_fields }
    }
}

/// Whether a request or its answer holds what nobody may read in a log, whatever the policy says.
fn is_secret(info: &RequestInfo) -> bool {
    info.resource.as_ref().is_some_and(|r| {
        matches!(
            (r.group.as_str(), r.resource.as_str(), r.subresource.as_deref()),
            ("", "secrets", _) | ("authentication.k8s.io", "tokenreviews", _) | ("", "serviceaccounts", Some("token"))
        )
    })
}

impl Rule {
    fn matches(&self, caller: &Caller, info: &RequestInfo) -> bool {
        let any = |list: &[String], test: &dyn Fn(&str) -> bool| list.is_empty() || list.iter().any(|item| test(item));
        any(&self.users, &|user| user == caller.user)
            && any(&self.user_groups, &|group| caller.in_group(group))
            && any(&self.verbs, &|verb| verb == info.verb)
            && self.matches_target(info)
    }

    fn matches_target(&self, info: &RequestInfo) -> bool {
        if self.namespaces.is_empty() && self.resources.is_empty() && self.non_resource_urls.is_empty() {
            return true;
        }
        let Some(request) = &info.resource else {
            return self.non_resource_urls.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => info.path.starts_with(prefix),
                None => *pattern == info.path,
            });
        };
        if !self.non_resource_urls.is_empty() {
            return false;
        }
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let in_namespace = self.namespaces.is_empty() || self.namespaces.iter().any(|n| n == namespace);
        in_namespace
            && (self.resources.is_empty()
                || self.resources.iter().any(|wanted| {
                    let subresource = request.subresource.as_deref().unwrap_or_default();
                    let name = request.name.as_deref().unwrap_or_default();
                    wanted.group == request.group
                        && (wanted.resource_names.is_empty() || wanted.resource_names.iter().any(|n| n == name))
                        && (wanted.resources.is_empty()
                            || wanted.resources.iter().any(|pattern| fits(pattern, &request.resource, subresource)))
                }))
    }
}

/// `pods`, `pods/log`, `pods/*`, `*/scale`, `*`.
fn fits(pattern: &str, resource: &str, subresource: &str) -> bool {
    match pattern.split_once('/') {
        None => pattern == "*" || (pattern == resource && subresource.is_empty()),
        Some((wanted, sub)) => {
            (wanted == "*" || wanted == resource) && (sub == "*" || sub == subresource) && !subresource.is_empty()
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::query::Query;

    #[test]
    fn the_first_rule_decides() {
        let policy = Policy::parse(
            b"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: ['system:kube-scheduler']}
- {level: None, nonResourceURLs: ['/healthz*', /version]}
- {level: RequestResponse, resources: [{group: '', resources: [pods, secrets]}], namespaces: [prod]}
- {level: Request, resources: [{group: '', resources: ['*/status']}]}
- {level: Metadata, verbs: [delete]}
- {level: None}
",
        )
        .expect("a policy");
        let check = |user: &str, method: Method, path: &str, want: Level| {
            let query = Query::parse("");
            let info = RequestInfo::parse(&method, path, &query);
            let decision = policy.decide(&Caller::new(user, [""; 0]), &info);
            assert_eq!(decision.level, want, "{user} {method} {path}");
            assert!(decision.omit_stages.contains(&Stage::RequestReceived));
        };
        check("system:kube-scheduler", Method::GET, "/api/v1/namespaces/prod/pods/p", Level::None);
        check("u", Method::GET, "/healthz/etcd", Level::None);
        check("u", Method::GET, "/api/v1/namespaces/prod/pods/p", Level::RequestResponse);
        check("u", Method::GET, "/api/v1/namespaces/prod/secrets/s", Level::Metadata);
        check("u", Method::GET, "/api/v1/namespaces/test/pods/p", Level::None);
        check("u", Method::PUT, "/api/v1/namespaces/test/pods/p/status", Level::Request);
        check("u", Method::DELETE, "/api/v1/namespaces/test/pods/p", Level::Metadata);
        for bad in [
            "",
            "apiVersion: v1\nkind: Policy\nrules: [{level: None}]",
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: []",
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Much}]",
        ] {
            assert!(Policy::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
