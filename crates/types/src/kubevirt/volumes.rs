//! Volumes: where a disk's contents come from.

use k8s_openapi::api::core::v1 as core;

use super::api::api;
use super::devices::EmptyDiskSource;
use super::embedded;
use super::quantity::Quantity;

api! {
    /// A volume. Exactly one of its sources is set.
    pub struct Volume {
        /// Name of the volume.
        #[required]
        pub name: String,
        /// An image file on the node.
        pub host_disk: Option<HostDisk>,
        /// A persistent volume claim.
        pub persistent_volume_claim: Option<PersistentVolumeClaimSource>,
        /// Cloud-init data, NoCloud form.
        pub cloud_init_no_cloud: Option<CloudInitSource>,
        /// Cloud-init data, config drive form.
        pub cloud_init_config_drive: Option<CloudInitSource>,
        /// Answers for Windows' setup.
        pub sysprep: Option<SysprepSource>,
        /// A disk inside a container image.
        pub container_disk: Option<ContainerDiskSource>,
        /// A copy-on-write layer over a claim.
        pub ephemeral: Option<EphemeralSource>,
        /// An empty disk that lives as long as the instance.
        pub empty_disk: Option<EmptyDiskSource>,
        /// A DataVolume.
        pub data_volume: Option<DataVolumeSource>,
        /// A ConfigMap as a disk.
        pub config_map: Option<ConfigMapSource>,
        /// A Secret as a disk.
        pub secret: Option<SecretSource>,
        /// Fields of the pod as a disk.
        #[serde(rename = "downwardAPI")]
        pub downward_api: Option<DownwardApiSource>,
        /// A service account's token as a disk.
        pub service_account: Option<ServiceAccountSource>,
        /// Host and guest metrics as a disk.
        pub downward_metrics: Option<DownwardMetricsSource>,
        /// A claim that takes a dump of the guest's memory.
        pub memory_dump: Option<PersistentVolumeClaimSource>,
        /// A directory of the launcher's container.
        pub container_path: Option<ContainerPathSource>,
    }

    /// An image file on the node.
    pub struct HostDisk {
        /// Path on the node.
        #[required]
        pub path: String,
        /// Disk (must exist) or DiskOrCreate.
        #[required]
        pub r#type: String,
        /// Capacity, when it is created.
        pub capacity: Option<Quantity>,
        /// Whether the path is shared between nodes.
        pub shared: Option<bool>,
    }

    /// A persistent volume claim.
    pub struct PersistentVolumeClaimSource {
        /// Name of the claim.
        #[required]
        pub claim_name: String,
        /// Read-only.
        pub read_only: Option<bool>,
        /// Whether it can be plugged and unplugged.
        pub hotpluggable: bool,
    }

    /// Cloud-init data; user data and network data each inline, in base64, or in a Secret.
    pub struct CloudInitSource {
        /// Secret with key `userdata` or `userData`.
        #[serde(rename = "secretRef")]
        #[schemars(with = "Option<embedded::LocalObjectReference>")]
        pub user_data_secret_ref: Option<core::LocalObjectReference>,
        /// User data in base64.
        pub user_data_base64: Option<String>,
        /// User data.
        pub user_data: Option<String>,
        /// Secret with key `networkdata` or `networkData`.
        #[schemars(with = "Option<embedded::LocalObjectReference>")]
        pub network_data_secret_ref: Option<core::LocalObjectReference>,
        /// Network data in base64.
        pub network_data_base64: Option<String>,
        /// Network data.
        pub network_data: Option<String>,
    }

    /// Answers for Windows' setup.
    pub struct SysprepSource {
        /// Secret with the answer file.
        #[schemars(with = "Option<embedded::LocalObjectReference>")]
        pub secret: Option<core::LocalObjectReference>,
        /// ConfigMap with the answer file.
        #[schemars(with = "Option<embedded::LocalObjectReference>")]
        pub config_map: Option<core::LocalObjectReference>,
    }

    /// A disk inside a container image, under `/disk`.
    pub struct ContainerDiskSource {
        /// Image.
        #[required]
        pub image: String,
        /// Secret with credentials for the image's registry.
        pub image_pull_secret: Option<String>,
        /// Path of the disk in the image, where it is not the only file in `/disk`.
        pub path: Option<String>,
        /// When to pull: Always, Never, IfNotPresent.
        pub image_pull_policy: Option<String>,
    }

    /// A copy-on-write layer over a claim.
    pub struct EphemeralSource {
        /// The claim underneath.
        #[schemars(with = "Option<embedded::PersistentVolumeClaimVolumeSource>")]
        pub persistent_volume_claim: Option<core::PersistentVolumeClaimVolumeSource>,
    }

    /// A DataVolume.
    pub struct DataVolumeSource {
        /// Name of the DataVolume and of its claim.
        #[required]
        pub name: String,
        /// Whether it can be plugged and unplugged.
        pub hotpluggable: bool,
    }

    /// A ConfigMap as a disk.
    pub struct ConfigMapSource {
        /// Name of the ConfigMap.
        pub name: Option<String>,
        /// Whether it may be missing.
        pub optional: Option<bool>,
        /// Label of the filesystem in the guest.
        pub volume_label: Option<String>,
    }

    /// A Secret as a disk.
    pub struct SecretSource {
        /// Name of the Secret.
        pub secret_name: Option<String>,
        /// Whether it may be missing.
        pub optional: Option<bool>,
        /// Label of the filesystem in the guest.
        pub volume_label: Option<String>,
    }

    /// Fields of the pod as a disk.
    pub struct DownwardApiSource {
        /// Files and the fields that fill them.
        #[schemars(with = "Vec<embedded::DownwardApiVolumeFile>")]
        pub fields: Vec<core::DownwardAPIVolumeFile>,
        /// Label of the filesystem in the guest.
        pub volume_label: Option<String>,
    }

    /// A service account's token as a disk.
    pub struct ServiceAccountSource {
        /// Name of the service account.
        pub service_account_name: Option<String>,
    }

    /// Host and guest metrics as a disk.
    pub struct DownwardMetricsSource {}

    /// A directory of the launcher's container.
    pub struct ContainerPathSource {
        /// Path in the container.
        #[required]
        pub path: String,
        /// Read-only.
        pub read_only: Option<bool>,
    }

    /// A claim in the launcher's pod without a disk in the guest.
    pub struct UtilityVolume {
        /// Name of the volume.
        #[required]
        pub name: String,
        /// Name of the claim.
        #[required]
        pub claim_name: String,
        /// Read-only.
        pub read_only: Option<bool>,
        /// What for: MemoryDump, Backup.
        pub r#type: Option<String>,
    }
}

