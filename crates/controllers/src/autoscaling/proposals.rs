//! What each metric of an autoscaler asks for.

use carrack_engine::{Time, View};
use carrack_types::quantity::Quantity;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, ExternalMetricSource, ExternalMetricStatus, HPAScalingRules,
    HorizontalPodAutoscaler, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus, ObjectMetricSource,
    ObjectMetricStatus, PodsMetricSource, PodsMetricStatus, ResourceMetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::calculator::{self, Goal, Proposal, Tolerance};
use super::metrics::{self, Missing};
use super::target::Scale;

/// How far usage may be off, unless the behaviour says otherwise.
const TOLERANCE: f64 = 0.1;

/// What is asked for, and by which metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Proposed {
    pub(super) replicas: i32,
    pub(super) name: String,
    pub(super) status: MetricStatus,
}

/// A number, which metric that is, and what it shows; or why there is none.
type Asked = Result<(i32, String, MetricStatus), Missing>;

/// What metrics are about.
pub(super) struct Asking<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) hpa: &'a HorizontalPodAutoscaler,
    pub(super) scale: &'a Scale,
    pub(super) pods: &'a [&'a Pod],
    pub(super) now: Time,
}

/// The reason of a metric's failure, and what failed.
pub(super) fn failure(spec: &MetricSpec) -> (&'static str, String) {
    match (&*spec.type_, &spec.resource, &spec.container_resource, &spec.external) {
        ("Resource", Some(source), ..) => {
            ("FailedGetResourceMetric", format!("failed to get {} resource metric value", source.name))
        }
        ("ContainerResource", _, Some(source), _) => {
            ("FailedGetContainerResourceMetric", format!("failed to get {} container metric value", source.name))
        }
        ("External", .., Some(source)) => {
            ("FailedGetExternalMetric", format!("failed to get {} external metric value", source.metric.name))
        }
        ("Object", ..) => ("FailedGetObjectMetric", "failed to get object metric value".to_owned()),
        ("Pods", ..) => ("FailedGetPodsMetric", "failed to get pods metric value".to_owned()),
        _ => ("InvalidMetricSourceType", "failed to get metric value".to_owned()),
    }
}

fn millis(quantity: &Text) -> i64 {
    Quantity::try_from(quantity).map_or(0, Quantity::millis)
}

fn text(millis: i64) -> Option<Text> {
    Some(Quantity::from_millis(millis).into())
}

fn untargeted(of: &str, targets: &str) -> Missing {
    Missing::Failed(format!("invalid {of} metric source: {targets} was set"))
}

