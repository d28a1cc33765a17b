//! The device plugin of a node with GPUs.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use carrack_engine::Transport;
use carrack_gpu_extender::Names;
use carrack_gpu_plugin::{Config, Inventory, Source};
use carrack_noderuntime::Layout;
use tokio_util::sync::CancellationToken;

use crate::cli::roles::{GpuPluginArgs, RoleArgs};
use crate::output;

/// Where GPUs come from: `nvidia`, made-up ones, or a file that makes them up.
///
/// # Errors
/// The text or the file says nothing of the kind.
pub fn source(text: &str) -> anyhow::Result<Source> {
    if text == "nvidia" {
        return Ok(Source::Nvml);
    }
    let made_up = if Path::new(text).is_file() {
        let list = fs::read_to_string(text).with_context(|| format!("cannot read {text}"))?;
        Inventory::from_json(&list).map_err(anyhow::Error::msg).with_context(|| format!("{text} cannot be used"))?
    } else {
        Inventory::made_up(text).map_err(anyhow::Error::msg)?
    };
    Ok(Source::MadeUp(made_up))
}

/// What the plugin of a node of ours is told.
#[must_use]
pub fn config(layout: &Layout, node: &str, source: Source) -> Config {
    let sockets = layout.kubelet_root().join("device-plugins");
    Config { names: Names::default(), node: node.to_owned(), sockets, source }
}

/// Offers GPUs until `stop`.
///
/// # Errors
/// There is no driver to ask.
pub async fn run(config: Config, transport: Arc<dyn Transport>, stop: CancellationToken) -> anyhow::Result<()> {
    carrack_gpu_plugin::run(config, transport, stop).await.map_err(anyhow::Error::msg)
}

/// `carrack gpu-plugin`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: GpuPluginArgs) -> anyhow::Result<()> {
    let source = source(args.fake_gpus.as_deref().unwrap_or("nvidia"))?;
    if args.list {
        let found = carrack_gpu_plugin::look(&source).map_err(anyhow::Error::msg)?;
        return output::write_all(format!("{}\n", found.describe()).as_bytes());
    }
    Names::check(&args.names.resource_prefix).map_err(anyhow::Error::msg)?;
    let node = super::node_name(args.node_name.as_deref())?;
    let mut config = config(&args.data_dir.layout()?, &node, source);
    config.names = Names::new(&args.names.resource_prefix);
    if let Some(sockets) = args.device_plugin_dir {
        config.sockets = sockets;
    }
    let kubeconfig = args.kubeconfig.context("--kubeconfig is missing")?;
    let role = RoleArgs { kubeconfig, log: args.log };
    super::alone("gpu-plugin", &role, |transport, stop| run(config, transport, stop)).await
}
