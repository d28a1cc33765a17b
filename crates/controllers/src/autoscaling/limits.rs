//! How fast a number of replicas may change, and how far.
//!
//! What is recommended is remembered, and by how many replicas a target was changed; so a number goes down only when nothing
//! higher was recommended for a while, and neither way faster than its policies let it. None of it outlives the process: whoever
//! begins takes the number that there is for recommended.
//!
//! Behaviour follows kube-controller-manager's horizontal pod autoscaler (pkg/controller/podautoscaler).

use std::time::Duration;

use carrack_engine::Time;
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// How long nothing higher was recommended when a number goes down, unless its behaviour says otherwise.
const DOWNSCALE_STABILIZATION: Duration = Duration::from_secs(300);
/// How far back policies look at the most.
const LONGEST_PERIOD: Duration = Duration::from_secs(1800);
/// To so many replicas, or twice as many as there are, a number goes up at once where no behaviour is said.
const SCALE_UP_LEAST: i32 = 4;

/// A change that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rescale {
    pub(super) from: i32,
    pub(super) to: i32,
    pub(super) at: Time,
    pub(super) why: String,
}

/// What is remembered of an autoscaler.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    recommended: Vec<(i32, Time)>,
    /// By how many replicas the target was changed, up and down.
    grown: Vec<(i32, Time)>,
    shrunk: Vec<(i32, Time)>,
    /// What was asked for last, until it is seen what has become of it.
    pub(super) asked: Option<Rescale>,
}

/// How far a number may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) min: i32,
    pub(super) max: i32,
}

type Words = (&'static str, &'static str);

/// A number, and why it is that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) replicas: i32,
    /// Reason and message of the condition `AbleToScale`.
    pub(super) able: Words,
    /// Of the condition `ScalingLimited`, and whether it holds.
    pub(super) limited: (bool, Words),
}

const READY: Words = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: Words = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: Words = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const WITHIN: Words = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FEW: Words = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_MANY: Words = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FAST_UP: Words =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const TOO_FAST_DOWN: Words =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn window(rules: Option<&HPAScalingRules>, otherwise: Duration) -> Duration {
    rules.and_then(|rules| rules.stabilization_window_seconds).map_or(otherwise, seconds)
}

/// The sum of what happened in a time.
fn within(events: &[(i32, Time)], period: Duration, now: Time) -> i32 {
    let recent = events.iter().filter(|(_, at)| now.since(*at) < period);
    recent.fold(0, |sum, (change, _)| sum.saturating_add(*change))
}

impl Past {
    /// Takes over how many replicas the target is asked for now: that is what was recommended before anything was, and it tells
    /// whether the last change was made.
    pub(super) fn saw(&mut self, replicas: i32, now: Time) {
        if let Some(Rescale { from, to, at, .. }) = self.asked.take().filter(|asked| asked.to == replicas) {
            let (events, change) = if to > from { (&mut self.grown, to - from) } else { (&mut self.shrunk, from - to) };
            events.retain(|(_, at)| now.since(*at) < LONGEST_PERIOD);
            events.push((change, at));
        }
        if self.recommended.is_empty() {
            self.recommended.push((replicas, now));
        }
    }

