//! What users add to admission, asked about a request: policies in the process, webhooks outside.
//!
//! ```text
//!   plugins ─► mutating policies, mutating webhooks ─► (plugins and some webhooks again) ─► schema ─►
//!   plugins ─► validating policies, validating webhooks ─► store
//! ```

use std::sync::Arc;

use carrack_schema::table::ResourceInfo;
use serde_json::{Value, json};

use super::hooks::Hooks;
use super::select::{Seen, name_of, verb};
use super::{AdmissionPlugin, Attributes, Found, Operation, policy, webhook};
use crate::context::Cx;
use crate::convert;
use crate::env::new_uid;
use crate::kinds;
use crate::object::{Object, meta_str};
use crate::registry::{managers, meta, strategy};
use crate::status::Status;
use crate::stored;
use crate::sub::scale;

/// A request as those see it who were added by users.
pub(crate) struct Asked<'a> {
    pub cx: &'a Cx<'a>,
    pub hooks: Arc<Hooks>,
    /// The namespace of the request, if it has one.
    pub namespace: Option<Object>,
}

impl<'a> Asked<'a> {
    /// None when nobody was added.
    async fn new(
        cx: &'a Cx<'a>,
        attributes: &Attributes<'_>,
        any: impl Fn(&Hooks) -> bool,
    ) -> Result<Option<Self>, Status> {
        let hooks = cx.server.hooks().await?;
        if !any(&hooks) {
            return Ok(None);
        }
        let namespace = match attributes.namespace {
            "" => None,
            name => {
                let key = crate::keys::of("", "namespaces", None) + name;
                cx.server.store.get(&key).await?.0.map(|entry| stored::parse(&entry))
            }
        };
        Ok(Some(Asked { cx, hooks, namespace }))
    }

    /// The new object as it is seen, and the old one, both with their managers; null where there is none.
    pub(crate) async fn both(&self, attributes: &Attributes<'_>, seen: Seen<'_>) -> Result<(Value, Value), Status> {
        if attributes.subresource == scale::NAME {
            let shown = |object: &Object| scale::shown(self.cx, object);
            return Ok((shown(&attributes.object), attributes.old.map_or(Value::Null, shown)));
        }
        let mut object = self.as_seen(attributes, Some(&attributes.object), seen).await?;
        // What is made has not been anything, though it be about something that is there.
        let old = attributes.old.filter(|_| attributes.operation != Operation::Create);
        let mut old = self.as_seen(attributes, old, seen).await?;
        let stored = attributes.old_entry.and_then(|entry| stored::parse_apart(entry).1);
        for (object, managers) in [(&mut object, attributes.managers), (&mut old, stored.as_deref())] {
            if let (Value::Object(object), Some(_)) = (object, managers) {
                managers::put(object, managers);
            }
        }
        Ok((object, old))
    }

    /// An object of the request as it is seen; null when there is none.
    async fn as_seen(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
        seen: Seen<'_>,
    ) -> Result<Value, Status> {
        let Some(object) = object.filter(|object| !object.is_empty()) else { return Ok(Value::Null) };
        let row = attributes.row;
        // What is written to a subresource may be of a kind of its own.
        let own_kind = object.get("kind").is_none_or(|kind| *kind == *row.kind);
        if seen.is_requested(attributes) || !own_kind {
            return Ok(Value::Object(object.clone()));
        }
        convert::between(self.cx.server, row, (seen.row, seen.version), object.clone()).await.map(Value::Object)
    }

    /// What the query says of a write.
    fn options(&self, kind: &str) -> Value {
        let mut options = json!({"apiVersion": "meta.k8s.io/v1", "kind": kind});
        for name in ["fieldManager", "fieldValidation"] {
            if let Some(value) = self.cx.query.non_empty(name) {
                options[name] = value.into();
            }
        }
        if self.cx.query.non_empty("dryRun").is_some() {
            options["dryRun"] = json!(["All"]);
        }
        options
    }

    /// `AdmissionRequest` without the objects.
    pub(crate) fn request(&self, attributes: &Attributes<'_>, seen: Seen<'_>) -> Value {
        let row = attributes.row;
        let kind_in = |row: &ResourceInfo, version: &str| {
            let found = row.versions.iter().find(|known| known.name == version);
            match found.and_then(|known| known.subresource(attributes.subresource)) {
                Some(sub) if !sub.kind.is_empty() => {
                    json!({"group": sub.group, "version": sub.version, "kind": sub.kind})
                }
                _ => json!({"group": row.group, "version": version, "kind": row.kind}),
            }
        };
        let resource_in =
            |row: &ResourceInfo, version: &str| json!({"group": row.group, "version": version, "resource": row.plural});
        let caller = attributes.caller;
        let mut user = json!({"username": caller.user, "groups": caller.groups});
        if !caller.uid.is_empty() {
            user["uid"] = caller.uid.clone().into();
        }
        if !caller.extra.is_empty() {
            user["extra"] = json!(caller.extra);
        }
        let options = match (attributes.operation, attributes.deletion) {
            (Operation::Create, _) => self.options("CreateOptions"),
            (Operation::Update, _) => self.options("UpdateOptions"),
            (Operation::Delete, Some(options)) => options.to_json(),
            (Operation::Delete | Operation::Connect, _) => Value::Null,
        };
        let mut request = json!({
            "uid": new_uid(attributes.env),
            "kind": kind_in(seen.row, seen.version()),
            "resource": resource_in(seen.row, seen.version()),
            "requestKind": kind_in(row, attributes.version),
            "requestResource": resource_in(row, attributes.version),
            "operation": verb(attributes.operation),
            "userInfo": user,
            "dryRun": attributes.dry_run,
            "options": options,
        });
        let name = name_of(attributes);
        // A namespace is asked about as if it were in itself (`k8s.io/apiserver/pkg/endpoints/handlers/create.go`).
        let is_namespace = row.group.is_empty() && row.plural == "namespaces";
        let optional = [
            ("subResource", attributes.subresource),
            ("requestSubResource", attributes.subresource),
            ("name", &name),
            ("namespace", if is_namespace { name.as_str() } else { attributes.namespace }),
        ];
        for (key, value) in optional.into_iter().filter(|(_, value)| !value.is_empty()) {
            request[key] = value.into();
        }
        request
    }
}

