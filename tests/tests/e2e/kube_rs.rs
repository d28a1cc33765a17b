//! Programs written with kube-rs, as their authors write them: a controller with a finalizer for a kind of its own, and
//! the client's whole list of verbs.

#![expect(clippy::expect_used, clippy::panic, reason = "what a program cannot do fails the test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use carrack_e2e::Sandbox;
use futures::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, ObjectReference, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, AttachParams, DeleteParams, DynamicObject, EvictParams, ListParams, LogParams, Patch, PatchParams, PostParams,
    Preconditions, WatchEvent, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::runtime::controller::Action;
use kube::runtime::events::{EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Event as Finalize, finalizer};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{Controller, WatchStreamExt as _, reflector, watcher};
use kube::{Client, Config, CustomResource, CustomResourceExt as _, Discovery, Resource as _, ResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const NAMESPACE: &str = "kube-rs";
const LIMIT: Duration = Duration::from_secs(60);

/// A lamp, which a controller lights.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "kube-rs.example", version = "v1", kind = "Lamp", namespaced, status = "LampStatus", shortname = "lp")]
#[kube(printcolumn(name = "Watts", type_ = "integer", json_path = ".spec.watts"))]
#[kube(validation = Rule::new("self.spec.watts <= 100").message("too bright"))]
struct LampSpec {
    watts: u32,
    #[serde(default = "white")]
    color: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
struct LampStatus {
    lit: bool,
}

fn white() -> String {
    "white".to_owned()
}

/// A client as the kubeconfig of a sandbox describes it.
async fn client(sandbox: &Sandbox) -> Client {
    let file = Kubeconfig::read_from(sandbox.data_dir().join("kubeconfig.yaml")).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a config");
    let client = Client::try_from(config).expect("a client");
    let spaces: Api<Namespace> = Api::all(client.clone());
    let space = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
    spaces.create(&PostParams::default(), &space).await.expect("a namespace");
    client
}

/// Waits until an object is as it should be.
async fn until<K>(api: &Api<K>, name: &str, condition: impl Fn(Option<&K>) -> bool)
where
    K: kube::Resource + Clone + std::fmt::Debug + Send + for<'de> Deserialize<'de> + 'static,
{
    tokio::time::timeout(LIMIT, await_condition(api.clone(), name, condition))
        .await
        .unwrap_or_else(|_| panic!("{name} is not as it should be after {LIMIT:?}"))
        .expect("a watch");
}

/// The code and reason of a refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason),
        other => panic!("not refused: {other:?}"),
    }
}

/// What the controller knows.
struct Electrician {
    client: Client,
    cleaned: AtomicU32,
}

async fn light(
    lamp: Arc<Lamp>,
    context: Arc<Electrician>,
) -> Result<Action, kube::runtime::finalizer::Error<kube::Error>> {
    let namespace = lamp.namespace().unwrap_or_default();
    let lamps: Api<Lamp> = Api::namespaced(context.client.clone(), &namespace);
    let done = finalizer(&lamps, "kube-rs.example/wires", lamp, |event| async {
        match event {
            Finalize::Apply(lamp) => {
                let wires: Api<ConfigMap> = Api::namespaced(context.client.clone(), &namespace);
                let name = format!("wires-of-{}", lamp.name_any());
                let owner = lamp.controller_owner_ref(&()).expect("it is stored");
                let wire = json!({"apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": name, "ownerReferences": [owner]}, "data": {"color": lamp.spec.color}});
                let manager = PatchParams::apply("electrician").force();
                wires.patch(&name, &manager, &Patch::Apply(&wire)).await?;
                let status = json!({"apiVersion": "kube-rs.example/v1", "kind": "Lamp", "status": {"lit": true}});
                lamps.patch_status(&lamp.name_any(), &manager, &Patch::Apply(&status)).await?;
                let recorder = Recorder::new(context.client.clone(), Reporter::from("electrician"));
                let told = kube::runtime::events::Event {
                    type_: EventType::Normal,
                    reason: "Lit".to_owned(),
                    note: Some("it shines".to_owned()),
                    action: "Lighting".to_owned(),
                    secondary: None,
                };
                recorder.publish(&told, &lamp.object_ref(&())).await?;
                Ok(Action::await_change())
            }
            Finalize::Cleanup(_) => {
                context.cleaned.fetch_add(1, Ordering::SeqCst);
                Ok(Action::await_change())
            }
        }
    });
    done.await
}

