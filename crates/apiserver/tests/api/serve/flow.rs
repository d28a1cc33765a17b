//! Requests that wait, and those that have no time to.

use std::time::Duration;

use bytes::Bytes;
use carrack_apiserver::serve::Settings;
use carrack_auth::pki::Identity;
use http_body_util::Full;
use serde_json::json;

use crate::serve::{Running, get, request, within};

/// Who waits, and where, is shown to those who may read such paths.
#[tokio::test]
async fn queues_are_shown_to_administrators() {
    const DUMP: &str = "/debug/api_priority_and_fairness/dump";
    let settings = Settings { max_in_flight: 6, max_wait: Duration::from_secs(60), ..Settings::default() };
    let running = Running::start(settings).await;
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 5});
    running.without_seats("global-default", json!({"type": "Queue", "queuing": queuing})).await;
    let mut waits = running.connect(None).await;
    let waiting = tokio::spawn(async move { waits.send_request(get("/version")).await });
    let shown = async |what: &str| {
        let (code, text) = running.send(Some(Identity::Admin), get(&format!("{DUMP}_{what}"))).await;
        (code, text.as_str().unwrap_or_default().to_owned())
    };
    let row = async |what: &str, level: &str| {
        let (code, text) = shown(what).await;
        assert!(code == 200 && text.starts_with("PriorityLevelName, "), "{code} {text}");
        let row = text.lines().find(|line| line.starts_with(&format!("{level}, "))).unwrap_or_default();
        row.split(',').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    within("a request that waits", async {
        while row("priority_levels", "global-default").await.get(4).is_none_or(|waiting| waiting != "1") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(row("queues", "global-default").await[1..3], ["0", "1"]);
    let asked = row("requests?includeRequestDetails=1", "global-default").await;
    assert_eq!(asked[2..4], ["0", "0"]);
    assert_eq!(asked[10..13], ["system:anonymous", "get", "/version"]);
    // That which is answered just now is served.
    assert_eq!(row("requests", "exempt").await[2..4], ["-1", "-1"]);
    waiting.abort();
    within("a request that was given up", async {
        while row("priority_levels", "global-default").await[4] != "0" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(row("priority_levels", "global-default").await[9], "1");
    let node = Some(Identity::Node { node: "n1".to_owned() });
    assert_eq!(running.send(node, get(&format!("{DUMP}_queues"))).await.0, 403);
    assert_eq!(shown("nothing").await.0, 404);
}

/// Who gives a request little time has it wait for a quarter of that, and not for as long as others may.
#[tokio::test]
async fn a_seat_is_waited_for_as_long_as_there_is_time() {
    let settings = Settings { max_in_flight: 6, max_wait: Duration::from_secs(60), ..Settings::default() };
    let running = Running::start(settings).await;
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 5});
    running.without_seats("global-default", json!({"type": "Queue", "queuing": queuing})).await;
    let waits = running.send(None, get("/version?timeout=400ms"));
    assert_eq!(within("a request that has little time", waits).await.0, 429);
    let dump = get("/debug/api_priority_and_fairness/dump_priority_levels");
    let text = running.send(Some(Identity::Admin), dump).await.1;
    let row = text.as_str().and_then(|text| text.lines().find(|line| line.starts_with("global-default, ")));
    let cells: Vec<&str> = row.unwrap_or_default().split(',').map(str::trim).collect();
    assert_eq!(cells[8..], ["1", "0"], "timed out and cancelled: {cells:?}");
}

/// However quickly it would be answered: time that was over when a request came is over.
#[tokio::test]
async fn who_gives_no_time_gets_no_answer() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let running = Running::start(Settings::default()).await;
    let admin = || Some(Identity::Admin);
    let make = |name: &str, timeout: &str| {
        let body = Bytes::from(json!({"metadata": {"name": name}}).to_string());
        request("POST", &format!("{MAPS}?timeout={timeout}")).body(Full::from(body)).expect("request")
    };
    let (code, status) = running.send(admin(), make("a", "1ns")).await;
    assert_eq!((code, status["reason"].as_str()), (504, Some("Timeout")));
    let want = "Timeout: request did not complete within the allotted timeout";
    assert_eq!(status["message"], want);
    assert_eq!(running.send(admin(), get(&format!("{MAPS}/a"))).await.0, 404);
    assert_eq!(running.send(admin(), get(&format!("{MAPS}?timeout=1ns"))).await.0, 504);
    let metrics = running.send(admin(), get("/metrics")).await.1;
    for verb in ["POST", "LIST"] {
        let what = format!("code=\"504\",verb=\"{verb}\",group=\"\",version=\"v1\",resource=\"configmaps\"");
        let line = format!("apiserver_request_terminations_total{{{what},subresource=\"\",scope=\"namespace\",");
        let told = metrics.as_str().unwrap_or_default().lines().any(|told| told.starts_with(&line));
        assert!(told, "{line}: {metrics}");
    }
    for (name, timeout) in [("b", "0s"), ("c", "1h"), ("d", "1m1.5s")] {
        assert_eq!(running.send(admin(), make(name, timeout)).await.0, 201, "{timeout}");
    }
    assert_eq!(running.send(admin(), make("e", "soon")).await.0, 400);
}
