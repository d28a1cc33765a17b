use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::pki::KeyPairPem;
use crate::secret::Secret;

fn pair() -> KeyPairPem {
    KeyPairPem { certificate: "CERT\n".into(), key: Secret::new("KEY\n") }
}

#[test]
fn what_is_written_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a/b.conf");
    let config = Kubeconfig::for_certificate("c", "u", "https://h:1", "CA\n", &pair());
    config.write(&path).expect("written");
    config.write(&path).expect("written over");
    assert_eq!(fs::metadata(&path).expect("exists").permissions().mode() & 0o777, 0o600);
    let target = Kubeconfig::load(&path).expect("loaded").resolve(None).expect("resolved");
    assert_eq!(target.server, "https://h:1");
    assert_eq!(target.ca_pem.as_deref(), Some("CA\n"));
    assert_eq!(target.client, Some(pair()));
    assert_eq!((target.token, target.namespace.as_str(), target.insecure), (None, "default", false));

    let config = Kubeconfig::for_token("c", "u", "https://h", "CA\n", &Secret::new("t"));
    let target = Kubeconfig::parse(&config.to_text()).expect("parses").resolve(Some("c")).expect("resolved");
    assert_eq!(target.token, Some(Token::Inline(Secret::new("t"))));
    assert_eq!(target.host_port().expect("an address"), ("h".to_owned(), 443));
}

/// As other tools write them: YAML, files beside it, fields that we do not know.
#[test]
fn a_file_of_another_tool() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("written");
    write("ca.crt", "CA\n");
    write("u.crt", "CERT\n");
    write("u.key", "KEY\n");
    write("token", "t0\n");
    write(
        "config",
        r"
apiVersion: v1
kind: Config
preferences: {colors: true}
current-context: one
extensions: null
clusters:
- name: k
  cluster:
    server: https://[::1]:6443/
    certificate-authority: ca.crt
    tls-server-name: kubernetes
    disable-compression: true
contexts:
- name: one
  context: {cluster: k, user: files, namespace: work}
- context:
    cluster: k
    user: tokens
  name: two
users:
- name: files
  user:
    client-certificate: u.crt
    client-key: u.key
- name: tokens
  user:
    token: old
    tokenFile: token
",
    );
    let config = Kubeconfig::load(&directory.path().join("config")).expect("loaded");
    let one = config.resolve(None).expect("resolved");
    assert_eq!(one.client, Some(pair()));
    assert_eq!(one.ca_pem.as_deref(), Some("CA\n"));
    assert_eq!((one.namespace.as_str(), one.tls_server_name.as_deref()), ("work", Some("kubernetes")));
    assert_eq!(one.host_port().expect("an address"), ("::1".to_owned(), 6443));
    let two = config.resolve(Some("two")).expect("resolved");
    let token = two.token.expect("a token");
    assert_eq!(token.read().expect("read").expose(), "t0");
    write("token", "t1");
    assert_eq!(token.read().expect("read").expose(), "t1", "exchanged in place");
}

fn config(cluster: &str, user: &str) -> String {
    format!(
        "{{current-context: x, contexts: [{{name: x, context: {{cluster: c, user: u}}}}],
           clusters: [{{name: c, cluster: {cluster}}}], users: [{{name: u, user: {user}}}]}}"
    )
}

#[test]
fn what_makes_no_sense_is_told() {
    let check = |text: &str, context: Option<&str>, want: &str| {
        let got = Kubeconfig::parse(text).and_then(|config| config.resolve(context));
        let error = got.expect_err(want).to_string();
        assert!(error.contains(want), "{want}: {error}");
    };
    let good = "{server: 'https://h', insecure-skip-tls-verify: true}";
    check("{}", None, "no current-context");
    check("current-context: x", None, "no context \"x\"");
    check(&config(good, "{}"), Some("y"), "no context \"y\"");
    check("{current-context: x, contexts: [{name: x, context: {cluster: c}}]}", None, "no cluster \"c\"");
    check(&config("{server: 'http://h'}", "{}"), None, "not an https:// address");
    check(&config("{server: 'https://'}", "{}"), None, "not an https:// address");
    check(&config("{server: 'https://h'}", "{}"), None, "certificate-authority is missing");
    check(
        &config("{server: 'https://h', certificate-authority-data: '!'}", "{}"),
        None,
        "certificate-authority-data is not base64",
    );
    check(&config("{server: 'https://h', certificate-authority: /nowhere}", "{}"), None, "cannot read /nowhere");
    check(&config(good, "{client-certificate-data: QQ==}"), None, "client-key is missing");
    check(&config(good, "{client-key-data: QQ==}"), None, "client-certificate is missing");
    check(&config(good, "{exec: {command: x}}"), None, "a credential plugin (exec)");
    check(&config(good, "{auth-provider: {name: x}}"), None, "an auth-provider");
    check(&config(good, "{username: x, password: y}"), None, "a user name with password");
    check(&config(good, "{token: x, as: y}"), None, "impersonation (as)");
    check(&config(good, "{token: x, as-groups: [y]}"), None, "the kubeconfig's as is missing");
    check("a: [", None, "does not parse (line");
    check(&config(good, "{token: [s3cret]}"), None, "does not parse");
}

#[test]
fn secrets_do_not_show() {
    let text =
        config("{server: 'https://h', insecure-skip-tls-verify: true}", "{token: s3cret, client-key-data: czNjcmV0}");
    let config = Kubeconfig::parse(&text).expect("parses");
    let shown = format!("{config:?}");
    assert!(!shown.contains("s3cret") && !shown.contains("czNjcmV0"), "{shown}");
    let error = Kubeconfig::parse("{users: [{name: u, user: {token: {s3cret: 1}}}]}").expect_err("no string");
    assert!(!format!("{error:?} {error}").contains("s3cret"));
}

#[test]
fn large_files_are_not_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config");
    fs::write(&path, vec![b' '; (1 << 20) + 1]).expect("written");
    assert!(matches!(Kubeconfig::load(&path), Err(KubeconfigError::TooLarge(_))));
}
