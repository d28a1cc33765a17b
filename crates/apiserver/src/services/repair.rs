//! At start: what services hold is recorded, and what is recorded is held.
//!
//! Services of a store that is older than the records, or was restored, get theirs; records whose
//! service is gone go. Each in a transaction that rests on what was read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_store::{Check, Entry, Op, Range, Txn, TxnOutcome};
use http::Method;
use serde_json::Value;

use super::{ADDRESSES, NET, Owner, PORTS, families, held, spec};
use crate::admission::{Along, Change};
use crate::object::{Object, meta_str, str_at};
use crate::server::ApiServer;
use crate::status::Status;
use crate::{convert, keys, stored};

/// The name that a key ends with.
fn last(entry: &Entry) -> &str {
    entry.key.rsplit('/').next().unwrap_or_default()
}

impl ApiServer {
    /// Brings records and services together.
    pub(crate) async fn repair_services(&self) -> Result<(), Status> {
        let services = self.all("", "services").await?;
        let addresses = self.all(NET, ADDRESSES).await?;
        let ports = self.all(PORTS.0, PORTS.1).await?;
        let names =
            |list: &[Arc<Entry>]| -> BTreeSet<String> { list.iter().map(|entry| last(entry).to_owned()).collect() };
        let (known_addresses, known_ports) = (names(&addresses), names(&ports));
        for entry in &services {
            let service = stored::parse(entry);
            let (held_addresses, held_ports) = held(Some(&service));
            let owner = Owner {
                namespace: meta_str(&service, "namespace"),
                name: meta_str(&service, "name"),
                env: &*self.inner.env,
            };
            let missing = held_addresses
                .iter()
                .filter(|address| !known_addresses.contains(&address.to_string()))
                .map(|address| owner.take_address(*address))
                .chain(
                    held_ports
                        .iter()
                        .filter(|port| !known_ports.contains(&port.to_string()))
                        .map(|port| owner.take_port(*port)),
                );
            for along in missing {
                self.record(entry, along).await?;
            }
            let without = spec(&service)
                .is_some_and(|spec| families::has_addresses(spec) && families::addresses(spec).is_empty());
            if without {
                let path = format!("/api/v1/namespaces/{}/services/{}", owner.namespace, owner.name);
                if let Err(status) = self.call(Method::PUT, &path, Some(&Value::Object(service.clone()))).await {
                    tracing::warn!(%status, path, "a service gets no address");
                }
            }
        }
        let services: BTreeMap<&str, &Entry> = services.iter().map(|entry| (&*entry.key, &**entry)).collect();
        for entry in addresses.iter().chain(&ports) {
            let record = stored::parse(entry);
            if str_at(&record, &["spec", "parentRef", "resource"]) == "services" {
                self.forget(entry, &record, &services).await?;
            }
        }
        Ok(())
    }

    async fn all(&self, group: &str, plural: &str) -> Result<Vec<Arc<Entry>>, Status> {
        let prefix = keys::of(group, plural, None);
        Ok(self.inner.store.range(Range { prefix, after: None, limit: 0, at: None }).await?.entries)
    }

    async fn record(&self, service: &Entry, along: Along) -> Result<(), Status> {
        let Change::Create(object) = along.change else { return Ok(()) };
        let (api_version, kind) = match carrack_schema::table::find(along.group, along.resource) {
            Some(row) => convert::storage_type(row),
            None => (str_at(&object, &["apiVersion"]).to_owned(), str_at(&object, &["kind"]).to_owned()),
        };
        let key: Arc<str> = (keys::of(along.group, along.resource, None) + &along.name).into();
        let checks =
            vec![Check::Absent(Arc::clone(&key)), Check::Unchanged(Arc::clone(&service.key), service.mod_revision)];
        let ops = vec![Op::Put(Arc::clone(&key), stored::encode_bounded(&object, &api_version, &kind)?)];
        if let TxnOutcome::Failed { .. } = self.inner.store.transact(Txn { checks, ops }).await? {
            tracing::warn!(key = &*key, "an address or port is not recorded: something else has changed");
        }
        Ok(())
    }

    async fn forget(&self, entry: &Entry, record: &Object, services: &BTreeMap<&str, &Entry>) -> Result<(), Status> {
        let parent = |field: &str| str_at(record, &["spec", "parentRef", field]).to_owned();
        let key: Arc<str> = (keys::of("", "services", Some(&parent("namespace"))) + &parent("name")).into();
        let name = last(entry);
        let holder = services.get(&*key);
        let holds = holder.is_some_and(|service| {
            let (addresses, ports) = held(Some(&stored::parse(service)));
            addresses.iter().any(|address| address.to_string() == name)
                || ports.iter().any(|port| port.to_string() == name)
        });
        if holds {
            return Ok(());
        }
        let rests_on = match holder {
            None => Check::Absent(key),
            Some(service) => Check::Unchanged(key, service.mod_revision),
        };
        let checks = vec![rests_on, Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision)];
        let ops = vec![Op::Delete(Arc::clone(&entry.key))];
        if let TxnOutcome::Failed { .. } = self.inner.store.transact(Txn { checks, ops }).await? {
            tracing::debug!(key = &*entry.key, "a record of an address or port has changed meanwhile");
        }
        Ok(())
    }
}
