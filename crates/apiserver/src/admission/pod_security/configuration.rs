//! `PodSecurityConfiguration`: what holds where a namespace's labels say nothing, and for whom nothing does.
//!
//! Upstream: `k8s.io/pod-security-admission/admission/api`.

use carrack_schema::validate::names;
use serde::Deserialize;
use serde_json::Value;

use super::{Level, Policy, minor};
use crate::admission::Attributes;

const GROUP: &str = "pod-security.admission.config.k8s.io/";
const KIND: &str = "PodSecurityConfiguration";

/// What the plugin is told; it says nothing by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Configuration {
    api_version: String,
    kind: String,
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    exemptions: Exemptions,
}

/// Levels and releases; what is empty is privileged, and the latest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Defaults {
    enforce: String,
    enforce_version: String,
    audit: String,
    audit_version: String,
    warn: String,
    warn_version: String,
}

/// Whose pods are not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Exemptions {
    usernames: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

/// What is wrong with a name, if anything is.
type Check = fn(&str) -> names::Problem;

impl Configuration {
    /// Reads what the plugin is told.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub(crate) fn parse(value: Value) -> Result<Self, String> {
        let read: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let version = read.api_version.strip_prefix(GROUP).unwrap_or_default();
        if !matches!(version, "v1" | "v1beta1" | "v1alpha1") || read.kind != KIND {
            return Err(format!("{} {} is not {GROUP}v1 {KIND}", read.api_version, read.kind));
        }
        for mode in ["enforce", "audit", "warn"] {
            let (level, version) = read.said(mode);
            if !level.is_empty() && Level::parse(level).is_none() {
                return Err(format!("defaults.{mode}: {level:?} is none of privileged, baseline, restricted"));
            }
            if !version.is_empty() && minor(version).is_none() {
                return Err(format!("defaults.{mode}-version: {version:?} is neither \"latest\" nor \"v1.x\""));
            }
        }
        let all = &read.exemptions;
        let named: [(&str, &[String], Check); 3] = [
            ("usernames", &all.usernames, |name| name.is_empty().then(|| "must not be empty".to_owned())),
            ("namespaces", &all.namespaces, names::dns1123_label),
            ("runtimeClasses", &all.runtime_classes, names::dns1123_subdomain),
        ];
        for (field, list, check) in named {
            let fault = list.iter().enumerate().find_map(|(index, name)| Some((index, check(name)?)));
            if let Some((index, why)) = fault {
                return Err(format!("exemptions.{field}[{index}]: {why}"));
            }
        }
        Ok(read)
    }

    fn said(&self, mode: &str) -> (&str, &str) {
        let defaults = &self.defaults;
        match mode {
            "enforce" => (&defaults.enforce, &defaults.enforce_version),
            "audit" => (&defaults.audit, &defaults.audit_version),
            _ => (&defaults.warn, &defaults.warn_version),
        }
    }

    /// The policy of a mode where a namespace says none.
    pub(super) fn default_of(&self, mode: &str) -> Policy {
        let (level, version) = self.said(mode);
        Policy { level: Level::parse(level).unwrap_or(Level::Privileged), minor: minor(version).flatten() }
    }

    /// Whether nothing is looked at in a namespace.
    pub(super) fn exempts_namespace(&self, namespace: &str) -> bool {
        self.exemptions.namespaces.iter().any(|exempt| exempt == namespace)
    }

    /// By what a pod, or a template, with this spec is not looked at.
    pub(super) fn exempts(&self, attributes: &Attributes<'_>, spec: Option<&Value>) -> Option<&'static str> {
        let Exemptions { usernames, runtime_classes, .. } = &self.exemptions;
        if self.exempts_namespace(attributes.namespace) {
            return Some("namespace");
        }
        if usernames.contains(&attributes.caller.user) {
            return Some("user");
        }
        let class = spec.and_then(|spec| spec.get("runtimeClassName")).and_then(Value::as_str);
        class.filter(|class| runtime_classes.iter().any(|exempt| exempt == class)).map(|_| "runtimeClass")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(part: &str, said: Value, want: Result<(), &str>) {
        let mut value = json!({"apiVersion": format!("{GROUP}v1beta1"), "kind": KIND});
        value[part] = said;
        assert_eq!(Configuration::parse(value).map(drop), want.map_err(str::to_owned));
    }

    #[test]
    fn what_is_said_has_to_be_good() {
        check("defaults", json!({"enforce": "baseline", "enforce-version": "v1.30", "warn": "restricted"}), Ok(()));
        check("defaults", json!({"audit": "privileged", "audit-version": "latest", "warn-version": "v1.2"}), Ok(()));
        check("exemptions", json!({"usernames": ["a b"], "namespaces": ["n"], "runtimeClasses": ["r.s"]}), Ok(()));
        let why = "defaults.warn: \"strict\" is none of privileged, baseline, restricted";
        check("defaults", json!({"warn": "strict"}), Err(why));
        let why = "defaults.audit-version: \"1.30\" is neither \"latest\" nor \"v1.x\"";
        check("defaults", json!({"audit-version": "1.30"}), Err(why));
        check("exemptions", json!({"usernames": ["a", ""]}), Err("exemptions.usernames[1]: must not be empty"));
        let why = "v1 Pod is not pod-security.admission.config.k8s.io/v1 PodSecurityConfiguration";
        assert_eq!(Configuration::parse(json!({"apiVersion": "v1", "kind": "Pod"})).err().as_deref(), Some(why));
        for (part, said) in [
            ("defaults", json!({"enforced": "baseline"})),
            ("exemptions", json!({"namespaces": ["A"]})),
            ("exemptions", json!({"runtimeClasses": ["-"]})),
            ("more", json!({})),
        ] {
            let mut value = json!({"apiVersion": format!("{GROUP}v1"), "kind": KIND});
            value[part] = said;
            assert!(Configuration::parse(value.clone()).is_err(), "{value}");
        }
    }
}
