//! Looks for what is left of an instance's pod, also where nobody knows any more which pod that was.

use std::io;
use std::path::Path;

use super::leaving;
use crate::handler::effects::Sought;

/// Whether any process of an instance is left: of its pod or, where that is not known, any that bears the instance's
/// UID on its command line, as QEMU, its monitor and the launcher do. What holds container disks of a pod that goes is
/// asked to end before.
///
/// # Errors
/// Processes could not be listed: then nobody knows.
pub(super) fn any_process_left(proc: &Path, sought: &Sought) -> io::Result<bool> {
    if sought.pod_uid.is_empty() {
        return carrack_processes::any_bears(proc, &sought.uid);
    }
    if sought.ends_disks {
        leaving::end_disks(proc, &sought.pod_uid)?;
    }
    carrack_processes::any_left(proc, &sought.pod_uid)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_instance_whose_pod_nobody_knows_is_found_by_its_uid() {
        let dir = tempfile::tempdir().expect("a directory");
        let process = |pid: &str, line: &str| {
            fs::create_dir_all(dir.path().join(pid)).expect("made");
            fs::write(dir.path().join(pid).join("cmdline"), line).expect("written");
        };
        process("1", "init\0");
        process("50", "qemu-system-x86_64\0-chardev\0socket,path=/private/1111-2222/serial\0");
        process("self", "cat\0/3333-4444\0");
        fs::create_dir(dir.path().join("90")).expect("made");
        let sought = |uid: &str| Sought { uid: uid.to_owned(), ..Sought::default() };
        let left = |uid: &str| any_process_left(dir.path(), &sought(uid)).expect("listed");
        assert!(left("1111-2222"));
        assert!(!left("3333-4444"));
        assert!(any_process_left(dir.path(), &sought("")).is_err());
        assert!(any_process_left(&dir.path().join("none"), &sought("1111-2222")).is_err());
    }
}
