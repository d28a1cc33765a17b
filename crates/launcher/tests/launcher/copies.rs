#![expect(clippy::disallowed_methods, reason = "it waits, with deadlines, for what other processes do")]
//! Disks that are copied while their machine runs.

use crate::pod::{PATIENCE, Pod, UID, bare, dead};
use carrack_launcher::board::{Board, Firmware, STATE_VOLUME};
use carrack_launcher::client::{self, ClientError};
use carrack_launcher::proto::{Call, CopiedDisk};
use carrack_launcher::qmp::{Qmp, QmpError};
use carrack_launcher::receive::{self, PARTIAL, WHOLE, is_wanted};
use carrack_launcher::spec::{DiskBus, DiskSource, DiskSpec, DiskTuning, OnError};
use carrack_launcher::{MachineSpec, Phase, layout, promise};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const DISK_BYTES: usize = 96 << 20;

fn disk(name: &str, path: PathBuf, on_error: Option<OnError>) -> DiskSpec {
    DiskSpec {
        name: name.to_owned(),
        source: DiskSource::Persistent { path, create_bytes: None, tolerance_percent: None },
        cdrom: false,
        bus: DiskBus::Virtio,
        read_only: false,
        serial: None,
        boot_order: None,
        tuning: DiskTuning { on_error, ..DiskTuning::default() },
    }
}

/// A machine with two disks of sevens, and a third one whose errors reach its guest.
async fn machine(pod: Pod) -> (Pod, Qmp) {
    let mut spec = bare();
    for (name, on_error) in [("one", None), ("two", None), ("loud", Some(OnError::Report))] {
        let path = pod.dir.path().join(format!("{name}.img"));
        std::fs::write(&path, vec![7; DISK_BYTES]).expect("written");
        spec.disks.push(disk(name, path, on_error));
    }
    pod.sync(&spec).await.expect("started");
    pod.until(|domain| domain.phase == Phase::Running).await;
    let spare = Qmp::connect(&pod.layout.spare_qmp_socket()).await.expect("connected");
    (pod, spare)
}

/// Someone waits for copies in new directories.
fn wait_in(directories: &[PathBuf]) -> JoinHandle<Result<(), String>> {
    for directory in directories {
        std::fs::create_dir_all(directory).expect("made");
    }
    let waiting = directories.to_vec();
    let receiver = std::thread::spawn(move || receive::run(UID, &waiting).map_err(|error| error.to_string()));
    until_wanted(&directories[0]);
    receiver
}

