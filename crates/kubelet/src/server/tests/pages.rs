//! What is read from the server besides logs.

use super::*;

#[tokio::test]
async fn pages() {
    let world = World::new().await.with_pod(ContainerState::Running);
    lock(&world.node.pods).push(pod_of(json!({
        "metadata": {"name": "waits", "namespace": "ns", "uid": "u2"}, "status": {"phase": "Pending"}})));
    assert_eq!(world.get("/healthz").await, (200, "ok".into()));
    let names = |text: &str| -> Vec<String> {
        let list: serde_json::Value = serde_json::from_str(text).expect("JSON");
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
        let items = list["items"].as_array().expect("items");
        items.iter().map(|pod| pod["metadata"]["name"].as_str().expect("name").to_owned()).collect()
    };
    let (code, body) = world.get("/pods").await;
    assert_eq!((code, names(&body)), (200, vec!["p".to_owned(), "waits".to_owned()]));
    let (code, body) = world.get("/runningpods/").await;
    assert_eq!((code, names(&body)), (200, vec!["p".to_owned()]));
    let (code, body) = world.get("/configz").await;
    assert_eq!((code, body.as_str()), (200, r#"{"kubeletconfig":{"port":10250}}"#));
    let (code, body) = world.get("/stats/summary").await;
    assert_eq!((code, body.as_str()), (200, r#"{"node":{"nodeName":""},"pods":[]}"#));
    let (code, body) = world.get("/metrics/resource").await;
    assert!(code == 200 && body.contains("resource_scrape_error 0\n"), "{body}");
    let (code, body) = world.get("/metrics").await;
    let counted =
        "kubelet_http_requests_total{code=\"200\",method=\"GET\",path=\"pods\",server_type=\"readwrite\"} 1\n";
    assert!(code == 200 && body.contains(counted) && body.contains("kubelet_running_pods 1\n"), "{body}");
    for family in ["rest_client_requests_total counter", "rest_client_request_duration_seconds histogram"] {
        assert!(body.contains(&format!("# TYPE {family}\n")), "{family} in\n{body}");
    }
    assert_eq!(world.ask(Method::POST, "/pods").await, (405, "Method Not Allowed".into()));
}

#[tokio::test]
async fn the_process_tells_of_itself() {
    let flags = [("node-name".to_owned(), "n1".to_owned())].into();
    let world = World::with(Settings { flags, ..Settings::default() }).await;
    let (code, body) = world.get("/flagz").await;
    assert!(
        code == 200 && body.starts_with("\nkubelet flagz\n") && body.ends_with("\n\nnode-name=n1\n"),
        "{code} {body}"
    );
    let (code, body) = world.get("/statusz").await;
    assert!(code == 200 && body.contains("\nPaths: /configz /flagz /healthz "), "{code} {body}");
    let accept = [("accept", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz")];
    let (code, body) = text(world.send(request(Method::GET, "/statusz", &accept)).await).await;
    let object: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, &object["kind"], &object["metadata"]["name"]), (200, &json!("Statusz"), &json!("kubelet")));
    let other = request(Method::GET, "/flagz", &[("accept", "image/png")]);
    assert_eq!(text(world.send(other).await).await.0, 406);
}

#[tokio::test]
async fn health_is_the_kubelets() {
    let world = World::new().await;
    *lock(&world.node.sick) = Some("the runtime is gone".into());
    let (code, body) = world.get("/healthz").await;
    assert!(code == 500 && body.contains("the runtime is gone"), "{code} {body}");
    let (code, body) = world.get("/metrics/slis").await;
    let check = "kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 0\n";
    assert!(code == 200 && body.contains(check), "{code} {body}");
}

#[tokio::test]
async fn run() {
    let world = World::new().await.with_pod(ContainerState::Running);
    assert_eq!(world.ask(Method::POST, "/run/ns/p/c?cmd=ls+-l").await, (200, "id [\"ls\", \"-l\"]".into()));
    let (code, body) = world.ask(Method::POST, "/run/ns/p/c?cmd=false").await;
    assert_eq!((code, body.as_str()), (500, "command exited with 1: id [\"false\"]"));
    assert_eq!(world.ask(Method::POST, "/run/ns/p/c").await.0, 400);
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let world = World::new().await;
    let mut sender = world.connect(Some(&Identity::Admin)).await;
    for path in ["/healthz", "/nothing", "/pods", "/healthz"] {
        sender.ready().await.expect("stays open");
        let response = sender.send_request(request(Method::GET, path, &[])).await.expect("answers");
        text(response).await;
    }
}

#[tokio::test]
async fn containers_are_closed_where_nobody_may_look_into_them() {
    let world =
        World::with(Settings { debugging: false, ..Settings::default() }).await.with_pod(ContainerState::Running);
    for (method, path) in [
        (Method::POST, "/exec/ns/p/c?command=ls&output=1"),
        (Method::POST, "/attach/ns/p/c?output=1"),
        (Method::POST, "/portForward/ns/p"),
        (Method::POST, "/run/ns/p/c?cmd=ls"),
        (Method::GET, "/containerLogs/ns/p/c"),
        (Method::GET, "/runningpods/"),
    ] {
        let answer = world.ask(method, path).await;
        assert_eq!(answer, (405, "Debug endpoints are disabled.".into()), "{path}");
    }
    for path in ["/healthz", "/pods", "/metrics", "/stats/summary"] {
        assert_eq!(world.get(path).await.0, 200, "{path}");
    }
    assert_eq!(world.get("/configz").await, (404, "404 page not found\n".into()));
}
