use super::*;
use crate::{FitStrategy, Plugin};

fn parse(rest: &str) -> Result<Config, ConfigError> {
    let text = format!("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n{rest}");
    Config::parse(&text, |file| Err(format!("{file}: not here")))
}

#[test]
fn a_configuration_of_upstreams_manual() {
    let config = parse(
        "leaderElection: {leaderElect: false}
podMaxBackoffSeconds: 20
profiles:
- schedulerName: packed
  plugins:
    score:
      disabled: [{name: ImageLocality}]
      enabled: [{name: NodeResourcesFit, weight: 7}]
    multiPoint:
      disabled: [{name: NodePorts}]
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      scoringStrategy:
        type: MostAllocated
        resources: [{name: nvidia.com/gpu, weight: 3}]
- schedulerName: default-scheduler
extenders:
- urlPrefix: http://127.0.0.1:3456/scheduler/
  filterVerb: predicates
  httpTimeout: 1m30s
  nodeCacheCapable: true
  managedResources: [{name: tencent.com/vcuda-core, ignoredByScheduler: true}]
",
    )
    .expect("it is good");
    let [packed, default] = &config.profiles[..] else { panic!("two profiles") };
    assert_eq!((packed.scheduler_name.as_str(), default.scheduler_name.as_str()), ("packed", "default-scheduler"));
    assert_eq!(packed.fit_strategy, FitStrategy::MostAllocated);
    assert_eq!(packed.fit_resources, [("nvidia.com/gpu".to_owned(), 3)]);
    assert_eq!((packed.weight(Plugin::NodeResourcesFit), packed.weight(Plugin::ImageLocality)), (7, 0));
    assert!(!packed.filters.has(Plugin::NodePorts) && default.filters.has(Plugin::NodePorts));
    assert_eq!(default.ignored_resources, ["tencent.com/vcuda-core"]);
    assert!(!config.leader_elect);
    assert_eq!(config.patience.max_backoff, Duration::from_secs(20));
    let extender = &config.extenders[0];
    assert_eq!(
        (extender.url_prefix.as_str(), extender.timeout),
        ("http://127.0.0.1:3456/scheduler", Duration::from_secs(90))
    );
}

/// What is wrong is named.
fn refused(rest: &str, part: &str) {
    match parse(rest) {
        Ok(_) => panic!("accepted: {rest}"),
        Err(error) => assert!(error.to_string().contains(part), "{rest}: {error}"),
    }
}

