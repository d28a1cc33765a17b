//! The packet filter's rules for pods: set when a node's containerd starts, and put back when they have gone. Who loads the machine's
//! own rules takes those of all others along (`nft flush ruleset`, with which Debian's `nftables.service` begins), and from then on no
//! pod reaches the outside, and every pod what listens on this machine's loopback.
//!
//! Host ports are `portmap`'s, which makes their rules once; they are put back as well (`ports.rs`).
//!
//! Upstream: the kubelet and kube-proxy look for a chain that they have made for nothing else (`Monitor` in `pkg/util/iptables`).

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::containerd::{StartError, chain};
use crate::layout::Layout;
use crate::members::{self, Members, NetworkError};
use crate::ports::HostPorts;

/// How often they are looked for.
const LOOK: Duration = Duration::from_secs(30);

/// Sets them; `pods` is the range that is hidden behind this machine, if one is.
pub(crate) async fn set(layout: &Layout, pods: Option<&str>) -> Result<(), StartError> {
    tokio::join!(masquerade(layout, pods), guard_loopback(layout)).0
}

/// Hides pods behind the node, if that is wanted.
async fn masquerade(layout: &Layout, pods: Option<&str>) -> Result<(), StartError> {
    let Some(pods) = pods.map(str::to_owned) else { return Ok(()) };
    let layout = layout.clone();
    let work = tokio::task::spawn_blocking(move || members::masquerade(&layout, &pods).map(drop));
    work.await.map_err(|error| StartError::Watch(error.into()))?.map_err(StartError::Masquerade)
}

/// Keeps pods from what listens for this machine alone. A kernel without nftables cannot, and the cluster runs all the same.
async fn guard_loopback(layout: &Layout) {
    let layout = layout.clone();
    let error = match tokio::task::spawn_blocking(move || members::guard_loopback(&layout)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => chain(&error),
        Err(error) => error.to_string(),
    };
    tracing::warn!(error, "once a pod has a host port, pods may reach what listens on this machine's loopback");
}

/// Puts them back for as long as it is waited for. A node that has a network to itself keeps them: nobody else sets any there.
pub(crate) async fn keep(layout: Layout, pods: Option<String>) {
    let Some(pods) = pods else { return pending().await };
    let ports = Arc::new(HostPorts::new(layout.clone()));
    let put_back = move || -> Result<bool, NetworkError> {
        let hidden = members::masquerade(&layout, &pods)?;
        if members::is_guarded(&layout) {
            return Ok(hidden);
        }
        members::guard_loopback(&layout).map(|()| true)
    };
    tokio::join!(again_and_again(put_back), again_and_again(move || ports.look()));
}

/// The same for the network between several nodes, until `stop`.
pub async fn keep_between(members: Members, stop: CancellationToken) {
    let put_back = move || members::masquerade_nodes(&members);
    tokio::select! {
        () = stop.cancelled() => {}
        () = again_and_again(put_back) => {}
    }
}

async fn again_and_again<E: std::error::Error + Send + 'static>(
    put_back: impl Fn() -> Result<bool, E> + Clone + Send + 'static,
) {
    let mut failed = false;
    loop {
        tokio::time::sleep(LOOK).await;
        let outcome = match tokio::task::spawn_blocking(put_back.clone()).await {
            Ok(outcome) => outcome.map_err(|error| chain(&error)),
            Err(panic) => Err(panic.to_string()),
        };
        match &outcome {
            Ok(true) => tracing::warn!(
                "rules of the packet filter for pods were gone and are put back: somebody has loaded others"
            ),
            Ok(false) => {}
            Err(error) if !failed => tracing::warn!(error, "rules of the packet filter for pods cannot be put back"),
            Err(error) => tracing::debug!(error, "rules of the packet filter for pods still cannot be put back"),
        }
        failed = outcome.is_err();
    }
}
