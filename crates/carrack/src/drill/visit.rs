//! A drill on an API server that is somebody else's. It works in a namespace of its own there, and takes back what it brought,
//! also when it broke or was interrupted.
//!
//! ```text
//!   begin ── what is there already? ──► story ──► empty ──► take_kinds ──► take_nodes
//!                                                 │          │              └─ once nobody speaks for them any more
//!                                                 │          └─ while the controllers run, and no other role
//!                                                 └─ the namespace, while everybody runs who ends what is in it
//! ```
//!
//! What goes has a name that nobody but a drill gives, or was not there when the drill began. What others have made of its kinds
//! meanwhile keeps those kinds there.

use std::path::Path;

use anyhow::{Context as _, bail};
use carrack_types::kubevirt::crds;
use carrack_types::well_known::kubevirt::NODE_LEASE_NAMESPACE;
use serde_json::{Value, json};

use super::api::{self, Api};
use super::roles::{NODE, NODES_PREFIX};
use super::stage::settles;
use crate::roles::apiserver::now_unix_s;
use crate::roles::virt_controller::DEFINITIONS;

/// How long what is in the namespace may take to end in its own time, and then by force.
const EMPTY_WITHIN_S: u64 = 60;
const FORCED_WITHIN_S: u64 = 30;
/// How long an object may take to go that nobody has to end.
const GONE_WITHIN_S: u64 = 30;

/// What an installation of KubeVirt has beside its kinds, as a drill that needs those makes it: the namespace, and its settings.
const INSTALLATION: &str = "/api/v1/namespaces/kubevirt";
const SETTINGS: &str = "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts/kubevirt";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces";
/// By which Leases the drill's roles are elected, where nobody else was before.
const ELECTIONS: [&str; 3] = [
    "kube-system/leases/kube-controller-manager",
    "kube-system/leases/kube-scheduler",
    "kubevirt/leases/virt-controller",
];

/// What a drill has to take back.
pub struct Visit {
    api: Api,
    /// Paths of KubeVirt's kinds and of its installation that led to nothing before, in the order in which they can go.
    kinds: Vec<String>,
    /// The same of Leases.
    leases: Vec<String>,
}

/// The namespace of a drill that lies in this directory and begins now.
pub fn namespace(dir: &Path) -> String {
    format!("{}-{}", dir.file_name().unwrap_or_default().to_string_lossy(), now_unix_s())
}

impl Visit {
    /// Looks at what is there, and makes the namespace.
    ///
    /// # Errors
    /// Another drill is there, or something cannot be read or made.
    pub fn begin(api: &Api) -> anyhow::Result<Self> {
        let nodes = api.list(api::NODES).context("cannot list nodes")?;
        if let Some(node) = nodes.iter().map(api::name).find(|name| is_of_drill(name)) {
            bail!(
                "the API server has the node {node}: another drill works there, or has left it; delete it if none does"
            );
        }
        let definitions = crds();
        let definitions = definitions.iter().map(|definition| format!("{DEFINITIONS}/{}", api::name(definition)));
        let kinds = absent(api, [SETTINGS, INSTALLATION].map(str::to_owned).into_iter().chain(definitions))?;
        let leases = absent(api, ELECTIONS.iter().map(|lease| format!("{LEASES}/{lease}")))?;
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": api.namespace()}});
        let context = || format!("cannot create the namespace {}", api.namespace());
        api.create(api::NAMESPACES, &object).with_context(context)?;
        Ok(Self { api: api.clone(), kinds, leases })
    }

    /// Deletes the namespace, and waits until all that was in it has ended.
    ///
    /// # Errors
    /// What is left.
    pub fn empty(&self) -> anyhow::Result<()> {
        self.empty_within(EMPTY_WITHIN_S, FORCED_WITHIN_S)
    }

