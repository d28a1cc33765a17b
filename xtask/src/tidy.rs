//! `cargo xtask tidy`: what a reviewer should not have to look for.
//!
//! Each check takes the tree as a map from path to text and returns complaints, so that the tests hand it small trees.
//! The tree is what git tracks, and what it would track: untracked files that are not ignored.

mod crates;
mod docs;
mod examples;
mod text;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

/// Paths below the root, with `/`, and their text. Files that are no text are left out.
pub type Tree = BTreeMap<String, String>;

/// Something to mend, with the place.
pub type Complaint = String;

/// Runs all checks on the repository at `root`.
///
/// # Errors
/// The tree cannot be read, or is not tidy.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let tree = read(root)?;
    let complaints = check(&tree);
    if complaints.is_empty() {
        println!("tidy: {} files", tree.len());
        return Ok(());
    }
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    bail!("{} things to mend", complaints.len())
}

fn check(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = text::check(tree);
    complaints.extend(crates::check(tree));
    complaints.extend(docs::check(tree));
    complaints.extend(examples::check(tree));
    complaints
}

fn read(root: &Path) -> anyhow::Result<Tree> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut tree = Tree::new();
    for path in output.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
        let path = String::from_utf8_lossy(path).into_owned();
        // A file that was deleted and not yet committed is listed and not there; a link is not followed.
        let Ok(meta) = fs::symlink_metadata(root.join(&path)) else { continue };
        if !meta.is_file() {
            continue;
        }
        let bytes = fs::read(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            tree.insert(path, text);
        }
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the checks say about a tree of these files, place by place.
    pub fn complaints(check: impl Fn(&Tree) -> Vec<Complaint>, files: &[(&str, &str)]) -> Vec<Complaint> {
        check(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn this_repository_can_be_read() {
        let root = crate::root().expect("a root");
        let tree = read(&root).expect("a tree");
        assert!(tree.contains_key("xtask/src/tidy.rs"));
        assert!(tree.keys().all(|path| !path.starts_with("target/")));
    }
}
