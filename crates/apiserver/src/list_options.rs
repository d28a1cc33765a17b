//! `ListOptions` of list, watch and deletecollection requests.
//!
//! The rules on which of them go together are those of
//! `k8s.io/apimachinery/pkg/apis/meta/internalversion/validation`.

use carrack_schema::error::FieldError;
use carrack_schema::table::{ResourceInfo, Version};
use carrack_store::{Entry, Revision};

use crate::query::Query;
use crate::registry::options;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::Status;
use crate::stored;

/// Largest page, whatever a client asks for; larger lists go without a limit or in pages.
pub(crate) const MAX_PAGE: usize = 100_000;

/// Which state of the collection a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtRevision {
    /// The newest.
    Newest,
    /// Any, the newest included.
    Any,
    /// One at least as new as this.
    NotOlderThan(Revision),
    /// Exactly this.
    Exact(Revision),
}

/// What a list or watch asks for.
#[derive(Clone, Debug)]
pub(crate) struct ListOptions {
    pub filter: Filter,
    pub at: AtRevision,
    pub limit: usize,
    pub continue_token: Option<String>,
    pub bookmarks: bool,
    /// Whether a watch begins with what is there: said so, said not to, or left to the revision.
    pub send_initial_events: Option<bool>,
    pub timeout_s: Option<u64>,
}

/// Which objects of the collection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Filter {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Filter {
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether it looks at fields that an object may have in one version and not in another.
    pub(crate) fn is_of_version(&self) -> bool {
        self.fields.paths().any(|path| !matches!(path, "metadata.name" | "metadata.namespace"))
    }

    /// Whether an object is asked for.
    pub(crate) fn matches(&self, entry: &Entry, row: &ResourceInfo, version: &Version) -> bool {
        let has_labels = || {
            let memo = stored::memo(entry);
            self.labels.matches(|label| memo.labels.get(label))
        };
        (self.labels.is_empty() || has_labels())
            && (self.fields.is_empty() || self.fields.matches(|path| stored::field_value(entry, row, version, path)))
    }
}

impl ListOptions {
    /// Reads the query of a list (or deletecollection), or of a watch.
    pub(crate) fn parse(
        query: &Query,
        row: &ResourceInfo,
        version: &Version,
        watch: bool,
    ) -> Result<ListOptions, Status> {
        let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or_default())?;
        let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())?;
        fields.paths().try_for_each(|path| check_field(row, version, path))?;
        let number = |name: &str| -> Result<Option<u64>, Status> {
            match query.non_empty(name) {
                None => Ok(None),
                // Upstream reads a number with its sign; less than nothing is nothing.
                Some(text) => text.parse::<i64>().map(|number| u64::try_from(number).ok()).map_err(|_| {
                    Status::bad_request(format!("invalid value {text:?} of parameter {name}: a number is needed"))
                }),
            }
        };
        let limit = usize::try_from(number("limit")?.unwrap_or(0)).unwrap_or(MAX_PAGE).min(MAX_PAGE);
        let continue_token = query.non_empty("continue").map(str::to_owned);
        let send_initial_events = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
        let at = revision(query, watch, limit > 0, send_initial_events)?;
        Ok(ListOptions {
            filter: Filter { labels, fields },
            at,
            limit,
            continue_token,
            bookmarks: query.flag("allowWatchBookmarks"),
            send_initial_events,
            timeout_s: number("timeoutSeconds")?.filter(|s| *s > 0),
        })
    }
}

