//! By what webhooks know who asks them: the users of a kubeconfig, each named after the hosts that it is for.
//!
//! ```text
//!   hooks.example.com:443 ─► hooks.example.com:443 ─► *.example.com:443 ─► *.com:443 ─┐ then, on port 443
//!                          ┌──────────────────────────────────────────────────────────┘
//!                          └► hooks.example.com ─► *.example.com ─► *.com ─► * ─► the current context's ─► nobody
//! ```
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/webhook/config` and `k8s.io/apiserver/pkg/util/webhook/authentication.go`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use carrack_auth::kubeconfig::{Credentials, Kubeconfig};
use carrack_schema::error::FieldError;
use serde::Deserialize;
use serde_json::Value;

use crate::admission::configuration::check_kind;
use crate::metrics::Step;

/// The names of the file's kind, with its version.
const KINDS: [(&str, &str); 2] = [
    ("apiserver.config.k8s.io/v1", "WebhookAdmissionConfiguration"),
    ("apiserver.config.k8s.io/v1alpha1", "WebhookAdmission"),
];

/// The port that need not be named.
const PORT: u16 = 443;

/// Whom the server is for webhooks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WebhookUsers {
    pub mutating: Users,
    pub validating: Users,
}

impl WebhookUsers {
    /// For those that are asked at this step.
    pub(super) fn of(&self, step: Step) -> &Users {
        match step {
            Step::Admit => &self.mutating,
            Step::Validate => &self.validating,
        }
    }
}

/// Users by the hosts that they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Users {
    by_host: BTreeMap<String, Arc<Credentials>>,
    /// For hosts that none is for.
    other: Option<Arc<Credentials>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    api_version: String,
    kind: String,
    #[serde(default)]
    kube_config_file: String,
}

impl Users {
    /// Reads what a plugin is told, and the kubeconfig that it names.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub(crate) fn parse(value: Value) -> Result<Self, String> {
        let read: Written = serde_json::from_value(value).map_err(|error| error.to_string())?;
        check_kind(&read.api_version, &read.kind, KINDS)?;
        let path = Path::new(&read.kube_config_file);
        if !path.is_absolute() {
            let why = "must be an absolute file path";
            return Err(FieldError::invalid("kubeConfigFile", read.kube_config_file.as_str(), why).to_string());
        }
        let config = Kubeconfig::load(path).map_err(|error| carrack_engine::causes(&error))?;
        Users::of(&config).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// The users of a kubeconfig.
    fn of(config: &Kubeconfig) -> Result<Self, String> {
        let mut by_host = BTreeMap::new();
        for named in &config.users {
            let shown = named.user.credentials(&named.name).map_err(|error| carrack_engine::causes(&error))?;
            if by_host.insert(named.name.clone(), Arc::new(shown)).is_some() {
                return Err(format!("the user {:?} is there twice", named.name));
            }
        }
        let current = config.contexts.iter().find(|context| context.name == config.current_context);
        let current = current.and_then(|context| by_host.get(&context.context.user));
        let other = by_host.get("*").or(current).cloned();
        Ok(Users { by_host, other })
    }

    /// Whom the server is for this host.
    pub(super) fn find(&self, host: &str, port: u16) -> Option<&Arc<Credentials>> {
        let is_address = host.contains(':');
        let whole = if is_address { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let without_port = (port == PORT).then(|| self.named(host)).flatten();
        self.named(&whole).or(without_port).or(self.other.as_ref())
    }

    /// The user with that name, or with the longest end of it behind a star.
    fn named(&self, name: &str) -> Option<&Arc<Credentials>> {
        let ends = name.match_indices('.').map(|(at, _)| format!("*{}", &name[at..]));
        std::iter::once(name.to_owned()).chain(ends).find_map(|name| self.by_host.get(&name))
    }
}

#[cfg(test)]
mod tests {
    use carrack_auth::kubeconfig::Token;
    use serde_json::json;

    use super::*;

    fn token(shown: &Arc<Credentials>) -> &str {
        match &shown.token {
            Some(Token::Inline(token)) => token.expose(),
            other => panic!("{other:?}"),
        }
    }

    fn users(names: &[&str], current: &str) -> Result<Users, String> {
        let users: Vec<Value> = names.iter().map(|name| json!({"name": name, "user": {"token": name}})).collect();
        let contexts = json!([{"name": "here", "context": {"cluster": "", "user": current}}]);
        let config = json!({"apiVersion": "v1", "kind": "Config", "users": users, "contexts": contexts,
            "current-context": "here"});
        Users::of(&Kubeconfig::parse(&config.to_string()).expect("a kubeconfig"))
    }

    #[test]
    fn hosts_have_users() {
        let check = |names: &[&str], current: &str, (host, port): (&str, u16), want: Option<&str>| {
            let users = users(names, current).expect("users");
            assert_eq!(users.find(host, port).map(token), want, "{host}:{port} of {names:?}");
        };
        let (own, other) = (("a.b.example.com", 443), ("a.b.example.com", 8443));
        check(&["a.b.example.com:443", "a.b.example.com", "*"], "", own, Some("a.b.example.com:443"));
        check(&["a.b.example.com", "*.example.com", "*"], "", own, Some("a.b.example.com"));
        check(&["a.b.example.com", "*.example.com", "*"], "", other, Some("*"));
        check(&["*.example.com", "*.b.example.com"], "", own, Some("*.b.example.com"));
        // A star with the port goes before the name without it.
        check(&["*.com:443", "a.b.example.com"], "", own, Some("*.com:443"));
        check(&["*.com:8443", "*.com"], "", other, Some("*.com:8443"));
        check(&["hook.ns.svc", "mine"], "mine", ("hook.ns.svc", 443), Some("hook.ns.svc"));
        check(&["hook.ns.svc", "mine"], "mine", own, Some("mine"));
        check(&["*", "mine"], "mine", own, Some("*"));
        check(&["mine"], "another", own, None);
        check(&["[::1]:443"], "", ("::1", 443), Some("[::1]:443"));
        check(&["::1"], "", ("::1", 443), Some("::1"));
        check(&[], "", own, None);
    }

    #[test]
    fn what_is_wrong_is_told() {
        assert!(users(&["a", "a"], "").is_err_and(|why| why.contains("\"a\" is there twice")));
        let said = |value: Value| Users::parse(value).expect_err("refused");
        let configuration = |path: &str| {
            let (api_version, kind) = KINDS[0];
            json!({"apiVersion": api_version, "kind": kind, "kubeConfigFile": path})
        };
        let relative = "kubeConfigFile: Invalid value: \"users.yaml\": must be an absolute file path";
        assert_eq!(said(configuration("users.yaml")), relative);
        assert!(said(configuration("/nowhere/users.yaml")).starts_with("cannot read /nowhere/users.yaml"));
        let mut other = configuration("/nowhere/users.yaml");
        other["kind"] = "WebhookAdmission".into();
        assert!(said(other).contains("is not apiserver.config.k8s.io/v1 WebhookAdmissionConfiguration"));
    }
}
