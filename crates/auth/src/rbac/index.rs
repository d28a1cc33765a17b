//! The index of roles and bindings, and the evaluation of a request against it.
//!
//! ```text
//!  caller ─► user, groups ─► bindings ─► role refs ─► rules (aggregated ones resolved)
//! ```
//!
//! ClusterRoleBindings count everywhere; RoleBindings count in their namespace only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::object::{Binding, Key, Kind, Object, Principal, Role, RoleRef, Subject};
use super::rule::Rule;
use super::selector::Selector;
use crate::attributes::{Attributes, Decision};
use crate::caller::{Caller, GROUP_MASTERS};

/// Roles and bindings as they were last seen.
///
/// Each request asks: so all is found by the names that it has, without a text that is put together for that. A clone
/// shares what is the same in both, so that there can be one for whoever asks while the next change comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// By namespace and name.
    roles: OrdMap<String, OrdMap<String, Arc<Role>>>,
    cluster_roles: OrdMap<String, Arc<Role>>,
    bindings: OrdMap<Key, Arc<Binding>>,
    /// By their names; a service account is a user.
    users: OrdMap<String, Held>,
    groups: OrdMap<String, Held>,
    /// The rules of ClusterRoles with an aggregation rule, by name, resolved.
    aggregated: Arc<BTreeMap<String, Vec<Rule>>>,
}

/// Bindings at one place.
type Bindings = Arc<BTreeMap<Key, Arc<Binding>>>;

/// The bindings that name a user, or a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    everywhere: Bindings,
    /// By namespace. Whoever has bindings in each of very many is asked about one at a time.
    within: OrdMap<String, Bindings>,
}

impl Held {
    fn put(&mut self, key: &Key, binding: &Arc<Binding>) {
        let place = match key.kind {
            Kind::ClusterRoleBinding => &mut self.everywhere,
            _ => self.within.entry(key.namespace.clone()).or_default(),
        };
        Arc::make_mut(place).insert(key.clone(), Arc::clone(binding));
    }

