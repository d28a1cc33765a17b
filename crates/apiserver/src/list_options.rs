//! `ListOptions` of list, watch and deletecollection requests.
//!
//! The rules on which of them go together are those of
//! `k8s.io/apimachinery/pkg/apis/meta/internalversion/validation`.

use carrack_schema::table::{ResourceInfo, Version};
use carrack_store::{Entry, Revision};

use crate::query::Query;
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

    /// Whether an object is asked for.
    pub(crate) fn matches(&self, entry: &Entry, row: &ResourceInfo, version: &Version) -> bool {
        (self.labels.is_empty() || self.labels.matches(&stored::memo(entry).labels))
            && (self.fields.is_empty() || self.fields.matches(|path| stored::field_value(entry, row, version, path)))
    }
}

impl ListOptions {
    /// Reads the query of a list (or deletecollection), or of a watch.
    pub(crate) fn parse(query: &Query, version: &Version, watch: bool) -> Result<ListOptions, Status> {
        let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or_default())?;
        let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())?;
        for path in fields.paths() {
            let known = matches!(path, "metadata.name" | "metadata.namespace")
                || version.selectable_fields.iter().any(|field| field.name == path);
            if !known {
                // kubectl puts before it what was looked for.
                return Err(Status::bad_request(format!("field label not supported: {path}")));
            }
        }
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
        let at = revision(query, watch, continue_token.is_some(), limit > 0, send_initial_events)?;
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

/// Reads `resourceVersion` and `resourceVersionMatch`.
fn revision(
    query: &Query,
    watch: bool,
    continues: bool,
    is_paged: bool,
    send_initial_events: Option<bool>,
) -> Result<AtRevision, Status> {
    let invalid = |field: &str, why: &str| {
        Status::invalid(
            "meta.k8s.io",
            "ListOptions",
            "",
            &[("FieldValueForbidden".to_owned(), field.to_owned(), format!("Forbidden: {why}"))],
        )
    };
    let version = query.get("resourceVersion").unwrap_or_default();
    let wanted = query.non_empty("resourceVersionMatch");
    let number: u64 = match version {
        "" => 0,
        text => text.parse().map_err(|_| {
            Status::invalid(
                "meta.k8s.io",
                "ListOptions",
                "",
                &[(
                    "FieldValueInvalid".to_owned(),
                    "resourceVersion".to_owned(),
                    format!("Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"),
                )],
            )
        })?,
    };
    if watch {
        match (send_initial_events, wanted) {
            (None, Some(_)) => {
                return Err(invalid(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            (Some(_), None) => {
                return Err(invalid(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            (Some(_), Some(other)) if other != "NotOlderThan" => {
                return Err(invalid(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            _ => {}
        }
        return Ok(match (version, number) {
            ("", _) => AtRevision::Newest,
            (_, 0) => AtRevision::Any,
            (_, n) => AtRevision::NotOlderThan(Revision(n)),
        });
    }
    if send_initial_events.is_some() {
        return Err(invalid("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if continues {
        if wanted.is_some() {
            return Err(invalid("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided"));
        }
        if number != 0 {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        return Ok(AtRevision::Newest);
    }
    match (wanted, version) {
        (Some(_), "") => {
            Err(invalid("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"))
        }
        (Some("Exact"), _) if number == 0 => Err(invalid(
            "resourceVersionMatch",
            "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
        )),
        (Some("Exact"), _) => Ok(AtRevision::Exact(Revision(number))),
        (None, "") => Ok(AtRevision::Newest),
        (None | Some("NotOlderThan"), _) if number == 0 => Ok(AtRevision::Any),
        // So it was before there was a match, and so it has stayed.
        (None, _) if is_paged => Ok(AtRevision::Exact(Revision(number))),
        (None | Some("NotOlderThan"), _) => Ok(AtRevision::NotOlderThan(Revision(number))),
        (Some(other), _) => Err(Status::invalid(
            "meta.k8s.io",
            "ListOptions",
            "",
            &[(
                "FieldValueNotSupported".to_owned(),
                "resourceVersionMatch".to_owned(),
                format!("Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""),
            )],
        )),
    }
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
        ] {
            let query_parsed = Query::parse(query);
            let initial = query_parsed.get("sendInitialEvents").map(|_| true);
            let continues = query_parsed.non_empty("continue").is_some();
            let is_paged = query_parsed.get("limit").is_some();
            let got = revision(&query_parsed, watch, continues, is_paged, initial).map_err(|s| s.code);
            assert_eq!(got, want, "{query}");
        }
    }

    #[test]
    fn tokens_round_trip() {
        let token = Continue { revision: Revision(12), after: "ns/name".to_owned() };
        assert_eq!(Continue::decode(&token.encode()), Ok(token));
        assert_eq!(Continue::decode("garbage").map_err(|s| s.code), Err(400));
    }
}
