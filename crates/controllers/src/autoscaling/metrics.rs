//! What pods and other things use, asked for at the three metrics APIs, which other servers serve behind the API server.
//!
//! All amounts are in thousandths. What a server says when it fails is told in the words of upstream's client.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, GroupDiscovery, Method, Selector, Time, View, query_escape};
use carrack_types::duration;
use carrack_types::json::or_none;
use carrack_types::quantity::Quantity;
use carrack_types::resource::Resource;
use carrack_types::selector;
use carrack_types::url::segment;
use k8s_openapi::api::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::target;

const CUSTOM: &str = "custom.metrics.k8s.io";
/// Over how long metrics are taken that do not say.
const WINDOW: Duration = Duration::from_secs(60);

/// What a pod uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) value: i64,
    /// When it was taken, and over how long before.
    pub(super) at: Time,
    pub(super) window: Duration,
}

/// Readings by the names of their pods.
pub(super) type Readings = BTreeMap<String, Reading>;

/// Why there is no reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is to be asked for.
    Unasked(ApiRequest),
    /// In words.
    Failed(String),
}

impl Missing {
    /// The failure with what it was a failure of.
    pub(super) fn about(self, what: &str) -> Self {
        match self {
            Self::Failed(why) => Self::Failed(format!("{what}: {why}")),
            unasked @ Self::Unasked(_) => unasked,
        }
    }
}

