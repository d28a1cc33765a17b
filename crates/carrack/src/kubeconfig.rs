//! `carrack kubeconfig`, and how the client commands find theirs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use carrack_auth::kubeconfig::{Kubeconfig, Target};
use carrack_auth::pki::Identity;

use crate::cli::{ClientArgs, KubeconfigArgs, User};
use crate::{output, roles};

/// The name of cluster and context in kubeconfigs.
pub const CLUSTER: &str = "carrack";

/// Prints the path, or the file.
pub fn run(args: &KubeconfigArgs) -> anyhow::Result<()> {
    let path = args.data_dir.layout()?.kubeconfig();
    if !path.exists() {
        bail!("{} does not exist: no cluster was started there yet (carrack up)", path.display());
    }
    if let Some(user) = args.user {
        return print_for(args, user);
    }
    if args.raw {
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        return output::write_all(&text);
    }
    output::write_all(format!("{}\n", path.display()).as_bytes())
}

/// Makes a role's certificate, or finds it, and prints a kubeconfig with it.
fn print_for(args: &KubeconfigArgs, user: User) -> anyhow::Result<()> {
    let layout = args.data_dir.layout()?;
    let node = || roles::node_name(args.node_name.as_deref());
    let identity = match user {
        User::Scheduler => Identity::Scheduler,
        User::Controllers => Identity::ControllerManager,
        User::VirtController => Identity::VirtController,
        User::Kubelet => Identity::Node { node: node()? },
        User::VirtHandler => Identity::VirtHandler { node: node()? },
        User::GpuExtender => Identity::GpuExtender,
        User::LocalStorage => Identity::LocalStorage { node: node()? },
    };
    let admin = Kubeconfig::load(&layout.kubeconfig())?.resolve(None)?;
    let pki = roles::apiserver::open_pki(&layout)?;
    let pair = pki.client(&identity, roles::apiserver::now_unix_s())?;
    let kubeconfig = Kubeconfig::for_certificate(CLUSTER, &identity.user(), &admin.server, pki.ca_pem(), &pair);
    output::write_all(format!("{}\n", kubeconfig.to_text().trim_end()).as_bytes())
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
