//! Priority and fairness: which level a request belongs to, and whether it is served now.
//!
//! FlowSchemas say which priority level a request has, PriorityLevelConfigurations what the level is
//! given; both are objects that are followed, and there from the start with upstream's values. The
//! deciding part is [`seats`]; requests wait in the HTTPS shell. Requests of roles in the same process
//! do not pass here. Every other one has a seat while its body is read and its answer is made; what goes on after that (a
//! watch's events, a stream) has none. <https://kubernetes.io/docs/concepts/cluster-administration/flow-control/>

pub(crate) mod dump;
mod objects;
pub mod seats;

use std::collections::BTreeMap;

use carrack_auth::Caller;
use carrack_engine::fnv1a;
use carrack_store::Entry;
use serde_json::Value;

use crate::follow::Fold;
use crate::keys;
use crate::object::{Object, at, meta_str, name, str_at};
use crate::route::{Asked, RequestInfo};
use crate::server::ApiServer;
use crate::status::Status;
use crate::stored;

pub(crate) use objects::{bootstrap, fixed_fault, mended, truth};
use seats::LevelConfig;

pub(crate) const GROUP: &str = "flowcontrol.apiserver.k8s.io";
pub(crate) const SCHEMAS: &str = "flowschemas";
pub(crate) const LEVELS: &str = "prioritylevelconfigurations";
/// The level of what no schema is for.
const LAST: &str = "catch-all";

/// What becomes of a request: its class, and the levels if they have changed since they were last told.
pub struct Classified {
    /// Where it belongs.
    pub class: Class,
    /// The levels' generation, and what each level is given.
    pub levels: Option<(u64, BTreeMap<String, LevelConfig>)>,
}

impl ApiServer {
    /// Where a request belongs; none when it needs no seat. `seen` is the generation of the levels that the
    /// caller knows, `total` how many seats there are.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn classify(
        &self,
        caller: &Caller,
        method: &http::Method,
        uri: &http::Uri,
        seen: u64,
        total: usize,
    ) -> Result<Option<Classified>, Status> {
        self.classify_read(caller, &Asked::of(method, uri).info, seen, total).await
    }

    /// The same of a request whose head has been read.
    pub(crate) async fn classify_read(
        &self,
        caller: &Caller,
        info: &RequestInfo,
        seen: u64,
        total: usize,
    ) -> Result<Option<Classified>, Status> {
        self.inner
            .with_flow(|fold| {
                let levels = (fold.generation != seen).then(|| (fold.generation, fold.levels(total)));
                fold.classify(caller, info).map(|class| Classified { class, levels })
            })
            .await
    }
}

/// Where a request belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The priority level's name.
    pub level: String,
    /// The schema's name.
    pub schema: String,
    /// UID of the schema, which replies name.
    pub schema_uid: String,
    /// UID of the level, which replies name too.
    pub level_uid: String,
    /// Whose request it is, by what the schema tells its flows apart by; empty where it does not.
    pub distinguisher: String,
    /// A hash of that, within the schema.
    pub flow: u64,
}

/// Follows the objects.
#[derive(Default)]
pub(crate) struct FlowFold {
    schemas: BTreeMap<String, Object>,
    levels: BTreeMap<String, Object>,
    /// The schemas' keys, in the order in which they are tried.
    order: Vec<String>,
    /// Counts changes.
    pub generation: u64,
}

impl FlowFold {
    pub(crate) fn prefixes() -> Vec<String> {
        vec![keys::of(GROUP, SCHEMAS, None), keys::of(GROUP, LEVELS, None)]
    }

