//! Requests that roles of the same process make of a node's agent (freezing a guest, say): short ones, whose whole reply is
//! waited for.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use http::header::HOST;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;

use super::proxy::{NodeProxy, bracketed};
use super::unreached::broken_off;
use crate::body::NodeTarget;
use crate::status::Status;

/// Longest reply, bytes.
const MAX_REPLY: usize = 1 << 20;
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the answer may take. A guest may take a minute to freeze.
const ANSWER: Duration = Duration::from_secs(90);

/// Makes the request; the reply's status and body.
///
/// # Errors
/// The agent cannot be reached, or did not answer in time.
pub(crate) async fn ask(
    nodes: &dyn NodeProxy,
    target: &NodeTarget,
    method: Method,
    body: Bytes,
) -> Result<(u16, Bytes), Status> {
    let host = format!("{}:{}", bracketed(&target.host), target.port);
    let dial_failed = |why: String| Status::internal(format!("error dialing backend: {why}"));
    let io = tokio::time::timeout(CONNECT, nodes.connect(target))
        .await
        .map_err(|_| dial_failed(format!("dial tcp {host}: i/o timeout")))?
        .map_err(|error| dial_failed(error.to_string()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
        .await
        .map_err(|error| dial_failed(broken_off(&error)))?;
    let request = Request::builder()
        .method(method)
        .uri(&target.path_and_query)
        .header(HOST, &host)
        .body(Full::new(body))
        .map_err(Status::internal)?;
    let exchange = async {
        let (head, body) = sender.send_request(request).await.map_err(|error| broken_off(&error))?.into_parts();
        let body = Limited::new(body, MAX_REPLY).collect().await.map_err(|error| broken_off(&*error))?;
        Ok((head.status.as_u16(), body.to_bytes()))
    };
    let both = async {
        // The connection is driven by this; when it ends first, what it has brought is read to its end.
        match select(pin!(exchange), pin!(connection)).await {
            Either::Left((reply, _)) => reply,
            Either::Right((_, exchange)) => exchange.await,
        }
    };
    let failed = |why: String| Status::internal(format!("the backend did not answer: {why}"));
    tokio::time::timeout(ANSWER, both)
        .await
        .map_err(|_| Status::timeout(format!("{host} did not answer within {} s", ANSWER.as_secs())))?
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::BoxFuture;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::proxy::NodeIo;
    use super::*;
    use crate::body::Scheme;

    /// An agent that answers each request with these bytes, once it has read it.
    struct Agent(&'static str);

    impl NodeProxy for Agent {
        fn connect(&self, _: &NodeTarget) -> BoxFuture<'static, std::io::Result<Box<dyn NodeIo>>> {
            let (mine, mut theirs) = tokio::io::duplex(4096);
            let says = self.0;
            tokio::spawn(async move {
                let mut read = vec![0; 4096];
                let len = theirs.read(&mut read).await.expect("a request");
                let text = String::from_utf8_lossy(&read[..len]).into_owned();
                assert!(text.starts_with("PUT /freeze HTTP/1.1\r\n") && text.ends_with("{}"), "{text}");
                theirs.write_all(says.as_bytes()).await.expect("written");
            });
            async move { Ok(Box::new(mine) as Box<dyn NodeIo>) }.boxed()
        }
    }

    #[tokio::test]
    async fn replies_are_read_whole() {
        let target = NodeTarget {
            node: "n".to_owned(),
            scheme: Scheme::Agent,
            host: "192.0.2.1".to_owned(),
            port: 8186,
            path_and_query: "/freeze".to_owned(),
        };
        for (says, wanted) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Ok((200, ""))),
            ("HTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\nbusy", Ok((500, "busy"))),
            ("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nto its end", Ok((200, "to its end"))),
            ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbroken", Err("the backend did not answer")),
            ("", Err("the backend did not answer")),
        ] {
            let reply = ask(&Agent(says), &target, Method::PUT, Bytes::from_static(b"{}")).await;
            match (reply, wanted) {
                (Ok((status, body)), Ok((code, text))) => assert_eq!((status, body.as_ref()), (code, text.as_bytes())),
                (Err(status), Err(part)) => assert!(status.message.contains(part), "{status:?}"),
                (reply, wanted) => panic!("{says:?}: {reply:?} is not {wanted:?}"),
            }
        }
    }
}
