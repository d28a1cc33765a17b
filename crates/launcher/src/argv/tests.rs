//! Command lines, by what changes in them.

use super::*;
use crate::accel::Accel;
use crate::board::{Board, Firmware, InputDevice, Kernel, Sound, Video, WatchdogAction};
use crate::spec::{
    CacheMode, CpuSpec, DiskBus, DiskSource, DiskSpec, DiskTuning, MachineType, NicModel, NicSpec, OnError,
};

fn spec() -> MachineSpec {
    MachineSpec {
        name: "demo".to_owned(),
        namespace: "default".to_owned(),
        uid: "u1".to_owned(),
        machine: MachineType::Q35,
        machine_type: None,
        accel: Accel::Tcg,
        cpu: CpuSpec::default(),
        memory_bytes: 256 << 20,
        smbios: Smbios::default(),
        disks: vec![disk("root"), disk("seed")],
        nics: vec![],
        graphics: false,
        serial_console: true,
        balloon: true,
        rng: true,
        start_paused: false,
        board: Board::default(),
        run: None,
    }
}

fn disk(name: &str) -> DiskSpec {
    DiskSpec {
        name: name.to_owned(),
        source: DiskSource::Empty { capacity_bytes: 1 },
        cdrom: false,
        bus: DiskBus::Virtio,
        read_only: false,
        serial: None,
        boot_order: None,
        tuning: DiskTuning::default(),
    }
}

fn nic() -> NicSpec {
    NicSpec {
        name: "default".to_owned(),
        tap: "tap0".to_owned(),
        mac: "52:54:00:12:34:56".to_owned(),
        model: NicModel::Virtio,
        vhost: false,
        queues: None,
        mtu: None,
        boot_order: None,
        acpi_index: None,
        dhcp: None,
    }
}

fn build(spec: &MachineSpec) -> Result<Vec<String>, MachineError> {
    let direct = Backing::Direct {
        path: "/d,1".into(),
        format: ImageFormat::Raw,
        node: NodeKind { direct: true, ..NodeKind::default() },
    };
    let overlay = Backing::Overlay { overlay: "/o".into(), base: "/b".into(), format: ImageFormat::Raw };
    let backings: Vec<_> = [overlay, direct].into_iter().cycle().take(spec.disks.len()).collect();
    argv(spec, &Layout::in_container(&spec.uid), &backings)
}

/// The option `flag value` is there if `expected`, and is not otherwise.
#[track_caller]
fn check(change: impl FnOnce(&mut MachineSpec), flag: &str, value: &str, expected: bool) {
    let mut spec = spec();
    change(&mut spec);
    let line = build(&spec).expect("a command line");
    let found = line.windows(2).any(|pair| pair[0] == flag && pair[1].contains(value));
    assert_eq!(found, expected, "{flag} {value} in {line:#?}");
}

