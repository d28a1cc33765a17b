use carrack_engine::testing::Caches;
use carrack_engine::{Controller as _, Key, Time};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Measures, MetricsController};

const NOW: Time = Time::from_unix_s(1_000_000);

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("as written")
}

fn at(age_s: i64) -> String {
    Time(NOW.0 - age_s * 1_000_000_000).rfc3339()
}

struct Rig {
    controller: MetricsController,
    measures: Measures,
}

impl Rig {
    fn new() -> Self {
        let measures = Measures::default();
        Self { controller: MetricsController::new(measures.clone()), measures }
    }

    /// Shows what there is under a name.
    fn show(&mut self, name: &str, vm: Option<Value>, vmi: Option<Value>, claim: Option<Value>) {
        let named = |mut object: Value| {
            object["metadata"]["namespace"] = json!("ns");
            object["metadata"]["name"] = json!(name);
            object
        };
        let caches = Caches::new()
            .with(vm.map(named).map(read::<VirtualMachine>))
            .with(vmi.map(named).map(read::<VirtualMachineInstance>))
            .with(claim.map(named).map(read::<PersistentVolumeClaim>));
        let plan = self.controller.reconcile(&Key::new("ns", name), &caches.view(), NOW);
        assert!(plan.is_none(), "{plan:?}");
    }

    /// The samples of a family without those labels that all machines have.
    fn samples(&self, family: &str) -> Vec<String> {
        let text = self.measures.text();
        let lines = text.lines().filter(|line| line.starts_with(&format!("{family}{{")));
        lines.map(|line| line[family.len()..].replace("name=\"m\",namespace=\"ns\"", "")).collect()
    }
}

fn machine(spec: &Value, status: &Value) -> Value {
    json!({"metadata": {"uid": "m", "creationTimestamp": at(0)}, "spec": spec, "status": status})
}

#[test]
fn machines_are_told_by_their_status() {
    const GROUPS: [&str; 5] = ["starting", "running", "migrating", "non_running", "error"];
    let check = |status: &str, group: &str, family: &str| {
        let mut rig = Rig::new();
        let conditions = json!([
            {"type": "Ready", "status": "True", "lastTransitionTime": at(20)},
            {"type": "Paused", "status": "True", "lastTransitionTime": at(10)},
            {"type": "LiveMigratable", "status": "True", "lastTransitionTime": at(1)}]);
        rig.show(
            "m",
            Some(machine(&json!({}), &json!({"printableStatus": status, "conditions": conditions}))),
            None,
            None,
        );
        let info = rig.samples("kubevirt_vm_info").join("\n");
        assert!(info.contains(&format!("status_group=\"{group}\"")), "{status}: {info}");
        assert!(info.contains(&format!("status=\"{}\"", status.to_lowercase())), "{status}: {info}");
        for each in GROUPS {
            let samples = rig.samples(&format!("kubevirt_vm_{each}_status_last_transition_timestamp_seconds"));
            let value = if each == family { "999990" } else { "0" };
            assert_eq!(samples, [format!("{{}} {value}")], "{status}: {each}");
        }
    };
    check("Provisioning", "starting", "starting");
    check("Starting", "starting", "starting");
    check("Running", "running", "running");
    check("Migrating", "migrating", "migrating");
    check("Stopped", "non_running", "non_running");
    check("Terminating", "non_running", "non_running");
    check("CrashLoopBackOff", "error", "error");
    check("ErrorUnschedulable", "error", "error");
    // Upstream has no group for it, and a time.
    check("WaitingForReceiver", "<unknown>", "error");
}

#[test]
fn machines_are_told_by_their_resources() {
    let check = |name: &str, domain: Value, requests: &[&str], limits: &[&str]| {
        let mut rig = Rig::new();
        rig.show("m", Some(machine(&json!({"template": {"spec": {"domain": domain}}}), &json!({}))), None, None);
        assert_eq!(rig.samples("kubevirt_vm_resource_requests"), requests, "{name}");
        assert_eq!(rig.samples("kubevirt_vm_resource_limits"), limits, "{name}");
    };
    check(
        "nothing said",
        json!({"devices": {}}),
        &[
            "{,resource=\"cpu\",unit=\"cores\",source=\"default\"} 1",
            "{,resource=\"cpu\",unit=\"threads\",source=\"default\"} 1",
            "{,resource=\"cpu\",unit=\"sockets\",source=\"default\"} 1",
        ],
        &[],
    );
    check(
        "a topology, and memory for the guest",
        json!({"devices": {}, "cpu": {"cores": 2, "sockets": 3}, "memory": {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}}),
        &[
            "{,resource=\"memory\",unit=\"bytes\",source=\"guest\"} 1073741824",
            "{,resource=\"memory\",unit=\"bytes\",source=\"hugepages\"} 2097152",
            "{,resource=\"cpu\",unit=\"cores\",source=\"domain\"} 2",
            "{,resource=\"cpu\",unit=\"sockets\",source=\"domain\"} 3",
        ],
        &[],
    );
    check(
        "requests and limits",
        json!({"devices": {}, "resources": {"requests": {"memory": "64M", "cpu": "250m"}, "limits": {"memory": "128M", "cpu": "1500m"}}}),
        &[
            "{,resource=\"memory\",unit=\"bytes\",source=\"domain\"} 64000000",
            "{,resource=\"cpu\",unit=\"cores\",source=\"requests\"} 0.25",
        ],
        &["{,resource=\"memory\",unit=\"bytes\"} 128000000", "{,resource=\"cpu\",unit=\"cores\"} 1.5"],
    );
}

