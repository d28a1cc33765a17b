//! What the tests of the server stand on: pods and runs made by hand, and a node made of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use carrack_auth::Caller;
use k8s_openapi::api::core::v1::Pod;

use super::authority::Authority;
use super::backend::{Answer, Backend, ExecOutput, Streams};
use super::stats::Summary;
use crate::effects::OpError;
use crate::runtime::{ContainerRecord, ContainerState, PodRef, RuntimeSnapshot};

/// A pod from JSON.
pub(super) fn pod_of(value: serde_json::Value) -> Arc<Pod> {
    Arc::new(carrack_types::json::from_value(value).expect("a pod"))
}

/// A run of a container of pod `ns/p` with UID `uid`.
pub(super) fn record(id: &str, name: &str, attempt: u32, state: ContainerState) -> ContainerRecord {
    ContainerRecord {
        id: id.into(),
        sandbox_id: "sandbox".into(),
        pod: PodRef { namespace: "ns".into(), name: "p".into(), uid: "uid".into() },
        name: name.into(),
        attempt,
        state,
        created_at: carrack_engine::Time::from_unix_s(i64::from(attempt)),
        started_at: None,
        image: String::new(),
        image_ref: String::new(),
        hash: String::new(),
        round: 0,
        size: Default::default(),
        user: None,
    }
}

/// A node made by hand.
#[derive(Default)]
pub(super) struct FakeNode {
    pub pods: Mutex<Vec<Arc<Pod>>>,
    /// By pod UID; a pod without an entry cannot be listed.
    pub runtime: Mutex<BTreeMap<String, RuntimeSnapshot>>,
    /// The streaming URL to give.
    pub url: Mutex<String>,
    /// What was asked of the runtime.
    pub asked: Mutex<Vec<String>>,
    pub sick: Mutex<Option<String>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeNode {
    fn ask(&self, what: String) -> Answer<'_, String> {
        lock(&self.asked).push(what);
        let url = lock(&self.url).clone();
        Box::pin(async move { if url.is_empty() { Err(OpError::Failed("no streaming".into())) } else { Ok(url) } })
    }
}

impl Backend for FakeNode {
    fn pods(&self) -> Vec<Arc<Pod>> {
        lock(&self.pods).clone()
    }

    fn runtime_of<'a>(&'a self, pod_uid: &'a str) -> Answer<'a, RuntimeSnapshot> {
        let found = lock(&self.runtime).get(pod_uid).cloned();
        Box::pin(async move { found.ok_or_else(|| OpError::Failed("the runtime does not answer".into())) })
    }

    fn runtime(&self) -> Answer<'_, RuntimeSnapshot> {
        let mut all = RuntimeSnapshot::default();
        for of_pod in lock(&self.runtime).values() {
            all.sandboxes.extend(of_pod.sandboxes.iter().cloned());
            all.containers.extend(of_pod.containers.iter().cloned());
        }
        Box::pin(async { Ok(all) })
    }

    fn exec_url<'a>(&'a self, container_id: &'a str, command: Vec<String>, streams: Streams) -> Answer<'a, String> {
        self.ask(format!("exec {container_id} {command:?} {streams:?}"))
    }

    fn attach_url<'a>(&'a self, container_id: &'a str, streams: Streams) -> Answer<'a, String> {
        self.ask(format!("attach {container_id} {streams:?}"))
    }

    fn port_forward_url<'a>(&'a self, sandbox_id: &'a str, ports: Vec<i32>) -> Answer<'a, String> {
        self.ask(format!("port-forward {sandbox_id} {ports:?}"))
    }

    fn exec_sync<'a>(&'a self, container_id: &'a str, command: Vec<String>, _timeout_s: i64) -> Answer<'a, ExecOutput> {
        let output = format!("{container_id} {command:?}").into_bytes();
        let code = i32::from(command.first().is_some_and(|program| program == "false"));
        Box::pin(async move { Ok(ExecOutput { code, output }) })
    }

    fn stats(&self) -> Answer<'_, Summary> {
        Box::pin(async { Ok(Summary::default()) })
    }

    fn health(&self) -> Result<(), String> {
        lock(&self.sick).clone().map_or(Ok(()), Err)
    }
}

/// Knows who has a token, and lets a user do what its name says: `get:pods` may get `nodes/pods`. Of `lost` nothing can be known.
#[derive(Debug)]
pub(super) struct Reviewer;

impl Authority for Reviewer {
    fn identify<'a>(&'a self, token: &'a str) -> Answer<'a, Option<Caller>> {
        Box::pin(async move {
            match token.split_once('=') {
                Some(("token", "lost")) => Err(OpError::Failed("no API server".into())),
                Some(("token", user)) => Ok(Some(Caller::new(user, [""; 0]))),
                _ => Ok(None),
            }
        })
    }

    fn may<'a>(&'a self, caller: &'a Caller, verb: &'static str, subresource: &'static str) -> Answer<'a, bool> {
        Box::pin(async move {
            match caller.user.as_str() {
                "unsure" => Err(OpError::Failed("no API server".into())),
                user => Ok(user == format!("{verb}:{subresource}")),
            }
        })
    }
}
