//! Discovery as objects: which groups, versions and resources an API server serves, its own and those of servers behind it.
//!
//! The aggregated form (`apidiscovery.k8s.io/v2`) is a list of objects, one a group, but it has no revision and cannot be
//! watched. So it is a [`Source`] that is listed again and again; what has changed is known by the objects' own words. A
//! server that knows only the old form is asked for it piece by piece by the shell ([`whole`]), so that cores see one form.

use std::time::Duration;

use bytes::Bytes;
use carrack_types::json::or_none;
use carrack_types::resource::{Object, Resource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{ApiError, ApiRequest, ApiResponse, Method, Selector, Source, Transport};

/// Where discovery of all groups but the core one is.
pub(crate) const PATH: &str = "/apis";
/// What to accept there.
pub(crate) const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
/// How long what discovery told is believed: upstream's garbage collector asks as often.
const EVERY: Duration = Duration::from_secs(30);
pub(crate) const GROUP: &str = "apidiscovery.k8s.io";
/// Freshness of a version whose server did not answer.
const STALE: &str = "Stale";

/// A group, with what its versions serve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupDiscovery {
    /// Its name is the group's.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Its versions, the preferred one first.
    #[serde(default, deserialize_with = "or_none")]
    pub versions: Vec<VersionDiscovery>,
}

/// A version of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VersionDiscovery {
    /// Its name.
    pub version: String,
    /// `Current`, or `Stale` when the server behind it does not answer.
    #[serde(default, deserialize_with = "or_none")]
    pub freshness: String,
    /// Its resources.
    #[serde(default, deserialize_with = "or_none")]
    pub resources: Vec<ResourceDiscovery>,
}

/// A resource of a version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceDiscovery {
    /// Its plural name.
    pub resource: String,
    /// The kind of its objects; none where only a subresource is served.
    #[serde(default)]
    pub response_kind: Option<ResponseKind>,
    /// `Namespaced` or `Cluster`.
    #[serde(default, deserialize_with = "or_none")]
    pub scope: String,
    /// What can be done with it.
    #[serde(default, deserialize_with = "or_none")]
    pub verbs: Vec<String>,
}

/// A kind, as discovery names it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResponseKind {
    /// Its name.
    #[serde(default, deserialize_with = "or_none")]
    pub kind: String,
}

carrack_types::json_here!(GroupDiscovery);

impl Object for GroupDiscovery {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl GroupDiscovery {
    /// Where it is read.
    #[must_use]
    pub fn source() -> Source {
        let resource = Resource {
            group: GROUP.into(),
            version: "v2".into(),
            plural: "apigroupdiscoveries".into(),
            kind: "APIGroupDiscovery".into(),
            namespaced: false,
        };
        Source { resource, selector: Selector::all(), metadata_only: false, every: Some(EVERY) }
    }
}

impl VersionDiscovery {
    /// Whether the server behind it did not answer: what it serves is unknown.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.freshness == STALE
    }
}

impl ResourceDiscovery {
    /// Its resource in a version of a group, if it can be listed and deleted.
    #[must_use]
    pub fn resource_of(&self, group: &str, version: &str) -> Option<Resource> {
        let kind = self.response_kind.as_ref().map(|kind| kind.kind.clone()).filter(|kind| !kind.is_empty())?;
        (self.can("list") && self.can("delete")).then(|| Resource {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            plural: self.resource.clone().into(),
            kind: kind.into(),
            namespaced: self.scope == "Namespaced",
        })
    }
    /// Whether it has a verb.
    #[must_use]
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
}

/// The request that reads a collection which is discovery.
pub(crate) fn request(resource: &Resource) -> Option<ApiRequest> {
    (resource.group == GROUP).then(|| ApiRequest::new(Method::Get, PATH))
}

