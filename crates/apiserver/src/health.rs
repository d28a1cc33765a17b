//! `/healthz`, `/livez` and `/readyz`: named checks, one by one or all together.
//!
//! Texts, names and parameters are upstream's (`k8s.io/apiserver/pkg/server/healthz`), except that a failed
//! check says why: nobody but the operator may read more than whether all is well. Other roles have the same pages with
//! checks of their own: [`page`] and [`report`].

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;

use crate::body::{Response, text};
use crate::metrics::Told;
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

/// The pages.
const ENDPOINTS: [&str; 3] = ["healthz", "livez", "readyz"];

/// What checks of the store are called: clients ask for it by the names that it has upstream, whichever store it is.
const STORE: [&str; 2] = ["etcd", "etcd-readiness"];

/// A check's name, and why it fails.
pub type Check<W = String> = (&'static str, Option<W>);

/// Why the store is of no use, if it is not: it says so, or it does not answer.
async fn fault(server: &ApiServer) -> Option<String> {
    server.inner.store.health().await.err().map(|error| error.to_string())
}

fn checks(server: &ApiServer, endpoint: &str, fault: Option<&str>) -> Vec<Check> {
    let phase = &server.inner.phase;
    let [lives, serves] = STORE.map(|name| (name, fault.map(str::to_owned)));
    let mut checks = vec![("ping", None), ("log", None), lives];
    // A server that has not got so far, or is about to end, is alive.
    if endpoint == "readyz" {
        checks.push(serves);
        let waits = !phase.bootstrapped.load(Ordering::Acquire);
        checks.push(("poststarthook/rbac/bootstrap-roles", waits.then(|| "not finished".to_owned())));
        let ending = phase.ending.load(Ordering::Acquire);
        checks.push(("shutdown", ending.then(|| "process is shutting down".to_owned())));
    }
    checks
}

/// All checks of all endpoints, and whether they fail.
pub(crate) async fn told(server: &ApiServer) -> Vec<Told> {
    let fault = fault(server).await;
    let of = |endpoint: &'static str| {
        checks(server, endpoint, fault.as_deref())
            .into_iter()
            .map(move |(name, failure)| (name, endpoint, failure.is_some()))
    };
    ENDPOINTS.into_iter().flat_map(of).collect()
}

/// Answers for a page of this server.
pub(crate) async fn answer(
    server: &ApiServer,
    endpoint: &'static str,
    rest: &str,
    query: &Query,
) -> Result<Response, Status> {
    // Who asks for another check alone does not wait for a store that hangs.
    let is_asked = rest.strip_prefix('/').is_none_or(|name| STORE.contains(&name));
    let fault = if is_asked { fault(server).await } else { None };
    let checks = checks(server, endpoint, fault.as_deref());
    let (code, said) = report(&checks, endpoint, rest, query).ok_or_else(Status::no_such_path)?;
    let is_left_out = |name: &str| query.all("exclude").any(|excluded| excluded == name);
    for (name, failure) in &checks {
        if rest.strip_prefix('/').map_or_else(|| !is_left_out(name), |wanted| wanted == *name) {
            server.inner.metrics.health.checked(name, endpoint, failure.is_some());
        }
    }
    Ok(text(code.as_u16(), said))
}

/// Which page a path is, and what of it is asked for: nothing more, or `/` and the name of a check. None for the path
/// of something else.
pub fn page(path: &str) -> Option<(&'static str, &str)> {
    let path = path.trim_end_matches('/').strip_prefix('/')?;
    let found = ENDPOINTS.into_iter().find_map(|endpoint| Some((endpoint, path.strip_prefix(endpoint)?)));
    found.filter(|(_, rest)| rest.is_empty() || rest.starts_with('/'))
}

/// What a [`page`] says by these checks; none where it is about a check that there is not.
pub fn report<W: Display>(
    checks: &[Check<W>],
    endpoint: &str,
    rest: &str,
    query: &Query,
) -> Option<(StatusCode, String)> {
    if let Some(name) = rest.strip_prefix('/') {
        let (_, failure) = checks.iter().find(|(known, _)| *known == name)?;
        return Some(match failure {
            None => (StatusCode::OK, "ok".to_owned()),
            Some(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
        });
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut out = String::new();
    let mut failed = Vec::new();
    for (name, failure) in checks {
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
    if !failed.is_empty() {
        tracing::debug!(endpoint, failed = failed.join(","), "a health check fails");
        return Some((StatusCode::INTERNAL_SERVER_ERROR, format!("{out}{endpoint} check failed\n")));
    }
    let said = if query.flag("verbose") { format!("{out}{endpoint} check passed\n") } else { "ok".to_owned() };
    Some((StatusCode::OK, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: [Check<&str>; 2] = [("ping", None), ("core", None)];
    const ENDED: [Check<&str>; 2] = [("ping", None), ("core", Some("it has ended"))];

    #[test]
    fn checks_are_told_alone_and_together() {
        let passed = "[+]ping ok\n[+]core ok\nreadyz check passed\n";
        let failed = "[+]ping ok\n[-]core failed: it has ended\nhealthz check failed\n";
        let without = "[+]ping ok\n[+]core excluded: ok\nlivez check passed\n";
        let warned = "[+]ping ok\n[+]core ok\n\
                      warn: some health checks cannot be excluded: no matches for \"etcd\"\nlivez check passed\n";
        for (path, query, checks, want) in [
            ("/healthz", "", WELL, Some((200, "ok"))),
            ("/livez/", "", WELL, Some((200, "ok"))),
            ("/readyz", "verbose", WELL, Some((200, passed))),
            ("/readyz", "verbose=false", WELL, Some((200, "ok"))),
            ("/healthz", "", ENDED, Some((500, failed))),
            ("/livez", "exclude=core", ENDED, Some((200, "ok"))),
            ("/livez", "exclude=core&verbose=1", ENDED, Some((200, without))),
            ("/livez", "exclude=etcd&verbose=1", WELL, Some((200, warned))),
            ("/readyz/core", "", WELL, Some((200, "ok"))),
            ("/readyz/core", "", ENDED, Some((500, "internal server error: it has ended\n"))),
            ("/readyz/ping", "", ENDED, Some((200, "ok"))),
            ("/readyz/etcd", "", WELL, None),
            ("/readyz//core", "", WELL, None),
        ] {
            let (endpoint, rest) = page(path).expect("a page of health");
            let told = report(&checks, endpoint, rest, &Query::parse(query));
            let told = told.as_ref().map(|(code, said)| (code.as_u16(), said.as_str()));
            assert_eq!(told, want, "{path}?{query}");
        }
    }

    #[test]
    fn other_pages_are_none_of_health() {
        for path in ["/metrics", "/", "", "/healthzy", "/x/healthz", "//healthz", "healthz"] {
            assert_eq!(page(path), None, "{path}");
        }
    }
}
