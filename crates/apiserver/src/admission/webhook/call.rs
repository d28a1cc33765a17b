//! Posting a review to a webhook, be it of admission or of conversion.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use carrack_store::Store;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::Value;

use super::Users;
use crate::call::{Answer, Call, Destination, Trust};
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

    async fn call(
        &self,
        (store, env): (&dyn Store, &dyn Env),
        users: Option<&Users>,
        body: Bytes,
        timeout_ms: u64,
    ) -> Result<Call, String> {
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
            credentials: None,
            headers,
            body,
            timeout_ms,
            max_reply_bytes: MAX_REPLY_BYTES,
        };
        let user_for = |host: &str, port: u16| users.and_then(|users| users.find(host, port)).cloned();
        let path = match &self.place {
            Place::Nowhere(why) => return Err(why.clone()),
            Place::Url(to) => {
                call.credentials = user_for(&to.host, to.port);
                (call.host, call.port) = (to.host.clone(), to.port);
                call.server_name.clone_from(&call.host);
                to.path_and_query.clone()
            }
            Place::Service { namespace, name, port, path } => {
                // Whatever the port of the pod is that is asked.
                call.credentials = user_for(&format!("{name}.{namespace}.svc"), *port);
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

/// The versions of reviews that are spoken; the older one has the same fields.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The version of the reviews that are sent to a webhook that takes these: the first of them that is spoken.
pub(crate) fn review_version(taken: &Value) -> Option<&'static str> {
    let mut taken = taken.as_array().into_iter().flatten();
    taken.find_map(|version| REVIEW_VERSIONS.into_iter().find(|spoken| version == spoken))
}

/// What an answer says that it is, as Go tells it.
pub(crate) fn type_of(answer: &Value) -> String {
    let text = |field: &str| brief(answer[field].as_str().unwrap_or_default());
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let group = if api_version.contains('/') { "" } else { "/" };
    format!("{group}{api_version}, Kind={kind}")
}

/// As much of what somebody else has written as fits into a sentence.
pub(crate) fn brief(text: &str) -> &str {
    &text[..text.floor_char_boundary(100)]
}

/// Posts a review, as the user that is for the webhook's host, and reads what comes back as JSON.
pub(crate) async fn post(
    (store, env): (&dyn Store, &dyn Env),
    client: &Client,
    users: Option<&Users>,
    review: &Value,
    timeout_ms: u64,
) -> Result<Value, String> {
    let body = crate::present::bytes_of(review);
    let call = client.call((store, env), users, body, timeout_ms).await?;
    let url = call.url();
    let answer = env.call(call).await.map_err(|error| format!("Post \"{url}\": {error}"))?;
    if !(200..300).contains(&answer.code) {
        return Err(refusal(&answer));
    }
    serde_json::from_slice(&answer.body).map_err(|error| format!("the reply is not JSON: {error}"))
}

/// As much of a refusal's body is told, in bytes.
const TOLD_BYTES: usize = 2048;

/// What a refusal says, in the words of Go's client: a `Status` for itself, of other texts those that are told
/// (`NewGenericServerResponse` of `k8s.io/apimachinery/pkg/api/errors`).
fn refusal(answer: &Answer) -> String {
    let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if said["kind"] == "Status" && said["status"] == "Failure" {
        return said["message"].as_str().unwrap_or("unknown").to_owned();
    }
    let media_type = answer.headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let is_text = media_type.is_none_or(|media_type| media_type.starts_with("text/"));
    let body = String::from_utf8_lossy(&answer.body[..answer.body.len().min(TOLD_BYTES)]);
    let body = if is_text { body.trim() } else { "unknown" };
    let words = match answer.code {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        403 | 415 => body,
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 if matches!(body, "" | "unknown") => {
            "the server was unable to respond with a content type that the client supports"
        }
        406 => body,
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        code if code >= 500 => {
            return format!("an error on the server ({body:?}) has prevented the request from succeeding");
        }
        code => return format!("the server responded with the status code {code} but did not return more information"),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_version_that_is_spoken_is_spoken() {
        for (taken, want) in [
            (json!(["v1", "v1beta1"]), Some("v1")),
            (json!(["v2", "v1beta1", "v1"]), Some("v1beta1")),
            (json!(["v2"]), None),
            (json!(null), None),
        ] {
            assert_eq!(review_version(&taken), want, "{taken}");
        }
    }

    #[test]
    fn refusals_are_told() {
        let failure = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no room","code":500}"#;
        let broken =
            |what: &str| format!("an error on the server ({what:?}) has prevented the request from succeeding");
        for (code, media_type, body, want) in [
            (500, None, "boom\n", broken("boom")),
            (500, Some("text/plain; charset=utf-8"), "say \"no\"", broken("say \"no\"")),
            (502, Some("application/json"), "{}", broken("unknown")),
            (500, None, "", broken("")),
            (500, Some("application/json"), failure, "no room".to_owned()),
            (403, None, "not you", "not you".to_owned()),
            (404, None, "404 page not found", "the server could not find the requested resource".to_owned()),
            (503, None, "later", "the server is currently unable to handle the request".to_owned()),
            (
                418,
                None,
                "",
                "the server responded with the status code 418 but did not return more information".to_owned(),
            ),
        ] {
            let headers = media_type.map(|text| (CONTENT_TYPE, HeaderValue::from_static(text)));
            let answer =
                Answer { code, headers: headers.into_iter().collect(), body: Bytes::from_static(body.as_bytes()) };
            assert_eq!(refusal(&answer), want, "{code} {media_type:?} {body}");
        }
        let long = Answer { code: 500, headers: HeaderMap::new(), body: Bytes::from("x".repeat(3 * TOLD_BYTES)) };
        assert_eq!(refusal(&long), broken(&"x".repeat(TOLD_BYTES)));
    }
}