impl From<String> for Missing {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// What servers say of a path that they do not know, if they say anything.
const UNKNOWN: &str = "the server could not find the requested resource";

/// What a server's failure is called. `asked` is the verb and the resource.
pub(super) fn words(error: &ApiError, asked: &str) -> String {
    match error {
        ApiError::Status(status) if status.code == 404 && (status.reason.is_empty() || status.message == UNKNOWN) => {
            format!("{UNKNOWN} ({asked})")
        }
        ApiError::Status(status) if status.reason.is_empty() && status.code == 503 => {
            format!("the server is currently unable to handle the request ({asked})")
        }
        ApiError::Status(status) => status.message.clone(),
        ApiError::Transport(_) | ApiError::Decode(_) => error.to_string(),
    }
}

/// What a request was answered.
pub(super) fn answer<T: DeserializeOwned>(view: &View<'_>, request: ApiRequest, asked: &str) -> Result<T, Missing> {
    match view.answer(&request) {
        None => Err(Missing::Unasked(request)),
        Some(reply) => {
            let read = reply.as_ref().map_err(Clone::clone).and_then(|reply| reply.json::<T>());
            read.map_err(|error| Missing::Failed(words(&error, asked)))
        }
    }
}

#[derive(Deserialize)]
struct List<T> {
    items: Option<Vec<T>>,
}

/// The items of a list, which is of one of the APIs.
fn items<T: DeserializeOwned>(view: &View<'_>, request: ApiRequest, asked: &str, api: &str) -> Result<Vec<T>, Missing> {
    let list: Result<List<T>, Missing> = answer(view, request, asked);
    let list = list.map_err(|missing| missing.about(&format!("unable to fetch metrics from {api} metrics API")))?;
    let items = list.items.unwrap_or_default();
    if items.is_empty() {
        return Err(Missing::Failed(format!("no metrics returned from {api} metrics API")));
    }
    Ok(items)
}

/// None where it is no amount: that is unknown, and not nothing.
fn millis(quantity: &str) -> Option<i64> {
    Quantity::parse(quantity).ok().map(Quantity::millis)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodMetrics {
    #[serde(deserialize_with = "or_none")]
    metadata: Named,
    #[serde(deserialize_with = "or_none")]
    timestamp: String,
    #[serde(deserialize_with = "or_none")]
    window: String,
    containers: Option<Vec<ContainerMetrics>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerMetrics {
    name: String,
    #[serde(deserialize_with = "or_none")]
    usage: BTreeMap<String, String>,
}

impl PodMetrics {
    /// What a container uses of a resource, or all of them do; none where that is not told of each of them.
    fn used(&self, resource: &str, container: Option<&str>) -> Option<i64> {
        let all = self.containers.iter().flatten().filter(|c| container.is_none_or(|name| c.name == name));
        let used: Option<Vec<i64>> = all.map(|c| millis(c.usage.get(resource)?)).collect();
        used.filter(|used| !used.is_empty()).map(|used| used.into_iter().fold(0, i64::saturating_add))
    }
}

fn time(text: &str) -> Time {
    Time::parse(text).unwrap_or_default()
}

/// What pods use of a resource, by `metrics.k8s.io`: of one of their containers, or all of them.
pub(super) fn of_resource(
    view: &View<'_>,
    namespace: &str,
    pods: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<Readings, Missing> {
    let metrics = Resource {
        group: "metrics.k8s.io".into(),
        version: "v1beta1".into(),
        plural: "pods".into(),
        kind: "PodMetrics".into(),
        namespaced: true,
    };
    let selector = Selector { namespace: namespace.to_owned(), ..Selector::labels(pods) };
    let request = ApiRequest::list(&metrics, &selector, 0, "");
    let told: Vec<PodMetrics> = items(view, request, "get pods.metrics.k8s.io", "resource")
        .map_err(|missing| missing.about(&format!("unable to get metrics for resource {resource}")))?;
    let lacks = |pod: &&PodMetrics, name: &str| !pod.containers.iter().flatten().any(|c| c.name == name);
    if let Some((name, pod)) = container.and_then(|name| Some((name, told.iter().find(|pod| lacks(pod, name))?))) {
        let pod = &pod.metadata.name;
        let why = format!("container {name} not present in metrics for pod {namespace}/{pod}");
        let failed = Missing::Failed(why).about("failed to get container metrics");
        return Err(failed.about(&format!("unable to get metrics for resource {resource}")));
    }
    let readings = told.into_iter().filter_map(|pod| {
        let window = duration::parse_unsigned(&pod.window).unwrap_or_default();
        let reading = Reading { value: pod.used(resource, container)?, at: time(&pod.timestamp), window };
        Some((pod.metadata.name, reading))
    });
    Ok(readings.collect())
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MetricValue {
    #[serde(deserialize_with = "or_none")]
    described_object: Named,
    #[serde(deserialize_with = "or_none")]
    timestamp: String,
    window_seconds: Option<u64>,
    /// The same in v1beta1.
    window: Option<u64>,
    value: String,
}

/// The version in which custom metrics are served.
fn version(view: &View<'_>) -> Result<&'static str, Missing> {
    let group = view.cache_of::<GroupDiscovery>(&GroupDiscovery::source()).and_then(|cache| cache.get("", CUSTOM));
    let is_served = |name: &str| group.is_some_and(|group| group.versions.iter().any(|v| v.version == name));
    let served = ["v1beta2", "v1beta1"].into_iter().find(|name| is_served(name));
    served.ok_or_else(|| Missing::Failed(format!("no custom metrics API ({CUSTOM}) registered")))
}

/// A metric of what is at a path below a namespace.
fn custom(
    view: &View<'_>,
    namespace: &str,
    (path, resource): (&str, &str),
    metric: &MetricIdentifier,
    pods: &str,
) -> Result<Vec<MetricValue>, Missing> {
    let version = version(view).map_err(|missing| missing.about("unable to fetch metrics from custom metrics API"))?;
    let chosen = metric.selector.as_ref().map(selector::text).unwrap_or_default();
    let queries = [("labelSelector", pods), ("metricLabelSelector", &*chosen)];
    let queries: Vec<String> = queries
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| format!("{name}={}", query_escape(text)))
        .collect();
    let mark = if queries.is_empty() { "" } else { "?" };
    let namespace = segment(namespace);
    let name = segment(&metric.name);
    let path = format!("/apis/{CUSTOM}/{version}/namespaces/{namespace}/{path}/{name}{mark}{}", queries.join("&"));
    items(view, ApiRequest::new(Method::Get, path), &format!("get {resource}.{CUSTOM}"), "custom")
}

/// What pods have of a metric, by `custom.metrics.k8s.io`.
pub(super) fn of_pods(
    view: &View<'_>,
    namespace: &str,
    pods: &str,
    metric: &MetricIdentifier,
) -> Result<Readings, Missing> {
    let told = custom(view, namespace, ("pods/*", "pods"), metric, pods)
        .map_err(|missing| missing.about(&format!("unable to get metric {}", metric.name)))?;
    let readings = told.into_iter().filter_map(|told| {
        let window = told.window_seconds.or(told.window).map_or(WINDOW, Duration::from_secs);
        Some((told.described_object.name, Reading { value: millis(&told.value)?, at: time(&told.timestamp), window }))
    });
    Ok(readings.collect())
}

/// What an object has of a metric, by `custom.metrics.k8s.io`.
pub(super) fn of_object(
    view: &View<'_>,
    namespace: &str,
    object: &CrossVersionObjectReference,
    metric: &MetricIdentifier,
) -> Result<i64, Missing> {
    let read = || {
        let group = target::group(object.api_version.as_deref().unwrap_or_default())?;
        if group.is_empty() && object.kind == "Namespace" {
            return custom(view, namespace, ("metrics", "namespaces"), metric, "");
        }
        let resource = target::resource(group, &object.kind, view)
            .map_err(|why| Missing::Failed(why).about("unable to fetch metrics from custom metrics API"))?;
        let path = format!("{}/{}", resource.qualified(), segment(&object.name));
        custom(view, namespace, (path.as_str(), &*resource.plural), metric, "")
    };
    // In this order upstream's words have them.
    let value = read().and_then(|told| amount(told.first()));
    value.map_err(|missing| match missing {
        Missing::Failed(why) => Missing::Failed(format!(
            "unable to get metric {}: {} on {namespace} {}/{why}",
            metric.name, object.kind, object.name
        )),
        unasked @ Missing::Unasked(_) => unasked,
    })
}

/// The value that was told.
fn amount(told: Option<&MetricValue>) -> Result<i64, Missing> {
    let text = told.map_or("", |told| &told.value);
    millis(text).ok_or_else(|| Missing::Failed(format!("{text:?} is no amount")))
}

/// What all series of an external metric have together, by `external.metrics.k8s.io`.
pub(super) fn external(view: &View<'_>, namespace: &str, metric: &MetricIdentifier) -> Result<i64, Missing> {
    let chosen = metric.selector.as_ref().map(selector::text).unwrap_or_default();
    let mark = if chosen.is_empty() { "" } else { "?labelSelector=" };
    let path = format!(
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/{}/{}{mark}{}",
        segment(namespace),
        segment(&metric.name),
        query_escape(&chosen)
    );
    let asked = format!("get {}.external.metrics.k8s.io", metric.name);
    let told: Vec<MetricValue> =
        items(view, ApiRequest::new(Method::Get, path), &asked, "external").map_err(|missing| {
            missing.about(&format!("unable to get external metric {namespace}/{}/{}", metric.name, spelled(metric)))
        })?;
    told.iter().try_fold(0, |sum: i64, told| Ok(sum.saturating_add(amount(Some(told))?)))
}

/// A metric's selector as upstream's words have it, which are those of its source code.
pub(super) fn spelled(metric: &MetricIdentifier) -> String {
    let Some(selector) = &metric.selector else { return "nil".to_owned() };
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}: {value},"));
    let expressions = selector.match_expressions.iter().flatten().map(|r| {
        let values = r.values.as_deref().unwrap_or_default().join(" ");
        format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", r.key, r.operator)
    });
    let (labels, expressions): (String, String) = (labels.collect(), expressions.collect());
    let expressions = format!("MatchExpressions:[]LabelSelectorRequirement{{{expressions}}}");
    format!("&LabelSelector{{MatchLabels:map[string]string{{{labels}}},{expressions},}}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What a pod with these containers uses.
    fn used(containers: &Value, container: Option<&str>) -> Option<i64> {
        let told = json!({"metadata": null, "timestamp": null, "window": null, "containers": containers});
        serde_json::from_value::<PodMetrics>(told).expect("metrics").used("cpu", container)
    }

    #[test]
    fn what_is_not_told_is_unknown_and_not_nothing() {
        let told = |name: &str, usage: Value| json!({"name": name, "usage": usage});
        for (containers, container, expected) in [
            (json!(null), None, None),
            (json!([told("a", json!(null))]), None, None),
            (json!([told("a", json!({"cpu": "much"}))]), None, None),
            (json!([told("a", json!({"cpu": "250m"}))]), None, Some(250)),
            (json!([told("a", json!({"cpu": "250m"})), told("b", json!({"memory": "1Gi"}))]), None, None),
            (json!([told("a", json!({"cpu": "250m"})), told("b", json!({"cpu": "1"}))]), None, Some(1250)),
            (json!([told("a", json!({"cpu": "250m"})), told("b", json!({"cpu": "1"}))]), Some("b"), Some(1000)),
        ] {
            assert_eq!(used(&containers, container), expected, "{containers} {container:?}");
        }
        assert_eq!(amount(None), Err(Missing::Failed("\"\" is no amount".to_owned())));
    }
}
