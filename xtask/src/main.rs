//! The project's own chores: `cargo xtask <chore>`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

mod schemas;
mod tidy;

const USAGE: &str = "\
usage: cargo xtask <chore>

  tidy      check what rustfmt and clippy do not: sizes, headers, blanks, the direction of dependencies, the README
  schemas   make the schemas of the built-in kinds again
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let root = root()?;
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(&root),
        Some("schemas") => schemas::run(&root),
        Some("-h" | "--help") => {
            print!("{USAGE}");
            Ok(())
        }
        Some(other) => bail!("there is no chore {other:?}\n{USAGE}"),
        None => bail!("which chore?\n{USAGE}"),
    }
}

/// The workspace's directory: the one above this crate.
fn root() -> anyhow::Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).context("xtask lies in no directory")
}
