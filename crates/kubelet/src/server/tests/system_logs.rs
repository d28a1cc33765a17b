//! The node's logs, and what they must not lead to.

use std::fs;
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

/// A server whose logs are in a directory of its own, beside a file that is nobody's to read.
async fn world() -> (World, tempfile::TempDir) {
    let node = tempfile::tempdir().expect("directory");
    let logs = node.path().join("log");
    fs::create_dir_all(logs.join("pods/a b")).expect("made");
    fs::create_dir(logs.join("containers")).expect("made");
    fs::write(node.path().join("secret"), "secret").expect("written");
    fs::write(logs.join("messages"), "one\ntwo\n").expect("written");
    fs::write(logs.join("wtmp"), [7, 0, 0, 0]).expect("written");
    fs::write(logs.join("pods/a b/0<&>.log"), "x".repeat(100_000)).expect("written");
    symlink(logs.join("pods/a b/0<&>.log"), logs.join("containers/c.log")).expect("linked");
    symlink(node.path().join("secret"), logs.join("out")).expect("linked");
    symlink("../../secret", logs.join("pods/out")).expect("linked");
    symlink(node.path(), logs.join("away")).expect("linked");
    symlink("loop", logs.join("loop")).expect("linked");
    mknodat(CWD, logs.join("pipe"), FileType::Fifo, Mode::RUSR, 0).expect("made");
    (World::with(Settings { system_logs: Some(logs), ..Settings::default() }).await, node)
}

#[tokio::test]
async fn files_and_lists_are_served() {
    let (world, _node) = world().await;
    for (path, content_type, expected) in [
        ("/logs/messages", "text/plain; charset=utf-8", "one\ntwo\n".to_owned()),
        ("/logs/wtmp", "application/octet-stream", "\u{7}\0\0\0".into()),
        ("/logs/containers/c.log", "text/plain; charset=utf-8", "x".repeat(100_000)),
        ("/logs/pods/a%20b/0%3C%26%3E.log", "text/plain; charset=utf-8", "x".repeat(100_000)),
        (
            "/logs/pods/a%20b/",
            "text/html; charset=utf-8",
            "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n\
             <a href=\"0%3C%26%3E.log\">0&lt;&amp;&gt;.log</a>\n</pre>\n"
                .into(),
        ),
    ] {
        let response = world.send(request(Method::GET, path, &[])).await;
        assert_eq!(response.headers()["content-type"], content_type, "{path}");
        assert_eq!(text(response).await, (200, expected), "{path}");
    }
    let (code, page) = world.get("/logs/").await;
    assert!(code == 200 && page.contains("<a href=\"pods/\">pods/</a>\n<a href=\"wtmp\">wtmp</a>\n"), "{page}");
    for (path, expected) in [("/logs", "logs/"), ("/logs/pods", "pods/"), ("/logs/pods/a%20b", "a%20b/")] {
        let response = world.send(request(Method::GET, path, &[])).await;
        assert_eq!(response.status().as_u16(), 301, "{path}");
        assert_eq!(response.headers()["location"], expected, "{path}");
    }
}

#[tokio::test]
async fn parts_of_files_are_served() {
    let (world, node) = world().await;
    let whole = world.send(request(Method::GET, "/logs/messages", &[])).await;
    let headers = whole.headers().clone();
    assert_eq!(headers["accept-ranges"], "bytes");
    assert_eq!(headers["content-length"], "8");
    assert!(!headers.contains_key("content-range"), "{headers:?}");
    let changed = headers["last-modified"].to_str().expect("text");
    for (asked, code, range, expected) in [
        (&[("range", "bytes=4-")][..], 206, Some("bytes 4-7/8"), "two\n"),
        (&[("range", "bytes=-4")], 206, Some("bytes 4-7/8"), "two\n"),
        (&[("range", "bytes=0-2")], 206, Some("bytes 0-2/8"), "one"),
        (&[("range", "bytes=0-2"), ("if-range", changed)], 206, Some("bytes 0-2/8"), "one"),
        (&[("range", "bytes=0-2"), ("if-range", "Thu, 01 Jan 1970 00:00:00 GMT")], 200, None, "one\ntwo\n"),
        (&[("range", "bytes=8-")], 416, Some("bytes */8"), "invalid range: failed to overlap\n"),
        (&[("range", "lines=1-2")], 416, None, "invalid range\n"),
        (&[("if-modified-since", changed)], 304, None, ""),
        (&[("if-modified-since", "Thu, 01 Jan 1970 00:00:00 GMT")], 200, None, "one\ntwo\n"),
    ] {
        let response = world.send(request(Method::GET, "/logs/messages", asked)).await;
        let told = response.headers().get("content-range").map(|range| range.to_str().expect("text").to_owned());
        assert_eq!(told.as_deref(), range, "{asked:?}");
        assert_eq!(text(response).await, (code, expected.to_owned()), "{asked:?}");
    }
    drop(node);
}

