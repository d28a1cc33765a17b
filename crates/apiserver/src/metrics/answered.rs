//! Answers by what was asked for: how many, how long they took, how long they are.
//!
//! Every request is counted here. So it is looked up once where its answer is counted, and not by all its labels in
//! each of the families.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::SignedDuration;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Bounds, RequestLabels, seconds};

pub(super) const SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
const BYTES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabels {
    code: u32,
    #[prometheus(flatten)]
    request: RequestLabels,
    dry_run: &'static str,
}

/// How an answer was made.
pub(super) struct Took {
    /// In all.
    pub elapsed: SignedDuration,
    /// Without the time that others took.
    pub own: SignedDuration,
    /// How long it is, if that is known.
    pub bytes: Option<usize>,
}

/// The metrics of all answers.
pub(super) struct Answered {
    requests: Family<CodeLabels, Counter>,
    durations: Family<RequestLabels, Histogram, Bounds>,
    own_durations: Family<RequestLabels, Histogram, Bounds>,
    sizes: Family<RequestLabels, Histogram, Bounds>,
    /// Where answers are counted, by their labels in one text. There are as many as the families have entries.
    places: Mutex<BTreeMap<String, Place>>,
}

/// Where the answers to one kind of request are counted. What has not been counted yet is in no family.
#[derive(Default)]
struct Place {
    /// By status code, and by whether nothing was to be changed.
    requests: BTreeMap<(u16, &'static str), Counter>,
    /// In all, and without the time that others took.
    durations: Option<[Histogram; 2]>,
    size: Option<Histogram>,
}

impl Answered {
    pub(super) fn new() -> Self {
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(Bounds(&SECONDS)),
            own_durations: Family::new_with_constructor(Bounds(&SECONDS)),
            sizes: Family::new_with_constructor(Bounds(&BYTES)),
            places: Mutex::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_request",
            "Counter of apiserver requests broken out for each verb, resource and HTTP response code",
            self.requests.clone(),
        );
        registry.register(
            "apiserver_request_duration_seconds",
            "Response latency distribution in seconds for each verb and resource",
            self.durations.clone(),
        );
        registry.register(
            "apiserver_request_sli_duration_seconds",
            "Response latency distribution in seconds for each verb and resource, without the time that webhooks took",
            self.own_durations.clone(),
        );
        registry.register("apiserver_response_sizes", "Response size distribution in bytes", self.sizes.clone());
    }

    /// Counts an answer with this status code; how it was made says something unless it goes on and on.
    pub(super) fn count(&self, labels: &RequestLabels, (code, dry_run): (u16, &'static str), took: Option<Took>) {
        let RequestLabels { verb, group, version, resource, subresource, scope, component: _ } = labels;
        // What tells most apart stands first.
        let key = [resource.as_str(), *verb, subresource.as_str(), *scope, group.as_str(), version.as_str()].join("\0");
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(key).or_default();
        place.requests.entry((code, dry_run)).or_insert_with(|| self.counter(labels, code, dry_run)).inc();
        let Some(took) = took else { return };
        let [durations, own_durations] = place.durations.get_or_insert_with(|| {
            [self.durations.get_or_create_owned(labels), self.own_durations.get_or_create_owned(labels)]
        });
        durations.observe(seconds(took.elapsed));
        own_durations.observe(seconds(took.own));
        if let Some(bytes) = took.bytes {
            place.size.get_or_insert_with(|| self.sizes.get_or_create_owned(labels)).observe(bytes as f64);
        }
    }

    fn counter(&self, labels: &RequestLabels, code: u16, dry_run: &'static str) -> Counter {
        self.requests.get_or_create_owned(&CodeLabels { code: code.into(), request: labels.clone(), dry_run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_a_kind_are_counted_together() {
        let answered = Answered::new();
        let mut registry = Registry::default();
        answered.register(&mut registry);
        let labels = |verb, resource: &str| RequestLabels {
            verb,
            group: String::new(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: String::new(),
            scope: "resource",
            component: "apiserver",
        };
        let (elapsed, own) = (SignedDuration::from_secs(3), SignedDuration::from_secs(1));
        let took = |bytes| Some(Took { elapsed, own, bytes });
        for (verb, resource, code, dry_run, took) in [
            ("GET", "pods", 200, "", took(Some(10))),
            ("GET", "pods", 200, "", took(Some(20))),
            ("GET", "pods", 404, "", took(None)),
            ("PUT", "pods", 200, "All", took(None)),
            ("WATCH", "nodes", 200, "", None),
        ] {
            answered.count(&labels(verb, resource), (code, dry_run), took);
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("memory takes everything");
        let value = |name: &str, verb: &str, more: &str| {
            let lines = text.lines().filter(|line| line.starts_with(name));
            let mut found = lines.filter(|line| line.contains(&format!("verb=\"{verb}\"")) && line.contains(more));
            found.next().and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
        };
        for (name, verb, more, want) in [
            ("apiserver_request_total", "GET", "code=\"200\"", Some("2")),
            ("apiserver_request_total", "GET", "code=\"404\"", Some("1")),
            ("apiserver_request_total", "PUT", "dry_run=\"All\"", Some("1")),
            ("apiserver_request_total", "WATCH", "", Some("1")),
            ("apiserver_request_duration_seconds_sum", "GET", "", Some("9.0")),
            ("apiserver_request_sli_duration_seconds_sum", "GET", "", Some("3.0")),
            ("apiserver_response_sizes_sum", "GET", "", Some("30.0")),
            ("apiserver_response_sizes_sum", "PUT", "", None),
            ("apiserver_request_duration_seconds_sum", "WATCH", "", None),
        ] {
            assert_eq!(value(name, verb, more).as_deref(), want, "{name} {verb} {more}\n{text}");
        }
    }
}
