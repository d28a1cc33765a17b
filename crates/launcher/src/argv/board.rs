//! The machine itself: type, accelerator, processors, memory, firmware, clock.

use super::{Line, MachineError, doubled, invalid, path};
use crate::accel::Accel;
use crate::board::{Board, Chassis, Firmware};
use crate::layout::Layout;
use crate::spec::{MachineSpec, MachineType};
use serde_json::{Value, json};

/// The emulator keeps translated code in a buffer of this size; its default grows with the host's memory.
const TRANSLATION_BUFFER_MIB: u32 = 64;

pub(super) fn machine(line: &mut Line, spec: &MachineSpec, layout: &Layout) -> Result<(), MachineError> {
    let board = &spec.board;
    let name = format!("{}_{}", spec.namespace, spec.name);
    line.option("-name", format!("guest={},debug-threads=on", doubled(&name)));
    line.flag("-no-user-config");
    line.flag("-nodefaults");
    // What QEMU never needs once it runs, however the guest breaks into it.
    line.option("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    line.option("-machine", machine_option(spec)?);
    firmware(line, board, layout);
    match spec.accel {
        Accel::Kvm => {
            line.option("-accel", "kvm");
            let missed = if board.drop_missed_pit_ticks { "discard" } else { "delay" };
            line.option("-global", format!("kvm-pit.lost_tick_policy={missed}"));
        }
        Accel::Tcg => {
            line.option("-accel", format!("tcg,thread=multi,tb-size={TRANSLATION_BUFFER_MIB}"));
        }
    }
    line.option("-cpu", cpu_model(spec)?);
    let cpu = &spec.cpu;
    let count = cpu.count().filter(|count| (1..=255).contains(count)).ok_or(invalid("cpu", "1 to 255 processors"))?;
    line.option("-smp", format!("cpus={count},sockets={},cores={},threads={}", cpu.sockets, cpu.cores, cpu.threads));
    memory(line, spec)?;
    line.option("-rtc", clock(spec)?);
    // As KubeVirt: who looks at a machine before it runs may want to get into its firmware.
    line.option("-boot", if spec.start_paused { "menu=on,splash-time=10000,strict=on" } else { "menu=off,strict=on" });
    // The monitor writes down why a machine ended before it lets QEMU go.
    let watchdog = board.watchdog.map_or("reset", |action| action.qemu());
    let reboot = if board.ends_with_reboot { "shutdown" } else { "reset" };
    line.option("-action", format!("reboot={reboot},shutdown=pause,panic=shutdown,watchdog={watchdog}"));
    if let Some(direct) = &board.kernel {
        if let Some(kernel) = &direct.kernel {
            line.option("-kernel", path(kernel));
        }
        if let Some(initrd) = &direct.initrd {
            line.option("-initrd", path(initrd));
        }
        if let Some(args) = &direct.args {
            line.option("-append", args.clone());
        }
    }
    if spec.start_paused {
        line.flag("-S");
    }
    Ok(())
}

fn machine_option(spec: &MachineSpec) -> Result<String, MachineError> {
    let board = &spec.board;
    let name = match (spec.machine_type.as_deref(), spec.machine) {
        (Some(name), _) if name.is_empty() || !name.bytes().all(is_plain) => {
            return Err(invalid("machine_type", "not a machine type"));
        }
        (Some(name), _) => name,
        (None, MachineType::Q35) => "q35",
        (None, MachineType::Pc) => "pc",
    };
    let mut text = format!("{name},usb=off,vmport=off,dump-guest-core=off");
    let switch = |on: bool| if on { "on" } else { "off" };
    let smm = if board.firmware == Firmware::EfiSecure { Some(true) } else { board.smm };
    for (property, value) in [
        ("smm", smm.map(switch)),
        ("hpet", board.hpet.map(switch)),
        ("acpi", board.no_acpi.then_some("off")),
        // SeaBIOS writes to the serial port where there is no screen.
        ("graphics", (board.firmware == Firmware::BiosSerial).then_some("off")),
        ("memory-backend", board.hugepages.is_some().then_some("mem0")),
    ] {
        if let Some(value) = value {
            text.push_str(&format!(",{property}={value}"));
        }
    }
    if board.firmware.files().is_some() {
        text.push_str(",pflash0=firmware-code,pflash1=firmware-vars");
    }
    Ok(text)
}

/// UEFI's code is read-only; its variables lie in a copy of their own, which goes with the machine or is kept.
fn firmware(line: &mut Line, board: &Board, layout: &Layout) {
    let Some((code, _)) = board.firmware.files() else { return };
    let node = |name: &str, file: String, read_only: bool| -> Value {
        json!({
            "node-name": name, "driver": "raw", "read-only": read_only,
            "file": { "driver": "file", "filename": file, "read-only": read_only },
        })
    };
    line.option("-blockdev", node("firmware-code", code.to_owned(), true).to_string());
    line.option("-blockdev", node("firmware-vars", path(&board.variables(layout)), false).to_string());
    if board.firmware == Firmware::EfiSecure {
        // Only the firmware, in system management mode, writes its variables.
        line.option("-global", "driver=cfi.pflash01,property=secure,value=on");
        line.option("-global", "ICH9-LPC.disable_s3=1");
    }
}

fn memory(line: &mut Line, spec: &MachineSpec) -> Result<(), MachineError> {
    if spec.memory_bytes < 1 << 20 {
        return Err(invalid("memory_bytes", "less than one mebibyte"));
    }
    // QEMU rounds to its own granularity of 8 KiB.
    line.option("-m", format!("size={}k", spec.memory_bytes.div_ceil(1024)));
    if let Some(directory) = &spec.board.hugepages {
        let backend = json!({
            "qom-type": "memory-backend-file", "id": "mem0", "mem-path": path(directory),
            "size": spec.memory_bytes, "prealloc": true,
        });
        line.option("-object", backend.to_string());
    }
    Ok(())
}

fn clock(spec: &MachineSpec) -> Result<String, MachineError> {
    let drift = if spec.board.drop_missed_ticks { "none" } else { "slew" };
    let base = match spec.board.clock.as_deref() {
        None => "utc",
        Some(at) if at.len() == 19 && at.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b':' | b'T')) => at,
        Some(_) => return Err(invalid("board.clock", "not a date and time")),
    };
    let follows = if spec.board.clock_follows_guest { ",clock=vm" } else { "" };
    Ok(format!("base={base},driftfix={drift}{follows}"))
}

