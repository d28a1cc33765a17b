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
