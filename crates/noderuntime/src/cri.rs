#![expect(clippy::disallowed_methods, reason = "shell: waits for containerd's answer with a deadline")]
//! The few CRI calls that bring a node up and take it down. The kubelet has its own, fuller client.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{
    Container, ListContainersRequest, ListPodSandboxRequest, PodSandbox, RemovePodSandboxRequest, StopContainerRequest,
    StopPodSandboxRequest, VersionRequest,
};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// How long a single call may take; stopping containers takes their grace besides.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// A CRI call that failed.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The socket could not be reached.
    #[error("cannot connect to containerd at {}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: tonic::transport::Error,
    },
    /// containerd answered with an error.
    #[error("containerd refused {call}: {message}")]
    Call {
        /// The method.
        call: &'static str,
        /// containerd's message.
        message: String,
    },
    /// containerd did not answer.
    #[error("containerd did not answer within {limit_s} s: {last}")]
    Silent {
        /// The time that was given.
        limit_s: u64,
        /// The last failure.
        last: String,
    },
}

/// A connection to containerd's CRI service.
#[derive(Debug, Clone)]
pub struct Cri {
    client: RuntimeServiceClient<Channel>,
}

impl Cri {
    /// Connects to the socket.
    ///
    /// # Errors
    /// Nothing listens there.
    pub async fn connect(socket: &Path) -> Result<Self, CriError> {
        let path = socket.to_owned();
        // The address is never used: the connector goes to the unix socket. It has no limit of its own, since of two limits the
        // shorter one counts, and some calls may take longer than others.
        let endpoint = Endpoint::from_static("http://containerd.invalid");
        let connect = service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let channel = endpoint
            .connect_with_connector(connect)
            .await
            .map_err(|source| CriError::Connect { socket: socket.to_owned(), source })?;
        Ok(Self { client: RuntimeServiceClient::new(channel) })
    }

    /// The runtime's name and version.
    ///
    /// # Errors
    /// containerd failed the call.
    pub async fn version(&mut self) -> Result<String, CriError> {
        let request = request(VersionRequest { version: "v1".to_owned() }, CALL_LIMIT);
        let answer = self.client.version(request).await.map_err(refused("Version"))?.into_inner();
        Ok(format!("{} {}", answer.runtime_name, answer.runtime_version))
    }

    /// All pod sandboxes.
    ///
    /// # Errors
    /// containerd failed the call.
    pub async fn sandboxes(&mut self) -> Result<Vec<PodSandbox>, CriError> {
        let answer = self.client.list_pod_sandbox(request(ListPodSandboxRequest::default(), CALL_LIMIT)).await;
        Ok(answer.map_err(refused("ListPodSandbox"))?.into_inner().items)
    }

    /// All containers.
    ///
    /// # Errors
    /// containerd failed the call.
    pub async fn containers(&mut self) -> Result<Vec<Container>, CriError> {
        let answer = self.client.list_containers(request(ListContainersRequest::default(), CALL_LIMIT)).await;
        Ok(answer.map_err(refused("ListContainers"))?.into_inner().containers)
    }

    /// Stops a container: SIGTERM (or its image's stop signal), the grace, SIGKILL.
    ///
    /// # Errors
    /// containerd failed the call.
    pub async fn stop_container(&mut self, id: &str, grace_s: u32) -> Result<(), CriError> {
        let stop = StopContainerRequest { container_id: id.to_owned(), timeout: i64::from(grace_s) };
        let limit = CALL_LIMIT + Duration::from_secs(u64::from(grace_s));
        self.client.stop_container(request(stop, limit)).await.map_err(refused("StopContainer"))?;
        Ok(())
    }

    /// Stops a sandbox, which takes its network down by CNI, and removes it with its containers.
    ///
    /// # Errors
    /// containerd failed one of the calls.
    pub async fn remove_sandbox(&mut self, id: &str) -> Result<(), CriError> {
        let stop = StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.client.stop_pod_sandbox(request(stop, CALL_LIMIT)).await.map_err(refused("StopPodSandbox"))?;
        let remove = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.client.remove_pod_sandbox(request(remove, CALL_LIMIT)).await.map_err(refused("RemovePodSandbox"))?;
        Ok(())
    }
}

/// Calls `Version` until CRI answers: containerd opens its socket before its CRI plugin is ready.
///
/// # Errors
/// No answer within `limit`.
pub async fn wait_ready(socket: &Path, limit: Duration) -> Result<(Cri, String), CriError> {
    let deadline = Instant::now() + limit;
    loop {
        let attempt = async {
            let mut cri = Cri::connect(socket).await?;
            let version = cri.version().await?;
            Ok::<_, CriError>((cri, version))
        };
        let last = match tokio::time::timeout_at(deadline, attempt).await {
            Ok(Ok(ready)) => return Ok(ready),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer to Version".to_owned(),
        };
        if Instant::now() >= deadline {
            return Err(CriError::Silent { limit_s: limit.as_secs(), last });
        }
        // The pace of asking, not the condition.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A call that is given up after this time.
fn request<T>(message: T, limit: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(limit);
    request
}

fn refused(call: &'static str) -> impl FnOnce(tonic::Status) -> CriError {
    move |status| CriError::Call { call, message: status.message().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_has_a_grace_has_all_of_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("containerd.sock");
        // Who is silent keeps everybody waiting for as long as they do.
        let _silent = tokio::net::UnixListener::bind(&socket).expect("a socket");
        let mut cri = Cri::connect(&socket).await.expect("connected");
        for (grace_s, expected_s) in [(0, 30), (60, 90), (3600, 3630)] {
            let began = Instant::now();
            cri.stop_container("c", grace_s).await.expect_err("nobody answers");
            assert_eq!(began.elapsed().as_secs(), expected_s, "{grace_s}");
        }
        let began = Instant::now();
        cri.version().await.expect_err("nobody answers");
        assert_eq!(began.elapsed().as_secs(), CALL_LIMIT.as_secs());
    }
}
