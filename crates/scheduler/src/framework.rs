//! Names that all plugins share: which plugins there are, and how a node is refused.

use std::fmt;

macro_rules! plugins {
    ($($name:ident),* $(,)?) => {
        /// A plugin, by upstream's name. Filters come first, in the order in which they are asked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Plugin {
            $(#[doc = concat!("`", stringify!($name), "`")] $name),*
        }
        impl Plugin {
            /// All plugins.
            pub const ALL: &[Self] = &[$(Self::$name),*];
            /// Upstream's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name)),*
                }
            }
        }
    };
}

plugins! {
    NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodeDeclaredFeatures, NodePorts, NodeResourcesFit,
    VolumeRestrictions, NodeVolumeLimits, VolumeBinding, VolumeZone, PodTopologySpread, InterPodAffinity,
    NodeResourcesBalancedAllocation, ImageLocality, SchedulingGates, PrioritySort, DefaultBinder, DefaultPreemption,
    DynamicResources, Extender,
}

impl Plugin {
    /// The plugin of a name. `DynamicResources` is a name for what is refused without it.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        let is_one = |plugin: &Self| !matches!(plugin, Self::DynamicResources | Self::Extender);
        Self::ALL.iter().copied().find(|plugin| plugin.name() == name && is_one(plugin))
    }
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PluginSet(u32);

impl PluginSet {
    /// Every plugin.
    pub const EVERY: Self = Self(u32::MAX);
    /// One plugin.
    #[must_use]
    pub fn of(plugin: Plugin) -> Self {
        Self(1 << plugin as u32)
    }
    /// Whether a plugin is in it.
    #[must_use]
    pub fn has(self, plugin: Plugin) -> bool {
        self.0 & (1 << plugin as u32) != 0
    }
    /// Whether some plugin is in both.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// Those of it that another set does not have.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// Puts a plugin in.
    pub fn insert(&mut self, plugin: Plugin) {
        self.0 |= 1 << plugin as u32;
    }
    /// Takes a plugin out.
    pub fn remove(&mut self, plugin: Plugin) {
        self.0 &= !(1 << plugin as u32);
    }
    /// Whether none is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The plugins, in their order.
    pub fn iter(self) -> impl Iterator<Item = Plugin> {
        Plugin::ALL.iter().copied().filter(move |plugin| self.has(*plugin))
    }
}

impl FromIterator<Plugin> for PluginSet {
    fn from_iter<I: IntoIterator<Item = Plugin>>(plugins: I) -> Self {
        let mut set = Self::default();
        plugins.into_iter().for_each(|plugin| set.insert(plugin));
        set
    }
}

/// Why a node does not take a pod, in upstream's words: the texts are counted over all nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// Who refuses.
    pub plugin: Plugin,
    /// The texts, at least one.
    pub reasons: Vec<String>,
    /// Whether removing pods from the node could help.
    pub resolvable: bool,
}

impl Refusal {
    /// One reason that removing pods could resolve.
    #[must_use]
    pub fn resolvable(plugin: Plugin, reason: impl Into<String>) -> Self {
        Self { plugin, reasons: vec![reason.into()], resolvable: true }
    }
    /// One reason that stays whatever pods are removed.
    #[must_use]
    pub fn unresolvable(plugin: Plugin, reason: impl Into<String>) -> Self {
        Self { plugin, reasons: vec![reason.into()], resolvable: false }
    }
}

/// The highest score that a plugin gives.
pub const MAX_SCORE: i64 = 100;
