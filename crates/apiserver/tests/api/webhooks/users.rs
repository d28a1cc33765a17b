//! By what webhooks know the server: the users of a kubeconfig.

use carrack_apiserver::admission::AdmissionConfiguration;
use http::Method;
use serde_json::json;

use super::{CONFIG_MAPS, World, config_map};

#[tokio::test]
async fn webhooks_are_shown_the_user_that_is_for_their_host() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (file, token) = (directory.path().join("users.json"), directory.path().join("token"));
    let users = json!({"apiVersion": "v1", "kind": "Config", "users": [
        {"name": "elsewhere.example.com", "user": {"token": "of-another"}},
        {"name": "*", "user": {"tokenFile": "token", "as": "u", "as-groups": ["g", "h"]}}]});
    std::fs::write(&file, users.to_string()).expect("written");
    std::fs::write(&token, "t0\n").expect("written");
    let told = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
        {"name": "ValidatingAdmissionWebhook", "configuration": {"apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": file}}]});
    let none = |path: &str| Err(format!("{path} is not there"));
    let told = AdmissionConfiguration::parse(told.to_string().as_bytes(), none).expect("a configuration");
    let world = World::with(|config| config.admission = told).await;
    let known_as = async |name: &str| {
        let (code, reply, warnings) = world.send(Method::POST, CONFIG_MAPS, &config_map(name)).await;
        assert_eq!(code, 201, "{reply}");
        warnings.join(" ")
    };
    // What one plugin is told is nothing to the other.
    world.install("Mutating", &[world.hook("/who")]).await;
    let known = known_as("a").await;
    assert!(known.contains("nobody") && !known.contains("Bearer"), "{known}");
    world.install("Validating", &[world.hook("/who")]).await;
    let known = known_as("b").await;
    assert!(known.contains("Bearer t0 as u as g as h"), "{known}");
    // The file is read again.
    std::fs::write(&token, "t1\n").expect("written");
    let known = known_as("c").await;
    assert!(known.contains("Bearer t1"), "{known}");
}
