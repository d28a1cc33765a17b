//! Names for containers' logs in one directory, for collectors of logs that look nowhere else (upstream:
//! `pkg/kubelet/kuberuntime/legacy.go`): `/var/log/containers/<pod>_<namespace>_<container>-<id>.log`.
//!
//! The directory lies beside that of the pods' logs, where this one is called `pods`, as it is by default.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::runtime::PodRef;

const SUFFIX: &str = ".log";
/// Longest name of a file, in bytes; those of pods, containers and their ids are ASCII.
const MAX_NAME: usize = 255;

/// The directory of links to the logs of all pods; none where theirs has another name.
fn directory(log_dir: &Path) -> Option<PathBuf> {
    (log_dir.file_name()? == "pods").then(|| log_dir.with_file_name("containers"))
}

/// The link to a log, `<all pods>/<pod>/<container>/<attempt>.log`.
fn link(log: &Path, pod: &PodRef, container: &str, id: &str) -> Option<PathBuf> {
    let directory = directory(log.ancestors().nth(3)?)?;
    let name = format!("{}_{}_{container}-{id}", pod.name, pod.namespace);
    let name: String = name.chars().take(MAX_NAME - SUFFIX.len()).collect();
    Some(directory.join(name + SUFFIX))
}

/// Makes the link to the log of a container.
///
/// # Errors
/// What the disk says.
pub fn make(log: &Path, pod: &PodRef, container: &str, id: &str) -> io::Result<()> {
    let Some(link) = link(log, pod, container, id) else { return Ok(()) };
    fs::create_dir_all(link.parent().unwrap_or(Path::new("/")))?;
    match symlink(log, link) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Removes it.
///
/// # Errors
/// What the disk says.
pub fn remove(log: &Path, pod: &PodRef, container: &str, id: &str) -> io::Result<()> {
    link(log, pod, container, id).map_or(Ok(()), |link| super::remove::file(&link))
}

/// Removes all links to what is below the directory of a pod's logs: its containers may be long gone.
///
/// # Errors
/// What the disk says.
pub fn remove_all(pod_log_dir: &Path) -> io::Result<()> {
    let Some(directory) = pod_log_dir.parent().and_then(directory) else { return Ok(()) };
    super::remove::links(&directory, pod_log_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_have_links_while_they_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let pod = PodRef { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        let log = |container: &str| dir.path().join(format!("pods/n_p_u/{container}/0.log"));
        let shown = || -> Vec<String> {
            let entries = fs::read_dir(dir.path().join("containers")).into_iter().flatten().flatten();
            let mut names: Vec<String> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        for (container, id) in [("a", "1"), ("b", "2"), ("c", "3"), ("a", "1")] {
            make(&log(container), &pod, container, id).unwrap();
        }
        assert_eq!(shown(), ["p_n_a-1.log", "p_n_b-2.log", "p_n_c-3.log"]);
        assert_eq!(fs::read_link(dir.path().join("containers/p_n_a-1.log")).unwrap(), log("a"));
        remove(&log("a"), &pod, "a", "1").unwrap();
        remove(&log("a"), &pod, "a", "1").unwrap();
        let other = PodRef { name: "q".into(), uid: "v".into(), ..pod.clone() };
        make(&dir.path().join("pods/n_q_v/a/0.log"), &other, "a", "4").unwrap();
        remove_all(&dir.path().join("pods/n_p_u")).unwrap();
        assert_eq!(shown(), ["q_n_a-4.log"]);
        // Long names are cut, and still end as all do.
        let long = PodRef { name: "x".repeat(250), ..pod };
        let name = link(&log("a"), &long, "a", &"f".repeat(64)).unwrap().file_name().unwrap().to_owned();
        assert!(name.len() == MAX_NAME && name.to_str().unwrap().ends_with(SUFFIX), "{name:?}");
        // Where logs lie elsewhere nothing is put beside them.
        let elsewhere = dir.path().join("logs/n_p_u/a/0.log");
        make(&elsewhere, &other, "a", "5").unwrap();
        assert_eq!(shown().len(), 1);
        remove_all(&dir.path().join("logs/n_p_u")).unwrap();
    }
}
