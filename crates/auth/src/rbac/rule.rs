//! One policy rule: what it matches, and whether rules cover other rules.
//!
//! The matching is that of upstream's `pkg/apis/rbac/v1/evaluation_helpers.go`; the covering is that
//! of `component-helpers/auth/rbac/validation/policy_comparator.go`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::attributes::Attributes;

/// A `PolicyRule`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Verbs; `*` is all.
    #[serde(deserialize_with = "list")]
    pub verbs: Vec<String>,
    /// API groups; `*` is all, the empty string is the core group.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub api_groups: Vec<String>,
    /// `resource`, `resource/subresource`, `*/subresource` or `*`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub resources: Vec<String>,
    /// Object names; none means all.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub resource_names: Vec<String>,
    /// Paths; a `*` at the end stands for any rest.
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub non_resource_urls: Vec<String>,
}

/// A list that may also be written as `null`, as Go's encoder does.
fn list<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default())
}

const ALL: &str = "*";

fn has(list: &[String], what: &str) -> bool {
    list.iter().any(|item| item == ALL || item == what)
}

impl Rule {
    /// Whether the rule allows the request.
    #[must_use]
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        if !has(&self.verbs, attributes.verb) {
            return false;
        }
        if !attributes.is_resource() {
            return self.non_resource_urls.iter().any(|url| url_covers(url, attributes.path));
        }
        has(&self.api_groups, attributes.group)
            && self.resources.iter().any(|r| resource_matches(r, attributes.resource, attributes.subresource))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|name| name == attributes.name))
    }

    /// The rule as upstream prints it where it refuses an escalation.
    #[must_use]
    pub fn compact(&self) -> String {
        let mut parts = Vec::new();
        let mut part = |name: &str, list: &[String]| {
            if !list.is_empty() {
                let quoted: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
                parts.push(format!("{name}:[{}]", quoted.join(" ")));
            }
        };
        part("APIGroups", &self.api_groups);
        part("Resources", &self.resources);
        part("ResourceNames", &self.resource_names);
        part("NonResourceURLs", &self.non_resource_urls);
        part("Verbs", &self.verbs);
        format!("{{{}}}", parts.join(", "))
    }

    /// The same with each item of its lists once.
    fn distinct(&self) -> Rule {
        let once = |list: &[String]| {
            let mut known = BTreeSet::new();
            list.iter().filter(|item| known.insert(item.as_str())).cloned().collect()
        };
        Rule {
            verbs: once(&self.verbs),
            api_groups: once(&self.api_groups),
            resources: once(&self.resources),
            resource_names: once(&self.resource_names),
            non_resource_urls: once(&self.non_resource_urls),
        }
    }

    /// The rule as rules of one verb, group, resource and name each.
    fn atoms(&self) -> Vec<Rule> {
        let mut atoms = Vec::new();
        let one = |s: &String| vec![s.clone()];
        let names: Vec<Vec<String>> = if self.resource_names.is_empty() {
            vec![Vec::new()]
        } else {
            self.resource_names.iter().map(one).collect()
        };
        for verb in &self.verbs {
            for group in &self.api_groups {
                for resource in &self.resources {
                    for name in &names {
                        atoms.push(Rule {
                            verbs: one(verb),
                            api_groups: one(group),
                            resources: one(resource),
                            resource_names: name.clone(),
                            non_resource_urls: Vec::new(),
                        });
                    }
                }
            }
            for url in &self.non_resource_urls {
                atoms.push(Rule { verbs: one(verb), non_resource_urls: one(url), ..Rule::default() });
            }
        }
        atoms
    }

    /// How many [`Self::atoms`] there are.
    fn count_atoms(&self) -> usize {
        let names = self.resource_names.len().max(1);
        let of_resources = self.api_groups.len().saturating_mul(self.resources.len()).saturating_mul(names);
        self.verbs.len().saturating_mul(of_resources.saturating_add(self.non_resource_urls.len()))
    }

    /// Whether the rule alone covers all of another one.
    fn covers_all(&self, atom: &Rule) -> bool {
        let list_covers = |have: &[String], want: &[String]| want.iter().all(|w| has(have, w));
        list_covers(&self.verbs, &atom.verbs)
            && list_covers(&self.api_groups, &atom.api_groups)
            && atom.resources.iter().all(|want| {
                self.resources.iter().any(|have| {
                    let (resource, subresource) = want.split_once('/').unwrap_or((want.as_str(), ""));
                    resource_matches(have, resource, subresource)
                })
            })
            && (self.resource_names.is_empty()
                || (!atom.resource_names.is_empty()
                    && atom.resource_names.iter().all(|n| self.resource_names.contains(n))))
            && atom
                .non_resource_urls
                .iter()
                .all(|want| self.non_resource_urls.iter().any(|have| url_covers(have, want)))
    }
}

fn resource_matches(have: &str, resource: &str, subresource: &str) -> bool {
    if have == ALL {
        return true;
    }
    if subresource.is_empty() {
        return have == resource;
    }
    have.split_once('/').is_some_and(|(r, s)| s == subresource && (r == ALL || r == resource))
}

fn url_covers(have: &str, url: &str) -> bool {
    have == url || have.strip_suffix('*').is_some_and(|prefix| url.starts_with(prefix.trim_end_matches('*')))
}

/// More atoms than these are not looked at one by one: the lists of a rule multiply, and there may be many rules.
const MAX_ATOMS: usize = 100_000;
/// Nor are more comparisons made than these: those who write roles may hold any number of rules.
const MAX_COMPARED: usize = 20_000_000;
/// More than these are not named.
const MAX_MISSING: usize = 500;

/// Those atoms of `wanted` that no rule of `held` covers; empty when all is covered. Where there are too many of them
/// to look at, the rule itself, unless one of `held` covers all of it; of very many, the first.
#[must_use]
pub fn covers(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let is_covered = |rule: &Rule| held.iter().any(|have| have.covers_all(rule));
    let mut left = MAX_ATOMS.min(MAX_COMPARED / held.len().max(1));
    let (mut missing, mut known) = (Vec::new(), BTreeSet::new());
    for rule in wanted.iter().map(Rule::distinct).filter(|rule| !is_covered(rule)) {
        let count = rule.count_atoms();
        let atoms = if count > left { vec![rule] } else { rule.atoms() };
        left = left.saturating_sub(count);
        for atom in atoms {
            if missing.len() >= MAX_MISSING {
                return missing;
            }
            if !is_covered(&atom) && known.insert(atom.clone()) {
                missing.push(atom);
            }
        }
    }
    missing
}
