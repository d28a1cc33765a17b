//! How many requests a role makes of the API server, what they are answered, and how long that takes.
//!
//! Names, labels and bounds are upstream's (`k8s.io/component-base/metrics/prometheus/restclient`): the code is the reply's, or
//! `<error>` where none came, and a watch takes as long as it takes to open.
#![expect(clippy::disallowed_methods, reason = "shell: it looks at the clock while requests are under way")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::page::{Histogram, Page};
use crate::{ApiError, ApiRequest, ApiResponse, EventStream, Method, Transport};

/// Upper bounds of times, in seconds.
const TIMES: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// What was asked of one server.
#[derive(Clone, Debug)]
pub struct Requests {
    host: Arc<str>,
    asked: Arc<Mutex<Asked>>,
}

#[derive(Debug, Default)]
struct Asked {
    /// By code and method; 0 where no reply came.
    counts: BTreeMap<(u16, &'static str), u64>,
    took: BTreeMap<&'static str, Histogram>,
}

impl Requests {
    /// Nothing yet, of the server with this name.
    #[must_use]
    pub fn of(host: &str) -> Self {
        Self { host: host.into(), asked: Arc::default() }
    }

    /// The way to the API server, with each request counted.
    #[must_use]
    pub fn counted(&self, way: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(Counted { way, requests: self.clone() })
    }

    /// As text.
    #[must_use]
    pub fn text(&self) -> String {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut page = Page::default();
        let help = "Number of HTTP requests, partitioned by status code, method, and host.";
        page.family("rest_client_requests_total", "counter", help);
        for ((code, method), count) in &asked.counts {
            let code = if *code == 0 { "<error>".to_owned() } else { code.to_string() };
            page.value(&[("code", &code), ("host", &self.host), ("method", method)], count);
        }
        let help = "Request latency in seconds. Broken down by verb, and host.";
        page.family("rest_client_request_duration_seconds", "histogram", help);
        for (verb, took) in &asked.took {
            page.histogram(&[("host", &self.host), ("verb", verb)], took);
        }
        page.text()
    }

    fn count(&self, method: &'static str, code: u16, took: Duration) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        *asked.counts.entry((code, method)).or_default() += 1;
        asked.took.entry(method).or_insert_with(|| Histogram::under(TIMES.to_vec())).observe(took);
    }
}

struct Counted {
    way: Arc<dyn Transport>,
    requests: Requests,
}

impl Counted {
    /// Counts a request by its answer, once that has come.
    fn counting<T: Send + 'static>(
        &self,
        method: Method,
        answer: BoxFuture<'static, Result<T, ApiError>>,
        code: fn(&T) -> u16,
    ) -> BoxFuture<'static, Result<T, ApiError>> {
        let (requests, began) = (self.requests.clone(), Instant::now());
        async move {
            let answer = answer.await;
            let code = match &answer {
                Ok(reply) => code(reply),
                Err(ApiError::Status(status)) => status.code,
                Err(ApiError::Transport(_) | ApiError::Decode(_)) => 0,
            };
            requests.count(name(method), code, began.elapsed());
            answer
        }
        .boxed()
    }
}

impl Transport for Counted {
    fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        let method = request.method;
        self.counting(method, self.way.send(request), |reply| reply.status)
    }

    fn watch(&self, request: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        let method = request.method;
        self.counting(method, self.way.watch(request), |_| 200)
    }
}

fn name(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with the code that is the path.
    struct Answers;

    impl Transport for Answers {
        fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
            let answer = match request.path.parse::<u16>() {
                Ok(status @ 200..300) => Ok(ApiResponse { status, body: bytes::Bytes::new() }),
                Ok(code) => Err(ApiError::from_reply(code, b"{}")),
                Err(_) => Err(ApiError::Transport("lost".to_owned())),
            };
            std::future::ready(answer).boxed()
        }
        fn watch(&self, _: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
            let none: EventStream = Box::pin(futures::stream::empty());
            std::future::ready(Ok(none)).boxed()
        }
    }

    #[tokio::test]
    async fn requests_are_counted_by_what_they_are_answered() {
        let requests = Requests::of("192.0.2.1:6443");
        let way = requests.counted(Arc::new(Answers));
        for (method, path) in [(Method::Get, "200"), (Method::Get, "200"), (Method::Post, "409"), (Method::Get, "lost")]
        {
            drop(way.send(ApiRequest::new(method, path)).await);
        }
        drop(way.watch(ApiRequest::new(Method::Get, "pods")).await);
        let text = requests.text();
        for line in [
            "rest_client_requests_total{code=\"200\",host=\"192.0.2.1:6443\",method=\"GET\"} 3",
            "rest_client_requests_total{code=\"409\",host=\"192.0.2.1:6443\",method=\"POST\"} 1",
            "rest_client_requests_total{code=\"<error>\",host=\"192.0.2.1:6443\",method=\"GET\"} 1",
            "rest_client_request_duration_seconds_count{host=\"192.0.2.1:6443\",verb=\"GET\"} 4",
            "rest_client_request_duration_seconds_bucket{host=\"192.0.2.1:6443\",verb=\"POST\",le=\"60\"} 1",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} in\n{text}");
        }
    }
}
