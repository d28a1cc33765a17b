//! Which pod, container and sandbox a request means: a function of the kubelet's pods and of what
//! the runtime holds.
//!
//! The runtime is asked, not the status, which the API may show late; the status only gives words
//! for a container that has not run yet. The texts are upstream's: people and tools know them.

use std::borrow::Cow;
use std::sync::Arc;

use http::StatusCode;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};

use super::reply::Refusal;
use super::route::PodPath;
use crate::runtime::{ContainerRecord, ContainerState, RuntimeSnapshot, SandboxRecord};
use crate::status::pod::statuses;

/// The pod under a name: of several (one may still be going away) the newest that stays.
pub(super) fn pod(pods: &[Arc<Pod>], path: &PodPath) -> Result<Arc<Pod>, Refusal> {
    let meta = |pod: &Arc<Pod>| pod.metadata.clone();
    pods.iter()
        .filter(|pod| {
            let meta = &pod.metadata;
            meta.namespace.as_deref().unwrap_or_default() == path.namespace
                && meta.name.as_deref().unwrap_or_default() == path.name
                && path.uid.as_ref().is_none_or(|uid| meta.uid.as_ref() == Some(uid))
        })
        .max_by_key(|pod| (pod.metadata.deletion_timestamp.is_none(), meta(pod).creation_timestamp))
        .cloned()
        .ok_or_else(|| Refusal::not_found(format!("pod {:?} does not exist", path.name)))
}

/// A pod's UID.
pub(super) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The container of this name in a pod's spec.
pub(super) fn declared<'a>(pod: &'a Pod, container: &str) -> Result<Cow<'a, Container>, Refusal> {
    let found = crate::spec::pod::container(pod, container).map(|(_, found)| found);
    found.ok_or_else(|| Refusal::not_found(format!("container {container:?} not found in pod {:?}", name(pod))))
}

fn status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    statuses(pod.status.as_ref()?).find(|status| status.name == container)
}

/// The run of a container whose log is meant.
pub(super) fn logged<'a>(
    pod: &Pod,
    runtime: &'a RuntimeSnapshot,
    container: &str,
    previous: bool,
) -> Result<&'a ContainerRecord, Refusal> {
    let status = status(pod, container);
    let waiting = status.and_then(|status| status.state.as_ref()?.waiting.as_ref());
    let mut runs: Vec<_> = runtime
        .containers
        .iter()
        .filter(|record| record.name == container && record.state != ContainerState::Created)
        .collect();
    runs.sort_by_key(|record| (record.attempt, record.created_at));
    let newest = runs.pop();
    if previous {
        // While a container waits for its restart, the run that is over is already the previous one.
        let over = newest.filter(|run| matches!(run.state, ContainerState::Exited { .. }) && waiting.is_some());
        return over.or(runs.pop()).ok_or_else(|| {
            Refusal::bad(format!("previous terminated container {container:?} in pod {:?} not found", name(pod)))
        });
    }
    newest.ok_or_else(|| {
        let terminated = status.is_some_and(|status| {
            let ended = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
                state.as_ref().is_some_and(|state| state.terminated.is_some())
            };
            ended(&status.state) || ended(&status.last_state)
        });
        if terminated {
            // It ran, and the runtime holds nothing of it any more.
            return Refusal::bad(format!("container {container:?} in pod {:?} is terminated", name(pod)));
        }
        let why = match waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or("ContainerCreating") {
            "ErrImagePull" => "image can't be pulled",
            "ImagePullBackOff" => "trying and failing to pull image",
            reason => reason,
        };
        Refusal::bad(format!("container {container:?} in pod {:?} is waiting to start: {why}", name(pod)))
    })
}

/// Where a run's log is: upstream's layout, which the kubelet gives the runtime when it makes containers.
pub(super) fn log_path(log_dir: &std::path::Path, run: &ContainerRecord) -> std::path::PathBuf {
    log_dir.join(run.pod.log_dir_name()).join(&run.name).join(format!("{}.log", run.attempt))
}

/// The running run of a container.
pub(super) fn running<'a>(runtime: &'a RuntimeSnapshot, container: &str) -> Result<&'a ContainerRecord, Refusal> {
    runtime
        .containers
        .iter()
        .filter(|record| record.name == container && record.may_run())
        .max_by_key(|record| (record.attempt, record.created_at))
        .ok_or_else(|| Refusal::not_found(format!("container not found ({container:?})")))
}

/// The pod's running sandbox.
pub(super) fn sandbox<'a>(pod: &Pod, runtime: &'a RuntimeSnapshot) -> Result<&'a SandboxRecord, Refusal> {
    runtime
        .sandboxes
        .iter()
        .filter(|sandbox| sandbox.ready)
        .max_by_key(|sandbox| (sandbox.attempt, sandbox.created_at))
        .ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, format!("pod {:?} has no running sandbox", name(pod))))
}

