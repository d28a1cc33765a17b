//! Posting a review to a webhook, be it of admission or of conversion.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use carrack_store::Store;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::Value;

use crate::call::{Call, Destination, Trust};
use crate::env::Env;
use crate::locate;

/// Longest reply of a webhook: an object, and a patch of it in base64.
const MAX_REPLY_BYTES: usize = 8 << 20;

/// Where a webhook is.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    place: Place,
    ca_pem: Option<String>,
}

#[derive(Clone, Debug)]
enum Place {
    Url(Destination),
    Service {
        namespace: String,
        name: String,
        port: u16,
        path: String,
    },
    /// It says neither, or something that cannot be read.
    Nowhere(String),
}

impl Client {
    /// Reads a `clientConfig`.
    pub(crate) fn read(config: &Value) -> Client {
        let bundle = config["caBundle"].as_str().filter(|text| !text.is_empty());
        let ca_pem = bundle.and_then(|text| String::from_utf8(STANDARD.decode(text).ok()?).ok());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let service = &config["service"];
        let place = match config["url"].as_str() {
            Some(url) => Destination::parse(url).map_or_else(Place::Nowhere, Place::Url),
            None if service.is_object() => Place::Service {
                namespace: text(&service["namespace"]),
                name: text(&service["name"]),
                port: service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
                path: format!("/{}", text(&service["path"]).trim_start_matches('/')),
            },
            None => Place::Nowhere("neither a URL nor a service is given".to_owned()),
        };
        Client { place, ca_pem }
    }

    async fn call(&self, store: &dyn Store, env: &dyn Env, body: Bytes, timeout_ms: u64) -> Result<Call, String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        let mut call = Call {
            method: Method::POST,
            server_name: String::new(),
            host: String::new(),
            place: None,
            port: 0,
            path_and_query: String::new(),
            trust: self.ca_pem.clone().map_or(Trust::Own, Trust::Authorities),
            headers,
            body,
            timeout_ms,
            max_reply_bytes: MAX_REPLY_BYTES,
        };
        let path = match &self.place {
            Place::Nowhere(why) => return Err(why.clone()),
            Place::Url(to) => {
                (call.host, call.port) = (to.host.clone(), to.port);
                call.server_name.clone_from(&call.host);
                to.path_and_query.clone()
            }
            Place::Service { namespace, name, port, path } => {
                let located = locate::service(store, env, namespace, name, *port).await.map_err(|status| {
                    format!(
                        "Post \"https://{name}.{namespace}.svc:{port}{path}?timeout={}s\": {}",
                        timeout_ms / 1000,
                        status.message
                    )
                })?;
                (call.place, call.port) = (Some(located.place.text()), located.port);
                call.server_name = located.server_name;
                call.host.clone_from(&call.server_name);
                path.clone()
            }
        };
        let joint = if path.contains('?') { '&' } else { '?' };
        call.path_and_query = format!("{path}{joint}timeout={}s", timeout_ms / 1000);
        Ok(call)
    }
}

/// Posts a review and reads what comes back as JSON.
pub(crate) async fn post(
    store: &dyn Store,
    env: &dyn Env,
    client: &Client,
    review: &Value,
    timeout_ms: u64,
) -> Result<Value, String> {
    let body = crate::present::bytes_of(review);
    let call = client.call(store, env, body, timeout_ms).await?;
    let url = call.url();
    let answer = env.call(call).await.map_err(|error| format!("Post \"{url}\": {error}"))?;
    if !(200..300).contains(&answer.code) {
        return Err(format!(
            "the server responded with the status code {} but did not return more details",
            answer.code
        ));
    }
    serde_json::from_slice(&answer.body).map_err(|error| format!("the reply is not JSON: {error}"))
}
