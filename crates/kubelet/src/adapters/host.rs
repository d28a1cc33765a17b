//! Facts of the machine, from /proc and /sys.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use carrack_engine::Time;

use super::found_cpus::FoundCpus;
use super::found_memory;
use crate::cpus::CpuSet;
use crate::effects::OpError;
use crate::runtime::{Dns, HostFacts};

/// The kernel's own word on which boot this is.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Where the kernel shows its own bounds.
pub(super) const KERNEL: &str = "/proc/sys/kernel";

fn line(path: &str) -> String {
    fs::read_to_string(path).map(|s| s.trim().to_owned()).unwrap_or_default()
}

/// Bytes under a key of /proc/meminfo; 0 where there is none.
pub(super) fn meminfo(text: &str, key: &str) -> u64 {
    text.lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(':')?.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// How many tasks a machine may have: the lower of its kernel's two bounds, of which that for threads goes by its memory
/// (`pidlimit` of upstream's kubelet). 0 where neither can be read.
pub(super) fn pids_max(kernel: &Path) -> u64 {
    let bound = |name: &str| fs::read_to_string(kernel.join(name)).ok()?.trim().parse::<u64>().ok();
    ["pid_max", "threads-max"].into_iter().filter_map(bound).min().unwrap_or(0)
}

/// The firmware's UUID, as upstream reads it: from DMI, on POWER and ARM from the device tree, else the machine id.
fn system_uuid() -> String {
    ["/sys/class/dmi/id/product_uuid", "/proc/device-tree/system-id", "/proc/device-tree/vm,uuid", "/etc/machine-id"]
        .into_iter()
        .map(|path| line(path).trim_end_matches('\0').to_lowercase())
        .find(|id| !id.is_empty())
        .unwrap_or_default()
}

/// The numbers that a list such as `0-3,8` names.
fn numbers(list: &str) -> Vec<u32> {
    list.parse::<CpuSet>().unwrap_or_default().iter().collect()
}

/// Huge pages reserved, in bytes by the size of a page in bytes.
pub(super) fn hugepages() -> BTreeMap<u64, u64> {
    hugepages_in(Path::new("/sys/kernel/mm/hugepages"))
}

/// The same of a directory that has one for each size.
pub(super) fn hugepages_in(dir: &Path) -> BTreeMap<u64, u64> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(kib) = name.strip_prefix("hugepages-").and_then(|n| n.strip_suffix("kB")?.parse::<u64>().ok()) else {
            continue;
        };
        let count: u64 = line(&entry.path().join("nr_hugepages").to_string_lossy()).parse().unwrap_or(0);
        out.insert(kib * 1024, count * kib * 1024);
    }
    out
}

/// The address that traffic to elsewhere would come from; nothing is sent.
fn source_address(to: &str, bind: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind(bind).ok()?;
    socket.connect(to).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
}

/// Local IPv4 addresses in the kernel's routing trie.
fn local_addresses(fib_trie: &str) -> Vec<IpAddr> {
    let mut out = Vec::new();
    let mut last = None;
    for l in fib_trie.lines().map(str::trim) {
        if let Some(ip) = l.strip_prefix("|-- ") {
            last = ip.parse::<IpAddr>().ok();
        } else if l.contains("/32 host LOCAL")
            && let Some(ip) = last.filter(|ip| !ip.is_loopback())
            && !out.contains(&ip)
        {
            out.push(ip);
        }
    }
    out
}

fn addresses() -> Vec<IpAddr> {
    let mut out: Vec<IpAddr> = Vec::new();
    // Documentation addresses: only the choice of route is asked for.
    out.extend(source_address("192.0.2.1:9", "0.0.0.0:0"));
    out.extend(source_address("[2001:db8::1]:9", "[::]:0"));
    if !out.iter().any(IpAddr::is_ipv4) {
        let local = fs::read_to_string("/proc/net/fib_trie").map(|t| local_addresses(&t)).unwrap_or_default();
        out.splice(0..0, local);
    }
    if out.is_empty() {
        out.push(IpAddr::from([127, 0, 0, 1]));
    }
    out
}

