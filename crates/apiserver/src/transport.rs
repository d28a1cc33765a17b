//! The API server as a [`Transport`]: requests of roles in the same process, without sockets and
//! without TLS, through the same pipeline as everybody's.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use carrack_auth::Caller;
use carrack_engine::{ApiError, ApiRequest, ApiResponse, EventStream, Transport, lines, to_http, user_agent};
use futures::StreamExt as _;
use futures::future::BoxFuture;

use crate::body::Body;
use crate::serve::{self, NodeProxy};
use crate::server::ApiServer;
use crate::status::Status;

/// A client in the process, under one identity.
#[derive(Clone)]
pub struct InProcess {
    server: ApiServer,
    caller: Caller,
    /// How agents of nodes are reached, for who makes requests that they answer.
    nodes: Option<Arc<dyn NodeProxy>>,
}

impl ApiServer {
    /// A transport that makes requests as this user, in these groups (and `system:authenticated`).
    pub fn client_as<G: Into<String>>(&self, user: &str, groups: impl IntoIterator<Item = G>) -> InProcess {
        self.client_of(Caller::new(user, groups))
    }

    /// A transport that makes requests as this caller.
    pub fn client_of(&self, caller: Caller) -> InProcess {
        InProcess { server: self.clone(), caller, nodes: None }
    }
}

impl InProcess {
    /// The same, with a way to the agents of nodes.
    #[must_use]
    pub fn with_nodes(mut self, nodes: Arc<dyn NodeProxy>) -> Self {
        self.nodes = Some(nodes);
        self
    }

    fn request(&self, request: ApiRequest) -> Result<http::Request<Bytes>, ApiError> {
        let mut request = to_http(request, "")?;
        if let Some(agent) = user_agent(role_of(&self.caller.user)) {
            request.headers_mut().insert(http::header::USER_AGENT, agent);
        }
        Ok(request)
    }
}

/// The name that a role's user stands for: `kube-scheduler` of `system:kube-scheduler`.
fn role_of(user: &str) -> &str {
    match user.split_once(':') {
        Some(("system", node)) if node.starts_with("node:") => "kubelet",
        Some((_, role)) => role.split(':').next().unwrap_or(role),
        None => user,
    }
}

impl Transport for InProcess {
    fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        let this = self.clone();
        Box::pin(async move {
            let unread = request.unread;
            let (request, nodes) = (this.request(request)?, this.nodes);
            let (method, sent) = (request.method().clone(), request.body().clone());
            let response = this.server.handle(request, this.caller).await;
            let mut status = response.status().as_u16();
            let body = match response.into_body() {
                Body::Node(target) => {
                    let answer = match &nodes {
                        Some(nodes) => serve::ask(nodes.as_ref(), &target, method, sent).await,
                        None => Err(Status::unavailable("agents of nodes cannot be reached from here".to_owned())),
                    };
                    match answer {
                        Ok((code, body)) => {
                            status = code;
                            body
                        }
                        Err(refusal) => {
                            return Err(ApiError::from_reply(refusal.code, refusal.to_json().to_string().as_bytes()));
                        }
                    }
                }
                Body::Remote(call) => match this.server.env().call(*call).await {
                    Ok(answer) => {
                        status = answer.code;
                        answer.body
                    }
                    Err(error) => {
                        let refusal = Status::unavailable(format!("error trying to reach service: {error}"));
                        return Err(ApiError::from_reply(503, refusal.to_json().to_string().as_bytes()));
                    }
                },
                // Lists are opened as they are put together.
                _ if unread && (200..300).contains(&status) => Bytes::new(),
                other => other.into_bytes(),
            };
            if (200..300).contains(&status) {
                Ok(ApiResponse { status, body })
            } else {
                Err(ApiError::from_reply(status, &body))
            }
        })
    }

    fn watch(&self, request: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        let this = self.clone();
        Box::pin(async move {
            let response = this.server.handle(this.request(request)?, this.caller).await;
            let status = response.status().as_u16();
            match response.into_body() {
                Body::Watch { lines: stream, timeout_s } => {
                    let end = tokio::time::sleep(Duration::from_secs(timeout_s));
                    Ok(lines(stream.map(Ok).take_until(end)))
                }
                Body::Remote(call) => serve::watch_remote(this.server.env().as_ref(), *call).await,
                _ if (200..300).contains(&status) => {
                    Err(ApiError::Decode("the reply to a watch is no stream".to_owned()))
                }
                other => Err(ApiError::from_reply(status, &other.into_bytes())),
            }
        })
    }
}