#[test]
fn a_controller_of_kube_rs_works_on_it() {
    let sandbox = Sandbox::up(&[]);
    sandbox.run(async {
        let client = client(&sandbox).await;
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let manager = PatchParams::apply("installer").force();
        definitions.patch("lamps.kube-rs.example", &manager, &Patch::Apply(Lamp::crd())).await.expect("applied");
        until(&definitions, "lamps.kube-rs.example", |definition: Option<&CustomResourceDefinition>| {
            use kube::runtime::wait::Condition as _;
            conditions::is_crd_established().matches_object(definition)
        })
        .await;

        let lamps: Api<Lamp> = Api::namespaced(client.clone(), NAMESPACE);
        let wires: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let context = Arc::new(Electrician { client: client.clone(), cleaned: AtomicU32::new(0) });
        let controller = Controller::new(lamps.clone(), watcher::Config::default().streaming_lists())
            .owns(wires.clone(), watcher::Config::default())
            .run(
                light,
                |_, error, _| {
                    eprintln!("the controller: {error}");
                    Action::requeue(Duration::from_millis(100))
                },
                context.clone(),
            )
            .for_each(|_| std::future::ready(()));
        let user = async {
            let bright = Lamp::new("bright", LampSpec { watts: 500, color: white() });
            assert_eq!(refusal(lamps.create(&PostParams::default(), &bright).await), (422, "Invalid".to_owned()));
            let desk = json!({"apiVersion": "kube-rs.example/v1", "kind": "Lamp", "metadata": {"name": "desk"},
                "spec": {"watts": 40}});
            let manager = PatchParams::apply("user");
            let made = lamps.patch("desk", &manager, &Patch::Apply(&desk)).await.expect("applied");
            assert_eq!(made.spec.color, "white");
            until(&lamps, "desk", |lamp: Option<&Lamp>| {
                lamp.and_then(|lamp| lamp.status.as_ref()).is_some_and(|status| status.lit)
            })
            .await;
            // What it made comes back.
            let first = wires.get("wires-of-desk").await.expect("wires").uid();
            wires.delete("wires-of-desk", &DeleteParams::default()).await.expect("deleted");
            until(&wires, "wires-of-desk", |wire: Option<&ConfigMap>| wire.is_some_and(|wire| wire.uid() != first))
                .await;
            // Events reach who asks for those of the object.
            let events: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
            let of_desk = ListParams::default().fields("involvedObject.name=desk,reason=Lit");
            assert!(!events.list(&of_desk).await.expect("events").items.is_empty());
            // The finalizer holds it until the controller has cleaned up, and the garbage collector takes what it owned.
            lamps.delete("desk", &DeleteParams::foreground()).await.expect("deleted");
            until(&lamps, "desk", |lamp: Option<&Lamp>| lamp.is_none()).await;
            until(&wires, "wires-of-desk", |wire: Option<&ConfigMap>| wire.is_none()).await;
            // At least once, as kube-rs promises it: a reconcile that the owned object's event sets off can still see the
            // lamp with its finalizer, whose removal its watch has not told yet.
            assert!(context.cleaned.load(Ordering::SeqCst) >= 1);
        };
        tokio::select! {
            () = controller => panic!("the controller ended"),
            () = user => {}
        }
    });
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    let object = json!({"metadata": {"name": name, "labels": {"of": "kube-rs"}}, "data": {"value": value}});
    serde_json::from_value(object).expect("a config map")
}

