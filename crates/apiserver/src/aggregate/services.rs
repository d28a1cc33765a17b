//! APIService objects of what is served here: one for each group and version, made and removed with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_schema::table::find;
use carrack_store::{Check, Op, Range, Txn};
use serde_json::{Value, json};

use super::{API_SERVICES, GROUP};
use crate::admission::{AdmissionPlugin, Attributes, Lookup, Operation};
use crate::catalog::version_rank;
use crate::env::{new_uid, rfc3339_s};
use crate::object::{at, child_mut};
use crate::server::Inner;
use crate::status::Status;
use crate::{convert, keys, stored};

/// Marks objects that come and go with what they are about.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Where groups stand in discovery; upstream's numbers for the built-in ones.
const BUILT_IN_PRIORITY: i64 = 17_000;
const CORE_PRIORITY: i64 = 18_000;
const CUSTOM_PRIORITY: i64 = 1000;

fn condition(status: &str, reason: &str, message: &str, now: &str) -> Value {
    json!({"type": "Available", "status": status, "lastTransitionTime": now, "reason": reason, "message": message})
}

/// Sets the condition of an APIService that is written: what is served here is available, and of what is
/// not nobody knows yet.
pub(crate) struct ApiServices;

impl AdmissionPlugin for ApiServices {
    fn name(&self) -> &'static str {
        "ApiServices"
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if !attributes.is(GROUP, API_SERVICES) || attributes.operation == Operation::Delete {
            return Ok(());
        }
        let was_local = attributes.old.map(|old| at(old, &["spec", "service"]).is_none());
        let is_local = at(&attributes.object, &["spec", "service"]).is_none();
        if was_local == Some(is_local) {
            return Ok(());
        }
        let now = rfc3339_s(attributes.env.now());
        let first = if is_local {
            condition("True", "Local", "Local APIServices are always available", &now)
        } else {
            condition("Unknown", "NotChecked", "the service has not been asked yet", &now)
        };
        child_mut(&mut attributes.object, "status").insert("conditions".to_owned(), json!([first]));
        Ok(())
    }
}

/// Sees to it that there is an object for each group and version that is served here, and, where it `removes`, none of
/// ours for others. Who removes does so once, for a reason: another server on the store, of another release, may serve
/// them, and would make them again.
pub(crate) async fn sync(server: &Inner, removes: bool) -> Result<(), Status> {
    let catalog = server.catalog().await?;
    let mut wanted: BTreeMap<String, Value> = BTreeMap::new();
    for row in catalog.rows() {
        let priority = match (row.is_custom, &*row.group) {
            (true, _) => CUSTOM_PRIORITY,
            (false, "") => CORE_PRIORITY,
            (false, _) => BUILT_IN_PRIORITY,
        };
        for version in row.versions.iter().filter(|version| version.served) {
            want(&mut wanted, &row.group, &version.name, priority);
        }
    }
    for served in server.apis.iter().flat_map(|api| api.group_versions()) {
        want(&mut wanted, &served.group, &served.version, CUSTOM_PRIORITY);
    }
    let prefix = keys::of(GROUP, API_SERVICES, None);
    let page = server.store.range(Range { prefix: prefix.clone(), after: None, limit: 0, at: None }).await?;
    let Some(row) = find(GROUP, API_SERVICES) else { return Ok(()) };
    let (api_version, kind) = convert::storage_type(row);
    let mut ops = Vec::new();
    let mut checks = Vec::new();
    for entry in &page.entries {
        let memo = stored::memo(entry);
        let is_wanted = wanted.remove(&*memo.name).is_some();
        if removes && !is_wanted && memo.labels.get(MANAGED).is_some() {
            checks.push(Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision));
            ops.push(Op::Delete(Arc::clone(&entry.key)));
        }
    }
    let now = rfc3339_s(server.env.now());
    for (name, spec) in wanted {
        let object = json!({
            "metadata": {
                "name": name, "uid": new_uid(&*server.env), "creationTimestamp": now, "labels": {MANAGED: "true"},
            },
            "spec": spec,
            "status": {"conditions": [condition("True", "Local", "Local APIServices are always available", &now)]},
        });
        let Value::Object(object) = object else { continue };
        let key: Arc<str> = (prefix.clone() + &name).into();
        checks.push(Check::Absent(Arc::clone(&key)));
        ops.push(Op::Put(key, stored::encode(&object, &api_version, &kind)));
    }
    if !ops.is_empty() {
        // When somebody else was faster, what they did comes with a look of their own.
        server.store.transact(Txn { checks, ops }).await?;
    }
    Ok(())
}

fn want(wanted: &mut BTreeMap<String, Value>, group: &str, version: &str, priority: i64) {
    let (stage, major, minor) = version_rank(version);
    let rank = i64::from(stage) * 100 + i64::try_from(major.min(9) * 10 + minor.min(9)).unwrap_or(0);
    let spec = json!({
        "group": group, "version": version, "groupPriorityMinimum": priority, "versionPriority": rank.max(1),
    });
    wanted.insert(format!("{version}.{group}"), spec);
}
