//! The volumes of a launcher pod, and the containers that hold disks.

use std::collections::BTreeSet;

use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::kubevirt::{VirtualMachineInstance, Volume as VmiVolume};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, DownwardAPIVolumeSource, EmptyDirVolumeSource,
    HostPathVolumeSource, PersistentVolumeClaimVolumeSource, SecretVolumeSource, SecurityContext, Volume, VolumeDevice,
    VolumeMount,
};

use super::super::state;
use crate::controllers::Config;
use crate::paths;

/// The pod's volumes, and where the compute container finds them.
pub(super) struct Volumes<'a> {
    vmi: &'a VirtualMachineInstance,
    config: &'a Config,
    blocks: &'a BTreeSet<&'a str>,
    settings: &'a KubeVirtConfiguration,
    /// The pod's volumes.
    pub volumes: Vec<Volume>,
    /// Where the compute container has them.
    pub mounts: Vec<VolumeMount>,
    /// The block devices that it has.
    pub devices: Vec<VolumeDevice>,
    /// Containers made from images that hold disks or kernels.
    pub disk_containers: Vec<Container>,
    /// Secrets with credentials for registries.
    pub pull_secrets: BTreeSet<String>,
    /// The service account whose token is a disk.
    pub service_account: Option<String>,
    /// Whether the pod needs its service account's token.
    pub needs_token: bool,
}