/// Stands in for journalctl: it knows two units, and tells what it is asked. Of one it complains more than a pipe holds before it
/// tells anything.
const JOURNAL: &str = r#"
case "$*" in
    --field*) printf 'kubelet.service\nbroken.service\n' ;;
    *--unit=broken*) head -c 100000 /dev/zero | tr '\0' x >&2; echo told ;;
    *) echo "asked $*" ;;
esac
"#;

#[tokio::test]
async fn services_are_asked_for() {
    let (_, node) = world().await;
    let (logs, script) = (node.path().join("log"), node.path().join("journal"));
    fs::write(&script, JOURNAL).expect("written");
    fs::create_dir(logs.join("crio")).expect("made");
    fs::write(logs.join("crio/crio.log"), "of crio\n").expect("written");
    let settings = |log_queries: bool| Settings {
        system_logs: Some(logs.clone()),
        log_queries,
        journal: vec!["sh".into(), script.to_string_lossy().into_owned()],
        ..Settings::default()
    };
    let world = World::with(settings(true)).await;
    for (query, code, expected) in [
        (
            "query=kubelet&tailLines=3&pattern=a+b",
            200,
            "asked --utc --no-pager --pager-end --lines=3 --unit=kubelet --grep=a b --output=short-precise\n",
        ),
        // It is no service, though the name of one ends so.
        ("query=let", 200, "\nlog not found for let\n"),
        ("query=messages", 200, "one\ntwo\n"),
        ("query=crio", 200, "of crio\n"),
        ("query=none", 200, "\nlog not found for none\n"),
        ("query=out", 200, "\nlog not found for out\n"),
        (
            "query=crio&boot=0",
            200,
            "\noptions present and query resolved to log files for [crio]\ntry without specifying options\n",
        ),
        ("query=/crio/crio.log", 200, "of crio\n"),
        ("query=../secret", 404, "404 page not found\n"),
        ("query=", 400, "query: Invalid value: \"\": query cannot be empty\n"),
        ("tailLines=3", 406, "query: Required value: cannot be empty with options\n"),
    ] {
        assert_eq!(world.get(&format!("/logs/?{query}")).await, (code, expected.to_owned()), "{query}");
    }
    let (code, told) = world.get("/logs/?query=broken").await;
    assert_eq!((code, told.matches('x').count(), told.contains("told\n")), (200, 100_000, true));
    let (code, why) = world.get("/logs/messages?query=kubelet").await;
    assert_eq!((code, why.as_str()), (406, "path not allowed in query mode\n"));
    // Where nobody may ask so, it is a list as ever.
    let world = World::with(settings(false)).await;
    let (code, page) = world.get("/logs/?query=kubelet").await;
    assert!(code == 200 && page.contains("messages"), "{page}");
}

#[tokio::test]
async fn nothing_leads_out_of_them() {
    let (world, _node) = world().await;
    let no_page = || (404, "404 page not found\n".to_owned());
    for path in [
        "/logs/none",
        "/logs/messages/none",
        "/logs/pipe",
        "/logs/out",
        "/logs/pods/out",
        "/logs/away/",
        "/logs/away/secret",
        "/logs/../secret",
        "/logs/%2e%2e/secret",
        "/logs/..%2Fsecret",
        "/logs/pods/../../secret",
        "/logs//etc/hostname",
        "/logs/%2Fetc/hostname",
        "/logs/a%00b",
    ] {
        assert_eq!(world.get(path).await, no_page(), "{path}");
    }
    assert_eq!(world.get("/logs/loop").await, (500, "500 Internal Server Error\n".into()));
    assert_eq!(world.get("/logs/%zz").await.0, 400);
}

#[tokio::test]
async fn they_can_be_closed() {
    let world = World::new().await;
    assert_eq!(world.get("/logs/").await, (405, "logs endpoint is disabled.".into()));
    let settings = Settings { debugging: false, system_logs: Some("/".into()), ..Settings::default() };
    let world = World::with(settings).await;
    assert_eq!(world.get("/logs/").await, (405, "Debug endpoints are disabled.".into()));
}