#[test]
fn disks_are_told_while_their_claims_are_there() {
    let mut rig = Rig::new();
    let volumes = json!([{"name": "root", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "none", "emptyDisk": {"capacity": "1Gi"}}]);
    rig.show(
        "m",
        Some(machine(&json!({"template": {"spec": {"domain": {"devices": {}}, "volumes": volumes}}}), &json!({}))),
        None,
        None,
    );
    assert!(rig.samples("kubevirt_vm_disk_allocated_size_bytes").is_empty());
    let claim = json!({"spec": {"volumeMode": "Block", "resources": {"requests": {"storage": "2Gi"}}}});
    rig.show("data", None, None, Some(claim));
    assert_eq!(
        rig.samples("kubevirt_vm_disk_allocated_size_bytes"),
        ["{,persistentvolumeclaim=\"data\",volume_mode=\"Block\",device=\"root\"} 2147483648"]
    );
    rig.show("data", None, None, None);
    assert!(rig.samples("kubevirt_vm_disk_allocated_size_bytes").is_empty());
}

#[test]
fn machines_are_counted() {
    let mut rig = Rig::new();
    let counts = |rig: &Rig| {
        let number = rig.samples("namespace:kubevirt_vm:sum");
        assert_eq!(number, rig.samples("kubevirt_number_of_vms"));
        [number, rig.samples("kubevirt_vm_created_total")].concat()
    };
    rig.show("m", Some(machine(&json!({}), &json!({}))), None, None);
    rig.show("m", Some(machine(&json!({}), &json!({"printableStatus": "Running"}))), None, None);
    // It was there before anybody looked.
    let old = json!({"metadata": {"uid": "o", "creationTimestamp": at(60)}});
    rig.show("old", Some(old), None, None);
    assert_eq!(counts(&rig), ["{namespace=\"ns\"} 2", "{namespace=\"ns\"} 1"]);
    rig.show("m", None, None, None);
    assert_eq!(counts(&rig), ["{namespace=\"ns\"} 1", "{namespace=\"ns\"} 1"]);
}