impl<'a> Volumes<'a> {
    /// The volumes of an instance.
    ///
    /// # Errors
    /// A volume of a kind that cannot be had, for people.
    pub fn of(
        vmi: &'a VirtualMachineInstance,
        blocks: &'a BTreeSet<&'a str>,
        config: &'a Config,
        settings: &'a KubeVirtConfiguration,
    ) -> Result<Self, String> {
        let mut this = Self {
            vmi,
            config,
            blocks,
            settings,
            volumes: Vec::new(),
            mounts: Vec::new(),
            devices: Vec::new(),
            disk_containers: Vec::new(),
            pull_secrets: BTreeSet::new(),
            service_account: None,
            needs_token: false,
        };
        for (name, path) in paths::EMPTY_DIRS {
            let source = Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() };
            this.mount(name, source, path.to_owned(), false);
        }
        if super::huge_page_size(vmi).is_some() {
            let source =
                EmptyDirVolumeSource { medium: Some("HugePages".to_owned()), ..EmptyDirVolumeSource::default() };
            let source = Volume { empty_dir: Some(source), ..Volume::default() };
            this.mount("hugepages", source, paths::HUGEPAGES_DIR.to_owned(), false);
        }
        for volume in &vmi.spec.volumes {
            this.add(volume)?;
        }
        if let Some(claim) = state::claim_name(vmi) {
            let source = PersistentVolumeClaimVolumeSource { claim_name: claim, read_only: None };
            let source = Volume { persistent_volume_claim: Some(source), ..Volume::default() };
            this.mount(state::VOLUME, source, paths::NVRAM_DIR.to_owned(), false);
            if let Some(mount) = this.mounts.last_mut() {
                mount.sub_path = Some(state::NVRAM_SUBDIRECTORY.to_owned());
            }
        }
        for secret in paths::access_credential_secrets(&vmi.spec) {
            let volume = paths::access_credential_volume(secret);
            this.secret(&volume, secret, None, paths::access_credential_dir(secret));
        }
        let boot = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref());
        if let Some(container) = boot.and_then(|boot| boot.container.as_ref()) {
            this.disk_container(
                paths::KERNEL_BOOT_VOLUME,
                &container.image,
                container.image_pull_secret.as_ref(),
                container.image_pull_policy.as_ref(),
            );
        }
        Ok(this)
    }

    fn mount(&mut self, name: &str, source: Volume, path: String, read_only: bool) {
        self.volumes.push(Volume { name: name.to_owned(), ..source });
        self.mounts.push(VolumeMount {
            name: name.to_owned(),
            mount_path: path,
            read_only: read_only.then_some(true),
            ..VolumeMount::default()
        });
    }

    fn add(&mut self, volume: &VmiVolume) -> Result<(), String> {
        let name = volume.name.as_str();
        if let Some(disk) = &volume.container_disk {
            self.disk_container(name, &disk.image, disk.image_pull_secret.as_ref(), disk.image_pull_policy.as_ref());
        } else if let Some(claim) = volume.claim_name() {
            let read_only = volume.has_read_only_claim();
            let source = PersistentVolumeClaimVolumeSource {
                claim_name: claim.to_owned(),
                read_only: read_only.then_some(true),
            };
            let source = Volume { persistent_volume_claim: Some(source), ..Volume::default() };
            if self.blocks.contains(claim) {
                self.volumes.push(Volume { name: name.to_owned(), ..source });
                self.devices.push(VolumeDevice { name: name.to_owned(), device_path: paths::claim_device(name) });
            } else {
                self.mount(name, source, paths::claim_dir(name), read_only || volume.ephemeral.is_some());
            }
        } else if let Some(cloud_init) = volume.cloud_init_no_cloud.as_ref().or(volume.cloud_init_config_drive.as_ref())
        {
            if let Some(secret) = &cloud_init.user_data_secret_ref {
                self.secret(&format!("{name}-udata"), &secret.name, None, paths::user_data_secret_dir(name));
            }
            if let Some(secret) = &cloud_init.network_data_secret_ref {
                self.secret(&format!("{name}-ndata"), &secret.name, None, paths::network_data_secret_dir(name));
            }
        } else if let Some(source) = &volume.config_map {
            let source = ConfigMapVolumeSource {
                name: source.name.clone().unwrap_or_default(),
                optional: source.optional,
                ..ConfigMapVolumeSource::default()
            };
            self.mount(
                name,
                Volume { config_map: Some(source), ..Volume::default() },
                paths::config_map_dir(name),
                true,
            );
        } else if let Some(source) = &volume.secret {
            let secret = source.secret_name.clone().unwrap_or_default();
            self.secret(name, &secret, source.optional, paths::secret_dir(name));
        } else if let Some(source) = &volume.downward_api {
            let items = (!source.fields.is_empty()).then(|| source.fields.clone());
            let source = DownwardAPIVolumeSource { items, default_mode: None };
            let source = Volume { downward_api: Some(source), ..Volume::default() };
            self.mount(name, source, paths::downward_api_dir(name), true);
        } else if let Some(source) = &volume.service_account {
            self.service_account.clone_from(&source.service_account_name);
            self.needs_token = true;
        } else if volume.empty_disk.is_none() {
            let kind = volume.sources().first().copied().unwrap_or("without a source");
            return Err(format!("volume {name}: volumes of type {kind} are not supported"));
        }
        Ok(())
    }

    fn secret(&mut self, name: &str, secret: &str, optional: Option<bool>, path: String) {
        let source =
            SecretVolumeSource { secret_name: Some(secret.to_owned()), optional, ..SecretVolumeSource::default() };
        self.mount(name, Volume { secret: Some(source), ..Volume::default() }, path, true);
    }

    /// A container made from an image with a disk or a kernel. It does nothing; while it runs, the handler finds the
    /// files in its root filesystem.
    fn disk_container(&mut self, name: &str, image: &str, secret: Option<&String>, policy: Option<&String>) {
        const BIN: &str = "virt-bin-share-dir";
        if !self.volumes.iter().any(|volume| volume.name == BIN) {
            let source =
                HostPathVolumeSource { path: self.config.keep_alive_dir.clone(), type_: Some("Directory".to_owned()) };
            self.volumes.push(Volume { name: BIN.to_owned(), host_path: Some(source), ..Volume::default() });
        }
        self.pull_secrets.extend(secret.cloned());
        let resources = super::beside(self.vmi, self.settings, "container-disk", ["1m", "1M"], ["10m", "40M"]);
        self.disk_containers.push(Container {
            name: paths::disk_container(name),
            image: Some(image.to_owned()),
            image_pull_policy: policy.cloned(),
            command: Some(vec![paths::KEEP_ALIVE.to_owned()]),
            resources: Some(resources),
            security_context: Some(SecurityContext {
                run_as_user: Some(0),
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
                ..SecurityContext::default()
            }),
            volume_mounts: Some(vec![VolumeMount {
                name: BIN.to_owned(),
                mount_path: paths::KEEP_ALIVE_DIR.to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            }]),
            ..Container::default()
        });
    }
}
