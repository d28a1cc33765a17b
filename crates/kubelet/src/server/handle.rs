//! Answers a request that may be answered.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::sync::mpsc;

use super::backend::{Answer, Backend, Streams};
use super::connection::{Session, Shared};
use super::log_query::LogQuery;
use super::logs::{self, LogOptions};
use super::query::Query;
use super::reply::{self, Refusal, Reply};
use super::route::{ContainerPath, PodPath, Route};
use super::{clock, find, metrics, program, running, streams, system_logs, upgrade};
use crate::effects::OpError;
use crate::runtime::RuntimeSnapshot;

pub(super) type Replied = Result<Response<Reply>, Refusal>;

/// Answers.
pub(super) async fn handle(session: &Session, route: Route, request: Request<Incoming>) -> Replied {
    let shared = &session.shared;
    let backend = &shared.backend;
    let query = Query::parse(request.uri().query().unwrap_or_default()).map_err(Refusal::bad)?;
    match route {
        Route::Healthz => health(backend.as_ref()),
        Route::Answers => Ok(reply::text(StatusCode::OK, "ok")),
        Route::Pods => pod_list(backend.pods().iter().map(|pod| serde_json::to_value(&**pod))),
        Route::RunningPods => pod_list(running::pods(&backend.runtime().await?).into_iter().map(Ok)),
        Route::Logs(path) => log(session, &path, &query).await,
        Route::Exec(path) => {
            let (command, streams) = (streams::command(&query)?, streams::streams(&query)?);
            upgrade::require(&request)?;
            let (id, _) = running_container(shared, &path).await?;
            let url = backend.exec_url(&id, command, streams).await?;
            upgrade::pass(session, request, &url).await
        }
        Route::Attach(path) => {
            let streams = streams::streams(&query)?;
            upgrade::require(&request)?;
            let (id, tty) = running_container(shared, &path).await?;
            // What runs already has the terminal that it was made with, or none. Who asks for its standard error beside that
            // is refused by the runtime, as with upstream: he would wait for ever for a stream that nobody writes.
            let url = backend.attach_url(&id, Streams { tty, ..streams }).await?;
            upgrade::pass(session, request, &url).await
        }
        Route::PortForward(path) => {
            let ports = streams::ports(&query)?;
            upgrade::require(&request)?;
            let (pod, runtime) = pod(shared, &path).await?;
            let url = backend.port_forward_url(&find::sandbox(&pod, &runtime)?.id, ports).await?;
            upgrade::pass(session, request, &url).await
        }
        Route::Run(path) => {
            let command = streams::run_command(&query)?;
            let (id, _) = running_container(shared, &path).await?;
            let timeout_s = i64::try_from(shared.settings.run.as_secs()).unwrap_or(i64::MAX);
            let done = backend.exec_sync(&id, command, timeout_s).await?;
            if done.code == 0 {
                return Ok(reply::text(StatusCode::OK, done.output));
            }
            let text = format!("command exited with {}: {}", done.code, String::from_utf8_lossy(&done.output));
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text))
        }
        Route::StatsSummary => {
            let less = query.flag("only_cpu_and_memory");
            reply::json(&if less { backend.cpu_and_memory().await? } else { backend.stats().await? })
        }
        Route::Metrics => {
            let pods = backend.pods();
            let page =
                metrics::own(&shared.node_name, &shared.version, &shared.requests, &pods) + &metrics::pods(&pods);
            let volumes = backend.volumes().await?;
            let managed = metrics::managed(&backend.volume_counts())
                + &metrics::storage(&backend.storage_operations())
                + &metrics::csi(&backend.csi_operations())
                + &metrics::cpus(&backend.cpus())
                + &metrics::memory(&backend.memory())
                + &metrics::resizes(&backend.resize_counts())
                + &metrics::tallies(&backend.tallies())
                + &metrics::starts(&backend.image_pulls(), &backend.pod_starts())
                + &shared.asked.text()
                + &shared.settings.process.map(|page| page()).unwrap_or_default();
            let runtime = metrics::runtime(&backend.runtime_operations());
            Ok(reply::metrics(page + &runtime + &metrics::volumes(&volumes) + &managed))
        }
        Route::ResourceMetrics => {
            let summary = backend.cpu_and_memory().await.inspect_err(|error| tracing::debug!(%error, "no stats")).ok();
            Ok(reply::metrics(metrics::resources(summary.as_ref())))
        }
        Route::CadvisorMetrics => {
            let (summary, runtime) = (backend.stats().await?, backend.runtime().await?);
            let unread = |error: &OpError| tracing::debug!(%error, "what cAdvisor tells beside the stats");
            let throttling = backend.throttling(&runtime.containers).await.inspect_err(unread).unwrap_or_default();
            let machine = backend.machine().await.inspect_err(unread).ok();
            let page = metrics::cadvisor(&summary, &runtime, &throttling);
            Ok(reply::metrics(page + &metrics::machine(machine.as_ref())))
        }
        Route::ProbeMetrics => Ok(reply::metrics(metrics::probes(&backend.probe_counts()))),
        Route::SliMetrics => Ok(reply::metrics(metrics::slis(&backend.health()))),
        Route::Configz => reply::json(&shared.configz),
        Route::Statusz => program::status(&shared.settings, request.headers()),
        Route::Flagz => program::flags(&shared.settings, request.headers()),
        Route::SystemLogs(way) => {
            let Some(dir) = &shared.settings.system_logs else {
                return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled."));
            };
            let asked = if shared.settings.log_queries { LogQuery::read(&query)? } else { None };
            match asked {
                None => system_logs::answer(shared, dir, &way, request.headers()).await,
                Some(_) if !way.trim_matches('/').is_empty() => {
                    Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode\n"))
                }
                Some(asked) => asked.answer(shared, dir, request.headers()).await,
            }
        }
    }
}

