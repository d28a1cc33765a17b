//! `AdmissionConfiguration`: what admission plugins are told when the server starts, and which are on. What is said to a plugin
//! that is not here is refused, since it would not hold.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/>

use std::collections::BTreeSet;

use carrack_schema::decode;
use serde::Deserialize;
use serde_json::Value;

use super::event_rate;
use super::pod::Tolerations;
use super::pod_security::Configuration;
use super::quota::Limits;
use super::webhook::{Users, WebhookUsers};

const KIND: &str = "AdmissionConfiguration";
const KINDS: [(&str, &str); 3] = [
    ("apiserver.config.k8s.io/v1", KIND),
    ("apiserver.config.k8s.io/v1alpha1", KIND),
    ("apiserver.k8s.io/v1alpha1", KIND),
];

/// The plugin that is on only where it is named.
const EVENT_RATE_LIMIT: &str = "EventRateLimit";
const MUTATING: &str = "MutatingAdmissionWebhook";
const VALIDATING: &str = "ValidatingAdmissionWebhook";

/// The plugins that can be told something.
const PLUGINS: [&str; 5] = [EVENT_RATE_LIMIT, MUTATING, "PodSecurity", "ResourceQuota", VALIDATING];

/// Upstream's names of what is on anyway, be it a plugin here or not.
const ALWAYS_ON: [&str; 28] = [
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "ClusterTrustBundleAttest",
    "DefaultIngressClass",
    "DefaultStorageClass",
    "DefaultTolerationSeconds",
    "JobValidation",
    "LimitRanger",
    "MutatingAdmissionPolicy",
    MUTATING,
    "NamespaceLifecycle",
    "NodeDeclaredFeatureValidator",
    "NodeRestriction",
    "PersistentVolumeClaimResize",
    "PodGroupProtection",
    "PodGroupWorkloadExists",
    "PodResizeValidator",
    "PodSecurity",
    "PodTopologyLabels",
    "Priority",
    "ResourceQuota",
    "RuntimeClass",
    "ServiceAccount",
    "StorageObjectInUseProtection",
    "TaintNodesByCondition",
    "ValidatingAdmissionPolicy",
    VALIDATING,
];

/// Those of them that are no plugins here, but part of how their kinds are written: they are never off.
const ALWAYS: [&str; 8] = [
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "ClusterTrustBundleAttest",
    "JobValidation",
    "PodGroupProtection",
    "PodGroupWorkloadExists",
    "PodResizeValidator",
];

/// What plugins are told, and which of them are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionConfiguration {
    pub(crate) pod_security: Configuration,
    pub(crate) resource_quota: Limits,
    /// By what webhooks know the server.
    pub(crate) webhook_users: WebhookUsers,
    event_rate: event_rate::Limits,
    limits_events: bool,
    /// How long pods stay on nodes that are lost.
    pub(super) tolerations: Tolerations,
    /// Those that are off although most servers have them on.
    pub(super) off: BTreeSet<&'static str>,
}

