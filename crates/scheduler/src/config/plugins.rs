//! A profile: which plugins run, with which weights and arguments.

use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelectorTerm, TopologySpreadConstraint};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::file;
use super::{ConfigError, wrong};
use crate::profile::{DEFAULT_FILTERS, DEFAULT_WEIGHTS};
use crate::{FitStrategy, Plugin, Profile, SpreadDefaults};

type Checked<T> = Result<T, ConfigError>;

/// Upstream's plugins for what this scheduler does not have; a file may turn them off.
const NOT_HERE: [&str; 3] = [CLAIMS, "GangScheduling", "DeferredPodScheduling"];

/// Upstream's plugin for ResourceClaims, which is on by default there, so that stock files name it. A file may turn it on, too: pods
/// with such claims are refused, in words, and no others have anything to do with it.
const CLAIMS: &str = "DynamicResources";

/// Reads a profile.
pub(super) fn profile(field: &str, file: &file::Profile) -> Checked<Profile> {
    let mut profile = Profile::default();
    if let Some(name) = &file.scheduler_name {
        if name.is_empty() {
            return wrong(&format!("{field}.schedulerName"), "is empty");
        }
        profile.scheduler_name.clone_from(name);
    }
    super::percentage(&format!("{field}.percentageOfNodesToScore"), file.percentage_of_nodes_to_score)?;
    let plugins = &file.plugins;
    let at = |point: &str| format!("{field}.plugins.{point}");
    multi_point(&at("multiPoint"), &plugins.multi_point, &mut profile)?;
    for (point, set) in [("filter", &plugins.filter), ("preFilter", &plugins.pre_filter)] {
        filters(&at(point), set, point == "filter", &mut profile)?;
    }
    scores(&at("score"), &plugins.score, &mut profile)?;
    let post = Switch::read(&at("postFilter"), &plugins.post_filter)?;
    profile.preemption = post.of(Plugin::DefaultPreemption, profile.preemption);
    let gates = Switch::read(&at("preEnqueue"), &plugins.pre_enqueue)?;
    profile.gates = gates.of(Plugin::SchedulingGates, profile.gates);
    for (point, set, needed) in
        [("queueSort", &plugins.queue_sort, Plugin::PrioritySort), ("bind", &plugins.bind, Plugin::DefaultBinder)]
    {
        let switch = Switch::read(&at(point), set)?;
        if !switch.of(needed, true) {
            return wrong(&at(point), format_args!("{needed} cannot be left out: there is no other plugin for it"));
        }
    }
    for (point, set) in [
        ("preScore", &plugins.pre_score),
        ("reserve", &plugins.reserve),
        ("permit", &plugins.permit),
        ("preBind", &plugins.pre_bind),
        ("postBind", &plugins.post_bind),
    ] {
        Switch::read(&at(point), set)?;
    }
    for (at, config) in file.plugin_config.iter().enumerate() {
        if file.plugin_config.iter().take(at).any(|other| other.name == config.name) {
            return wrong(&format!("{field}.pluginConfig[{at}].name"), format_args!("{} is there twice", config.name));
        }
        args(&format!("{field}.pluginConfig[{at}]"), config, &mut profile)?;
    }
    Ok(profile)
}

/// Whether a plugin can be turned on at an extension point. Upstream refuses others (framework/runtime, `updatePluginList`); what only
/// prepares or follows up is not looked at, since it does nothing by itself here.
fn extends(point: &str, plugin: Plugin) -> bool {
    match point {
        "filter" => DEFAULT_FILTERS.contains(&plugin),
        // VolumeBinding scores as well, if it is told to look at what is free.
        "score" => plugin == Plugin::VolumeBinding || DEFAULT_WEIGHTS.iter().any(|(scores, _)| *scores == plugin),
        "postFilter" => plugin == Plugin::DefaultPreemption,
        // DefaultPreemption keeps pods out whose victims are still being deleted.
        "preEnqueue" => matches!(plugin, Plugin::SchedulingGates | Plugin::DefaultPreemption),
        "queueSort" => plugin == Plugin::PrioritySort,
        "bind" => plugin == Plugin::DefaultBinder,
        "permit" | "postBind" => false,
        _ => true,
    }
}

