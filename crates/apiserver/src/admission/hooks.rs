//! What users add to admission, as it is at this moment: webhooks and policies, read and compiled once for
//! each change of their configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_store::Entry;

use super::configuration::AdmissionConfiguration;
use super::policy::{Binding, Policy};
use super::webhook::Webhook;
use crate::follow::Fold;
use crate::keys;
use crate::object::Object;
use crate::stored;

/// The kinds, by their plural names.
const RESOURCES: [&str; 6] = [
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];

/// Upstream's plugins that ask those whom users added, and whom.
const PLUGINS: [(&str, &str); 4] = [
    ("MutatingAdmissionWebhook", "mutatingwebhookconfigurations"),
    ("ValidatingAdmissionWebhook", "validatingwebhookconfigurations"),
    ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    ("MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
];

/// Webhooks by the name of their configuration and their place in it; policies and bindings by name.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub mutating: BTreeMap<String, Vec<Arc<Webhook>>>,
    pub validating: BTreeMap<String, Vec<Arc<Webhook>>>,
    pub policies: BTreeMap<String, Arc<Policy>>,
    pub bindings: BTreeMap<String, Arc<Binding>>,
    pub mutating_policies: BTreeMap<String, Arc<Policy>>,
    pub mutating_bindings: BTreeMap<String, Arc<Binding>>,
}

/// Follows the configurations.
#[derive(Default)]
pub(crate) struct HooksFold {
    now: Arc<Hooks>,
    /// The kinds of whom nobody is asked, since the plugin is off that would ask them.
    unasked: Vec<&'static str>,
}

impl HooksFold {
    /// Without those whom nobody asks, by what is off.
    pub(crate) fn of(configuration: &AdmissionConfiguration) -> Self {
        let off = PLUGINS.into_iter().filter(|(plugin, _)| configuration.is_off(plugin));
        Self { now: Arc::default(), unasked: off.map(|(_, plural)| plural).collect() }
    }

    pub(crate) fn prefixes() -> Vec<String> {
        RESOURCES.iter().map(|plural| keys::of("admissionregistration.k8s.io", plural, None)).collect()
    }

    pub(crate) fn hooks(&self) -> Arc<Hooks> {
        Arc::clone(&self.now)
    }
}

impl Fold for HooksFold {
    fn clear(&mut self) {
        self.now = Arc::default();
    }

    fn apply(&mut self, key: &str, entry: Option<&Entry>) {
        // …/<resource>/<name>
        let Some((place, name)) = key.rsplit_once('/') else { return };
        let resource = place.rsplit('/').next().unwrap_or_default();
        if self.unasked.contains(&resource) {
            return;
        }
        let object = entry.map(stored::parse);
        let hooks = Arc::make_mut(&mut self.now);
        match resource {
            "mutatingwebhookconfigurations" => put(&mut hooks.mutating, name, object.as_ref().map(Webhook::read_all)),
            "validatingwebhookconfigurations" => {
                put(&mut hooks.validating, name, object.as_ref().map(Webhook::read_all));
            }
            "validatingadmissionpolicies" => put(&mut hooks.policies, name, read(object.as_ref(), Policy::read)),
            "validatingadmissionpolicybindings" => put(&mut hooks.bindings, name, read(object.as_ref(), Binding::read)),
            "mutatingadmissionpolicies" => put(&mut hooks.mutating_policies, name, read(object.as_ref(), Policy::read)),
            "mutatingadmissionpolicybindings" => {
                put(&mut hooks.mutating_bindings, name, read(object.as_ref(), Binding::read));
            }
            _ => {}
        }
    }
}

fn read<T>(object: Option<&Object>, read: impl FnOnce(&Object) -> T) -> Option<Arc<T>> {
    object.map(|object| Arc::new(read(object)))
}

fn put<T>(all: &mut BTreeMap<String, T>, name: &str, value: Option<T>) {
    match value {
        Some(value) => {
            all.insert(name.to_owned(), value);
        }
        None => {
            all.remove(name);
        }
    }
}