    fn empty_within(&self, limit_s: u64, forced_limit_s: u64) -> anyhow::Result<()> {
        let namespace = self.api.namespace();
        let path = format!("{}/{namespace}", api::NAMESPACES);
        self.api.delete(&path).with_context(|| format!("cannot delete the namespace {namespace}"))?;
        let what = format!("the namespace {namespace} is gone");
        if settles(&what, limit_s, || self.gone(&path)).is_ok() {
            return Ok(());
        }
        // Who was to end them has ended first, as in a drill that broke. The node is cleared away whatever they say.
        self.force()?;
        settles(&what, forced_limit_s, || self.gone(&path)).map_err(anyhow::Error::msg)
    }

    /// Deletes what somebody on a node has to end, without waiting for that.
    fn force(&self) -> anyhow::Result<()> {
        let released = json!({"metadata": {"finalizers": null}});
        for collection in [api::MACHINES, api::INSTANCES, api::PODS] {
            for object in &self.listed(collection)? {
                let path = format!("{collection}/{}", api::name(object));
                match self.api.merge(&path, &released) {
                    Err(error) if !error.is_not_found() => return Err(error.into()),
                    _ => self.api.delete_at_once(&path)?,
                }
            }
        }
        Ok(())
    }

    /// Takes KubeVirt's kinds away, as far as the drill has brought them and nobody else uses them.
    ///
    /// # Errors
    /// What is left.
    pub fn take_kinds(&self) -> anyhow::Result<()> {
        together(self.kinds.iter().map(|path| self.take_kind(path)))
    }

    fn take_kind(&self, path: &str) -> anyhow::Result<()> {
        let Some(object) = self.api.get(path)? else { return Ok(()) };
        if let Some(other) = self.used_by(&object)? {
            bail!("{path} stays: there is {other}, which is not of the drill");
        }
        self.take(path)
    }

    /// The objects of a collection, of which there are none where there is no such kind.
    fn listed(&self, collection: &str) -> anyhow::Result<Vec<Value>> {
        match self.api.list(collection) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            objects => objects.with_context(|| format!("cannot list {collection}")),
        }
    }

    /// An object of the kind that this defines.
    fn used_by(&self, definition: &Value) -> anyhow::Result<Option<String>> {
        let (group, plural) = (api::text(definition, "/spec/group"), api::text(definition, "/spec/names/plural"));
        let versions = definition.pointer("/spec/versions").and_then(Value::as_array);
        let Some(version) = versions.into_iter().flatten().find(|version| version["served"] == true) else {
            return Ok(None);
        };
        let objects = self.listed(&format!("/apis/{group}/{}/{plural}", api::text(version, "/name")))?;
        Ok(objects.first().map(|object| format!("{}/{}", api::text(object, "/metadata/namespace"), api::name(object))))
    }

    /// Takes the nodes away, and what nodes and roles have beside their objects.
    ///
    /// # Errors
    /// What is left.
    pub fn take_nodes(&self) -> anyhow::Result<()> {
        let nodes = self.api.list(api::NODES).context("cannot list nodes")?;
        let nodes = nodes.iter().map(api::name).filter(|name| is_of_drill(name));
        let of_nodes = nodes.flat_map(|node| {
            [
                format!("{}/{node}", api::NODES),
                format!("{LEASES}/kube-node-lease/leases/{node}"),
                format!("{LEASES}/{NODE_LEASE_NAMESPACE}/leases/{node}"),
                format!("/apis/storage.k8s.io/v1/csinodes/{node}"),
            ]
        });
        together(of_nodes.chain(self.leases.iter().cloned()).map(|path| self.take(&path)))
    }

    fn take(&self, path: &str) -> anyhow::Result<()> {
        self.api.delete(path).with_context(|| format!("cannot delete {path}"))?;
        settles(&format!("{path} is gone"), GONE_WITHIN_S, || self.gone(path)).map_err(anyhow::Error::msg)
    }

    fn gone(&self, path: &str) -> Result<(), String> {
        let Some(object) = self.api.get(path).map_err(|error| error.to_string())? else { return Ok(()) };
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let holding = conditions.into_iter().flatten().filter(|condition| condition["status"] == "True");
        let why: Vec<&str> = holding.map(|condition| api::text(condition, "/message")).collect();
        Err(format!("it is still there: {}", why.join("; ")))
    }
}

