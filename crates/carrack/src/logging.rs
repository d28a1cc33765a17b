//! Logs of long-running commands: one line an event on standard error, chosen by `--log-level` or `CARRACK_LOG`, or by
//! `--v` as with upstream's components; an API server can be told another choice while it runs (`PUT /debug/flags/v`).
//! systemd's journal notes the time of each line itself.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use anyhow::{Context as _, bail};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, reload};

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Begins logging. `filter` is a level (`info`) or a list of `module=level`.
///
/// # Errors
/// The filter makes no sense, or logging was begun before.
pub fn start(filter: &str) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(read(filter)?);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(crate::output::is_fancy())
        // Of a line that cannot be written it would tell by `eprintln`, which panics where that cannot be written
        // either: a full disk, or a reader that went away, would end whatever role has something to say.
        .log_internal_errors(false);
    let lines = if goes_to_journal() { lines.without_time().boxed() } else { lines.boxed() };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
        .map_err(|error| anyhow::anyhow!("logging cannot begin: {error}"))?;
    // Set once, because the line above fails the second time.
    FILTER.get_or_init(|| handle);
    Ok(())
}

/// Whether systemd's journal reads standard error: it says by `JOURNAL_STREAM` which file that is (systemd.exec(5)), which
/// a process that has inherited the variable may have exchanged.
fn goes_to_journal() -> bool {
    let stderr = std::fs::metadata("/proc/self/fd/2").map(|file| (file.dev(), file.ino()));
    let named = std::env::var("JOURNAL_STREAM").ok();
    matches!((stderr, named.as_deref().and_then(journal)), (Ok(own), Some(theirs)) if own == theirs)
}

/// The file that `JOURNAL_STREAM` names: device and inode.
fn journal(text: &str) -> Option<(u64, u64)> {
    let (device, inode) = text.split_once(':')?;
    Some((device.parse().ok()?, inode.parse().ok()?))
}

/// Logs by another filter from now on.
///
/// # Errors
/// The filter makes no sense, or nothing is logged in this process.
pub fn set(filter: &str) -> anyhow::Result<()> {
    let filter = read(filter)?;
    FILTER.get().context("this process does not log")?.reload(filter).context("the log cannot be changed")
}

/// The filter that a number of upstream's `--v` stands for.
#[must_use]
pub fn of_verbosity(level: u8) -> &'static str {
    match level {
        0..=3 => "info",
        // What libraries have to say at that level is of no use to anybody but them.
        4..=5 => "debug,h2=info,hyper=info,hyper_util=info,rustls=info,tower=info",
        _ => "trace",
    }
}

fn read(filter: &str) -> anyhow::Result<EnvFilter> {
    // The filter would take a word for a module, of which there is none with the name of a misspelt level: nothing would be
    // logged. Spans, in brackets, have commas of their own.
    let bare = |item: &&str| !item.is_empty() && !item.contains('=') && item.parse::<LevelFilter>().is_err();
    if !filter.contains('[')
        && let Some(word) = filter.split(',').map(str::trim).find(bare)
    {
        bail!("{word:?} is no log level: off, error, warn, info, debug and trace are, and lists of module=level");
    }
    EnvFilter::builder().parse(filter).with_context(|| format!("{filter:?} is no log level"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set for the run of this program whose standard error is full.
    const FULL: &str = "CARRACK_TEST_FULL";

    /// What cannot be written is lost, and nothing else happens.
    #[test]
    fn who_cannot_say_it_goes_on() {
        if std::env::var_os(FULL).is_some() {
            start("info").expect("logging begins");
            tracing::info!("lost");
            let mut progress = crate::progress::Progress::new();
            progress.step("lost, too");
            progress.note("and this");
            crate::output::say("and that");
            return;
        }
        let full = std::fs::File::options().write(true).open("/dev/full").expect("the device");
        let status = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "logging::tests::who_cannot_say_it_goes_on", "--nocapture"])
            .env(FULL, "1")
            .stdout(std::process::Stdio::null())
            .stderr(full)
            .status()
            .expect("it runs");
        assert!(status.success(), "{status}");
    }

    #[test]
    fn the_journal_is_named_by_device_and_inode() {
        for (text, want) in [("8:1234", Some((8, 1234))), ("8", None), ("8:x", None), ("", None), ("1:2:3", None)] {
            assert_eq!(journal(text), want, "{text}");
        }
    }

    #[test]
    fn verbosities_are_filters() {
        for level in 0..=10 {
            assert!(read(of_verbosity(level)).is_ok(), "{level}");
        }
        assert!(read("nonsense=level").is_err());
    }

    #[test]
    fn filters_are_levels_and_lists_of_modules() {
        for (filter, wrong) in [
            ("info", None),
            ("INFO", None),
            ("off", None),
            ("", None),
            ("carrack_store=debug", None),
            ("info,carrack_store=debug,h2=off", None),
            ("info,", None),
            ("[request]=trace", None),
            ("bogus", Some("bogus")),
            ("INFOO", Some("INFOO")),
            ("carrack_store=debug,inof", Some("inof")),
            ("carrack_store", Some("carrack_store")),
        ] {
            let why = read(filter).err().map(|error| error.to_string());
            let named = why.as_deref().and_then(|why| why.strip_prefix('"')?.split_once('"')).map(|(word, _)| word);
            assert_eq!(named, wrong, "{filter}");
            assert!(why.is_none_or(|why| why.contains("error, warn, info")), "{filter}");
        }
    }
}