/// Has the plugins of the server's own say what the audit log is to know.
pub(crate) fn annotate(cx: &Cx<'_>, attributes: &Attributes<'_>, found: &Found) {
    if cx.is_audited() {
        for (key, value) in cx.server.plugins.iter().flat_map(|plugin| plugin.annotations(attributes, found)) {
            cx.annotate(key, value);
        }
    }
}

/// Lets those change the object who may. After that the plugins that have a say in the request look at it again, with what
/// was found for them, and what they need besides: it may name a class or an account by now that nobody had asked for.
pub(crate) async fn mutate(
    cx: &Cx<'_>,
    plugins: &[Box<dyn AdmissionPlugin>],
    attributes: &mut Attributes<'_>,
    found: &mut Found,
) -> Result<(), Status> {
    let any = |hooks: &Hooks| !hooks.mutating.is_empty() || !hooks.mutating_policies.is_empty();
    let Some(asked) = Asked::new(cx, attributes, any).await? else { return Ok(()) };
    let before = attributes.object.clone();
    policy::mutate(&asked, attributes).await?;
    let seen = webhook::mutate(&asked, attributes, None).await?;
    if attributes.object == before {
        return Ok(());
    }
    keep_other_half(cx, attributes, &before);
    // What came later may concern those that were asked earlier.
    found.complete(&*cx.server.untimed, plugins, attributes).await?;
    for plugin in plugins {
        plugin.mutate(attributes, found)?;
    }
    if !seen.is_empty() {
        let between = attributes.object.clone();
        webhook::mutate(&asked, attributes, Some(seen)).await?;
        keep_other_half(cx, attributes, &between);
        if attributes.object != between {
            found.complete(&*cx.server.untimed, plugins, attributes).await?;
        }
    }
    Ok(())
}

/// Puts back what a write of this half of the object does not touch, whatever others made of it: a webhook
/// does not set a status by way of the object, nor the object by way of its status.
fn keep_other_half(cx: &Cx<'_>, attributes: &mut Attributes<'_>, before: &Object) {
    match attributes.subresource {
        "" if cx.version().has_status() => match before.get("status") {
            Some(status) => {
                attributes.object.insert("status".to_owned(), status.clone());
            }
            None => {
                attributes.object.remove("status");
            }
        },
        "status" => {
            let status = attributes.object.remove("status");
            attributes.object = before.clone();
            match status {
                Some(status) => attributes.object.insert("status".to_owned(), status),
                None => attributes.object.remove("status"),
            };
        }
        _ => {}
    }
}

/// Lets those refuse the object who may.
pub(crate) async fn validate(cx: &Cx<'_>, attributes: &Attributes<'_>) -> Result<(), Status> {
    let any = |hooks: &Hooks| !hooks.validating.is_empty() || !hooks.policies.is_empty();
    let Some(asked) = Asked::new(cx, attributes, any).await? else { return Ok(()) };
    policy::validate(&asked, attributes).await?;
    webhook::validate(&asked, attributes).await
}

/// Takes over an object as somebody changed it, who saw it so.
pub(crate) async fn take(
    asked: &Asked<'_>,
    attributes: &mut Attributes<'_>,
    seen: Seen<'_>,
    mut changed: Object,
) -> Result<(), Status> {
    let row = attributes.row;
    let asked_version = row.versions.iter().position(|known| known.name == attributes.version).unwrap_or_default();
    // Who owns what was settled before; it is shown, not asked.
    managers::take(&mut changed);
    if attributes.subresource == scale::NAME {
        scale::take(asked.cx, &mut attributes.object, &changed);
        return Ok(());
    }
    // What is posted to a subresource is of a kind of its own, and stays of it.
    if let Some(kind) = attributes.object.get("kind").filter(|kind| **kind != *row.kind) {
        if changed.get("kind") != Some(kind) {
            return Err(Status::internal(format!("admission made something else of {kind}")));
        }
        attributes.object = changed;
        return Ok(());
    }
    let mut object = if seen.is_requested(attributes) {
        changed
    } else {
        convert::between(asked.cx.server, seen.row, (row, asked_version), changed).await?
    };
    // What is created under no name that the path gives is named by whoever named it last; all else is stored where it is.
    let is_named_here = attributes.operation == Operation::Create && !asked.cx.request.named_in_path;
    for field in ["name", "namespace"] {
        let (before, after) = (meta_str(&attributes.object, field), meta_str(&object, field));
        if before == after {
            continue;
        }
        if field == "name" && is_named_here {
            meta::check_name(asked.cx, after)?;
            attributes.name = after.to_owned();
            strategy::renamed(row, &mut object, before);
        } else {
            let why = format!("admission made metadata.{field} {after:?} of {before:?}, which cannot be changed");
            return Err(Status::bad_request(why));
        }
    }
    convert::set_type(&mut object, &row.api_version(attributes.version), &row.kind);
    kinds::conform(row, &row.versions[asked_version], &mut object).map_err(Status::internal)?;
    kinds::default(row, &row.versions[asked_version], &mut object);
    attributes.object = object;
    Ok(())
}
