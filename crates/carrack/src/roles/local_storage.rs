//! Volumes on the node's own disk: the CSI driver, and what has it make them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use carrack_engine::Transport;
use carrack_storage::driver::{self, Faults, Settings};
use carrack_storage::{install, provision};
use tokio_util::sync::CancellationToken;

use crate::cli::roles::LocalStorageArgs;

/// What a driver is told.
#[must_use]
pub fn settings(dir: &Path, kubelet_dir: &Path, node: &str, faults: Option<PathBuf>) -> Settings {
    Settings {
        dir: dir.to_owned(),
        kubelet_dir: kubelet_dir.to_owned(),
        node: node.to_owned(),
        faults: Faults::new(faults),
    }
}

/// Serves the node's volumes until `stop`. They stay as they are afterwards.
///
/// # Errors
/// Why it cannot start or go on.
pub async fn run(settings: Settings, transport: Arc<dyn Transport>, stop: CancellationToken) -> anyhow::Result<()> {
    super::closed_dir(&settings.dir)?;
    let (node, socket) = (settings.node.clone(), settings.socket());
    let serving = async { driver::serve(settings, stop.clone().cancelled_owned()).await.context("the driver ended") };
    let controllers = async {
        install::install(transport.as_ref()).await.map_err(anyhow::Error::msg)?;
        provision::shell::run(&node, socket, transport.clone(), stop.clone().cancelled_owned())
            .await
            .map_err(anyhow::Error::msg)
    };
    tokio::try_join!(serving, controllers).map(|_| ())
}

/// `carrack local-storage`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: LocalStorageArgs) -> anyhow::Result<()> {
    let layout = args.data_dir.layout()?;
    let node = super::node_name(args.node_name.as_deref())?;
    let kubelet_dir = args.kubelet_dir.unwrap_or_else(|| layout.kubelet_root());
    let settings = settings(&layout.storage_dir(), &kubelet_dir, &node, args.faults);
    super::alone("local-storage", &args.role, |transport, stop| run(settings, transport, stop)).await
}
