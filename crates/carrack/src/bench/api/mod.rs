#![expect(clippy::disallowed_methods, reason = "shell: it measures time")]
//! `carrack bench api`: drives an API server, ours or any other, as clients do.
//!
//! ```text
//!   create pods ─► get ─► update ─► patch ─► list all, list by label ─► patch under watch ─► the same at other rates ─► delete
//! ```
//!
//! One connection a client, HTTP/1.1 over TLS, JSON, one request in flight on each: what upstream's own
//! components look like to the server, with as little as can be on the client's side.

mod fanout;
mod figures;
mod load;
mod plot;
mod pods;
mod server;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use self::fanout::Watchers;
use self::figures::{Figure, Report};
use self::load::{Clients, Request, excerpt};
use self::server::Server;
use crate::cli::bench::ApiArgs;
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::roles;
use crate::wire::Endpoint;

const NAMESPACE: &str = "carrack-bench";
/// Changes under watch and what is told of them: as many as can be.
const FAN_OUT: [&str; 2] = ["patch under watch", "watch events"];
/// So many events a second are to be told soon.
const EVENTS_PER_S: f64 = 300_000.0;
/// The same at half of what can be, and at that rate where that can be.
const PACED: [[&str; 2]; 2] =
    [["patch at half rate", "events at half rate"], ["patch at that rate", "300,000 events/s"]];
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
/// How long the server is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(2);

/// Measures and prints.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub async fn run(args: &ApiArgs, format: Option<Format>) -> anyhow::Result<()> {
    let report = drive(args).await?;
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::svg(&report)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    output::print(format, &report, || report.text())
}

async fn drive(args: &ApiArgs) -> anyhow::Result<Report> {
    let stop = roles::until_signal()?;
    let mut progress = Progress::new();
    progress.step("reaching the server");
    let server = match &args.kubeconfig {
        Some(path) => Server::given(path, &args.pid)?,
        None => Server::start(args.port, &args.store).await?,
    };
    tokio::time::sleep(SETTLE).await;
    let mut report = Report {
        server: version(&server.endpoint).await?,
        clients: args.clients,
        pods: args.pods,
        pod_bytes: 0,
        watchers: args.watchers,
        cores: std::thread::available_parallelism().map_or(1, Into::into),
        ready_ms: server.ready_ms,
        idle_mb: server.resident_mb()?,
        loaded_mb: None,
        figures: Vec::new(),
    };
    prepare(&server.endpoint).await?;
    // Also what a signal ends leaves nothing on a server that is not ours.
    let measured = tokio::select! {
        measured = measure(args, &server, &mut report, &mut progress) => measured,
        () = stop.cancelled() => Err(anyhow::anyhow!(crate::roles::ENDED)),
    };
    if measured.is_err() || args.kubeconfig.is_some() {
        progress.step("removing what is left");
        match remove(&server.endpoint).await {
            // What ended the measure is what is told.
            Err(error) if measured.is_err() => progress.note(&format!("it stays: {error:#}")),
            removed => removed?,
        }
    }
    measured?;
    progress.finish();
    Ok(report)
}

fn collection() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

fn pod_path(number: usize) -> String {
    format!("{}/{}", collection(), pods::name(number))
}

/// A number that wanders over all pods, the same in each run.
fn scattered(number: usize, pods: usize) -> usize {
    number.wrapping_mul(2_654_435_761) % pods
}