    /// What a number becomes that is desired now.
    pub(super) fn settle(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        current: i32,
        desired: i32,
        range: Range,
        now: Time,
    ) -> Settled {
        let up = behavior.and_then(|behavior| behavior.scale_up.as_ref());
        let down = behavior.and_then(|behavior| behavior.scale_down.as_ref());
        let (slow_up, slow_down) = (window(up, Duration::ZERO), window(down, DOWNSCALE_STABILIZATION));
        let recent = |window: Duration| {
            self.recommended.iter().filter(move |(_, at)| now.since(*at) < window).map(|(replicas, _)| *replicas)
        };
        let most = recent(slow_down).fold(desired, i32::max);
        let (stable, words) = if behavior.is_some() {
            // What there is stays unless all that was recommended lately asks for more, or all of it for less. So neither window can
            // turn the way that a number goes (`stabilizeRecommendationWithBehaviors`).
            let least = recent(slow_up).fold(desired, i32::min);
            (current.clamp(least, most), if desired >= current { UP_STABILIZED } else { DOWN_STABILIZED })
        } else {
            // Where no behaviour is said, the highest recommendation counts on the way up, too.
            (most, DOWN_STABILIZED)
        };
        self.recommended.retain(|(_, at)| now.since(*at) < slow_up.max(slow_down));
        self.recommended.push((desired, now));
        let able = if stable == desired { READY } else { words };
        let (replicas, why) = match behavior {
            Some(_) => self.by_rules(current, stable, range, (up, down), now),
            None => at_once(current, stable, range),
        };
        Settled { replicas, able, limited: (replicas != stable, why) }
    }

    fn by_rules(
        &self,
        current: i32,
        desired: i32,
        range: Range,
        (up, down): (Option<&HPAScalingRules>, Option<&HPAScalingRules>),
        now: Time,
    ) -> (i32, Words) {
        if desired > current {
            let fastest = up.map_or(range.max, |rules| self.fastest(current, rules, 1, now)).max(current);
            let (most, why) = if range.max > fastest { (fastest, TOO_FAST_UP) } else { (range.max, TOO_MANY) };
            return if desired > most { (most, why) } else { (desired, WITHIN) };
        }
        let fastest = down.map_or(range.min, |rules| self.fastest(current, rules, -1, now)).min(current);
        let (least, why) = if range.min < fastest { (fastest, TOO_FAST_DOWN) } else { (range.min, TOO_FEW) };
        if desired < least && desired < current { (least, why) } else { (desired, WITHIN) }
    }

    /// How far policies let a number go by now: up (1) or down (-1). Each counts from what there was when its period began, so what
    /// was taken away since may come back beside what may be added, and the other way round.
    fn fastest(&self, current: i32, rules: &HPAScalingRules, way: i32, now: Time) -> i32 {
        let policies = rules.policies.iter().flatten();
        let reached = policies.map(|policy| {
            let period = seconds(policy.period_seconds);
            let [grown, shrunk] = [&self.grown, &self.shrunk].map(|events| within(events, period, now));
            let before = current.saturating_sub(grown).saturating_add(shrunk);
            if policy.type_ == "Pods" {
                return before.saturating_add(way.saturating_mul(policy.value));
            }
            let share = 1.0 + f64::from(way) * f64::from(policy.value) / 100.0;
            let reached = f64::from(before) * share;
            // Rounded so that a number that may change at all does: up to one more, down to one less.
            (if way > 0 { reached.ceil() } else { reached.floor() }) as i32
        });
        // The least change, or the greatest.
        let least = rules.select_policy.as_deref() == Some("Min");
        let reached = match rules.select_policy.as_deref() {
            Some("Disabled") => None,
            _ if least == (way > 0) => reached.min(),
            _ => reached.max(),
        };
        reached.unwrap_or(current)
    }
}

