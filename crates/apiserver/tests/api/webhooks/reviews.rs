//! Reviews: of which version they are, what they show, and what is told where none is read.

use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{CONFIG_MAPS, World, config_map};

#[tokio::test]
async fn a_server_that_is_not_there_is_told_in_the_words_of_go() {
    let world = World::new().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("bind").local_addr().expect("address").port();
    let mut hook = world.hook("/allow");
    hook["clientConfig"] = json!({"url": format!("https://127.0.0.1:{closed}/allow"), "caBundle": world.ca});
    world.install("Validating", &[hook]).await;
    let (code, reply) = world.post(CONFIG_MAPS, &config_map("x")).await;
    let said = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
    assert_eq!(code, 500, "{reply}");
    assert!(reply["message"].as_str().expect("message").contains(&said), "{reply}");
}

/// Webhooks that take nothing newer are sent the first version of reviews.
#[tokio::test]
async fn webhooks_of_the_first_version() {
    let world = World::new().await;
    let mut hook = world.hook("/beta");
    hook["admissionReviewVersions"] = json!(["v1beta1", "v1"]);
    world.install("Mutating", &[hook]).await;
    let (code, made) = world.post(CONFIG_MAPS, &config_map("x")).await;
    assert_eq!((code, &made["metadata"]["labels"]["by"]), (201, &json!("beta")), "{made}");
    assert_eq!(world.seen.lock().expect("lock")[0].1["apiVersion"], "admission.k8s.io/v1beta1");
}

/// Events are shown by two groups: who asks for those of one is told of what is written by way of the other.
#[tokio::test]
async fn webhooks_see_equivalents() {
    let world = World::new().await;
    let mut hook = world.hook("/annotate-binding");
    hook["rules"] =
        json!([{"operations": ["*"], "apiGroups": ["events.k8s.io"], "apiVersions": ["v1"], "resources": ["events"]}]);
    world.install("Mutating", &[hook.clone()]).await;
    let event = |name: &str| {
        json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
            "reason": "Seen", "message": "it was seen", "type": "Normal"})
    };
    let events = "/api/v1/namespaces/default/events";
    let (code, made) = world.post(events, &event("e")).await;
    assert_eq!((code, &made["message"]), (201, &json!("it was seen")), "{made}");
    assert_eq!((&made["metadata"]["annotations"]["zone"], &made["apiVersion"]), (&json!("north"), &json!("v1")));
    let request = world.seen.lock().expect("lock")[0].1["request"].clone();
    assert_eq!((&request["kind"]["group"], &request["requestKind"]["group"]), (&json!("events.k8s.io"), &json!("")));
    assert_eq!(request["object"]["apiVersion"], "events.k8s.io/v1");
    assert_eq!((&request["object"]["note"], &request["object"]["message"]), (&json!("it was seen"), &Value::Null));
    hook["matchPolicy"] = "Exact".into();
    world.install("Mutating", &[hook]).await;
    let (code, made) = world.post(events, &event("exactly")).await;
    assert_eq!((code, &made["metadata"]["annotations"]), (201, &Value::Null), "{made}");
}
