//! Which paths a resource has, and what can be done at each. Both follow from its row, by which requests are answered.
//!
//! ```text
//!   /apis/apps/v1/deployments                                      the kind in all namespaces
//!   /apis/apps/v1/namespaces/{namespace}/deployments               in one, or the whole of a kind without any
//!   /apis/apps/v1/namespaces/{namespace}/deployments/{name}        an object
//!   /apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale  a subresource
//!   /api/v1/namespaces/{namespace}/pods/{name}/proxy/{path}        what lies behind one
//!   /apis/apps/v1/watch/...                                        the first three, as they were watched once
//! ```
//!
//! Names of actions and ids are upstream's: `k8s.io/apiserver/pkg/endpoints/installer.go` and `openapi/openapi.go`, for
//! custom resources `k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder/builder.go`.

use serde_json::{Map, Value, json};

use super::components::{META, list_name, schema_name, subresource_name};
use super::parameters::{self, Parameter};
use crate::table::{ResourceInfo, Subresource, Version};

/// A path, and what can be done there: something, always.
pub(super) struct Path<'a> {
    /// With what stands for names in braces.
    pub path: String,
    pub operations: Vec<Operation<'a>>,
}

/// One method of a path.
pub(super) struct Operation<'a> {
    /// In small letters.
    pub method: &'static str,
    /// What upstream calls it (`x-kubernetes-action`).
    pub action: &'static str,
    pub id: String,
    /// `apps_v1`: what clients' code is sorted by.
    pub tag: String,
    /// Group, version and kind that it is about.
    pub kind: [&'a str; 3],
    /// Of the query.
    pub parameters: &'static [Parameter],
    pub request: Option<Request>,
    pub response: Content,
    /// Codes of success, each with its name.
    pub codes: &'static [(&'static str, &'static str)],
}

/// A body that is sent.
pub(super) struct Request {
    pub content: Content,
    pub required: bool,
}

/// What a body holds.
pub(super) struct Content {
    pub media_types: &'static [&'static str],
    /// The name of its schema; none for a text.
    pub schema: Option<String>,
}

impl Path<'_> {
    /// The names in braces, in the order of the alphabet.
    fn names(&self) -> Vec<&str> {
        let parts = self.path.split('{').skip(1);
        let mut names: Vec<&str> = parts.filter_map(|part| Some(part.split_once('}')?.0)).collect();
        names.sort_unstable();
        names
    }

    /// What a document says of it, of whatever version: `operation` and `parameter` are how that writes them.
    /// Parameters of the query stand with each operation, also where all have them: there clients look for them.
    pub(super) fn describe(
        &self,
        operation: fn(&Operation<'_>) -> Value,
        parameter: fn(&str, &str, &str) -> Value,
    ) -> Value {
        let mut item: Map<String, Value> =
            self.operations.iter().map(|found| (found.method.to_owned(), operation(found))).collect();
        let mut names: Vec<Value> = self.names().into_iter().map(|name| parameter("path", name, "string")).collect();
        if !names.is_empty() {
            names.iter_mut().for_each(|name| name["required"] = true.into());
            item.insert("parameters".to_owned(), names.into());
        }
        item.into()
    }
}

impl Content {
    /// Its schema in a document that keeps schemas below a prefix.
    pub(super) fn schema(&self, prefix: &str) -> Value {
        match &self.schema {
            Some(name) => json!({"$ref": format!("{prefix}{name}")}),
            None => json!({"type": "string"}),
        }
    }
}

impl Operation<'_> {
    /// The answers there are; what they hold is under `key`.
    pub(super) fn responses(&self, key: &str, held: &Value) -> Value {
        let success =
            self.codes.iter().map(|(code, text)| ((*code).to_owned(), json!({"description": text, key: held})));
        success.chain([("401".to_owned(), json!({"description": "Unauthorized"}))]).collect()
    }
}

/// What a verb is over HTTP.
struct Way {
    verb: &'static str,
    method: &'static str,
    action: &'static str,
    /// What ids begin with.
    prefix: &'static str,
    /// What stands in ids behind the version.
    middle: &'static str,
    /// Whether it is about one object.
    on_item: bool,
}

const LIST: Way = Way { verb: "list", method: "get", action: "list", prefix: "list", middle: "", on_item: false };

