//! What resources and annotations are called. All names hang off one prefix, upstream's (gpu-admission, gpu-manager) being
//! `tencent.com`.

/// The prefix of upstream.
pub const DEFAULT_PREFIX: &str = "tencent.com";

/// Cores of one GPU.
pub const CORES: u32 = 100;

/// Names of resources and annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    prefix: String,
    /// Resource: hundredths of a GPU.
    pub core: String,
    /// Resource: units of GPU memory. How large a unit is decides who advertises it (256 MiB with upstream's plugin and
    /// with ours).
    pub memory: String,
    /// Pod annotation: the node that the choice of GPUs is for.
    pub node: String,
    /// Pod annotation: when it was chosen, in nanoseconds since the epoch.
    pub time: String,
    /// Pod annotation: `false` until upstream's device plugin has handed the GPUs out.
    pub assigned: String,
    /// Node annotation: the GPUs of a node one by one, see [`crate::Gpu`]. Without it, all are taken for equal.
    pub devices: String,
}

impl Default for Names {
    fn default() -> Self {
        Self::new(DEFAULT_PREFIX)
    }
}

impl Names {
    /// The names under a prefix.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        let name = |rest: &str| format!("{prefix}/{rest}");
        Self {
            prefix: prefix.to_owned(),
            core: name("vcuda-core"),
            memory: name("vcuda-memory"),
            node: name("predicate-node"),
            time: name("predicate-time"),
            assigned: name("gpu-assigned"),
            devices: name("gpu-devices"),
        }
    }
    /// Why a text is no prefix: it must be a DNS name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(prefix: &str) -> Result<(), String> {
        let label = |l: &str| {
            let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
            let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            ends(l.as_bytes().first()) && ends(l.as_bytes().last()) && l.len() <= 63 && l.bytes().all(inside)
        };
        if prefix.len() <= 200 && prefix.split('.').all(label) {
            return Ok(());
        }
        Err(format!("{prefix:?} is no prefix of resources: it is a DNS name, such as {DEFAULT_PREFIX}"))
    }
    /// Whether a name is one of these.
    #[must_use]
    pub fn is_ours(&self, name: &str) -> bool {
        name.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('/'))
    }
    /// What all of them begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
    /// Whether a pod's annotation says which GPUs the pod has, or whether it has them: the extender and the nodes' plugins
    /// believe it.
    #[must_use]
    pub fn is_choice(&self, key: &str) -> bool {
        key == self.assigned || key.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with("/predicate-"))
    }
    /// Pod annotation: the GPUs of the container of a number, such as `0,2`.
    #[must_use]
    pub fn container(&self, number: usize) -> String {
        format!("{}/predicate-gpu-idx-{number}", self.prefix)
    }
    /// The same for an init container, which upstream leaves out.
    #[must_use]
    pub fn init_container(&self, number: usize) -> String {
        format!("{}/predicate-gpu-init-idx-{number}", self.prefix)
    }
    /// Pod annotation: the UUIDs of the same GPUs, in the same order, where the node names them. Upstream has none.
    #[must_use]
    pub fn container_uuids(&self, number: usize) -> String {
        format!("{}/predicate-gpu-uuid-{number}", self.prefix)
    }
    /// The same for an init container.
    #[must_use]
    pub fn init_container_uuids(&self, number: usize) -> String {
        format!("{}/predicate-gpu-init-uuid-{number}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for (prefix, good) in
            [("tencent.com", true), ("a", true), ("", false), ("a/b", false), ("-a.b", false), ("A.b", false)]
        {
            assert_eq!(Names::check(prefix).is_ok(), good, "{prefix}");
        }
        let names = Names::default();
        assert_eq!(names.container(3), "tencent.com/predicate-gpu-idx-3");
        assert!(names.is_ours(&names.init_container_uuids(0)) && names.is_ours(&names.devices));
        assert!(!names.is_ours("tencent.company/x") && !names.is_ours("x.tencent.com/x"));
    }

    #[test]
    fn what_is_written_about_a_pods_gpus_is_known() {
        let names = Names::default();
        let written = [&names.node, &names.time, &names.assigned].into_iter().cloned();
        let numbered = [Names::container, Names::init_container, Names::container_uuids, Names::init_container_uuids];
        for key in written.chain(numbered.map(|name| name(&names, 3))) {
            assert!(names.is_choice(&key), "{key}");
        }
        let others =
            ["vcuda-core", "vcuda-memory", "gpu-devices", "predicate"].map(|rest| format!("tencent.com/{rest}"));
        for key in others.iter().map(String::as_str).chain(["example.com/predicate-node", "xtencent.com/gpu-assigned"])
        {
            assert!(!names.is_choice(key), "{key}");
        }
    }
}