/// Whether upstream's plugin for claims can be turned on at an extension point (`dynamicresources/dynamicresources.go`).
fn claims_extend(point: &str) -> bool {
    !matches!(point, "preScore" | "permit" | "postBind" | "queueSort" | "bind")
}

/// What one extension point turns on and off.
struct Switch {
    enabled: Vec<(Plugin, Option<i64>)>,
    disabled: Vec<Plugin>,
    all_disabled: bool,
}

impl Switch {
    fn read(field: &str, set: &file::PluginSet) -> Checked<Self> {
        let find = |list: &str, name: &str| match Plugin::find(name) {
            Some(plugin) => Ok(plugin),
            None => wrong(&format!("{field}.{list}"), format_args!("there is no plugin {name:?}")),
        };
        let mut enabled: Vec<(Plugin, Option<i64>)> = Vec::new();
        let point = field.rsplit_once('.').map_or(field, |(_, point)| point);
        let mut claims = false;
        for plugin in &set.enabled {
            if plugin.name == CLAIMS {
                if !claims_extend(point) {
                    return wrong(&format!("{field}.enabled"), format_args!("{CLAIMS} does not extend {point}"));
                }
                if std::mem::replace(&mut claims, true) {
                    return wrong(&format!("{field}.enabled"), format_args!("{CLAIMS} is there twice"));
                }
                tracing::warn!(field, "{CLAIMS} does nothing here: pods with resourceClaims are refused by every node");
                continue;
            }
            let id = find("enabled", &plugin.name)?;
            if !extends(point, id) {
                return wrong(&format!("{field}.enabled"), format_args!("{id} does not extend {point}"));
            }
            if enabled.iter().any(|(other, _)| *other == id) {
                return wrong(&format!("{field}.enabled"), format_args!("{id} is there twice"));
            }
            if plugin.weight.is_some_and(|w| !(0..=i64::from(i32::MAX)).contains(&w)) {
                return wrong(&format!("{field}.enabled"), format_args!("{id} has a weight that cannot be"));
            }
            enabled.push((id, plugin.weight.filter(|w| *w != 0)));
        }
        // What is not here is off.
        let named = set.disabled.iter().filter(|p| p.name != "*" && !NOT_HERE.contains(&p.name.as_str()));
        let disabled = named.map(|p| find("disabled", &p.name)).collect::<Result<_, _>>()?;
        Ok(Self { enabled, disabled, all_disabled: set.disabled.iter().any(|p| p.name == "*") })
    }
    fn of(&self, plugin: Plugin, before: bool) -> bool {
        if self.enabled.iter().any(|(enabled, _)| *enabled == plugin) {
            return true;
        }
        before && !self.all_disabled && !self.disabled.contains(&plugin)
    }
}

/// Plugins that score. The weight of one that is turned on by name is 1 where none is given (framework/runtime,
/// `getScoreWeights`).
fn weights(switch: &Switch, profile: &mut Profile) {
    for (plugin, _) in DEFAULT_WEIGHTS {
        match switch.enabled.iter().find(|(enabled, _)| *enabled == plugin) {
            Some((_, weight)) => drop(profile.weights.insert(plugin, weight.unwrap_or(1))),
            None if !switch.of(plugin, true) => drop(profile.weights.remove(&plugin)),
            None => {}
        }
    }
}

fn multi_point(field: &str, set: &file::PluginSet, profile: &mut Profile) -> Checked<()> {
    let switch = Switch::read(field, set)?;
    for plugin in DEFAULT_FILTERS {
        if !switch.of(plugin, true) {
            profile.filters.remove(plugin);
        }
    }
    weights(&switch, profile);
    profile.preemption = switch.of(Plugin::DefaultPreemption, true);
    profile.gates = switch.of(Plugin::SchedulingGates, true);
    for needed in [Plugin::PrioritySort, Plugin::DefaultBinder] {
        if !switch.of(needed, true) {
            return wrong(field, format_args!("{needed} cannot be left out: there is no other plugin for it"));
        }
    }
    Ok(())
}

