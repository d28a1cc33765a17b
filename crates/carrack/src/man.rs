//! `carrack man`: manual pages of what `--help` says, so that the two cannot differ.

use std::fs;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::cli::{Cli, ManArgs};

/// Writes a page for each command.
///
/// # Errors
/// The directory or a page cannot be written.
pub fn run(args: &ManArgs) -> anyhow::Result<()> {
    let dir = &args.dir;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    clap_mangen::generate_to(Cli::command(), dir).with_context(|| format!("cannot write into {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of a command and of all below it that are shown.
    fn files(command: &clap::Command, name: &str) -> Vec<String> {
        let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
        let below = shown.flat_map(|below| files(below, &format!("{name}-{}", below.get_name())));
        std::iter::once(format!("{name}.1")).chain(below).collect()
    }

    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().join("man1");
        run(&ManArgs { dir: dir.clone() }).expect("written");
        let mut expected = files(&Cli::command(), "carrack");
        expected.sort();
        let entries = fs::read_dir(&dir).expect("read").map(|entry| entry.expect("read").file_name());
        let mut found: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
        found.sort();
        assert_eq!(found, expected);
        let page = |name: &str| fs::read_to_string(dir.join(name)).expect("read");
        for name in &found {
            assert!(page(name).contains(".SH NAME") && page(name).contains(".SH SYNOPSIS"), "{name}");
        }
        // Flags, their variables, and what stands behind them.
        let up = page("carrack-up.1").replace('\\', "");
        for part in ["--kubelet-port", "CARRACK_LOG", "10250", "Examples"] {
            assert!(up.contains(part), "{part}: {up}");
        }
        assert!(!up.contains("--boot-id-file"), "what is for tests is not shown");
    }
}
