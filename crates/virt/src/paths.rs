//! Directories of a launcher pod: a contract between controller, handler and launcher.

use std::collections::BTreeSet;

use carrack_types::kubevirt::VirtualMachineInstanceSpec;

/// Where the launcher and the handler meet.
pub const SOCKET_DIR: &str = "/var/run/kubevirt/sockets";
/// Volume of [`SOCKET_DIR`].
pub const SOCKET_VOLUME: &str = "sockets";
/// Where the handler puts container disks, as `disk_<index of the volume>.img`.
pub const CONTAINER_DISK_DIR: &str = "/var/run/kubevirt/container-disks";
/// Directories that each pod has for itself: volume and path.
pub const EMPTY_DIRS: [(&str, &str); 6] = [
    ("private", "/var/run/kubevirt-private"),
    ("public", "/var/run/kubevirt"),
    (SOCKET_VOLUME, SOCKET_DIR),
    ("libvirt-runtime", "/var/run/libvirt"),
    ("ephemeral-disks", "/var/run/kubevirt-ephemeral-disks"),
    ("container-disks", CONTAINER_DISK_DIR),
];
/// Where containers of container disks find the program that keeps them alive.
pub const KEEP_ALIVE_DIR: &str = "/usr/bin";
/// The program. It lies in [`KEEP_ALIVE_DIR`] in the container.
pub const KEEP_ALIVE: &str = "/usr/bin/container-disk";
/// Name of the program's file.
pub const KEEP_ALIVE_FILE: &str = "container-disk";

/// The kubelet puts a service account's token here.
pub const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Where huge pages are mounted.
pub const HUGEPAGES_DIR: &str = "/dev/hugepages";
/// Where the variables of UEFI firmware are that outlive an instance.
pub const NVRAM_DIR: &str = "/var/lib/libvirt/qemu/nvram";
/// Name of the volume that stands for the image with kernel and initrd; KubeVirt's.
pub const KERNEL_BOOT_VOLUME: &str = "kernel-boot-volume";
/// Where the handler puts the kernel.
pub const KERNEL: &str = "/var/run/kubevirt/container-disks/kernel";
/// Where the handler puts the initrd.
pub const INITRD: &str = "/var/run/kubevirt/container-disks/initrd";

/// The variables of a machine's firmware. Each kind of firmware has its own: without the keys of the one that checks what it boots,
/// it would check nothing.
#[must_use]
pub fn nvram(secure: bool) -> String {
    format!("{NVRAM_DIR}/{}", if secure { "VARS.secboot.fd" } else { "VARS.fd" })
}
/// Where a claim's device is.
#[must_use]
pub fn claim_device(volume: &str) -> String {
    format!("/dev/{volume}")
}
/// The pod's volume with a Secret of access credentials.
#[must_use]
pub fn access_credential_volume(secret: &str) -> String {
    format!("{secret}-access-cred")
}
/// Where that is mounted.
#[must_use]
pub fn access_credential_dir(secret: &str) -> String {
    format!("/var/run/kubevirt-private/secret/{secret}-access-cred")
}
/// The Secrets with access credentials of an instance, each once.
pub fn access_credential_secrets(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = &str> {
    let keys = spec.access_credentials.iter().filter_map(|access| access.ssh_public_key.as_ref().map(|of| &of.source));
    let words = spec.access_credentials.iter().filter_map(|access| access.user_password.as_ref().map(|of| &of.source));
    let names: BTreeSet<&str> =
        keys.chain(words).filter_map(|source| Some(source.secret.as_ref()?.secret_name.as_str())).collect();
    names.into_iter()
}

/// Where a claim's filesystem is; the disk in it is `disk.img`.
#[must_use]
pub fn claim_dir(volume: &str) -> String {
    format!("/var/run/kubevirt-private/vmi-disks/{volume}")
}
/// Where a ConfigMap's files are.
#[must_use]
pub fn config_map_dir(volume: &str) -> String {
    format!("/var/run/kubevirt-private/config-map/{volume}")
}
/// Where a Secret's files are.
#[must_use]
pub fn secret_dir(volume: &str) -> String {
    format!("/var/run/kubevirt-private/secret/{volume}")
}
/// Where the Secret with cloud-init's user data is.
#[must_use]
pub fn user_data_secret_dir(volume: &str) -> String {
    format!("/var/run/kubevirt-private/secret/{volume}-udata")
}
/// Where the Secret with cloud-init's network data is.
#[must_use]
pub fn network_data_secret_dir(volume: &str) -> String {
    format!("/var/run/kubevirt-private/secret/{volume}-ndata")
}
/// Where files filled from the pod's fields are.
#[must_use]
pub fn downward_api_dir(volume: &str) -> String {
    format!("/var/run/kubevirt-private/downwardapi/{volume}")
}
/// Name of the container that holds a container disk.
#[must_use]
pub fn disk_container(volume: &str) -> String {
    format!("volume{volume}")
}
/// The container disk of a volume in the launcher's container. Its name follows from the volume's place in the spec.
#[must_use]
pub fn container_disk(index: usize) -> String {
    format!("{CONTAINER_DISK_DIR}/disk_{index}.img")
}