    /// Which schema and level a request has. A schema whose level is not there is passed over, and what nothing else is for
    /// belongs to the last level of all; none while that is not there either.
    pub(crate) fn classify(&self, caller: &Caller, info: &RequestInfo) -> Option<Class> {
        let level = |level_name: &str| self.levels.values().find(|level| name(level) == level_name);
        let schemas = self.order.iter().filter_map(|key| self.schemas.get(key));
        let mut matching = schemas.filter(|schema| matches(schema, caller, info));
        let Some((schema, level)) = matching.find_map(|schema| Some((schema, level(level_of(schema))?))) else {
            return level(LAST).map(|level| Class {
                level: LAST.to_owned(),
                schema: LAST.to_owned(),
                schema_uid: String::new(),
                level_uid: meta_str(level, "uid").to_owned(),
                distinguisher: String::new(),
                flow: hash(&[LAST]),
            });
        };
        let whose = match str_at(schema, &["spec", "distinguisherMethod", "type"]) {
            "ByUser" => caller.user.as_str(),
            "ByNamespace" => info.resource.as_ref().and_then(|r| r.namespace.as_deref()).unwrap_or_default(),
            _ => "",
        };
        Some(Class {
            level: name(level).to_owned(),
            schema: name(schema).to_owned(),
            schema_uid: meta_str(schema, "uid").to_owned(),
            level_uid: meta_str(level, "uid").to_owned(),
            distinguisher: whose.to_owned(),
            flow: hash(&[name(schema), whose]),
        })
    }

    /// What the levels are given of so many seats.
    pub(crate) fn levels(&self, total: usize) -> BTreeMap<String, LevelConfig> {
        let is_exempt = |level: &Object| str_at(level, &["spec", "type"]) == "Exempt";
        let given = |level: &Object, field: &str| {
            let part = if is_exempt(level) { "exempt" } else { "limited" };
            at(level, &["spec", part, field]).and_then(Value::as_u64)
        };
        let shares = |level: &Object| {
            let default = if is_exempt(level) { 0 } else { 30 };
            given(level, "nominalConcurrencyShares").unwrap_or(default).min(1_000_000)
        };
        let sum: u64 = self.levels.values().map(shares).sum::<u64>().max(1);
        let as_usize = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let part_of = |seats: u64, percent: u64| seats.saturating_mul(percent).saturating_add(50) / 100;
        let config = |level: &Object| {
            let queuing = |field: &str| {
                at(level, &["spec", "limited", "limitResponse", "queuing", field]).and_then(Value::as_u64)
            };
            let queues = str_at(level, &["spec", "limited", "limitResponse", "type"]) == "Queue";
            let nominal = (total as u64 * shares(level)).div_ceil(sum);
            let borrowed = given(level, "borrowingLimitPercent").map_or(total as u64, |most| part_of(nominal, most));
            LevelConfig {
                exempt: is_exempt(level),
                nominal: as_usize(nominal),
                lendable: as_usize(part_of(nominal, given(level, "lendablePercent").unwrap_or(0).min(100))),
                limit: as_usize(nominal.saturating_add(borrowed)),
                queues: if queues { as_usize(queuing("queues").unwrap_or(64).min(1024)) } else { 0 },
                queue_length: as_usize(queuing("queueLengthLimit").unwrap_or(50).min(10_000)),
                hand_size: as_usize(queuing("handSize").unwrap_or(8).min(64)),
            }
        };
        self.levels.values().map(|level| (name(level).to_owned(), config(level))).collect()
    }
}

/// The name of a schema's level.
pub(crate) fn level_of(schema: &Object) -> &str {
    str_at(schema, &["spec", "priorityLevelConfiguration", "name"])
}

impl Fold for FlowFold {
    fn clear(&mut self) {
        *self = FlowFold { generation: self.generation + 1, ..FlowFold::default() };
    }

    fn apply(&mut self, key: &str, entry: Option<&Entry>) {
        let map = if key.starts_with(&keys::of(GROUP, SCHEMAS, None)) { &mut self.schemas } else { &mut self.levels };
        match entry {
            Some(entry) => drop(map.insert(key.to_owned(), stored::parse(entry))),
            None => drop(map.remove(key)),
        }
    }

