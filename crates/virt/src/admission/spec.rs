//! A whole instance spec.

use carrack_types::kubevirt::VirtualMachineInstanceSpec;
use carrack_types::kubevirt::others::KubeVirtConfiguration;

use super::{Faults, access, disks, domain, is_dns_label, is_dns_subdomain, is_one_of, networks, placement, volumes};

/// Most search paths of a guest's pod, and most characters of them with the spaces between.
const MAX_SEARCHES: usize = 6;
const MAX_SEARCH_CHARACTERS: usize = 256;

/// Most disks, volumes, interfaces and networks of one guest; upstream's.
const MAX_LIST: usize = 256;

/// What is wrong with a spec that stands at `field` (`spec`, or `spec.template.spec` in a machine).
pub fn check_instance_spec(
    field: &str,
    spec: &VirtualMachineInstanceSpec,
    settings: &KubeVirtConfiguration,
    faults: &mut Faults,
) {
    if !check_lengths(field, spec, faults) {
        // As upstream: the rest of it is not looked at.
        return;
    }
    let host = spec.hostname.as_deref().unwrap_or_default();
    if !host.is_empty() && !is_dns_label(host) {
        let at = format!("{field}.hostname");
        faults.invalid(&at, format!("{at} does not conform to the kubernetes DNS_LABEL rules : {host:?}"));
    }
    let subdomain = spec.subdomain.as_deref().unwrap_or_default();
    if !subdomain.is_empty() && !is_dns_subdomain(subdomain) {
        let at = format!("{field}.subdomain");
        faults.invalid(&at, format!("{at} does not conform to the kubernetes DNS_SUBDOMAIN rules : {subdomain:?}"));
    }
    domain::check(field, &spec.domain, settings, faults);
    networks::check(field, spec, settings, faults);
    disks::check_boot_order(field, spec, faults);
    disks::check(field, spec, faults);
    volumes::check(field, spec, faults);
    access::check_probes(field, spec, faults);
    access::check_credentials(field, spec, faults);
    dns(field, spec, faults);
    placement::check(field, spec, faults);
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        faults.invalid(format!("{field}.terminationGracePeriodSeconds"), "must be greater than or equal to 0");
    }
    let strategies = ["None", "LiveMigrate", "LiveMigrateIfPossible", "External"];
    if !is_one_of(spec.eviction_strategy.as_deref(), &strategies) {
        let (at, given) = (format!("{field}.evictionStrategy"), spec.eviction_strategy.as_deref().unwrap_or_default());
        faults.invalid(&at, format!("{at} is set with an unrecognized option: {given}"));
    }
    if !is_one_of(spec.start_strategy.as_deref(), &["Paused"]) {
        let (at, given) = (format!("{field}.startStrategy"), spec.start_strategy.as_deref().unwrap_or_default());
        faults.invalid(&at, format!("{at} is set with an unrecognized option: {given}"));
    } else if spec.start_strategy.is_some() && spec.liveness_probe.is_some() {
        let (at, probe) = (format!("{field}.startStrategy"), format!("{field}.livenessProbe"));
        let message =
            format!("either {at} or {probe} should be provided.Pausing VMI with LivenessProbe is not supported");
        faults.invalid(&at, message);
    }
    if !is_one_of(spec.architecture.as_deref(), &["", "amd64"]) {
        faults.unsupported(format!("{field}.architecture"), "other architectures than amd64 are not supported");
    }
    for (name, is_asked) in
        [("resourceClaims", !spec.resource_claims.is_empty()), ("utilityVolumes", !spec.utility_volumes.is_empty())]
    {
        if is_asked {
            faults.unsupported(format!("{field}.{name}"), "is not supported");
        }
    }
}

/// Tells which lists are longer than any guest's, and whether none is.
fn check_lengths(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) -> bool {
    let devices = &spec.domain.devices;
    let lists = [
        ("domain.devices.disks", devices.disks.len()),
        ("domain.devices.interfaces", devices.interfaces.len()),
        ("networks", spec.networks.len()),
        ("volumes", spec.volumes.len()),
    ];
    for (list, _) in lists.iter().filter(|(_, length)| *length > MAX_LIST) {
        let at = format!("{field}.{list}");
        faults.invalid(&at, format!("{at} list exceeds the {MAX_LIST} element limit in length"));
    }
    lists.iter().all(|(_, length)| *length <= MAX_LIST)
}

/// What an instance must have besides. The defaults have been filled in.
pub fn check_instance(spec: &VirtualMachineInstanceSpec, settings: &KubeVirtConfiguration, faults: &mut Faults) {
    check_instance_spec("spec", spec, settings, faults);
    domain::check_mandatory("spec", &spec.domain, faults);
}

/// The pod's name resolution; upstream names fields without their path here.
fn dns(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    let policy = spec.dns_policy.as_deref().unwrap_or_default();
    let known = ["", "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    if !known.contains(&policy) {
        let message = format!("DNSPolicy: {policy} is not supported, valid values: {known:?}");
        faults.unsupported(format!("{field}.dnsPolicy"), message);
    }
    let Some(config) = &spec.dns_config else {
        if policy == "None" {
            let message = "must provide `dnsConfig` when `dnsPolicy` is None";
            faults.required(format!("{field}.dnsConfig"), message);
        }
        return;
    };
    let servers = config.nameservers.clone().unwrap_or_default();
    if policy == "None" && servers.is_empty() {
        faults.required("nameservers", "must provide at least one DNS nameserver when `dnsPolicy` is None");
    }
    if servers.len() > 3 {
        faults.invalid("nameservers", format!("must not have more than 3 nameservers: {servers:?}"));
    }
    for server in servers {
        if networks::parse_address(&server).is_none() {
            faults.invalid("nameservers", format!("must be valid IP address: {server}"));
        }
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > MAX_SEARCHES {
        faults.invalid("searchDomains", format!("must not have more than {MAX_SEARCHES} search paths"));
    }
    if searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        let message =
            format!("must not have more than {MAX_SEARCH_CHARACTERS} characters (including spaces) in the search list");
        faults.invalid("searchDomains", message);
    }
    for domain in searches {
        if !is_dns_subdomain(domain) {
            faults.invalid("searchDomains", format!("{domain:?} is no DNS subdomain (RFC 1123)"));
        }
    }
    if config.options.iter().flatten().any(|option| option.name.as_deref().unwrap_or_default().is_empty()) {
        faults.invalid("options", "Option.Name must not be empty");
    }
}
