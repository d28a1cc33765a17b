use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustls_pki_types::pem::PemObject as _;

use super::*;

const NOW: i64 = 1_800_000_000;
const DAY_S: i64 = 24 * 3600;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("exists").permissions().mode() & 0o777
}

fn sans() -> Sans {
    Sans::apiserver("10.43.0.1".parse().expect("an address")).with_name("host-1")
}

/// All files and their content.
fn snapshot(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let content = fs::read(entry.path()).expect("readable");
            (entry.file_name().to_string_lossy().into_owned(), content)
        })
        .collect();
    files.sort();
    files
}

fn make_all(directory: &Path, now: i64) -> Result<(), PkiError> {
    let pki = Pki::open_or_create(directory, now)?;
    for identity in [
        Identity::Admin,
        Identity::Scheduler,
        Identity::ControllerManager,
        Identity::VirtController,
        Identity::VirtHandler { node: "n1".into() },
        Identity::LocalStorage { node: "n1".into() },
        Identity::Node { node: "n1".into() },
        Identity::ApiserverKubeletClient,
        Identity::ApiserverVirtHandlerClient,
        Identity::GpuExtender,
        Identity::FrontProxy,
    ] {
        pki.client(&identity, now)?;
    }
    pki.server(&Server::Apiserver, &sans(), now)?;
    pki.server(&Server::Kubelet { node: "n1".into() }, &Sans::loopback(), now)?;
    pki.server(&Server::VirtHandler { node: "n1".into() }, &Sans::loopback(), now)?;
    Ok(())
}

#[test]
fn files_are_private_and_made_once() {
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("pki");
    make_all(&directory, NOW).expect("made");
    assert_eq!(mode(&directory), 0o700);
    for (name, _) in snapshot(&directory) {
        assert_eq!(mode(&directory.join(&name)), 0o600, "{name}");
        assert!(!name.ends_with(".tmp"), "{name}");
    }
    let first = snapshot(&directory);
    make_all(&directory, NOW + DAY_S).expect("loaded");
    assert_eq!(snapshot(&directory), first);
}

#[test]
fn open_files_are_closed() {
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("pki");
    make_all(&directory, NOW).expect("made");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("set");
    let key = directory.join("ca.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("set");
    make_all(&directory, NOW).expect("loaded");
    assert_eq!((mode(&directory), mode(&key)), (0o700, 0o600));
}

#[test]
fn certificates_are_issued_again_when_they_do_not_fit() {
    let directory = tempfile::tempdir().expect("a directory");
    let pki = Pki::open_or_create(directory.path(), NOW).expect("made");
    let serving = |sans: &Sans, now| pki.server(&Server::Apiserver, sans, now).expect("issued");
    let first = serving(&sans(), NOW);
    assert_eq!(serving(&sans(), NOW), first);
    let moved = sans().with_address("192.0.2.7".parse().expect("an address"));
    let second = serving(&moved, NOW);
    assert_ne!(second, first, "another address");
    assert_ne!(serving(&sans(), NOW), second, "one address less");

    let client = |now| pki.client(&Identity::Admin, now).expect("issued");
    let first = client(NOW);
    assert_eq!(client(NOW + 274 * DAY_S), first);
    let second = client(NOW + 276 * DAY_S);
    assert_ne!(second, first, "near its end");
    assert_eq!(client(NOW + 277 * DAY_S), second);
    assert_ne!(client(NOW), second, "not valid yet: the clock went back");
}

#[test]
fn an_authority_near_its_end_does_not_issue_again_and_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let pki = Pki::open_or_create(directory.path(), NOW).expect("made");
    let late = NOW + 3640 * DAY_S;
    let first = pki.client(&Identity::Admin, late).expect("issued");
    assert_eq!(pki.client(&Identity::Admin, late + DAY_S).expect("kept"), first);
    let expired = Pki::open_or_create(directory.path(), NOW + 3650 * DAY_S);
    assert!(matches!(expired, Err(PkiError::CaExpired(_))), "{expired:?}");
}

