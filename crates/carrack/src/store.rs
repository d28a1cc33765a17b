//! `carrack store`: backups of a running API server, and what becomes of them.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use carrack_store::backup::{self, Summary, Torn};
use serde::Serialize;

use crate::cli::ClientArgs;
use crate::cli::store::{StoreCommand, StoreCommandArgs};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::wire::{self, Connection, Endpoint};
use crate::{kubeconfig, roles};

/// Where an API server gives its backup.
const PATH: &str = "/debug/store/backup";

/// What was read or written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    objects: usize,
    revision: u64,
    bytes: u64,
    /// What the log ends in, if that is no record.
    #[serde(skip_serializing_if = "Option::is_none")]
    torn_bytes: Option<u64>,
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
            // What it cannot do it says itself, with the file or the directory.
            let found = backup::restore(&file, &dir)?;
            print(output, found, &format!("restored to {}", dir.display()))
        }
        StoreCommand::Check { file: Some(file), output, .. } => print(output, backup::verify(&file)?, "whole"),
        StoreCommand::Check { file: None, data_dir, output } => {
            let dir = data_dir.layout()?.store_dir();
            let found = sound(&dir)?;
            print(output, found, &format!("{}: {}", verdict(found.torn), dir.display()))?;
            ensure!(!found.torn.is_some_and(|torn| torn.may_have_counted), DAMAGED);
            Ok(())
        }
    }
}

/// What is to be known of a log whose last record is damaged.
const DAMAGED: &str = "the log ends in a damaged record: a write that the power cut short, or one that was acknowledged and \
                       is lost. The next start cuts it off";

/// What a store is that can be read.
fn verdict(torn: Option<Torn>) -> String {
    match torn {
        None => "sound".to_owned(),
        Some(Torn { bytes, may_have_counted: false }) => {
            format!("sound, with {bytes} bytes at its end of a write that was cut short and never acknowledged")
        }
        Some(Torn { bytes, may_have_counted: true }) => format!("readable but for the last {bytes} bytes"),
    }
}

/// What a store holds. Where there is none, or nothing of it any more, nothing is sound.
fn sound(dir: &Path) -> anyhow::Result<Summary> {
    let none =
        || format!("there is no store in {}: is --data-dir right? (with etcd, its own tools check it)", dir.display());
    ensure!(kubeconfig::is_there(dir)?, none());
    let found = backup::check(dir)?;
    ensure!(found.bytes > 0, none());
    Ok(found)
}

fn print(format: Option<Format>, found: Summary, what: &str) -> anyhow::Result<()> {
    let torn_bytes = found.torn.map(|torn| torn.bytes);
    let report = Report { objects: found.entries, revision: found.revision.0, bytes: found.bytes, torn_bytes };
    output::print(format, &report, || {
        format!(
            "{} objects at revision {}, {:.1} MB, {what}",
            report.objects,
            report.revision,
            report.bytes as f64 / 1e6
        )
    })
}

/// Copies the backup into a file that is there whole or not at all, also where a signal ends it.
async fn save(file: &Path, client: &ClientArgs) -> anyhow::Result<Summary> {
    ensure!(!kubeconfig::is_there(file)?, "{} exists already: choose another name", file.display());
    let mut progress = Progress::new();
    progress.step("copying the objects");
    let endpoint = Endpoint::of(&kubeconfig::target(client)?)?;
    let mut connection = endpoint.connect().await?;
    let status = connection.stream(&endpoint, PATH).await?;
    let stop = roles::until_signal()?;
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let outcome = tokio::select! {
        found = copy(&mut connection, status, partial) => found,
        () = stop.cancelled() => Err(anyhow::anyhow!(roles::ENDED)),
    };
    let found = settle(outcome, partial, file)?;
    progress.finish();
    Ok(found)
}

