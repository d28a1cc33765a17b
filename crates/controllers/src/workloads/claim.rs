//! Whose a child is: adoption of orphans that a selector chooses, release of children that it does not choose any more.
//!
//! Follows kube-controller-manager's reference manager (pkg/controller/controller_ref_manager.go). An adoption rests on a
//! live read of the owner: the garbage collector takes away what belongs to an owner that is gone, and an owner that was
//! deleted with its children orphaned must not get them back from a cache that lags.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_engine::{Key, Plan, Setup, View, controller_ref};
use carrack_types::resource::{Kind, Object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

/// Index of every kind of child: by the UID of the controlling owner, and orphans by namespace.
const BY_CONTROLLER: &str = "controller";

fn orphans_of(namespace: &str) -> String {
    format!("orphans/{namespace}")
}

pub(super) fn index<K: Object>(object: &K) -> Vec<String> {
    vec![object.controller_uid().map_or_else(|| orphans_of(object.namespace()), ToOwned::to_owned)]
}

/// The labels of an object, as selectors read them.
pub(crate) type Labels<'a> = Option<&'a BTreeMap<String, String>>;

/// Whether the controlling owner of an object is of this kind.
pub(crate) fn controller_of<O: Kind>(object: &impl Object) -> Option<&OwnerReference> {
    let owner = O::resource();
    object.meta().owner_references.iter().flatten().find(|r| {
        r.controller == Some(true)
            && r.kind == owner.kind
            && r.api_version.rsplit_once('/').map_or("", |(group, _)| group) == owner.group
    })
}

/// Watches the children of an owner kind, and the orphans that an owner may adopt.
pub(crate) fn watch<C: Kind, O: Kind>(
    setup: &mut Setup<'_>,
    chooses: impl Fn(&O, Labels<'_>) -> bool + Send + 'static,
) {
    setup.index::<C>(BY_CONTROLLER, index::<C>);
    setup.watch::<C>(move |child, view| {
        if let Some(owner) = controller_of::<O>(child) {
            return vec![Key::new(child.namespace(), owner.name.clone())];
        }
        if child.controller_uid().is_some() {
            return Vec::new();
        }
        let owners = view.cache::<O>().in_namespace(child.namespace());
        let labels = child.meta().labels.as_ref();
        owners.filter(|o| chooses(o, labels)).map(|o| Key::of(o.as_ref())).collect()
    });
}

/// The children that an owner controls, ordered by name.
pub(crate) fn controlled<'a, C: Kind>(view: &'a View<'_>, owner: &'a impl Object) -> impl Iterator<Item = &'a Arc<C>> {
    view.cache::<C>().by_index(BY_CONTROLLER, owner.uid()).filter(|c| c.namespace() == owner.namespace())
}

/// Children as they are, or what is to be settled first.
pub(crate) enum Claim<C> {
    /// The owner's children, ordered by name.
    Settled(Vec<Arc<C>>),
    /// Adoptions and releases.
    ToSettle(Plan),
}

/// Finds the children of an owner: those it controls and chooses. `may_adopt` says which orphans it takes besides.
pub(crate) fn claim<O: Kind, C: Kind>(
    view: &View<'_>,
    owner: &O,
    chooses: impl Fn(&C) -> bool,
    may_adopt: impl Fn(&C) -> bool,
) -> Claim<C> {
    claim_held(view, owner, None, chooses, may_adopt)
}

/// The same, of an owner that holds its children by a finalizer: one that it adopts gets the finalizer, and one that it releases
/// loses it, by the same write. So one is released while it is deleted, too: nobody else would ever let it go.
pub(crate) fn claim_held<O: Kind, C: Kind>(
    view: &View<'_>,
    owner: &O,
    finalizer: Option<&str>,
    chooses: impl Fn(&C) -> bool,
    may_adopt: impl Fn(&C) -> bool,
) -> Claim<C> {
    let (mine, strays): (Vec<_>, Vec<_>) = controlled::<C>(view, owner).cloned().partition(|c| chooses(c));
    if owner.is_deleting() {
        return Claim::Settled(mine);
    }
    let mut plan = Plan::none();
    let holds = |child: &C| finalizer.is_some_and(|name| child.meta().finalizers.iter().flatten().any(|f| f == name));
    for child in strays.iter().filter(|c| !c.is_deleting() || holds(c)) {
        let owners = child.meta().owner_references.iter().flatten();
        let others: Vec<_> = owners.filter(|r| r.uid != owner.uid()).collect();
        let mut metadata = json!({"ownerReferences": others});
        if holds(child) {
            let left = child.meta().finalizers.iter().flatten().filter(|f| Some(f.as_str()) != finalizer);
            metadata["finalizers"] = left.map(String::as_str).collect::<Value>();
        }
        plan = plan.patch(child.as_ref(), json!({ "metadata": metadata }));
    }
    let nobodys = orphans_of(owner.namespace());
    let orphans = view.cache::<C>().by_index(BY_CONTROLLER, &nobodys);
    for orphan in orphans.filter(|c| !c.is_deleting() && chooses(c) && may_adopt(c)) {
        if plan.writes.is_empty() {
            plan = plan.confirm_alive(owner);
        }
        let mut owners = orphan.meta().owner_references.clone().unwrap_or_default();
        owners.retain(|r| r.uid != owner.uid());
        owners.push(controller_ref(owner));
        let mut metadata = json!({"ownerReferences": owners});
        if let Some(name) = finalizer.filter(|_| !holds(orphan)) {
            metadata["finalizers"] =
                orphan.meta().finalizers.iter().flatten().map(String::as_str).chain([name]).collect();
        }
        plan = plan.patch(orphan.as_ref(), json!({ "metadata": metadata }));
    }
    if plan.writes.is_empty() { Claim::Settled(mine) } else { Claim::ToSettle(plan) }
}
