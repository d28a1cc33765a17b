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
    /// The options that go with a call, as JSON; with more, named without `kubernetes.io/`. The user's win.
    #[must_use]
    pub fn options(&self, more: impl IntoIterator<Item = (String, String)>) -> String {
        let access = if self.read_only { "ro" } else { "rw" };
        let own = [("fsType", self.fs_type), ("readwrite", access), ("pvOrVolumeName", self.name)];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).chain(more);
        let own = own.map(|(name, value)| (format!("kubernetes.io/{name}"), value));
        let users = self.options.iter().map(|(name, value)| (name.clone(), value.clone()));
        let all: Map<String, Value> = own.chain(users).map(|(name, value)| (name, Value::String(value))).collect();
        Value::Object(all).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_last_word() {
        let users = BTreeMap::from([("size".to_owned(), "1G".to_owned())]);
        let volume = Volume { name: "pv", fs_type: "ext4", read_only: true, options: &users };
        let read = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
        let plain = serde_json::json!({"kubernetes.io/fsType": "ext4", "kubernetes.io/readwrite": "ro",
            "kubernetes.io/pvOrVolumeName": "pv", "size": "1G"});
        assert_eq!(read(volume.options([])), plain);
        let users = BTreeMap::from([("kubernetes.io/pod.name".to_owned(), "mine".to_owned())]);
        let volume = Volume { options: &users, read_only: false, ..volume };
        let told = read(volume.options([("pod.name".to_owned(), "p".to_owned())]));
        assert_eq!(told["kubernetes.io/pod.name"], "mine");
        assert_eq!(told["kubernetes.io/readwrite"], "rw");
    }
}