/// Whether names of QEMU's have such a byte: none of them begins another option.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

fn cpu_model(spec: &MachineSpec) -> Result<String, MachineError> {
    let mut text = match (spec.cpu.model.as_deref(), spec.accel) {
        (None | Some("host-model" | "host-passthrough"), Accel::Kvm) => "host,migratable=on".to_owned(),
        // Five levels of page tables only make the emulator slower.
        (None | Some("host-model" | "host-passthrough"), Accel::Tcg) => "max,la57=off".to_owned(),
        (Some(model), _) => {
            if model.is_empty() || !model.bytes().all(is_plain) {
                return Err(invalid("cpu.model", "not a processor model"));
            }
            model.to_owned()
        }
    };
    for (index, feature) in spec.cpu.features.iter().enumerate() {
        let name = feature.strip_prefix(['+', '-']).unwrap_or(feature);
        if name.is_empty() || !name.bytes().all(|byte| is_plain(byte) || byte == b'=') {
            return Err(invalid(format!("cpu.features[{index}]"), "not a processor feature"));
        }
        text.push(',');
        text.push_str(feature);
    }
    Ok(text)
}

/// SMBIOS type 3; the manufacturer is always given, as without any string QEMU writes its own.
pub(super) fn chassis(strings: &Chassis) -> String {
    let manufacturer = strings.manufacturer.clone().unwrap_or_else(|| "KubeVirt".to_owned());
    let mut text = format!("type=3,manufacturer={}", doubled(&manufacturer));
    for (name, value) in
        [("version", &strings.version), ("serial", &strings.serial), ("asset", &strings.asset), ("sku", &strings.sku)]
    {
        if let Some(value) = value {
            text.push_str(&format!(",{name}={}", doubled(value)));
        }
    }
    text
}
