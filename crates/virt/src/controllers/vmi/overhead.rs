//! What a launcher pod needs beside its guest's memory.

use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::kubevirt::{DomainSpec, Quantity};

use crate::identity::has_tpm;

const MIB: u64 = 1 << 20;

/// The launcher itself, and QEMU's code, heap and device state.
const FIXED: u64 = 96 * MIB;
/// Stack and emulation state of a virtual CPU.
const PER_VCPU: u64 = 8 * MIB;
/// Frame buffer of the graphics device.
const GRAPHICS: u64 = 32 * MIB;
/// The process that emulates a trusted platform module.
const TPM: u64 = 16 * MIB;
/// Page tables: 8 bytes for each 4 KiB page.
const PAGE_TABLES_DIVISOR: u64 = 512;

/// Memory that the launcher's pod is given beside the guest's, in bytes: what it needs, and more of it where the cluster's settings
/// say by how much. A number that is none, or less than 1, changes nothing; admission refuses it.
pub(super) fn given_overhead_bytes(domain: &DomainSpec, settings: &KubeVirtConfiguration) -> u64 {
    let ratio = settings.additional_guest_memory_overhead_ratio.clone().map(Quantity);
    let thousandths = ratio.and_then(|ratio| u64::try_from(ratio.millis()?).ok()).unwrap_or(0).max(1000);
    memory_overhead_bytes(domain).saturating_mul(thousandths) / 1000
}

/// Memory that the launcher's pod needs beside the guest's, in bytes. KubeVirt counts 220 MiB for its fixed part,
/// most of it for libvirt's daemons, which do not exist here.
fn memory_overhead_bytes(domain: &DomainSpec) -> u64 {
    let guest = domain.guest_memory_bytes().unwrap_or(0);
    let graphics = if domain.devices.autoattach_graphics_device == Some(false) { 0 } else { GRAPHICS };
    let tpm = if has_tpm(domain) { TPM } else { 0 };
    FIXED + graphics + tpm + PER_VCPU.saturating_mul(u64::from(domain.vcpus())) + guest / PAGE_TABLES_DIVISOR
}

#[cfg(test)]
mod tests {
    use super::{given_overhead_bytes, memory_overhead_bytes};
    use carrack_types::kubevirt::DomainSpec;
    use serde_json::{Value, json};

    #[test]
    fn what_a_launcher_needs_besides() {
        let check = |domain: Value, mebibytes: u64| {
            let spec: DomainSpec = serde_json::from_value(domain.clone()).expect("a domain");
            assert_eq!(memory_overhead_bytes(&spec), mebibytes << 20, "{domain}");
        };
        let screenless = || json!({"autoattachGraphicsDevice": false});
        check(json!({"devices": {}}), 96 + 32 + 8);
        check(json!({"devices": screenless()}), 96 + 8);
        check(json!({"devices": screenless(), "cpu": {"cores": 4}}), 96 + 4 * 8);
        check(json!({"devices": screenless(), "memory": {"guest": "1Gi"}}), 96 + 8 + 2);
        check(json!({"devices": {"autoattachGraphicsDevice": false, "tpm": {}}}), 96 + 8 + 16);
        check(json!({"devices": {"autoattachGraphicsDevice": false, "tpm": {"enabled": false}}}), 96 + 8);
    }

    #[test]
    fn the_cluster_may_give_more() {
        let check = |ratio: Value, mebibytes: u64| {
            let domain: DomainSpec =
                serde_json::from_value(json!({"devices": {"autoattachGraphicsDevice": false}})).expect("a domain");
            let settings =
                serde_json::from_value(json!({"additionalGuestMemoryOverheadRatio": ratio})).expect("settings");
            assert_eq!(given_overhead_bytes(&domain, &settings), mebibytes << 20, "{ratio}");
        };
        check(Value::Null, 104);
        check(json!("1"), 104);
        check(json!("1.5"), 156);
        check(json!("2.25"), 234);
        for senseless in ["", "much", "0.5", "-2"] {
            check(json!(senseless), 104);
        }
    }
}
