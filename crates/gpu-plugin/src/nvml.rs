//! GPUs as NVIDIA's driver tells of them. Its library is loaded when it is asked for, so that the program runs where there is
//! none.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::NvmlError;

use crate::inventory::{Device, Inventory};

/// How far apart two GPUs may be to share a step of where they sit, from the outside in.
const STEPS: [(&str, u32); 4] = [("node", 4), ("bridge", 3), ("switches", 2), ("switch", 1)];

/// The driver.
pub(crate) struct Driver(Nvml);

impl Driver {
    /// Loads its library.
    ///
    /// # Errors
    /// There is none, or no driver.
    pub fn load() -> Result<Self, String> {
        // The name without a number is only there where one develops for it.
        let versioned = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init();
        let loaded = versioned.or_else(|first| Nvml::init().map_err(|_| first));
        loaded.map(Self).map_err(|error| format!("NVIDIA's driver cannot be asked: {error}"))
    }

    /// Asks for all GPUs. One that does not answer any more is broken, and keeps its number.
    ///
    /// # Errors
    /// The driver does not answer.
    pub fn inventory(&self) -> Result<Inventory, String> {
        let count = self.0.device_count().map_err(|error| error.to_string())?;
        let mut gpus: Vec<Device> = (0..count).map(|index| self.device(index)).collect();
        for (gpu, near) in gpus.iter_mut().zip(self.places(count)) {
            gpu.near = near;
        }
        let shared = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];
        Ok(Inventory { gpus, shared_files: shared.map(PathBuf::from).into_iter().filter(|p| p.exists()).collect() })
    }

    fn device(&self, index: u32) -> Device {
        let read = || -> Result<Device, NvmlError> {
            let device = self.0.device_by_index(index)?;
            let file = PathBuf::from(format!("/dev/nvidia{}", device.minor_number()?));
            Ok(Device {
                uuid: device.uuid()?,
                memory_mib: device.memory_info()?.total >> 20,
                files: Some(file).filter(|f| f.exists()).into_iter().collect(),
                ..Device::default()
            })
        };
        read().unwrap_or_else(|error| {
            tracing::error!(index, %error, "a GPU does not answer");
            Device { uuid: format!("GPU-lost-{index}"), broken: true, ..Device::default() }
        })
    }

    /// Where each sits: at each step, the lowest number among the GPUs that are not farther apart than that.
    fn places(&self, count: u32) -> Vec<Vec<String>> {
        let mut apart = BTreeMap::new();
        for one in 0..count {
            for other in 0..one {
                let level = || self.0.device_by_index(one)?.topology_common_ancestor(self.0.device_by_index(other)?);
                // Who does not say is as far away as can be.
                apart.insert((other, one), level().map_or(u32::MAX, distance));
            }
        }
        places(count, &apart)
    }
}

fn distance(level: TopologyLevel) -> u32 {
    match level {
        TopologyLevel::Internal => 0,
        TopologyLevel::Single => 1,
        TopologyLevel::Multiple => 2,
        TopologyLevel::HostBridge => 3,
        TopologyLevel::Node => 4,
        TopologyLevel::System => 5,
    }
}

/// Distances of pairs (the lower number first) as paths. Where all are equally far apart, nothing is to be told.
fn places(count: u32, apart: &BTreeMap<(u32, u32), u32>) -> Vec<Vec<String>> {
    let first_near = |gpu: u32, most: u32| {
        let near = |other: &u32| apart.get(&(*other, gpu)).is_some_and(|d| *d <= most);
        (0..gpu).find(near).unwrap_or(gpu)
    };
    let says = |most: u32| {
        let groups: std::collections::BTreeSet<u32> = (0..count).map(|gpu| first_near(gpu, most)).collect();
        groups.len() > 1 && groups.len() < usize::try_from(count).unwrap_or(usize::MAX)
    };
    let steps: Vec<(&str, u32)> = STEPS.into_iter().filter(|(_, most)| says(*most)).collect();
    let path = |gpu: u32| steps.iter().map(|(name, most)| format!("{name}{}", first_near(gpu, *most))).collect();
    (0..count).map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_become_paths() {
        // Two sockets with two switches of two GPUs each.
        let mut apart = BTreeMap::new();
        for one in 0..8_u32 {
            for other in 0..one {
                let distance = if one / 4 != other / 4 {
                    5
                } else if one / 2 != other / 2 {
                    4
                } else {
                    1
                };
                apart.insert((other, one), distance);
            }
        }
        let found = places(8, &apart);
        assert_eq!(found[1], ["node0", "bridge0", "switches0", "switch0"]);
        assert_eq!(found[3], ["node0", "bridge2", "switches2", "switch2"]);
        assert_eq!(found[7], ["node4", "bridge6", "switches6", "switch6"]);
        assert_eq!(places(1, &BTreeMap::new()), [Vec::<String>::new()]);
        assert_eq!(places(2, &BTreeMap::from([((0, 1), 5)])), [Vec::<String>::new(), Vec::new()]);
    }

    /// Where there is no driver it says so, and where there is one it tells of GPUs.
    #[test]
    fn without_a_driver_it_says_so() {
        match Driver::load() {
            Ok(driver) => {
                let found = driver.inventory().expect("GPUs");
                assert!(found.gpus.iter().all(|gpu| gpu.uuid.starts_with("GPU-")), "{found:?}");
            }
            Err(error) => assert!(error.contains("NVIDIA"), "{error}"),
        }
    }
}
