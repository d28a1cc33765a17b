//! The images as they are really built from this host's packages, and as a real containerd takes them.
#![expect(clippy::expect_used, clippy::panic, reason = "what is not as expected fails the test")]

use carrack_images::{Built, ImageError, build_demo_guest, build_pause, build_virt_launcher, containerd};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The files of an image's layers, read from its tar: path → (mode, owner, length).
fn files(built: &Built) -> BTreeMap<String, (u32, u64, u64)> {
    let mut blobs = BTreeMap::new();
    let mut outer = tar::Archive::new(std::fs::File::open(&built.tar).expect("opened"));
    for entry in outer.entries().expect("a tar") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a path").to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("read");
        blobs.insert(name, bytes);
    }
    let parse = |name: &str| -> serde_json::Value { serde_json::from_slice(&blobs[name]).expect("JSON") };
    let blob =
        |digest: &serde_json::Value| format!("blobs/{}", digest.as_str().expect("a digest").replacen(':', "/", 1));
    let index = parse("index.json");
    assert_eq!(index["manifests"][0]["digest"], built.digest.as_str());
    assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], built.reference.as_str());
    let manifest = parse(&blob(&index["manifests"][0]["digest"]));
    let mut found = BTreeMap::new();
    for layer in manifest["layers"].as_array().expect("layers") {
        let bytes = &blobs[&blob(&layer["digest"])];
        assert_eq!(layer["size"], bytes.len());
        for entry in tar::Archive::new(bytes.as_slice()).entries().expect("a tar") {
            let entry = entry.expect("an entry");
            let header = entry.header();
            let path = entry.path().expect("a path").to_string_lossy().trim_end_matches('/').to_owned();
            let mode = header.mode().expect("a mode");
            found.insert(path, (mode, header.uid().expect("an owner"), header.size().expect("a size")));
        }
    }
    found
}

/// Builds twice into one directory and once into another.
fn check(build: impl Fn(&Path) -> Result<Built, ImageError>, expected: &[(&str, u32, u64)]) {
    let (first, second) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let built = build(first.path()).expect("built");
    assert!(built.fresh);
    let again = build(first.path()).expect("built");
    assert_eq!(again, Built { fresh: false, ..built.clone() });
    let elsewhere = build(second.path()).expect("built");
    assert_eq!(elsewhere.digest, built.digest, "the bytes depend on more than the inputs");
    let files = files(&built);
    for (path, mode, owner) in expected {
        let found = files.get(*path).unwrap_or_else(|| panic!("{path} is not among {:?}", files.keys()));
        assert_eq!((found.0, found.1), (*mode, *owner), "{path}");
    }
    let left: Vec<_> =
        std::fs::read_dir(first.path()).expect("listed").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(left.len(), 2, "only the image and its stamp stay: {left:?}");
}

#[test]
fn pause() {
    check(build_pause, &[("pause", 0o755, 0)]);
}

#[test]
fn demo_guest() {
    check(build_demo_guest, &[("disk", 0o555, 107), ("disk/disk.img", 0o440, 107)]);
}

#[test]
fn virt_launcher() {
    // Any dynamic executable stands for the program here.
    let own = std::env::current_exe().expect("an executable");
    check(
        |dir| build_virt_launcher(dir, &own),
        &[
            ("usr/bin/carrack", 0o755, 0),
            ("usr/bin/qemu-system-x86_64", 0o755, 0),
            ("usr/bin/qemu-img", 0o755, 0),
            ("usr/share/seabios/bios-256k.bin", 0o644, 0),
            ("usr/lib/x86_64-linux-gnu/libc.so.6", 0o755, 0),
            ("tmp", 0o1777, 0),
        ],
    );
}

#[test]
fn a_changed_input_is_built_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("program");
    std::fs::copy(std::env::current_exe().expect("an executable"), &program).expect("copied");
    let built = build_virt_launcher(&dir.path().join("cache"), &program).expect("built");
    let mut bytes = std::fs::read(&program).expect("read");
    bytes.push(0);
    std::fs::write(&program, bytes).expect("written");
    let changed = build_virt_launcher(&dir.path().join("cache"), &program).expect("built");
    assert!(changed.fresh);
    assert_ne!(changed.digest, built.digest);
    // A cache that lost its tar, or holds rubbish for a stamp, is no reason to fail.
    std::fs::remove_file(&changed.tar).expect("removed");
    assert!(build_virt_launcher(&dir.path().join("cache"), &program).expect("built").fresh);
    std::fs::write(dir.path().join("cache/virt-launcher.json"), "{").expect("written");
    assert!(build_virt_launcher(&dir.path().join("cache"), &program).expect("built").fresh);
}