impl Asking<'_> {
    /// What a metric asks for.
    pub(super) fn propose(&self, spec: &MetricSpec) -> Result<Proposed, Missing> {
        let proposed: Option<Asked> = match &*spec.type_ {
            "Resource" => spec.resource.as_ref().map(|source| {
                let (proposal, name) = self.resource(&source.name, None, &source.target)?;
                let status = ResourceMetricStatus { name: source.name.clone(), current: average(&proposal) };
                Ok((proposal.replicas, name, MetricStatus { resource: Some(status), ..MetricStatus::default() }))
            }),
            "ContainerResource" => spec.container_resource.as_ref().map(|source| {
                let container = source.container.clone();
                let (proposal, name) = self.resource(&source.name, Some(&container), &source.target)?;
                let (resource, current) = (source.name.clone(), average(&proposal));
                let status = ContainerResourceMetricStatus { container, name: resource, current };
                Ok((
                    proposal.replicas,
                    name,
                    MetricStatus { container_resource: Some(status), ..MetricStatus::default() },
                ))
            }),
            "Pods" => spec.pods.as_ref().map(|source| self.of_pods(source)),
            "Object" => spec.object.as_ref().map(|source| self.of_object(source)),
            "External" => spec.external.as_ref().map(|source| self.external(source)),
            _ => None,
        };
        let unknown = || Err(Missing::Failed(format!("unknown metric source type {:?}", spec.type_)));
        let (replicas, name, status) = proposed.unwrap_or_else(unknown)?;
        Ok(Proposed { replicas, name, status: MetricStatus { type_: spec.type_.clone(), ..status } })
    }

    fn namespace(&self) -> &str {
        self.hpa.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn tolerance(&self) -> Tolerance {
        let behavior = self.hpa.spec.behavior.as_ref();
        let of = |rules: Option<&HPAScalingRules>| {
            let said = rules.and_then(|rules| rules.tolerance.as_ref()).and_then(|text| Quantity::try_from(text).ok());
            said.map_or(TOLERANCE, |said| said.nanos() as f64 / 1e9)
        };
        Tolerance {
            down: of(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
            up: of(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
        }
    }

    fn by_pods(&self, goal: &Goal, readings: metrics::Readings, resource: &str) -> Result<Proposal, String> {
        let current = self.scale.spec.replicas;
        calculator::by_pods(current, goal, self.pods, readings, resource, self.tolerance(), self.now)
    }

    /// A resource of pods, or of one of their containers.
    fn resource(
        &self,
        name: &str,
        container: Option<&str>,
        target: &MetricTarget,
    ) -> Result<(Proposal, String), Missing> {
        let selector = &self.scale.status.selector;
        let readings = || metrics::of_resource(self.view, self.namespace(), selector, name, container);
        match (&target.average_value, target.average_utilization) {
            (Some(value), _) => {
                let proposal = readings().and_then(|read| Ok(self.by_pods(&Goal::Value(millis(value)), read, name)?));
                let proposal = proposal.map_err(|missing| missing.about(&format!("failed to get {name} usage")))?;
                Ok((proposal, format!("{name} resource")))
            }
            (None, Some(percent)) => {
                let proposal = readings().and_then(|read| {
                    let requests = calculator::requests(self.pods, name, container)?;
                    Ok(self.by_pods(&Goal::Utilization(percent, requests), read, name)?)
                });
                let proposal =
                    proposal.map_err(|missing| missing.about(&format!("failed to get {name} utilization")))?;
                let of = if container.is_some() { "container resource" } else { "resource" };
                Ok((proposal, format!("{name} {of} utilization (percentage of request)")))
            }
            (None, None) => {
                Err(untargeted("resource", "neither an average utilization target nor an average value (usage) target"))
            }
        }
    }

    fn of_pods(&self, source: &PodsMetricSource) -> Asked {
        let Some(wanted) = &source.target.average_value else {
            return Err(untargeted("pods", "no average value target"));
        };
        let readings = metrics::of_pods(self.view, self.namespace(), &self.scale.status.selector, &source.metric)?;
        let proposal = self.by_pods(&Goal::Value(millis(wanted)), readings, "")?;
        let status = PodsMetricStatus { metric: source.metric.clone(), current: average(&proposal) };
        let status = MetricStatus { pods: Some(status), ..MetricStatus::default() };
        Ok((proposal.replicas, format!("pods metric {}", source.metric.name), status))
    }

    fn of_object(&self, source: &ObjectMetricSource) -> Asked {
        let (target, metric, object) = (&source.target, &source.metric, &source.described_object);
        let used = || metrics::of_object(self.view, self.namespace(), object, metric);
        let (replicas, name, current) = match (&*target.type_, &target.value, &target.average_value) {
            ("Value", Some(wanted), _) => {
                let (replicas, current) = self.by_value(used()?, wanted)?;
                (replicas, format!("{} metric {}", object.kind, metric.name), current)
            }
            ("AverageValue", _, Some(wanted)) => {
                let about = format!("failed to get {} object metric", metric.name);
                let (replicas, current) = self.by_share(used().map_err(|missing| missing.about(&about))?, wanted);
                (replicas, format!("external metric {}({})", metric.name, metrics::spelled(metric)), current)
            }
            _ => return Err(untargeted("object", "neither a value target nor an average value target")),
        };
        let status = ObjectMetricStatus { described_object: object.clone(), metric: metric.clone(), current };
        Ok((replicas, name, MetricStatus { object: Some(status), ..MetricStatus::default() }))
    }

    fn external(&self, source: &ExternalMetricSource) -> Asked {
        let (target, metric) = (&source.target, &source.metric);
        let used = || metrics::external(self.view, self.namespace(), metric);
        let (replicas, current) = match (&target.average_value, &target.value) {
            (Some(wanted), _) => {
                let about = format!("failed to get {} external metric", metric.name);
                self.by_share(used().map_err(|missing| missing.about(&about))?, wanted)
            }
            (None, Some(wanted)) => {
                let about = format!("failed to get external metric {}", metric.name);
                let told = used().and_then(|used| Ok(self.by_value(used, wanted)?));
                told.map_err(|missing| missing.about(&about))?
            }
            (None, None) => return Err(untargeted("external", "neither a value target nor an average value target")),
        };
        let name = format!("external metric {}({})", metric.name, metrics::spelled(metric));
        let status = ExternalMetricStatus { metric: metric.clone(), current };
        Ok((replicas, name, MetricStatus { external: Some(status), ..MetricStatus::default() }))
    }

    fn by_value(&self, used: i64, wanted: &Text) -> Result<(i32, MetricValueStatus), String> {
        let current = self.scale.spec.replicas;
        let replicas = calculator::by_value(current, used, millis(wanted), self.pods, self.tolerance())?;
        Ok((replicas, MetricValueStatus { value: text(used), ..MetricValueStatus::default() }))
    }

    fn by_share(&self, used: i64, wanted: &Text) -> (i32, MetricValueStatus) {
        let (replicas, each) = calculator::by_share(self.scale.status.replicas, used, millis(wanted), self.tolerance());
        (replicas, MetricValueStatus { average_value: text(each), ..MetricValueStatus::default() })
    }
}

fn average(proposal: &Proposal) -> MetricValueStatus {
    MetricValueStatus {
        average_utilization: proposal.percent,
        average_value: text(proposal.average),
        ..MetricValueStatus::default()
    }
}