#[test]
fn what_is_wrong_is_named() {
    refused("wrong: 1", "wrong");
    refused("podMaxBackoffSeconds: 0", "podMaxBackoffSeconds");
    refused("parallelism: 0", "parallelism");
    refused("clientConnection: {wrong: 1}", "wrong");
    refused("leaderElection: {resourceLock: endpoints}", "leaderElection.resourceLock");
    refused("leaderElection: {leaseDuration: soon}", "leaderElection.leaseDuration");
    refused("leaderElection: {retryPeriod: -2s}", "leaderElection.retryPeriod");
    refused("leaderElection: {leaseDuration: 9s}", "at least the renewDeadline");
    refused("leaderElection: {leaseDuration: 20s, renewDeadline: 20.5s}", "at least the renewDeadline");
    refused("profiles: [{percentageOfNodesToScore: 101}]", "profiles[0].percentageOfNodesToScore");
    for name in ["Nothing", "GangScheduling", "Extender"] {
        let enabled = format!("profiles: [{{plugins: {{filter: {{enabled: [{{name: {name}}}]}}}}}}]");
        refused(&enabled, &format!("no plugin {name:?}"));
    }
    refused("profiles: [{pluginConfig: [{name: VolumeBinding}, {name: VolumeBinding}]}]", "pluginConfig[1].name");
    let args =
        |plugin: &str, args: &str| format!("profiles: [{{pluginConfig: [{{name: {plugin}, args: {{{args}}}}}]}}]");
    let point =
        |point: &str, plugin: &str| format!("profiles: [{{plugins: {{{point}: {{enabled: [{{name: {plugin}}}]}}}}}}]");
    refused(&point("score", "NodeName"), "profiles[0].plugins.score.enabled: NodeName does not extend score");
    refused(&point("filter", "ImageLocality"), "ImageLocality does not extend filter");
    refused(&point("postFilter", "NodePorts"), "does not extend postFilter");
    refused(&point("preEnqueue", "NodeName"), "does not extend preEnqueue");
    refused(&point("queueSort", "NodeAffinity"), "does not extend queueSort");
    refused(&point("bind", "VolumeBinding"), "does not extend bind");
    refused(&point("permit", "NodeResourcesFit"), "does not extend permit");
    refused(&point("bind", "DynamicResources"), "plugins.bind.enabled: DynamicResources does not extend bind");
    let twice = "profiles: [{plugins: {filter: {enabled: [{name: DynamicResources}, {name: DynamicResources}]}}}]";
    refused(twice, "DynamicResources is there twice");
    refused(&args("DynamicResources", "filterTimeout: soon"), "pluginConfig[0].args.filterTimeout");
    refused(&args("DynamicResources", "wrong: 1"), "wrong");
    for (extended, plugin) in [
        ("preEnqueue", "DefaultPreemption"),
        ("score", "VolumeBinding"),
        ("multiPoint", "ImageLocality"),
        ("filter", "NodeDeclaredFeatures"),
    ] {
        assert!(parse(&point(extended, plugin)).is_ok(), "{plugin} extends {extended}");
    }
    let added = |asked: &str| {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let terms = format!("{{nodeSelectorTerms: [{{matchExpressions: [{asked}]}}]}}");
        args("NodeAffinity", &format!("addedAffinity: {{{required}: {terms}}}"))
    };
    refused(&added("{key: a, operator: Is, values: [b]}"), "args.addedAffinity: a Is [\"b\"]");
    refused(&added("{key: a, operator: In}"), "addedAffinity");
    refused(&added("{key: a, operator: Gt, values: [many]}"), "addedAffinity");
    assert!(parse(&added("{key: a, operator: Gt, values: ['1']}, {key: b, operator: Exists}")).is_ok());
    let none = "minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0";
    refused(&args("DefaultPreemption", none), "cannot both be 0");
    refused(&args("NodeResourcesFit", "ignoredResourceGroups: [example.com/x]"), "ignoredResourceGroups");
    let spread = |constraints: &str| {
        args("PodTopologySpread", &format!("defaultingType: List, defaultConstraints: [{constraints}]"))
    };
    let zone = "topologyKey: zone, whenUnsatisfiable: ScheduleAnyway";
    refused(&spread(&format!("{{{zone}, maxSkew: 0}}")), "defaultConstraints[0].maxSkew");
    refused(&spread(&format!("{{{zone}, maxSkew: 1, labelSelector: {{}}}}")), "labelSelector");
    refused(&spread("{topologyKey: zone, whenUnsatisfiable: Never, maxSkew: 1}"), "whenUnsatisfiable");
    refused(&spread("{topologyKey: '', whenUnsatisfiable: DoNotSchedule, maxSkew: 1}"), "topologyKey");
    refused(&spread(&format!("{{{zone}, maxSkew: 1}}, {{{zone}, maxSkew: 2}}")), "defaultConstraints[1]");
    refused("profiles: [{plugins: {filter: {enabled: [{name: Nonsense}]}}}]", "no plugin \"Nonsense\"");
    refused("profiles: [{pluginConfig: [{name: Nonsense}]}]", "profiles[0].pluginConfig[0].name");
    refused("profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {wrong: 1}}]}]", "wrong");
    refused("profiles: [{pluginConfig: [{name: NodeName}]}]", "takes no arguments");
    refused("profiles: [{schedulerName: a}, {schedulerName: a}]", "twice");
    refused("profiles: [{plugins: {bind: {disabled: [{name: '*'}]}}}]", "DefaultBinder");
    refused("extenders: [{urlPrefix: 'ftp://x', filterVerb: f}]", "urlPrefix");
    refused("extenders: [{urlPrefix: 'http://x'}]", "no verb");
    refused("extenders: [{urlPrefix: 'http://x', filterVerb: f, httpTimeout: 5}]", "httpTimeout");
    refused("extenders: [{urlPrefix: 'http://x', filterVerb: f, managedResources: [{name: cpu}]}]", "managedResources");
    refused("extenders: [{urlPrefix: 'https://x', filterVerb: f, tlsConfig: {caFile: /ca}}]", "/ca: not here");
    refused(
        "extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y', bindVerb: b}]",
        "only one of them",
    );
    let shape = "shape: [{utilization: 50, score: 1}, {utilization: 50, score: 2}]";
    refused(
        &format!(
            "profiles: [{{pluginConfig: [{{name: NodeResourcesFit, args: {{scoringStrategy: {{type: RequestedToCapacityRatio, requestedToCapacityRatio: {{{shape}}}}}}}}}]}}]"
        ),
        "rising utilization",
    );
    let other =
        Config::parse("apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration", |_| {
            Err(String::new())
        });
    assert!(other.is_err_and(|e| e.to_string().contains("v1beta3")));
}

