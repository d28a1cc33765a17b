//! What the volume manager has, and how long its operations took.

use super::Page;
use crate::adapters::storage_times::{BUCKETS_S, CsiCall, Histogram, StorageOperation};
use crate::volumes::Census;

/// What `/metrics` says of the volumes that are wanted, and of those that are there.
pub(in crate::server) fn managed(census: &Census) -> String {
    let mut page = Page::default();
    let name = "volume_manager_total_volumes";
    page.family(name, "gauge", "[ALPHA] Number of volumes in Volume Manager");
    for (plugin, count) in census {
        for (state, count) in [("actual_state_of_world", count.actual), ("desired_state_of_world", count.desired)] {
            if count > 0 {
                page.sample(name, &[("plugin_name", plugin), ("state", state)], count);
            }
        }
    }
    page.0
}

/// What `/metrics` says of operations on volumes.
pub(in crate::server) fn storage(all: &[((StorageOperation, bool), Histogram)]) -> String {
    let mut page = Page::default();
    let name = "storage_operation_duration_seconds";
    page.family(name, "histogram", "[ALPHA] Storage operation duration");
    for ((of, good), times) in all {
        let labels = [
            ("migrated", "false"),
            ("operation_name", of.operation),
            ("status", if *good { "success" } else { "fail-unknown" }),
            ("volume_plugin", of.plugin.as_str()),
        ];
        page.histogram(name, &labels, times);
    }
    page.0
}

/// What `/metrics` says of calls to CSI drivers.
pub(in crate::server) fn csi(all: &[(CsiCall, Histogram)]) -> String {
    let mut page = Page::default();
    let name = "csi_operations_seconds";
    page.family(
        name,
        "histogram",
        "[ALPHA] Container Storage Interface operation duration with gRPC error code status total",
    );
    for (call, times) in all {
        let labels = [
            ("driver_name", call.driver.as_str()),
            ("grpc_status_code", call.status),
            ("method_name", call.method.as_str()),
            ("migrated", "false"),
        ];
        page.histogram(name, &labels, times);
    }
    page.0
}

impl Page {
    pub(super) fn histogram(&mut self, name: &str, labels: &[(&str, &str)], times: &Histogram) {
        let bounds = BUCKETS_S.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(times.within.iter().copied().chain([times.count])) {
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample(&format!("{name}_bucket"), &labels, count);
        }
        self.sample(&format!("{name}_sum"), labels, times.took.as_secs_f64());
        self.sample(&format!("{name}_count"), labels, times.count);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::adapters::storage_times::{CsiTimes, StorageTimes};
    use crate::volumes::Count;

    fn check(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.lines().any(|l| l == *line), "{line} is missing of\n{page}");
        }
    }

    #[test]
    fn volumes_by_plugin() {
        let census = Census::from([
            ("kubernetes.io/secret".to_owned(), Count { desired: 3, actual: 2 }),
            ("kubernetes.io/csi:d".to_owned(), Count { desired: 0, actual: 1 }),
        ]);
        let page = managed(&census);
        check(
            &page,
            &[
                "volume_manager_total_volumes{plugin_name=\"kubernetes.io/secret\",state=\"desired_state_of_world\"} 3",
                "volume_manager_total_volumes{plugin_name=\"kubernetes.io/secret\",state=\"actual_state_of_world\"} 2",
                "volume_manager_total_volumes{plugin_name=\"kubernetes.io/csi:d\",state=\"actual_state_of_world\"} 1",
            ],
        );
        assert_eq!(page.lines().count(), 5, "what is not there has no line:\n{page}");
    }

    #[test]
    fn times_fall_into_buckets() {
        let times = StorageTimes::default();
        let mount = || StorageOperation { plugin: "kubernetes.io/secret".to_owned(), operation: "volume_mount" };
        for ms in [50, 200, 700_000] {
            times.ended((mount(), true), Duration::from_millis(ms));
        }
        times.ended((mount(), false), Duration::from_millis(1500));
        let labels = |status: &str, le: &str| {
            format!(
                "{{migrated=\"false\",operation_name=\"volume_mount\",status=\"{status}\",volume_plugin=\"kubernetes.io/secret\"{le}}}"
            )
        };
        let name = "storage_operation_duration_seconds";
        let lines = [
            format!("{name}_bucket{} 1", labels("success", ",le=\"0.1\"")),
            format!("{name}_bucket{} 2", labels("success", ",le=\"0.25\"")),
            format!("{name}_bucket{} 2", labels("success", ",le=\"600\"")),
            format!("{name}_bucket{} 3", labels("success", ",le=\"+Inf\"")),
            format!("{name}_sum{} 700.25", labels("success", "")),
            format!("{name}_count{} 3", labels("success", "")),
            format!("{name}_bucket{} 0", labels("fail-unknown", ",le=\"1\"")),
            format!("{name}_bucket{} 1", labels("fail-unknown", ",le=\"2.5\"")),
        ];
        check(&storage(&times.all()), &lines.iter().map(String::as_str).collect::<Vec<_>>());
    }

    #[test]
    fn calls_to_drivers_are_told_by_how_they_ended() {
        let times = CsiTimes::default();
        let call = |status| CsiCall { driver: "d".into(), method: "/csi.v1.Node/NodeStageVolume".into(), status };
        times.ended(call("OK"), Duration::from_millis(300));
        times.ended(call("Unavailable"), Duration::from_secs(3));
        let labels = |status: &str, le: &str| {
            format!(
                "{{driver_name=\"d\",grpc_status_code=\"{status}\",method_name=\"/csi.v1.Node/NodeStageVolume\",migrated=\"false\"{le}}}"
            )
        };
        let name = "csi_operations_seconds";
        let lines = [
            format!("{name}_bucket{} 0", labels("OK", ",le=\"0.25\"")),
            format!("{name}_bucket{} 1", labels("OK", ",le=\"0.5\"")),
            format!("{name}_count{} 1", labels("OK", "")),
            format!("{name}_sum{} 3", labels("Unavailable", "")),
        ];
        check(&csi(&times.all()), &lines.iter().map(String::as_str).collect::<Vec<_>>());
    }
}
