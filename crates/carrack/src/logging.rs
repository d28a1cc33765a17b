//! Logs of long-running commands: one line an event on standard error, chosen by `--log-level` or `CARRACK_LOG`.

use std::io;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

/// Begins logging. `filter` is a level (`info`) or a list of `module=level`.
///
/// # Errors
/// The filter makes no sense, or logging was begun before.
pub fn start(filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().parse(filter).with_context(|| format!("{filter:?} is no log level"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(crate::output::is_fancy())
        .try_init()
        .map_err(|error| anyhow::anyhow!("logging cannot begin: {error}"))
}
