//! What a program tells of itself to those who look for a fault: `/statusz` and `/flagz`, as text for people, and as objects of
//! `config.k8s.io` for those who ask for one. Roles beside the API server have the same pages.
//!
//! Upstream: `k8s.io/apiserver/pkg/server/{statusz,flagz}` (`ComponentStatusz` and `ComponentFlagz`, on since 1.36).

pub mod flagz;
pub mod statusz;

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use crate::accept;

const GROUP: &str = "config.k8s.io";
/// The versions of the objects; they have the same fields.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";

/// A page: its media type and its text.
pub type Page = (&'static str, String);

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// It has no form that is accepted; those that it has.
    #[error("only the following media types are accepted: {0}")]
    NotAcceptable(String),
    /// It cannot be written.
    #[error("the page cannot be written as YAML: {0}")]
    Unwritten(String),
}

impl PageError {
    /// How HTTP says it.
    #[must_use]
    pub fn code(&self) -> StatusCode {
        match self {
            Self::NotAcceptable(_) => StatusCode::NOT_ACCEPTABLE,
            Self::Unwritten(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// A program's page in the form that is asked for: what is told in words, or an object of this kind with these fields.
fn page(
    headers: &HeaderMap,
    (component, kind): (&str, &str),
    words: impl FnOnce() -> String,
    fields: impl FnOnce() -> Value,
) -> Result<Page, PageError> {
    let Some((version, media_type)) = version(headers, kind)? else {
        let name = kind.to_ascii_lowercase();
        let warning = "Warning: this page is for people; what it looks like may change, so no program should read it.";
        return Ok((TEXT, format!("\n{component} {name}\n{warning}\n\n{}", words())));
    };
    let mut object = fields();
    object["apiVersion"] = format!("{GROUP}/{version}").into();
    object["kind"] = kind.into();
    object["metadata"] = json!({"name": component});
    if media_type == JSON {
        return Ok((JSON, object.to_string()));
    }
    match serde_saphyr::to_string(&object) {
        Ok(text) => Ok((YAML, text)),
        Err(error) => Err(PageError::Unwritten(error.to_string())),
    }
}

/// In which version an object of this kind is asked for, and as what; none where words are.
fn version(headers: &HeaderMap, kind: &str) -> Result<Option<(&'static str, &'static str)>, PageError> {
    for range in accept::ranges(headers) {
        if matches!(range.media_type.as_str(), "text/plain" | "text/*" | "*/*") {
            return Ok(None);
        }
        let is_of_kind = range.param("g") == Some(GROUP) && range.param("as") == Some(kind);
        let version = VERSIONS.into_iter().find(|version| range.param("v") == Some(*version));
        if let Some(version) = version.filter(|_| is_of_kind && range.takes_objects()) {
            return Ok(Some((version, if range.takes_json() { JSON } else { YAML })));
        }
    }
    let forms = [JSON, YAML].map(|form| VERSIONS.map(|version| format!("{form};g={GROUP};v={version};as={kind}")));
    Err(PageError::NotAcceptable(format!("text/plain, {}", forms.concat().join(", "))))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::ACCEPT;

    use super::*;

    #[test]
    fn it_is_text_unless_an_object_is_asked_for() {
        let check = |accept: &'static str, want: Result<Option<(&str, &str)>, u16>| {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(version(&headers, "Statusz").map_err(|error| error.code().as_u16()), want, "{accept}");
        };
        for accept in ["", "*/*", "text/plain", "text/*;q=0.5, application/json"] {
            check(accept, Ok(None));
        }
        check("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", Ok(Some(("v1beta1", JSON))));
        check("application/json;as=Statusz;v=v1alpha1;g=config.k8s.io, text/plain;q=0.1", Ok(Some(("v1alpha1", JSON))));
        check("application/yaml;v=v1beta1;g=config.k8s.io;as=Statusz", Ok(Some(("v1beta1", YAML))));
        check("application/yaml", Err(406));
        check("application/json", Err(406));
        check("application/json;v=v1;g=config.k8s.io;as=Statusz", Err(406));
        check("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", Err(406));
        check("image/png", Err(406));
    }
}