#[test]
fn damage_is_told() {
    let check = |name: &str, what: &dyn Fn(&Path), want: fn(&PkiError) -> bool| {
        let directory = tempfile::tempdir().expect("a directory");
        make_all(directory.path(), NOW).expect("made");
        what(&directory.path().join(name));
        let got = make_all(directory.path(), NOW);
        let error = got.expect_err(name);
        assert!(want(&error), "{name}: {error:?}");
        assert!(error.to_string().contains(name.split('.').next().unwrap_or(name)), "{error}");
    };
    let garbage = |path: &Path| fs::write(path, "garbage").expect("written");
    let binary = |path: &Path| fs::write(path, [0xff, 0xfe]).expect("written");
    let empty = |path: &Path| fs::write(path, "").expect("written");
    let remove = |path: &Path| fs::remove_file(path).expect("removed");
    let damaged: fn(&PkiError) -> bool = |e| matches!(e, PkiError::Damaged { .. });
    let incomplete: fn(&PkiError) -> bool = |e| matches!(e, PkiError::Incomplete { .. });
    for name in ["ca.crt", "ca.key", "sa.key", "admin.crt", "admin.key", "serving-apiserver.crt"] {
        check(name, &garbage, damaged);
        check(name, &empty, damaged);
        check(name, &binary, damaged);
    }
    check("ca.key", &remove, incomplete);
    check("sa.key", &remove, incomplete);
    check(
        "ca.crt",
        &|path| {
            let other = path.with_file_name("front-proxy-ca.crt");
            fs::copy(other, path).map(|_| ()).expect("copied");
        },
        damaged,
    );
}

#[test]
fn interrupted_writes_are_finished() {
    let directory = tempfile::tempdir().expect("a directory");
    make_all(directory.path(), NOW).expect("made");
    let first = snapshot(directory.path());
    let read = |name: &str| fs::read(directory.path().join(name)).expect("readable");
    // A crash after the key: the authority goes on with it, so that what it signed stays good.
    fs::remove_file(directory.path().join("ca.crt")).expect("removed");
    fs::remove_file(directory.path().join("sa.pub")).expect("removed");
    fs::write(directory.path().join(".ca.crt.1.tmp"), "half").expect("written");
    make_all(directory.path(), NOW).expect("finished");
    let subject = |pem: &[u8]| {
        let der = rustls_pki_types::CertificateDer::from_pem_slice(pem).expect("PEM");
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).expect("DER");
        parsed.subject().to_string()
    };
    let old = first.iter().find(|(n, _)| n == "ca.crt").expect("was there");
    assert_eq!(subject(&read("ca.crt")), subject(&old.1));
    assert!(!directory.path().join(".ca.crt.1.tmp").exists());
    let kept = |name: &str| first.iter().any(|(n, content)| n == name && *content == read(name));
    assert!(kept("ca.key") && kept("admin.crt") && kept("sa.key") && kept("sa.pub"));
    // A role's key without its certificate, or with an older one, is replaced.
    fs::remove_file(directory.path().join("admin.crt")).expect("removed");
    fs::copy(directory.path().join("scheduler.key"), directory.path().join("kubelet-n1.key")).expect("copied");
    make_all(directory.path(), NOW).expect("finished");
    assert!(!kept("admin.key") && !kept("kubelet-n1.key"));
}

#[test]
fn another_authority_replaces_what_the_old_one_signed() {
    let (one, two) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    make_all(one.path(), NOW).expect("made");
    make_all(two.path(), NOW).expect("made");
    for name in ["ca.crt", "ca.key"] {
        fs::copy(two.path().join(name), one.path().join(name)).expect("copied");
    }
    let before = fs::read(one.path().join("admin.crt")).expect("readable");
    make_all(one.path(), NOW).expect("issued again");
    assert_ne!(fs::read(one.path().join("admin.crt")).expect("readable"), before);
}

#[test]
fn two_processes_at_once_make_one_pki() {
    let directory = tempfile::tempdir().expect("a directory");
    let pems: Vec<String> = std::thread::scope(|scope| {
        let make = || {
            let pki = Pki::open_or_create(directory.path(), NOW).expect("made");
            let admin = pki.client(&Identity::Admin, NOW).expect("issued");
            format!("{}{}{}", pki.ca_pem(), admin.certificate, admin.key.expose())
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    assert!(pems.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn names_that_would_leave_the_directory_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let pki = Pki::open_or_create(directory.path(), NOW).expect("made");
    for node in ["", "../x", "a/b", "A", "-a", "a_b", &"a".repeat(201)] {
        let identity = Identity::Node { node: node.into() };
        assert!(matches!(pki.client(&identity, NOW), Err(PkiError::Name { .. })), "{node:?}");
    }
    let odd = Sans::loopback().with_name("my host").with_name("192.0.2.1").with_name("Name.");
    assert_eq!(odd.names.iter().map(String::as_str).collect::<Vec<_>>(), ["localhost", "name"]);
    assert_eq!(odd.addresses.len(), 3);
}

#[test]
fn opening_what_is_not_there() {
    let directory = tempfile::tempdir().expect("a directory");
    assert!(matches!(Pki::open(&directory.path().join("pki"), NOW), Err(PkiError::Missing(_))));
    let file = directory.path().join("file");
    fs::write(&file, "x").expect("written");
    assert!(matches!(Pki::open_or_create(&file, NOW), Err(PkiError::Io { .. })));
}
