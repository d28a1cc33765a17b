//! A device plugin beside the cluster, which outlives agents and registers again as plugins do.

use std::path::Path;

use carrack_deviceplugin::testing;
use tokio::runtime::{Builder, Runtime};

/// A plugin that keeps itself registered until it is dropped.
#[derive(Debug)]
pub struct Plugin {
    runtime: Option<Runtime>,
}

impl Plugin {
    /// Starts one with healthy devices, in a kubelet's directory of device plugins.
    ///
    /// # Panics
    /// There are no threads to be had.
    #[must_use]
    pub fn start(dir: &Path, resource: &str, devices: &[&str]) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let devices: Vec<(&str, bool)> = devices.iter().map(|id| (*id, true)).collect();
        runtime.spawn(testing::Plugin::new(dir, resource, &devices).keep_registered());
        Self { runtime: Some(runtime) }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
