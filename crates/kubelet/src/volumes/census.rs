//! How many volumes there are, by plugin: those that are wanted, and those that are there. For the metrics, under the
//! names that upstream gives plugins (`pkg/kubelet/volumemanager/metrics`).

use std::collections::BTreeMap;
use std::path::Path;

use super::{Actual, Driver, Published, State, Volumes};

/// Volumes of one plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Pods want them.
    pub desired: usize,
    /// They are mounted for pods.
    pub actual: usize,
}

/// Volumes by the name of their plugin.
pub type Census = BTreeMap<String, Count>;

/// A plugin, as its volumes show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Plugin<'a> {
    /// Its directory in the pod's.
    Directory(&'a str),
    Flex(&'a str),
    Csi(&'a str),
    Named(&'static str),
}

impl<'a> Plugin<'a> {
    fn of(published: Option<&'a Published>, path: &'a str, owned: bool) -> Self {
        match published.map(|p| &p.origin.driver) {
            Some(Driver::Csi { driver, .. }) => Self::Csi(driver),
            Some(Driver::Flex { driver, .. }) => Self::Flex(driver),
            Some(Driver::Local { .. }) => Self::Named("kubernetes.io/local-volume"),
            Some(Driver::Nfs { .. }) => Self::Named("kubernetes.io/nfs"),
            Some(Driver::HostPath { .. }) => Self::Named("kubernetes.io/host-path"),
            // What it is made from has not been read.
            None if path.is_empty() => Self::Named("N/A"),
            None if !owned => Self::Named("kubernetes.io/host-path"),
            // <pod>/volumes/<plugin>/<name>
            None => {
                let directory = Path::new(path).parent().and_then(Path::file_name).and_then(|name| name.to_str());
                directory.map_or(Self::Named("N/A"), Self::Directory)
            }
        }
    }

    fn name(self) -> String {
        match self {
            Self::Directory(directory) => directory.replacen('~', "/", 1),
            Self::Flex(driver) => driver.to_owned(),
            Self::Csi(driver) => format!("kubernetes.io/csi:{driver}"),
            Self::Named(name) => name.to_owned(),
        }
    }
}

/// Upstream's name for the plugin of a volume: a driver's, or one that the kubelet makes itself at this path.
#[must_use]
pub fn plugin_name(published: Option<&Published>, path: &str) -> String {
    let owned = path.contains("/volumes/kubernetes.io~");
    Plugin::of(published, path, owned).name()
}

impl State {
    fn plugin(&self) -> Plugin<'_> {
        Plugin::of(self.published.as_deref(), &self.path, self.owned)
    }
}

impl Volumes {
    /// Counts them.
    #[must_use]
    pub fn census(&self) -> Census {
        let mut counts: BTreeMap<Plugin<'_>, Count> = BTreeMap::new();
        for v in self.pods.values().flat_map(BTreeMap::values) {
            let count = counts.entry(v.plugin()).or_default();
            count.desired += usize::from(v.wants);
            count.actual += usize::from(v.actual == Actual::Mounted);
        }
        counts.into_iter().map(|(plugin, count)| (plugin.name(), count)).collect()
    }

    /// Whether the counts may have changed since this was asked last.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
}
