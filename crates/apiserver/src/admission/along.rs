//! Other objects that a write changes in its own transaction: the quota it is charged to, the
//! addresses that a service takes.
//!
//! Either all of it is stored or nothing, so that no count is ever off and nothing is handed out
//! twice, also between two API servers.

use std::sync::Arc;

use carrack_schema::table;
use carrack_store::{Check, Op};

use super::{AdmissionPlugin, Attributes, Found, Operation};
use crate::object::{Object, str_at};
use crate::status::Status;
use crate::sub::scale;
use crate::{convert, keys, kinds, stored};

/// A change of another object.
#[derive(Clone, Debug, PartialEq)]
pub struct Along {
    /// API group of the object.
    pub group: &'static str,
    /// Plural name of its resource.
    pub resource: &'static str,
    /// Its namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What becomes of it.
    pub change: Change,
}

/// What becomes of an object that is changed along.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It comes into being. When there is one of that name already, everything is decided again.
    Create(Object),
    /// It is replaced, if it is still as the plugin was shown it.
    Replace(Object),
    /// It goes.
    Delete,
}

impl Along {
    fn key(&self) -> Arc<str> {
        let namespace = Some(self.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        (keys::of(self.group, self.resource, namespace) + &self.name).into()
    }
}

/// What a write rests on, and what it changes besides its own object.
#[derive(Default)]
pub(crate) struct Terms {
    pub checks: Vec<Check>,
    pub ops: Vec<Op>,
    pub warnings: Vec<String>,
}

/// Asks the plugins what the admitted write changes along, and them and its kind what there is to say about it.
pub(crate) fn terms(
    plugins: &[Box<dyn AdmissionPlugin>],
    attributes: &mut Attributes<'_>,
    mut found: Found,
) -> Result<Terms, Status> {
    let mut warnings = of_kind(attributes);
    let attributes = &*attributes;
    let (mut ops, mut absent) = (Vec::new(), Vec::new());
    for plugin in plugins {
        warnings.extend(plugin.warnings(attributes, &found));
        for along in plugin.along(attributes, &found)? {
            add(&along, &mut found, &mut ops, &mut absent)?;
        }
    }
    let mut checks = std::mem::take(&mut found.checks);
    checks.extend(absent);
    Ok(Terms { checks, ops, warnings })
}

/// Asks the plugins what changes although a request was refused, and what that rests on.
pub(crate) fn marks(
    plugins: &[Box<dyn AdmissionPlugin>],
    attributes: &Attributes<'_>,
    mut found: Found,
) -> Result<Terms, Status> {
    let (mut ops, mut absent) = (Vec::new(), Vec::new());
    for plugin in plugins {
        for along in plugin.marks(attributes, &found) {
            add(&along, &mut found, &mut ops, &mut absent)?;
        }
    }
    let mut checks = std::mem::take(&mut found.checks);
    checks.extend(absent);
    Ok(Terms { checks, ops, warnings: Vec::new() })
}

/// Adds a change to a transaction, with what it rests on.
fn add(along: &Along, found: &mut Found, ops: &mut Vec<Op>, absent: &mut Vec<Check>) -> Result<(), Status> {
    let key = along.key();
    let object = match &along.change {
        Change::Delete => {
            ops.push(Op::Delete(key));
            return Ok(());
        }
        Change::Create(object) => {
            absent.push(Check::Absent(Arc::clone(&key)));
            object
        }
        Change::Replace(object) => {
            // Only what is as it was read.
            found.pin(&key);
            object
        }
    };
    let (api_version, kind) = match table::find(along.group, along.resource) {
        Some(row) => convert::storage_type(row),
        // A record of the server's own, or a custom resource, which says itself what it is.
        None => (str_at(object, &["apiVersion"]).to_owned(), str_at(object, &["kind"]).to_owned()),
    };
    ops.push(Op::Put(key, stored::encode_bounded(object, &api_version, &kind)?));
    Ok(())
}

/// What there is to say about the object itself, to those who write it and not a part of it.
fn of_kind(attributes: &mut Attributes<'_>) -> Vec<String> {
    match (attributes.operation, attributes.subresource) {
        (Operation::Create | Operation::Update, "" | scale::NAME) => {
            kinds::warnings(attributes.row, &mut attributes.object, attributes.old)
        }
        _ => Vec::new(),
    }
}
