//! Which versions of the built-in kinds are served: upstream's `--runtime-config`.
//!
//! Unless told otherwise, those that are generally available, and no others (upstream's `DefaultAPIResourceConfigSource`,
//! `pkg/controlplane/instance.go`): who looks for an API decides by what is served what the cluster can do. Objects of what is
//! not served stay in the store. What is generally available cannot be switched off, as upstream's can: controllers, and the
//! collector of garbage above all, wait until they know all of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_schema::table::{self, ResourceInfo};

use crate::catalog::version_rank;
use crate::flow::truth;

/// What is served otherwise than by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    rules: BTreeMap<Which, bool>,
}

/// What a rule is about. The order is that of their weight: the last one that applies counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    All,
    Stage(Stage),
    Version { group: String, version: String },
    Resource { group: String, version: String, plural: String },
}

/// How far an API has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Stable,
    Beta,
    Alpha,
}

impl Stage {
    /// As the name of a version tells.
    fn of(version: &str) -> Option<Self> {
        match version_rank(version) {
            (3, ..) => Some(Stage::Stable),
            (2, ..) => Some(Stage::Beta),
            (1, ..) => Some(Stage::Alpha),
            _ => None,
        }
    }
}

/// A group as it is named here: the core one, which has no name, is called `api`, as in its path.
fn named(group: &str) -> String {
    if group == "api" { String::new() } else { group.to_owned() }
}

impl Which {
    fn parse(key: &str) -> Result<Self, String> {
        let parts: Vec<&str> = key.split('/').collect();
        let which = match *parts.as_slice() {
            ["api", "all"] => return Ok(Which::All),
            ["api", "ga"] => return Ok(Which::Stage(Stage::Stable)),
            ["api", "beta"] => return Ok(Which::Stage(Stage::Beta)),
            ["api", "alpha"] => return Ok(Which::Stage(Stage::Alpha)),
            [group, version] => Which::Version { group: named(group), version: version.to_owned() },
            [group, version, plural] => {
                Which::Resource { group: named(group), version: version.to_owned(), plural: plural.to_owned() }
            }
            _ => return Err(format!("{key:?} is none of GROUP/VERSION, GROUP/VERSION/RESOURCE and api/all")),
        };
        let is_there = table::builtin()
            .iter()
            .any(|row| row.versions.iter().any(|version| which.covers(&row.group, &version.name, &row.plural)));
        if is_there { Ok(which) } else { Err(format!("{key:?} is no API of this server")) }
    }

    fn covers(&self, of_group: &str, of_version: &str, of_plural: &str) -> bool {
        match self {
            Which::All => true,
            Which::Stage(stage) => Stage::of(of_version) == Some(*stage),
            Which::Version { group, version } => group == of_group && version == of_version,
            Which::Resource { group, version, plural } => {
                group == of_group && version == of_version && plural == of_plural
            }
        }
    }
}

