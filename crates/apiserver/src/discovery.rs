//! Discovery: which groups, versions and resources there are, in the old form (a document for each
//! group-version) and the aggregated one (all in one document).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use crate::accept::ranges;
use crate::body::{self, Response};
use crate::catalog::{Catalog, version_rank};
use crate::convert;
use crate::etag;
use crate::local::LocalGroupVersion;
use crate::present::bytes_of;
use crate::server::ApiServer;
use crate::status::Status;
use carrack_schema::table::{ResourceInfo, Version, storage_version_hash};

/// Everything that discovery tells, in the order of discovery.
struct Groups {
    catalog: Arc<Catalog>,
    local: Vec<LocalGroupVersion>,
    /// Groups and versions of other servers that have not told their resources.
    stale: Vec<(String, String)>,
}

/// Answers `/api`, `/apis` and what lies below, down to the group-version.
pub(crate) async fn answer(server: &ApiServer, path: &str, headers: &HeaderMap) -> Result<Response, Status> {
    let mut local: Vec<LocalGroupVersion> =
        server.inner.apis.iter().flat_map(|api| api.group_versions().iter().cloned()).collect();
    let mut stale = Vec::new();
    let whole = path == "/apis" && aggregated_version(headers).is_some();
    let remotes = server.inner.remotes().await?;
    // Only the whole of discovery is made of what other servers say; their own documents they tell themselves. They are asked
    // side by side: several that hang take no longer than one.
    let documents = &server.inner.remote_documents;
    let asked = remotes.values().filter(|_| whole).map(|remote| documents.resources(&server.inner, remote));
    let mut found = futures::future::join_all(asked).await.into_iter();
    for remote in remotes.values() {
        let found = found.next().flatten();
        if found.is_none() {
            stale.push((remote.group.clone(), remote.version.clone()));
        }
        local.retain(|known| (&known.group, &known.version) != (&remote.group, &remote.version));
        let resources = found.map(|resources| resources.to_vec()).unwrap_or_default();
        local.push(LocalGroupVersion { group: remote.group.clone(), version: remote.version.clone(), resources });
    }
    let groups = Groups { catalog: server.catalog().await?, local, stale };
    let mut segments = path.split('/').skip(1);
    match (segments.next(), segments.next(), segments.next(), segments.next()) {
        (Some("api"), None, ..) => Ok(match aggregated_version(headers) {
            Some(version) => groups.aggregated(version, true, headers),
            None => body::value(
                200,
                &json!({
                    "kind": "APIVersions",
                    "versions": ["v1"],
                    "serverAddressByClientCIDRs": [],
                }),
            ),
        }),
        (Some("apis"), None, ..) => Ok(match aggregated_version(headers) {
            Some(version) => groups.aggregated(version, false, headers),
            None => {
                let list: Vec<Value> = groups.all().iter().filter(|(g, _)| !g.is_empty()).map(group_json).collect();
                body::value(200, &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list}))
            }
        }),
        (Some("api"), Some(version), None, _) => groups.resources("", version),
        (Some("apis"), Some(group), None, _) => {
            let all = groups.all();
            let found = all.iter().find(|(g, _)| g == group && !g.is_empty()).ok_or_else(Status::no_such_path)?;
            let mut document = group_json(found);
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            Ok(body::value(200, &document))
        }
        (Some("apis"), Some(group), Some(version), None) if !group.is_empty() => groups.resources(group, version),
        _ => Err(Status::no_such_path()),
    }
}

/// The version of the aggregated form, when the client takes that before plain JSON.
fn aggregated_version(headers: &HeaderMap) -> Option<&'static str> {
    for range in ranges(headers).iter().filter(|range| range.takes_json()) {
        if range.param("as") == Some("APIGroupDiscoveryList") && range.param("g") == Some("apidiscovery.k8s.io") {
            match range.param("v") {
                Some("v2") => return Some("v2"),
                Some("v2beta1") => return Some("v2beta1"),
                _ => continue,
            }
        }
        return None;
    }
    None
}

fn group_json((group, versions): &(String, Vec<String>)) -> Value {
    let all: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    json!({"name": group, "versions": all, "preferredVersion": all.first()})
}

impl Groups {
    fn all(&self) -> Vec<(String, Vec<String>)> {
        let mut groups = self.catalog.groups();
        for local in &self.local {
            match groups.iter_mut().find(|(group, _)| *group == local.group) {
                Some((_, versions)) => {
                    if !versions.contains(&local.version) {
                        versions.push(local.version.clone());
                        versions.sort_by_key(|version| std::cmp::Reverse(version_rank(version)));
                    }
                }
                None => groups.push((local.group.clone(), vec![local.version.clone()])),
            }
        }
        groups
    }

    /// Rows of a group-version.
    fn rows(&self, group: &str, version: &str) -> Vec<(&Arc<ResourceInfo>, &Version)> {
        self.catalog
            .rows()
            .iter()
            .filter(|row| row.group == group)
            .filter_map(|row| Some((row, row.version(version)?)))
            .collect()
    }

    fn local_resources(&self, group: &str, version: &str) -> Vec<Value> {
        self.local
            .iter()
            .filter(|local| local.group == group && local.version == version)
            .flat_map(|local| local.resources.iter().cloned())
            .collect()
    }

