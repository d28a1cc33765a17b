//! Pods' networks: the CNI plugins that containerd calls (`carrack_networks`), which are this program under other names, and the
//! definition of the kind of further networks.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use carrack_engine::{ApiError, ApiRequest, ContentType, Method, Transport};
use carrack_networks::plugin::{self, Cluster, Environment};
use carrack_networks::record::Pod;
use carrack_networks::{PLUGIN, definition, loopback};
use carrack_noderuntime::FurtherNetworks;
use carrack_types::resource::{Kind as _, Resource};
use serde_json::{Map, Value, json};
use std::sync::Arc;

use crate::output;

/// How often the API server is asked again that gave no answer. The kubelet tries the whole sandbox again later.
const ATTEMPTS: u32 = 3;

/// A plugin that the program can be called as.
#[derive(Clone, Copy)]
pub enum Called {
    /// What makes pods' networks.
    Networks,
    /// What sets a sandbox's own link up.
    Loopback,
}

/// The plugin that the program was called as, if any.
#[must_use]
pub fn called() -> Option<Called> {
    let program = std::env::args_os().next().map(PathBuf::from)?;
    match program.file_name()?.to_str()? {
        PLUGIN => Some(Called::Networks),
        loopback::PLUGIN => Some(Called::Loopback),
        _ => None,
    }
}

/// Does what the runtime asks.
#[must_use]
pub fn run(called: Called) -> ExitCode {
    let part = |name: &str| std::env::var(name).unwrap_or_default();
    let environment = Environment {
        command: part("CNI_COMMAND"),
        container_id: part("CNI_CONTAINERID"),
        netns: part("CNI_NETNS"),
        interface: part("CNI_IFNAME"),
        args: part("CNI_ARGS"),
    };
    let mut input = String::new();
    if let Err(error) = std::io::stdin().read_to_string(&mut input) {
        output::say(format_args!("error: the configuration cannot be read: {error}"));
        return ExitCode::FAILURE;
    }
    let outcome = match called {
        Called::Loopback => loopback::run(&environment, &input),
        Called::Networks => plugin::run(&environment, &input, &|kubeconfig| match Api::connect(kubeconfig) {
            Ok(api) => Ok(Box::new(api)),
            Err(error) => Err(format!("{error:#}")),
        }),
    };
    // Who called it may be gone; what was done is on disk.
    if let Err(error) = output::write_all(format!("{}\n", outcome.stdout).as_bytes()) {
        output::say(format_args!("error: {error:#}"));
    }
    ExitCode::from(outcome.code)
}

/// What the plugin of this node needs: this very program, and the node's credentials.
///
/// # Errors
/// The program does not know where it is.
pub fn further(kubeconfig: PathBuf) -> anyhow::Result<FurtherNetworks> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(FurtherNetworks { program, kubeconfig })
}

/// Sees to it that there are NetworkAttachmentDefinitions. Where somebody else has defined them, they stay as they are.
///
/// # Errors
/// The definition was refused.
pub async fn install(api: &dyn Transport) -> anyhow::Result<()> {
    let body = serde_json::to_vec(&definition::crd()).context("the definition is no JSON")?;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let request = ApiRequest { body: body.into(), ..ApiRequest::new(Method::Post, path) };
    match api.send(request).await {
        Err(error) if !error.is_already_exists() => {
            Err(anyhow::anyhow!("cannot define NetworkAttachmentDefinitions: {error}"))
        }
        _ => Ok(()),
    }
}

/// The API server, for a program that does one thing at a time.
struct Api {
    runtime: tokio::runtime::Runtime,
    transport: Arc<dyn Transport>,
}

impl Api {
    fn connect(kubeconfig: &Path) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let transport = {
            let _entered = runtime.enter();
            super::https(kubeconfig)?
        };
        Ok(Self { runtime, transport })
    }

    /// Sends what may be sent twice.
    fn send(&self, request: &ApiRequest) -> Result<Value, ApiError> {
        let mut attempt = 1;
        loop {
            match self.runtime.block_on(self.transport.send(request.clone())) {
                Ok(response) => return Ok(response.json().unwrap_or_default()),
                Err(error) if error.is_unknown() && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// NetworkAttachmentDefinitions. Which one is read is said by whoever made the pod.
fn definitions() -> Resource {
    Resource {
        group: definition::GROUP.into(),
        version: definition::VERSION.into(),
        plural: definition::PLURAL.into(),
        kind: definition::KIND.into(),
        namespaced: true,
    }
}

impl Cluster for Api {
    fn definition(&self, namespace: &str, name: &str) -> Result<Option<Value>, String> {
        match self.send(&ApiRequest::get(&definitions(), namespace, name)) {
            Ok(definition) => Ok(Some(definition)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn annotate(&self, pod: &Pod, annotations: Map<String, Value>) -> Result<(), String> {
        let mut metadata = json!({ "annotations": annotations });
        if !pod.uid.is_empty() {
            metadata["uid"] = json!(pod.uid);
        }
        let request = ApiRequest {
            content_type: ContentType::MergePatch,
            body: json!({ "metadata": metadata }).to_string().into(),
            ..ApiRequest::new(Method::Patch, status_path(pod))
        };
        self.send(&request).map(drop).map_err(|error| error.to_string())
    }
}

/// Where what a pod's networks came to is written.
fn status_path(pod: &Pod) -> String {
    let pods = k8s_openapi::api::core::v1::Pod::resource();
    format!("{}/status", pods.object_path(&pod.namespace, &pod.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_to_another_object() {
        let group = "/apis/k8s.cni.cncf.io/v1";
        for (name, expected) in [("a", "a"), ("../pods/b", "%2E%2E%2Fpods%2Fb"), ("a?b", "a%3Fb")] {
            let read = ApiRequest::get(&definitions(), "n", name).path;
            assert_eq!(read, format!("{group}/namespaces/n/network-attachment-definitions/{expected}"));
            let pod = Pod { namespace: name.to_owned(), name: name.to_owned(), uid: String::new() };
            assert_eq!(status_path(&pod), format!("/api/v1/namespaces/{expected}/pods/{expected}/status"));
        }
    }
}
