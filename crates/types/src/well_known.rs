//! Names that components agree on: labels, annotations, finalizers, resources.

/// Annotations that are called so and after a container name its AppArmor profile, as the older way of saying it.
pub const APPARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Annotation of a pod that is the API's picture of a static pod of its node: the hash of that one's manifest.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Names of KubeVirt.
pub mod kubevirt {
    /// API group of virtual machines.
    pub const GROUP: &str = "kubevirt.io";
    /// API group of the calls on virtual machines (console, start, stop …).
    pub const SUBRESOURCES_GROUP: &str = "subresources.kubevirt.io";

    /// Label of pods and nodes: which part of KubeVirt they are.
    pub const APP_LABEL: &str = "kubevirt.io";
    /// Its value on launcher pods.
    pub const LAUNCHER: &str = "virt-launcher";
    /// Label of a launcher pod: UID of its instance.
    pub const CREATED_BY_LABEL: &str = "kubevirt.io/created-by";
    /// Annotation of a launcher pod: name of its instance.
    pub const DOMAIN_ANNOTATION: &str = "kubevirt.io/domain";
    /// Annotation of the pod that uses an instance's claims before they are filled, and of nothing else.
    pub const EPHEMERAL_PROVISIONING_ANNOTATION: &str = "kubevirt.io/ephemeral-provisioning";
    /// Label of an instance: its node.
    pub const NODE_NAME_LABEL: &str = "kubevirt.io/nodeName";
    /// Label of an instance: its launcher's image is not the newest.
    pub const OUTDATED_LAUNCHER_IMAGE_LABEL: &str = "kubevirt.io/outdatedLauncherImage";
    /// Labels of a node: whether its kubelet gives whole CPUs to those pods that are to have them. Upstream has two names for it.
    pub const CPU_MANAGER_LABELS: [&str; 2] = ["cpumanager", "kubevirt.io/cpumanager"];
    /// Label of a node: whether instances may be placed on it.
    pub const SCHEDULABLE_LABEL: &str = "kubevirt.io/schedulable";
    /// Annotation of a node: when its handler last said that it lives.
    pub const HEARTBEAT_ANNOTATION: &str = "kubevirt.io/heartbeat";
    /// Port of a handler's console server.
    pub const HANDLER_PORT: u16 = 8186;
    /// Annotation of a node: port of its handler's console server, when it is not the usual one. Our own.
    pub const HANDLER_PORT_ANNOTATION: &str = "kubevirt.io/virt-handler-port";
    /// Label of a launcher pod: name of its machine.
    pub const VM_NAME_LABEL: &str = "vm.kubevirt.io/name";
    /// Label of a launcher pod: name of its instance, shortened to a label's length.
    pub const VMI_ID_LABEL: &str = "vmi.kubevirt.io/id";
    /// Annotation of an instance: generation of the machine that it was started from.
    pub const VM_GENERATION_ANNOTATION: &str = "kubevirt.io/vm-generation";
    /// Annotations on objects that API clients of several versions touch.
    pub const LATEST_API_VERSION_ANNOTATION: &str = "kubevirt.io/latest-observed-api-version";
    /// As above: the version that is stored.
    pub const STORAGE_API_VERSION_ANNOTATION: &str = "kubevirt.io/storage-observed-api-version";
    /// Annotation of a launcher pod: migrations go over a Unix socket.
    pub const MIGRATION_TRANSPORT_UNIX_ANNOTATION: &str = "kubevirt.io/migrationTransportUnix";
    /// Annotation of an instance: keep a launcher whose guest failed.
    pub const KEEP_LAUNCHER_ANNOTATION: &str = "kubevirt.io/keep-launcher-alive-after-failure";
    /// Condition of a launcher pod: its guest is not paused (a readiness gate).
    pub const UNPAUSED_CONDITION: &str = "kubevirt.io/virtual-machine-unpaused";

