#![expect(clippy::expect_used, reason = "what is not as expected fails the test")]
//! The demo guest's reader of cloud-config, run as the guest runs it: by busybox awk.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// The flattened form, or what was said about the error.
fn flatten(yaml: &str) -> Result<String, String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest/cloud.awk");
    let mut child = Command::new("busybox")
        .args(["awk", "-f", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("busybox runs");
    child.stdin.take().expect("piped").write_all(yaml.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("waited for");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[track_caller]
fn check(yaml: &str, expected: &str) {
    assert_eq!(flatten(yaml).as_deref(), Ok(expected), "{yaml}");
}

#[track_caller]
fn check_error(yaml: &str, expected: &str) {
    let error = flatten(yaml).expect_err(yaml);
    assert!(error.contains(expected), "{error:?} for {yaml}");
}

#[test]
fn scalars() {
    check("#cloud-config\na: b # comment\n", "a\tb\n");
    check("a: http://x/#y\n", "a\thttp://x/#y\n");
    check("a: 'it''s # no comment' # one\n", "a\tit's # no comment\n");
    check("a: \"x\\\"y\\n\\\\z\"\n", "a\tx\"y\\n\\\\z\n");
    check("\"a b\": c\n", "a b\tc\n");
    check("a: $6$salt$ha/sh.\n", "a\t$6$salt$ha/sh.\n");
    check("a: b\r\nc: d\r\n", "a\tb\nc\td\n");
    check("---\na: b\n", "a\tb\n");
    check("a:\n", "");
    check("", "");
}

#[test]
fn nesting() {
    check("a:\n  b:\n    c: d\n  e: f\ng: h\n", "a.b.c\td\na.e\tf\ng\th\n");
    check("a:\n- b\n- c\nd: e\n", "a[0]\tb\na[1]\tc\nd\te\n");
    check("a:\n  - b: c\n    d: e\n  - f\n", "a[0].b\tc\na[0].d\te\na[1]\tf\n");
    check("a:\n  -\n    b: c\n", "a[0].b\tc\n");
    check("a:\n  - - b\n    - c\n  - d\n", "a[0][0]\tb\na[0][1]\tc\na[1]\td\n");
    check("a:\n  - b:\n      - c\n    d: e\n", "a[0].b[0]\tc\na[0].d\te\n");
    check("- a: b\n- c\n", "[0].a\tb\n[1]\tc\n");
}

#[test]
fn blocks() {
    check("a: |\n  b: c\n    d\n\n  e\nf: g\n", "a\tb: c\\n  d\\n\\ne\nf\tg\n");
    check("a: >-\n  b\n  c\n", "a\tb c\n");
    check("a:\n  list: |\n    root:x\n    kim:y\n", "a.list\troot:x\\nkim:y\n");
}

#[test]
fn flow_collections() {
    check("a: [b, 'c, d', \"e\"]\n", "a[0]\tb\na[1]\tc, d\na[2]\te\n");
    check("a: { b: False, c: [{d: e}] } # f\n", "a.b\tFalse\na.c[0].d\te\n");
    check("a: []\n", "");
    check("{\"instance-id\":\"x\",\"local-hostname\":\"y\"}", "instance-id\tx\nlocal-hostname\ty\n");
}

#[test]
fn what_is_not_understood_is_named_with_its_line() {
    check_error("a: b\na: c\n", "line 2: the key 'a' is given twice");
    check_error("a:\n\tb: c\n", "line 2: a tab");
    check_error("a: &x b\n", "line 1: anchors");
    check_error("a: *x\n", "line 1: anchors");
    check_error("a: [b\n", "line 1: a flow sequence");
    check_error("a: {b\n", "line 1: a flow mapping");
    check_error("a: 'b\n", "line 1: a quoted string");
    check_error("a: 'b' c\n", "line 1: text after");
    check_error("a: b\n  c: d\n", "line 2: indentation without an owner");
    check_error("words only\n", "line 1: expected");
    check_error("a: b\n---\nc: d\n", "line 2: several documents");
}
