//! From a request's method and path to what it asks for.

use http::{Method, StatusCode};

use super::reply::Refusal;

/// A pod that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodPath {
    pub namespace: String,
    pub name: String,
    /// Given by some clients, to be sure that it is this one.
    pub uid: Option<String>,
}

/// A container that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerPath {
    pub pod: PodPath,
    pub container: String,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Healthz,
    /// Checks of it that are well as long as anybody answers.
    Answers,
    Pods,
    RunningPods,
    Logs(ContainerPath),
    Exec(ContainerPath),
    Attach(ContainerPath),
    Run(ContainerPath),
    PortForward(PodPath),
    StatsSummary,
    Metrics,
    ResourceMetrics,
    CadvisorMetrics,
    ProbeMetrics,
    SliMetrics,
    Configz,
    /// Which program this is.
    Statusz,
    /// What it was told on its command line.
    Flagz,
    /// What follows `/logs`, escaped as it came.
    SystemLogs(String),
}

impl Route {
    /// Whether it is for looking into containers (upstream's `InstallDebuggingDisabledHandlers`).
    pub(super) fn is_for_debugging(&self) -> bool {
        match self {
            Self::RunningPods
            | Self::Logs(_)
            | Self::Exec(_)
            | Self::Attach(_)
            | Self::Run(_)
            | Self::PortForward(_)
            | Self::SystemLogs(_) => true,
            Self::Healthz
            | Self::Answers
            | Self::Pods
            | Self::StatsSummary
            | Self::Metrics
            | Self::ResourceMetrics
            | Self::CadvisorMetrics
            | Self::ProbeMetrics
            | Self::SliMetrics
            | Self::Configz
            | Self::Statusz
            | Self::Flagz => false,
        }
    }

    /// Whether it is not there where nobody may look into containers: upstream's `InstallDebuggingHandlers` alone has it.
    pub(super) fn goes_with_debugging(&self) -> bool {
        matches!(self, Self::Configz | Self::Statusz | Self::Flagz)
    }
}

const READ: &[Method] = &[Method::GET];
const STREAM: &[Method] = &[Method::GET, Method::POST];
const RUN: &[Method] = &[Method::POST];

/// Finds the route: 404 where there is none, 405 where it does not take the method.
pub(super) fn route(method: &Method, path: &str) -> Result<Route, Refusal> {
    let nothing = || Refusal::not_found("404 page not found\n");
    let not_allowed = || Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    if let Some(way) = path.strip_prefix("/logs").filter(|way| way.is_empty() || way.starts_with('/')) {
        return if READ.contains(method) { Ok(Route::SystemLogs(way.to_owned())) } else { Err(not_allowed()) };
    }
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    if segments.iter().any(|segment| segment.is_empty()) || path.contains('%') {
        // Names of pods and containers need no escapes.
        return Err(nothing());
    }
    let (route, methods) = match segments.as_slice() {
        ["healthz"] | ["healthz", "syncloop"] => (Route::Healthz, READ),
        ["healthz", "ping" | "log"] => (Route::Answers, READ),
        ["pods"] => (Route::Pods, READ),
        ["runningpods"] => (Route::RunningPods, READ),
        ["stats", "summary"] => (Route::StatsSummary, READ),
        ["metrics"] => (Route::Metrics, READ),
        ["metrics", "resource"] => (Route::ResourceMetrics, READ),
        ["metrics", "cadvisor"] => (Route::CadvisorMetrics, READ),
        ["metrics", "probes"] => (Route::ProbeMetrics, READ),
        ["metrics", "slis"] => (Route::SliMetrics, READ),
        ["configz"] => (Route::Configz, READ),
        ["statusz"] => (Route::Statusz, READ),
        ["flagz"] => (Route::Flagz, READ),
        ["containerLogs", rest @ ..] => (Route::Logs(container(rest).ok_or_else(nothing)?), READ),
        ["exec", rest @ ..] => (Route::Exec(container(rest).ok_or_else(nothing)?), STREAM),
        ["attach", rest @ ..] => (Route::Attach(container(rest).ok_or_else(nothing)?), STREAM),
        ["run", rest @ ..] => (Route::Run(container(rest).ok_or_else(nothing)?), RUN),
        ["portForward", namespace, name] => (Route::PortForward(pod(namespace, name, None)), STREAM),
        ["portForward", namespace, name, uid] => (Route::PortForward(pod(namespace, name, Some(uid))), STREAM),
        _ => return Err(nothing()),
    };
    if !methods.contains(method) {
        return Err(not_allowed());
    }
    Ok(route)
}

fn pod(namespace: &str, name: &str, uid: Option<&str>) -> PodPath {
    PodPath { namespace: namespace.into(), name: name.into(), uid: uid.map(Into::into) }
}