/// What a number becomes whose autoscaler says nothing of its behaviour.
fn at_once(current: i32, desired: i32, range: Range) -> (i32, Words) {
    let fastest = current.saturating_mul(2).max(SCALE_UP_LEAST);
    let (most, why) = if range.max > fastest { (fastest, TOO_FAST_UP) } else { (range.max, TOO_MANY) };
    if desired < range.min {
        (range.min, TOO_FEW)
    } else if desired > most {
        (most, why)
    } else {
        (desired, WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::of;

    const RANGE: Range = Range { min: 2, max: 20 };

    fn at(second: i64) -> Time {
        Time::from_unix_s(second)
    }

    /// A story of what is seen and desired at which second, and what becomes of that; what it becomes is what is seen next, and
    /// was asked for.
    fn check(behavior: &Value, first: i32, story: &[(i64, i32, i32, &str, &str)]) {
        let behavior: Option<HorizontalPodAutoscalerBehavior> = of(behavior.clone());
        let (mut past, mut current) = (Past::default(), first);
        for (second, desired, expected, able, limited) in story {
            past.saw(current, at(*second));
            let settled = past.settle(behavior.as_ref(), current, *desired, RANGE, at(*second));
            let found = (settled.replicas, settled.able.0, settled.limited.1.0);
            assert_eq!(found, (*expected, *able, *limited), "{behavior:?} at {second} from {current}");
            let is_limited = settled.limited.1 != WITHIN;
            assert_eq!(settled.limited.0, is_limited, "{behavior:?} at {second}");
            if settled.replicas != current {
                past.asked = Some(Rescale { from: current, to: settled.replicas, at: at(*second), why: String::new() });
            }
            current = settled.replicas;
        }
    }

    const OK: &str = "ReadyForNewScale";
    const DOWN: &str = "ScaleDownStabilized";
    const UP: &str = "ScaleUpStabilized";
    const IN: &str = "DesiredWithinRange";

    #[test]
    fn without_a_behaviour_it_doubles_and_goes_down_after_five_minutes() {
        check(
            &Value::Null,
            2,
            &[
                (0, 2, 2, OK, IN),
                (15, 9, 4, OK, "ScaleUpLimit"),
                (30, 9, 8, OK, "ScaleUpLimit"),
                (45, 30, 16, OK, "ScaleUpLimit"),
                (60, 30, 20, OK, "TooManyReplicas"),
                (75, 5, 20, DOWN, "TooManyReplicas"),
                // The thirty that were recommended last are over five minutes ago only then.
                (359, 5, 20, DOWN, "TooManyReplicas"),
                (360, 5, 5, OK, IN),
                (375, 1, 5, DOWN, IN),
                (700, 1, 2, OK, "TooFewReplicas"),
            ],
        );
        // Who has just begun takes what there is for recommended.
        check(&Value::Null, 9, &[(0, 3, 9, DOWN, IN), (299, 3, 9, DOWN, IN), (300, 3, 3, OK, IN)]);
    }

    #[test]
    fn policies_say_how_fast_it_goes() {
        let up = |rules: Value| json!({"scaleUp": rules, "scaleDown": {"stabilizationWindowSeconds": 0}});
        let pods = |value: i32, period: i32| json!({"type": "Pods", "value": value, "periodSeconds": period});
        let percent = |value: i32, period: i32| json!({"type": "Percent", "value": value, "periodSeconds": period});
        let both = [pods(4, 60), percent(100, 60)];
        check(
            &up(json!({"policies": both, "selectPolicy": "Max"})),
            2,
            &[
                (0, 20, 6, OK, "ScaleUpLimit"),
                (15, 20, 6, OK, "ScaleUpLimit"),
                (60, 20, 12, OK, "ScaleUpLimit"),
                (120, 20, 20, OK, IN),
                (135, 21, 20, OK, "TooManyReplicas"),
            ],
        );
        check(
            &up(json!({"policies": both, "selectPolicy": "Min"})),
            2,
            &[(0, 20, 4, OK, "ScaleUpLimit"), (60, 20, 8, OK, "ScaleUpLimit"), (120, 20, 12, OK, "ScaleUpLimit")],
        );
        check(&up(json!({"policies": both, "selectPolicy": "Disabled"})), 2, &[(0, 20, 2, OK, "ScaleUpLimit")]);
        // What grows by less than one grows by one.
        check(&up(json!({"policies": [percent(10, 15)]})), 3, &[(0, 9, 4, OK, "ScaleUpLimit")]);
        // What went in the same time may come back, and what came may go.
        let rules = |most: i32| json!({"policies": [pods(most, 60)], "stabilizationWindowSeconds": 0});
        check(
            &json!({"scaleUp": rules(2), "scaleDown": rules(10)}),
            12,
            &[(0, 4, 4, OK, IN), (15, 20, 14, OK, "ScaleUpLimit"), (30, 2, 2, OK, IN)],
        );
        let down = |rules: Value| json!({"scaleDown": rules, "scaleUp": {"stabilizationWindowSeconds": 0}});
        let both = [pods(2, 60), percent(50, 60)];
        check(
            &down(json!({"policies": both, "stabilizationWindowSeconds": 0})),
            16,
            &[
                (0, 1, 8, OK, "ScaleDownLimit"),
                (30, 1, 8, OK, "ScaleDownLimit"),
                (60, 1, 4, OK, "ScaleDownLimit"),
                (120, 1, 2, OK, "TooFewReplicas"),
            ],
        );
        check(
            &down(json!({"policies": both, "selectPolicy": "Min", "stabilizationWindowSeconds": 0})),
            16,
            &[(0, 1, 14, OK, "ScaleDownLimit"), (60, 14, 14, OK, IN), (75, 1, 12, OK, "ScaleDownLimit")],
        );
        let disabled = json!({"policies": both, "selectPolicy": "Disabled", "stabilizationWindowSeconds": 0});
        check(&down(disabled), 16, &[(0, 1, 16, OK, "ScaleDownLimit")]);
        check(&down(json!({"policies": [percent(10, 15)], "stabilizationWindowSeconds": 0})), 3, &[(0, 2, 2, OK, IN)]);
    }

    #[test]
    fn windows_hold_it_back_either_way() {
        let all = |window_s: i32| {
            json!({"policies": [{"type": "Percent", "value": 1000, "periodSeconds": 15}],
                "stabilizationWindowSeconds": window_s})
        };
        check(
            &json!({"scaleUp": all(60), "scaleDown": all(120)}),
            5,
            &[
                // The least that was recommended in a minute, and the most of two.
                (0, 5, 5, OK, IN),
                (15, 9, 5, UP, IN),
                (45, 12, 5, UP, IN),
                (60, 12, 9, UP, IN),
                (75, 12, 12, OK, IN),
                (105, 3, 12, DOWN, IN),
                (194, 4, 12, DOWN, IN),
                (195, 3, 4, DOWN, IN),
                (400, 3, 3, OK, IN),
            ],
        );
        // What was recommended less a while ago takes nothing away when more is asked for now, and what was recommended more adds
        // nothing when less is.
        check(
            &json!({"scaleUp": all(60), "scaleDown": all(300)}),
            10,
            &[(0, 10, 10, OK, IN), (15, 4, 10, DOWN, IN), (30, 12, 10, UP, IN), (75, 12, 12, OK, IN)],
        );
        let one =
            json!({"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}], "stabilizationWindowSeconds": 0});
        check(
            &json!({"scaleUp": one, "scaleDown": all(300)}),
            5,
            &[(0, 20, 6, OK, "ScaleUpLimit"), (15, 3, 6, DOWN, IN), (75, 3, 6, DOWN, IN)],
        );
        // Where nothing is said of going down, it is five minutes.
        let unsaid = json!({"scaleUp": all(0), "scaleDown": {"policies": all(0)["policies"]}});
        check(&unsaid, 9, &[(0, 3, 9, DOWN, IN), (299, 3, 9, DOWN, IN), (300, 3, 3, OK, IN)]);
    }

    #[test]
    fn a_change_counts_once_it_is_seen() {
        let asked = || Some(Rescale { from: 2, to: 6, at: at(5), why: String::new() });
        for (seen, expected) in [(6, 4), (2, 0), (7, 0)] {
            let mut past = Past { asked: asked(), ..Past::default() };
            past.saw(seen, at(10));
            assert_eq!((within(&past.grown, seconds(60), at(10)), past.asked), (expected, None), "{seen}");
        }
    }
}