    fn settle(&mut self) {
        self.generation += 1;
        let precedence =
            |schema: &Object| at(schema, &["spec", "matchingPrecedence"]).and_then(Value::as_i64).unwrap_or(1000);
        let mut order: Vec<(i64, String)> =
            self.schemas.iter().map(|(key, schema)| (precedence(schema), key.clone())).collect();
        order.sort();
        self.order = order.into_iter().map(|(_, key)| key).collect();
    }
}

/// A hash of texts that needs no state and is the same everywhere.
fn hash(texts: &[&str]) -> u64 {
    fnv1a(texts.iter().flat_map(|text| text.bytes().chain([0])))
}

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

/// Whether a list of texts names this, or everything.
fn names(value: &Value, field: &str, what: &str) -> bool {
    items(value, field).filter_map(Value::as_str).any(|item| item == "*" || item == what)
}

fn matches(schema: &Object, caller: &Caller, info: &RequestInfo) -> bool {
    let rules = at(schema, &["spec", "rules"]).and_then(Value::as_array).into_iter().flatten();
    rules.into_iter().any(|rule| {
        items(rule, "subjects").any(|subject| is_subject(subject, caller))
            && match &info.resource {
                Some(_) => items(rule, "resourceRules").any(|rule| matches_resource(rule, info)),
                None => items(rule, "nonResourceRules").any(|rule| matches_path(rule, info)),
            }
    })
}

fn is_subject(subject: &Value, caller: &Caller) -> bool {
    let text = |kind: &str, field: &str| subject[kind][field].as_str().unwrap_or_default();
    match subject["kind"].as_str().unwrap_or_default() {
        "User" => text("user", "name") == "*" || text("user", "name") == caller.user,
        "Group" => text("group", "name") == "*" || caller.in_group(text("group", "name")),
        "ServiceAccount" => {
            let (namespace, name) = (text("serviceAccount", "namespace"), text("serviceAccount", "name"));
            match caller.user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
                Some((own_namespace, own)) => own_namespace == namespace && (name == "*" || own == name),
                None => false,
            }
        }
        _ => false,
    }
}

fn matches_resource(rule: &Value, info: &RequestInfo) -> bool {
    let Some(request) = &info.resource else { return false };
    let is_named = || match request.subresource.as_deref() {
        Some(subresource) => names(rule, "resources", &format!("{}/{subresource}", request.resource)),
        None => names(rule, "resources", &request.resource),
    };
    let place = match request.namespace.as_deref() {
        None => rule["clusterScope"] == Value::Bool(true),
        Some(namespace) => names(rule, "namespaces", namespace),
    };
    place && names(rule, "verbs", info.verb) && names(rule, "apiGroups", &request.group) && is_named()
}

