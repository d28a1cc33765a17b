//! ImageLocality: nodes that have the pod's images are better, the more so the larger the images and the more common they
//! are; images of containers, and those that are volumes (plugins/imagelocality).

use crate::framework::MAX_SCORE;
use crate::{Cluster, NodeInfo, PodInfo};

const MB: i64 = 1024 * 1024;
/// Below so many bytes an image does not count, and above so many for each container it counts no more.
const MIN: i64 = 23 * MB;
const MAX_OF_CONTAINER: i64 = 1000 * MB;

/// Which of the pod's images a node has, as bits. Only the first 64 count.
#[must_use]
pub fn present(pod: &PodInfo, node: &NodeInfo) -> u64 {
    if node.images.is_empty() {
        return 0;
    }
    let bits = pod.images.iter().take(64).zip(0..);
    bits.filter(|(image, _)| node.images.binary_search(image).is_ok()).fold(0, |mask, (_, bit)| mask | 1 << bit)
}

/// The score of a node that has these of the pod's images.
#[must_use]
pub fn score(pod: &PodInfo, present: u64, cluster: &Cluster) -> i64 {
    let nodes = i128::try_from(cluster.len().max(1)).unwrap_or(1);
    let sum: i128 = pod
        .images
        .iter()
        .take(64)
        .zip(0..)
        .filter(|(_, bit)| present & (1 << bit) != 0)
        .map(|(image, _)| cluster.image(*image))
        .map(|image| i128::from(image.size) * i128::from(image.nodes) / nodes)
        .sum();
    let most = MAX_OF_CONTAINER.saturating_mul(i64::try_from(pod.images.len()).unwrap_or(1).max(1));
    let sum = sum.clamp(MIN.into(), most.into());
    i64::try_from(i128::from(MAX_SCORE) * (sum - i128::from(MIN)) / i128::from(most - MIN)).unwrap_or(0)
}