/// Sends a request; a reply in discovery's old form is made whole by asking for each version. One that does not answer is
/// stale.
///
/// # Errors
/// Those of the transport.
pub(crate) async fn whole(transport: &dyn Transport, request: ApiRequest) -> Result<ApiResponse, ApiError> {
    let is_discovery = request.path == PATH && request.method == Method::Get;
    let reply = transport.send(request).await?;
    if !is_discovery {
        return Ok(reply);
    }
    let list: Value = reply.json()?;
    match list["kind"].as_str() {
        Some("APIGroupDiscoveryList") => return Ok(reply),
        Some("APIGroupList") => {}
        other => return Err(ApiError::Decode(format!("{other:?} is no discovery"))),
    }
    let mut items = Vec::new();
    for group in list["groups"].as_array().into_iter().flatten() {
        let mut versions = Vec::new();
        // The preferred version is the first.
        let preferred = &group["preferredVersion"];
        let all = group["versions"].as_array().into_iter().flatten().filter(|v| v["version"] != preferred["version"]);
        for version in std::iter::once(preferred).chain(all) {
            let Some(name) = version["version"].as_str() else { continue };
            let path = format!("{PATH}/{}", version["groupVersion"].as_str().unwrap_or_default());
            let told = match transport.send(ApiRequest::new(Method::Get, path)).await {
                Ok(reply) => reply.json::<Value>(),
                Err(error) => Err(error),
            };
            versions.push(match told {
                Ok(list) => {
                    json!({"version": name, "freshness": "Current", "resources": resources(&list)})
                }
                Err(error) => {
                    tracing::debug!(group = %group["name"], version = name, %error, "discovery of a version failed");
                    json!({"version": name, "freshness": STALE})
                }
            });
        }
        items.push(json!({"metadata": {"name": group["name"]}, "versions": versions}));
    }
    let body = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items});
    Ok(ApiResponse { status: 200, body: Bytes::from(body.to_string()) })
}

/// Resources of an `APIResourceList` in the new form, without subresources.
fn resources(list: &Value) -> Vec<Value> {
    let all = list["resources"].as_array().into_iter().flatten();
    all.filter(|r| r["name"].as_str().is_some_and(|name| !name.contains('/')))
        .map(|r| {
            json!({
                "resource": r["name"], "responseKind": {"kind": r["kind"]},
                "scope": if r["namespaced"] == true { "Namespaced" } else { "Cluster" }, "verbs": r["verbs"],
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::BoxFuture;

    use super::*;
    use crate::{EventStream, StatusError};

    /// A server of before 2023: it has one version that answers, and one that does not.
    struct Old;
    impl Transport for Old {
        fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
            let version = |v: &str| json!({"groupVersion": format!("example.com/{v}"), "version": v});
            let reply = match request.path.as_str() {
                "/apis" => Ok(json!({"kind": "APIGroupList", "groups": [{"name": "example.com",
                    "versions": [version("v1"), version("v2")], "preferredVersion": version("v2")}]})),
                "/apis/example.com/v1" => Ok(json!({"resources": [
                    {"name": "things", "kind": "Thing", "namespaced": true, "verbs": ["list", "delete"]},
                    {"name": "things/status", "kind": "Thing", "namespaced": true, "verbs": ["get"]},
                    {"name": "looks", "kind": "Look", "namespaced": false, "verbs": ["get", "list"]}]})),
                _ => Err(ApiError::Status(Box::new(StatusError { code: 503, ..StatusError::default() }))),
            };
            let reply = reply.map(|body| ApiResponse { status: 200, body: Bytes::from(body.to_string()) });
            Box::pin(std::future::ready(reply))
        }
        fn watch(&self, _: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
            Box::pin(std::future::ready(Err(ApiError::Transport("no watch".into()))))
        }
    }

    #[test]
    fn the_old_form_is_made_whole_and_silence_is_stale() {
        let asked = request(&GroupDiscovery::source().resource).unwrap_or_else(|| panic!("it is discovery"));
        let reply = whole(&Old, asked).now_or_never().unwrap_or_else(|| panic!("it waits for nothing"));
        let list = reply.and_then(|reply| reply.json::<Value>()).unwrap_or_default();
        let groups: Vec<GroupDiscovery> = serde_json::from_value(list["items"].clone()).unwrap_or_default();
        assert_eq!(groups.len(), 1, "{list}");
        assert_eq!(groups[0].name(), "example.com");
        let versions: Vec<_> = groups[0].versions.iter().map(|v| (v.version.as_str(), v.is_stale())).collect();
        assert_eq!(versions, [("v2", true), ("v1", false)]);
        let found: Vec<_> =
            groups[0].versions[1].resources.iter().filter_map(|r| r.resource_of("example.com", "v1")).collect();
        let paths: Vec<_> = found.iter().map(|r| r.collection_path("ns")).collect();
        assert_eq!(paths, ["/apis/example.com/v1/namespaces/ns/things"]);
    }
}