/// Whether a run may still write to its log: not when it is over, nor when the runtime has forgotten it.
pub(super) fn may_write(runtime: &RuntimeSnapshot, container_id: &str) -> bool {
    runtime
        .containers
        .iter()
        .any(|record| record.id == container_id && !matches!(record.state, ContainerState::Exited { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::fixture::{pod_of, record};
    use serde_json::json;

    fn path(name: &str, uid: Option<&str>) -> PodPath {
        PodPath { namespace: "ns".into(), name: name.into(), uid: uid.map(Into::into) }
    }

    #[test]
    fn pods_by_name() {
        let of = |uid: &str, created: &str, going: bool| {
            let mut meta = json!({"name": "p", "namespace": "ns", "uid": uid, "creationTimestamp": created});
            if going {
                meta["deletionTimestamp"] = "2026-01-09T00:00:00Z".into();
            }
            pod_of(json!({"metadata": meta}))
        };
        let pods = [
            of("old", "2026-01-01T00:00:00Z", false),
            of("new", "2026-01-02T00:00:00Z", false),
            of("going", "2026-01-03T00:00:00Z", true),
        ];
        for (name, wanted, expected) in [
            ("p", None, Some("new")),
            ("p", Some("going"), Some("going")),
            ("p", Some("other"), None),
            ("q", None, None),
        ] {
            let found = pod(&pods, &path(name, wanted));
            assert_eq!(found.as_ref().ok().map(|p| uid(p)), expected, "{name} {wanted:?}");
        }
        let refusal = pod(&pods, &path("q", None)).expect_err("none");
        assert_eq!((refusal.code.as_u16(), refusal.text.as_str()), (404, "pod \"q\" does not exist"));
    }

    #[test]
    fn containers_of_all_kinds_are_declared() {
        let pod = pod_of(json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "c"}], "initContainers": [{"name": "i"}], "ephemeralContainers": [{"name": "e"}]}}));
        for (name, expected) in [("c", true), ("i", true), ("e", true), ("x", false)] {
            assert_eq!(declared(&pod, name).is_ok(), expected, "{name}");
        }
        assert_eq!(declared(&pod, "x").expect_err("none").text, "container \"x\" not found in pod \"p\"");
    }

    #[test]
    fn which_run_is_logged() {
        use crate::runtime::ContainerState as S;
        let exited =
            || S::Exited { code: 1, reason: "Error".into(), message: String::new(), finished_at: Default::default() };
        let waiting = |reason: &str| json!({"name": "c", "state": {"waiting": {"reason": reason}}});
        let running = || json!({"name": "c", "state": {"running": {}}});
        let none = serde_json::Value::Null;
        let over = json!({"name": "c", "state": {"terminated": {"exitCode": 0}}});
        let ok = |id: &str| Ok(id.to_owned());
        let no = |text: &str| Err(text.to_owned());
        for (what, runs, status, current, previous) in [
            (
                "nothing yet",
                vec![],
                none.clone(),
                no("container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
                no("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (
                "made",
                vec![("0", 0, S::Created)],
                waiting("PodInitializing"),
                no("container \"c\" in pod \"p\" is waiting to start: PodInitializing"),
                no("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (
                "no image",
                vec![],
                waiting("ImagePullBackOff"),
                no("container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image"),
                no("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (
                "forgotten",
                vec![],
                over,
                no("container \"c\" in pod \"p\" is terminated"),
                no("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (
                "runs",
                vec![("0", 0, S::Running)],
                running(),
                ok("0"),
                no("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            ("runs again", vec![("1", 1, S::Running), ("0", 0, exited())], running(), ok("1"), ok("0")),
            ("crash loop", vec![("0", 0, exited()), ("1", 1, exited())], waiting("CrashLoopBackOff"), ok("1"), ok("1")),
            ("crashed, status late", vec![("0", 0, exited()), ("1", 1, exited())], running(), ok("1"), ok("0")),
            (
                "restart made, not started",
                vec![("0", 0, exited()), ("1", 1, S::Created)],
                waiting("CrashLoopBackOff"),
                ok("0"),
                ok("0"),
            ),
            (
                "unknown",
                vec![("0", 0, S::Unknown)],
                running(),
                ok("0"),
                no("previous terminated container \"c\" in pod \"p\" not found"),
            ),
        ] {
            let mut pod = json!({"metadata": {"name": "p"}, "status": {}});
            if !status.is_null() {
                pod["status"]["containerStatuses"] = json!([status]);
            }
            let pod = pod_of(pod);
            let containers = runs.into_iter().map(|(id, attempt, state)| record(id, "c", attempt, state)).collect();
            let runtime = RuntimeSnapshot { containers, ..RuntimeSnapshot::default() };
            let find = |previous| logged(&pod, &runtime, "c", previous).map(|r| r.id.clone()).map_err(|r| r.text);
            assert_eq!(find(false), current, "{what}");
            assert_eq!(find(true), previous, "{what}, previous");
        }
    }

    #[test]
    fn log_paths() {
        let run = record("id", "c", 3, crate::runtime::ContainerState::Running);
        assert_eq!(log_path("/var/log/pods".as_ref(), &run), std::path::Path::new("/var/log/pods/ns_p_uid/c/3.log"));
    }

    #[test]
    fn only_what_is_over_writes_no_more() {
        use crate::runtime::ContainerState as S;
        let exited =
            S::Exited { code: 0, reason: String::new(), message: String::new(), finished_at: Default::default() };
        for (state, expected) in [(S::Created, true), (S::Running, true), (S::Unknown, true), (exited, false)] {
            let containers = vec![record("a", "c", 0, state.clone())];
            let runtime = RuntimeSnapshot { containers, ..RuntimeSnapshot::default() };
            assert_eq!(may_write(&runtime, "a"), expected, "{state:?}");
            assert!(!may_write(&runtime, "b"));
        }
    }
}