/// Whether a node has a name that drills give.
fn is_of_drill(node: &str) -> bool {
    node == NODE || node.starts_with(NODES_PREFIX)
}

/// Which of these paths lead to nothing.
fn absent(api: &Api, paths: impl Iterator<Item = String>) -> anyhow::Result<Vec<String>> {
    let mut absent = Vec::new();
    for path in paths {
        if api.get(&path).with_context(|| format!("cannot read {path}"))?.is_none() {
            absent.push(path);
        }
    }
    Ok(absent)
}

/// All of it is done; what failed is told together.
fn together(outcomes: impl Iterator<Item = anyhow::Result<()>>) -> anyhow::Result<()> {
    let failed: Vec<String> = outcomes.filter_map(|outcome| outcome.err().map(|error| format!("{error:#}"))).collect();
    if failed.is_empty() { Ok(()) } else { Err(anyhow::Error::msg(failed.join("\n  "))) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use carrack_engine::{ApiError, ApiRequest, ApiResponse, EventStream, Method, Transport};
    use futures::FutureExt as _;
    use futures::future::BoxFuture;
    use tokio::runtime::Runtime;

    use super::*;
    use crate::roles::virt_controller::other_definition;

    const OWN: &str = "/api/v1/namespaces/carrack-drill-1-2";
    const KIND: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/virtualmachines.kubevirt.io";
    const OTHER_KIND: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kubevirts.kubevirt.io";

    /// A server's objects by path. A namespace that is deleted is gone as soon as nothing is in it.
    #[derive(Default)]
    struct Server(Mutex<BTreeMap<String, Value>>);

    impl Server {
        /// With something of somebody else's.
        fn with(paths: &[&str]) -> Arc<Self> {
            let server = Self::default();
            paths.iter().chain(&["/api/v1/nodes/worker", INSTALLATION]).for_each(|path| server.put(path, json!({})));
            Arc::new(server)
        }

        fn put(&self, path: &str, mut object: Value) {
            object["metadata"]["name"] = path.rsplit('/').next().into();
            self.0.lock().expect("nobody panicked").insert(path.to_owned(), object);
        }

        fn paths(&self) -> Vec<String> {
            self.0.lock().expect("nobody panicked").keys().cloned().collect()
        }

        fn answer(&self, request: &ApiRequest) -> Result<Value, ApiError> {
            let mut objects = self.0.lock().expect("nobody panicked");
            let path = request.path.as_str();
            let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let is_below = |other: &str| other.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
            let below: Vec<Value> =
                objects.iter().filter(|(other, _)| is_below(other)).map(|(_, object)| object.clone()).collect();
            let none = || ApiError::from_reply(404, b"");
            match request.method {
                Method::Get => match objects.get(path) {
                    Some(object) if object["going"] == true && below.is_empty() => {
                        objects.remove(path);
                        Err(none())
                    }
                    Some(object) => Ok(object.clone()),
                    None if below.is_empty() => Err(none()),
                    None => Ok(json!({"items": below})),
                },
                Method::Post => {
                    let path = format!("{path}/{}", api::name(&body));
                    match objects.insert(path, body.clone()) {
                        None => Ok(body),
                        Some(_) => Err(ApiError::from_reply(409, b"")),
                    }
                }
                Method::Delete if !below.is_empty() => {
                    let object = objects.get_mut(path).ok_or_else(none)?;
                    object["going"] = true.into();
                    Ok(object.clone())
                }
                Method::Delete => objects.remove(path).ok_or_else(none),
                Method::Patch | Method::Put => objects.get(path).cloned().ok_or_else(none),
            }
        }
    }

    impl Transport for Server {
        fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
            let reply = self.answer(&request).map(|body| ApiResponse { status: 200, body: body.to_string().into() });
            std::future::ready(reply).boxed()
        }

        fn watch(&self, _: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
            std::future::ready(Err(ApiError::Transport("nothing is watched here".to_owned()))).boxed()
        }
    }

    fn begin(server: &Arc<Server>) -> (Runtime, anyhow::Result<Visit>) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let api = Api::new(server.clone(), runtime.handle().clone(), "carrack-drill-1-2");
        let visit = Visit::begin(&api);
        (runtime, visit)
    }

    #[test]
    fn what_a_drill_brought_goes_and_nothing_else() {
        let theirs = [KIND, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"];
        let server = Server::with(&theirs);
        let before = server.paths();
        let (_runtime, visit) = begin(&server);
        let visit = visit.expect("nobody else is there");
        for brought in [
            "/api/v1/nodes/drill",
            "/api/v1/nodes/drill-1",
            "/apis/storage.k8s.io/v1/csinodes/drill",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/drill-1",
            "/apis/coordination.k8s.io/v1/namespaces/kubevirt-node-lease/leases/drill",
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager",
            SETTINGS,
        ] {
            server.put(brought, json!({}));
        }
        server.put(OTHER_KIND, definition("kubevirts"));
        // Nobody ends this pod any more.
        server.put(&format!("{OWN}/pods/stays"), json!({}));
        visit.empty_within(0, 5).expect("it is emptied by force");
        visit.take_kinds().expect("nobody uses them");
        visit.take_nodes().expect("they are taken");
        assert_eq!(server.paths(), before);
        // And again.
        assert!(begin(&server).1.is_ok());
    }

    fn definition(plural: &str) -> Value {
        let versions = json!([{"name": "v1alpha3", "served": false}, {"name": "v1", "served": true}]);
        json!({"spec": {"group": "kubevirt.io", "names": {"plural": plural}, "versions": versions}})
    }

    #[test]
    fn a_kind_that_others_have_taken_up_stays() {
        let server = Server::with(&[]);
        let (_runtime, visit) = begin(&server);
        let visit = visit.expect("nobody else is there");
        for (path, plural) in [(KIND, "virtualmachines"), (OTHER_KIND, "kubevirts")] {
            server.put(path, definition(plural));
        }
        server.put("/apis/kubevirt.io/v1/virtualmachines/theirs", json!({"metadata": {"namespace": "shop"}}));
        let left = visit.take_kinds().expect_err("one is in use").to_string();
        assert!(left.contains("shop/theirs") && left.contains("virtualmachines.kubevirt.io"), "{left}");
        let paths = server.paths();
        assert!(paths.iter().any(|path| path == KIND) && paths.iter().all(|path| path != OTHER_KIND), "{paths:?}");
    }

    #[test]
    fn a_kind_of_another_version_is_found() {
        let (server, all) = (Server::with(&[]), crds());
        let definition = all.first().expect("there are some");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let found = || runtime.block_on(other_definition(&*server)).expect("they are read");
        assert_eq!(found(), None);
        let path = format!("{DEFINITIONS}/{}", api::name(definition));
        server.put(&path, definition.clone());
        assert_eq!(found(), None, "it is as it would be made");
        server.put(&path, json!({"spec": {"versions": []}}));
        assert_eq!(found().as_deref(), Some(api::name(definition)));
    }

    #[test]
    fn where_another_drill_is_none_begins() {
        for (there, part) in [(&["/api/v1/nodes/drill"], "the node drill"), (&[OWN], "carrack-drill-1-2")] {
            let server = Server::with(there);
            let before = server.paths();
            let refused = begin(&server).1.err().map(|error| format!("{error:#}")).unwrap_or_default();
            assert!(refused.contains(part), "{there:?}: {refused:?}");
            assert_eq!(server.paths(), before);
        }
    }

    #[test]
    fn nodes_of_drills() {
        for (node, expected) in [("drill", true), ("drill-0", true), ("drills", false), ("worker", false)] {
            assert_eq!(is_of_drill(node), expected, "{node}");
        }
    }
}