fn filters(field: &str, set: &file::PluginSet, decides: bool, profile: &mut Profile) -> Checked<()> {
    let switch = Switch::read(field, set)?;
    for plugin in DEFAULT_FILTERS.into_iter().filter(|_| decides) {
        if switch.of(plugin, profile.filters.has(plugin)) {
            profile.filters.insert(plugin);
        } else {
            profile.filters.remove(plugin);
        }
    }
    Ok(())
}

fn scores(field: &str, set: &file::PluginSet, profile: &mut Profile) -> Checked<()> {
    let switch = Switch::read(field, set)?;
    weights(&switch, profile);
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[derive(Default)]
struct FitArgs {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<Strategy>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Strategy {
    r#type: String,
    #[serde(default)]
    resources: Vec<Resource>,
    requested_to_capacity_ratio: Option<Ratio>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratio {
    shape: Vec<Point>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    utilization: i64,
    score: i64,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resource {
    name: String,
    weight: Option<i64>,
}
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BalancedArgs {
    resources: Vec<Resource>,
}
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct SpreadArgs {
    default_constraints: Vec<TopologySpreadConstraint>,
    defaulting_type: Option<String>,
}
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct InterPodAffinityArgs {
    hard_pod_affinity_weight: Option<i64>,
    ignore_preferred_terms_of_existing_pods: bool,
}
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct NodeAffinityArgs {
    added_affinity: Option<NodeAffinity>,
}
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct VolumeBindingArgs {
    bind_timeout_seconds: Option<i64>,
    #[serde(rename = "shape")]
    _shape: Option<Value>,
}
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct ClaimArgs {
    filter_timeout: Option<String>,
    binding_timeout: Option<String>,
}
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct PreemptionArgs {
    min_candidate_nodes_percentage: Option<i64>,
    min_candidate_nodes_absolute: Option<i64>,
}

fn read<T: DeserializeOwned>(field: &str, name: &str, args: &Value) -> Checked<T> {
    let mut args = if args.is_null() { Value::Object(Default::default()) } else { args.clone() };
    if let Some(map) = args.as_object_mut() {
        map.remove("apiVersion");
        let kind = map.remove("kind");
        if kind.as_ref().is_some_and(|kind| *kind != format!("{name}Args")) {
            return wrong(&format!("{field}.args.kind"), format_args!("is not {name}Args"));
        }
    }
    serde_json::from_value(args).or_else(|e| wrong(&format!("{field}.args"), e))
}

/// Arguments of the plugin for claims are checked and not used.
fn claim_args(field: &str, given: &Value) -> Checked<()> {
    let args: ClaimArgs = read(field, CLAIMS, given)?;
    for (name, given) in [("filterTimeout", &args.filter_timeout), ("bindingTimeout", &args.binding_timeout)] {
        super::duration(&format!("{field}.args.{name}"), given.as_deref(), 0)?;
    }
    Ok(())
}

fn args(field: &str, config: &file::PluginConfig, profile: &mut Profile) -> Checked<()> {
    if config.name == CLAIMS {
        return claim_args(field, &config.args);
    }
    let Some(plugin) = Plugin::find(&config.name) else {
        return wrong(&format!("{field}.name"), format_args!("there is no plugin {:?}", config.name));
    };
    let (name, given) = (plugin.name(), &config.args);
    match plugin {
        Plugin::NodeResourcesFit => fit_args(field, read(field, name, given)?, profile)?,
        Plugin::NodeResourcesBalancedAllocation => {
            let args: BalancedArgs = read(field, name, given)?;
            if !args.resources.is_empty() {
                profile.balanced_resources = resources(field, args.resources)?;
            }
        }
        Plugin::PodTopologySpread => {
            let args: SpreadArgs = read(field, name, given)?;
            profile.spread_defaults = match args.defaulting_type.as_deref() {
                Some("List") => {
                    default_constraints(&format!("{field}.args.defaultConstraints"), &args.default_constraints)?;
                    SpreadDefaults::List(args.default_constraints)
                }
                None | Some("System") if args.default_constraints.is_empty() => SpreadDefaults::System,
                None | Some("System") => {
                    return wrong(&format!("{field}.args.defaultConstraints"), "needs defaultingType List");
                }
                Some(other) => {
                    return wrong(
                        &format!("{field}.args.defaultingType"),
                        format_args!("{other:?} is not List or System"),
                    );
                }
            };
        }
        Plugin::InterPodAffinity => {
            let args: InterPodAffinityArgs = read(field, name, given)?;
            let weight = args.hard_pod_affinity_weight.unwrap_or(1);
            if !(0..=100).contains(&weight) {
                return wrong(&format!("{field}.args.hardPodAffinityWeight"), "is not between 0 and 100");
            }
            profile.hard_pod_affinity_weight = weight;
            profile.ignore_preferred_of_existing = args.ignore_preferred_terms_of_existing_pods;
        }
        Plugin::NodeAffinity => {
            let args: NodeAffinityArgs = read(field, name, given)?;
            if let Some(affinity) = &args.added_affinity {
                added_affinity(&format!("{field}.args.addedAffinity"), affinity)?;
            }
            profile.added_affinity = args.added_affinity;
        }
        Plugin::VolumeBinding => {
            let args: VolumeBindingArgs = read(field, name, given)?;
            profile.bind_timeout = match args.bind_timeout_seconds.map(u64::try_from) {
                None => profile.bind_timeout,
                Some(Ok(s)) => Duration::from_secs(s),
                Some(Err(_)) => return wrong(&format!("{field}.args.bindTimeoutSeconds"), "is below 0"),
            };
        }
        Plugin::DefaultPreemption => {
            // All nodes are candidates; how many upstream would look at is checked and not used.
            let args: PreemptionArgs = read(field, name, given)?;
            if args.min_candidate_nodes_percentage.is_some_and(|p| !(0..=100).contains(&p)) {
                return wrong(&format!("{field}.args.minCandidateNodesPercentage"), "is not between 0 and 100");
            }
            if args.min_candidate_nodes_absolute.is_some_and(|n| n < 0) {
                return wrong(&format!("{field}.args.minCandidateNodesAbsolute"), "is below 0");
            }
            if (args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute) == (Some(0), Some(0)) {
                let what = "minCandidateNodesPercentage and minCandidateNodesAbsolute cannot both be 0";
                return wrong(&format!("{field}.args"), what);
            }
        }
        _ => return wrong(&format!("{field}.name"), format_args!("{plugin} takes no arguments")),
    }
    Ok(())
}

/// Affinity for every pod (apis/config/validation, `ValidateNodeAffinityArgs`): with a requirement that no node can meet, no pod would
/// ever have a node.
fn added_affinity(field: &str, affinity: &NodeAffinity) -> Checked<()> {
    let required = affinity.required_during_scheduling_ignored_during_execution.iter();
    let required = required.flat_map(|selector| &selector.node_selector_terms);
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
    required.chain(preferred.map(|term| &term.preference)).try_for_each(|term| node_term(field, term))
}

fn node_term(field: &str, term: &NodeSelectorTerm) -> Checked<()> {
    for (list, of_fields) in [(&term.match_expressions, false), (&term.match_fields, true)] {
        for asked in list.iter().flatten() {
            let values = asked.values.as_deref().unwrap_or_default();
            let is_good = match &*asked.operator {
                "In" | "NotIn" if of_fields => asked.key == "metadata.name" && values.len() == 1,
                "In" | "NotIn" => !values.is_empty(),
                "Exists" | "DoesNotExist" => !of_fields && values.is_empty(),
                "Gt" | "Lt" => !of_fields && matches!(values, [value] if value.parse::<i64>().is_ok()),
                _ => false,
            };
            if !is_good {
                let (key, operator) = (&asked.key, &asked.operator);
                return wrong(field, format_args!("{key} {operator} {values:?} is nothing that a node can be asked"));
            }
        }
    }
    Ok(())
}

/// Constraints for pods that have none: what they count is deduced for each pod (apis/config/validation,
/// `ValidatePodTopologySpreadArgs`).
fn default_constraints(field: &str, list: &[TopologySpreadConstraint]) -> Checked<()> {
    for (at, constraint) in list.iter().enumerate() {
        let at_field = |name: &str| format!("{field}[{at}].{name}");
        let same = |other: &TopologySpreadConstraint| {
            (&other.topology_key, &other.when_unsatisfiable)
                == (&constraint.topology_key, &constraint.when_unsatisfiable)
        };
        if constraint.max_skew <= 0 {
            return wrong(&at_field("maxSkew"), "must be greater than 0");
        }
        if constraint.topology_key.is_empty() {
            return wrong(&at_field("topologyKey"), "is empty");
        }
        if !matches!(constraint.when_unsatisfiable.as_str(), "DoNotSchedule" | "ScheduleAnyway") {
            return wrong(&at_field("whenUnsatisfiable"), "is not DoNotSchedule or ScheduleAnyway");
        }
        if constraint.label_selector.is_some() {
            return wrong(&at_field("labelSelector"), "must not be there: it is deduced for each pod");
        }
        if list.iter().take(at).any(same) {
            return wrong(&format!("{field}[{at}]"), "has the topologyKey and the whenUnsatisfiable of another one");
        }
    }
    Ok(())
}

fn fit_args(field: &str, args: FitArgs, profile: &mut Profile) -> Checked<()> {
    if let Some(group) = args.ignored_resource_groups.iter().find(|group| group.contains('/')) {
        let what = format!("{group:?} is a part of a resource's name, without a slash");
        return wrong(&format!("{field}.args.ignoredResourceGroups"), what);
    }
    profile.ignored_resources = args.ignored_resources;
    profile.ignored_groups = args.ignored_resource_groups;
    let Some(strategy) = args.scoring_strategy else { return Ok(()) };
    let at = format!("{field}.args.scoringStrategy");
    profile.fit_strategy = match (&*strategy.r#type, strategy.requested_to_capacity_ratio) {
        ("LeastAllocated", _) => FitStrategy::LeastAllocated,
        ("MostAllocated", _) => FitStrategy::MostAllocated,
        ("RequestedToCapacityRatio", Some(ratio)) => {
            let points: Vec<(i64, i64)> = ratio.shape.iter().map(|p| (p.utilization, p.score)).collect();
            let within = points.iter().all(|(x, y)| (0..=100).contains(x) && (0..=10).contains(y));
            let rising = points.windows(2).all(|pair| matches!(pair, [a, b] if a.0 < b.0));
            if points.is_empty() || !within || !rising {
                let what = "needs points with rising utilization from 0 to 100 and scores from 0 to 10";
                return wrong(&format!("{at}.requestedToCapacityRatio.shape"), what);
            }
            FitStrategy::RequestedToCapacityRatio(points)
        }
        ("RequestedToCapacityRatio", None) => return wrong(&at, "requestedToCapacityRatio is missing"),
        (other, _) => return wrong(&format!("{at}.type"), format_args!("there is no strategy {other:?}")),
    };
    if !strategy.resources.is_empty() {
        profile.fit_resources = resources(&at, strategy.resources)?;
    }
    Ok(())
}

fn resources(field: &str, list: Vec<Resource>) -> Checked<Vec<(String, i64)>> {
    list.into_iter()
        .map(|r| match r.weight.filter(|weight| *weight != 0).unwrap_or(1) {
            weight @ 1..=100 => Ok((r.name, weight)),
            weight => {
                wrong(&format!("{field}.resources"), format_args!("{}: {weight} is not between 1 and 100", r.name))
            }
        })
        .collect()
}
