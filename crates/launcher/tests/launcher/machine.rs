//! What a machine is made of, as its guest sees it: asked over the guest's agent.

use crate::pod::{Console, Pod, bare, demo};
use carrack_launcher::Phase;
use carrack_launcher::agent::Agent;
use carrack_launcher::board::{Board, Chassis, Firmware, Kernel, Sound, Video};
use carrack_launcher::proto::Call;
use carrack_launcher::spec::{
    CacheMode, ConfigDriveSpec, CpuSpec, Dedicated, DiskBus, DiskSource, DiskSpec, DiskTuning, MachineSpec, MachineType,
};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

fn disk(name: &str, source: DiskSource, bus: DiskBus, cdrom: bool) -> DiskSpec {
    DiskSpec {
        name: name.to_owned(),
        source,
        cdrom,
        bus,
        read_only: false,
        serial: None,
        boot_order: None,
        tuning: DiskTuning::default(),
    }
}

/// Runs a line of the shell in the guest; it must succeed.
async fn in_guest(agent: &mut Agent, line: &str) -> String {
    let exit = agent.exec("/bin/sh", &["-c".to_owned(), line.to_owned()], DEADLINE).await.expect("an answer");
    assert_eq!(exit.code, 0, "{line}: {}", exit.stdout);
    exit.stdout
}

#[tokio::test]
async fn disks_processors_screen_and_agent() {
    let mut pod = Pod::start();
    let files = pod.dir.path().join("files");
    std::fs::create_dir(&files).expect("made");
    std::fs::write(files.join("greeting"), "hello from a config map\n").expect("written");
    let claim = pod.dir.path().join("claim");
    std::fs::create_dir(&claim).expect("made");
    let image = claim.join("disk.img");
    let mut spec = demo(pod.dir.path(), "");
    spec.disks.truncate(1);
    let drive = ConfigDriveSpec {
        user_data: "#cloud-config\nuser: kim\npassword: secret\n".to_owned(),
        instance_id: "demo.default".to_owned(),
        hostname: "from-config-drive".to_owned(),
        ..ConfigDriveSpec::default()
    };
    spec.disks.push(disk("cloud", DiskSource::ConfigDrive(drive), DiskBus::Virtio, false));
    let config = DiskSource::Files { directory: files, label: "settings".to_owned() };
    spec.disks.push(disk("config", config, DiskBus::Scsi, true));
    let kept = DiskSource::Persistent { path: image.clone(), create_bytes: Some(16 << 20), tolerance_percent: None };
    let tuning =
        DiskTuning { cache: Some(CacheMode::None), native_io: true, own_thread: true, ..DiskTuning::default() };
    let kept = DiskSpec { serial: Some("KEPT-1".to_owned()), tuning, ..disk("kept", kept, DiskBus::Virtio, false) };
    spec.disks.push(kept);
    spec.disks.push(disk("scratch", DiskSource::Empty { capacity_bytes: 8 << 20 }, DiskBus::Scsi, false));
    // Each on a CPU of this machine's, where it has as many.
    let own = std::thread::available_parallelism().is_ok_and(|count| count.get() >= 2);
    let dedicated = own.then_some(Dedicated { isolate_emulator: false });
    spec.cpu = CpuSpec { cores: 2, dedicated, ..CpuSpec::default() };
    spec.graphics = true;
    spec.board = Board {
        video: Video::Virtio,
        tpm: true,
        sound: Some(Sound::Ich9),
        pci_panic_device: true,
        chassis: Chassis { asset: Some("rack-7".to_owned()), ..Chassis::default() },
        ..Board::default()
    };
    pod.sync(&spec).await.expect("started");
    pod.until(|domain| domain.agent_connected).await;
    let mut agent = Agent::connect(&pod.layout.agent_socket()).await.expect("an agent");
    let os = agent.execute("guest-get-osinfo", json!({}), DEADLINE).await.expect("answered");
    assert_eq!(os["id"], "carrack-demo", "{os}");
    assert_eq!(in_guest(&mut agent, "hostname").await, "from-config-drive\n");
    assert_eq!(in_guest(&mut agent, "nproc").await, "2\n");
    if own {
        let [first, second] = ["CPU 0/", "CPU 1/"].map(|name| pod.allowed_cpus(name));
        assert!(first.parse::<u32>().is_ok() && second.parse::<u32>().is_ok(), "{first} {second}");
        assert_ne!(first, second);
    }
    // The guest is told of the module, which has begun its life. This guest's kernel has no driver for it.
    let found = "test -s /sys/firmware/acpi/tables/TPM2 && ls /sys/bus/acpi/devices | grep MSFT0101";
    assert_eq!(in_guest(&mut agent, found).await, "MSFT0101:00\n");
    assert!(pod.layout.tpm_dir().join("tpm2-00.permall").exists());
    in_guest(&mut agent, "grep -qx 0x040300 /sys/bus/pci/devices/*/class").await;
    assert_eq!(in_guest(&mut agent, "cat /sys/class/dmi/id/chassis_asset_tag").await, "rack-7\n");
    let read = "mkdir -p /mnt && mount -o ro $(findfs LABEL=settings) /mnt && cat /mnt/greeting";
    assert_eq!(in_guest(&mut agent, read).await, "hello from a config map\n");
    let by_serial = "for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = KEPT-1 ] && echo /dev/${d##*/}; done";
    let device = in_guest(&mut agent, by_serial).await.trim().to_owned();
    in_guest(&mut agent, &format!("echo kept for good | dd of={device} conv=fsync 2>/dev/null")).await;
    assert!(std::fs::read(&image).expect("read").starts_with(b"kept for good\n"));
    assert_eq!(std::fs::metadata(&image).expect("there").len(), 16 << 20);
    // Credentials.
    let keys = json!({"username": "kim", "keys": ["ssh-ed25519 AAAA kim"], "reset": true});
    agent.execute("guest-ssh-add-authorized-keys", keys, DEADLINE).await.expect("taken");
    assert_eq!(in_guest(&mut agent, "cat /home/kim/.ssh/authorized_keys").await, "ssh-ed25519 AAAA kim");
    drop(agent);
    // Probes, as the kubelet runs them.
    assert!(pod.exec(&["probe", "--timeout-s", "10"]).success());
    assert!(pod.exec(&["probe", "--timeout-s", "10", "--", "/bin/true"]).success());
    assert!(!pod.exec(&["probe", "--timeout-s", "10", "--", "/bin/false"]).success());
    let said = Pod::output_of(&pod.layout, &["probe", "--timeout-s", "10", "--", "/bin/false"]);
    assert_eq!(said, "/bin/false ended with 1\n", "with no time beside it, so that equal ones are one event");
    // The screen.
    pod.call(Call::Screenshot { name: "one".to_owned(), move_cursor: true }).await.expect("taken");
    let picture = std::fs::read(pod.layout.screenshot("one")).expect("read");
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"), "{} bytes", picture.len());
    assert!(pod.call(Call::Screenshot { name: "../one".to_owned(), move_cursor: false }).await.is_err());
    assert!(pod.exec(&["shutdown"]).success());
    assert!(pod.ended().await.success());
}

