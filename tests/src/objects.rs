//! Objects as the API server tells them, asked for without kubectl: who waits asks ten times a second, and starting a program
//! each time costs the machine more than most of what is waited for.
//!
//! Which path a kind has is read from discovery once, and again for a kind that was not there then.

use http::header::ACCEPT;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Error};
use serde_json::Value;

use crate::Sandbox;

/// Discovery in one document: <https://kubernetes.io/docs/concepts/overview/kubernetes-api/#aggregated-discovery>.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A kind that is served, in the version that is preferred.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Plural, singular and short, as kubectl takes them.
    names: Vec<String>,
    /// Of its group and version.
    root: String,
    namespaced: bool,
}

impl Kind {
    /// The path of one, of the namespace `default` if they have any.
    fn path(&self, name: &str) -> String {
        let Self { names, root, namespaced } = self;
        let space = if *namespaced { "namespaces/default/" } else { "" };
        format!("{root}/{space}{}/{name}", names[0])
    }
}

/// An object; none where it does not exist.
///
/// # Panics
/// No such kind is served, or the server's answer is another.
pub(crate) fn get(sandbox: &Sandbox, kind: &str, name: &str) -> Option<Value> {
    let mut kinds = sandbox.kinds.lock().expect("nobody panics while holding it");
    let found = |kinds: &[Kind]| kinds.iter().find(|k| k.names.iter().any(|n| n == kind)).map(|k| k.path(name));
    if found(&kinds).is_none() {
        *kinds = sandbox.run(async { discover(&client(sandbox).await).await });
    }
    let path = found(&kinds);
    drop(kinds);
    let path = path.unwrap_or_else(|| panic!("no kind {kind} is served"));
    match sandbox.run(async { ask(&client(sandbox).await, &path).await }) {
        Ok(object) => Some(object),
        Err(Error::Api(status)) if status.code == 404 => None,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// As the cluster's administrator.
async fn client(sandbox: &Sandbox) -> Client {
    let file = Kubeconfig::read_from(sandbox.data_dir().join("kubeconfig.yaml")).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a config");
    Client::try_from(config).expect("a client")
}

async fn ask(client: &Client, path: &str) -> Result<Value, Error> {
    let accept = if path.matches('/').count() == 1 { AGGREGATED } else { "application/json" };
    let request = http::Request::get(path).header(ACCEPT, accept).body(Vec::new()).expect("a request");
    client.request(request).await
}

async fn discover(client: &Client) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for root in ["/api", "/apis"] {
        let groups = ask(client, root).await.unwrap_or_else(|error| panic!("{root}: {error}"));
        for group in list(&groups["items"]) {
            let [version, ..] = list(&group["versions"]) else { continue };
            let words = [root, group["metadata"]["name"].as_str().unwrap_or_default(), text(&version["version"])];
            let of_version = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("/");
            for resource in list(&version["resources"]) {
                let names = [&resource["resource"], &resource["singularResource"]];
                let names = names.into_iter().chain(list(&resource["shortNames"])).map(|name| text(name).to_owned());
                let namespaced = resource["scope"] == "Namespaced";
                kinds.push(Kind { names: names.collect(), root: of_version.clone(), namespaced });
            }
        }
    }
    kinds
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