    fn resources(&self, group: &str, version: &str) -> Result<Response, Status> {
        if !self.all().iter().any(|(g, versions)| g == group && versions.iter().any(|v| v == version)) {
            return Err(Status::no_such_path());
        }
        let mut resources = Vec::new();
        for (row, served) in self.rows(group, version) {
            let mut entry = json!({
                "name": row.plural, "singularName": row.singular, "namespaced": row.namespaced,
                "kind": row.kind, "verbs": row.verbs,
            });
            if !row.short_names.is_empty() {
                entry["shortNames"] = json!(row.short_names);
            }
            if !row.categories.is_empty() {
                entry["categories"] = json!(row.categories);
            }
            if !row.is_virtual {
                let (api_version, kind) = convert::storage_type(row);
                entry["storageVersionHash"] = STANDARD.encode(storage_version_hash(&api_version, &kind)).into();
            }
            resources.push(entry);
            for sub in &served.subresources {
                let mut entry = json!({
                    "name": format!("{}/{}", row.plural, sub.name), "singularName": "",
                    "namespaced": row.namespaced, "kind": sub.kind, "verbs": sub.verbs,
                });
                if (sub.group.as_ref(), sub.version.as_ref()) != (group, version) {
                    entry["group"] = json!(sub.group);
                    entry["version"] = json!(sub.version);
                }
                resources.push(entry);
            }
        }
        resources.extend(self.local_resources(group, version));
        let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        Ok(body::value(
            200,
            &json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources,
            }),
        ))
    }

    fn aggregated(&self, api_version: &'static str, core: bool, headers: &HeaderMap) -> Response {
        let items: Vec<Value> = self
            .all()
            .into_iter()
            .filter(|(group, _)| group.is_empty() == core)
            .map(|(group, versions)| {
                let versions: Vec<Value> = versions
                    .iter()
                    .map(|version| {
                        json!({
                            "version": version,
                            "resources": self.aggregated_resources(&group, version),
                            "freshness": if self.stale.iter().any(|(g, v)| *g == group && v == version) { "Stale" } else { "Current" },
                        })
                    })
                    .collect();
                let mut metadata = json!({"creationTimestamp": null});
                if !group.is_empty() {
                    metadata["name"] = group.into();
                }
                json!({"metadata": metadata, "versions": versions})
            })
            .collect();
        let document = bytes_of(&json!({
            "kind": "APIGroupDiscoveryList",
            "apiVersion": format!("apidiscovery.k8s.io/{api_version}"),
            "metadata": {},
            "items": items,
        }));
        let tag = etag::of(&document);
        let content_type = match api_version {
            "v2" => HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
            _ => HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"),
        };
        let document = (!etag::is_known(headers, &tag)).then_some(document);
        etag::reply(content_type, &tag, "Accept", document)
    }

    fn aggregated_resources(&self, group: &str, version: &str) -> Vec<Value> {
        let scope = |namespaced: bool| if namespaced { "Namespaced" } else { "Cluster" };
        let mut resources = Vec::new();
        for (row, served) in self.rows(group, version) {
            let mut entry = json!({
                "resource": row.plural,
                "responseKind": {"group": row.group, "version": version, "kind": row.kind},
                "scope": scope(row.namespaced),
                "singularResource": row.singular,
                "verbs": row.verbs,
            });
            if !row.short_names.is_empty() {
                entry["shortNames"] = json!(row.short_names);
            }
            if !row.categories.is_empty() {
                entry["categories"] = json!(row.categories);
            }
            let subresources: Vec<Value> = served
                .subresources
                .iter()
                .map(|sub| {
                    json!({
                        "subresource": sub.name,
                        "responseKind": {"group": sub.group, "version": sub.version, "kind": sub.kind},
                        "verbs": sub.verbs,
                    })
                })
                .collect();
            if !subresources.is_empty() {
                entry["subresources"] = subresources.into();
            }
            resources.push(entry);
        }
        merge_local(&mut resources, &self.local_resources(group, version), group, version);
        resources
    }
}

/// Resources of code are given in the old form: `a/b` is a subresource of `a`, which need not exist.
fn merge_local(resources: &mut Vec<Value>, local: &[Value], group: &str, version: &str) {
    for resource in local {
        let name = resource["name"].as_str().unwrap_or_default();
        let kind = |kind: &Value| json!({"group": group, "version": version, "kind": kind});
        let scope = if resource["namespaced"] == true { "Namespaced" } else { "Cluster" };
        let (parent, sub) = match name.split_once('/') {
            Some((parent, sub)) => (parent, Some(sub)),
            None => (name, None),
        };
        let at = match resources.iter().position(|entry| entry["resource"] == parent) {
            Some(at) => at,
            None => {
                let shown = if sub.is_none() { kind(&resource["kind"]) } else { Value::Null };
                let verbs = if sub.is_none() { resource["verbs"].clone() } else { json!([]) };
                resources.push(json!({
                    "resource": parent, "responseKind": shown, "scope": scope,
                    "singularResource": resource["singularName"], "verbs": verbs,
                }));
                resources.len() - 1
            }
        };
        if let Some(sub) = sub {
            let entry =
                json!({"subresource": sub, "responseKind": kind(&resource["kind"]), "verbs": resource["verbs"]});
            match resources[at].get_mut("subresources").and_then(Value::as_array_mut) {
                Some(list) => list.push(entry),
                None => resources[at]["subresources"] = json!([entry]),
            }
        }
    }
}
