//! Talks to scheduler extenders over HTTP and HTTPS, for the scheduler's core. Each call has exactly one answer.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use carrack_auth::tls::{Reloadable, Trust, client_config};
use carrack_engine::causes;
use carrack_engine::shell::{Doer, EventSink};
use carrack_scheduler::extender::{Answer, Ask, Extender};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The extenders of a configuration.
pub struct Extenders {
    clients: Vec<(HttpClient, Extender)>,
    answers: Option<EventSink<Answer>>,
}

impl Extenders {
    /// Prepares to talk to them; nothing is sent yet.
    ///
    /// # Errors
    /// Certificates that cannot be used.
    pub fn new(extenders: &[Extender]) -> anyhow::Result<Self> {
        let clients = extenders
            .iter()
            .map(|e| Ok((client(e).with_context(|| format!("extender {}", e.url_prefix))?, e.clone())))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { clients, answers: None })
    }
}

fn client(extender: &Extender) -> anyhow::Result<HttpClient> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    http.set_nodelay(true);
    let given = &extender.tls;
    let ca = std::str::from_utf8(&given.ca).context("tlsConfig.caFile is no PEM")?;
    let https = extender.url_prefix.starts_with("https://");
    anyhow::ensure!(
        !https || given.insecure || !ca.is_empty(),
        "an https URL needs tlsConfig with caFile, caData or insecure: no authority is trusted by default"
    );
    // Over plain HTTP, whom TLS would trust makes no difference.
    let trust = if given.insecure || ca.is_empty() { Trust::Anybody } else { Trust::Authorities(ca) };
    let certificate = match (given.cert.is_empty(), given.key.is_empty()) {
        (false, false) => {
            let text = |pem: &[u8]| String::from_utf8(pem.to_vec()).context("a certificate or key is no PEM");
            let pair = carrack_auth::pki::KeyPairPem { certificate: text(&given.cert)?, key: text(&given.key)?.into() };
            Some(Reloadable::new(&pair)?)
        }
        _ => None,
    };
    let builder =
        hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(client_config(trust, certificate)?).https_or_http();
    let builder = match given.server_name.as_str() {
        "" => builder,
        name => {
            let name = rustls_pki_types::ServerName::try_from(name.to_owned()).context("tlsConfig.serverName")?;
            builder.with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name))
        }
    };
    let connector = builder.enable_http1().wrap_connector(http);
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

async fn ask(client: HttpClient, extender: &Extender, verb: &str, body: Bytes) -> Result<Bytes, String> {
    let request = http::Request::post(format!("{}/{verb}", extender.url_prefix))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .map_err(|e| e.to_string())?;
    let exchange = async {
        let reply = client.request(request).await.map_err(|e| causes(&e))?;
        let status = reply.status();
        if status != http::StatusCode::OK {
            return Err(format!("it answered with status {status}"));
        }
        let body = Limited::new(reply.into_body(), MAX_ANSWER).collect().await;
        body.map(|body| body.to_bytes()).map_err(|e| causes(e.as_ref()))
    };
    let limit = extender.timeout;
    tokio::time::timeout(limit, exchange)
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} ms", limit.as_millis())))
}

impl Doer<Ask, Answer> for Extenders {
    fn start(&mut self, answers: EventSink<Answer>) {
        self.answers = Some(answers);
    }

    fn run(&mut self, call: Ask) {
        let Some(answers) = self.answers.clone() else { return };
        let Some((client, extender)) = self.clients.get(call.extender).cloned() else {
            let result = Err("there is no such extender".to_owned());
            return answers.send(Answer { id: call.id, result });
        };
        tokio::spawn(async move {
            let result = ask(client, &extender, &call.verb, call.body).await;
            answers.send(Answer { id: call.id, result });
        });
    }
}
