//! Logs over the wire.

use std::io::Write as _;

use super::*;

fn write(world: &World, text: &str) {
    let dir = world.dir.path().join("logs/ns_p_uid/c");
    std::fs::create_dir_all(&dir).expect("directory");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("0.log")).expect("opens");
    file.write_all(text.as_bytes()).expect("writes");
}

fn exited() -> ContainerState {
    let finished_at = Default::default();
    ContainerState::Exited { code: 0, reason: "Completed".into(), message: String::new(), finished_at }
}

#[tokio::test]
async fn options_reach_the_log() {
    let world = World::new().await.with_pod(ContainerState::Running);
    write(
        &world,
        "2016-10-06T00:17:01Z stdout F one\n2016-10-06T00:17:02Z stderr P tw\n2016-10-06T00:17:02Z stderr F o\n",
    );
    for (query, expected) in [
        ("", (200, "one\ntwo\n")),
        ("?tailLines=1", (200, "two\n")),
        ("?timestamps=true&tailLines=1", (200, "2016-10-06T00:17:02.000000000Z two\n")),
        ("?limitBytes=2", (200, "on")),
        ("?sinceTime=2016-10-06T00:17:02Z", (200, "two\n")),
        ("?sinceSeconds=10", (200, "")),
        ("?stream=Stdout", (200, "one\n")),
        ("?tailLines=-1", (400, "tailLines: Invalid value: -1: must be greater than or equal to 0")),
        ("?previous=true", (400, "previous terminated container \"c\" in pod \"p\" not found")),
        ("?x=%zz", (400, "invalid query: \"%zz\" does not decode")),
    ] {
        let (code, text) = world.get(&format!("/containerLogs/ns/p/c{query}")).await;
        assert_eq!((code, text.as_str()), expected, "{query}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let world = World::new().await.with_pod(ContainerState::Created);
    for (path, expected) in [
        ("/containerLogs/ns/p/c", (400, "container \"c\" in pod \"p\" is waiting to start: ContainerCreating")),
        ("/containerLogs/ns/p/x", (404, "container \"x\" not found in pod \"p\"")),
        ("/containerLogs/ns/q/c", (404, "pod \"q\" does not exist")),
        ("/containerLogs/other/p/c", (404, "pod \"p\" does not exist")),
    ] {
        let (code, text) = world.get(path).await;
        assert_eq!((code, text.as_str()), expected, "{path}");
    }
    world.run(ContainerState::Running);
    let (code, text) = world.get("/containerLogs/ns/p/c").await;
    assert!(code == 400 && text.starts_with("failed to open the log of container \"c\""), "{code} {text}");
    lock(&world.node.runtime).clear();
    assert_eq!(world.get("/containerLogs/ns/p/c").await, (500, "the runtime does not answer".into()));
}

async fn next(body: &mut Incoming) -> Option<String> {
    let frame = tokio::time::timeout(LONG, body.frame()).await.expect("in time")?;
    let data = frame.expect("reads").into_data().expect("data");
    Some(String::from_utf8(data.to_vec()).expect("text"))
}

#[tokio::test]
async fn following_ends_with_the_container() {
    let world = World::new().await.with_pod(ContainerState::Running);
    write(&world, "2016-10-06T00:17:01Z stdout F one\n");
    let response = world.send(request(Method::GET, "/containerLogs/ns/p/c?follow=true", &[])).await;
    assert_eq!(response.status().as_u16(), 200);
    let mut body = response.into_body();
    assert_eq!(next(&mut body).await.as_deref(), Some("one\n"));
    write(&world, "2016-10-06T00:17:02Z stdout F two\n");
    assert_eq!(next(&mut body).await.as_deref(), Some("two\n"));
    world.run(exited());
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test]
async fn followers_go_with_their_client_and_with_the_server() {
    let mut world = World::new().await.with_pod(ContainerState::Running);
    write(&world, "2016-10-06T00:17:01Z stdout F one\n");
    let follow = || request(Method::GET, "/containerLogs/ns/p/c?follow=true", &[]);
    let mut gone = world.send(follow()).await.into_body();
    let mut stays = world.send(follow()).await.into_body();
    assert_eq!(next(&mut gone).await.as_deref(), Some("one\n"));
    assert_eq!(next(&mut stays).await.as_deref(), Some("one\n"));
    drop(gone);
    // Two references are held by the world and the server; each follower and connection holds another
    // server. With all of them gone the node is ours alone, which is looked at after the shutdown.
    world.stop().await;
    assert_eq!(next(&mut stays).await, None);
    let alone = async {
        while Arc::strong_count(&world.node) > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, alone).await.expect("nobody is left");
}