    /// Namespace of the Leases by which nodes promise to stop their guests when they cannot renew. Our own.
    pub const NODE_LEASE_NAMESPACE: &str = "kubevirt-node-lease";
    /// Annotation of such a Lease: since when the control plane takes the guests that were started under it for dead. Our
    /// own.
    pub const FENCED_ANNOTATION: &str = "kubevirt.io/fenced";
    /// Annotation of a silent node: when its guests count as dead, should it stay silent. Our own.
    pub const FENCED_BY_ANNOTATION: &str = "kubevirt.io/fenced-by";
    /// Annotation of a launcher pod: what the cluster's settings say of SMBIOS, where they say anything. Our own: upstream's handlers
    /// read the settings.
    pub const SMBIOS_ANNOTATION: &str = "kubevirt.io/smbios";
    /// Annotation of a launcher pod: how much smaller than its claim an image may be, in percent, where the cluster's settings say it.
    /// Our own, too.
    pub const LESS_SPACE_ANNOTATION: &str = "kubevirt.io/less-space-percent";
    /// Annotation of a node: resources of its handler that its kubelet still lists, of former days, and that the machine
    /// does not have any more; with commas between them. Our own.
    pub const LOST_DEVICES_ANNOTATION: &str = "kubevirt.io/lost-devices";
    /// Annotation of a node whose handler was told to use the machine's watchdog: whether it can, and if not, why. Our own.
    pub const WATCHDOG_ANNOTATION: &str = "kubevirt.io/watchdog";
    /// Annotation of an instance: its node stops its guest when it cannot renew its Lease, and it may then be started
    /// elsewhere (`true`); otherwise why it never is. Our own.
    pub const FAILOVER_ANNOTATION: &str = "kubevirt.io/failover";
    /// Annotation of an instance: the number of its node's Lease under which its guest was started. Our own.
    pub const FENCING_TOKEN_ANNOTATION: &str = "kubevirt.io/fencing-token";
    /// Annotation of an instance: its machine's spec, as it was when the instance was started from it. Our own.
    pub const STARTED_FROM_ANNOTATION: &str = "kubevirt.io/started-from";
    /// Annotations of an instance: the ControllerRevisions that keep the instance type and the preference with which it was started,
    /// by the field of the machine's spec that names them. Our own.
    pub const STARTED_WITH_ANNOTATIONS: [(&str, &str); 2] = [
        ("instancetype", "kubevirt.io/instancetype-revision-name"),
        ("preference", "kubevirt.io/preference-revision-name"),
    ];
    /// Annotation of a machine, and of its instance: the claim that keeps what the machine keeps beside its disks, where that is
    /// not the one whose name follows from the machine's UID. A restore writes it. Our own.
    pub const STATE_CLAIM_ANNOTATION: &str = "kubevirt.io/persistent-state-claim";
    /// Why an instance failed whose node is proven to run its guest no more.
    pub const NODE_UNRESPONSIVE: &str = "NodeUnresponsive";
    /// Condition of an instance: its node is silent; what is waited for, and until when. Our own.
    pub const RECOVERY_CONDITION: &str = "Recovery";

    /// Finalizer of a machine.
    pub const VM_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
    /// Finalizer of an instance.
    pub const VMI_FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";

    /// Device plugin resource: access to KVM.
    pub const KVM_RESOURCE: &str = "devices.kubevirt.io/kvm";
    /// Device plugin resource: TUN/TAP devices.
    pub const TUN_RESOURCE: &str = "devices.kubevirt.io/tun";
    /// Device plugin resource: vhost-net.
    pub const VHOST_NET_RESOURCE: &str = "devices.kubevirt.io/vhost-net";
    /// The resources that a node's handler offers, where the machine has the devices, and that a launcher may ask for.
    pub const DEVICE_RESOURCES: [&str; 3] = [KVM_RESOURCE, TUN_RESOURCE, VHOST_NET_RESOURCE];

    /// Container of a launcher pod that runs the guest.
    pub const COMPUTE_CONTAINER: &str = "compute";
    /// Container of a launcher pod that shows the serial console's log.
    pub const CONSOLE_LOG_CONTAINER: &str = "guest-console-log";
}

/// Names of Kubernetes that more than one crate needs.
pub mod kubernetes {
    /// Label of a node: its architecture, in Go's words.
    pub const ARCH_LABEL: &str = "kubernetes.io/arch";
    /// Label of a node: the control plane runs on it. `kubectl get nodes` shows it as the node's role.
    pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";
    /// Annotation of a pod: container that `kubectl logs` and `exec` take by default.
    pub const DEFAULT_CONTAINER_ANNOTATION: &str = "kubectl.kubernetes.io/default-container";
}

/// Names about claims, volumes and their classes that several roles read or write (`pkg/volume/util` and
/// `component-helpers/storage/volume` of Kubernetes, external-provisioner, external-snapshotter).
pub mod storage {
    /// Annotation of a claim, or of a volume: its class, as it was named before there was a field for it. It still wins.
    pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
    /// Annotation of a claim: it has its volume for good.
    pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
    /// Annotation of a claim, or of a volume: the control plane found the one for the other.
    pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
    /// Annotation of a volume: who made it.
    pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
    /// Annotation of a claim: who is to make its volume.
    pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
    /// The same, and as it was called before.
    pub const PROVISIONERS: [&str; 2] = [PROVISIONER, "volume.beta.kubernetes.io/storage-provisioner"];
    /// What classes say that make no volumes.
    pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
    /// Annotation of a storage class: it is that of claims that name none.
    pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
    /// Annotation of a snapshot class: of several of one driver, it is the one that counts.
    pub const DEFAULT_SNAPSHOT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
}

/// Finalizers of the garbage collector (`metav1` of k8s.io/apimachinery), and of what is in use (`pkg/volume/util` of Kubernetes).
pub mod finalizer {
    /// Dependents are let go first.
    pub const ORPHAN: &str = "orphan";
    /// Dependents are deleted first.
    pub const FOREGROUND: &str = "foregroundDeletion";
    /// Of a claim: pods may use it.
    pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
    /// Of a persistent volume: a claim may have it.
    pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
    /// Of a class of volumes' attributes: claims and volumes may name it.
    pub const CLASS_PROTECTION: &str = "kubernetes.io/vac-protection";
}

/// Names of Secrets that hold the token of a service account (`core/v1` types of k8s.io/api).
pub mod account_token {
    /// Their type.
    pub const TYPE: &str = "kubernetes.io/service-account-token";
    /// Annotation: the account's name.
    pub const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
    /// Annotation: the account's UID.
    pub const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
    /// Label: the day on which the token was last used.
    pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
    /// Label: the day since which the token is refused.
    pub const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
}
