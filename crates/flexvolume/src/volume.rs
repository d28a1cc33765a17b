//! How a driver is told about a volume (upstream's `NewOptionsForDriver`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A volume, as its spec has it.
#[derive(Clone, Copy, Debug)]
pub struct Volume<'a> {
    /// Name of the PersistentVolume, or of the pod's volume where there is none.
    pub name: &'a str,
    /// File system; empty for the driver's default.
    pub fs_type: &'a str,
    /// For reading alone.
    pub read_only: bool,
    /// The user's options.
    pub options: &'a BTreeMap<String, String>,
}

impl Volume<'_> {
    /// The options that go with a call, as JSON; with more, named without `kubernetes.io/`. A user's option under a name of the
    /// cluster's own is left out: drivers go by what they are told of the pod, and give its secrets to whom it names.
    #[must_use]
    pub fn options(&self, more: impl IntoIterator<Item = (String, String)>) -> String {
        let access = if self.read_only { "ro" } else { "rw" };
        let own = [("fsType", self.fs_type), ("readwrite", access), ("pvOrVolumeName", self.name)];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).chain(more);
        let own = own.map(|(name, value)| (format!("kubernetes.io/{name}"), value));
        let users = self.options.iter().filter(|(name, _)| !is_reserved(name));
        let users = users.map(|(name, value)| (name.clone(), value.clone()));
        let all: Map<String, Value> = own.chain(users).map(|(name, value)| (name, Value::String(value))).collect();
        Value::Object(all).to_string()
    }
}

/// Whether a name is in a namespace that the cluster keeps for itself. Upstream's API server takes no object with one
/// (`validateFlexVolumeSource`, pkg/apis/core/validation).
fn is_reserved(name: &str) -> bool {
    let namespace = name.split('/').next().unwrap_or(name).to_lowercase();
    let is_below = |own: &str| namespace.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    is_below("kubernetes.io") || is_below("k8s.io")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_say_nothing_in_the_clusters_name() {
        let users = BTreeMap::from([("size".to_owned(), "1G".to_owned())]);
        let volume = Volume { name: "pv", fs_type: "ext4", read_only: true, options: &users };
        let read = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
        let plain = serde_json::json!({"kubernetes.io/fsType": "ext4", "kubernetes.io/readwrite": "ro",
            "kubernetes.io/pvOrVolumeName": "pv", "size": "1G"});
        assert_eq!(read(volume.options([])), plain);
        let reserved = ["kubernetes.io/pod.name", "kubernetes.io/pod.uid", "Kubernetes.IO/a", "x.k8s.io/b", "k8s.io"];
        let users = reserved.into_iter().chain(["notkubernetes.io/c", "d"]);
        let users: BTreeMap<_, _> = users.map(|name| (name.to_owned(), "mine".to_owned())).collect();
        let volume = Volume { options: &users, read_only: false, ..volume };
        let told = read(volume.options([("pod.name".to_owned(), "p".to_owned())]));
        let wanted = serde_json::json!({"kubernetes.io/fsType": "ext4", "kubernetes.io/readwrite": "rw",
            "kubernetes.io/pvOrVolumeName": "pv", "kubernetes.io/pod.name": "p",
            "notkubernetes.io/c": "mine", "d": "mine"});
        assert_eq!(told, wanted);
    }
}
