//! What a pod's failure means, and when enough has succeeded, where a Job says so itself.

use carrack_types::resource::Object as _;
use k8s_openapi::api::batch::v1::{PodFailurePolicyRule, SuccessPolicy};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::super::pods;
use super::indexes::Indexes;

/// What is made of a pod's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It counts.
    Counts,
    /// It does not count.
    Ignored,
    /// Its index has failed.
    FailsIndex,
    /// The Job has failed, for this reason.
    FailsJob(String),
}

/// What the first rule that fits makes of a failed pod.
pub(super) fn meaning(rules: &[PodFailurePolicyRule], pod: &Pod) -> Meaning {
    for (number, rule) in rules.iter().enumerate() {
        let Some(why) = fits(rule, pod) else { continue };
        return match rule.action.as_str() {
            "Ignore" => Meaning::Ignored,
            "FailIndex" => Meaning::FailsIndex,
            "FailJob" => Meaning::FailsJob(format!("{why} matching FailJob rule at index {number}")),
            _ => Meaning::Counts,
        };
    }
    Meaning::Counts
}

/// How a rule fits a pod.
fn fits(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let of_pod = format!("pod {}/{}", pod.namespace(), pod.name());
    if let Some(codes) = &rule.on_exit_codes {
        let status = pod.status.as_ref()?;
        // What the work itself failed of is told before what prepared it.
        let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
        let asked = |c: &&ContainerStatus| codes.container_name.as_ref().is_none_or(|name| *name == c.name);
        return all.filter(asked).find_map(|c| {
            let code = c.state.as_ref()?.terminated.as_ref()?.exit_code;
            let listed = codes.values.contains(&code);
            let holds = code != 0 && if codes.operator == "In" { listed } else { !listed };
            holds.then(|| format!("Container {} for {of_pod} failed with exit code {code}", c.name))
        });
    }
    rule.on_pod_conditions.iter().flatten().find_map(|pattern| {
        let condition = pods::condition(pod, &pattern.type_)?;
        let wanted = pattern.status.as_deref().unwrap_or("True");
        (condition.status == wanted)
            .then(|| format!("Pod {}/{} has condition {}", pod.namespace(), pod.name(), pattern.type_))
    })
}

/// The first rule by which enough indexes have succeeded.
pub(super) fn succeeds(policy: &SuccessPolicy, completed: &Indexes, completions: i32) -> Option<usize> {
    policy.rules.iter().position(|rule| {
        let (all, done) = match &rule.succeeded_indexes {
            Some(text) => {
                let listed = Indexes::parse(text, completions);
                (listed.len(), listed.common(completed))
            }
            None => (completions, completed.len()),
        };
        // Nothing that can be read is nothing that has succeeded.
        all > 0 && done >= rule.succeeded_count.unwrap_or(all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(rules: Value, pod: Value, expected: &Meaning) {
        let parsed: Vec<PodFailurePolicyRule> = serde_json::from_value(rules.clone()).expect("rules");
        let pod: Pod = carrack_types::json::from_value(pod).expect("a pod");
        assert_eq!(meaning(&parsed, &pod), *expected, "{rules}");
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let pod = json!({"metadata": {"namespace": "ns", "name": "p"}, "status": {"phase": "Failed",
            "conditions": [{"type": "DisruptionTarget", "status": "True"}],
            "containerStatuses": [{"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 42}}}]}});
        let codes = |action: &str, operator: &str, values: Value| json!({"action": action, "onExitCodes": {"operator": operator, "values": values}});
        let disrupted =
            json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
        check(json!([]), pod.clone(), &Meaning::Counts);
        check(json!([codes("Ignore", "In", json!([1])), disrupted]), pod.clone(), &Meaning::Ignored);
        check(json!([codes("FailIndex", "NotIn", json!([1]))]), pod.clone(), &Meaning::FailsIndex);
        // What failed in the main container comes before what failed in one that prepared it.
        let mut both = pod.clone();
        both["status"]["initContainerStatuses"] = json!([{"name": "init", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": {"exitCode": 42}}}]);
        let why = "Container main for pod ns/p failed with exit code 42 matching FailJob rule at index 1";
        check(
            json!([codes("Ignore", "In", json!([1])), codes("FailJob", "In", json!([42]))]),
            both,
            &Meaning::FailsJob(why.into()),
        );
    }

    #[test]
    fn some_indexes_can_be_enough() {
        let check = |rules: Value, completed: &[i32], expected| {
            let policy: SuccessPolicy = serde_json::from_value(json!({ "rules": rules })).expect("a policy");
            assert_eq!(succeeds(&policy, &completed.iter().copied().collect(), 5), expected, "{rules}");
        };
        check(json!([{"succeededIndexes": "0,2"}]), &[0], None);
        check(json!([{"succeededIndexes": "0,2"}]), &[0, 2], Some(0));
        check(json!([{"succeededIndexes": "1-3", "succeededCount": 1}]), &[0, 4], None);
        check(json!([{"succeededIndexes": "1-3", "succeededCount": 1}]), &[3], Some(0));
        for nothing in ["5", "a", "", "7-9"] {
            check(json!([{"succeededIndexes": nothing}]), &[0, 1, 2, 3, 4], None);
            check(json!([{"succeededIndexes": nothing, "succeededCount": 0}]), &[], None);
        }
        check(json!([{"succeededIndexes": "4"}, {"succeededCount": 2}]), &[0, 1], Some(1));
    }
}
