//! The QEMU command line of a machine: a pure function of the specification, the layout and the disks' files.
//!
//! Nothing is left to QEMU's defaults (`-nodefaults`), and block devices and devices are given in the JSON
//! form, in which no value needs quoting: names that come from users cannot turn into options. The old forms
//! are used only where QEMU has no other, with values that are checked or doubled.

use crate::accel::Accel;
use crate::image::ImageFormat;
use crate::layout::Layout;
use crate::spec::{DiskBus, DiskSpec, MachineSpec, MachineType, NicModel, NicSpec, Smbios};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// QEMU's name.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// The emulator keeps translated code in a buffer of this size; its default grows with the host's memory.
const TRANSLATION_BUFFER_MIB: u32 = 64;

/// The files behind a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Writes go to `overlay`, a qcow2 file; the rest is read from `base`.
    Overlay {
        /// The file that is gone with the machine.
        overlay: PathBuf,
        /// The image that stays as it is.
        base: PathBuf,
        /// The format of `base`.
        format: ImageFormat,
    },
    /// The guest uses the file itself.
    Direct {
        /// The image.
        path: PathBuf,
        /// Its format.
        format: ImageFormat,
    },
}

/// Why there is no command line for a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// A value that QEMU's command line cannot carry.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field of the specification.
        field: String,
        /// What is wrong with its value.
        reason: &'static str,
    },
}

fn invalid(field: impl Into<String>, reason: &'static str) -> MachineError {
    MachineError::Invalid { field: field.into(), reason }
}

/// The command line, program first. `backings` has one entry for each disk of `spec`, in the same order.
///
/// # Errors
/// A value of the specification that QEMU cannot be given.
pub fn argv(spec: &MachineSpec, layout: &Layout, backings: &[Backing]) -> Result<Vec<String>, MachineError> {
    let mut line = Line(vec![PROGRAM.to_owned()]);
    machine(&mut line, spec)?;
    line.option("-smbios", smbios(&spec.smbios));
    if let Some(uuid) = &spec.smbios.uuid {
        if uuid.len() != 36 || !uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err(invalid("smbios.uuid", "not a UUID"));
        }
        line.option("-uuid", uuid);
    }
    channels(&mut line, spec, layout);
    storage(&mut line, spec, backings)?;
    for (index, nic) in spec.nics.iter().enumerate() {
        network(&mut line, index, nic)?;
    }
    helpers(&mut line, spec);
    Ok(line.0)
}

struct Line(Vec<String>);

impl Line {
    fn flag(&mut self, flag: &str) {
        self.0.push(flag.to_owned());
    }

    fn option(&mut self, flag: &str, value: impl Into<String>) {
        self.0.push(flag.to_owned());
        self.0.push(value.into());
    }

    fn device(&mut self, value: Value) {
        self.option("-device", value.to_string());
    }
}

/// In QEMU's comma-separated options a comma in a value is written twice.
fn doubled(value: &str) -> String {
    value.replace(',', ",,")
}

fn path(value: &Path) -> String {
    value.to_string_lossy().into_owned()
}

fn machine(line: &mut Line, spec: &MachineSpec) -> Result<(), MachineError> {
    let name = format!("{}_{}", spec.namespace, spec.name);
    line.option("-name", format!("guest={},debug-threads=on", doubled(&name)));
    line.flag("-no-user-config");
    line.flag("-nodefaults");
    // What QEMU never needs once it runs, however the guest breaks into it.
    line.option("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    let machine = match spec.machine {
        MachineType::Q35 => "q35",
        MachineType::Pc => "pc",
    };
    line.option("-machine", format!("{machine},usb=off,dump-guest-core=off"));
    match spec.accel {
        Accel::Kvm => {
            line.option("-accel", "kvm");
            line.option("-global", "kvm-pit.lost_tick_policy=delay");
        }
        Accel::Tcg => {
            line.option("-accel", format!("tcg,thread=multi,tb-size={TRANSLATION_BUFFER_MIB}"));
        }
    }
    line.option("-cpu", cpu_model(spec)?);
    let cpu = &spec.cpu;
    let count = cpu.sockets.checked_mul(cpu.cores).and_then(|n| n.checked_mul(cpu.threads));
    let count = count.filter(|count| (1..=255).contains(count)).ok_or(invalid("cpu", "1 to 255 processors"))?;
    line.option("-smp", format!("cpus={count},sockets={},cores={},threads={}", cpu.sockets, cpu.cores, cpu.threads));
    if spec.memory_bytes < 1 << 20 {
        return Err(invalid("memory_bytes", "less than one mebibyte"));
    }
    // QEMU rounds to its own granularity of 8 KiB.
    line.option("-m", format!("size={}k", spec.memory_bytes.div_ceil(1024)));
    line.option("-rtc", "base=utc,driftfix=slew");
    line.option("-boot", "menu=off,strict=on");
    // The monitor writes down why a machine ended before it lets QEMU go.
    line.option("-action", "reboot=reset,shutdown=pause,panic=shutdown,watchdog=reset");
    if spec.start_paused {
        line.flag("-S");
    }
    Ok(())
}

