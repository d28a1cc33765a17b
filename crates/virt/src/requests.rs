//! How many requests a role makes of the API server, by what they are about: `kubevirt_rest_client_requests_total`.
//!
//! Name and labels are upstream's (`pkg/monitoring/metrics/common/client` in kubevirt/kubevirt): the verb is that of the API
//! (LIST and not GET), the resource the last plural of the path with its subresource, the code the reply's, or `<error>` where
//! none came.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use carrack_engine::{ApiError, ApiRequest, ApiResponse, EventStream, Method, Transport};
use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::exposition::{Family, Page};

const FAMILY: Family = Family {
    name: "kubevirt_rest_client_requests_total",
    kind: "counter",
    help: "Number of HTTP requests, partitioned by status code, resource and verb.",
};

/// Resource, verb and code.
type Kind = (String, &'static str, String);

/// What was asked.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Mutex<BTreeMap<Kind, u64>>>);

impl Requests {
    /// The way to the API server, with each request counted.
    #[must_use]
    pub fn counted(&self, way: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(Counted { way, requests: self.clone() })
    }

    /// As text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut page = Page::default();
        for ((resource, verb, code), count) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // Exact up to 2^53.
            let count = *count as f64;
            page.add(FAMILY.name, &[("resource", resource), ("verb", verb), ("code", code)], count);
        }
        page.text(&[FAMILY])
    }

    fn count<T>(&self, (resource, verb): (String, &'static str), answer: &Result<T, ApiError>, of: fn(&T) -> u16) {
        let code = match answer {
            Ok(reply) => of(reply).to_string(),
            Err(ApiError::Status(status)) => status.code.to_string(),
            Err(ApiError::Transport(_) | ApiError::Decode(_)) => "<error>".to_owned(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry((resource, verb, code)).or_default() += 1;
    }
}

struct Counted {
    way: Arc<dyn Transport>,
    requests: Requests,
}

impl Transport for Counted {
    fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        let (kind, requests) = (kind(request.method, &request.path), self.requests.clone());
        let answer = self.way.send(request);
        async move {
            let answer = answer.await;
            requests.count(kind, &answer, |reply| reply.status);
            answer
        }
        .boxed()
    }

    fn watch(&self, request: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        let (kind, requests) = (kind(request.method, &request.path), self.requests.clone());
        let answer = self.way.watch(request);
        async move {
            let answer = answer.await;
            requests.count(kind, &answer, |_| 200);
            answer
        }
        .boxed()
    }
}

/// What a request is about: its resource, and the verb of the API.
fn kind(method: Method, path: &str) -> (String, &'static str) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    // `api/v1`, or `apis/<group>/<version>`.
    let skipped = if parts.next() == Some("api") { 1 } else { 2 };
    let mut parts = parts.skip(skipped).peekable();
    let mut plural = parts.next().unwrap_or_default();
    let mut name = parts.next();
    if plural == "namespaces"
        && let Some(inside) = parts.next()
    {
        plural = inside;
        name = parts.next();
    }
    let resource = parts.next().map_or_else(|| plural.to_owned(), |sub| format!("{plural}/{sub}"));
    let verb = match method {
        Method::Get if query.split('&').any(|part| part == "watch=true" || part == "watch=1") => "WATCH",
        Method::Get if name.is_none() => "LIST",
        Method::Get => "GET",
        Method::Post => "CREATE",
        Method::Put => "UPDATE",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
    };
    (resource, verb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_known_by_resource_and_verb() {
        let check = |method, path: &str, resource: &str, verb: &str| {
            assert_eq!(kind(method, path), (resource.to_owned(), verb), "{path}");
        };
        check(Method::Get, "/api/v1/pods?labelSelector=a", "pods", "LIST");
        check(Method::Get, "/api/v1/nodes?watch=true&resourceVersion=1", "nodes", "WATCH");
        check(Method::Get, "/api/v1/nodes/n", "nodes", "GET");
        check(Method::Get, "/api/v1/namespaces/x", "namespaces", "GET");
        check(Method::Post, "/api/v1/namespaces/x/pods", "pods", "CREATE");
        check(Method::Delete, "/api/v1/namespaces/x/pods/p", "pods", "DELETE");
        let vmis = "/apis/kubevirt.io/v1/namespaces/x/virtualmachineinstances";
        check(Method::Patch, &format!("{vmis}/v"), "virtualmachineinstances", "PATCH");
        check(Method::Put, &format!("{vmis}/v/freeze"), "virtualmachineinstances/freeze", "UPDATE");
        check(Method::Get, "/apis", "", "LIST");
    }

    #[test]
    fn answers_are_counted_by_their_code() {
        let requests = Requests::default();
        let pods = || kind(Method::Get, "/api/v1/pods");
        let lost: Result<(), _> = Err(ApiError::Transport("reset".to_owned()));
        for answer in [Ok(()), Ok(()), Err(ApiError::from_reply(409, b"{}")), lost] {
            requests.count(pods(), &answer, |()| 200);
        }
        let text = requests.text();
        for (code, count) in [("200", 2), ("409", 1), ("<error>", 1)] {
            let line = format!(
                "kubevirt_rest_client_requests_total{{resource=\"pods\",verb=\"LIST\",code=\"{code}\"}} {count}\n"
            );
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
