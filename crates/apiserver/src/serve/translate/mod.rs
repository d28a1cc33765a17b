//! WebSockets of the newest kinds, for kubelets and runtimes that do not know them.
//!
//! ```text
//!   client ──WebSocket──▶ this server ──SPDY/3.1──▶ kubelet ──▶ runtime
//!     exec, attach   v5.channel.k8s.io: a message's first byte is its channel  ⇄  v4.channel.k8s.io: a stream for each
//!     port-forward   SPDY/3.1+portforward.k8s.io: messages                     ⇄  portforward.k8s.io: the same bytes
//! ```
//!
//! What version 5 adds is that a client can close its standard input and go on to listen, which no older WebSocket protocol
//! of Kubernetes can say; SPDY can. Everything else passes through as it is. A kubelet that refuses, or is not reached, is
//! told by the HTTP reply, before the client's connection becomes a WebSocket; upstream upgrades first and says it there.
//!
//! Upstream: `StreamTranslatorHandler` and `TunnelingHandler` of `k8s.io/apiserver/pkg/util/proxy`.

mod channels;
mod spdy;
mod tunnel;

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::handover::Handover;
use super::websocket;
use crate::accept::listed;
use crate::query::Query;
use crate::status::Status;

/// What SPDY clients and servers of Kubernetes agree on a protocol with.
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const SPDY: &str = "SPDY/3.1";
/// Exec and attach: the client's protocol, and the kubelet's.
const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";
/// What stands around the protocol that is spoken inside of a tunnel.
const TUNNEL_PREFIX: &str = "SPDY/3.1+";
const TUNNEL_SUFFIX: &str = ".k8s.io";
/// Longest message taken from a client, as the library that upstream serves WebSockets with has it.
const MAX_MESSAGE: usize = 32 << 20;

/// Which streams a command has, as the kubelet is asked for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Channels(Streams),
    /// The protocols inside that the client knows.
    Tunnel(Vec<String>),
}

/// How one client's WebSocket becomes SPDY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Translation {
    kind: Kind,
    /// The client's key of the WebSocket handshake.
    key: HeaderValue,
}

impl Translation {
    /// What is to be done with a request for exec, attach or port-forward that the kubelet would get at `path_and_query`;
    /// none for those that pass through.
    pub(super) fn of(headers: &HeaderMap, path_and_query: &str) -> Option<Translation> {
        let key = websocket::key(headers)?.clone();
        let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
        let kind = if path.starts_with("/portForward/") {
            let inner = listed(headers, SEC_WEBSOCKET_PROTOCOL)
                .filter(|protocol| protocol.ends_with(TUNNEL_SUFFIX))
                .filter_map(|protocol| protocol.strip_prefix(TUNNEL_PREFIX))
                .map(str::to_owned)
                .collect::<Vec<_>>();
            if inner.is_empty() {
                return None;
            }
            Kind::Tunnel(inner)
        } else {
            if !listed(headers, SEC_WEBSOCKET_PROTOCOL).any(|protocol| protocol == V5) {
                return None;
            }
            let query = Query::parse(query);
            let tty = query.flag("tty");
            // A terminal has one output.
            let stderr = query.flag("error") && !tty;
            Kind::Channels(Streams { stdin: query.flag("input"), stdout: query.flag("output"), stderr, tty })
        };
        Some(Translation { kind, key })
    }

