//! Crates: what each manifest must say, and that dependencies point one way.
//!
//! ```text
//!   types, cel, schema, store ─► engine, auth, images ─► cores ─► simulator ─► binary ─► end-to-end tests
//! ```

use super::{Complaint, Tree};

/// Each crate with its layer. A crate depends on crates of lower layers only.
const LAYERS: [(&str, u8); 30] = [
    ("types", 0),
    ("cel", 1),
    ("csi", 0),
    ("disks", 0),
    ("networks", 0),
    ("processes", 0),
    ("deviceplugin", 0),
    ("pack", 0),
    ("plot", 0),
    ("schema", 2),
    ("store", 1),
    ("flexvolume", 1),
    ("images", 1),
    ("engine", 2),
    ("auth", 2),
    ("noderuntime", 2),
    ("apiserver", 3),
    ("scheduler", 3),
    ("controllers", 3),
    ("hollow", 3),
    ("gpu-extender", 4),
    ("gpu-plugin", 5),
    ("storage", 3),
    ("kubelet", 3),
    ("launcher", 3),
    ("virt", 4),
    ("sim", 5),
    ("carrack", 6),
    ("tests", 7),
    ("xtask", 7),
];

/// Manifests outside the workspace, which cannot inherit from it.
const OUTSIDE: [&str; 1] = ["xtask/schemas/Cargo.toml"];

pub fn check(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with("/Cargo.toml")) {
        if OUTSIDE.contains(&path.as_str()) {
            continue;
        }
        let Some(name) = path.split('/').rev().nth(1) else { continue };
        for needed in
            ["license.workspace = true", "edition.workspace = true", "[lints]\nworkspace = true", "description = \""]
        {
            if !text.contains(needed) {
                complaints.push(format!("{path}: {:?} is missing", needed.replace('\n', " ")));
            }
        }
        let Some(layer) = layer_of(name) else {
            complaints.push(format!("{path}: the crate has no layer in xtask/src/tidy/crates.rs"));
            continue;
        };
        for dependency in dependencies(text) {
            let Some(below) = layer_of(dependency) else { continue };
            if below >= layer {
                complaints.push(format!("{path}: {name} may not depend on {dependency}: dependencies point one way"));
            }
        }
    }
    complaints
}

fn layer_of(name: &str) -> Option<u8> {
    LAYERS.iter().find(|(crate_name, _)| *crate_name == name).map(|(_, layer)| *layer)
}

/// The workspace's crates among the dependencies. Those for tests may point anywhere.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let mut counts = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            counts = line == "[dependencies]" || line == "[build-dependencies]";
        }
        let name = line.split(['.', ' ', '=']).next()?;
        counts.then(|| name.strip_prefix("carrack-")).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::complaints;

    fn verdict(path: &str, dependencies: &str, expected: &[&str]) {
        let manifest = format!(
            "[package]\ndescription = \"x\"\nedition.workspace = true\nlicense.workspace = true\n\n[lints]\nworkspace = true\n\n{dependencies}"
        );
        assert_eq!(complaints(super::check, &[(path, &manifest)]), expected, "{path}: {dependencies}");
    }

    #[test]
    fn dependencies_point_one_way() {
        verdict("crates/engine/Cargo.toml", "[dependencies]\ncarrack-types.workspace = true\n", &[]);
        verdict(
            "crates/engine/Cargo.toml",
            "[dependencies]\ncarrack-kubelet = { workspace = true }\n",
            &["crates/engine/Cargo.toml: engine may not depend on kubelet: dependencies point one way"],
        );
        verdict(
            "crates/kubelet/Cargo.toml",
            "[dependencies]\ncarrack-virt.workspace = true\n",
            &["crates/kubelet/Cargo.toml: kubelet may not depend on virt: dependencies point one way"],
        );
        verdict("crates/engine/Cargo.toml", "[dev-dependencies]\ncarrack-apiserver.workspace = true\n", &[]);
        verdict(
            "crates/new/Cargo.toml",
            "",
            &["crates/new/Cargo.toml: the crate has no layer in xtask/src/tidy/crates.rs"],
        );
    }

    #[test]
    fn manifests_say_what_they_must() {
        let found = complaints(super::check, &[("crates/types/Cargo.toml", "[package]\n")]);
        assert_eq!(found.len(), 4, "{found:?}");
    }
}