#[test]
fn no_time_is_the_default_time() {
    let ms = Duration::from_millis;
    let timeout = |text: &str| {
        let config = parse(&format!("extenders: [{{urlPrefix: 'http://x', filterVerb: f, httpTimeout: {text}}}]"));
        config.expect("it is good").extenders[0].timeout
    };
    assert_eq!((timeout("1.5s"), timeout("0s")), (ms(1500), ms(5000)));
}

/// Whether a scheduler takes part in an election, and by which Lease.
#[test]
fn who_is_elected_by_which_lease() {
    let lease = |rest: &str| {
        let config = parse(rest).expect("it is good");
        (config.leader_elect, config.lease.1)
    };
    let second = "profiles: [{schedulerName: second}]\n";
    for (rest, elects, name) in [
        ("", true, "kube-scheduler"),
        ("leaderElection: {}", true, "kube-scheduler"),
        ("leaderElection: {leaderElect: false}", false, "kube-scheduler"),
        ("profiles: [{schedulerName: second}, {schedulerName: default-scheduler}]", true, "kube-scheduler"),
        (second, false, "kube-scheduler"),
        (&format!("{second}leaderElection: {{resourceName: second}}"), true, "second"),
    ] {
        assert_eq!(lease(rest), (elects, name.to_owned()), "{rest}");
    }
    let named = |name: &str| {
        let config = Config::named(name);
        (config.leader_elect, config.lease.1)
    };
    assert_eq!(named("default-scheduler"), (true, "kube-scheduler".to_owned()));
    assert_eq!(named("second"), (false, "second".to_owned()), "no other scheduler has its Lease");
}

/// A plugin that is turned on by name counts once, whatever it counts otherwise; upstream's that are not here may be turned off.
#[test]
fn plugins_are_turned_on_and_off_as_by_upstream() {
    let weight = |plugins: &str| {
        let config = parse(&format!("profiles: [{{plugins: {{{plugins}}}}}]")).expect("it is good");
        config.profiles[0].weight(Plugin::TaintToleration)
    };
    for (plugins, expected) in [
        ("", 3),
        ("score: {enabled: [{name: TaintToleration}]}", 1),
        ("multiPoint: {enabled: [{name: TaintToleration}]}", 1),
        ("multiPoint: {enabled: [{name: TaintToleration, weight: 5}]}", 5),
        ("score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality}]}", 0),
        ("multiPoint: {disabled: [{name: DynamicResources}]}", 3),
        // Stock files name this one.
        ("multiPoint: {enabled: [{name: DynamicResources}, {name: TaintToleration, weight: 5}]}", 5),
        ("filter: {enabled: [{name: DynamicResources}]}, preBind: {enabled: [{name: DynamicResources}]}", 3),
    ] {
        assert_eq!(weight(plugins), expected, "{plugins}");
    }
}

#[test]
fn a_stock_file_may_configure_what_is_not_here() {
    let args = "{apiVersion: kubescheduler.config.k8s.io/v1, kind: DynamicResourcesArgs, filterTimeout: 10s, bindingTimeout: 5m0s}";
    for args in ["{}", args] {
        let rest = format!("profiles: [{{pluginConfig: [{{name: DynamicResources, args: {args}}}]}}]");
        assert_eq!(parse(&rest).map(|config| config.profiles.len()).ok(), Some(1), "{args}");
    }
}

/// A weight of nothing is one that was not given, as upstream's defaults have it.
#[test]
fn resources_without_a_weight_count_once() {
    for weight in ["", ", weight: 0", ", weight: 1"] {
        let config = parse(&format!(
            "profiles: [{{pluginConfig: [
                {{name: NodeResourcesFit, args: {{scoringStrategy: {{type: LeastAllocated, resources: [{{name: a{weight}}}]}}}}}},
                {{name: NodeResourcesBalancedAllocation, args: {{resources: [{{name: a{weight}}}]}}}}]}}]"
        ));
        let profile = &config.expect("it is good").profiles[0];
        let expected = [("a".to_owned(), 1)];
        assert_eq!(
            (&profile.fit_resources[..], &profile.balanced_resources[..]),
            (&expected[..], &expected[..]),
            "{weight:?}"
        );
    }
}
