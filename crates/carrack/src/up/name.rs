//! The name of the one node in this process, which outlasts the host's.
//!
//! A kubelet that comes back under another name finds none of its pods at the API server, and stops what runs there:
//! every container and every guest of a host that was given another name, by its administrator or by its network. So
//! the first name is written down below the data directory, and holds until `carrack down` has stopped all of it.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use carrack_noderuntime::Layout;

use crate::roles;

fn file(layout: &Layout) -> PathBuf {
    layout.data_dir().join("node-name")
}

/// The node's name: the one that was asked for, else the one that it has, else the host's.
///
/// # Errors
/// Another one is asked for than the one that it has, it cannot be read, or the host has no name that a node can have.
pub fn choose(layout: &Layout, given: Option<&str>) -> anyhow::Result<String> {
    let Some(has) = read(&file(layout))? else { return roles::node_name(given) };
    match given {
        Some(other) if other != has => bail!(
            "the node in {} is called {has}, and a node called {other} (--node-name) would stop all that runs there: \
             leave --node-name out, or take the cluster down first (carrack down), which keeps its objects",
            layout.data_dir().display()
        ),
        Some(_) => {}
        None => {
            if let Ok(host) = roles::node_name(None)
                && host != has
            {
                tracing::warn!(host, node = has, "the host has another name by now; the node keeps its own");
            }
        }
    }
    Ok(has)
}

/// Writes the name down, for the next start. It is there whole or not at all.
///
/// # Errors
/// It cannot be written.
pub fn keep(layout: &Layout, name: &str) -> anyhow::Result<()> {
    let path = file(layout);
    if read(&path)?.is_some() {
        return Ok(());
    }
    let written = || -> io::Result<()> {
        let part = path.with_extension("part");
        let mut new = fs::File::create(&part)?;
        new.write_all(format!("{name}\n").as_bytes())?;
        new.sync_all()?;
        fs::rename(&part, &path)?;
        fs::File::open(layout.data_dir())?.sync_all()
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

/// Nothing of the node runs any more: the next one may have any name.
///
/// # Errors
/// The file cannot be removed.
pub fn forget(layout: &Layout) -> io::Result<()> {
    match fs::remove_file(file(layout)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What was written down; nothing where nothing was.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let name = roles::node_name(Some(text.trim())).with_context(|| format!("{} is damaged", path.display()))?;
    Ok(Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_its_name_until_nothing_of_it_runs() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        let chosen = |given: Option<&str>| choose(&layout, given).map_err(|error| format!("{error:#}"));
        let host = roles::node_name(None).expect("a host with a name");
        assert_eq!((chosen(None), chosen(Some("n1"))), (Ok(host.clone()), Ok("n1".to_owned())));
        keep(&layout, "n1").expect("written");
        keep(&layout, "n2").expect("it stays as it is");
        assert_eq!((chosen(None), chosen(Some("n1"))), (Ok("n1".to_owned()), Ok("n1".to_owned())));
        assert!(chosen(Some("n2")).is_err_and(|why| why.contains("n1") && why.contains("carrack down")));
        fs::write(file(&layout), "no name").expect("written");
        assert!(chosen(None).is_err_and(|why| why.contains("damaged")));
        forget(&layout).expect("removed");
        forget(&layout).expect("there is none");
        assert_eq!(chosen(None), Ok(host));
    }
}
