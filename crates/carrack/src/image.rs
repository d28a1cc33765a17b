//! `carrack image`: images made from what is installed here, and archives, loaded into the cluster's containerd.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use carrack_images::{Built, containerd};
use carrack_noderuntime::{Layout, members};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use crate::cli::{BuiltIn, ImageArgs, ImageBuildArgs, ImageCommand, ImageImportArgs};
use crate::progress::Progress;
use crate::{kubeconfig, output, roles};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    reference: String,
    digest: String,
    archive: String,
    rebuilt: bool,
    imported: bool,
}

/// Builds or imports. A signal ends what runs for it, too.
pub async fn run(args: ImageArgs) -> anyhow::Result<()> {
    let stop = roles::until_signal()?;
    let work = async {
        match args.command {
            ImageCommand::Build(args) => build(args).await,
            ImageCommand::Import(args) => import(args).await,
        }
    };
    tokio::select! {
        outcome = work => outcome,
        () = stop.cancelled() => Err(anyhow::anyhow!(roles::ENDED)),
    }
}

async fn build(args: ImageBuildArgs) -> anyhow::Result<()> {
    let layout = args.data_dir.layout()?;
    let sockets = if args.no_import { Vec::new() } else { containerds(&layout)? };
    let mut progress = Progress::new();
    let mut lines = Vec::new();
    for image in &args.images {
        progress.step(format!("building the image {}", name(*image)));
        let (dir, image) = (args.images_dir.path(&layout), *image);
        // Beside us, so that a signal is heard meanwhile.
        let built = tokio::task::spawn_blocking(move || build_one(&dir, image)).await??;
        let mut imported = false;
        for socket in &sockets {
            imported |= containerd::ensure(socket, &built).await?;
        }
        lines.push(Line {
            reference: built.reference,
            digest: built.digest,
            archive: built.tar.display().to_string(),
            rebuilt: built.fresh,
            imported,
        });
    }
    progress.finish();
    output::print(args.output, &lines, || lines.iter().map(|line| format!("{}\n", line.reference)).collect())
}

/// Builds one image in `dir`, or finds it unchanged there. Waits while another process builds there: what that made is
/// then found.
///
/// # Errors
/// A Debian package is missing, or a file cannot be read or written.
pub fn build_one(dir: &Path, image: BuiltIn) -> anyhow::Result<Built> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let turn = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    flock(&turn, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", dir.display()))?;
    let built = match image {
        BuiltIn::Pause => carrack_images::build_pause(dir)?,
        BuiltIn::VirtLauncher => {
            let program = std::env::current_exe().context("cannot find this program's own file")?;
            carrack_images::build_virt_launcher(dir, &program)?
        }
        BuiltIn::Busybox => carrack_images::build_busybox(dir)?,
        BuiltIn::Demo => carrack_images::build_demo_guest(dir)?,
    };
    Ok(built)
}

fn name(image: BuiltIn) -> &'static str {
    match image {
        BuiltIn::Pause => "pause",
        BuiltIn::VirtLauncher => "virt-launcher",
        BuiltIn::Busybox => "busybox",
        BuiltIn::Demo => "demo",
    }
}

/// Refuses an archive that cannot be read, and says why not.
fn readable(file: &Path) -> anyhow::Result<()> {
    let context = || format!("cannot read {}", file.display());
    let found = std::fs::metadata(file).with_context(context)?;
    ensure!(found.is_file(), "{} is no file", file.display());
    File::open(file).map(drop).with_context(context)
}

async fn import(args: ImageImportArgs) -> anyhow::Result<()> {
    // Before any is loaded: what is wrong with one is told while all can still be given again.
    for file in &args.files {
        readable(file)?;
    }
    let sockets = containerds(&args.data_dir.layout()?)?;
    let mut progress = Progress::new();
    for file in &args.files {
        progress.step(format!("importing {}", file.display()));
        for socket in &sockets {
            containerd::import(socket, file).await.with_context(|| format!("cannot import {}", file.display()))?;
        }
    }
    progress.finish();
    Ok(())
}

/// The containerds of the cluster's nodes on this machine, but for those that are switched off.
fn containerds(cluster: &Layout) -> anyhow::Result<Vec<PathBuf>> {
    let nodes = members::found(cluster).context("cannot look for nodes")?;
    let on = nodes.into_iter().filter(|node| !members::off_file(node).exists());
    let sockets: Vec<PathBuf> = on.map(|node| node.containerd_socket()).collect();
    let sockets = if members::dir(cluster).exists() { sockets } else { vec![cluster.containerd_socket()] };
    for socket in &sockets {
        if !kubeconfig::is_there(socket)? {
            bail!("no cluster runs here: {} does not exist (carrack up makes it)", socket.display());
        }
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_archive_is_refused_before_anything_is_loaded() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("guest.tar");
        let said = |path: &Path| readable(path).err().map(|error| format!("{error:#}"));
        assert!(said(&file).is_some_and(|why| why.contains("guest.tar") && why.contains("No such file")));
        std::fs::write(&file, "").expect("written");
        assert_eq!(said(&file), None);
        assert!(said(dir.path()).is_some_and(|why| why.contains("is no file")));
    }
}