/// A containerd of its own, gone when dropped.
struct Containerd {
    child: Child,
    dir: tempfile::TempDir,
}

impl Containerd {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let config = format!(
            "version = 2\nroot = \"{}\"\nstate = \"{}\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = \"{}\"\n[ttrpc]\naddress = \"{}\"\n",
            at("root"),
            at("state"),
            at("sock"),
            at("ttrpc"),
        );
        std::fs::write(dir.path().join("config.toml"), config).expect("written");
        let child = Command::new("containerd")
            .args(["--config", &at("config.toml"), "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("containerd starts");
        let this = Self { child, dir };
        let ready = async {
            while containerd::present(&this.socket(), "none").await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), ready).await.expect("containerd answers");
        this
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("sock")
    }

    /// Runs `ctr`: whether it succeeded, and what it and the container wrote.
    fn ctr(&self, arguments: &[&str], input: &str) -> (bool, String) {
        let mut child = Command::new("ctr")
            .arg("--address")
            .arg(self.socket())
            .args(["-n", "k8s.io"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ctr runs");
        let mut stdin = child.stdin.take().expect("piped");
        // A program that ends early does not read everything.
        let fed = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("waited for");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success() && fed.is_ok(), said)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited for");
    }
}

#[tokio::test]
async fn containerd_takes_and_runs_an_image() {
    let cache = tempfile::tempdir().expect("a directory");
    let built = build_pause(cache.path()).expect("built");
    let containerd = Containerd::start().await;
    let socket = containerd.socket();
    assert_eq!(containerd::present(&socket, &built.reference).await.expect("asked"), None);
    assert!(containerd::ensure(&socket, &built).await.expect("imported"));
    assert!(!containerd::ensure(&socket, &built).await.expect("asked"));

    let ctr = |arguments: &[&str]| containerd.ctr(arguments, "");
    let (ok, said) = ctr(&["run", "--detach", "--snapshotter", "native", &built.reference, "pause-test"]);
    assert!(ok, "{said}");
    let (ok, said) = ctr(&["task", "kill", "--signal", "SIGTERM", "pause-test"]);
    assert!(ok, "{said}");
    let mut said = String::new();
    for _ in 0..500 {
        said = ctr(&["task", "list"]).1;
        if said.contains("STOPPED") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(said.contains("STOPPED"), "{said}");
    assert!(ctr(&["task", "delete", "pause-test"]).0);
    assert!(ctr(&["container", "delete", "pause-test"]).0);
}

/// Libraries, the emulator, firmware, option ROMs and the screen's key map are all loaded before QMP answers.
#[tokio::test]
async fn the_launcher_image_has_what_qemu_loads() {
    let cache = tempfile::tempdir().expect("a directory");
    let own = std::env::current_exe().expect("an executable");
    let built = build_virt_launcher(cache.path(), &own).expect("built");
    let containerd = Containerd::start().await;
    assert!(containerd::ensure(&containerd.socket(), &built).await.expect("imported"));
    let run = |arguments: &[&str], input: &str| {
        let container = ["run", "--rm", "--snapshotter", "native", &built.reference, "launcher-test"];
        containerd.ctr(&[&container, arguments].concat(), input)
    };
    let devices = [
        "VGA",
        "qemu-xhci",
        "usb-tablet",
        "virtio-scsi-pci",
        "virtio-balloon-pci",
        "virtio-serial-pci",
        "pvpanic",
        "virtio-net-pci",
        "e1000e",
    ];
    let mut arguments = vec!["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-machine", "q35"];
    arguments.extend(["-accel", "tcg", "-m", "64", "-vnc", "unix:/tmp/vnc", "-qmp", "stdio", "-S"]);
    arguments.extend(devices.iter().flat_map(|device| ["-device", device]));
    let quit = "{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"quit\"}\n";
    let (ok, said) = run(&arguments, quit);
    // It ends well only by being told to, once all is loaded. What it answers then may find its reader gone: the input has ended.
    assert!(ok && said.contains("\"QMP\""), "{ok}: {said}");
    let (ok, said) = run(&["qemu-img", "create", "-f", "qcow2", "/tmp/disk", "1M"], "");
    assert!(ok, "{said}");
    // The program itself finds its libraries.
    let (ok, said) = run(&["/usr/bin/carrack", "--list"], "");
    assert!(ok && said.contains("the_launcher_image_has_what_qemu_loads"), "{said}");
}

#[tokio::test]
async fn an_unreachable_containerd_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let error = containerd::present(&dir.path().join("none"), "x").await.expect_err("nobody listens");
    assert!(matches!(error, ImageError::Program { .. }), "{error}");
}
