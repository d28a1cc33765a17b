//! What `carrack up` is told in words and files, read before anything is begun: what is wrong with it is said while
//! somebody waits, and not in the log of a role that fails again and again.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use carrack_auth::Caller;
use carrack_auth::node::restriction::{Operation, Write, restrict};
use carrack_kubelet::configuration::Configuration;
use carrack_schema::validate::names;
use serde_json::json;

use crate::cli::up::UpArgs;
use crate::roles::{gpu_extender, gpu_plugin, kubelet, scheduler};

/// What was read.
pub struct Wishes {
    /// Labels of the node, or of each.
    pub labels: BTreeMap<String, String>,
    /// The kubelet's configuration.
    pub kubelet: Option<Configuration>,
    /// The scheduler's.
    pub scheduling: carrack_scheduler::Config,
    /// GPUs to offer.
    pub gpus: Option<carrack_gpu_plugin::Source>,
}

/// Reads it.
///
/// # Errors
/// A file cannot be read, or something makes no sense.
pub fn read(args: &UpArgs, node_name: &str) -> anyhow::Result<Wishes> {
    let mut scheduling = match &args.scheduler_config {
        Some(path) => scheduler::read_config(path)?,
        None => carrack_scheduler::Config::default(),
    };
    if let Some(listen) = args.gpu_extender {
        gpu_extender::ask_it(&mut scheduling, listen)?;
    }
    Ok(Wishes {
        labels: labels(&args.node_label, node_name)?,
        kubelet: args.kubelet_config.as_deref().map(kubelet::configuration).transpose()?,
        scheduling,
        gpus: args.gpus.as_deref().map(gpu_plugin::source).transpose()?,
    })
}

/// Refuses one port for two. Each would be free when it is looked at, and whoever came second would fail for good.
///
/// # Errors
/// Which two.
pub fn refuse_twice(ports: &[(u16, &str)]) -> anyhow::Result<()> {
    for (at, (port, flag)) in ports.iter().enumerate() {
        if let Some((_, other)) = ports[..at].iter().find(|(taken, _)| taken == port) {
            bail!("{other} and {flag} are both port {port}: choose another for one of them");
        }
    }
    Ok(())
}

/// Labels that a node can have, and that its kubelet may give it. One that could not be written would keep the node
/// from registering, for good.
///
/// Upstream: `validateLabels` and `validateNodeLabels` of `cmd/kubelet/app/options`.
fn labels(given: &[String], node_name: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    for label in given {
        let (key, value) = label.split_once('=').with_context(|| format!("{label:?} is no label: it is KEY=VALUE"))?;
        if let Some(problem) = names::qualified_name(key) {
            bail!("--node-label {label:?}: its key is none: {problem}");
        }
        if let Some(problem) = names::label_value(value) {
            bail!("--node-label {label:?}: its value is none: {problem}");
        }
        labels.insert(key.to_owned(), value.to_owned());
    }
    let node = json!({"metadata": {"name": node_name, "labels": labels}});
    let write = Write {
        operation: Operation::Create,
        group: "",
        resource: "nodes",
        subresource: "",
        namespace: "",
        name: node_name,
        object: Some(&node),
        stored: None,
    };
    let once_it_runs = "an administrator can set it with kubectl label once the node is there";
    restrict(&Caller::node(node_name), &write)
        .map_err(|why| anyhow::anyhow!("--node-label: a kubelet may not give its node that: {why}; {once_it_runs}"))?;
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn of(words: &[&str]) -> anyhow::Result<Wishes> {
        let words = ["carrack", "up"].iter().chain(words);
        match Cli::try_parse_from(words).expect("arguments").command {
            Command::Up(args) => read(&args, "n1"),
            _ => panic!("another command"),
        }
    }

    #[test]
    fn two_need_two_ports() {
        let said = |ports: &[(u16, &str)]| refuse_twice(ports).err().map(|error| error.to_string());
        assert_eq!(said(&[(6443, "--https-port"), (10250, "--kubelet-port")]), None);
        let why = said(&[(6443, "--https-port"), (8186, "--virt-handler-port"), (6443, "--kubelet-port")]);
        assert!(why.is_some_and(|why| why.contains("--https-port and --kubelet-port are both port 6443")));
    }

    #[test]
    fn what_is_wrong_is_said_before_anything_is_begun() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let kubelet =
            |lines: &str| format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{lines}\n");
        let (no_yaml, no_policy) = (file("a.yaml", "- ["), file("b.yaml", &kubelet("topologyManagerPolicy: closest")));
        let good = file("c.yaml", &kubelet("maxPods: 7"));
        let no_cpus = file("d.yaml", &kubelet("cpuManagerPolicy: static"));
        let refused: &[(&[&str], &str)] = &[
            (&["--node-label", "red"], "KEY=VALUE"),
            (&["--node-label", "a b=c"], "its key is none"),
            (&["--node-label", "a=b c"], "its value is none"),
            (&["--node-label", "node-role.kubernetes.io/worker="], "node-role.kubernetes.io/worker"),
            (&["--node-label", "node-restriction.kubernetes.io/x=y"], "node-restriction.kubernetes.io/x"),
            (&["--kubelet-config", "/nonexistent"], "/nonexistent"),
            (&["--kubelet-config", &no_yaml], "a.yaml"),
            (&["--kubelet-config", &no_policy], "topologyManagerPolicy"),
            (&["--kubelet-config", &no_cpus], "cpuManagerPolicy static needs CPUs that are kept back"),
            (&["--scheduler-config", "/nonexistent"], "/nonexistent"),
            (&["--gpu-extender", "--gpus", "two"], "two"),
        ];
        for (words, expected) in refused {
            let said = of(words).err().map(|error| format!("{error:#}")).expect("it is refused");
            assert!(said.contains(expected), "{words:?}: {said}");
        }
        let wishes = of(&[
            "--node-label",
            "disk=ssd",
            "--node-label",
            "topology.kubernetes.io/zone=a",
            "--node-label",
            "empty=",
            "--kubelet-config",
            &good,
        ]);
        let wishes = wishes.expect("all of it is fine");
        assert_eq!(wishes.labels.len(), 3);
        assert!(wishes.kubelet.is_some() && wishes.gpus.is_none());
    }
}
