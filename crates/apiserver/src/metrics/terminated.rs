//! Requests that the server ends to keep itself going: who finds no seat, and who takes too long.
//!
//! Upstream: `RecordRequestTermination` of `k8s.io/apiserver/pkg/endpoints/metrics`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{RequestLabels, labels, reported};
use crate::catalog::Catalog;
use crate::route::RequestInfo;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TerminatedLabels {
    code: u32,
    #[prometheus(flatten)]
    request: RequestLabels,
}

/// Metrics of requests that were ended.
#[derive(Default)]
pub(crate) struct TerminatedMetrics {
    requests: Family<TerminatedLabels, Counter>,
}

impl TerminatedMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_request_terminations",
            "Number of requests that were ended so that the server goes on",
            self.requests.clone(),
        );
    }

    /// A request was ended with this code. Nobody may have looked yet whether there is what it names, so that is named only if it
    /// is in the catalog: what does not exist could be named in any number of ways.
    pub(crate) fn ended(&self, info: &RequestInfo, catalog: &Catalog, code: u16) {
        let mut request = labels(info, reported(info.verb));
        let row = catalog.find(&request.group, &request.resource);
        let served = row.and_then(|row| row.version(&request.version));
        let is_subresource_known = served.is_some_and(|served| served.subresource(&request.subresource).is_some());
        if served.is_none() {
            for text in [&mut request.group, &mut request.version, &mut request.resource] {
                text.clear();
            }
        }
        if !is_subresource_known {
            request.subresource.clear();
        }
        self.requests.get_or_create(&TerminatedLabels { code: code.into(), request }).inc();
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};

    use super::*;
    use crate::catalog::CatalogFold;
    use crate::route::Asked;
    use crate::runtime_config::RuntimeConfig;

    #[test]
    fn what_is_not_there_is_not_named() {
        let catalog = CatalogFold::new(&RuntimeConfig::default()).catalog();
        for (method, uri, code, want) in [
            (Method::GET, "/api/v1/namespaces/d/pods/p", 429, ["GET", "v1", "pods", "", "resource"]),
            (Method::GET, "/api/v1/namespaces/d/pods/p/status", 504, ["GET", "v1", "pods", "status", "resource"]),
            (Method::GET, "/api/v1/namespaces/d/pods/p/none", 504, ["GET", "v1", "pods", "", "resource"]),
            (Method::POST, "/api/v1/namespaces/d/nones", 504, ["POST", "", "", "", "namespace"]),
            (Method::GET, "/api/v9/pods", 504, ["LIST", "", "", "", "cluster"]),
            (Method::GET, "/version", 504, ["GET", "", "", "", ""]),
        ] {
            let metrics = TerminatedMetrics::default();
            let uri_given: Uri = uri.parse().expect("a URI");
            metrics.ended(&Asked::of(&method, &uri_given).info, &catalog, code);
            let [verb, version, resource, subresource, scope] = want;
            let request = RequestLabels {
                verb,
                group: String::new(),
                version: version.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                scope,
                component: "apiserver",
            };
            let labels = TerminatedLabels { code: code.into(), request };
            assert_eq!(metrics.requests.get_or_create(&labels).get(), 1, "{uri}");
        }
    }
}