/// Refuses what is not of one of these versions and kinds. The first is the one that is told.
pub(super) fn check_kind<const N: usize>(
    api_version: &str,
    kind: &str,
    kinds: [(&str, &str); N],
) -> Result<(), String> {
    match kinds.first() {
        Some((version, of)) if !kinds.contains(&(api_version, kind)) => {
            Err(format!("{api_version} {kind} is not {version} {of}"))
        }
        _ => Ok(()),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    api_version: String,
    kind: String,
    #[serde(default)]
    plugins: Vec<WrittenPlugin>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPlugin {
    name: String,
    #[serde(default)]
    path: String,
    configuration: Option<Value>,
}

impl AdmissionConfiguration {
    /// Reads a file. `read` reads the files that it names; kubeconfigs, which name others again, are read as such.
    ///
    /// # Errors
    /// The first thing that is wrong with it, or with one of those.
    pub fn parse(text: &[u8], read: impl Fn(&str) -> Result<Vec<u8>, String>) -> Result<Self, String> {
        let written: Written = serde_json::from_value(decode::file(text)?).map_err(|error| error.to_string())?;
        check_kind(&written.api_version, &written.kind, KINDS)?;
        let mut all = Self::default();
        for (index, plugin) in written.plugins.iter().enumerate() {
            let (name, place) = (plugin.name.as_str(), format!("plugins[{index}]"));
            if written.plugins.iter().take(index).any(|before| before.name == name) {
                return Err(format!("{place}.name: {name:?} is there twice"));
            }
            if !PLUGINS.contains(&name) {
                return Err(format!("{place}.name: {name:?} is not supported, only {} are", PLUGINS.join(", ")));
            }
            // As upstream: what is said here goes before what a file says.
            let (place, configuration) = match &plugin.configuration {
                Some(configuration) => (format!("{place}.configuration"), Ok(configuration.clone())),
                None if plugin.path.is_empty() => continue,
                None => (format!("{place}.path"), read(&plugin.path).and_then(|text| decode::file(&text))),
            };
            let parsed = configuration.and_then(|configuration| all.tell(name, configuration));
            parsed.map_err(|why| format!("{place}: {why}"))?;
        }
        Ok(all)
    }

    /// Switches plugins on, by their names (`--enable-admission-plugins`). Most are on anyway.
    ///
    /// # Errors
    /// There is none of that name, or it has not been told what it has to know.
    pub fn enable<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Result<Self, String> {
        for name in names {
            if name == EVENT_RATE_LIMIT {
                self.event_rate.check().map_err(|why| format!("{name}: {why}"))?;
                self.limits_events = true;
            } else if !ALWAYS_ON.contains(&name) {
                return Err(format!("admission plugin {name:?} is unknown"));
            }
        }
        Ok(self)
    }

    /// Switches plugins off, by their names (`--disable-admission-plugins`).
    ///
    /// # Errors
    /// There is none of that name, or it is one that is never off.
    pub fn disable<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Result<Self, String> {
        let known = || ALWAYS_ON.into_iter().filter(|known| !ALWAYS.contains(known));
        for name in names {
            match known().find(|known| *known == name) {
                Some(known) => {
                    self.off.insert(known);
                }
                // It is off unless it is named elsewhere.
                None if name == EVENT_RATE_LIMIT => {}
                None => {
                    let all: Vec<&str> = known().chain([EVENT_RATE_LIMIT]).collect();
                    return Err(format!(
                        "admission plugin {name:?} cannot be switched off, only {} can",
                        all.join(", ")
                    ));
                }
            }
        }
        Ok(self)
    }

    /// Says for how many seconds pods stay on a node that is not ready, and on one that is unreachable, where they do not say it
    /// themselves (`--default-not-ready-toleration-seconds`, `--default-unreachable-toleration-seconds`).
    #[must_use]
    pub fn tolerate(mut self, not_ready_s: Option<i64>, unreachable_s: Option<i64>) -> Self {
        let usual = Tolerations::default();
        self.tolerations = Tolerations {
            not_ready_s: not_ready_s.unwrap_or(usual.not_ready_s),
            unreachable_s: unreachable_s.unwrap_or(usual.unreachable_s),
        };
        self
    }

    /// Whether a plugin is off.
    pub(super) fn is_off(&self, plugin: &str) -> bool {
        self.off.contains(plugin)
    }

    /// What events are held to, if they are.
    pub(super) fn event_limits(&self) -> Option<&event_rate::Limits> {
        self.limits_events.then_some(&self.event_rate)
    }

    /// Tells a plugin something.
    fn tell(&mut self, plugin: &str, configuration: Value) -> Result<(), String> {
        match plugin {
            EVENT_RATE_LIMIT => self.event_rate = event_rate::Limits::parse(configuration)?,
            MUTATING => self.webhook_users.mutating = Users::parse(configuration)?,
            VALIDATING => self.webhook_users.validating = Users::parse(configuration)?,
            "PodSecurity" => self.pod_security = Configuration::parse(configuration)?,
            _ => self.resource_quota = Limits::parse(configuration)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECURITY: &str =
        r#"{"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration"}"#;

    #[track_caller]
    fn check(change: impl FnOnce(&mut Value), want: Result<(), &str>) {
        let mut written = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": KIND, "plugins": [
            {"name": "PodSecurity", "configuration": serde_json::from_str::<Value>(SECURITY).expect("JSON")}]});
        change(&mut written);
        let read = |path: &str| match path {
            "security.yaml" => Ok(SECURITY.as_bytes().to_vec()),
            _ => Err(format!("cannot read {path}")),
        };
        let got = AdmissionConfiguration::parse(written.to_string().as_bytes(), read);
        match want {
            Ok(()) => assert!(got.is_ok(), "{got:?}"),
            Err(why) => assert!(got.as_ref().is_err_and(|error| error.contains(why)), "{got:?}, and not {why}"),
        }
    }

    #[test]
    fn what_plugins_are_told() {
        check(|_| {}, Ok(()));
        check(|all| all["plugins"] = json!([]), Ok(()));
        check(|all| all["plugins"] = json!([{"name": "PodSecurity"}]), Ok(()));
        check(|all| all["plugins"][0] = json!({"name": "PodSecurity", "path": "security.yaml"}), Ok(()));
        let path = json!({"name": "PodSecurity", "path": "other.yaml"});
        check(move |all| all["plugins"][0] = path, Err("plugins[0].path: cannot read other.yaml"));
        check(|all| all["kind"] = "Admission".into(), Err("is not apiserver.config.k8s.io/v1 AdmissionConfiguration"));
        check(|all| all["apiVersion"] = "apiserver.config.k8s.io/v2".into(), Err("apiserver.config.k8s.io/v2"));
        check(|all| all["other"] = 1.into(), Err("unknown field `other`"));
        check(|all| all["plugins"][0]["args"] = 1.into(), Err("unknown field `args`"));
        let unknown = "ImagePolicyWebhook";
        check(|all| all["plugins"][0]["name"] = unknown.into(), Err("plugins[0].name: \"ImagePolicyWebhook\""));
        let empty = json!({"name": "EventRateLimit", "configuration": {"kind": "Configuration",
            "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "limits": []}});
        check(move |all| all["plugins"][0] = empty, Err("plugins[0].configuration: limits: Invalid value: null"));
        let other = Err("plugins[0].configuration: unknown field `defaults`");
        check(|all| all["plugins"][0]["configuration"]["defaults"] = json!({}), Ok(()));
        let of_another = json!({"name": "ResourceQuota", "configuration": {"defaults": {}}});
        check(move |all| all["plugins"][0] = of_another, other);
        let limits = json!({"name": "ResourceQuota", "configuration": {"apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "ResourceQuotaConfiguration", "limitedResources": [{"resource": "pods", "matchContains": ["cpu"]}]}});
        check(move |all| all["plugins"][0] = limits, Ok(()));
        let twice = json!([{"name": "PodSecurity", "path": "security.yaml"}, {"name": "PodSecurity"}]);
        check(move |all| all["plugins"] = twice, Err("plugins[1].name: \"PodSecurity\" is there twice"));
        let exempt = json!({"users": ["a"]});
        check(
            move |all| all["plugins"][0]["configuration"]["exemptions"] = exempt,
            Err("plugins[0].configuration: unknown field `users`"),
        );
    }
    #[test]
    fn plugins_that_are_switched_on() {
        let limits = json!([{"type": "Server", "qps": 1, "burst": 1}]);
        let told = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": KIND, "plugins": [
            {"name": "EventRateLimit", "configuration": {"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1",
                "kind": "Configuration", "limits": limits}}]});
        let told = AdmissionConfiguration::parse(told.to_string().as_bytes(), |_| Err("no files".to_owned()));
        let told = told.expect("a configuration");
        let silent = AdmissionConfiguration::default();
        let empty = "EventRateLimit: limits: Invalid value: null: must not be empty";
        let unknown = "admission plugin \"AlwaysDeny\" is unknown";
        let check = |configuration: &AdmissionConfiguration, names: &[&str], want: Result<bool, &str>| {
            let got = configuration.clone().enable(names.iter().copied());
            let got = got.as_ref().map(|all| all.event_limits().is_some()).map_err(String::as_str);
            assert_eq!(got, want, "{names:?}");
        };
        check(&told, &[], Ok(false));
        check(&told, &["NodeRestriction", "EventRateLimit"], Ok(true));
        check(&silent, &["PodSecurity"], Ok(false));
        check(&silent, &["NodeDeclaredFeatureValidator", "PodResizeValidator"], Ok(false));
        check(&silent, &["EventRateLimit"], Err(empty));
        check(&told, &["AlwaysDeny"], Err(unknown));
    }

    #[test]
    fn plugins_that_are_switched_off() {
        let check = |names: &[&str], want: Result<&[&str], &str>| {
            let got = AdmissionConfiguration::default().disable(names.iter().copied());
            match (got, want) {
                (Ok(got), Ok(want)) => assert_eq!(got.off.into_iter().collect::<Vec<_>>(), want, "{names:?}"),
                (Err(got), Err(want)) => assert!(got.contains(want), "{got}, and not {want}"),
                (got, want) => panic!("{got:?}, and not {want:?}"),
            }
        };
        check(&[], Ok(&[]));
        check(&["PodSecurity", "LimitRanger", "PodSecurity"], Ok(&["LimitRanger", "PodSecurity"]));
        check(&["EventRateLimit"], Ok(&[]));
        check(&["AlwaysDeny"], Err("\"AlwaysDeny\" cannot be switched off, only DefaultIngressClass, "));
        check(&["LimitRanger", "PodResizeValidator"], Err("\"PodResizeValidator\" cannot be switched off"));
        for name in ALWAYS {
            assert!(ALWAYS_ON.contains(&name), "{name}");
        }
    }
}
