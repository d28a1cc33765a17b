//! `/healthz`, `/livez` and `/readyz`: named checks, one by one or all together.
//!
//! Texts, names and parameters are upstream's (`k8s.io/apiserver/pkg/server/healthz`), except that a failed
//! check says why: nobody but the operator may read more than whether all is well.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::body::{Response, text};
use crate::query::Query;
use crate::server::ApiServer;
use crate::status::Status;

/// The ends of the way of a server.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    /// The bootstrap objects are there.
    pub bootstrapped: AtomicBool,
    /// The process is going to end.
    pub ending: AtomicBool,
}

/// A check's name, and why it fails.
type Check = (&'static str, Option<String>);

fn checks(server: &ApiServer, endpoint: &str) -> Vec<Check> {
    let phase = &server.inner.phase;
    let fault = server.inner.store.fault().map(|error| error.to_string());
    // Clients ask for the store by the name that it has upstream, whichever it is.
    let mut checks = vec![("ping", None), ("log", None), ("etcd", fault)];
    // A server that has not got so far, or is about to end, is alive.
    if endpoint == "readyz" {
        let waits = !phase.bootstrapped.load(Ordering::Acquire);
        checks.push(("poststarthook/rbac/bootstrap-roles", waits.then(|| "not finished".to_owned())));
        let ending = phase.ending.load(Ordering::Acquire);
        checks.push(("shutdown", ending.then(|| "process is shutting down".to_owned())));
    }
    checks
}

/// All checks of all endpoints, and whether they fail.
pub(crate) fn told(server: &ApiServer) -> Vec<(&'static str, &'static str, bool)> {
    let of = |endpoint: &'static str| {
        checks(server, endpoint).into_iter().map(move |(name, failure)| (name, endpoint, failure.is_some()))
    };
    ["healthz", "livez", "readyz"].into_iter().flat_map(of).collect()
}

/// Answers `/<endpoint><rest>`, where the rest is empty or names a check.
pub(crate) fn answer(server: &ApiServer, endpoint: &str, rest: &str, query: &Query) -> Result<Response, Status> {
    let checks = checks(server, endpoint);
    if let Some(name) = rest.strip_prefix('/') {
        let (_, failure) = checks.iter().find(|(known, _)| *known == name).ok_or_else(Status::no_such_path)?;
        return Ok(match failure {
            None => text(200, "ok"),
            Some(why) => text(500, format!("internal server error: {why}\n")),
        });
    }
    if !rest.is_empty() {
        return Err(Status::no_such_path());
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut out = String::new();
    let mut failed = Vec::new();
    for (name, failure) in &checks {
        let line = match failure {
            _ if excluded.contains(name) => format!("[+]{name} excluded: ok\n"),
            None => format!("[+]{name} ok\n"),
            Some(why) => {
                failed.push(*name);
                format!("[-]{name} failed: {why}\n")
            }
        };
        out.push_str(&line);
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|wanted| !checks.iter().any(|(name, _)| name == *wanted))
        .map(|wanted| format!("{wanted:?}"))
        .collect();
    if !unknown.is_empty() {
        out.push_str(&format!("warn: some health checks cannot be excluded: no matches for {}\n", unknown.join(",")));
    }
    if failed.is_empty() {
        return Ok(if query.flag("verbose") {
            text(200, format!("{out}{endpoint} check passed\n"))
        } else {
            text(200, "ok")
        });
    }
    tracing::debug!(endpoint, failed = failed.join(","), "a health check fails");
    Ok(text(500, format!("{out}{endpoint} check failed\n")))
}
