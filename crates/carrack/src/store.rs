//! `carrack store`: backups of a running API server, and what becomes of them.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use carrack_store::backup::{self, Summary};
use serde::Serialize;

use crate::cli::ClientArgs;
use crate::cli::store::{StoreCommand, StoreCommandArgs};
use crate::kubeconfig;
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::wire::Endpoint;

/// Where an API server gives its backup.
const PATH: &str = "/debug/store/backup";

/// What was read or written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    objects: usize,
    revision: u64,
    bytes: u64,
}

/// Runs the command.
///
/// # Errors
/// What it says.
pub async fn run(args: StoreCommandArgs) -> anyhow::Result<()> {
    match args.command {
        StoreCommand::Backup { file, client, output } => {
            let found = save(&file, &client).await?;
            print(output, found, &format!("written to {}", file.display()))
        }
        StoreCommand::Restore { file, data_dir, output } => {
            let dir = data_dir.layout()?.store_dir();
            let found =
                backup::restore(&file, &dir).with_context(|| format!("cannot restore into {}", dir.display()))?;
            print(output, found, &format!("restored to {}", dir.display()))
        }
        StoreCommand::Check { file: Some(file), output, .. } => print(output, backup::verify(&file)?, "whole"),
        StoreCommand::Check { file: None, data_dir, output } => {
            let dir = data_dir.layout()?.store_dir();
            print(output, backup::check(&dir)?, &format!("sound: {}", dir.display()))
        }
    }
}

fn print(format: Option<Format>, found: Summary, what: &str) -> anyhow::Result<()> {
    let report = Report { objects: found.entries, revision: found.revision.0, bytes: found.bytes };
    output::print(format, &report, || {
        format!(
            "{} objects at revision {}, {:.1} MB, {what}",
            report.objects,
            report.revision,
            report.bytes as f64 / 1e6
        )
    })
}

/// Copies the backup into a file that is there whole or not at all.
async fn save(file: &Path, client: &ClientArgs) -> anyhow::Result<Summary> {
    ensure!(!file.exists(), "{} exists already", file.display());
    let mut progress = Progress::new();
    progress.step("copying the objects");
    let endpoint = Endpoint::of(&kubeconfig::target(client)?)?;
    let mut connection = endpoint.connect().await?;
    let status = connection.stream(&endpoint, PATH).await?;
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let context = || format!("cannot write {}", partial.display());
    // Secrets are in it.
    let mut out = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(partial)
        .with_context(context)?;
    while let Some(part) = connection.piece().await? {
        if status != 200 {
            bail!("the API server refuses ({status}): {}", String::from_utf8_lossy(&part[..part.len().min(400)]));
        }
        out.write_all(part).with_context(context)?;
    }
    out.sync_all().with_context(context)?;
    let found = backup::verify(partial).context("what the API server sent is not whole; try again")?;
    fs::rename(partial, file).with_context(|| format!("cannot write {}", file.display()))?;
    progress.finish();
    Ok(found)
}