    fn take(&mut self, key: &Key) {
        if key.kind == Kind::ClusterRoleBinding {
            Arc::make_mut(&mut self.everywhere).remove(key);
        } else if let Some(place) = self.within.get_mut(&key.namespace) {
            Arc::make_mut(place).remove(key);
            if place.is_empty() {
                self.within.remove(&key.namespace);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.everywhere.is_empty() && self.within.is_empty()
    }
}

/// What a caller may do in a namespace, and what could not be found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectiveRules {
    /// The rules.
    pub rules: Vec<Rule>,
    /// Roles that bindings refer to and that do not exist, as sentences.
    pub errors: Vec<String>,
}

/// A binding, and where it is.
type Grant<'a> = (&'a Key, &'a Binding);

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
        let new = match &object {
            Object::Role(role) => Some(role),
            Object::Binding(_) => None,
        };
        let is_gathered = self.is_gathered(&key, new);
        self.put(key, object);
        if is_gathered {
            self.resolve_aggregation();
        }
    }

    /// Forgets an object; one that is not there is left so.
    pub fn remove(&mut self, key: &Key) {
        let is_gathered = self.is_gathered(key, None);
        self.take(key);
        if is_gathered {
            self.resolve_aggregation();
        }
    }

    /// Whether what aggregated ClusterRoles have changes with this role: it gathers, or is gathered, before or after.
    /// Of most, neither is true.
    fn is_gathered(&self, key: &Key, new: Option<&Role>) -> bool {
        if key.kind != Kind::ClusterRole {
            return false;
        }
        let old = self.cluster_roles.get(&key.name).map(|role| &**role);
        let takes_part = |role: &Role| role.aggregate.is_some() || self.selectors().any(|s| s.matches(&role.labels));
        old != new && [old, new].into_iter().flatten().any(takes_part)
    }

    /// By what aggregated ClusterRoles gather others.
    fn selectors(&self) -> impl Iterator<Item = &Selector> {
        let gathering = self.aggregated.keys().filter_map(|name| self.cluster_roles.get(name));
        gathering.filter_map(|role| role.aggregate.as_ref()).flatten()
    }

    fn take(&mut self, key: &Key) {
        match key.kind {
            Kind::ClusterRole => {
                self.cluster_roles.remove(&key.name);
            }
            Kind::Role => {
                if let Some(roles) = self.roles.get_mut(&key.namespace) {
                    roles.remove(&key.name);
                    if roles.is_empty() {
                        self.roles.remove(&key.namespace);
                    }
                }
            }
            Kind::RoleBinding | Kind::ClusterRoleBinding => {
                let Some(old) = self.bindings.remove(key) else { return };
                for subject in &old.subjects {
                    let (place, name) = match subject.principal() {
                        Principal::User(name) => (&mut self.users, name),
                        Principal::Group(name) => (&mut self.groups, name),
                    };
                    if let Some(held) = place.get_mut(&name) {
                        held.take(key);
                        if held.is_empty() {
                            place.remove(&name);
                        }
                    }
                }
            }
        }
    }

    fn put(&mut self, key: Key, object: Object) {
        self.take(&key);
        match object {
            Object::Role(role) if key.kind == Kind::ClusterRole => {
                self.cluster_roles.insert(key.name, Arc::new(role));
            }
            Object::Role(role) => {
                self.roles.entry(key.namespace).or_default().insert(key.name, Arc::new(role));
            }
            Object::Binding(binding) => {
                let binding = Arc::new(binding);
                for subject in &binding.subjects {
                    let held = match subject.principal() {
                        Principal::User(name) => self.users.entry(name).or_default(),
                        Principal::Group(name) => self.groups.entry(name).or_default(),
                    };
                    held.put(&key, &binding);
                }
                self.bindings.insert(key, binding);
            }
        }
    }

    /// Recomputes the rules of all aggregated ClusterRoles. An aggregated role may select other
    /// aggregated ones (`admin` selects `edit`, which selects `view`); a cycle adds nothing new.
    fn resolve_aggregation(&mut self) {
        let mut aggregated = BTreeMap::new();
        for (name, role) in &self.cluster_roles {
            let Some(first) = &role.aggregate else {
                continue;
            };
            let mut seen = BTreeSet::from([name.as_str()]);
            let mut pending = vec![first];
            let (mut known, mut rules) = (BTreeSet::new(), Vec::new());
            while let Some(selectors) = pending.pop() {
                for (other_name, other) in &self.cluster_roles {
                    if !selectors.iter().any(|s| s.matches(&other.labels)) || !seen.insert(other_name) {
                        continue;
                    }
                    match &other.aggregate {
                        Some(nested) => pending.push(nested),
                        None => rules.extend(other.rules.iter().filter(|rule| known.insert(*rule)).cloned()),
                    }
                }
            }
            aggregated.insert(name.clone(), rules);
        }
        self.aggregated = Arc::new(aggregated);
    }

    /// The rules of a role, aggregation resolved. A Role is looked for in `namespace`.
    #[must_use]
    pub fn role_rules(&self, role: &RoleRef, namespace: &str) -> Option<&[Rule]> {
        if role.kind == Kind::Role {
            return self.roles.get(namespace)?.get(&role.name).map(|role| role.rules.as_slice());
        }
        let found = self.cluster_roles.get(&role.name)?;
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
                allowed = Some(describe(grant, caller));
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
        let mut show = |(key, binding): Grant<'a>| {
            let RoleRef { kind, name } = &binding.role;
            let rules = self.role_rules(&binding.role, &key.namespace);
            let missing = || format!("{}.{} {name:?} not found", kind.name().to_lowercase(), super::GROUP);
            visitor((key, binding), rules.ok_or_else(missing))
        };
        for grant in sorted(self.held(caller).map(|held| &held.everywhere)) {
            if !show(grant) {
                return;
            }
        }
        if namespace.is_empty() {
            return;
        }
        for grant in sorted(self.held(caller).filter_map(|held| held.within.get(namespace))) {
            if !show(grant) {
                return;
            }
        }
    }

    /// What names the caller: by the user's name, and by each group's.
    fn held<'a>(&'a self, caller: &Caller) -> impl Iterator<Item = &'a Held> {
        let groups = caller.groups.iter().filter_map(move |group| self.groups.get(group));
        self.users.get(&caller.user).into_iter().chain(groups)
    }
}

/// Bindings in the order of their names, each once, in however many ways it names the caller.
fn sorted<'a>(places: impl Iterator<Item = &'a Bindings>) -> Vec<Grant<'a>> {
    let all = places.flat_map(|place| place.iter());
    let mut found: Vec<Grant<'a>> = all.map(|(key, binding)| (key, &**binding)).collect();
    found.sort_unstable_by_key(|(key, _)| *key);
    found.dedup_by_key(|(key, _)| *key);
    found
}

/// The rules of `system:masters`, for those who list rules.
pub(super) fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
    ]
}

/// By what the caller may do something. It is asked once for each request, when that is known.
fn describe((key, binding): Grant<'_>, caller: &Caller) -> String {
    let name = if key.namespace.is_empty() { key.name.clone() } else { format!("{}/{}", key.name, key.namespace) };
    let RoleRef { kind, name: role } = &binding.role;
    let subject = binding.subjects.iter().find(|subject| subject.is(caller));
    let subject = subject.map(Subject::describe).unwrap_or_default();
    format!("{} {name:?} of {} {role:?} to {subject}", key.kind.name(), kind.name())
}
