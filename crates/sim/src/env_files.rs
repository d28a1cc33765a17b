//! Files with variables: an init container writes one into a volume of its pod, and the next container has a variable from it.
//!
//! ```text
//!   the init container ends well ─▶ the file is there ─▶ the kubelet reads it, or fails ─▶ a container with the variable
//! ```
//!
//! The variable may lack where its file is not there. That it cannot be read does not say so.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Rng;
use carrack_kubelet::Op;
use carrack_kubelet::runtime::ContainerSpec;
use carrack_kubelet::spec::env_file::{EnvFile, EnvFiles, EnvText};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Observer, text};
use crate::wants::Want;
use crate::workload::{Act, What, delete, mounting};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "variables-come-from-their-files";
/// The name of this part of the work.
pub(crate) const PART: &str = "env files";

/// The variable, and the name of the file that it is from.
const VARIABLE: &str = "WRITTEN";
const FILE: &str = "env";
/// The volume, which is mounted under this name.
pub(crate) const VOLUME: &str = "vars";
/// What an init container with this variable writes there.
pub(crate) const WRITES: &str = "WRITES";
/// One read in so many fails, where anything does.
pub(crate) const FAILS_ONE_IN: u64 = 3;
/// How long it takes to write a file.
pub(crate) const TAKES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// Pods with such files, each with a value of its own.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..2 + rng.below(2) {
        let name = format!("told{n}");
        let at = between(rng, Duration::from_secs(1), safety / 2);
        let mut object = mounting(&name, 1 + rng.below(3), VOLUME, "emptyDir", json!({}));
        let main = &mut object["spec"]["containers"][0];
        let mut writer = main.clone();
        writer["name"] = "writer".into();
        writer["env"] = json!([{"name": WRITES, "value": format!("{VARIABLE}='{n}'")}]);
        let file = json!({"volumeName": VOLUME, "path": FILE, "key": VARIABLE, "optional": true});
        let variables = json!([main["env"][0], {"name": VARIABLE, "valueFrom": {"fileKeyRef": file}}]);
        main["env"] = variables;
        object["spec"]["initContainers"] = json!([writer]);
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        let lives = between(rng, Duration::from_secs(5), safety);
        if at + lives < safety && rng.one_in(2) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// Whether an operation reads such files.
pub(crate) fn is_read(op: &Op) -> bool {
    matches!(op, Op::ReadEnvFiles(_))
}

/// The file that a container writes when it ends well, and what it writes there.
pub(crate) fn written_by(spec: &ContainerSpec) -> Option<(String, String)> {
    let (_, text) = spec.env.iter().find(|(name, _)| name == WRITES)?;
    let volume = spec.mounts.iter().find(|mount| mount.container_path == format!("/{VOLUME}"))?;
    Some((format!("{}/{FILE}", volume.host_path), text.clone()))
}

/// The files that containers of a node have written, by path.
#[derive(Debug, Default)]
pub(crate) struct Written(BTreeMap<String, String>);

impl Written {
    pub(crate) fn write(&mut self, (path, text): (String, String)) {
        self.0.insert(path, text);
    }

    /// What is in files, each of the directory of its volume.
    pub(crate) fn read(&self, files: BTreeMap<EnvFile, String>) -> EnvFiles {
        let with_text = |(file, dir): (EnvFile, String)| {
            let text = self.0.get(&format!("{dir}/{}", file.1)).cloned().map(EnvText);
            (file, text)
        };
        files.into_iter().map(with_text).collect()
    }

    /// A volume goes, and what is in it.
    pub(crate) fn forget(&mut self, volume: &str) {
        let inside = format!("{volume}/");
        self.0.retain(|path, _| !path.starts_with(&inside));
    }
}

/// What a planted bug takes files for that could not be read.
pub(crate) fn absent(files: BTreeMap<EnvFile, String>) -> EnvFiles {
    Written::default().read(files)
}

/// A container was made: with the variables that its pod's files have.
pub(crate) fn used(spec: &ContainerSpec, observer: &Observer, breaches: &mut Vec<Breach>) {
    let Some(pod) = observer.pod(&spec.pod) else { return };
    let main = pod.pointer("/spec/containers/0").filter(|main| text(main, "/name") == spec.name);
    let from_file = main.and_then(|main| main.pointer("/env/1/valueFrom/fileKeyRef"));
    let wanted = pod.pointer("/spec/initContainers/0/env/0/value").and_then(Value::as_str);
    let (Some(_), Some(wanted)) = (from_file, wanted) else { return };
    let has = spec.env.iter().find(|(name, _)| name == VARIABLE).map(|(_, value)| format!("{VARIABLE}='{value}'"));
    if has.as_deref() != Some(wanted) {
        let what = format!("{} of {} is made with {has:?}, and its file says {wanted:?}", spec.name, spec.pod);
        breaches.push(Breach::new(NAME, what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_until_its_volume_goes() {
        let file: EnvFile = (VOLUME.into(), FILE.into());
        let asked = || BTreeMap::from([(file.clone(), "/pods/1/vars".to_owned())]);
        let mut written = Written::default();
        let found = |written: &Written| written.read(asked())[&file].clone();
        assert_eq!(found(&written), None);
        written.write(("/pods/1/vars/env".into(), "K='v'".into()));
        written.forget("/pods/1/var");
        assert_eq!(found(&written), Some(EnvText("K='v'".into())));
        assert_eq!(absent(asked())[&file], None);
        written.forget("/pods/1/vars");
        assert_eq!(found(&written), None);
    }
}