/// Reads resolv.conf's text.
fn resolver(text: &str) -> Dns {
    let mut dns = Dns::default();
    for l in text.lines() {
        let mut words = l.split_whitespace();
        match words.next() {
            Some("nameserver") => dns.servers.extend(words.next().map(str::to_owned)),
            Some("search" | "domain") => dns.searches = words.map(str::to_owned).collect(),
            Some("options") => dns.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    dns
}

/// Adds what is left where the runtime keeps its images, and whether that is another file system than the kubelet's.
pub fn image_disk(facts: &mut HostFacts, dir: &Path, place: &Place) {
    let device = |of: &Path| fs::metadata(of).ok().map(|m| m.dev());
    facts.images_apart = device(dir).zip(device(&place.dir)).is_some_and(|(images, own)| images != own);
    match rustix::fs::statvfs(dir) {
        Ok(disk) => {
            facts.image_disk_bytes = disk.f_blocks * disk.f_frsize;
            facts.image_disk_available_bytes = disk.f_bavail * disk.f_frsize;
            facts.image_inodes = disk.f_files;
            facts.image_inodes_free = disk.f_ffree;
        }
        Err(error) => tracing::debug!(dir = %dir.display(), %error, "the images' file system is not known"),
    }
}

/// Swap that the machine has, in bytes.
#[must_use]
pub fn swap_bytes() -> u64 {
    fs::read_to_string("/proc/meminfo").map_or(0, |text| meminfo(&text, "SwapTotal"))
}

/// Where the facts are read that are not the kernel's alone.
#[derive(Clone, Debug)]
pub struct Place {
    /// A directory on the file system that pods fill.
    pub dir: std::path::PathBuf,
    /// File with the boot's id.
    pub boot_id: std::path::PathBuf,
    /// File with the node's own name servers; none where pods get none of them.
    pub resolver: Option<std::path::PathBuf>,
    /// The control group that pods are in.
    pub pods_group: String,
    /// The CPUs as they were found last.
    pub cpus: FoundCpus,
}

/// Reads the machine's facts.
///
/// # Errors
/// When what everything rests on (memory, the boot) cannot be read.
pub fn facts(place: &Place) -> Result<HostFacts, OpError> {
    let dir = &place.dir;
    let memory = fs::read_to_string("/proc/meminfo").map_err(super::io_error("reading /proc/meminfo"))?;
    let of_pods = super::cgroups::memory(&place.pods_group);
    let boot_id = line(&place.boot_id.to_string_lossy());
    if boot_id.is_empty() {
        return Err(OpError::Failed(format!("{} tells no boot id", place.boot_id.display())));
    }
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let booted_s = stat.lines().find_map(|l| l.strip_prefix("btime ")?.parse::<i64>().ok()).unwrap_or(0);
    let uname = rustix::system::uname();
    let text = |s: &std::ffi::CStr| s.to_string_lossy().into_owned();
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let os_image = os_release
        .lines()
        .find_map(|l| l.strip_prefix("PRETTY_NAME="))
        .map(|v| v.trim_matches('"').to_owned())
        .unwrap_or_default();
    let disk = rustix::fs::statvfs(dir).map_err(|e| OpError::Failed(format!("statvfs of {}: {e}", dir.display())))?;
    let online = numbers(&line("/sys/devices/system/cpu/online")).len();
    let cpus = if online > 0 {
        u32::try_from(online).unwrap_or(u32::MAX)
    } else {
        std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
    };
    let pids =
        line("/proc/loadavg").split_whitespace().nth(3).and_then(|f| f.split_once('/')?.1.parse().ok()).unwrap_or(0);
    let huge = hugepages();
    Ok(HostFacts {
        boot_id,
        booted_at: Time::from_unix_s(booted_s),
        machine_id: line("/etc/machine-id"),
        system_uuid: system_uuid(),
        kernel_version: text(uname.release()),
        os_image,
        architecture: match uname.machine().to_bytes() {
            b"x86_64" => "amd64".into(),
            b"aarch64" => "arm64".into(),
            _ => text(uname.machine()),
        },
        hostname: text(uname.nodename()),
        cpus,
        cpu_topology: place.cpus.look(Path::new("/sys/devices/system"), cpus),
        numa_nodes: numbers(&line("/sys/devices/system/node/online")),
        numa_memory: found_memory::look(Path::new("/sys/devices/system/node"), meminfo(&memory, "MemTotal"), &huge),
        memory_bytes: meminfo(&memory, "MemTotal"),
        memory_available_bytes: meminfo(&memory, "MemAvailable"),
        swap_bytes: meminfo(&memory, "SwapTotal"),
        pods_memory_bytes: of_pods.map_or(0, |(most, _)| most),
        pods_memory_available_bytes: of_pods.map_or(0, |(most, used)| most.saturating_sub(used)),
        hugepages_bytes: huge,
        disk_bytes: disk.f_blocks * disk.f_frsize,
        disk_available_bytes: disk.f_bavail * disk.f_frsize,
        // Until the runtime tells where it keeps images.
        images_apart: false,
        image_disk_bytes: disk.f_blocks * disk.f_frsize,
        image_disk_available_bytes: disk.f_bavail * disk.f_frsize,
        image_inodes: disk.f_files,
        image_inodes_free: disk.f_ffree,
        inodes: disk.f_files,
        inodes_free: disk.f_ffree,
        pids_max: pids_max(Path::new(KERNEL)),
        pids,
        addresses: addresses(),
        resolver: place
            .resolver
            .as_deref()
            .map(|path| resolver(&fs::read_to_string(path).unwrap_or_default()))
            .unwrap_or_default(),
        apparmor: line("/sys/module/apparmor/parameters/enabled") == "Y",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel_read() {
        assert_eq!(numbers("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(numbers(""), Vec::<u32>::new());
        assert_eq!(meminfo("MemTotal:  10 kB\nMemAvailable: 5 kB\n", "MemAvailable"), 5120);
        let trie = "  |-- 10.0.0.0\n   /24 link UNICAST\n  |-- 10.0.0.5\n     /32 host LOCAL\n  |-- 127.0.0.1\n   /32 host LOCAL\n";
        assert_eq!(local_addresses(trie), vec![IpAddr::from([10, 0, 0, 5])]);
        let dns = resolver("# c\nnameserver 1.1.1.1\nsearch a b\noptions ndots:2\n");
        assert_eq!(
            (dns.servers, dns.searches, dns.options),
            (vec!["1.1.1.1".into()], vec!["a".into(), "b".into()], vec!["ndots:2".into()])
        );
    }

    #[test]
    fn tasks_have_the_lower_bound() {
        for (pid_max, threads_max, expected) in [
            (Some("4194304\n"), Some("62717\n"), 62_717),
            (Some("32768\n"), Some("62717\n"), 32_768),
            (Some("32768\n"), None, 32_768),
            (None, None, 0),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for (name, text) in [("pid_max", pid_max), ("threads-max", threads_max)] {
                if let Some(text) = text {
                    fs::write(dir.path().join(name), text).unwrap();
                }
            }
            assert_eq!(pids_max(dir.path()), expected);
        }
    }

    #[test]
    fn this_machine_has_facts() {
        let place = Place {
            dir: "/".into(),
            boot_id: BOOT_ID.into(),
            resolver: Some("/etc/resolv.conf".into()),
            pods_group: "kubepods".into(),
            cpus: FoundCpus::default(),
        };
        let f = facts(&place).unwrap();
        assert!(f.cpus > 0 && f.memory_bytes > f.memory_available_bytes && f.disk_bytes > 0);
        assert!(!f.boot_id.is_empty() && !f.addresses.is_empty());
    }
}
