//! The kernel's settings that upstream's kubelet counts on (`setupKernelTunables` of `pkg/kubelet/cm`), for who wants a node that has
//! others not to run (`protectKernelDefaults`).
//!
//! Upstream sets them itself where nobody wants that. Here nobody changes the machine's own settings.

use std::fs;
use std::path::Path;

use crate::effects::OpError;

/// Where the kernel shows its settings.
pub(crate) const SETTINGS: &str = "/proc/sys";

/// What each is to be.
const WANTED: [(&str, i64); 6] = [
    ("vm.overcommit_memory", 1),
    ("vm.panic_on_oom", 0),
    ("kernel.panic", 10),
    ("kernel.panic_on_oops", 1),
    ("kernel.keys.root_maxkeys", 1_000_000),
    ("kernel.keys.root_maxbytes", 25_000_000),
];

/// Whether they are all so.
///
/// # Errors
/// Names those that are not, or that cannot be read.
pub(crate) fn check(settings: &Path) -> Result<(), OpError> {
    let faults: Vec<String> = WANTED.iter().filter_map(|(name, wanted)| fault(settings, name, *wanted)).collect();
    if faults.is_empty() {
        return Ok(());
    }
    Err(OpError::Failed(format!("protectKernelDefaults: {}", faults.join(", "))))
}

fn fault(settings: &Path, name: &str, wanted: i64) -> Option<String> {
    match fs::read_to_string(settings.join(name.replace('.', "/"))) {
        Ok(text) if text.trim().parse::<i64>() == Ok(wanted) => None,
        Ok(text) => Some(format!("{name} has to be {wanted} and is {}", text.trim())),
        Err(error) => Some(format!("{name} has to be {wanted} and cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_differ_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let set = |name: &str, value: i64| {
            let path = dir.path().join(name.replace('.', "/"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        };
        for (name, wanted) in WANTED {
            set(name, wanted);
        }
        check(dir.path()).unwrap();
        set("kernel.panic", 0);
        fs::remove_file(dir.path().join("vm/panic_on_oom")).unwrap();
        let why = check(dir.path()).unwrap_err().to_string();
        for part in ["vm.panic_on_oom has to be 0 and cannot be read", "kernel.panic has to be 10 and is 0"] {
            assert!(why.contains(part), "{why}");
        }
        assert!(!why.contains("overcommit"), "{why}");
    }
}