async fn verbs(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let create = PostParams::default();
    for number in 0..7 {
        maps.create(&create, &config_map(&format!("m{number}"), "0")).await.expect("created");
    }
    assert_eq!(refusal(maps.create(&create, &config_map("m0", "0")).await), (409, "AlreadyExists".to_owned()));
    assert!(maps.get_opt("none").await.expect("an answer").is_none());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    maps.create(&dry, &config_map("dry", "0")).await.expect("a dry run");
    assert!(maps.get_opt("dry").await.expect("an answer").is_none());

    // Pages of one snapshot, and metadata alone.
    let mut params = ListParams::default().labels("of=kube-rs").limit(3);
    let (mut seen, mut sizes) = (Vec::new(), Vec::new());
    loop {
        let page = maps.list_metadata(&params).await.expect("a page");
        sizes.push(page.items.len());
        seen.extend(page.items.iter().map(|item| item.name_any()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    assert_eq!((sizes, seen.len()), (vec![3, 3, 1], 7));

    // A stale replacement and a stale precondition are refused.
    let mut fresh = maps.get("m1").await.expect("it is there");
    let mut stale = fresh.clone();
    fresh.data = Some(BTreeMap::from([("value".to_owned(), "1".to_owned())]));
    maps.replace("m1", &create, &fresh).await.expect("replaced");
    stale.data = None;
    assert_eq!(refusal(maps.replace("m1", &create, &stale).await), (409, "Conflict".to_owned()));
    let wrong = Preconditions { uid: Some("another".to_owned()), resource_version: None };
    let delete = DeleteParams { preconditions: Some(wrong), ..DeleteParams::default() };
    assert_eq!(refusal(maps.delete("m1", &delete).await), (409, "Conflict".to_owned()));
    let mut entry = maps
        .entry("m2")
        .await
        .expect("an entry")
        .or_insert(|| config_map("m2", "never"))
        .and_modify(|map| map.data = Some(BTreeMap::from([("value".to_owned(), "entry".to_owned())])));
    entry.commit(&create).await.expect("committed");

    // All forms of patches, and a conflict between two appliers that names who holds the field.
    let merge = Patch::Merge(json!({"data": {"merged": "1"}}));
    maps.patch("m3", &PatchParams::default(), &merge).await.expect("a merge patch");
    let strategic = Patch::Strategic(json!({"data": {"value": null}}));
    let patched = maps.patch("m3", &PatchParams::default(), &strategic).await.expect("a strategic patch");
    assert_eq!(patched.data.expect("data"), BTreeMap::from([("merged".to_owned(), "1".to_owned())]));
    let operations = serde_json::from_value(json!([{"op": "replace", "path": "/data/merged", "value": "2"}]));
    let by_json = Patch::Json::<()>(operations.expect("operations"));
    maps.patch("m3", &PatchParams::default(), &by_json).await.expect("a JSON patch");
    let apply = |value: &str| {
        Patch::Apply(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m4"}, "data": {"mine": value}}),
        )
    };
    maps.patch("m4", &PatchParams::apply("one"), &apply("1")).await.expect("applied");
    let conflict = maps.patch("m4", &PatchParams::apply("two"), &apply("2")).await;
    let Err(kube::Error::Api(status)) = conflict else { panic!("not refused: {conflict:?}") };
    assert_eq!(status.code, 409);
    assert!(status.message.contains("\"one\"") && status.message.contains(".data.mine"), "{}", status.message);
    maps.patch("m4", &PatchParams::apply("two").force(), &apply("2")).await.expect("forced");

    // A watch from a revision shows what came after it, and a reflector is filled by a list or by a stream.
    let revision = maps.list(&ListParams::default()).await.expect("a list").metadata.resource_version.expect("one");
    maps.patch("m5", &PatchParams::default(), &Patch::Merge(json!({"data": {"a": "b"}}))).await.expect("patched");
    maps.delete("m5", &DeleteParams::default()).await.expect("deleted");
    let of_m5 = WatchParams::default().fields("metadata.name=m5").timeout(20);
    let mut events = Box::pin(maps.watch(&of_m5, &revision).await.expect("a watch"));
    let mut kinds = Vec::new();
    while let Some(event) = events.try_next().await.expect("an event") {
        kinds.push(match event {
            WatchEvent::Added(_) => "added",
            WatchEvent::Modified(_) => "modified",
            WatchEvent::Deleted(_) => "deleted",
            _ => continue,
        });
        if kinds.len() == 2 {
            break;
        }
    }
    assert_eq!(kinds, ["modified", "deleted"]);
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let (store, writer) = reflector::store();
        let stream = watcher(maps.clone(), config.labels("of=kube-rs")).reflect(writer);
        let watched = stream.try_for_each(|_| std::future::ready(Ok(())));
        tokio::select! {
            ended = watched => panic!("the watch ended: {ended:?}"),
            ready = tokio::time::timeout(LIMIT, store.wait_until_ready()) => {
                ready.expect("in time").expect("the store is written to");
            }
        }
        assert_eq!(store.len(), 6);
    }
    let gone = maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("of=kube-rs")).await;
    gone.expect("deleted");
    assert_eq!(maps.list(&ListParams::default().labels("of=kube-rs")).await.expect("a list").items.len(), 0);
}

async fn discovers(client: &Client) {
    assert!(client.apiserver_version().await.expect("a version").git_version.starts_with("v1.36"));
    let slow = Discovery::new(client.clone()).run().await.expect("discovery");
    let quick = Discovery::new(client.clone()).run_aggregated().await.expect("aggregated discovery");
    let names = |discovery: &Discovery| {
        let mut names: Vec<_> = discovery.groups().map(|group| group.name().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&slow), names(&quick));
    for kind in [("apps", "v1", "Deployment"), ("kubevirt.io", "v1", "VirtualMachine"), ("", "v1", "Pod")] {
        let gvk = GroupVersionKind::gvk(kind.0, kind.1, kind.2);
        let (resource, capabilities) = quick.resolve_gvk(&gvk).expect("it is served");
        assert!(capabilities.supports_operation("watch"), "{kind:?}");
        let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
        objects.list(&ListParams::default()).await.expect("a list");
    }
}

async fn access(client: &Client) {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    until(&accounts, "default", |account: Option<&ServiceAccount>| account.is_some()).await;
    let request: TokenRequest =
        serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 600}})).expect("a request");
    let token = accounts.create_token_request("default", &PostParams::default(), &request).await.expect("a token");
    let token = token.status.and_then(|status| status.token).unwrap_or_default();
    assert_eq!(token.split('.').count(), 3, "a token has a head, claims and a signature");
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.list(&ListParams::default()).await.expect("nodes").items.remove(0).name_any();
    nodes.cordon(&node).await.expect("cordoned");
    assert_eq!(nodes.get(&node).await.expect("a node").spec.and_then(|spec| spec.unschedulable), Some(true));
    nodes.uncordon(&node).await.expect("uncordoned");
}