fn cpu_model(spec: &MachineSpec) -> Result<String, MachineError> {
    match (spec.cpu.model.as_deref(), spec.accel) {
        (None | Some("host-model" | "host-passthrough"), Accel::Kvm) => Ok("host,migratable=on".to_owned()),
        // Five levels of page tables only make the emulator slower.
        (None | Some("host-model" | "host-passthrough"), Accel::Tcg) => Ok("max,la57=off".to_owned()),
        (Some(model), _) => {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            if model.is_empty() || !model.bytes().all(plain) {
                return Err(invalid("cpu.model", "not a processor model"));
            }
            Ok(model.to_owned())
        }
    }
}

/// KubeVirt's strings where the machine has none of its own.
fn smbios(strings: &Smbios) -> String {
    let default = |value: &Option<String>, default: &str| value.clone().unwrap_or_else(|| default.to_owned());
    let mut text = format!(
        "type=1,manufacturer={},product={},family={}",
        doubled(&default(&strings.manufacturer, "KubeVirt")),
        doubled(&default(&strings.product, "None")),
        doubled(&default(&strings.family, "KubeVirt")),
    );
    let others =
        [("version", &strings.version), ("sku", &strings.sku), ("serial", &strings.serial), ("uuid", &strings.uuid)];
    for (name, value) in others {
        if let Some(value) = value {
            text.push_str(&format!(",{name}={}", doubled(value)));
        }
    }
    text
}

/// The sockets: QMP twice, the serial port, the guest agent's channel, the screen.
fn channels(line: &mut Line, spec: &MachineSpec, layout: &Layout) {
    let socket = |id: &str, at: &Path| format!("socket,id={id},path={},server=on,wait=off", doubled(&path(at)));
    for (id, at) in [("monitor", layout.monitor_qmp_socket()), ("spare", layout.spare_qmp_socket())] {
        line.option("-chardev", socket(&format!("char{id}"), &at));
        line.option("-mon", format!("chardev=char{id},id={id},mode=control"));
    }
    if spec.serial_console {
        let log = doubled(&path(&layout.serial_log()));
        line.option(
            "-chardev",
            // Appending lets the monitor cut the log short while QEMU has it open.
            format!("{},logfile={log},logappend=on", socket("charserial0", &layout.serial_socket())),
        );
        line.device(json!({ "driver": "isa-serial", "id": "serial0", "chardev": "charserial0", "index": 0 }));
    }
    line.device(json!({ "driver": "virtio-serial-pci", "id": "virtio-serial0" }));
    line.option("-chardev", socket("charagent", &layout.agent_socket()));
    line.device(json!({
        "driver": "virtserialport", "id": "channel0", "bus": "virtio-serial0.0", "chardev": "charagent",
        "name": "org.qemu.guest_agent.0",
    }));
    if spec.graphics {
        line.option("-vnc", format!("unix:{}", doubled(&path(&layout.vnc_socket()))));
        line.device(json!({ "driver": "VGA", "id": "video0", "vgamem_mb": 16 }));
        line.device(json!({ "driver": "qemu-xhci", "id": "usb" }));
        line.device(json!({ "driver": "usb-tablet", "id": "input0", "bus": "usb.0" }));
    } else {
        line.option("-display", "none");
    }
}