/// Whether the kubelet is well.
pub(super) fn health(backend: &dyn Backend) -> Replied {
    match backend.health() {
        Ok(()) => Ok(reply::text(StatusCode::OK, "ok")),
        Err(why) => {
            let text = format!("[-]syncloop failed: {why}\nhealthz check failed\n");
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text))
        }
    }
}

fn pod_list(pods: impl Iterator<Item = serde_json::Result<serde_json::Value>>) -> Replied {
    let broken = |error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode a pod: {error}"));
    let items = pods.collect::<Result<Vec<_>, _>>().map_err(broken)?;
    reply::json(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

/// A pod and what the runtime holds of it.
async fn pod(shared: &Shared, path: &PodPath) -> Result<(std::sync::Arc<Pod>, RuntimeSnapshot), Refusal> {
    let pod = find::pod(&shared.backend.pods(), path)?;
    let runtime = shared.backend.runtime_of(find::uid(&pod)).await?;
    Ok((pod, runtime))
}

/// The id of a container that runs, and whether it was made with a terminal.
async fn running_container(shared: &Shared, path: &ContainerPath) -> Result<(String, bool), Refusal> {
    let (pod, runtime) = pod(shared, &path.pod).await?;
    let tty = find::declared(&pod, &path.container)?.tty == Some(true);
    find::running(&runtime, &path.container).map(|run| (run.id.clone(), tty))
}

/// How many pieces of a log may wait for the client.
const PIECES: usize = 1;

async fn log(session: &Session, path: &ContainerPath, query: &Query) -> Replied {
    let shared = &session.shared;
    let options = LogOptions::parse(query, clock::now()).map_err(Refusal::bad)?;
    let found = find::pod(&shared.backend.pods(), &path.pod)?;
    find::declared(&found, &path.container)?;
    let runtime = shared.backend.runtime_of(find::uid(&found)).await?;
    let run = find::logged(&found, &runtime, &path.container, options.previous)?;
    let opened = logs::Opened::open(find::log_path(&shared.log_dir, run), &options)
        .await
        .map_err(|error| Refusal::bad(format!("failed to open the log of container {:?}: {error}", path.container)))?;
    if options.follow {
        session.goes_on(session.stream_place()?);
    }
    let container = Run { session: session.clone(), pod_uid: find::uid(&found).to_owned(), id: run.id.clone() };
    let (client, parts) = mpsc::channel(PIECES);
    let settings = &shared.settings;
    let pace = logs::Pace { check: settings.follow_check, rotation: settings.rotation, stall: settings.stall };
    tokio::spawn(logs::send(opened, options, container, client, shared.ending.clone(), pace));
    Ok(reply::stream("text/plain", parts))
}

/// A run of a container, whose end a follower waits for.
struct Run {
    session: Session,
    pod_uid: String,
    id: String,
}

impl logs::MayWrite for Run {
    async fn may_write(&mut self) -> Result<bool, String> {
        let listing: Answer<'_, RuntimeSnapshot> = self.session.shared.backend.runtime_of(&self.pod_uid);
        // The backend's answers are bounded; this one must not hold up what the container writes.
        match tokio::time::timeout(Duration::from_secs(10), listing).await {
            Ok(Ok(runtime)) => Ok(find::may_write(&runtime, &self.id)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}
