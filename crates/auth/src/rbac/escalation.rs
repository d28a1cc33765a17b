//! Nobody grants what they do not hold.
//!
//! A write of a role (of its rules, or of the labels by which others gather it) needs its rules to be covered by the
//! writer's own, or the verb `escalate` on it; a write of a binding needs the bound role's rules to be covered, or the
//! verb `bind` on the role.
//!
//! Upstream: `pkg/registry/rbac/{role,clusterrole,rolebinding,clusterrolebinding}/policybased`.

use super::index::{EffectiveRules, Index, everything};
use super::object::{Binding, Key, Kind, Object, Role, RoleRef};
use super::rule::{Rule, covers};
use crate::attributes::Attributes;
use crate::caller::{Caller, GROUP_MASTERS};

/// Why a write of an RBAC object is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EscalationError {
    /// 403: the writer does not hold what it would grant. The text reads as upstream's.
    #[error("{0}")]
    Forbidden(String),
    /// 404: the role that a binding refers to does not exist, so that nobody can tell what it grants.
    #[error("{kind}.{group} {name:?} not found", kind = .kind.resource(), group = super::GROUP)]
    RoleNotFound {
        /// The role's kind.
        kind: Kind,
        /// The role's name.
        name: String,
    },
}

/// What a write would grant, and what its writer holds. To compare them takes its time, which nobody else need wait
/// for: it needs the index no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    user: String,
    groups: Vec<String>,
    held: EffectiveRules,
    wanted: Vec<Rule>,
}

impl Claim {
    /// Whether all that would be granted is held.
    ///
    /// # Errors
    /// [`EscalationError::Forbidden`] when it is not.
    pub fn check(&self) -> Result<(), EscalationError> {
        let missing = covers(&self.held.rules, &self.wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let mut lines: Vec<String> = merge_verbs(missing).iter().map(Rule::compact).collect();
        lines.sort();
        let groups: Vec<String> = self.groups.iter().map(|g| format!("{g:?}")).collect();
        let mut message = format!(
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            self.user,
            groups.join(" "),
            lines.join("\n")
        );
        if !self.held.errors.is_empty() {
            message.push_str(&format!("; resolution errors: [{}]", self.held.errors.join(", ")));
        }
        Err(EscalationError::Forbidden(message))
    }
}

impl Index {
    /// May the caller write this object (create, or update over `old`)?
    ///
    /// # Errors
    /// [`EscalationError`] when the caller would grant what it does not hold.
    pub fn check_escalation(
        &self,
        caller: &Caller,
        key: &Key,
        new: &Object,
        old: Option<&Object>,
    ) -> Result<(), EscalationError> {
        self.escalation(caller, key, new, old)?.map_or(Ok(()), |claim| claim.check())
    }

    /// What the caller would grant by writing this object (creating it, or updating it over `old`), to be checked; none
    /// when it may be written whatever it grants.
    ///
    /// # Errors
    /// [`EscalationError`] when it may not be written, whatever the caller holds.
    pub fn escalation(
        &self,
        caller: &Caller,
        key: &Key,
        new: &Object,
        old: Option<&Object>,
    ) -> Result<Option<Claim>, EscalationError> {
        if caller.in_group(GROUP_MASTERS) {
            return Ok(None);
        }
        match new {
            Object::Role(role) => {
                let old = match old {
                    Some(Object::Role(old)) => Some(old),
                    _ => None,
                };
                self.check_role(caller, key, role, old)
            }
            Object::Binding(binding) => {
                let unchanged = matches!(old, Some(Object::Binding(old)) if old == binding);
                if unchanged {
                    return Ok(None);
                }
                self.check_binding(caller, key, binding)
            }
        }
    }

    fn check_role(
        &self,
        caller: &Caller,
        key: &Key,
        role: &Role,
        old: Option<&Role>,
    ) -> Result<Option<Claim>, EscalationError> {
        // Its labels count like its rules: by them other roles gather it. Upstream lets nothing pass unchecked but what
        // the garbage collector changes (`IsOnlyMutatingGCFields`).
        if old == Some(role) {
            return Ok(None);
        }
        let aggregation_changed = role.aggregate.is_some() && old.is_none_or(|old| old.aggregate != role.aggregate);
        let escalate = Attributes::resource("escalate", super::GROUP, key.kind.resource())
            .in_namespace(&key.namespace)
            .named(&key.name);
        if self.authorize(caller, &escalate).allowed() {
            return Ok(None);
        }
        if aggregation_changed {
            // What will be aggregated cannot be known, so only one who may do everything may ask.
            let held = self.rules_for(caller, "").rules;
            if !covers(&held, &everything()).is_empty() {
                return Err(EscalationError::Forbidden(
                    "must have cluster-admin privileges to use an aggregationRule".into(),
                ));
            }
        }
        // What a role has gathered goes where it is gathered itself.
        let itself = RoleRef { kind: key.kind, name: key.name.clone() };
        let gathered = role.aggregate.as_ref().and_then(|_| self.role_rules(&itself, &key.namespace));
        Ok(Some(self.claim(caller, &key.namespace, &[role.rules.as_slice(), gathered.unwrap_or_default()])))
    }

    fn check_binding(&self, caller: &Caller, key: &Key, binding: &Binding) -> Result<Option<Claim>, EscalationError> {
        let bind = Attributes::resource("bind", super::GROUP, binding.role.kind.resource())
            .in_namespace(&key.namespace)
            .named(&binding.role.name);
        if self.authorize(caller, &bind).allowed() {
            return Ok(None);
        }
        let rules = self.role_rules(&binding.role, &key.namespace).ok_or_else(|| EscalationError::RoleNotFound {
            kind: binding.role.kind,
            name: binding.role.name.clone(),
        })?;
        Ok(Some(self.claim(caller, &key.namespace, &[rules])))
    }

    fn claim(&self, caller: &Caller, namespace: &str, wanted: &[&[Rule]]) -> Claim {
        Claim {
            user: caller.user.clone(),
            groups: caller.groups.clone(),
            held: self.rules_for(caller, namespace),
            wanted: wanted.concat(),
        }
    }
}

/// Atoms that differ in their verb only, in one line each.
fn merge_verbs(atoms: Vec<Rule>) -> Vec<Rule> {
    let mut merged: Vec<Rule> = Vec::new();
    for atom in atoms {
        let same = merged.iter_mut().find(|rule| {
            rule.api_groups == atom.api_groups
                && rule.resources == atom.resources
                && rule.resource_names == atom.resource_names
                && rule.non_resource_urls == atom.non_resource_urls
        });
        match same {
            Some(rule) => rule.verbs.extend(atom.verbs),
            None => merged.push(atom),
        }
    }
    merged
}
