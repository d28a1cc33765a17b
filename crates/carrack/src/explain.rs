//! `carrack explain`: why something is as it is.
//!
//! For a pod: the scheduler's own decision code is asked, on the cluster as it is now, what each node says.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use carrack_engine::{ApiRequest, HttpsTransport, Selector, Transport};
use carrack_scheduler::{
    Cluster, DEFAULT_SCHEDULER_NAME, Decider, Explained, Objects, Pod, PodInfo, Profile, Question, explain, name_of,
};
use carrack_types::resource::{Kind, Object as _};
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use serde_json::Value;

use crate::cli::explain::{ExplainArgs, ExplainCommand, ExplainPodArgs};
use crate::roles::credentials;
use crate::{kubeconfig, output};

/// Objects in one page of a list.
const PAGE: usize = 500;

/// Explains.
///
/// # Errors
/// There is no such object, or the API server cannot be asked.
pub async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    match args.command {
        ExplainCommand::Pod(args) => pod(args).await,
    }
}

async fn list<K: Kind>(api: &HttpsTransport) -> anyhow::Result<Vec<Arc<K>>> {
    let mut objects = Vec::new();
    let mut token = String::new();
    loop {
        let request = ApiRequest::list(&K::resource(), &Selector::all(), PAGE, &token);
        let mut page: Value = api
            .send(request)
            .await
            .and_then(|reply| reply.json())
            .with_context(|| format!("cannot list {}", K::resource()))?;
        for item in page["items"].as_array_mut().into_iter().flatten() {
            let object = serde_json::from_value(item.take());
            objects.push(Arc::new(object.with_context(|| format!("cannot read one of {}", K::resource()))?));
        }
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            return Ok(objects);
        }
    }
}

async fn map<K: Kind>(
    api: &HttpsTransport,
) -> anyhow::Result<std::collections::BTreeMap<carrack_scheduler::ObjectName, Arc<K>>> {
    Ok(list::<K>(api).await?.into_iter().map(|object| (name_of(&*object), object)).collect())
}

/// The cluster as it is now, and its pods.
async fn load(api: &HttpsTransport) -> anyhow::Result<(Cluster, Vec<Arc<Pod>>)> {
    let mut cluster = Cluster::default();
    for namespace in list::<Namespace>(api).await? {
        cluster.set_namespace(namespace.name(), Some(namespace.metadata.labels.clone().unwrap_or_default()));
    }
    let objects = &mut cluster.objects;
    objects.claims = map::<PersistentVolumeClaim>(api).await?;
    objects.volumes = map::<PersistentVolume>(api).await?;
    objects.classes = map::<StorageClass>(api).await?;
    objects.csi_nodes = map::<CSINode>(api).await?;
    let attachments = list::<VolumeAttachment>(api).await?;
    objects.attachments = attachments.into_iter().map(|a| (Objects::attachment_key(&a), a)).collect();
    objects.drivers = map::<CSIDriver>(api).await?;
    objects.capacities = map::<CSIStorageCapacity>(api).await?;
    objects.budgets = map::<PodDisruptionBudget>(api).await?;
    objects.services = map::<Service>(api).await?;
    objects.replication_controllers = map::<ReplicationController>(api).await?;
    objects.replica_sets = map::<ReplicaSet>(api).await?;
    objects.stateful_sets = map::<StatefulSet>(api).await?;
    for node in list::<Node>(api).await? {
        cluster.set_node(node);
    }
    let pods = list::<Pod>(api).await?;
    for pod in &pods {
        cluster.set_pod(pod);
    }
    Ok((cluster, pods))
}

async fn pod(args: ExplainPodArgs) -> anyhow::Result<()> {
    let target = kubeconfig::target(&args.client)?;
    let api = credentials::reach(&target)?;
    let (mut cluster, pods) = load(&api).await?;
    let (namespace, name) = (target.namespace.as_str(), args.name.as_str());
    let Some(pod) = pods.iter().find(|p| p.namespace() == namespace && p.name() == name) else {
        bail!("there is no pod {namespace}/{name}");
    };
    let node = &*pod.node;
    if !node.is_empty() {
        return output::print(args.output, &serde_json::json!({"node": node}), || {
            format!("{namespace}/{name} is on {node}: it waits for no node\n")
        });
    }
    let named = pod.scheduler_name();
    let profile = match &args.config {
        Some(path) => {
            let config = crate::roles::scheduler::read_config(path)?;
            let profile = config.profiles.into_iter().find(|p| p.scheduler_name == named);
            profile.with_context(|| format!("no profile in {} is for {named:?}", path.display()))?
        }
        None => Profile::default(),
    };
    let nominees: Vec<(String, Arc<PodInfo>)> = pods
        .iter()
        .filter(|p| p.uid() != pod.uid() && p.node.is_empty())
        .filter_map(|p| Some((p.nominated.as_deref()?.to_owned(), p.clone())))
        .map(|(node, p)| (node, cluster.read(p)))
        .collect();
    let nominated = |node: &str| nominees.iter().filter(|(n, _)| n == node).map(|(_, p)| p.clone()).collect();
    let info = cluster.read(pod.clone());
    let profile = Arc::new(profile);
    let question = Question { pod: &info, profile: &profile, nominated: &nominated };
    let mut explained = explain(&mut Decider::new(cluster), question);
    if args.config.is_none() && named != DEFAULT_SCHEDULER_NAME {
        let own = "nodes answer here as the default plugins do, and as its own with --config";
        explained.held_by.push(format!("its scheduler, {named}, which is the only one that looks at it; {own}"));
    }
    output::print(args.output, &explained, || text(&format!("{namespace}/{name}"), &explained))
}

fn text(name: &str, explained: &Explained) -> String {
    let fitting = explained.nodes.iter().filter(|n| n.fits).count();
    let mut text = format!("{name}: {fitting} of {} nodes would take it\n", explained.nodes.len());
    for held in &explained.held_by {
        text.push_str(&format!("held by {held}\n"));
    }
    if let Some(said) = &explained.said {
        text.push_str(&format!("its status says: {said}\n"));
    }
    let width = explained.nodes.iter().map(|n| n.node.len()).max().unwrap_or(0).max(4);
    if !explained.nodes.is_empty() {
        text.push_str(&format!("\n{:<width$}  {:<4}  {}\n", "NODE", "FITS", "WHY NOT, AND WHAT WOULD HELP"));
    }
    for node in &explained.nodes {
        let fits = if node.fits { "yes" } else { "no" };
        let line = format!("{:<width$}  {fits:<4}  {}", node.node, node.reasons.join("; "));
        text.push_str(line.trim_end());
        text.push('\n');
        for change in &node.changes {
            text.push_str(&format!("{:<width$}        -> {change}\n", ""));
        }
    }
    if let Some(victims) = &explained.preemption {
        text.push_str(&format!("\nLess important pods would have to go from {victims}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use carrack_scheduler::NodeExplained;

    use super::*;

    #[test]
    fn reasons_and_remedies_show() {
        let nodes = vec![
            NodeExplained { node: "a".into(), fits: true, reasons: vec![], changes: vec![] },
            NodeExplained {
                node: "b".into(),
                fits: false,
                reasons: vec!["Insufficient cpu".into()],
                changes: vec!["200m more of cpu".into()],
            },
        ];
        let shown = text("d/p", &Explained { held_by: vec![], said: Some("no room".into()), nodes, preemption: None });
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "d/p: 1 of 2 nodes would take it");
        assert_eq!(lines[1], "its status says: no room");
        assert!(lines[5].contains("Insufficient cpu") && lines[6].contains("-> 200m more of cpu"), "{shown}");
    }
}