impl Volume {
    /// The kinds of the sources that are set, by their JSON names.
    #[must_use]
    pub fn sources(&self) -> Vec<&'static str> {
        let set = [
            ("hostDisk", self.host_disk.is_some()),
            ("persistentVolumeClaim", self.persistent_volume_claim.is_some()),
            ("cloudInitNoCloud", self.cloud_init_no_cloud.is_some()),
            ("cloudInitConfigDrive", self.cloud_init_config_drive.is_some()),
            ("sysprep", self.sysprep.is_some()),
            ("containerDisk", self.container_disk.is_some()),
            ("ephemeral", self.ephemeral.is_some()),
            ("emptyDisk", self.empty_disk.is_some()),
            ("dataVolume", self.data_volume.is_some()),
            ("configMap", self.config_map.is_some()),
            ("secret", self.secret.is_some()),
            ("downwardAPI", self.downward_api.is_some()),
            ("serviceAccount", self.service_account.is_some()),
            ("downwardMetrics", self.downward_metrics.is_some()),
            ("memoryDump", self.memory_dump.is_some()),
            ("containerPath", self.container_path.is_some()),
        ];
        set.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
    }

    /// Name of the claim that this volume needs, if it needs one. A DataVolume's claim bears its name.
    #[must_use]
    pub fn claim_name(&self) -> Option<&str> {
        if let Some(claim) = &self.persistent_volume_claim {
            return Some(&claim.claim_name);
        }
        if let Some(data_volume) = &self.data_volume {
            return Some(&data_volume.name);
        }
        let ephemeral = self.ephemeral.as_ref()?.persistent_volume_claim.as_ref()?;
        Some(&ephemeral.claim_name)
    }

    /// Whether the claim is attached and mounted to be read only. What a guest writes over an ephemeral one goes elsewhere.
    #[must_use]
    pub fn has_read_only_claim(&self) -> bool {
        let own = self.persistent_volume_claim.as_ref().and_then(|claim| claim.read_only);
        let below = self.ephemeral.as_ref().and_then(|layer| layer.persistent_volume_claim.as_ref()?.read_only);
        own.or(below) == Some(true)
    }
}
