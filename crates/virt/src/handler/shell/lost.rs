//! Looks for what is left of an instance's pod, also where nobody knows any more which pod that was.

use std::io;
use std::path::Path;

use crate::handler::effects::Place;

/// Whether any process of an instance is left: of its pod or, where that is not known, any that bears the instance's
/// UID on its command line, as QEMU, its monitor and the launcher do.
///
/// # Errors
/// Processes could not be listed: then nobody knows.
pub(super) fn any_process_left(proc: &Path, place: &Place) -> io::Result<bool> {
    if !place.pod_uid.is_empty() {
        return carrack_processes::any_left(proc, &place.pod_uid);
    }
    carrack_processes::any_bears(proc, &place.uid)
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
        let place = |uid: &str| Place { uid: uid.to_owned(), ..Place::default() };
        let left = |uid: &str| any_process_left(dir.path(), &place(uid)).expect("listed");
        assert!(left("1111-2222"));
        assert!(!left("3333-4444"));
        assert!(any_process_left(dir.path(), &place("")).is_err());
        assert!(any_process_left(&dir.path().join("none"), &place("1111-2222")).is_err());
    }
}