fn until_wanted(directory: &Path) {
    let started = Instant::now();
    while !is_wanted(directory, UID) {
        assert!(started.elapsed() < PATIENCE, "nobody waits");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn copy(id: &str, volumes: &[&str], directories: &[PathBuf]) -> Call {
    let disk = |(volume, directory): (&&str, &PathBuf)| CopiedDisk {
        volume: (*volume).to_owned(),
        directory: directory.clone(),
    };
    Call::Copy { id: id.to_owned(), disks: volumes.iter().zip(directories).map(disk).collect() }
}

/// The guest's own write, by the way that its device takes.
async fn write(qmp: &mut Qmp, node: &str, pattern: u8) {
    let line = format!("qemu-io -d /machine/peripheral/dev-{node}/virtio-backend \"write -P {pattern} 0 96M\"");
    let said = qmp.execute("human-monitor-command", json!({ "command-line": line })).await.expect("written");
    assert_eq!(said, Value::String(String::new()));
}

async fn jobs(qmp: &mut Qmp) -> Value {
    qmp.execute("query-jobs", json!({})).await.expect("answered")
}

async fn at_speed(qmp: &mut Qmp, bytes_per_s: u64) {
    for job in jobs(qmp).await.as_array().expect("jobs") {
        let speed = json!({ "device": job["id"], "speed": bytes_per_s });
        match qmp.execute("block-job-set-speed", speed).await {
            // One that has got to its end before refuses.
            Ok(_) | Err(QmpError::Refused { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether jobs are under way that take for ever from now on.
async fn slow(qmp: &mut Qmp) -> bool {
    at_speed(qmp, 1).await;
    let half = |job: &Value| job["current-progress"].as_u64() < job["total-progress"].as_u64().map(|all| all / 2);
    jobs(qmp).await.as_array().is_some_and(|all| !all.is_empty() && all.iter().all(half))
}

async fn fast(qmp: &mut Qmp) {
    at_speed(qmp, 0).await;
}

/// Until no job is left, and no file of one is open.
async fn until_no_jobs(qmp: &mut Qmp) {
    let started = Instant::now();
    loop {
        let nodes = qmp.execute("query-named-block-nodes", json!({ "flat": true })).await.expect("answered");
        let sets = qmp.execute("query-fdsets", json!({})).await.expect("answered");
        if jobs(qmp).await == json!([]) && !nodes.to_string().contains("copy-") && sets == json!([]) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "a job is left: {nodes} {sets}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_removed(path: &Path) {
    let started = Instant::now();
    while path.symlink_metadata().is_ok() {
        assert!(started.elapsed() < PATIENCE, "{} is left", path.display());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Begins when the copy before has been ended.
async fn begin(pod: &Pod, call: Call) {
    let started = Instant::now();
    loop {
        match pod.call(call.clone()).await {
            Err(ClientError::Refused(why)) if why.contains("somebody else") && started.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            other => return drop(other.expect("begun")),
        }
    }
}

/// Begins a copy that does not end by itself, for somebody who waits for it. One that was quicker than its brake is begun anew.
async fn begin_slowly<W>(
    (pod, qmp): (&Pod, &mut Qmp),
    (id, volumes): (&str, &[&str]),
    to: &[PathBuf],
    mut wait: impl FnMut() -> W,
) -> W {
    let started = Instant::now();
    loop {
        let waiting = wait();
        begin(pod, copy(&format!("{id}-{}", started.elapsed().as_nanos()), volumes, to)).await;
        if slow(qmp).await {
            return waiting;
        }
        assert!(started.elapsed() < PATIENCE, "{id} is too quick");
        fast(qmp).await;
        until_no_jobs(qmp).await;
        for directory in to {
            until_removed(&directory.join(PARTIAL)).await;
            std::fs::remove_dir_all(directory).expect("removed");
        }
    }
}

fn raw(copy: &Path) -> Vec<u8> {
    let raw = copy.with_extension("raw");
    let done = Command::new("qemu-img").args(["convert", "-f", "qcow2", "-O", "raw"]).arg(copy).arg(&raw).status();
    assert!(done.expect("qemu-img runs").success());
    std::fs::read(raw).expect("read")
}

#[tokio::test]
async fn disks_are_copied_as_they_were_when_it_began() {
    let (pod, mut spare) = machine(Pod::start()).await;
    let to = [pod.dir.path().join("a"), pod.dir.path().join("b")];
    let receiver = begin_slowly((&pod, &mut spare), ("first", &["one", "two"]), &to, || wait_in(&to)).await;
    write(&mut spare, "disk-0", 8).await;
    fast(&mut spare).await;
    receiver.join().expect("no panic").expect("received");
    for directory in &to {
        let copied = raw(&directory.join(WHOLE));
        assert!(copied.len() == DISK_BYTES && copied.iter().all(|byte| *byte == 7), "{}", directory.display());
        assert!(!directory.join(PARTIAL).exists());
    }
    let now = std::fs::read(pod.dir.path().join("one.img")).expect("read");
    assert!(now.iter().all(|byte| *byte == 8), "the guest has written meanwhile");
    until_no_jobs(&mut spare).await;
    // Another is begun, and none again under its name.
    std::fs::remove_dir_all(&to[0]).expect("removed");
    let receiver = wait_in(&to[..1]);
    pod.call(copy("second", &["one"], &to[..1])).await.expect("begun");
    receiver.join().expect("no panic").expect("received");
    assert!(raw(&to[0].join(WHOLE)).iter().all(|byte| *byte == 8));
    std::fs::remove_dir_all(&to[0]).expect("removed");
    pod.call(copy("second", &["one"], &to[..1])).await.expect("begun before");
    assert!(!to[0].exists());
}

#[tokio::test]
async fn what_firmware_keeps_is_copied_and_made_again() {
    let pod = Pod::start();
    let [nvram, to, again] = ["nvram", "a", "again"].map(|name| pod.dir.path().join(name));
    std::fs::create_dir_all(&nvram).expect("made");
    let kept = nvram.join("VARS.fd");
    let board = Board { firmware: Firmware::Efi, nvram: Some(kept.clone()), ..Board::default() };
    pod.sync(&MachineSpec { board, memory_bytes: 256 << 20, ..bare() }).await.expect("started");
    pod.until(|domain| domain.phase == Phase::Running).await;
    let mut spare = Qmp::connect(&pod.layout.spare_qmp_socket()).await.expect("connected");
    // Nothing is written while it is compared.
    spare.execute("stop", json!({})).await.expect("stopped");
    let receiver = wait_in(std::slice::from_ref(&to));
    pod.call(copy("first", &[STATE_VOLUME], std::slice::from_ref(&to))).await.expect("begun");
    receiver.join().expect("no panic").expect("received");
    assert_eq!(jobs(&mut spare).await, json!([]));
    std::fs::create_dir(&again).expect("made");
    let pair = [to.join(WHOLE), again.join("nvram")];
    carrack_launcher::copy::run(carrack_launcher::copy::Direction::Restore, &pair).expect("restored");
    let bytes = |path: PathBuf| std::fs::read(path).expect("read");
    assert!(bytes(again.join("nvram/VARS.fd")) == bytes(kept), "they are others");
}

#[tokio::test]
async fn a_copy_that_ends_early_leaves_nothing() {
    // The launcher sees what was mounted before it.
    let place = tempfile::tempdir().expect("a directory");
    let full = [place.path().to_path_buf()];
    let small = Small::mount(&full[0]);
    let (pod, mut spare) = machine(Pod::start()).await;
    let to = |name: &str| [pod.dir.path().join(name)];
    // What cannot be copied, or nobody waits for.
    for (volumes, why) in [(["loud"], "its errors are told to the guest"), (["none"], "no disk none")] {
        let receiver = wait_in(&to(why));
        let refused = pod.call(copy(why, &volumes, &to(why))).await;
        assert!(matches!(&refused, Err(ClientError::Refused(said)) if said.contains(why)), "{refused:?}");
        let said = receiver.join().expect("no panic").expect_err("nothing");
        assert!(said.contains(why), "{said}");
    }
    std::fs::create_dir(&to("nobody")[0]).expect("made");
    let refused = pod.call(copy("nobody", &["one"], &to("nobody"))).await;
    assert!(matches!(&refused, Err(ClientError::Refused(said)) if said.contains("nobody waits")), "{refused:?}");

    // Whoever wants it dies.
    let gone = to("gone");
    let receive = || {
        std::fs::create_dir(&gone[0]).expect("made");
        let child = Pod::spawn(&pod.layout, &["receive", &gone[0].to_string_lossy()]);
        until_wanted(&gone[0]);
        child
    };
    let mut child = begin_slowly((&pod, &mut spare), ("gone", &["one"]), &gone, receive).await;
    let another = to("another");
    let mut waits = Some(wait_in(&another));
    assert!(pod.call(copy("another", &["two"], &another)).await.is_err(), "one at a time");
    child.kill().expect("killed");
    child.wait().expect("waited for");
    until_no_jobs(&mut spare).await;
    until_removed(&gone[0].join(PARTIAL)).await;
    assert!(!gone[0].join(WHOLE).exists());

    // The monitor dies: who waits is told at once, and the next one clears up.
    let again = || waits.take().unwrap_or_else(|| wait_in(&another));
    let waiting = begin_slowly((&pod, &mut spare), ("another", &["two"]), &another, again).await;
    dead(pod.kill_monitor()).await;
    let said = waiting.join().expect("no panic").expect_err("nothing");
    assert!(said.contains("interrupted"), "{said}");
    assert!(pod.exec(&["monitor", "--detach"]).success());
    until_no_jobs(&mut spare).await;
    assert_eq!(pod.call(Call::Status).await.expect("answered").phase, Phase::Running);

    // There is no room for it: the guest's own write holds, and the guest runs.
    let receiver = wait_in(&full);
    pod.call(copy("full", &["one"], &full)).await.expect("begun");
    let said = receiver.join().expect("no panic").expect_err("nothing");
    assert!(said.contains("No space left") || said.contains("a disk failed"), "{said}");
    until_no_jobs(&mut spare).await;
    write(&mut spare, "disk-0", 9).await;
    pod.until(|domain| domain.phase == Phase::Running).await;
    drop(small);
    assert!(layout::connect(&pod.layout.command_socket()).await.is_ok());
}

/// A file that QEMU does not let go of makes its copy fail, and the next one ends what is left of it first.
#[tokio::test]
async fn a_file_that_is_not_closed_is_no_copy() {
    let (pod, mut spare) = machine(Pod::start()).await;
    let to = [pod.dir.path().join("a")];
    let receiver = begin_slowly((&pod, &mut spare), ("held", &["one"]), &to, || wait_in(&to)).await;
    let holder = json!({ "driver": "raw", "node-name": "holder", "file": "copy-0", "read-only": true });
    spare.execute("blockdev-add", holder).await.expect("held");
    fast(&mut spare).await;
    let said = receiver.join().expect("no panic").expect_err("nothing");
    assert!(said.contains("copy-0 is in use"), "{said}");
    until_removed(&to[0].join(PARTIAL)).await;
    assert!(!to[0].join(WHOLE).exists());
    pod.until(|domain| domain.phase == Phase::Running).await;

    // As long as it is held, nothing is begun.
    let receiver = wait_in(&to);
    let refused = pod.call(copy("again", &["one"], &to)).await;
    assert!(matches!(&refused, Err(ClientError::Refused(said)) if said.contains("copy-0 is in use")), "{refused:?}");
    receiver.join().expect("no panic").expect_err("nothing");
    spare.execute("blockdev-del", json!({ "node-name": "holder" })).await.expect("let go");
    let receiver = wait_in(&to);
    begin(&pod, copy("free", &["one"], &to)).await;
    receiver.join().expect("no panic").expect("received");
    until_no_jobs(&mut spare).await;
    assert!(raw(&to[0].join(WHOLE)).iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn what_was_put_in_a_copys_place_is_not_followed() {
    let (pod, mut spare) = machine(Pod::start()).await;
    let to = [pod.dir.path().join("a")];
    let receiver = wait_in(&to);
    let elsewhere = pod.dir.path().join("elsewhere");
    std::fs::write(&elsewhere, "precious").expect("written");
    for name in [PARTIAL, "doing.new", WHOLE] {
        std::os::unix::fs::symlink(&elsewhere, to[0].join(name)).expect("linked");
    }
    pod.call(copy("linked", &["one"], &to)).await.expect("begun");
    receiver.join().expect("no panic").expect("received");
    until_no_jobs(&mut spare).await;
    assert_eq!(std::fs::read_to_string(&elsewhere).expect("read"), "precious");
    assert!(to[0].join(WHOLE).symlink_metadata().expect("there").is_file());
    assert!(raw(&to[0].join(WHOLE)).iter().all(|byte| *byte == 7));

    // What is put there while it is written is not taken for the copy.
    let to = [pod.dir.path().join("b")];
    let receiver = begin_slowly((&pod, &mut spare), ("replaced", &["one"]), &to, || wait_in(&to)).await;
    std::fs::remove_file(to[0].join(PARTIAL)).expect("removed");
    std::os::unix::fs::symlink(&elsewhere, to[0].join(PARTIAL)).expect("linked");
    fast(&mut spare).await;
    let said = receiver.join().expect("no panic").expect_err("nothing");
    assert!(said.contains("was put in its place"), "{said}");
    assert_eq!(std::fs::read_to_string(&elsewhere).expect("read"), "precious");
}

/// The promise that the guest is gone is kept while a copy hangs.
#[tokio::test]
async fn a_copy_that_hangs_does_not_keep_the_guest_running() {
    let programs = tempfile::tempdir().expect("a directory");
    let hanging = programs.path().join("qemu-img");
    std::fs::write(&hanging, "#!/bin/sh\nkill -STOP $$\n").expect("written");
    std::fs::set_permissions(&hanging, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let (mut pod, _spare) = machine(Pod::start_with(programs.path())).await;
    let to = [pod.dir.path().join("a")];
    let receiver = wait_in(&to);
    let socket = pod.layout.command_socket();
    let hangs = copy("hangs", &["one"], &to);
    let asked = tokio::spawn(async move { client::call(&socket, hangs, PATIENCE).await });
    let started = Instant::now();
    while !to[0].join(PARTIAL).exists() {
        assert!(started.elapsed() < PATIENCE, "it does not begin");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let term = Duration::from_secs(3);
    let until = promise::now_ns() + u64::try_from(term.as_nanos()).expect("small");
    promise::write(&pod.layout.promise_file(), until).expect("written");
    let promised = Instant::now();
    assert_eq!(pod.call(Call::Status).await.expect("answered").phase, Phase::Running);
    assert!(promised.elapsed() < term, "others wait for the copy");
    pod.ended().await;
    let late = promised.elapsed().saturating_sub(term);
    assert!(late < Duration::from_secs(3), "the guest ran {late:?} longer than was promised");
    assert!(asked.await.expect("no panic").is_err());
    let said = receiver.join().expect("no panic").expect_err("nothing");
    assert!(said.contains("interrupted"), "{said}");
}

/// A file system of two megabytes.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(at: &'a Path) -> Self {
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(at).status();
        assert!(done.expect("mount runs").success());
        Self(at)
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("--lazy").arg(self.0).status();
        if !done.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.0.display());
        }
    }
}
