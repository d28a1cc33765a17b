//! The index of roles and bindings, and the evaluation of a request against it.
//!
//! ```text
//!  caller ─► principals ─► by_principal ─► bindings ─► role refs ─► rules (aggregated ones resolved)
//! ```
//!
//! ClusterRoleBindings count everywhere; RoleBindings count in their namespace only.

use std::collections::{BTreeMap, BTreeSet};

use super::object::{Binding, Key, Kind, Object, Principal, Role, RoleRef, Subject};
use super::rule::Rule;
use crate::attributes::{Attributes, Decision};
use crate::caller::{Caller, GROUP_MASTERS};

/// Roles and bindings as they were last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    roles: BTreeMap<Key, Role>,
    bindings: BTreeMap<Key, Binding>,
    by_principal: BTreeMap<Principal, BTreeSet<Key>>,
    /// The rules of ClusterRoles with an aggregation rule, by name, resolved.
    aggregated: BTreeMap<String, Vec<Rule>>,
}

/// What a caller may do in a namespace, and what could not be found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectiveRules {
    /// The rules.
    pub rules: Vec<Rule>,
    /// Roles that bindings refer to and that do not exist, as sentences.
    pub errors: Vec<String>,
}

/// A rule and how the caller came by it.
struct Grant<'a> {
    binding: &'a Key,
    role: &'a RoleRef,
    subject: &'a Subject,
}

impl Index {
    /// An empty index: it allows nothing, except to `system:masters`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An index of these objects.
    #[must_use]
    pub fn from_objects(objects: impl IntoIterator<Item = (Key, Object)>) -> Self {
        let mut index = Self::new();
        for (key, object) in objects {
            index.put(key, object);
        }
        index.resolve_aggregation();
        index
    }

    /// Takes an object in, in place of the one that was there under that key.
    pub fn upsert(&mut self, key: Key, object: Object) {
        let cluster_role = key.kind == Kind::ClusterRole;
        self.put(key, object);
        if cluster_role {
            self.resolve_aggregation();
        }
    }

    /// Forgets an object; one that is not there is left so.
    pub fn remove(&mut self, key: &Key) {
        self.take(key);
        if key.kind == Kind::ClusterRole {
            self.resolve_aggregation();
        }
    }

