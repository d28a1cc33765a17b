//! FlowSchemas say in their status whether the priority level that they name is there, in the write that makes it so.
//!
//! A level that is made sees the schemas that are there, and not one that is just being made and did not find it. So once it
//! is written, those are looked at again ([`settle`]), and at the start, should that have been cut short.
//!
//! Of the mandatory ones, schemas and levels, the spec is what it is.
//!
//! Upstream's API server has a controller for it (`k8s.io/apiserver/pkg/util/flowcontrol`).

use std::sync::Arc;

use carrack_schema::table::{self, ResourceInfo};
use carrack_store::{Check, Op, Range, Txn};
use serde_json::{Value, json};

use super::{AdmissionPlugin, Along, Attributes, Change, Lookup, Needed, Operation, set_condition};
use crate::env::rfc3339_s;
use crate::flow::{GROUP, LEVELS, SCHEMAS, fixed_fault, level_of};
use crate::object::{Object, at, child_mut, name};
use crate::server::Inner;
use crate::status::Status;
use crate::{convert, keys, stored};

pub(super) struct FlowSchemas;

/// The schema with the condition, if it has it not.
fn told(schema: &Object, is_there: bool, now: &str) -> Option<Object> {
    let level = level_of(schema);
    let names = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status, reason, message) = if is_there {
        ("False", "Found", format!("{names} and it exists"))
    } else {
        ("True", "NotFound", format!("{names} but there is no such object"))
    };
    let known = at(schema, &["status", "conditions"]).and_then(Value::as_array);
    let is_said = |condition: &Value| condition["type"] == "Dangling" && condition["message"] == message.as_str();
    if known.into_iter().flatten().any(is_said) {
        return None;
    }
    let mut conditions = known.cloned().unwrap_or_default();
    set_condition(&mut conditions, "Dangling", status, reason, &message, now);
    let mut schema = schema.clone();
    child_mut(&mut schema, "status").insert("conditions".to_owned(), json!(conditions));
    Some(schema)
}

/// Whether it is a priority level that a request is about.
pub(crate) fn is_level(row: &ResourceInfo) -> bool {
    row.group == GROUP && row.plural == LEVELS
}

/// Corrects what schemas say of levels that came or went while they were written, or what they do not say.
pub(crate) async fn settle(server: &Inner) -> Result<(), Status> {
    let all = |resource: &str, at| Range { prefix: keys::of(GROUP, resource, None), after: None, limit: 0, at };
    let schemas = server.store.range(all(SCHEMAS, None)).await?;
    let levels = server.store.range(all(LEVELS, Some(schemas.revision))).await?;
    let Some(row) = table::find(GROUP, SCHEMAS) else { return Ok(()) };
    let (api_version, kind) = convert::storage_type(row);
    let now = rfc3339_s(server.env.now());
    for entry in schemas.entries {
        let schema = stored::parse(&entry);
        let level: Arc<str> = (keys::of(GROUP, LEVELS, None) + level_of(&schema)).into();
        let is_there = levels.entries.iter().any(|entry| entry.key == level);
        let Some(told) = told(&schema, is_there, &now) else { continue };
        let checks = vec![
            Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision),
            if is_there { Check::Exists(level) } else { Check::Absent(level) },
        ];
        let ops = vec![Op::Put(Arc::clone(&entry.key), stored::encode(&told, &api_version, &kind))];
        // Whoever was faster says it themselves.
        server.store.transact(Txn { checks, ops }).await?;
    }
    Ok(())
}

/// The level of the schema that is written, if it is one; what goes has none.
fn written<'a>(attributes: &'a Attributes<'_>) -> Option<&'a str> {
    Some(level_of(&attributes.object)).filter(|level| attributes.is(GROUP, SCHEMAS) && !level.is_empty())
}

impl AdmissionPlugin for FlowSchemas {
    fn name(&self) -> &'static str {
        "FlowSchemas"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if let Some(level) = written(attributes) {
            return vec![Needed::one(GROUP, LEVELS, "", level).pinned()];
        }
        let comes_or_goes = matches!(attributes.operation, Operation::Create | Operation::Delete);
        if attributes.is(GROUP, LEVELS) && comes_or_goes {
            return vec![Needed::all(GROUP, SCHEMAS, "")];
        }
        Vec::new()
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if let Some(level) = written(attributes) {
            let is_there = lookup.get(GROUP, LEVELS, "", level).is_some();
            if let Some(told) = told(&attributes.object, is_there, &rfc3339_s(attributes.env.now())) {
                attributes.object = told;
            }
        }
        Ok(())
    }

    fn validate(&self, attributes: &Attributes<'_>, _lookup: &dyn Lookup) -> Result<(), Status> {
        let row = attributes.row;
        if row.group != GROUP || !attributes.subresource.is_empty() {
            return Ok(());
        }
        match fixed_fault(&row.plural, &attributes.object) {
            Some(fault) => Err(Status::faulty(GROUP, &row.kind, &attributes.name, &[fault])),
            None => Ok(()),
        }
    }

    fn along(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<Vec<Along>, Status> {
        if !attributes.is(GROUP, LEVELS) || attributes.operation == Operation::Update {
            return Ok(Vec::new());
        }
        let now = rfc3339_s(attributes.env.now());
        let is_there = attributes.operation == Operation::Create;
        let schemas = lookup.list(GROUP, SCHEMAS, "").into_iter().filter(|schema| level_of(schema) == attributes.name);
        let change = |schema: &Object| {
            Some(Along {
                group: GROUP,
                resource: SCHEMAS,
                namespace: String::new(),
                name: name(schema).to_owned(),
                change: Change::Replace(told(schema, is_there, &now)?),
            })
        };
        Ok(schemas.filter_map(change).collect())
    }
}