const WAYS: [Way; 7] = [
    LIST,
    Way { verb: "create", method: "post", action: "post", prefix: "create", ..LIST },
    Way {
        verb: "deletecollection",
        method: "delete",
        action: "deletecollection",
        prefix: "delete",
        middle: "Collection",
        ..LIST
    },
    Way { verb: "get", method: "get", action: "get", prefix: "read", on_item: true, ..LIST },
    Way { verb: "update", method: "put", action: "put", prefix: "replace", on_item: true, ..LIST },
    Way { verb: "patch", method: "patch", action: "patch", prefix: "patch", on_item: true, ..LIST },
    Way { verb: "delete", method: "delete", action: "delete", prefix: "delete", on_item: true, ..LIST },
];

/// What is behind a proxy may be asked so, too.
const PROXIED: [Way; 2] = [Way { verb: "get", method: "head", ..LIST }, Way { verb: "get", method: "options", ..LIST }];

/// Of whatever form.
pub(super) const ANYTHING: &[&str] = &["*/*"];
const OBJECTS: &[&str] = &["application/json", "application/yaml"];
const LISTS: &[&str] = &["application/json", "application/json;stream=watch", "application/yaml"];
const EVENTS: &[&str] = &["application/json", "application/json;stream=watch"];
const TEXT: &[&str] = &["text/plain"];
/// Custom resources take all but the last.
const PATCHES: &[&str] = &[
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// Codes of success by action.
fn codes(action: &str) -> &'static [(&'static str, &'static str)] {
    match action {
        "post" => &[("200", "OK"), ("201", "Created"), ("202", "Accepted")],
        "put" | "patch" => &[("200", "OK"), ("201", "Created")],
        "delete" => &[("200", "OK"), ("202", "Accepted")],
        _ => &[("200", "OK")],
    }
}

/// `/api/v1` or `/apis/apps/v1`.
pub(super) fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// All paths of a resource in one version.
pub(super) fn of<'a>(info: &'a ResourceInfo, version: &'a Version) -> Vec<Path<'a>> {
    let maker = Maker::new(info, version);
    let root = root(&info.group, &version.name);
    let place = if info.namespaced { "namespaces/{namespace}/" } else { "" };
    let plural = &info.plural;
    let item = format!("{root}/{place}{plural}/{{name}}");
    let mut paths = vec![
        Path { path: format!("{root}/{place}{plural}"), operations: maker.own(false) },
        Path { path: item.clone(), operations: maker.own(true) },
    ];
    let everywhere = info.namespaced && info.allows("list");
    if everywhere {
        paths.push(Path { path: format!("{root}/{plural}"), operations: vec![maker.list_everywhere()] });
    }
    // Upstream gives custom resources no such paths.
    if info.allows("list") && info.allows("watch") && !info.is_custom {
        let mut watch = |place: &str, operation| {
            paths.push(Path { path: format!("{root}/watch/{place}"), operations: vec![operation] });
        };
        watch(&format!("{place}{plural}"), maker.watch("watchlist", maker.scope(), "List"));
        watch(&format!("{place}{plural}/{{name}}"), maker.watch("watch", maker.scope(), ""));
        if everywhere {
            watch(plural, maker.watch("watchlist", "", "ListForAllNamespaces"));
        }
    }
    for sub in &version.subresources {
        let path = format!("{item}/{}", sub.name);
        if is_proxy(sub) {
            paths.push(Path { path: format!("{path}/{{path}}"), operations: maker.subresource(sub, "WithPath") });
        }
        paths.push(Path { path, operations: maker.subresource(sub, "") });
    }
    paths.retain(|path| !path.operations.is_empty());
    paths
}

/// What operations are about.
struct Target<'a> {
    schema: String,
    kind: [&'a str; 3],
    /// What ids end with.
    suffix: String,
}

/// Makes the operations of one version of a resource.
struct Maker<'a> {
    info: &'a ResourceInfo,
    version: &'a Version,
    /// `AppsV1`
    group_version: String,
    /// `apps_v1`
    tag: String,
}

impl<'a> Maker<'a> {
    fn new(info: &'a ResourceInfo, version: &'a Version) -> Self {
        let group = match &*info.group {
            "" => "core",
            group => group.strip_suffix(".k8s.io").unwrap_or(group),
        };
        let name = &version.name;
        Maker {
            info,
            version,
            group_version: format!("{}{}", camel(group, true), camel(name, true)),
            tag: format!("{}_{}", camel(group, false), camel(name, false)),
        }
    }

