//! Whether the kubelet's CPU manager gives whole CPUs to pods: by the state that it keeps on disk, which is in upstream's
//! format (`cpu_manager_state` in pkg/kubelet/cm/cpumanager/state).

use std::path::{Path, PathBuf};
use std::time::Duration;

use carrack_engine::shell::EventSink;
use serde_json::Value;

use crate::handler::effects::In;

/// How often the state is looked at; it changes when the kubelet is started with other settings.
const LOOK: Duration = Duration::from_secs(10);

/// Tells how it is, for ever: at first, and when it has changed. What cannot be read says nothing.
pub(super) async fn follow(kubelet_dir: PathBuf, events: EventSink<In>) {
    let path = kubelet_dir.join("cpu_manager_state");
    let mut told = None;
    loop {
        let at = path.clone();
        let found = tokio::task::spawn_blocking(move || is_static(&at)).await.ok().flatten();
        if let Some(is_on) = found.filter(|_| found != told) {
            events.send(In::CpuManager(is_on));
            told = found;
        }
        tokio::time::sleep(if told.is_some() { LOOK } else { LOOK / 10 }).await;
    }
}

fn is_static(path: &Path) -> Option<bool> {
    let state: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    state["policyName"].as_str().map(|policy| policy == "static")
}

#[cfg(test)]
mod tests {
    use super::is_static;

    #[test]
    fn policies() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cpu_manager_state");
        assert_eq!(is_static(&path), None);
        for (text, wanted) in [
            (r#"{"policyName":"static","defaultCpuSet":"0-1","checksum":1}"#, Some(true)),
            (r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#, Some(false)),
            ("{", None),
            ("{}", None),
        ] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(is_static(&path), wanted, "{text}");
        }
    }
}