#[tokio::test]
async fn the_machine_type_is_told_with_its_version() {
    let check = async |machine: MachineType, machine_type: Option<String>| {
        let pod = Pod::start();
        pod.sync(&MachineSpec { machine, machine_type, ..bare() }).await.expect("started");
        pod.until(|domain| domain.phase == Phase::Running).await.machine_type.expect("told")
    };
    let newest = check(MachineType::Q35, None).await;
    assert!(newest.starts_with("pc-q35-"), "{newest}");
    assert_eq!(check(MachineType::Q35, Some(newest.clone())).await, newest);
    let older = check(MachineType::Pc, None).await;
    assert!(older.starts_with("pc-i440fx-"), "{older}");
}

/// The kernel that the demo guest boots.
fn kernel() -> PathBuf {
    let names = std::fs::read_dir("/boot").expect("read").filter_map(|entry| Some(entry.ok()?.path()));
    let is_cloud = |path: &PathBuf| {
        path.to_string_lossy().contains("/vmlinuz-") && path.to_string_lossy().ends_with("-cloud-amd64")
    };
    names.filter(is_cloud).max().expect("a cloud kernel: scripts/install-deps run")
}

#[tokio::test]
async fn uefi() {
    // A kernel that nobody signed for the firmware's keys boots without secure boot only.
    let direct = Kernel {
        kernel: Some(kernel()),
        args: Some("console=ttyS0,115200 no_timer_check".to_owned()),
        ..Kernel::default()
    };
    for (firmware, kernel, says) in
        [(Firmware::Efi, Some(direct), "EDK II"), (Firmware::EfiSecure, None, "BdsDxe: No bootable option")]
    {
        let pod = Pod::start();
        let board = Board { firmware, kernel, ..Board::default() };
        pod.sync(&MachineSpec { board, memory_bytes: 256 << 20, ..bare() }).await.expect("started");
        Console::open(&pod.layout).await.expect(says).await;
    }
}

/// How often firmware has written down a start: UEFI counts starts in a variable, of which each value is a record of its own.
fn starts_counted(variables: &std::path::Path) -> usize {
    let name: Vec<u8> = "MTC\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let bytes = std::fs::read(variables).expect("variables");
    bytes.windows(name.len()).filter(|window| *window == name).count()
}

#[tokio::test]
async fn uefi_finds_its_variables_again() {
    let claim = tempfile::tempdir().expect("a directory");
    let kept = claim.path().join("demo_VARS.fd");
    for start in 1..=2 {
        let pod = Pod::start();
        let board = Board { firmware: Firmware::Efi, nvram: Some(kept.clone()), ..Board::default() };
        pod.sync(&MachineSpec { board, memory_bytes: 256 << 20, ..bare() }).await.expect("started");
        Console::open(&pod.layout).await.expect("EFI Internal Shell").await;
        assert_eq!(starts_counted(&kept), start, "the firmware counts its starts");
        pod.call(Call::Kill).await.expect("killed");
    }
    // What is no firmware's is refused, and stays what it is.
    std::fs::write(&kept, "something else").expect("written");
    let pod = Pod::start();
    let board = Board { firmware: Firmware::Efi, nvram: Some(kept.clone()), ..Board::default() };
    let refused = pod.sync(&MachineSpec { board, ..bare() }).await.expect_err("refused");
    assert!(refused.to_string().contains("another firmware's"), "{refused}");
    assert_eq!(std::fs::read_to_string(&kept).expect("read"), "something else");
}

#[tokio::test]
async fn the_console_can_be_followed_to_its_end() {
    let pod = Pod::start();
    pod.sync(&bare()).await.expect("started");
    pod.until(|domain| domain.phase == Phase::Running).await;
    std::fs::write(pod.layout.serial_log(), "the guest says this\n").expect("written");
    let follow = {
        let layout = pod.layout.clone();
        tokio::task::spawn_blocking(move || Pod::output_of(&layout, &["tail"]))
    };
    pod.call(Call::Kill).await.expect("killed");
    let said = follow.await.expect("it ends");
    assert!(said.contains("the guest says this"), "{said:?}");
}