    fn scope(&self) -> &'static str {
        if self.info.namespaced { "Namespaced" } else { "" }
    }

    fn kind(&self) -> [&'a str; 3] {
        [&self.info.group, &self.version.name, &self.info.kind]
    }

    fn id(&self, prefix: &str, middle: &str, scope: &str, suffix: &str) -> String {
        format!("{prefix}{}{middle}{scope}{}{suffix}", self.group_version, self.info.kind)
    }

    /// What can be done with the kind itself.
    fn own(&self, on_item: bool) -> Vec<Operation<'a>> {
        let ways = WAYS.iter().filter(|way| way.on_item == on_item && self.info.allows(way.verb));
        ways.map(|way| self.operation(way, &self.target())).collect()
    }

    fn target(&self) -> Target<'a> {
        Target { schema: schema_name(self.info, self.version), kind: self.kind(), suffix: String::new() }
    }

    fn list_everywhere(&self) -> Operation<'a> {
        let id = self.id("list", "", "", "ForAllNamespaces");
        Operation { id, ..self.operation(&LIST, &self.target()) }
    }

    fn watch(&self, action: &'static str, scope: &str, suffix: &str) -> Operation<'a> {
        Operation {
            method: "get",
            action,
            id: self.id("watch", "", scope, suffix),
            tag: self.tag.clone(),
            kind: self.kind(),
            parameters: parameters::LIST,
            request: None,
            response: Content { media_types: EVENTS, schema: Some(format!("{META}.WatchEvent")) },
            codes: codes(action),
        }
    }

    /// What can be done through a subresource, or behind it.
    fn subresource(&self, sub: &'a Subresource, suffix: &str) -> Vec<Operation<'a>> {
        // Upstream says of all paths of custom resources that they are about their kind.
        let kind = if self.info.is_custom { self.kind() } else { [&*sub.group, &*sub.version, &*sub.kind] };
        let target = Target {
            schema: subresource_name(self.info, self.version, sub),
            kind,
            suffix: format!("{}{suffix}", camel(&sub.name, true)),
        };
        let more: &[Way] = if is_proxy(sub) { &PROXIED } else { &[] };
        let ways = WAYS.iter().chain(more).filter(|way| sub.verbs.iter().any(|verb| verb == way.verb));
        ways.map(|way| match &*sub.name {
            _ if sub.connects() => self.connection(way, sub, &target),
            "log" => Operation {
                parameters: parameters::LOG,
                response: Content { media_types: TEXT, schema: None },
                ..self.operation(way, &target)
            },
            _ => self.operation(way, &target),
        })
        .collect()
    }

    /// What is carried on to somebody else.
    fn connection(&self, way: &Way, sub: &Subresource, target: &Target<'a>) -> Operation<'a> {
        Operation {
            method: way.method,
            action: "connect",
            id: self.id("connect", &camel(way.method, true), self.scope(), &target.suffix),
            tag: self.tag.clone(),
            kind: target.kind,
            parameters: parameters::of_connection(&sub.kind),
            request: None,
            response: Content { media_types: ANYTHING, schema: None },
            codes: codes("connect"),
        }
    }

    /// What is done with objects.
    fn operation(&self, way: &Way, target: &Target<'a>) -> Operation<'a> {
        let shared = |name: &str| Some(format!("{META}.{name}"));
        let sent = if self.info.is_custom { OBJECTS } else { ANYTHING };
        // Custom resources have no strategic merge.
        let general = PATCHES.split_last().map_or(PATCHES, |(_, general)| general);
        let patches = if self.info.is_custom { general } else { PATCHES };
        let object = || Some(target.schema.clone());
        let (request, response) = match way.action {
            "list" => (None, Some(list_name(self.info, self.version))),
            "post" | "put" => (Some((sent, object(), true)), object()),
            "patch" => (Some((patches, shared("Patch"), true)), object()),
            "delete" | "deletecollection" => (Some((sent, shared("DeleteOptions"), false)), shared("Status")),
            _ => (None, object()),
        };
        Operation {
            method: way.method,
            action: way.action,
            id: self.id(way.prefix, way.middle, self.scope(), &target.suffix),
            tag: self.tag.clone(),
            kind: target.kind,
            parameters: parameters::of_action(way.action),
            request: request
                .map(|(media_types, schema, required)| Request { content: Content { media_types, schema }, required }),
            response: Content { media_types: if way.action == "list" { LISTS } else { OBJECTS }, schema: response },
            codes: codes(way.action),
        }
    }
}

fn is_proxy(sub: &Subresource) -> bool {
    sub.connects() && sub.name == "proxy"
}

/// A text as a part of an id: letters and digits, each word with a capital, the first one only where it is wanted.
fn camel(text: &str, mut capital: bool) -> String {
    let mut out = String::new();
    for (at, c) in text.char_indices() {
        if !(c.is_alphabetic() || c == '_' || (at != 0 && c.is_ascii_digit())) {
            capital = true;
        } else if std::mem::take(&mut capital) {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}