fn storage(line: &mut Line, spec: &MachineSpec, backings: &[Backing]) -> Result<(), MachineError> {
    if backings.len() != spec.disks.len() {
        return Err(invalid("disks", "not every disk has its files"));
    }
    let buses = |bus: DiskBus| spec.disks.iter().any(|disk| disk.bus == bus);
    if buses(DiskBus::Scsi) {
        line.device(json!({ "driver": "virtio-scsi-pci", "id": "scsi0" }));
    }
    // q35 has an AHCI controller of its own, with the buses ide.0 to ide.5.
    if buses(DiskBus::Sata) && spec.machine == MachineType::Pc {
        line.device(json!({ "driver": "ich9-ahci", "id": "sata" }));
    }
    if buses(DiskBus::Usb) && !spec.graphics {
        line.device(json!({ "driver": "qemu-xhci", "id": "usb" }));
    }
    // Without an order of the user's, disks boot in the order in which they are given.
    let ordered =
        spec.disks.iter().any(|disk| disk.boot_order.is_some()) || spec.nics.iter().any(|nic| nic.boot_order.is_some());
    let mut sata_ports = 0;
    for (index, (disk, backing)) in spec.disks.iter().zip(backings).enumerate() {
        let node = format!("disk-{index}");
        let read_only = disk.read_only || disk.cdrom;
        line.option("-blockdev", blockdev(&node, backing, read_only).to_string());
        let mut device = match (disk.bus, disk.cdrom) {
            (DiskBus::Virtio, true) => {
                return Err(invalid(format!("disks[{index}].bus"), "a CD-ROM needs the bus sata, scsi or usb"));
            }
            (DiskBus::Virtio, false) => json!({ "driver": "virtio-blk-pci" }),
            (DiskBus::Scsi, cdrom) => {
                json!({ "driver": if cdrom { "scsi-cd" } else { "scsi-hd" }, "bus": "scsi0.0" })
            }
            (DiskBus::Usb, true) => {
                return Err(invalid(format!("disks[{index}].bus"), "a CD-ROM needs the bus sata or scsi"));
            }
            (DiskBus::Usb, false) => json!({ "driver": "usb-storage", "bus": "usb.0" }),
            (DiskBus::Sata, cdrom) => {
                let controller = if spec.machine == MachineType::Q35 { "ide" } else { "sata" };
                let port = sata_ports;
                sata_ports += 1;
                if port > 5 {
                    return Err(invalid(format!("disks[{index}].bus"), "more than six disks on the bus sata"));
                }
                json!({ "driver": if cdrom { "ide-cd" } else { "ide-hd" }, "bus": format!("{controller}.{port}") })
            }
        };
        device["id"] = json!(format!("dev-{node}"));
        device["drive"] = json!(node);
        if let Some(serial) = &disk.serial {
            device["serial"] = json!(serial);
        }
        if let Some(order) = boot_index(disk, index, ordered) {
            device["bootindex"] = json!(order);
        }
        line.device(device);
    }
    Ok(())
}

fn boot_index(disk: &DiskSpec, index: usize, ordered: bool) -> Option<u32> {
    if ordered { disk.boot_order } else { u32::try_from(index + 1).ok() }
}

fn blockdev(node: &str, backing: &Backing, read_only: bool) -> Value {
    // Every node below the first is given in full, so that nothing is opened because a header says so.
    let format = |format: ImageFormat, file: &Path, read_only: bool| {
        let mut value = json!({
            "driver": format.driver(),
            "read-only": read_only,
            "file": { "driver": "file", "filename": path(file), "read-only": read_only },
        });
        if format == ImageFormat::Qcow2 {
            value["backing"] = Value::Null;
        }
        value
    };
    let mut value = match backing {
        Backing::Overlay { overlay, base, format: base_format } => {
            let mut value = format(ImageFormat::Qcow2, overlay, read_only);
            value["backing"] = format(*base_format, base, true);
            value["discard"] = json!("unmap");
            value
        }
        Backing::Direct { path, format: direct_format } => {
            let mut value = format(*direct_format, path, read_only);
            value["discard"] = json!("unmap");
            value
        }
    };
    value["node-name"] = json!(node);
    value
}