fn container(rest: &[&str]) -> Option<ContainerPath> {
    let (pod, container) = match rest {
        [namespace, name, container] => (pod(namespace, name, None), container),
        [namespace, name, uid, container] => (pod(namespace, name, Some(uid)), container),
        _ => return None,
    };
    Some(ContainerPath { pod, container: (*container).into() })
}

/// The first part of a path as metrics and refusals name it; unknown ones are one.
pub(super) fn bucket(path: &str) -> &'static str {
    const NAMES: [&str; 13] = [
        "healthz",
        "pods",
        "runningpods",
        "containerLogs",
        "exec",
        "attach",
        "run",
        "portForward",
        "stats",
        "configz",
        "statusz",
        "flagz",
        "logs",
    ];
    const PAGES: [&str; 5] = ["metrics", "metrics/resource", "metrics/cadvisor", "metrics/probes", "metrics/slis"];
    let path = path.trim_matches('/');
    if let Some(page) = PAGES.into_iter().find(|page| *page == path) {
        return page;
    }
    let first = path.split('/').next().unwrap_or_default();
    NAMES.into_iter().find(|name| *name == first).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes() {
        let p = || pod("ns", "p", None);
        let c = || ContainerPath { pod: p(), container: "c".into() };
        let with_uid = || ContainerPath { pod: pod("ns", "p", Some("u")), container: "c".into() };
        for (method, path, expected) in [
            (Method::GET, "/healthz", Ok(Route::Healthz)),
            (Method::GET, "/healthz/syncloop", Ok(Route::Healthz)),
            (Method::GET, "/healthz/ping", Ok(Route::Answers)),
            (Method::GET, "/healthz/log", Ok(Route::Answers)),
            (Method::GET, "/pods", Ok(Route::Pods)),
            (Method::GET, "/pods/", Ok(Route::Pods)),
            (Method::GET, "/runningpods/", Ok(Route::RunningPods)),
            (Method::GET, "/containerLogs/ns/p/c", Ok(Route::Logs(c()))),
            (Method::POST, "/exec/ns/p/c", Ok(Route::Exec(c()))),
            (Method::GET, "/exec/ns/p/u/c", Ok(Route::Exec(with_uid()))),
            (Method::POST, "/attach/ns/p/c", Ok(Route::Attach(c()))),
            (Method::POST, "/run/ns/p/c", Ok(Route::Run(c()))),
            (Method::POST, "/portForward/ns/p", Ok(Route::PortForward(p()))),
            (Method::GET, "/portForward/ns/p/u", Ok(Route::PortForward(pod("ns", "p", Some("u"))))),
            (Method::GET, "/stats/summary", Ok(Route::StatsSummary)),
            (Method::GET, "/metrics", Ok(Route::Metrics)),
            (Method::GET, "/metrics/resource", Ok(Route::ResourceMetrics)),
            (Method::GET, "/metrics/cadvisor", Ok(Route::CadvisorMetrics)),
            (Method::GET, "/metrics/probes", Ok(Route::ProbeMetrics)),
            (Method::GET, "/metrics/slis", Ok(Route::SliMetrics)),
            (Method::GET, "/configz", Ok(Route::Configz)),
            (Method::GET, "/statusz", Ok(Route::Statusz)),
            (Method::GET, "/flagz", Ok(Route::Flagz)),
            (Method::POST, "/flagz", Err(405)),
            (Method::GET, "/", Err(404)),
            (Method::GET, "/logs", Ok(Route::SystemLogs(String::new()))),
            (Method::GET, "/logs/a%20b//c/", Ok(Route::SystemLogs("/a%20b//c/".into()))),
            (Method::POST, "/logs/", Err(405)),
            (Method::GET, "/logsearch", Err(404)),
            (Method::GET, "/containerLogs/ns/p", Err(404)),
            (Method::GET, "/containerLogs/ns//c", Err(404)),
            (Method::GET, "/containerLogs/ns/p/..%2fc", Err(404)),
            (Method::POST, "/containerLogs/ns/p/c", Err(405)),
            (Method::POST, "/pods", Err(405)),
            (Method::GET, "/run/ns/p/c", Err(405)),
            (Method::DELETE, "/exec/ns/p/c", Err(405)),
        ] {
            let found = route(&method, path).map_err(|refusal| refusal.code.as_u16());
            assert_eq!(found, expected, "{method} {path}");
        }
    }

    #[test]
    fn buckets_are_few() {
        for (path, expected) in [
            ("/exec/a/b/c", "exec"),
            ("/metrics/resource", "metrics/resource"),
            ("/metrics", "metrics"),
            ("/stats/summary", "stats"),
            ("/statusz", "statusz"),
            ("/logs/messages", "logs"),
            ("/anything/else", "other"),
            ("/", "other"),
        ] {
            assert_eq!(bucket(path), expected, "{path}");
        }
    }
}
