//! Has Deployments and others run as many pods as their metrics ask for.
//!
//! ```text
//!   autoscaler ──▶ scale of its target ──▶ metrics ──▶ a number for each ──▶ the greatest, as fast as it may ──▶ scale,
//!   (every 15 s)   (read live)             (read live)  (`calculator`)       (`limits`)                         status
//! ```
//!
//! Of targets and metrics nothing is watched: they may be of any kind that has a scale, and of any server. So a decision asks for
//! what it needs ([`Plan::ask`]) and is made anew until it has been told all of it. A metric that is not told asks for nothing,
//! and holds back who would have less: an autoscaler takes pods away only when all its metrics say so.
//!
//! Behaviour follows kube-controller-manager's horizontal pod autoscaler (pkg/controller/podautoscaler), but for when a change of
//! the target counts: upstream counts it when it was answered, this controller when the target is seen with that number, so that
//! neither a lost reply nor a refusal is counted wrongly.

mod calculator;
mod limits;
mod metrics;
mod proposals;
mod status;
mod target;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{
    ApiRequest, Controller, EventRecord, GroupDiscovery, Key, Method, Plan, Refusal, Setup, Source, Time, View,
};
use carrack_types::definition::Definition;
use carrack_types::resource::Object as _;
use carrack_types::selector::{parse, selects};
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, MetricStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::Planted;
use limits::{Past, Range, Rescale};
use metrics::Missing;
use proposals::{Asking, Proposed};
use status::{ABLE, ACTIVE, Draft, LIMITED};
use target::Scale;

/// How often each autoscaler is looked at.
const SYNC: Duration = Duration::from_secs(15);

/// The horizontal pod autoscaler.
#[derive(Default)]
pub struct HorizontalAutoscaler {
    known: BTreeMap<Key, Known>,
    /// A planted bug.
    planted: Option<Planted>,
}

/// What is remembered of an autoscaler.
#[derive(Default)]
struct Known {
    /// Another one may have its name by now.
    uid: String,
    past: Past,
    /// Which pods its target had when it was looked at last.
    selector: Option<LabelSelector>,
}

/// What metrics show.
struct Measured {
    /// What they ask for together; or why that cannot be said.
    proposed: Result<Proposed, String>,
    statuses: Option<Vec<MetricStatus>>,
}

/// Why a decision is not made yet: this is to be read before.
type Asks = Vec<ApiRequest>;

impl Controller for HorizontalAutoscaler {
    fn name(&self) -> &'static str {
        "horizontal-pod-autoscaler-controller"
    }
    fn event_source(&self) -> &'static str {
        "horizontal-pod-autoscaler"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        // Its own status changes each time; what it is to do follows from the spec, and from time.
        let matters = |old: &HorizontalPodAutoscaler, new: &HorizontalPodAutoscaler| {
            old.uid() != new.uid() || old.is_deleting() != new.is_deleting() || old.spec != new.spec
        };
        let source = Source::of::<HorizontalPodAutoscaler>();
        setup.watch_changes::<HorizontalPodAutoscaler>(source, matters, |hpa, _| vec![Key::of(hpa)]);
        setup.index_labels::<Pod>();
        setup.read::<Pod>();
        setup.read::<Definition>();
        setup.watch_source::<GroupDiscovery>(GroupDiscovery::source(), |_, _| Vec::new());
    }
    fn begin(&mut self) {
        // Others may have changed targets meanwhile.
        self.known.clear();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let hpa = view.get::<HorizontalPodAutoscaler>(&key.namespace, &key.name);
        let Some(hpa) = hpa.filter(|hpa| !hpa.is_deleting()) else {
            self.known.remove(key);
            return Plan::none();
        };
        if self.known.get(key).is_none_or(|known| known.uid != hpa.uid()) {
            self.known.insert(key.clone(), Known { uid: hpa.uid().to_owned(), ..Known::default() });
        }
        match self.look(key, hpa, view, now) {
            Ok(plan) => plan.requeue_after(SYNC),
            Err(asks) => asks.into_iter().fold(Plan::none(), Plan::ask),
        }
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let Some(hpa) = view.get::<HorizontalPodAutoscaler>(&key.namespace, &key.name) else { return Plan::none() };
        let why = &refusal.error.message;
        if !target::is_scale(refusal.write) {
            return Plan::none().event(EventRecord::warning(hpa.as_ref(), "FailedUpdateStatus", why.clone()));
        }
        let Some(asked) = self.past(key).asked.take() else { return Plan::none() };
        let mut draft = Draft::of(hpa, now);
        draft.warn("FailedRescale", format!("New size: {}; reason: {}; error: {why}", asked.to, asked.why));
        let message = format!("the HPA controller was unable to update the target scale: {why}");
        draft.set(ABLE, false, "FailedUpdateScale", &message);
        draft.status.current_replicas = Some(asked.from);
        draft.write(Plan::none())
    }
}

