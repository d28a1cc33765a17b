//! The machine's watchdog, held by the program on a real kernel: the machine is a guest, whose kernel has a watchdog of its own.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking, and what it needs is there")]

use std::path::{Path, PathBuf};
use std::process::Command;

use carrack_e2e::{Run, assert_contains, carrack};
use carrack_images::elf;
use carrack_images::initramfs::Initramfs;

/// The newest cloud kernel that is installed, and the directory with its drivers.
fn kernel() -> (PathBuf, PathBuf) {
    let names =
        std::fs::read_dir("/boot").expect("a directory").filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let releases = names.filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned()));
    let release = releases.filter(|release| release.ends_with("-cloud-amd64")).max().expect("linux-image-cloud-amd64");
    (Path::new("/boot").join(format!("vmlinuz-{release}")), Path::new("/lib/modules").join(release))
}

/// Boots a machine that runs `script` as its first process, and returns what its console said until it was reset or was
/// switched off.
fn boot(script: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, drivers) = kernel();
    let read = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // What is for debuggers would be most of the machine's memory.
    let program = directory.path().join("carrack");
    Run::new(Command::new("strip")).args(&["-o", &program.to_string_lossy(), &carrack().to_string_lossy()]).done();
    let mut tree = Initramfs::new();
    for path in ["/dev", "/proc", "/sys", "/tmp"] {
        tree.directory(path, 0o755);
    }
    tree.character("/dev/console", 0o600, 5, 1);
    tree.file("/bin/busybox", 0o755, read(Path::new("/bin/busybox")));
    tree.file("/bin/carrack", 0o755, read(&program));
    for (path, source) in elf::closure(&program).expect("its libraries") {
        let name = path.file_name().expect("a name").to_string_lossy();
        // Where the loader looks without a cache.
        let directory = if name.starts_with("ld-linux") { "/lib64" } else { "/lib/x86_64-linux-gnu" };
        tree.file(&format!("{directory}/{name}"), 0o755, read(&source));
    }
    for driver in ["watchdog", "softdog"] {
        let file = format!("{driver}.ko");
        tree.file(&format!("/{file}"), 0o644, read(&drivers.join("kernel/drivers/watchdog").join(file)));
    }
    let common = "#!/bin/busybox sh\n/bin/busybox --install -s /bin\n\
        mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys\n\
        insmod /watchdog.ko\n\
        hold() { rm -f /tmp/said; carrack node watchdog --timeout-s 6 >/tmp/said 2>&1 & pid=$!; until grep -qs ready /tmp/said; do sleep 0.1; done; cat /tmp/said; }\n";
    tree.file("/init", 0o755, format!("{common}{script}\necho 'it was not reset'\npoweroff -f\n"));
    let initrd = directory.path().join("initrd");
    std::fs::write(&initrd, tree.cpio()).expect("written");
    let (image, initrd) = (image.to_string_lossy(), initrd.to_string_lossy());
    let machine =
        ["-accel", "tcg", "-machine", "q35", "-m", "1024", "-nodefaults", "-no-user-config", "-display", "none"];
    let boots = ["-no-reboot", "-serial", "stdio", "-kernel", &image, "-initrd", &initrd];
    let append = ["-append", "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on no_timer_check"];
    let qemu = Run::new(Command::new("qemu-system-x86_64")).args(&machine).args(&boots).args(&append);
    let output = qemu.limit_s(500).output();
    assert_eq!(output.code, Some(0), "{output}");
    output.stdout
}

#[test]
fn it_is_petted_closed_in_good_order_and_resets_a_machine_whose_agent_stands_still() {
    let said = boot(
        "carrack node watchdog /dev/watchdog7
        insmod /softdog.ko
        carrack node watchdog --timeout-s 60
        hold
        carrack node watchdog
        kill -TERM $pid; wait $pid; echo \"ended with $?\"; cat /tmp/said
        sleep 8; echo 'nothing bites'
        hold
        sleep 8; echo 'it was petted'
        kill -STOP $pid
        sleep 20",
    );
    let parts = [
        "/dev/watchdog7 is not there: the machine has no watchdog, or its driver is not loaded",
        "Software Watchdog makes 60 s of the 60 s asked for; 6 to 10 s would do",
        "ready: Software Watchdog resets the machine after 6 s",
        "/dev/watchdog is in use by another process",
        "closed in good order",
        "ended with 0",
        "nothing bites",
        "it was petted",
        "Initiating system reboot",
    ];
    assert_contains(&said, &parts);
    assert!(!said.contains("it was not reset"), "{said}");
}

#[test]
fn one_that_nobody_may_stop_says_so_and_bites_when_its_agent_ends() {
    let said = boot(
        "insmod /softdog.ko nowayout=1\nhold\nkill -TERM $pid; wait $pid; echo \"ended with $?\"; cat /tmp/said\nsleep 20",
    );
    let parts =
        ["after 6 s, and cannot be stopped", "does not let it be stopped", "ended with 1", "Initiating system reboot"];
    assert_contains(&said, &parts);
    assert!(!said.contains("it was not reset"), "{said}");
}
