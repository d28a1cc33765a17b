//! `cargo xtask schemas`: writes `crates/schema/data/types.bin` anew.
//!
//! The generator is a crate of its own outside the workspace (`xtask/schemas`), because it turns on
//! k8s-openapi's `schemars` feature, which would make every other build slower.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

/// Runs the generator. `root` is the repository's root folder.
///
/// # Errors
/// When cargo cannot be run or the generator fails.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let archive = root.join("crates/schema/data/types.bin");
    let status = Command::new("cargo")
        .args(["run", "--quiet", "--locked", "--manifest-path"])
        .arg(root.join("xtask/schemas/Cargo.toml"))
        .arg("--target-dir")
        .arg(root.join("target/schemas"))
        .arg("--")
        .arg(&archive)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the generator of schemas failed: {status}");
    Ok(())
}