impl HorizontalAutoscaler {
    pub(crate) fn with_planted(self, planted: Option<Planted>) -> Self {
        Self { planted, ..self }
    }

    fn look(
        &mut self,
        key: &Key,
        hpa: &Arc<HorizontalPodAutoscaler>,
        view: &View<'_>,
        now: Time,
    ) -> Result<Plan, Asks> {
        let mut draft = Draft::of(hpa, now);
        let target = &hpa.spec.scale_target_ref;
        let at = Key::new(key.namespace.clone(), target.name.clone());
        let found = target::group(target.api_version.as_deref().unwrap_or_default())
            .and_then(|group| target::resource(group, &target.kind, view))
            .map_err(Missing::Failed)
            .and_then(|resource| {
                let path = format!("{}/{}", resource.object_path(&at.namespace, &at.name), target::SCALE);
                let asked = format!("get {}", resource.qualified());
                let scale: Scale = metrics::answer(view, ApiRequest::new(Method::Get, path), &asked)?;
                Ok((resource, scale))
            });
        let (resource, scale) = match found {
            Ok(found) => found,
            Err(Missing::Unasked(request)) => return Err(vec![request]),
            Err(Missing::Failed(why)) => {
                let message = format!("the HPA controller was unable to get the target's current scale: {why}");
                draft.warn("FailedGetScale", why);
                draft.set(ABLE, false, "FailedGetScale", &message);
                return Ok(draft.write(Plan::none()));
            }
        };
        let message = "the HPA controller was able to get the target's current scale";
        draft.set(ABLE, true, "SucceededGetScale", message);
        let current = scale.spec.replicas;
        let range = match self.planted {
            Some(Planted::BoundsForgotten) => Range { min: 0, max: i32::MAX },
            _ => Range { min: hpa.spec.min_replicas.unwrap_or(1), max: hpa.spec.max_replicas },
        };
        let is_off = current == 0 && range.min != 0;
        let measured = match is_off || current < range.min || current > range.max {
            true => None,
            false => Some(self.measure(key, hpa, &scale, view, &mut draft)?),
        };
        // All is read: from here on it is decided, and what is remembered changes.
        self.past(key).saw(current, now);
        let mut shown = None;
        let rescaled = match measured {
            None if is_off => {
                let message = "scaling is disabled since the replica count of the target is zero";
                draft.set(ACTIVE, false, "ScalingDisabled", message);
                None
            }
            None if current > range.max => {
                Some((range.max, "Current number of replicas above Spec.MaxReplicas".to_owned()))
            }
            None => Some((range.min, "Current number of replicas below Spec.MinReplicas".to_owned())),
            Some(Measured { proposed: Ok(proposed), statuses }) => {
                shown = statuses;
                self.settle(key, hpa, current, range, &proposed, &mut draft)
            }
            Some(Measured { proposed: Err(why), statuses }) => {
                draft.count(current, None, statuses);
                draft.warn("FailedComputeMetricsReplicas", why);
                return Ok(draft.write(Plan::none()));
            }
        };
        let mut plan = Plan::none();
        if let Some((to, why)) = rescaled {
            let told = format!("New size: {to}; reason: {why}");
            plan = plan.write(scale.change(&resource, at, to));
            plan = plan.told(EventRecord::normal(hpa.as_ref(), "SuccessfulRescale", told));
            let message = format!("the HPA controller was able to update the target scale to {to}");
            draft.set(ABLE, true, "SucceededRescale", &message);
            draft.status.last_scale_time = Some(now.meta());
            draft.count(current, Some(to), shown);
            self.past(key).asked = Some(Rescale { from: current, to, at: now, why });
        } else {
            draft.count(current, Some(current), shown);
        }
        Ok(draft.write(plan))
    }

    /// What is remembered of an autoscaler that is looked at.
    fn past(&mut self, key: &Key) -> &mut Past {
        &mut self.known.entry(key.clone()).or_default().past
    }