/// Gives what was written its own name, once it is whole. Half of it does not stay.
fn settle<T>(written: anyhow::Result<T>, partial: &Path, file: &Path) -> anyhow::Result<T> {
    let named = || -> io::Result<()> {
        fs::rename(partial, file)?;
        // The name, too, is to outlast a power cut.
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(parent)?.sync_all()
    };
    let outcome = written.and_then(|found| {
        named().with_context(|| format!("cannot write {}", file.display()))?;
        Ok(found)
    });
    if outcome.is_err()
        && let Err(error) = fs::remove_file(partial)
        && error.kind() != io::ErrorKind::NotFound
    {
        output::say(format_args!("{} stays: {error}", partial.display()));
    }
    outcome
}

/// A new file that nobody else may read: Secrets come into it. What lies there is what an earlier try has left, or what
/// somebody has put there who may write beside it: a link to elsewhere, or a file that he may read. It goes.
fn begin(partial: &Path) -> io::Result<fs::File> {
    match fs::remove_file(partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(partial)
}

/// Copies the backup that is on its way.
async fn copy(connection: &mut Connection, status: u16, partial: &Path) -> anyhow::Result<Summary> {
    let context = || format!("cannot write {}", partial.display());
    let mut out = begin(partial).with_context(context)?;
    while let Some(part) = connection.piece().await? {
        ensure!(status == 200, "the API server refuses ({status}): {}", wire::said(part));
        out.write_all(part).with_context(context)?;
    }
    ensure!(status == 200, "the API server refuses ({status})");
    out.sync_all().with_context(context)?;
    backup::verify(partial).context("what the API server sent is not whole; try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_sound() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let said = || sound(&store).err().map(|error| format!("{error:#}"));
        assert!(said().is_some_and(|why| why.contains("no store")));
        fs::create_dir(&store).expect("made");
        assert!(said().is_some_and(|why| why.contains("no store")), "it lost all of its files");
        // As one that may not be entered; tests run as root.
        let within = dir.path().join("file");
        fs::write(&within, "").expect("written");
        assert!(sound(&within.join("store")).is_err_and(|why| format!("{why:#}").contains("cannot look")));
    }

    #[test]
    fn a_torn_end_is_told() {
        let torn = |may_have_counted| Some(Torn { bytes: 21, may_have_counted });
        for (torn, said) in [(None, "sound"), (torn(false), "sound, with 21 bytes"), (torn(true), "readable but for")] {
            assert!(verdict(torn).starts_with(said), "{torn:?}");
        }
    }

    #[test]
    fn a_backup_begins_with_a_file_of_its_own() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        let (partial, other) = (dir.path().join("monday.partial"), dir.path().join("other"));
        fs::write(&other, "precious").expect("written");
        std::os::unix::fs::symlink(&other, &partial).expect("linked");
        for _ in 0..2 {
            begin(&partial).expect("begun").write_all(b"secret").expect("written");
            assert_eq!(fs::read_to_string(&other).expect("read"), "precious");
            let there = fs::symlink_metadata(&partial).expect("it is there");
            assert!(there.is_file() && there.permissions().mode() & 0o777 == 0o600, "{there:?}");
            fs::set_permissions(&partial, fs::Permissions::from_mode(0o666)).expect("opened for all");
        }
    }

    #[test]
    fn a_backup_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let (partial, file) = (dir.path().join("monday.partial"), dir.path().join("monday"));
        let left = || fs::read_dir(dir.path()).expect("read").count();
        fs::write(&partial, "half").expect("written");
        assert!(settle::<()>(Err(anyhow::anyhow!("the disk is full")), &partial, &file).is_err());
        assert_eq!(left(), 0);
        // Ended before there was a file.
        assert!(settle::<()>(Err(anyhow::anyhow!("no permission")), &partial, &file).is_err());
        fs::write(&partial, "all").expect("written");
        settle(Ok(()), &partial, &file).expect("named");
        assert_eq!((left(), fs::read_to_string(&file).expect("read")), (1, "all".to_owned()));
    }
}