fn network(line: &mut Line, index: usize, nic: &NicSpec) -> Result<(), MachineError> {
    let field = |name: &str| format!("nics[{index}].{name}");
    // IFNAMSIZ is 16 with the end.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if nic.tap.is_empty() || nic.tap.len() > 15 || !nic.tap.bytes().all(plain) {
        return Err(invalid(field("tap"), "not an interface name"));
    }
    if !is_mac(&nic.mac) {
        return Err(invalid(field("mac"), "not a hardware address"));
    }
    let vhost = if nic.vhost { "on" } else { "off" };
    line.option("-netdev", format!("tap,id=hostnet{index},ifname={},script=no,downscript=no,vhost={vhost}", nic.tap));
    let driver = match nic.model {
        NicModel::Virtio => "virtio-net-pci",
        NicModel::E1000 => "e1000",
        NicModel::E1000e => "e1000e",
        NicModel::Ne2kPci => "ne2k_pci",
        NicModel::Pcnet => "pcnet",
        NicModel::Rtl8139 => "rtl8139",
    };
    let mut device = json!({
        "driver": driver, "id": format!("net{index}"), "netdev": format!("hostnet{index}"), "mac": nic.mac,
    });
    match nic.boot_order {
        Some(order) => device["bootindex"] = json!(order),
        // The boot ROM is only needed where the guest boots from the network.
        None => device["romfile"] = json!(""),
    }
    if let (NicModel::Virtio, Some(mtu)) = (nic.model, nic.mtu) {
        device["host_mtu"] = json!(mtu);
    }
    line.device(device);
    Ok(())
}

/// Six pairs of hexadecimal digits with colons, as in `52:54:00:12:34:56`.
pub(crate) fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    parts.len() == 6 && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn helpers(line: &mut Line, spec: &MachineSpec) {
    if spec.balloon {
        // Pages that the guest frees go back to the host by themselves.
        line.device(json!({ "driver": "virtio-balloon-pci", "id": "balloon0", "free-page-reporting": true }));
    }
    if spec.rng {
        line.option("-object", json!({ "qom-type": "rng-builtin", "id": "rng0" }).to_string());
        line.device(json!({ "driver": "virtio-rng-pci", "id": "virtio-rng0", "rng": "rng0" }));
    }
    line.device(json!({ "driver": "pvpanic", "id": "panic0" }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{CpuSpec, DiskSource};

    fn spec() -> MachineSpec {
        MachineSpec {
            name: "demo".to_owned(),
            namespace: "default".to_owned(),
            uid: "u1".to_owned(),
            machine: MachineType::Q35,
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
        }
    }

    fn nic() -> NicSpec {
        NicSpec {
            name: "default".to_owned(),
            tap: "tap0".to_owned(),
            mac: "52:54:00:12:34:56".to_owned(),
            model: NicModel::Virtio,
            vhost: false,
            mtu: None,
            boot_order: None,
            dhcp: None,
        }
    }

    fn build(spec: &MachineSpec) -> Result<Vec<String>, MachineError> {
        let direct = Backing::Direct { path: "/d,1".into(), format: ImageFormat::Raw };
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
        check(same, "-device", r#"{"bootindex":1,"drive":"disk-0","driver":"virtio-blk-pci","id":"dev-disk-0"}"#, true);
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

    #[test]
    fn networks() {
        check(
            |s| s.nics = vec![nic()],
            "-netdev",
            "tap,id=hostnet0,ifname=tap0,script=no,downscript=no,vhost=off",
            true,
        );
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
        check(changed(|n| n.boot_order = Some(1)), "-device", r#""bootindex":1,"driver":"virtio-net-pci""#, true);
        // With an order of the user's, a disk without one is not booted from.
        check(changed(|n| n.boot_order = Some(1)), "-device", r#"{"drive":"disk-0""#, true);
        check(changed(|n| n.model = NicModel::E1000e), "-device", r#""driver":"e1000e""#, true);
    }

    #[test]
    fn values_that_qemu_cannot_be_given() {
        type Change = fn(&mut MachineSpec);
        let cases: [(&str, Change); 10] = [
            ("cpu", |s| s.cpu.sockets = 0),
            ("cpu", |s| s.cpu.cores = u32::MAX),
            ("cpu.model", |s| s.cpu.model = Some("host,+x".to_owned())),
            ("memory_bytes", |s| s.memory_bytes = 0),
            ("smbios.uuid", |s| s.smbios.uuid = Some("x,y".to_owned())),
            ("disks[0].bus", |s| s.disks[0].cdrom = true),
            ("disks[6].bus", |s| {
                s.disks = vec![disk("x"); 7];
                s.disks.iter_mut().for_each(|disk| disk.bus = DiskBus::Sata);
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
}