#[test]
fn instances_are_told_in_every_phase() {
    let mut rig = Rig::new();
    let mut check = |more: Value, wanted: &str| {
        let mut vmi = json!({"metadata": {"uid": "i"}, "spec": {}});
        for (key, value) in more.as_object().expect("an object") {
            vmi[key] = value.clone();
        }
        rig.show("m", None, Some(vmi), None);
        assert_eq!(rig.samples("kubevirt_vmi_info"), [format!("{{{wanted}}} 1")], "{more}");
    };
    let name = r#"namespace="ns",name="m""#;
    check(
        json!({"status": {"phase": "Scheduling"}}),
        &format!(r#"{name},phase="scheduling",evictable="true",outdated="false""#),
    );
    let pod = crate::identity::launcher_pod_name("m", "i");
    check(
        json!({
            "metadata": {"uid": "i", "labels": {"kubevirt.io/outdatedLauncherImage": ""}, "annotations": {
                "vm.kubevirt.io/os": "linux", "vm.kubevirt.io/workload": "server", "vm.kubevirt.io/flavor": "small",
                "kubevirt.io/cluster-instancetype-name": "u1", "kubevirt.io/preference-name": "fedora"}},
            "spec": {"evictionStrategy": "LiveMigrate"},
            "status": {"phase": "Running", "nodeName": "n1", "activePods": {"p": "n1"}, "machine": {"type": "pc-q35-7.2"},
                "guestOSInfo": {"kernelRelease": "6.1", "machine": "x86_64", "name": "Fedora", "versionId": "42"}}}),
        &format!(
            "node=\"n1\",{name},phase=\"running\",os=\"linux\",workload=\"server\",flavor=\"small\",instance_type=\"u1\",\
             preference=\"fedora\",guest_os_kernel_release=\"6.1\",guest_os_machine=\"pc-q35-7.2\",\
             guest_os_arch=\"x86_64\",guest_os_name=\"Fedora\",guest_os_version_id=\"42\",evictable=\"false\",\
             outdated=\"true\",vmi_pod=\"{pod}\""
        ),
    );
    // Also when it is over.
    check(
        json!({"status": {"phase": "Failed", "nodeName": "n1"}}),
        &format!(r#"node="n1",{name},phase="failed",evictable="true",outdated="false""#),
    );
    rig.show("m", None, None, None);
    assert!(rig.samples("kubevirt_vmi_info").is_empty());
}

/// Those that are alike count together, whatever their names are.
#[test]
fn instances_are_counted_by_phase_and_node() {
    let mut rig = Rig::new();
    let instance = |phase: &str, node: &str, os: &str| {
        let status = json!({"phase": phase, "nodeName": node, "guestOSInfo": {"name": os}});
        Some(json!({"metadata": {"uid": "i"}, "spec": {}, "status": status}))
    };
    rig.show("a", None, instance("Running", "n1", ""), None);
    rig.show("b", None, instance("Running", "n1", ""), None);
    rig.show("c", None, instance("Running", "n2", "Fedora"), None);
    rig.show("d", None, instance("Pending", "", ""), None);
    let expected = [
        "{node=\"n1\",phase=\"running\"} 2",
        "{node=\"n2\",phase=\"running\",guest_os_name=\"Fedora\"} 1",
        "{phase=\"pending\"} 1",
    ];
    for family in ["node:kubevirt_vmi_phase:sum", "kubevirt_vmi_phase_count"] {
        assert_eq!(rig.samples(family), expected);
    }
    rig.show("a", None, None, None);
    assert_eq!(rig.samples("node:kubevirt_vmi_phase:sum")[0], "{node=\"n1\",phase=\"running\"} 1");
}

#[test]
fn phases_are_timed() {
    let instance = |created_s: i64, deleted: Option<i64>, phases: &[(&str, i64)]| {
        let steps: Vec<Value> = phases
            .iter()
            .map(|(phase, age_s)| json!({"phase": phase, "phaseTransitionTimestamp": at(*age_s)}))
            .collect();
        let phase = phases.last().map_or("", |(phase, _)| phase);
        let mut meta = json!({"uid": "i", "creationTimestamp": at(created_s)});
        if let Some(age_s) = deleted {
            meta["deletionTimestamp"] = json!(at(age_s));
        }
        json!({"metadata": meta, "spec": {}, "status": {"phase": phase, "phaseTransitionTimestamps": steps}})
    };
    let sums = |rig: &Rig, family: &str| rig.samples(&format!("kubevirt_vmi_phase_transition_time_{family}_sum"));
    let mut rig = Rig::new();
    // Three steps in one look, as they are written; times in the future are those of a faster clock.
    rig.show("m", None, Some(instance(0, None, &[("Pending", 0), ("Scheduling", -1), ("Scheduled", -4)])), None);
    rig.show("m", None, Some(instance(0, None, &[("Pending", 0), ("Scheduling", -1), ("Scheduled", -4)])), None);
    assert_eq!(
        sums(&rig, "from_creation_seconds"),
        ["{phase=\"Pending\"} 0", "{phase=\"Scheduled\"} 4", "{phase=\"Scheduling\"} 1"]
    );
    assert_eq!(
        rig.samples("kubevirt_vmi_phase_transition_time_seconds_sum")[1],
        "{phase=\"Scheduled\",last_phase=\"Scheduling\"} 3"
    );
    let buckets = rig.samples("kubevirt_vmi_phase_transition_time_from_creation_seconds_bucket");
    let scheduled = |bound: &str, count: u32| format!("{{phase=\"Scheduled\",le=\"{bound}\"}} {count}");
    for (bound, count) in [("2", 0), ("5", 1), ("3600", 1), ("+Inf", 1)] {
        assert!(buckets.contains(&scheduled(bound, count)), "{bound}: {buckets:?}");
    }
    // It is deleted, and goes with its last word.
    rig.show("m", None, Some(instance(0, Some(3), &[("Pending", 0), ("Scheduling", -1), ("Scheduled", -4)])), None);
    assert!(sums(&rig, "from_deletion_seconds").is_empty());
    rig.show("m", None, None, None);
    assert_eq!(sums(&rig, "from_deletion_seconds"), ["{phase=\"Succeeded\"} 3"]);
    // What was there before anybody looked is counted from its next phase on.
    let mut rig = Rig::new();
    rig.show("m", None, Some(instance(60, None, &[("Pending", 60), ("Scheduling", 50)])), None);
    assert!(sums(&rig, "from_creation_seconds").is_empty());
    rig.show("m", None, Some(instance(60, None, &[("Pending", 60), ("Scheduling", 50), ("Failed", 40)])), None);
    assert_eq!(sums(&rig, "from_creation_seconds"), ["{phase=\"Failed\"} 20"]);
}