#[test]
fn options() {
    let same = |_: &mut MachineSpec| {};
    check(same, "-name", "guest=default_demo,debug-threads=on", true);
    check(|s| s.name = "a,b".to_owned(), "-name", "guest=default_a,,b,", true);
    check(same, "-machine", "q35,", true);
    check(|s| s.machine = MachineType::Pc, "-machine", "pc,", true);
    check(|s| s.machine_type = Some("pc-q35-7.2".to_owned()), "-machine", "pc-q35-7.2,usb=off", true);
    check(same, "-accel", "tcg,thread=multi", true);
    check(|s| s.accel = Accel::Kvm, "-accel", "kvm", true);
    check(same, "-cpu", "max", true);
    check(|s| s.accel = Accel::Kvm, "-cpu", "host", true);
    check(|s| s.cpu.model = Some("Haswell-noTSX".to_owned()), "-cpu", "Haswell-noTSX", true);
    check(|s| s.cpu.cores = 4, "-smp", "cpus=4,sockets=1,cores=4,threads=1", true);
    check(same, "-m", "size=262144k", true);
    check(|s| s.memory_bytes += 1, "-m", "size=262145k", true);
    check(same, "-smbios", "manufacturer=KubeVirt,product=None,family=KubeVirt", true);
    check(|s| s.smbios.serial = Some("a,b=c".to_owned()), "-smbios", ",serial=a,,b=c", true);
    check(same, "-action", "shutdown=pause", true);
    check(same, "-machine", ",vmport=off", true);
    check(same, "-boot", "menu=off", true);
    check(|s| s.start_paused = true, "-boot", "menu=on,splash-time=10000", true);
    check(same, "-display", "none", true);
    check(|s| s.graphics = true, "-vnc", "unix:/var/run/kubevirt-private/u1/virt-vnc", true);
    check(|s| s.graphics = true, "-device", "usb-tablet", true);
    check(same, "-chardev", "path=/var/run/kubevirt-private/u1/virt-serial0,server=on,wait=off,logfile=", true);
    check(|s| s.serial_console = false, "-chardev", "virt-serial0", false);
    check(same, "-device", r#""name":"org.qemu.guest_agent.0""#, true);
    check(|s| s.balloon = false, "-device", "virtio-balloon-pci", false);
    check(|s| s.rng = false, "-device", "virtio-rng-pci", false);
    check(same, "-device", "pvpanic", true);
}

#[test]
fn disks() {
    let same = |_: &mut MachineSpec| {};
    let overlay = r#"{"backing":{"driver":"raw","file":{"driver":"file","filename":"/b","read-only":true},"read-only":true},"discard":"unmap","driver":"qcow2","file":{"driver":"file","filename":"/o","read-only":false},"node-name":"disk-0","read-only":false}"#;
    check(same, "-blockdev", overlay, true);
    check(same, "-blockdev", r#""filename":"/d,1""#, true);
    check(
        same,
        "-device",
        r#"{"bootindex":1,"drive":"disk-0","driver":"virtio-blk-pci","id":"dev-disk-0","rerror":"stop","werror":"stop"}"#,
        true,
    );
    check(same, "-device", r#"{"bootindex":2,"drive":"disk-1""#, true);
    check(|s| s.disks[1].boot_order = Some(1), "-device", r#"{"drive":"disk-0""#, true);
    check(|s| s.disks[1].boot_order = Some(1), "-device", r#"{"bootindex":1,"drive":"disk-1""#, true);
    check(|s| s.disks[0].serial = Some("a,\"b".to_owned()), "-device", r#""serial":"a,\"b""#, true);
    check(|s| s.disks[0].read_only = true, "-blockdev", r#""node-name":"disk-0","read-only":true"#, true);
    let cdrom = |s: &mut MachineSpec| (s.disks[0].cdrom, s.disks[0].bus) = (true, DiskBus::Sata);
    check(cdrom, "-device", r#""bus":"ide.0","drive":"disk-0","driver":"ide-cd""#, true);
    check(|s| s.disks[0].bus = DiskBus::Scsi, "-device", "virtio-scsi-pci", true);
    check(|s| s.disks[0].bus = DiskBus::Usb, "-device", "qemu-xhci", true);
}

/// A disk on the bus sata has all that one of virtio has.
#[test]
fn disks_on_sata() {
    let sata = |change: fn(&mut DiskSpec)| {
        move |s: &mut MachineSpec| {
            s.disks.iter_mut().for_each(|disk| disk.bus = DiskBus::Sata);
            change(&mut s.disks[1]);
        }
    };
    let first = r#"{"bootindex":1,"bus":"ide.0","drive":"disk-0","driver":"ide-hd","id":"dev-disk-0","rerror":"stop","werror":"stop"}"#;
    check(sata(|_| {}), "-device", first, true);
    check(sata(|_| {}), "-device", r#"{"bootindex":2,"bus":"ide.1","drive":"disk-1""#, true);
    check(sata(|_| {}), "-device", "ich9-ahci", false);
    check(sata(|_| {}), "-blockdev", r#""discard":"unmap","driver":"raw""#, true);
    check(sata(|d| d.boot_order = Some(1)), "-device", r#"{"bootindex":1,"bus":"ide.1""#, true);
    check(sata(|d| d.boot_order = Some(1)), "-device", r#"{"bus":"ide.0","drive":"disk-0""#, true);
    check(sata(|d| d.serial = Some("s1".to_owned())), "-device", r#""serial":"s1""#, true);
    check(sata(|d| d.tuning.cache = Some(CacheMode::Writethrough)), "-device", r#""write-cache":"off""#, true);
    check(sata(|d| d.tuning.cache = Some(CacheMode::None)), "-blockdev", r#""direct":true"#, true);
    let native: fn(&mut DiskSpec) = |d| (d.tuning.cache, d.tuning.native_io) = (Some(CacheMode::None), true);
    check(sata(native), "-blockdev", r#""aio":"native""#, true);
    let report = r#""rerror":"report","werror":"report""#;
    check(sata(|d| d.tuning.on_error = Some(OnError::Report)), "-device", report, true);
    check(sata(|d| d.tuning.logical_block_bytes = Some(512)), "-device", r#""logical_block_size":512"#, true);
    check(sata(|d| d.tuning.physical_block_bytes = Some(4096)), "-device", r#""physical_block_size":4096"#, true);
    check(sata(|d| d.tuning.shared = true), "-device", r#""share-rw":true"#, true);
    check(sata(|d| d.tuning.own_thread = true), "-object", "iothread", false);
    check(sata(|d| d.cdrom = true), "-device", r#""bus":"ide.1","drive":"disk-1","driver":"ide-cd""#, true);
    check(sata(|d| d.cdrom = true), "-blockdev", r#""node-name":"disk-1","read-only":true"#, true);
    // Six disks have one controller, of which q35 has one of its own.
    let many = |machine: MachineType| {
        move |s: &mut MachineSpec| {
            s.machine = machine;
            s.disks = vec![DiskSpec { bus: DiskBus::Sata, ..disk("x") }; 13];
        }
    };
    for (machine, controller, there) in [
        (MachineType::Q35, "sata", false),
        (MachineType::Q35, "sata2", true),
        (MachineType::Q35, "sata3", false),
        (MachineType::Pc, "sata", true),
        (MachineType::Pc, "sata2", true),
    ] {
        let device = format!(r#"{{"driver":"ich9-ahci","id":"{controller}"}}"#);
        check(many(machine), "-device", &device, there);
    }
    check(many(MachineType::Q35), "-device", r#""bus":"ide.5","drive":"disk-5""#, true);
    check(many(MachineType::Q35), "-device", r#""bus":"sata1.0","drive":"disk-6""#, true);
    check(many(MachineType::Q35), "-device", r#""bus":"sata2.0","drive":"disk-12""#, true);
    check(many(MachineType::Pc), "-device", r#""bus":"sata.5","drive":"disk-5""#, true);
    check(many(MachineType::Pc), "-device", r#""bus":"sata1.5","drive":"disk-11""#, true);
}

#[test]
fn networks() {
    check(|s| s.nics = vec![nic()], "-netdev", "tap,id=hostnet0,ifname=tap0,script=no,downscript=no,vhost=off", true);
    check(|s| s.nics = vec![nic()], "-device", r#""romfile":"""#, true);
    let changed = |change: fn(&mut NicSpec)| {
        move |s: &mut MachineSpec| {
            let mut nic = nic();
            change(&mut nic);
            s.nics = vec![nic];
        }
    };
    check(changed(|n| n.vhost = true), "-netdev", "vhost=on", true);
    check(changed(|n| n.mtu = Some(1450)), "-device", r#""host_mtu":1450"#, true);
    check(changed(|n| n.acpi_index = Some(7)), "-device", r#""acpi-index":7"#, true);
    check(changed(|n| n.queues = Some(4)), "-netdev", ",queues=4", true);
    check(changed(|n| n.queues = Some(4)), "-device", r#""mq":true,"#, true);
    check(changed(|n| n.queues = Some(4)), "-device", r#""vectors":10"#, true);
    check(changed(|n| n.queues = Some(1)), "-netdev", ",queues=", false);
    check(changed(|n| (n.queues, n.model) = (Some(4), NicModel::E1000)), "-netdev", ",queues=", false);
    check(
        changed(|n| n.boot_order = Some(1)),
        "-device",
        r#""bootindex":1,"bus":"pci.1","driver":"virtio-net-pci""#,
        true,
    );
    // With an order of the user's, a disk without one is not booted from.
    check(changed(|n| n.boot_order = Some(1)), "-device", r#"{"drive":"disk-0""#, true);
    check(changed(|n| n.model = NicModel::E1000e), "-device", r#""driver":"e1000e""#, true);
}

/// What a guest calls an interface hangs on its place, which no disk changes.
#[test]
fn interfaces_have_places_of_their_own() {
    type Change = fn(&mut MachineSpec);
    let port =
        r#"{"addr":"0x10.0x0","bus":"pcie.0","chassis":1,"driver":"pcie-root-port","id":"pci.1","multifunction":true}"#;
    let many = |s: &mut MachineSpec| s.nics = vec![nic(); 9];
    check(many, "-device", port, true);
    check(many, "-device", r#"{"addr":"0x10.0x7","bus":"pcie.0","chassis":8"#, true);
    check(many, "-device", r#"{"addr":"0x11.0x0","bus":"pcie.0","chassis":9"#, true);
    for number in [1, 8, 9] {
        check(many, "-device", &format!(r#"{{"addr":"0x0","bus":"pci.{number}","driver":"virtio-net-pci""#), true);
    }
    let others: [Change; 3] = [
        |s| s.nics[0].model = NicModel::E1000,
        |s| s.machine = MachineType::Pc,
        // Guests for which this is asked find no devices behind such ports.
        |s| s.board.transitional = true,
    ];
    for change in others {
        let mut spec = spec();
        spec.nics = vec![nic()];
        change(&mut spec);
        let line = build(&spec).expect("a command line");
        let first = line.iter().position(|option| option == "-device").expect("a device");
        assert!(line[first + 1].contains(r#""id":"net0""#), "{line:#?}");
    }
}

/// The first disks are beside all other devices; where there are no slots for all, the last are behind ports.
#[test]
fn disks_without_a_slot_are_behind_ports() {
    type Change = fn(&mut MachineSpec);
    let many = |change: Change, disks: usize| {
        let mut spec = spec();
        spec.disks = vec![disk("one"); disks];
        change(&mut spec);
        build(&spec)
    };
    let devices = |line: &[String]| -> Vec<Value> {
        let given = line.windows(2).filter(|pair| pair[0] == "-device");
        given.map(|pair| serde_json::from_str(&pair[1]).expect("JSON")).collect()
    };
    let check = |change: Change, disks: usize, beside: Option<usize>| {
        let Some(beside) = beside else {
            let Err(MachineError::Invalid { field, .. }) = many(change, disks) else { panic!("{disks} were taken") };
            return assert_eq!(field, "disks");
        };
        let all = devices(&many(change, disks).expect("a command line"));
        let ports: Vec<&Value> = all.iter().filter(|device| device["driver"] == "pcie-root-port").collect();
        let nics = all.iter().filter(|device| device["driver"] == "virtio-net-pci" && device["addr"] == "0x0").count();
        assert_eq!(ports.len(), nics + disks - beside, "{disks} disks");
        for (number, port) in ports.iter().enumerate() {
            let place = format!("{:#x}.{:#x}", 0x10 + number / 8, number % 8);
            assert_eq!((&port["addr"], &port["id"]), (&json!(place), &json!(format!("pci.{}", number + 1))));
        }
        let found: Vec<&Value> =
            all.iter().filter(|device| device["driver"] == "virtio-blk-pci").map(|device| &device["bus"]).collect();
        let behind = (nics + 1..).map(|number| json!(format!("pci.{number}")));
        let expected: Vec<Value> = std::iter::repeat_n(Value::Null, beside).chain(behind).take(disks).collect();
        assert_eq!(found, expected.iter().collect::<Vec<_>>(), "{disks} disks");
        // Nobody else is given a place before all ports have theirs.
        let given = all.iter().position(|device| device["driver"] == "virtio-serial-pci").expect("the agent's channel");
        assert!(all[given..].iter().all(|device| device["driver"] != "pcie-root-port"), "{disks} disks");
        // No slot has two devices, and none is missing.
        let isa = ["isa-serial", "pvpanic", "ramfb"];
        let plain =
            all.iter().filter(|device| device["bus"].is_null() && !isa.iter().any(|name| device["driver"] == *name));
        assert!(plain.count() + ports.len().div_ceil(8) <= 30, "{disks} disks");
    };
    // Besides disks there are the agent's channel, the balloon and the source of random numbers.
    check(|_| {}, 27, Some(27));
    check(|_| {}, 28, Some(26));
    check(|_| {}, 132, Some(12));
    check(|_| {}, 133, None);
    let one: Change = |s| s.nics = vec![nic()];
    check(one, 26, Some(26));
    check(one, 27, Some(26));
    check(one, 33, Some(26));
    check(one, 34, Some(25));
    let eight: Change = |s| s.nics = vec![nic(); 8];
    check(eight, 26, Some(26));
    check(eight, 27, Some(25));
    // A screen and the controller of its tablet.
    check(|s| s.graphics = true, 25, Some(25));
    check(|s| s.graphics = true, 26, Some(24));
    check(|s| (s.graphics, s.board.video) = (true, Video::Ramfb), 26, Some(26));
    // There is nothing behind which they could be.
    let others: [Change; 2] = [|s| s.machine = MachineType::Pc, |s| s.board.transitional = true];
    for other in others {
        check(other, 27, Some(27));
        check(other, 28, None);
    }
}

#[test]
fn values_that_qemu_cannot_be_given() {
    type Change = fn(&mut MachineSpec);
    let cases: [(&str, Change); 14] = [
        ("machine_type", |s| s.machine_type = Some("q35,accel=kvm".to_owned())),
        ("cpu", |s| s.cpu.sockets = 0),
        ("cpu", |s| s.cpu.cores = u32::MAX),
        ("cpu.model", |s| s.cpu.model = Some("host,+x".to_owned())),
        ("cpu.features[0]", |s| s.cpu.features = vec!["+a,b".to_owned()]),
        ("board.clock", |s| s.board.clock = Some("now,x".to_owned())),
        ("memory_bytes", |s| s.memory_bytes = 0),
        ("smbios.uuid", |s| s.smbios.uuid = Some("x,y".to_owned())),
        ("disks[0].bus", |s| s.disks[0].cdrom = true),
        ("disks[0].read_only", |s| (s.disks[0].bus, s.disks[0].read_only) = (DiskBus::Sata, true)),
        ("disks[1].tuning.logical_block_bytes", |s| {
            s.disks[1].bus = DiskBus::Sata;
            s.disks[1].tuning.logical_block_bytes = Some(4096);
        }),
        ("nics[0].tap", |s| s.nics = vec![NicSpec { tap: "a,fd=3".to_owned(), ..nic() }]),
        ("nics[0].tap", |s| s.nics = vec![NicSpec { tap: "x".repeat(16), ..nic() }]),
        ("nics[0].mac", |s| s.nics = vec![NicSpec { mac: "52:54:00:12:34".to_owned(), ..nic() }]),
    ];
    for (expected, change) in cases {
        let mut spec = spec();
        change(&mut spec);
        let Err(MachineError::Invalid { field, .. }) = build(&spec) else { panic!("{expected} was taken") };
        assert_eq!(field, expected);
    }
}

#[test]
fn boards() {
    let same = |_: &mut MachineSpec| {};
    check(same, "-machine", "smm=", false);
    check(same, "-rtc", "base=utc,driftfix=slew", true);
    check(same, "-smbios", "type=3,manufacturer=KubeVirt", true);
    check(same, "-device", "i6300esb", false);
    check(|s| s.board.watchdog = Some(WatchdogAction::Poweroff), "-device", "i6300esb", true);
    check(|s| s.board.watchdog = Some(WatchdogAction::Poweroff), "-action", "watchdog=pause", true);
    check(|s| s.board.chassis.asset = Some("a,b".to_owned()), "-smbios", ",asset=a,,b", true);
    check(|s| s.board.no_acpi = true, "-machine", ",acpi=off", true);
    check(|s| s.board.hpet = Some(false), "-machine", ",hpet=off", true);
    check(|s| s.board.firmware = Firmware::BiosSerial, "-machine", ",graphics=off", true);
    let efi = |s: &mut MachineSpec| s.board.firmware = Firmware::Efi;
    check(efi, "-machine", ",pflash0=firmware-code,pflash1=firmware-vars", true);
    check(efi, "-blockdev", "/usr/share/OVMF/OVMF_CODE_4M.fd", true);
    check(efi, "-blockdev", "/var/run/kubevirt-private/u1/firmware-vars.fd", true);
    check(efi, "-machine", "smm=", false);
    let kept = |s: &mut MachineSpec| {
        s.board.firmware = Firmware::Efi;
        s.board.nvram = Some("/var/lib/libvirt/qemu/nvram/vm_VARS.fd".into());
    };
    check(kept, "-blockdev", "/var/lib/libvirt/qemu/nvram/vm_VARS.fd", true);
    check(kept, "-blockdev", "/firmware-vars.fd", false);
    let secure = |s: &mut MachineSpec| s.board.firmware = Firmware::EfiSecure;
    check(secure, "-machine", ",smm=on", true);
    check(secure, "-global", "property=secure", true);
    check(|s| s.board.clock = Some("2026-01-02T03:04:05".to_owned()), "-rtc", "base=2026-01-02T03:04:05,", true);
    check(|s| s.board.drop_missed_ticks = true, "-rtc", "driftfix=none", true);
    check(|s| s.board.clock_follows_guest = true, "-rtc", "driftfix=slew,clock=vm", true);
    check(same, "-rtc", "clock=", false);
    let pit = |s: &mut MachineSpec| (s.accel, s.board.drop_missed_pit_ticks) = (Accel::Kvm, true);
    check(pit, "-global", "kvm-pit.lost_tick_policy=discard", true);
    check(|s| s.accel = Accel::Kvm, "-global", "kvm-pit.lost_tick_policy=delay", true);
    check(same, "-action", "reboot=reset,", true);
    check(|s| s.board.ends_with_reboot = true, "-action", "reboot=shutdown,", true);
    check(same, "-device", "pvpanic-pci", false);
    check(|s| s.board.pci_panic_device = true, "-device", "pvpanic-pci", true);
    check(same, "-tpmdev", "emulator", false);
    check(|s| s.board.tpm = true, "-tpmdev", "emulator,id=tpm0,chardev=chartpm", true);
    check(|s| s.board.tpm = true, "-chardev", "path=/var/run/kubevirt-private/u1/tpm-control", true);
    check(|s| s.board.tpm = true, "-device", r#""driver":"tpm-tis""#, true);
    check(same, "-audiodev", "none", false);
    check(|s| s.board.sound = Some(Sound::Ich9), "-audiodev", r#""driver":"none""#, true);
    check(|s| s.board.sound = Some(Sound::Ich9), "-device", r#""bus":"sound0.0","driver":"hda-duplex""#, true);
    check(|s| s.board.sound = Some(Sound::Ac97), "-device", r#""driver":"AC97""#, true);
    check(|s| s.cpu.features = vec!["+avx".to_owned(), "kvm=off".to_owned()], "-cpu", ",+avx,kvm=off", true);
    check(|s| s.board.hugepages = Some("/dev/hugepages".into()), "-object", "memory-backend-file", true);
    check(|s| s.board.hugepages = Some("/dev/hugepages".into()), "-machine", ",memory-backend=mem0", true);
    let screen = |video: Video| {
        move |s: &mut MachineSpec| {
            s.graphics = true;
            s.board.video = video;
        }
    };
    check(screen(Video::Vga), "-device", r#""driver":"VGA""#, true);
    check(screen(Video::Virtio), "-device", "virtio-vga", true);
    check(screen(Video::Bochs), "-device", "bochs-display", true);
    check(screen(Video::Cirrus), "-device", "cirrus-vga", true);
    check(|s| s.board.inputs = vec![InputDevice::UsbKeyboard], "-device", "usb-kbd", true);
    check(|s| s.board.inputs = vec![InputDevice::UsbKeyboard], "-device", "qemu-xhci", true);
    check(|s| s.board.inputs = vec![InputDevice::VirtioTablet], "-device", "qemu-xhci", false);
    let kernel = |s: &mut MachineSpec| {
        s.board.kernel =
            Some(Kernel { kernel: Some("/k".into()), initrd: Some("/i".into()), args: Some("a=1 b".into()) });
    };
    check(kernel, "-kernel", "/k", true);
    check(kernel, "-initrd", "/i", true);
    check(kernel, "-append", "a=1 b", true);
}

#[test]
fn disks_as_they_are_tuned() {
    let tuned = |change: fn(&mut DiskTuning)| move |s: &mut MachineSpec| change(&mut s.disks[1].tuning);
    check(tuned(|t| t.cache = Some(CacheMode::None)), "-blockdev", r#""cache":{"direct":true,"no-flush":false}"#, true);
    check(|s| s.disks[0].tuning.cache = Some(CacheMode::None), "-blockdev", r#""direct":true"#, false);
    check(tuned(|t| t.cache = Some(CacheMode::Writeback)), "-blockdev", r#""direct":true"#, false);
    check(tuned(|t| t.cache = Some(CacheMode::Writethrough)), "-device", r#""write-cache":"off""#, true);
    let native: fn(&mut DiskTuning) = |t| (t.cache, t.native_io) = (Some(CacheMode::None), true);
    check(tuned(native), "-blockdev", r#""aio":"native""#, true);
    check(tuned(|t| t.native_io = true), "-blockdev", r#""aio":"native""#, false);
    check(tuned(|t| t.on_error = Some(OnError::Enospace)), "-device", r#""werror":"enospc""#, true);
    check(tuned(|t| t.logical_block_bytes = Some(4096)), "-device", r#""logical_block_size":4096"#, true);
    check(tuned(|t| t.shared = true), "-device", r#""share-rw":true"#, true);
    check(tuned(|t| t.own_thread = true), "-device", r#""iothread":"thread-disk-1""#, true);
    check(tuned(|t| t.own_thread = true), "-object", "iothread", true);
    check(tuned(|t| t.shared_thread = Some(2)), "-object", r#""id":"thread-2""#, true);
    check(tuned(|t| t.shared_thread = Some(2)), "-device", r#""iothread":"thread-2""#, true);
    let own: fn(&mut DiskTuning) = |t| (t.own_thread, t.shared_thread) = (true, Some(2));
    check(tuned(own), "-object", r#""id":"thread-2""#, false);
}

/// What stays when a writer is ended must not lie in the host's cache any more.
#[test]
fn disks_that_outlive_their_machine_are_not_cached() {
    let check = |change: fn(&mut DiskTuning), kind: NodeKind, cached: bool, through: bool, native: bool| {
        let mut spec = spec();
        spec.disks.truncate(1);
        spec.disks[0].source =
            DiskSource::Persistent { path: "/d".into(), create_bytes: None, tolerance_percent: None };
        change(&mut spec.disks[0].tuning);
        let backing = Backing::Direct { path: "/d".into(), format: ImageFormat::Raw, node: kind };
        let line = argv(&spec, &Layout::in_container("u1"), &[backing]).expect("a command line").join(" ");
        let has = |text: &str| line.contains(text);
        let found = (!has(r#""direct":true"#), has(r#""write-cache":"off""#), has(r#""aio":"native""#));
        assert_eq!(found, (cached, through, native), "{kind:?}: {line}");
    };
    let plain = NodeKind::default();
    let direct = NodeKind { direct: true, ..plain };
    let full = NodeKind { allocated: true, ..direct };
    check(|_| {}, direct, false, false, false);
    check(|_| {}, plain, true, true, false);
    check(|_| {}, full, false, false, true);
    check(|_| {}, NodeKind { device: true, ..direct }, false, false, true);
    check(|_| {}, NodeKind { allocated: true, ..plain }, true, true, false);
    check(|t| t.threaded_io = true, full, false, false, false);
    check(|t| t.native_io = true, direct, false, false, true);
    check(|t| t.cache = Some(CacheMode::Writeback), full, true, false, false);
    check(|t| t.cache = Some(CacheMode::Writethrough), full, true, true, false);
}
