#![expect(clippy::disallowed_methods, reason = "shell: it waits, for a while, for a process of a pod")]
//! Has a running machine copy its disks to claims that a pod beside it has (`carrack_launcher::receive`).
//!
//! The claims are lent to the launcher's container for as long as the copy is begun: their mounts are cloned from the pod's
//! container, and gone again before the call is answered. QEMU keeps its files open, until they are whole or the pod is gone.
//! So no mount outlives the pod, and the launcher is never given more than what it is to write. What a handler had lent when it
//! died is taken back by the next one, before it takes calls.
//!
//! That the pod waits for this machine's disks is what its container says, inside the directory that is asked for: the call
//! cannot be used to reach into any other container.

use std::path::Path;
use std::time::{Duration, Instant};

use carrack_launcher::proto::{Call, CopiedDisk};
use carrack_launcher::{Layout, client};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;

use super::super::{disks, find};
use super::{Body, Config, text};
use crate::copying::CopyVolumes;
use crate::handler::effects::Served;

/// Longest request, bytes.
const MAX_REQUEST: usize = 64 << 10;
/// How long the pod's process may take to say that it waits.
const WAIT: Duration = Duration::from_secs(5);
/// How long the launcher may take to begin: an empty image is made for each disk. The caller waits for 30 s.
const BEGIN_DEADLINE: Duration = Duration::from_secs(20);

/// Begins.
pub(super) async fn begin(config: &Config, guest: &Served, request: Request<Incoming>) -> Response<Body> {
    let body = match Limited::new(request.into_body(), MAX_REQUEST).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("the request cannot be read: {error}")),
    };
    let wanted: CopyVolumes = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("the request is not understood: {error}")),
    };
    // A caller that hangs up ends this future, which would leave what is lent.
    let (config, guest) = (config.clone(), guest.clone());
    let lent = tokio::spawn(async move { lend(&config, &guest, wanted).await }).await;
    match lent.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(()) => Response::new(Full::default()),
        Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, why),
    }
}

async fn lend(config: &Config, guest: &Served, wanted: CopyVolumes) -> Result<(), String> {
    let place = &guest.place;
    let source = find(&wanted.container).await.map_err(|error| error.0)?;
    let launcher = find(&place.compute_id).await.map_err(|error| error.0)?;
    let inside = Layout::in_container(&place.uid);
    let pairs: Vec<_> =
        (0..wanted.volumes.len()).map(|number| (CopyVolumes::directory(number), inside.copy_dir(number))).collect();
    let targets: Vec<_> = pairs.iter().map(|(_, target)| target.clone()).collect();
    let until = Instant::now() + WAIT;
    let uid = place.uid.clone();
    let lent = blocking(move || disks::lend(source, launcher, &pairs, &uid, until)).await;
    let disks = wanted.volumes.into_iter().zip(targets.clone());
    let disks = disks.map(|(volume, directory)| CopiedDisk { volume, directory }).collect();
    let begun = match lent {
        Ok(()) => {
            let call = Call::Copy { id: wanted.pod, disks };
            let said = client::call(&config.layout(place).command_socket(), call, BEGIN_DEADLINE).await;
            said.map(drop).map_err(|error| carrack_engine::causes(&error))
        }
        Err(why) => Err(why),
    };
    let taken_back = blocking(move || disks::take_back(launcher, &targets)).await;
    begun.and(taken_back)
}

/// Takes back what an earlier life of the handler had lent.
pub(super) async fn take_all_back() {
    if let Err(error) = blocking(|| disks::take_all_back(Path::new("/proc"))).await {
        tracing::error!(error, "what was lent for copies of disks is not taken back");
    }
}

async fn blocking(work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Result<(), String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}