    fn take(&mut self, key: &Key) {
        self.roles.remove(key);
        let Some(old) = self.bindings.remove(key) else {
            return;
        };
        for subject in &old.subjects {
            let principal = subject.principal();
            if let Some(keys) = self.by_principal.get_mut(&principal) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_principal.remove(&principal);
                }
            }
        }
    }

    fn put(&mut self, key: Key, object: Object) {
        self.take(&key);
        match object {
            Object::Role(role) => {
                self.roles.insert(key, role);
            }
            Object::Binding(binding) => {
                for subject in &binding.subjects {
                    self.by_principal.entry(subject.principal()).or_default().insert(key.clone());
                }
                self.bindings.insert(key, binding);
            }
        }
    }

    /// Recomputes the rules of all aggregated ClusterRoles. An aggregated role may select other
    /// aggregated ones (`admin` selects `edit`, which selects `view`); a cycle adds nothing new.
    fn resolve_aggregation(&mut self) {
        let cluster_roles = || self.roles.iter().filter(|(key, _)| key.kind == Kind::ClusterRole);
        let mut aggregated = BTreeMap::new();
        for (key, role) in cluster_roles() {
            let Some(first) = &role.aggregate else {
                continue;
            };
            let mut seen = BTreeSet::from([key.name.as_str()]);
            let mut pending = vec![first];
            let mut rules: Vec<Rule> = Vec::new();
            while let Some(selectors) = pending.pop() {
                for (other_key, other) in cluster_roles() {
                    if !selectors.iter().any(|s| s.matches(&other.labels)) || !seen.insert(&other_key.name) {
                        continue;
                    }
                    match &other.aggregate {
                        Some(nested) => pending.push(nested),
                        None => {
                            for rule in &other.rules {
                                if !rules.contains(rule) {
                                    rules.push(rule.clone());
                                }
                            }
                        }
                    }
                }
            }
            aggregated.insert(key.name.clone(), rules);
        }
        self.aggregated = aggregated;
    }

    /// The rules of a role, aggregation resolved. A Role is looked for in `namespace`.
    #[must_use]
    pub fn role_rules(&self, role: &RoleRef, namespace: &str) -> Option<&[Rule]> {
        let namespace = if role.kind == Kind::Role { namespace } else { "" };
        let found = self.roles.get(&Key::new(role.kind, namespace, &role.name))?;
        if found.aggregate.is_some() {
            return self.aggregated.get(&role.name).map(Vec::as_slice);
        }
        Some(&found.rules)
    }

    /// The aggregated ClusterRoles with their resolved rules, for a controller that writes them into
    /// the objects so that people can read them there.
    pub fn aggregated(&self) -> impl Iterator<Item = (&str, &[Rule])> {
        self.aggregated.iter().map(|(name, rules)| (name.as_str(), rules.as_slice()))
    }

    /// May the caller do this? `system:masters` may do everything.
    ///
    /// Reasons read as upstream's: which binding allows, or which roles were missing.
    #[must_use]
    pub fn authorize(&self, caller: &Caller, attributes: &Attributes<'_>) -> Decision {
        if caller.in_group(GROUP_MASTERS) {
            return Decision::Allow { reason: String::new() };
        }
        let mut errors = Vec::new();
        let mut allowed = None;
        self.visit(caller, attributes.namespace, |grant, rules| match rules {
            Ok(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                allowed = Some(describe(&grant));
                false
            }
            Ok(_) => true,
            Err(error) => {
                errors.push(error);
                true
            }
        });
        match allowed {
            Some(grant) => Decision::Allow { reason: format!("RBAC: allowed by {grant}") },
            None => Decision::Deny {
                reason: match errors.as_slice() {
                    [] => String::new(),
                    [one] => format!("RBAC: {one}"),
                    many => format!("RBAC: [{}]", many.join(", ")),
                },
            },
        }
    }

    /// All rules that hold for the caller in a namespace (empty: cluster-wide ones only).
    #[must_use]
    pub fn rules_for(&self, caller: &Caller, namespace: &str) -> EffectiveRules {
        let mut effective = EffectiveRules::default();
        if caller.in_group(GROUP_MASTERS) {
            effective.rules.extend(everything());
        }
        self.visit(caller, namespace, |_, rules| {
            match rules {
                Ok(rules) => effective.rules.extend_from_slice(rules),
                Err(error) => effective.errors.push(error),
            }
            true
        });
        effective
    }

    /// Shows each binding of the caller with its role's rules, cluster-wide ones first, until
    /// `visitor` says false.
    fn visit<'a>(
        &'a self,
        caller: &Caller,
        namespace: &str,
        mut visitor: impl FnMut(Grant<'a>, Result<&'a [Rule], String>) -> bool,
    ) {
        let principals = std::iter::once(Principal::User(caller.user.clone()))
            .chain(caller.groups.iter().cloned().map(Principal::Group));
        let mut found: BTreeSet<(bool, &Key)> = BTreeSet::new();
        let mut held = BTreeSet::new();
        for principal in principals {
            if let Some(keys) = self.by_principal.get(&principal) {
                for key in keys {
                    let cluster = key.kind == Kind::ClusterRoleBinding;
                    if cluster || (!namespace.is_empty() && key.namespace == namespace) {
                        found.insert((!cluster, key));
                    }
                }
                held.insert(principal);
            }
        }
        for (_, key) in found {
            let Some(binding) = self.bindings.get(key) else {
                continue;
            };
            let Some(subject) = binding.subjects.iter().find(|s| held.contains(&s.principal())) else {
                continue;
            };
            let grant = Grant { binding: key, role: &binding.role, subject };
            let rules = self.role_rules(&binding.role, &key.namespace).ok_or_else(|| {
                format!(
                    "{}.{} {:?} not found",
                    binding.role.kind.name().to_lowercase(),
                    super::GROUP,
                    binding.role.name
                )
            });
            if !visitor(grant, rules) {
                return;
            }
        }
    }
}

/// The rules of `system:masters`, for those who list rules.
pub(super) fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
    ]
}

fn describe(grant: &Grant<'_>) -> String {
    let Grant { binding, role, subject } = grant;
    let name = if binding.namespace.is_empty() {
        binding.name.clone()
    } else {
        format!("{}/{}", binding.name, binding.namespace)
    };
    format!("{} {name:?} of {} {:?} to {}", binding.kind.name(), role.kind.name(), role.name, subject.describe())
}