fn matches_path(rule: &Value, info: &RequestInfo) -> bool {
    let fits = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => info.path.starts_with(prefix),
        None => pattern == info.path,
    };
    names(rule, "verbs", info.verb) && items(rule, "nonResourceURLs").filter_map(Value::as_str).any(fits)
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::query::Query;

    #[test]
    fn requests_have_their_level() {
        let mut fold = FlowFold::default();
        for (plural, object) in bootstrap() {
            let object = object.as_object().cloned().expect("an object");
            let key = keys::of(GROUP, plural, None) + name(&object);
            if plural == SCHEMAS {
                fold.schemas.insert(key, object)
            } else {
                fold.levels.insert(key, object)
            };
        }
        fold.settle();
        let lease = "/apis/coordination.k8s.io/v1/namespaces";
        for (caller, method, path, want) in [
            (Caller::new("admin", ["system:masters"]), Method::GET, "/api/v1/pods".to_owned(), "exempt"),
            (Caller::anonymous(), Method::GET, "/readyz".to_owned(), "exempt"),
            (Caller::node("n1"), Method::PUT, "/api/v1/nodes/n1/status".to_owned(), "node-high"),
            (Caller::node("n1"), Method::PUT, format!("{lease}/kube-node-lease/leases/n1"), "node-high"),
            (Caller::node("n1"), Method::GET, "/api/v1/namespaces/a/secrets/s".to_owned(), "system"),
            (
                Caller::new("system:kube-controller-manager", [""; 0]),
                Method::PUT,
                format!("{lease}/kube-system/leases/m"),
                "leader-election",
            ),
            (Caller::new("system:kube-scheduler", [""; 0]), Method::GET, "/api/v1/pods".to_owned(), "workload-high"),
            (Caller::service_account("kube-system", "x", "u"), Method::GET, "/api/v1/pods".to_owned(), "workload-high"),
            (Caller::service_account("a", "x", "u"), Method::GET, "/api/v1/pods".to_owned(), "workload-low"),
            (Caller::new("jane", [""; 0]), Method::GET, "/api/v1/namespaces/a/pods".to_owned(), "global-default"),
            (Caller::new("jane", [""; 0]), Method::GET, "/apis".to_owned(), "global-default"),
        ] {
            let info = RequestInfo::parse(&method, &path, &Query::parse(""));
            let class = fold.classify(&caller, &info).expect("a class");
            assert_eq!(class.level, want, "{} {method} {path}", caller.user);
        }
        // A schema without its level is as good as none, and the last resort needs no schema.
        let jane = || Caller::new("jane", [""; 0]);
        let info = RequestInfo::parse(&Method::GET, "/api/v1/pods", &Query::parse("watch=1"));
        let mut fewer = FlowFold { order: fold.order.clone(), ..FlowFold::default() };
        (fewer.schemas, fewer.levels) = (fold.schemas.clone(), fold.levels.clone());
        fewer.levels.retain(|_, level| name(level) != "global-default");
        assert_eq!(fewer.classify(&jane(), &info).map(|class| class.level).as_deref(), Some("catch-all"));
        fewer.order.clear();
        assert_eq!(fewer.classify(&jane(), &info).map(|class| class.level).as_deref(), Some("catch-all"));
        let levels = fold.levels(600);
        assert!(levels["exempt"].exempt);
        let nominal: usize = levels.values().map(|level| level.nominal).sum();
        assert!((600..610).contains(&nominal), "{nominal}");
        let seats = |level: &str| (levels[level].nominal, levels[level].lendable, levels[level].limit);
        assert_eq!(seats("leader-election"), (25, 0, 625));
    }

    /// What a level is given of a hundred seats, of which another has seven shares: its own, those that it lends, the most.
    #[track_caller]
    fn check_seats(kind: &str, given: Value, want: (usize, usize, usize)) {
        let part = kind.to_lowercase();
        let mut fold = FlowFold::default();
        for (name, spec) in [
            ("own", json!({"type": kind, part: given})),
            ("other", json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 7}})),
        ] {
            let object = json!({"metadata": {"name": name}, "spec": spec});
            fold.levels.insert(name.to_owned(), object.as_object().cloned().expect("an object"));
        }
        let levels = fold.levels(100);
        let own = &levels["own"];
        assert_eq!(own.exempt, kind == "Exempt");
        assert_eq!((own.nominal, own.lendable, own.limit), want, "{given}");
    }

    /// Parts of a seat are rounded, as upstream.
    #[test]
    fn levels_lend_and_borrow_parts_of_their_share() {
        let of = |shares: u64, more: Value| {
            let mut given = more;
            given["nominalConcurrencyShares"] = shares.into();
            given
        };
        check_seats("Limited", of(1, json!({})), (13, 0, 113));
        check_seats("Limited", of(1, json!({"lendablePercent": 50, "borrowingLimitPercent": 0})), (13, 7, 13));
        check_seats("Limited", of(1, json!({"borrowingLimitPercent": 120})), (13, 0, 29));
        check_seats("Limited", of(0, json!({"borrowingLimitPercent": 100})), (0, 0, 0));
        check_seats("Limited", of(0, json!({})), (0, 0, 100));
        check_seats("Exempt", json!({}), (0, 0, 100));
        check_seats("Exempt", of(1, json!({"lendablePercent": 100})), (13, 13, 113));
    }
}