async fn measure(args: &ApiArgs, server: &Server, report: &mut Report, progress: &mut Progress) -> anyhow::Result<()> {
    let (endpoint, pods) = (&server.endpoint, args.pods);
    let mut clients = Clients::connect(endpoint, args.clients).await?;
    let request = |method, path, content_type, body: Vec<u8>| Request { method, path, content_type, body };
    let none = |_: usize, _: &[u8]| {};

    progress.step(format!("creating {pods} pods"));
    // Made before: the client's work is not what is measured.
    let bodies: Vec<Vec<u8>> = (0..pods).map(|number| pods::pod(number).to_string().into_bytes()).collect();
    let create = move |number: usize| request("POST", collection(), JSON, bodies[number].clone());
    report.charge(server.spent(), clients.run("create", pods, create, none).await?, server.spent());
    tokio::time::sleep(SETTLE).await;
    report.loaded_mb = server.resident_mb()?;

    progress.step("getting pods");
    let gets = args.requests * 4;
    let get = move |number| request("GET", pod_path(scattered(number, pods)), "", Vec::new());
    let seen = Arc::new(Mutex::new(vec![Vec::new(); pods]));
    let read = {
        let seen = Arc::clone(&seen);
        move |number: usize, body: &[u8]| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let place = &mut seen[scattered(number, pods)];
            if place.is_empty() {
                place.extend_from_slice(body);
            }
        }
    };
    report.charge(server.spent(), clients.run("get", gets, get, read).await?, server.spent());
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    report.pod_bytes = seen.iter().map(Vec::len).max().unwrap_or(0);

    progress.step("updating pods");
    let changed = |body: &[u8]| {
        let text = String::from_utf8_lossy(body);
        text.replacen("\"labels\":{", "\"labels\":{\"updated\":\"yes\",", 1).into_bytes()
    };
    let known = seen.iter().enumerate().filter(|(_, body)| !body.is_empty()).take(args.requests);
    let known: Vec<(usize, Vec<u8>)> = known.map(|(pod, body)| (pod, changed(body))).collect();
    let updates = known.len();
    let update = move |number: usize| {
        let (pod, body) = &known[number];
        request("PUT", pod_path(*pod), JSON, body.clone())
    };
    report.charge(server.spent(), clients.run("update", updates, update, none).await?, server.spent());

    progress.step("patching pods");
    let patch = move |number: usize| {
        let body = json!({"metadata": {"annotations": {"example.com/patched": number.to_string()}}});
        request("PATCH", pod_path(scattered(number, pods)), STRATEGIC, body.to_string().into_bytes())
    };
    report.charge(server.spent(), clients.run("patch", args.requests, patch, none).await?, server.spent());

    progress.step("listing pods");
    let mut one = Clients::connect(endpoint, 1).await?;
    let all = move |_| request("GET", format!("{}?resourceVersion=0", collection()), "", Vec::new());
    report.charge(server.spent(), one.run("list of all", args.lists, all, none).await?, server.spent());
    let exact = move |_| request("GET", collection(), "", Vec::new());
    report.charge(server.spent(), one.run("list of all, newest", args.lists, exact, none).await?, server.spent());
    let label = pods::LABEL.replace('=', "%3D");
    let chosen = move |_| request("GET", format!("{}?labelSelector={label}", collection()), "", Vec::new());
    report.charge(server.spent(), one.run("list by label", args.lists * 5, chosen, none).await?, server.spent());

    if args.watchers > 0 {
        progress.step(format!("patching pods under {} watchers", args.watchers));
        let before = server.spent();
        let [patches, events] = fan_out(args, endpoint, &mut clients, Duration::ZERO, FAN_OUT).await?;
        let most = events.rate_per_s;
        report.charge(before, patches, server.spent());
        report.figures.push(events);
        // With time between them, no change waits for the one before it: what is left is how long telling takes.
        for (names, rate) in PACED.into_iter().zip([most / 2.0, EVENTS_PER_S]).filter(|(_, rate)| *rate <= most) {
            let every = Duration::from_secs_f64(args.watchers as f64 / rate.max(1.0));
            let before = server.spent();
            let [patches, events] = fan_out(args, endpoint, &mut clients, every, names).await?;
            report.charge(before, patches, server.spent());
            report.figures.push(events);
        }
    }

    progress.step("deleting pods");
    let delete = move |number| request("DELETE", pod_path(number), JSON, b"{\"gracePeriodSeconds\":0}".to_vec());
    report.charge(server.spent(), clients.run("delete", pods, delete, none).await?, server.spent());
    Ok(())
}

async fn fan_out(
    args: &ApiArgs,
    endpoint: &Endpoint,
    clients: &mut Clients,
    every: Duration,
    [patches, told]: [&'static str; 2],
) -> anyhow::Result<[Figure; 2]> {
    let pods = args.pods;
    let events = args.requests;
    let revision = {
        let (_, list) = call(endpoint, "GET", &format!("{}?limit=1", collection()), None).await?;
        list["metadata"]["resourceVersion"].as_str().context("a list has no resourceVersion")?.to_owned()
    };
    let path = format!("{}?watch=1&resourceVersion={revision}&timeoutSeconds=600", collection());
    let watchers = Watchers::open(endpoint, &path, args.watchers, events).await?;
    let (began, first) = (watchers.began(), Instant::now());
    let patch = move |number| Request {
        method: "PATCH",
        path: pod_path(scattered(number, pods)),
        content_type: MERGE,
        body: Watchers::patch(began),
    };
    let writes = clients.run_at(patches, events, every, patch, |_, _| {}).await?;
    Ok([writes, watchers.finish(told, first).await?])
}

/// One request outside of the measurement.
async fn call(endpoint: &Endpoint, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<(u16, Value)> {
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let mut connection = endpoint.connect().await?;
    let (status, reply) = connection.exchange(endpoint, method, path, JSON, &body).await?;
    let value =
        serde_json::from_slice(reply).with_context(|| format!("{method} {path}: {status}: {}", excerpt(reply)))?;
    Ok((status, value))
}

async fn version(endpoint: &Endpoint) -> anyhow::Result<String> {
    let (_, version) = call(endpoint, "GET", "/version", None).await?;
    Ok(version["gitVersion"].as_str().unwrap_or("unknown").to_owned())
}

/// A namespace to work in, and the account that pods need.
async fn prepare(endpoint: &Endpoint) -> anyhow::Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let (status, reply) = call(endpoint, "POST", "/api/v1/namespaces", Some(&namespace)).await?;
    ensure!(status == 201, "the namespace {NAMESPACE} cannot be made: {}", reply["message"]);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    let (status, reply) = call(endpoint, "POST", &path, Some(&account)).await?;
    // A controller may have been faster.
    ensure!(matches!(status, 201 | 409), "the service account cannot be made: {}", reply["message"]);
    Ok(())
}

async fn remove(endpoint: &Endpoint) -> anyhow::Result<()> {
    let at_once = json!({"gracePeriodSeconds": 0});
    call(endpoint, "DELETE", &collection(), Some(&at_once)).await?;
    call(endpoint, "DELETE", &format!("/api/v1/namespaces/{NAMESPACE}"), None).await?;
    Ok(())
}