    /// Makes of a client's headers those that the kubelet is asked with, by POST.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        let websocket = [SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION];
        for name in websocket.into_iter().chain([
            HeaderName::from_static("sec-websocket-extensions"),
            HeaderName::from_static("origin"),
            STREAM_PROTOCOL,
            CONTENT_LENGTH,
        ]) {
            headers.remove(name);
        }
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
        match &self.kind {
            Kind::Channels(_) => {
                headers.append(STREAM_PROTOCOL, HeaderValue::from_static(V4));
            }
            Kind::Tunnel(inner) => {
                for protocol in inner {
                    // It was part of a header before.
                    if let Ok(value) = HeaderValue::from_str(protocol) {
                        headers.append(STREAM_PROTOCOL, value);
                    }
                }
            }
        }
    }

    /// Takes the kubelet's agreement: the headers with which the client's connection becomes a WebSocket. The two are joined
    /// once both have become what was agreed on.
    pub(super) fn begin(self, agreed: &HeaderMap, client: Handover, kubelet: OnUpgrade) -> Result<HeaderMap, Status> {
        let headers = websocket::agreed(&self.key, self.protocol(agreed)?.as_deref())?;
        tokio::spawn(client.carry(move |client| async move {
            let kubelet = match kubelet.await {
                Ok(kubelet) => TokioIo::new(kubelet),
                Err(error) => {
                    tracing::debug!(%error, "a kubelet did not upgrade");
                    return;
                }
            };
            let client = websocket::on(client, MAX_MESSAGE).await;
            match self.kind {
                Kind::Channels(streams) => channels::run(client, kubelet, streams).await,
                Kind::Tunnel(_) => tunnel::run(client, kubelet).await,
            }
        }));
        Ok(headers)
    }

    /// Whether it is SPDY already, inside of the WebSocket.
    pub(super) fn is_tunnel(&self) -> bool {
        matches!(self.kind, Kind::Tunnel(_))
    }

    /// The client's name for what the kubelet has agreed to speak.
    fn protocol(&self, agreed: &HeaderMap) -> Result<Option<String>, Status> {
        let unfit = |what: &str| Status::internal(format!("unable to upgrade: the kubelet agreed to {what}"));
        if !listed(agreed, UPGRADE).any(|token| token.eq_ignore_ascii_case(SPDY)) {
            return Err(unfit("something that is not SPDY"));
        }
        let chosen = agreed.get(STREAM_PROTOCOL).and_then(|value| value.to_str().ok()).map(str::trim);
        match &self.kind {
            Kind::Channels(_) if chosen == Some(V4) => Ok(Some(V5.to_owned())),
            Kind::Channels(_) => Err(unfit(&format!("{chosen:?}, not to {V4}"))),
            Kind::Tunnel(inner) => {
                Ok(chosen.filter(|chosen| inner.iter().any(|p| p == chosen)).map(|p| format!("{TUNNEL_PREFIX}{p}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn websocket(protocols: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", protocols),
            ("user-agent", "test"),
        ] {
            headers.append(name, value.parse().expect(value));
        }
        headers
    }

    #[test]
    fn which_requests_are_translated() {
        let channels = |stdin, stdout, stderr, tty| Some(Kind::Channels(Streams { stdin, stdout, stderr, tty }));
        let tunnel = |inner: &[&str]| Some(Kind::Tunnel(inner.iter().map(|&p| p.to_owned()).collect()));
        for (protocols, path, want) in [
            ("v5.channel.k8s.io", "/exec/a/p/c?input=1&output=1&command=sh", channels(true, true, false, false)),
            ("v4.channel.k8s.io, v5.channel.k8s.io", "/attach/a/p/c?error=1", channels(false, false, true, false)),
            ("v5.channel.k8s.io", "/exec/a/p/c?input=1&output=1&error=1&tty=1", channels(true, true, false, true)),
            ("v4.channel.k8s.io", "/exec/a/p/c?output=1", None),
            ("SPDY/3.1+portforward.k8s.io", "/exec/a/p/c?output=1", None),
            ("SPDY/3.1+portforward.k8s.io", "/portForward/a/p", tunnel(&["portforward.k8s.io"])),
            ("x, SPDY/3.1+y.k8s.io,SPDY/3.1+z", "/portForward/a/p?port=80", tunnel(&["y.k8s.io"])),
            ("v4.channel.k8s.io", "/portForward/a/p?port=80", None),
        ] {
            let got = Translation::of(&websocket(protocols), path).map(|translation| translation.kind);
            assert_eq!(got, want, "{protocols} {path}");
        }
        let mut spdy = websocket(V5);
        spdy.insert(UPGRADE, HeaderValue::from_static(SPDY));
        assert_eq!(Translation::of(&spdy, "/exec/a/p/c?output=1"), None);
    }

    #[test]
    fn what_the_kubelet_is_asked_and_may_answer() {
        for (protocols, path, asked, answers) in [
            (
                V5,
                "/exec/a/p/c?output=1",
                "v4.channel.k8s.io",
                [(Some(V4), Ok(Some(V5))), (Some("v3.channel.k8s.io"), Err(())), (None, Err(()))],
            ),
            (
                "SPDY/3.1+portforward.k8s.io",
                "/portForward/a/p",
                "portforward.k8s.io",
                [
                    (Some("portforward.k8s.io"), Ok(Some("SPDY/3.1+portforward.k8s.io"))),
                    (None, Ok(None)),
                    (Some("other.k8s.io"), Ok(None)),
                ],
            ),
        ] {
            let mut headers = websocket(protocols);
            let translation = Translation::of(&headers, path).expect("is translated");
            translation.ask(&mut headers);
            let mut left: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("text"))).collect();
            left.sort_unstable();
            assert_eq!(
                left,
                [
                    ("connection", "Upgrade"),
                    ("upgrade", SPDY),
                    ("user-agent", "test"),
                    ("x-stream-protocol-version", asked)
                ]
            );
            for (chosen, want) in answers {
                let mut agreed = HeaderMap::new();
                agreed.insert(UPGRADE, HeaderValue::from_static(SPDY));
                if let Some(chosen) = chosen {
                    agreed.insert(STREAM_PROTOCOL, HeaderValue::from_static(chosen));
                }
                let got = translation.protocol(&agreed).map_err(|_| ());
                assert_eq!(got, want.map(|want| want.map(str::to_owned)), "{chosen:?}");
                agreed.insert(UPGRADE, HeaderValue::from_static("websocket"));
                assert!(translation.protocol(&agreed).is_err(), "{chosen:?}");
            }
        }
    }
}