impl RuntimeConfig {
    /// Reads what is said in words of the form `group/version=true`, `group/version/resource=false` or `api/beta=true`; besides
    /// `api/beta` there are `api/alpha`, `api/ga` and `api/all`. What is said of less goes before what is said of more.
    ///
    /// # Errors
    /// What is not of this form, or about an API that is not there; what would switch off what is generally available.
    pub fn parse<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Self, String> {
        let mut rules = BTreeMap::new();
        for word in words.into_iter().map(str::trim).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let which = Which::parse(key.trim())?;
            let value = value.trim();
            // Nothing says yes.
            let said = if value.is_empty() { Some(true) } else { truth(value) };
            let is_on = said.ok_or_else(|| format!("{word:?} says neither true nor false"))?;
            rules.insert(which, is_on);
        }
        let config = Self { rules };
        match config.lacking() {
            Some(api) => Err(format!("{api} is generally available and cannot be switched off: controllers need it")),
            None => Ok(config),
        }
    }

    /// A generally available API that is not served.
    fn lacking(&self) -> Option<String> {
        let versions =
            table::builtin().iter().flat_map(|row| row.versions.iter().map(move |version| (row, &version.name)));
        let mut lacking = versions.filter(|(row, version)| {
            Stage::of(version) == Some(Stage::Stable) && !self.serves(&row.group, version, &row.plural)
        });
        let (row, version) = lacking.next()?;
        let group = if row.group.is_empty() { "api" } else { &*row.group };
        Some(format!("{group}/{version}/{}", row.plural))
    }

    /// Whether a version of a built-in kind is served.
    #[must_use]
    pub fn serves(&self, group: &str, version: &str, plural: &str) -> bool {
        let said = self.rules.iter().rev().find(|(which, _)| which.covers(group, version, plural));
        said.map_or(Stage::of(version) == Some(Stage::Stable), |(_, is_on)| *is_on)
    }

    /// The built-in kinds that are served, in the versions in which they are.
    pub(crate) fn rows(&self) -> Vec<Arc<ResourceInfo>> {
        table::builtin().iter().filter_map(|row| self.narrowed(row)).collect()
    }

    fn narrowed(&self, row: &Arc<ResourceInfo>) -> Option<Arc<ResourceInfo>> {
        let served: Vec<bool> =
            row.versions.iter().map(|version| self.serves(&row.group, &version.name, &row.plural)).collect();
        if served.iter().all(|is_on| *is_on) {
            return Some(Arc::clone(row));
        }
        if !served.contains(&true) {
            return None;
        }
        let mut narrowed = ResourceInfo::clone(row);
        for (version, is_on) in narrowed.versions.iter_mut().zip(served) {
            version.served = is_on;
        }
        Some(Arc::new(narrowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type What = (&'static str, &'static str, &'static str);

    #[test]
    fn what_is_said_of_less_goes_before() {
        const GROUPS: What = ("scheduling.k8s.io", "v1alpha2", "podgroups");
        const WORKLOADS: What = ("scheduling.k8s.io", "v1alpha2", "workloads");
        const BUNDLES: What = ("certificates.k8s.io", "v1beta1", "clustertrustbundles");
        const PODS: What = ("", "v1", "pods");
        const SCALERS: What = ("autoscaling", "v1", "horizontalpodautoscalers");
        let table: Vec<(&[&str], &[What], &[What])> = vec![
            (&[], &[PODS, SCALERS], &[GROUPS, WORKLOADS, BUNDLES]),
            (&["api/all=true"], &[PODS, GROUPS, WORKLOADS, BUNDLES], &[]),
            (&["api/beta"], &[PODS, BUNDLES], &[GROUPS]),
            (&["api/alpha=1", "", " api/ga=true "], &[GROUPS, PODS], &[BUNDLES]),
            (&["scheduling.k8s.io/v1alpha2=true"], &[GROUPS, WORKLOADS], &[BUNDLES]),
            (&["scheduling.k8s.io/v1alpha2/podgroups=true"], &[GROUPS, PODS], &[WORKLOADS]),
            (&["scheduling.k8s.io/v1alpha2/podgroups=false", "api/all=true"], &[WORKLOADS], &[GROUPS]),
            (&["api/all=false", "api/ga=true"], &[PODS, SCALERS], &[GROUPS, BUNDLES]),
            (&["api/v1/pods=false", "api/v1/pods=true"], &[PODS], &[BUNDLES]),
        ];
        for (words, served, others) in table {
            let config = RuntimeConfig::parse(words.iter().copied()).expect("a configuration");
            for (what, want) in served.iter().map(|what| (what, true)).chain(others.iter().map(|what| (what, false))) {
                let (group, version, plural) = *what;
                assert_eq!(config.serves(group, version, plural), want, "{words:?} {what:?}");
            }
        }
        for (word, why) in [
            ("api/all=false", "cannot be switched off"),
            ("api/ga=false", "cannot be switched off"),
            ("api/v1/pods=false", "api/v1/pods is generally available"),
            ("autoscaling/v1=false", "autoscaling/v1/horizontalpodautoscalers is generally available"),
            ("v1=true", "is none of"),
            ("a/b/c/d=true", "is none of"),
            ("apps/v1beta1=true", "is no API of this server"),
            ("apps/v1/things=true", "is no API of this server"),
            ("example.com/v1=true", "is no API of this server"),
            ("api/legacy=true", "is no API of this server"),
            ("apps/v1=maybe", "says neither"),
        ] {
            let refused = RuntimeConfig::parse([word]).expect_err(word);
            assert!(refused.contains(why), "{word}: {refused}");
        }
    }

    #[test]
    fn rows_have_what_is_served() {
        let find = |words: &[&str], plural: &str| {
            let config = RuntimeConfig::parse(words.iter().copied()).expect("a configuration");
            let row = config.rows().into_iter().find(|row| row.plural == plural)?;
            Some(row.versions.iter().filter(|v| v.served).map(|v| v.name.to_string()).collect::<Vec<_>>())
        };
        const SCALERS: &str = "horizontalpodautoscalers";
        assert_eq!(find(&[], "podgroups"), None);
        assert_eq!(find(&["api/all"], "podgroups"), Some(vec!["v1alpha2".to_owned()]));
        assert_eq!(find(&[], SCALERS), Some(vec!["v2".to_owned(), "v1".to_owned()]));
    }
}