    /// Asks all metrics.
    fn measure(
        &mut self,
        key: &Key,
        hpa: &HorizontalPodAutoscaler,
        scale: &Scale,
        view: &View<'_>,
        draft: &mut Draft<'_>,
    ) -> Result<Measured, Asks> {
        let pods = match self.pods(key, scale, view, draft) {
            Ok(pods) => pods,
            Err(why) => return Ok(Measured { proposed: Err(why), statuses: None }),
        };
        let asking = Asking { view, hpa, scale, pods: &pods, now: draft.now };
        let specs = hpa.spec.metrics.as_deref().unwrap_or_default();
        let told: Vec<_> = specs.iter().map(|spec| (spec, asking.propose(spec))).collect();
        let asks: Asks = told
            .iter()
            .filter_map(|(_, proposed)| match proposed {
                Err(Missing::Unasked(request)) => Some(request.clone()),
                _ => None,
            })
            .collect();
        if !asks.is_empty() {
            return Err(asks);
        }
        let mut best: Option<Proposed> = None;
        let mut first: Option<String> = None;
        let mut failed = 0;
        let mut statuses = Vec::new();
        for (spec, proposed) in told {
            match proposed {
                Ok(proposed) => {
                    statuses.push(proposed.status.clone());
                    if best.as_ref().is_none_or(|best| proposed.replicas > best.replicas) {
                        best = Some(proposed);
                    }
                }
                Err(Missing::Unasked(_)) => {}
                Err(Missing::Failed(why)) => {
                    let (reason, about) = proposals::failure(spec);
                    failed += 1;
                    if first.is_none() {
                        let message = format!("the HPA was unable to compute the replica count: {why}");
                        draft.set(ACTIVE, false, reason, &message);
                        first = Some(format!("{about}: {why}"));
                    }
                    draft.warn(reason, why);
                    // Each has the place of its metric.
                    statuses.push(MetricStatus::default());
                }
            }
        }
        // What failed might ask for more than the others do: pods go only when all that is asked is told.
        let enough = best.filter(|best| first.is_none() || best.replicas >= scale.spec.replicas);
        let enough = enough.or_else(|| (self.planted == Some(Planted::SilenceIsZero)).then(Proposed::default));
        let proposed = enough.ok_or_else(|| {
            let why = first.unwrap_or_else(|| "nothing is measured".to_owned());
            format!("invalid metrics ({failed} invalid out of {}), first error is: {why}", specs.len())
        });
        if let Ok(best) = &proposed {
            let message = format!("the HPA was able to successfully calculate a replica count from {}", best.name);
            draft.set(ACTIVE, true, "ValidMetricFound", &message);
        }
        Ok(Measured { proposed, statuses: Some(statuses) })
    }

    /// The pods of a target; or why they are not known, which is told.
    fn pods<'v>(
        &mut self,
        key: &'v Key,
        scale: &Scale,
        view: &'v View<'_>,
        draft: &mut Draft<'_>,
    ) -> Result<Vec<&'v Pod>, String> {
        let text = &scale.status.selector;
        if text.is_empty() {
            let why = "selector is required";
            draft.warn("SelectorRequired", why);
            draft.set(ACTIVE, false, "InvalidSelector", "the HPA target's scale is missing a selector");
            return Err(why.to_owned());
        }
        let chosen = parse(text).map_err(|why| {
            let why = format!("couldn't convert selector into a corresponding internal selector object: {why}");
            draft.warn("InvalidSelector", why.clone());
            draft.set(ACTIVE, false, "InvalidSelector", &why);
            why
        })?;
        let pods = pods_of(&key.namespace, &chosen, view);
        self.known.entry(key.clone()).or_default().selector = Some(chosen);
        let chooses = |chosen: &LabelSelector| pods.iter().any(|pod| selects(chosen, pod.metadata.labels.as_ref()));
        let all = self.known.iter().filter(|(other, _)| other.namespace == key.namespace);
        let controlling: Vec<String> = all
            .filter(|(_, known)| known.selector.as_ref().is_some_and(chooses))
            .map(|(other, _)| format!("{{{} {}}}", other.name, other.namespace))
            .collect();
        if controlling.len() > 1 {
            let all = controlling.join(" ");
            let why = format!("pods by selector {text} are controlled by multiple HPAs: [{all}]");
            draft.warn("AmbiguousSelector", why.clone());
            draft.set(ACTIVE, false, "AmbiguousSelector", &why);
            return Err(why);
        }
        Ok(pods)
    }

    /// What becomes of a number that metrics ask for: another number of replicas, and why, or nothing.
    fn settle(
        &mut self,
        key: &Key,
        hpa: &HorizontalPodAutoscaler,
        current: i32,
        range: Range,
        proposed: &Proposed,
        draft: &mut Draft<'_>,
    ) -> Option<(i32, String)> {
        let desired = proposed.replicas;
        let settled = self.past(key).settle(hpa.spec.behavior.as_ref(), current, desired, range, draft.now);
        draft.set(ABLE, true, settled.able.0, settled.able.1);
        let (is_limited, (reason, message)) = settled.limited;
        draft.set(LIMITED, is_limited, reason, message);
        let why = if desired > current {
            format!("{} above target", proposed.name)
        } else if desired < current {
            "All metrics below target".to_owned()
        } else {
            String::new()
        };
        (settled.replicas != current).then_some((settled.replicas, why))
    }
}

/// The pods of a namespace that a selector chooses.
fn pods_of<'v>(namespace: &'v str, chosen: &LabelSelector, view: &'v View<'_>) -> Vec<&'v Pod> {
    let single = chosen.match_expressions.iter().flatten().find_map(|r| match r.values.as_deref() {
        Some([value]) if r.operator == "In" => Some((&r.key, value)),
        _ => None,
    });
    let all = view.cache::<Pod>().labelled(namespace, single).map(|pod| &**pod);
    all.filter(|pod| selects(chosen, pod.metadata.labels.as_ref())).collect()
}