async fn pods(client: &Client) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let web: Value = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c",
                "image": "localhost/carrack/busybox:0.1.0", "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", "echo hello from kube-rs; mkdir /w; echo here > /w/f; httpd -f -p 8080 -h /w"]}]}}}});
    deployments.patch("web", &PatchParams::apply("user"), &Patch::Apply(&web)).await.expect("applied");
    until(&deployments, "web", |deployment: Option<&Deployment>| {
        deployment.and_then(|d| d.status.as_ref()).is_some_and(|status| status.ready_replicas == Some(1))
    })
    .await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let of_web = ListParams::default().labels("app=web");
    let name = pods.list(&of_web).await.expect("pods").items.remove(0).name_any();

    assert_eq!(pods.logs(&name, &LogParams::default()).await.expect("logs").trim(), "hello from kube-rs");
    let follow = LogParams { follow: true, ..LogParams::default() };
    let mut lines = pods.log_stream(&name, &follow).await.expect("a stream").lines();
    assert_eq!(lines.try_next().await.expect("a line").as_deref(), Some("hello from kube-rs"));

    // Whoever closes stdin hears what came of it, though the runtime may know no WebSocket that can say so.
    let mut said = pods.exec(&name, ["cat"], &AttachParams::default().stdin(true)).await.expect("exec");
    let (mut stdin, mut stdout) = (said.stdin().expect("stdin"), said.stdout().expect("stdout"));
    let status = said.take_status().expect("a status");
    stdin.write_all(b"through stdin").await.expect("written");
    let mut text = [0; b"through stdin".len()];
    stdout.read_exact(&mut text).await.expect("stdout");
    assert_eq!(&text, b"through stdin");
    // This client's stdin ends when it is shut down, and not when it is dropped.
    stdin.shutdown().await.expect("closed");
    assert_eq!(status.await.expect("a status").status.as_deref(), Some("Success"));
    let mut said = pods.exec(&name, ["sh", "-c", "echo said; exit 3"], &AttachParams::default()).await.expect("exec");
    let status = said.take_status().expect("a status");
    let mut text = String::new();
    said.stdout().expect("stdout").read_to_string(&mut text).await.expect("stdout");
    assert_eq!(text, "said\n");
    let status = status.await.expect("a status");
    assert_eq!((status.reason.as_deref(), status.status.as_deref()), (Some("NonZeroExitCode"), Some("Failure")));

    let mut forward = pods.portforward(&name, &[8080]).await.expect("a forward");
    let mut stream = forward.take_stream(8080).expect("a stream");
    stream.write_all(b"GET /f HTTP/1.0\r\n\r\n").await.expect("written");
    let mut page = String::new();
    stream.read_to_string(&mut page).await.expect("a page");
    assert!(page.starts_with("HTTP/1.") && page.trim_end().ends_with("here"), "{page}");

    // Scale, eviction, restart: each replaces or removes what runs.
    let scale = deployments.get_scale("web").await.expect("a scale");
    assert_eq!(scale.spec.and_then(|spec| spec.replicas), Some(1));
    let evicted = pods.get(&name).await.expect("it is there").uid();
    pods.evict(&name, &EvictParams::default()).await.expect("evicted");
    // Its successor may have its name.
    until(&pods, &name, |pod: Option<&Pod>| {
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some() || pod.uid() != evicted)
    })
    .await;
    let before = deployments.get("web").await.expect("it is there").metadata.generation;
    deployments.restart("web").await.expect("restarted");
    assert!(deployments.get("web").await.expect("it is there").metadata.generation > before);
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    deployments.patch_scale("web", &PatchParams::default(), &none).await.expect("scaled");
    let deleted = deployments.delete("web", &DeleteParams::foreground()).await.expect("deleted");
    if let Some(web) = deleted.left() {
        assert!(web.finalizers().iter().any(|name| name == "foregroundDeletion"));
    }
    until(&deployments, "web", |deployment: Option<&Deployment>| deployment.is_none()).await;
    let gone = ObjectReference { name: Some(name), ..ObjectReference::default() };
    assert!(pods.get_opt(gone.name.as_deref().unwrap_or_default()).await.expect("an answer").is_none());
}

#[test]
fn every_verb_of_kube_rs_works_on_it() {
    let sandbox = Sandbox::up(&["busybox"]);
    sandbox.run(async {
        let client = client(&sandbox).await;
        verbs(&client).await;
        discovers(&client).await;
        access(&client).await;
        pods(&client).await;
    });
}
