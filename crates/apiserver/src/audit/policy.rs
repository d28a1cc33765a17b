//! The audit policy: which requests are noted, and how much of them.
//!
//! `audit.k8s.io/v1 Policy`; the first rule that matches decides.
//! <https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/>

use carrack_auth::Caller;
use carrack_schema::decode::{self, Format, Limits};
use carrack_schema::validate::names;
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

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
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
        let faulty = policy.rules.iter().enumerate().find_map(|(place, rule)| Some((place, rule.fault()?)));
        if let Some((place, fault)) = faulty {
            return Err(format!("rules[{place}].{fault}"));
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
    /// What is wrong with it: a rule that can match nothing, or not what it seems to, would hide what was to be noted
    /// (`k8s.io/apiserver/pkg/apis/audit/validation`).
    fn fault(&self) -> Option<String> {
        for (place, url) in self.non_resource_urls.iter().enumerate().filter(|(_, url)| *url != "*") {
            let what = if !url.starts_with('/') {
                "non-resource URL rules must begin with a '/' character"
            } else if url.trim_end_matches('*').contains('*') || url.ends_with("**") {
                "non-resource URL wildcards '*' must be the final character of the rule"
            } else {
                continue;
            };
            return Some(format!("nonResourceURLs[{place}]: {url:?}: {what}"));
        }
        for (place, group) in self.resources.iter().enumerate() {
            let name = &group.group;
            if let Some(why) = (!name.is_empty()).then(|| names::dns1123_subdomain(name)).flatten() {
                return Some(format!("resources[{place}].group: {name:?}: {why}"));
            }
            if !group.resource_names.is_empty() && group.resources.is_empty() {
                return Some(format!(
                    "resources[{place}].resourceNames: using resourceNames requires at least one resource"
                ));
            }
        }
        let of_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        let of_both = of_resources && !self.non_resource_urls.is_empty();
        let why = "nonResourceURLs: rules cannot apply to both regular resources and non-resource URLs";
        of_both.then(|| why.to_owned())
    }

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

/// `pods`, `pods/log`, `*/scale`, `*`, and `pods/*`, which is a pod and all that is below it
/// (`k8s.io/apiserver/pkg/audit/policy`, `ruleMatchesResource`).
fn fits(pattern: &str, resource: &str, subresource: &str) -> bool {
    match pattern.split_once('/') {
        None => pattern == "*" || (pattern == resource && subresource.is_empty()),
        Some((wanted, "*")) => wanted == resource,
        Some((wanted, sub)) => (wanted == "*" || wanted == resource) && sub == subresource && !subresource.is_empty(),
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
- {level: Metadata, resources: [{group: '', resources: ['services/*']}]}
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
        check("u", Method::GET, "/api/v1/namespaces/test/services/s", Level::Metadata);
        check("u", Method::PUT, "/api/v1/namespaces/test/services/s/status", Level::Metadata);
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

    #[test]
    fn rules_that_would_hide_something_are_refused() {
        for (rule, why) in [
            ("{level: Metadata, users: [u]}", ""),
            ("{level: None, nonResourceURLs: ['*', '/healthz*', /version]}", ""),
            ("{users: [u]}", "missing field `level`"),
            (
                "{level: None, nonResourceURLs: [healthz]}",
                "rules[0].nonResourceURLs[0]: \"healthz\": non-resource URL rules must begin",
            ),
            (
                "{level: None, nonResourceURLs: ['*', '/a*b']}",
                "rules[0].nonResourceURLs[1]: \"/a*b\": non-resource URL wildcards",
            ),
            ("{level: None, nonResourceURLs: ['/a**']}", "wildcards '*' must be the final character"),
            ("{level: None, nonResourceURLs: [/a], namespaces: [n]}", "cannot apply to both regular resources and"),
            ("{level: None, nonResourceURLs: [/a], resources: [{group: ''}]}", "cannot apply to both"),
            ("{level: None, resources: [{group: apps/v1}]}", "rules[0].resources[0].group: \"apps/v1\": "),
            (
                "{level: None, resources: [{group: apps}, {group: '', resourceNames: [a]}]}",
                "rules[0].resources[1].resourceNames: using resourceNames requires at least one resource",
            ),
        ] {
            let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{rule}]\n");
            let told = Policy::parse(text.as_bytes()).err().unwrap_or_default();
            assert_eq!((told.is_empty(), told.contains(why)), (why.is_empty(), true), "{rule}: {told}");
        }
    }
}