/// Refuses a field that no selector may name. Kinds that have fields of their own say which of the metadata they have, too; the
/// others are told by `DefaultMetaV1FieldSelectorConversion` of `k8s.io/apimachinery/pkg/runtime`.
fn check_field(row: &ResourceInfo, version: &Version, path: &str) -> Result<(), Status> {
    let has_own = row.is_custom || !version.selectable_fields.is_empty();
    let is_known = match path {
        "metadata.name" => true,
        "metadata.namespace" => row.namespaced || !has_own,
        path => version.selectable_fields.iter().any(|field| field.name == path),
    };
    if is_known {
        return Ok(());
    }
    // kubectl puts before it what was looked for.
    Err(Status::bad_request(if has_own {
        format!("field label not supported: {path}")
    } else {
        format!("{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    }))
}

/// What is wrong with the way in which options go together (`ValidateListOptions`).
fn faults(query: &Query, watch: bool, send_initial_events: Option<bool>) -> Vec<FieldError> {
    const MATCH: &str = "resourceVersionMatch";
    let version = query.get("resourceVersion").unwrap_or_default();
    let wanted = query.non_empty(MATCH);
    let continues = query.non_empty("continue").is_some();
    let mut faults = Vec::new();
    if watch {
        if send_initial_events.is_some() && wanted != Some("NotOlderThan") {
            let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            faults.push(FieldError::forbidden(MATCH, why));
        }
        let Some(wanted) = wanted else { return faults };
        if send_initial_events.is_none() {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            faults.push(FieldError::forbidden(MATCH, why));
        }
        if wanted != "NotOlderThan" {
            faults.push(FieldError::not_supported(MATCH, wanted, &["NotOlderThan"]));
        }
        if continues {
            faults.push(FieldError::forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
        }
        return faults;
    }
    if let Some(wanted) = wanted {
        if version.is_empty() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            faults.push(FieldError::forbidden(MATCH, why));
        }
        if continues {
            faults.push(FieldError::forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(wanted, "Exact" | "NotOlderThan") {
            faults.push(FieldError::not_supported(MATCH, wanted, &["Exact", "NotOlderThan", ""]));
        }
        if wanted == "Exact" && version == "0" {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            faults.push(FieldError::forbidden(MATCH, why));
        }
    }
    if send_initial_events.is_some() {
        faults.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    faults
}

/// Reads `resourceVersion` and `resourceVersionMatch`.
fn revision(
    query: &Query,
    watch: bool,
    is_paged: bool,
    send_initial_events: Option<bool>,
) -> Result<AtRevision, Status> {
    let mut faults = faults(query, watch, send_initial_events);
    let version = query.get("resourceVersion").unwrap_or_default();
    let number: u64 = match version {
        "" => 0,
        version => version.parse().unwrap_or_else(|_| {
            let why = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
            faults.push(FieldError::invalid("resourceVersion", version, why));
            0
        }),
    };
    options::refuse("ListOptions", &faults)?;
    if watch {
        return Ok(match (version, number) {
            ("", _) => AtRevision::Newest,
            (_, 0) => AtRevision::Any,
            (_, n) => AtRevision::NotOlderThan(Revision(n)),
        });
    }
    if query.non_empty("continue").is_some() {
        if number != 0 {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        return Ok(AtRevision::Newest);
    }
    Ok(match (query.non_empty("resourceVersionMatch"), version) {
        (_, "") => AtRevision::Newest,
        (Some("Exact"), _) => AtRevision::Exact(Revision(number)),
        _ if number == 0 => AtRevision::Any,
        // So it was before there was a match, and so it has stayed.
        (None, _) if is_paged => AtRevision::Exact(Revision(number)),
        _ => AtRevision::NotOlderThan(Revision(number)),
    })
}

/// Where a list in pages goes on: the snapshot's revision and the last key that was returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Continue {
    pub revision: Revision,
    /// The key, without the prefix of the collection.
    pub after: String,
}

impl Continue {
    /// The token that a client sends back. Opaque to it.
    pub(crate) fn encode(&self) -> String {
        let text = serde_json::json!({"v": "carrack/v1", "rv": self.revision.0, "start": self.after});
        data_encode(text.to_string().as_bytes())
    }

    /// Reads a token.
    pub(crate) fn decode(token: &str) -> Result<Continue, Status> {
        let bad = || Status::bad_request("continue key is not valid: it was not made by this server");
        let bytes = data_decode(token).ok_or_else(bad)?;
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        match (value["v"].as_str(), value["rv"].as_u64(), value["start"].as_str()) {
            (Some("carrack/v1"), Some(revision), Some(after)) => {
                Ok(Continue { revision: Revision(revision), after: after.to_owned() })
            }
            _ => Err(bad()),
        }
    }
}

fn data_encode(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

fn data_decode(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions() {
        for (query, watch, want) in [
            ("", false, Ok(AtRevision::Newest)),
            ("resourceVersion=0", false, Ok(AtRevision::Any)),
            ("resourceVersion=7", false, Ok(AtRevision::NotOlderThan(Revision(7)))),
            ("resourceVersion=7&limit=2", false, Ok(AtRevision::Exact(Revision(7)))),
            ("resourceVersion=0&limit=2", false, Ok(AtRevision::Any)),
            (
                "resourceVersion=7&limit=2&resourceVersionMatch=NotOlderThan",
                false,
                Ok(AtRevision::NotOlderThan(Revision(7))),
            ),
            ("resourceVersion=7&resourceVersionMatch=Exact", false, Ok(AtRevision::Exact(Revision(7)))),
            ("resourceVersion=0&resourceVersionMatch=Exact", false, Err(422)),
            ("resourceVersionMatch=Exact", false, Err(422)),
            ("resourceVersion=x", false, Err(422)),
            ("resourceVersion=7&continue=x", false, Err(400)),
            ("resourceVersion=7", true, Ok(AtRevision::NotOlderThan(Revision(7)))),
            ("resourceVersion=7&resourceVersionMatch=NotOlderThan", true, Err(422)),
            ("sendInitialEvents=true", true, Err(422)),
            ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", true, Ok(AtRevision::Newest)),
            ("resourceVersion=0&continue=x", false, Ok(AtRevision::Newest)),
            ("resourceVersion=-1", true, Err(422)),
        ] {
            let query_parsed = Query::parse(query);
            let initial = query_parsed.get("sendInitialEvents").map(|_| true);
            let is_paged = query_parsed.get("limit").is_some();
            let got = revision(&query_parsed, watch, is_paged, initial).map_err(|s| s.code);
            assert_eq!(got, want, "{query}");
        }
    }

    #[test]
    fn options_that_do_not_go_together() {
        let unless = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden";
        let requires =
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        let continued = format!("{unless} when continue is provided");
        let ungiven = format!("{unless} unless resourceVersion is provided");
        let watched = format!("{unless} for watch unless sendInitialEvents is provided");
        let unknown = |value: &str, known: &str| {
            format!("resourceVersionMatch: Unsupported value: \"{value}\": supported values: {known}")
        };
        let (of_list, of_watch) = ("\"Exact\", \"NotOlderThan\", \"\"", "\"NotOlderThan\"");
        for (query, watch, want) in [
            ("", false, vec![]),
            ("resourceVersionMatch=", true, vec![]),
            ("resourceVersionMatch=Newer", false, vec![ungiven.clone(), unknown("Newer", of_list)]),
            ("resourceVersionMatch=Exact&continue=x", false, vec![ungiven, continued.clone()]),
            (
                "resourceVersion=0&resourceVersionMatch=Exact&sendInitialEvents=false",
                false,
                vec![
                    "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"".to_owned(),
                    "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list".to_owned(),
                ],
            ),
            ("sendInitialEvents=false", true, vec![requires.to_owned()]),
            ("sendInitialEvents=1&resourceVersionMatch=Exact", true, vec![requires.to_owned(), unknown("Exact", of_watch)]),
            ("resourceVersionMatch=NotOlderThan&continue=x", true, vec![watched.clone(), continued]),
            ("resourceVersionMatch=Exact", true, vec![watched, unknown("Exact", of_watch)]),
        ] {
            let query = Query::parse(query);
            let initial = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
            let got: Vec<String> = faults(&query, watch, initial).iter().map(ToString::to_string).collect();
            assert_eq!(got, want, "{}", query.text());
        }
    }

    #[test]
    fn tokens_round_trip() {
        let token = Continue { revision: Revision(12), after: "ns/name".to_owned() };
        assert_eq!(Continue::decode(&token.encode()), Ok(token));
        assert_eq!(Continue::decode("garbage").map_err(|s| s.code), Err(400));
    }
}
