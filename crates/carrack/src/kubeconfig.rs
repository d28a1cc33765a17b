//! `carrack kubeconfig`, and how the client commands find theirs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use carrack_auth::kubeconfig::{Kubeconfig, Target};

use crate::cli::{ClientArgs, KubeconfigArgs};
use crate::output;

/// Prints the path, or the file.
pub fn run(args: &KubeconfigArgs) -> anyhow::Result<()> {
    let path = args.data_dir.layout()?.kubeconfig();
    if !path.exists() {
        bail!("{} does not exist: no cluster was started there yet (carrack up)", path.display());
    }
    if args.raw {
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        return output::write_all(&text);
    }
    output::write_all(format!("{}\n", path.display()).as_bytes())
}

/// The server to talk to and the credentials for it.
///
/// # Errors
/// There is no kubeconfig, or it cannot be used.
pub fn target(args: &ClientArgs) -> anyhow::Result<Target> {
    let path = path(args)?;
    let kubeconfig =
        Kubeconfig::load(&path).with_context(|| format!("cannot use the kubeconfig {}", path.display()))?;
    let mut target = kubeconfig
        .resolve(args.context.as_deref())
        .with_context(|| format!("cannot use the kubeconfig {}", path.display()))?;
    if let Some(namespace) = &args.namespace {
        target.namespace.clone_from(namespace);
    }
    Ok(target)
}

fn path(args: &ClientArgs) -> anyhow::Result<PathBuf> {
    if let Some(path) = &args.kubeconfig {
        return Ok(path.clone());
    }
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    if let Some(first) = std::env::split_paths(&named).find(|path| path.exists()) {
        return Ok(first);
    }
    let ours = args.data_dir.layout()?.kubeconfig();
    if ours.exists() {
        return Ok(ours);
    }
    bail!("no kubeconfig: KUBECONFIG names none, and {} does not exist (carrack up makes it)", ours.display())
}
