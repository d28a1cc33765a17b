//! `default/kubernetes`: the service by which the API is reached from inside the cluster, and its endpoints.
//!
//! Every API server says in a record of its own that it is there, renewed with each round; the
//! endpoints are those whose record is fresh. Who ends in order takes its record away. Upstream: the
//! lease reconciler of `pkg/controlplane/reconcilers`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use carrack_store::{Op, Range, Txn};
use http::Method;
use serde_json::{Value, json};

use super::{NET, RANGES};
use crate::env::rfc3339_s;
use crate::object::{Object, str_at};
use crate::server::ApiServer;
use crate::status::Status;
use crate::{keys, stored};

/// A server whose record is older than this many seconds is not there any more.
const FRESH_S: i64 = 30;
/// Where the records are, as upstream.
const RECORDS: (&str, &str) = ("", "masterleases");
const SERVICE: &str = "/api/v1/namespaces/default/services/kubernetes";
const SERVICES: &str = "/api/v1/namespaces/default/services";

/// Where a server's record is.
fn record_key(own: SocketAddr) -> Arc<str> {
    (keys::of(RECORDS.0, RECORDS.1, None) + &own.to_string()).into()
}

impl ApiServer {
    /// Sees to the ranges and the service; false while that cannot have its address.
    pub(crate) async fn ensure_kubernetes(&self) -> Result<bool, Status> {
        let network = &self.inner.network;
        if let Some(first) = network.service_ranges.first() {
            let cidrs: Vec<String> = network.service_ranges.iter().map(ToString::to_string).collect();
            let range = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}});
            self.ensure(&format!("/apis/{NET}/v1/{RANGES}"), "kubernetes", &range).await?;
            let port = network.advertise.map_or(6443, |address| address.port());
            let service = json!({
                "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
                "spec": {
                    "clusterIP": first.first_usable().to_string(), "type": "ClusterIP", "sessionAffinity": "None",
                    "ipFamilyPolicy": "SingleStack", "ipFamilies": [first.family().text()],
                    "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
                },
            });
            match self.call(Method::GET, SERVICE, None).await {
                Ok(_) => {}
                Err(status) if status.code == 404 => match self.call(Method::POST, SERVICES, Some(&service)).await {
                    Err(status) if status.code == 422 => {
                        tracing::warn!(%status, "the kubernetes service cannot have its address");
                        return Ok(false);
                    }
                    other => drop(other?),
                },
                Err(status) => return Err(status),
            }
        }
        Ok(true)
    }

    /// Says that this server is there, unless it is about to end, and brings the endpoints of `default/kubernetes` up to date.
    ///
    /// # Errors
    /// When something cannot be read or written.
    pub async fn announce(&self) -> Result<(), Status> {
        let Some(own) = self.inner.network.advertise else { return Ok(()) };
        if self.inner.phase.ending.load(Ordering::Acquire) {
            return Ok(());
        }
        let record = json!({"spec": {"address": own.to_string(), "renewed": rfc3339_s(self.inner.env.now())}});
        let value = stored::encode(record.as_object().unwrap_or(&Object::new()), "carrack.io/v1", "Endpoint");
        let ops = vec![Op::Put(record_key(own), value)];
        self.inner.store.transact(Txn { checks: Vec::new(), ops }).await?;
        self.settle_endpoints(own).await
    }

    /// Says that this server is there no more, so that nobody is sent here until its record would have been too old. It is to be
    /// known that it ends ([`Self::announce_end`]), or it comes back with the next round.
    ///
    /// # Errors
    /// When something cannot be read or written.
    pub async fn renounce(&self) -> Result<(), Status> {
        let Some(own) = self.inner.network.advertise else { return Ok(()) };
        let ops = vec![Op::Delete(record_key(own))];
        self.inner.store.transact(Txn { checks: Vec::new(), ops }).await?;
        self.settle_endpoints(own).await
    }

    /// Has the endpoints be the servers of this one's family that are there.
    async fn settle_endpoints(&self, own: SocketAddr) -> Result<(), Status> {
        let now = self.inner.env.now();
        let prefix = keys::of(RECORDS.0, RECORDS.1, None);
        let page = self.inner.store.range(Range { prefix, after: None, limit: 0, at: None }).await?;
        let fresh = |record: &Object| {
            let renewed = str_at(record, &["spec", "renewed"]).parse::<jiff::Timestamp>();
            renewed.is_ok_and(|renewed| now.as_second() - renewed.as_second() <= FRESH_S)
        };
        let addresses: BTreeSet<SocketAddr> = page
            .entries
            .iter()
            .map(|entry| stored::parse(entry))
            .filter(fresh)
            .filter_map(|record| str_at(&record, &["spec", "address"]).parse().ok())
            .filter(|address: &SocketAddr| address.is_ipv4() == own.is_ipv4())
            .collect();
        // The last one that goes leaves its address: there is no other that anybody could be sent to, and it may be back soon.
        if addresses.is_empty() {
            return Ok(());
        }
        let port = json!({"name": "https", "port": own.port(), "protocol": "TCP"});
        let texts: BTreeSet<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": if own.is_ipv4() { "IPv4" } else { "IPv6" },
            "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "endpoints": texts.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect::<Vec<_>>(),
            "ports": [port],
        });
        self.settle("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice, &["endpoints", "ports"])
            .await?;
        let endpoints = json!({
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": "kubernetes", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": texts.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(), "ports": [port]}],
        });
        self.settle("/api/v1/namespaces/default/endpoints", endpoints, &["subsets"]).await
    }

    /// Creates an object, or sets these of its fields.
    async fn settle(&self, collection: &str, wanted: Value, fields: &[&str]) -> Result<(), Status> {
        let path = format!("{collection}/kubernetes");
        let mut stored = match self.call(Method::GET, &path, None).await {
            Ok(stored) => stored,
            Err(status) if status.code == 404 => {
                return match self.call(Method::POST, collection, Some(&wanted)).await {
                    Err(status) if status.code != 409 => Err(status),
                    // Another server was faster; the next round compares.
                    _ => Ok(()),
                };
            }
            Err(status) => return Err(status),
        };
        if fields.iter().all(|field| stored[*field] == wanted[*field]) {
            return Ok(());
        }
        for field in fields {
            stored[*field] = wanted[*field].clone();
        }
        match self.call(Method::PUT, &path, Some(&stored)).await {
            Err(status) if status.code != 409 => Err(status),
            _ => Ok(()),
        }
    }
}
