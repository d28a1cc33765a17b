//! `carrack kubeconfig`, and how the client commands find theirs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use carrack_auth::kubeconfig::{Kubeconfig, Target};
use carrack_auth::pki::{Identity, Sans, Server, write_private};
use carrack_noderuntime::layout::DEFAULT_DATA_DIR;

use crate::cli::{ClientArgs, DataDir, KubeconfigArgs, User};
use crate::{output, roles};

/// The name of cluster and context in kubeconfigs.
pub const CLUSTER: &str = "carrack";

/// Prints the path, or the file.
pub fn run(args: &KubeconfigArgs) -> anyhow::Result<()> {
    let path = args.data_dir.layout()?.kubeconfig();
    if !is_there(&path)? {
        bail!("{} does not exist: no cluster was started there yet (carrack up)", path.display());
    }
    let text = printed(args, &path)?;
    if (args.raw || args.user.is_some()) && is_read_by_others(Path::new("/proc/self/fd/1")) {
        output::say(
            "warning: others may read the file that this is written to, and it holds a private key: chmod 600 it",
        );
    }
    output::write_all(text.as_bytes())
}

/// Whether something is a file that not its owner alone may read, as a shell's `>` mostly makes it.
fn is_read_by_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o044 != 0)
}

/// What is asked for: the path, the file, or a kubeconfig that is made for it.
fn printed(args: &KubeconfigArgs, path: &Path) -> anyhow::Result<String> {
    let made = match (args.user, &args.server) {
        (Some(user), _) => made_for(args, user)?,
        (None, Some(_)) if args.raw => made_of(args, &Identity::Admin)?,
        (None, Some(_)) => bail!("--server stands in a file and not in its path: say --raw or --user, too"),
        (None, None) if args.raw => {
            return fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        }
        (None, None) => return Ok(format!("{}\n", path.display())),
    };
    Ok(format!("{}\n", made.to_text().trim_end()))
}

/// Makes a role's certificate, or finds it, and a kubeconfig with it; and what it serves with.
fn made_for(args: &KubeconfigArgs, user: User) -> anyhow::Result<Kubeconfig> {
    let node = || roles::node_name(args.node_name.as_deref());
    let identity = match user {
        User::Scheduler => Identity::Scheduler,
        User::Controllers => Identity::ControllerManager,
        User::VirtController => Identity::VirtController,
        User::Kubelet => Identity::Node { node: node()? },
        User::VirtHandler => Identity::VirtHandler { node: node()? },
        User::GpuExtender => Identity::GpuExtender,
        User::LocalStorage => Identity::LocalStorage { node: node()? },
    };
    if let Some(dir) = &args.tls_dir {
        let server = match user {
            User::Kubelet => Server::Kubelet { node: node()? },
            User::VirtHandler => Server::VirtHandler { node: node()? },
            _ => bail!("--tls-dir is for --user kubelet and virt-handler: the API server asks no other"),
        };
        write_serving(args, &server, &node()?, dir)?;
    }
    made_of(args, &identity)
}

/// A kubeconfig with the certificate of an identity.
fn made_of(args: &KubeconfigArgs, identity: &Identity) -> anyhow::Result<Kubeconfig> {
    let layout = args.data_dir.layout()?;
    let server = match &args.server {
        Some(server) => server.clone(),
        None => Kubeconfig::load(&layout.kubeconfig())?.resolve(None)?.server,
    };
    let pki = roles::apiserver::open_pki(&layout)?;
    let pair = pki.client(identity, roles::apiserver::now_unix_s())?;
    Ok(Kubeconfig::for_certificate(CLUSTER, &identity.user(), &server, pki.ca_pem(), &pair))
}

/// Makes the certificate that a node's agent serves with, or finds it, and writes what it needs for that into `dir`.
fn write_serving(args: &KubeconfigArgs, server: &Server, node: &str, dir: &Path) -> anyhow::Result<()> {
    let pki = roles::apiserver::open_pki(&args.data_dir.layout()?)?;
    let sans = args.node_ip.iter().fold(Sans::loopback().with_name(node), |sans, address| sans.with_address(*address));
    let pair = pki.server(server, &sans, roles::apiserver::now_unix_s())?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let files = [("tls.crt", pair.certificate.as_str()), ("tls.key", pair.key.expose()), ("ca.crt", pki.ca_pem())];
    for (name, text) in files {
        let path = dir.join(name);
        write_private(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Whether a file or directory is there.
///
/// # Errors
/// It cannot be looked for, and so is not known to be missing: mostly since its directory is somebody else's.
pub fn is_there(path: &Path) -> anyhow::Result<bool> {
    path.try_exists().with_context(|| format!("cannot look for {} (as another user? use sudo)", path.display()))
}

/// The server to talk to and the credentials for it.
///
/// # Errors
/// There is no kubeconfig, or it cannot be used.
pub fn target(args: &ClientArgs) -> anyhow::Result<Target> {
    let path = path(args)?;
    let kubeconfig =
        Kubeconfig::load(&path).with_context(|| format!("cannot use the kubeconfig {}", path.display()))?;
    let mut target = kubeconfig
        .resolve(args.context.as_deref())
        .with_context(|| format!("cannot use the kubeconfig {}", path.display()))?;
    if let Some(namespace) = &args.namespace {
        target.namespace.clone_from(namespace);
    }
    Ok(target)
}

fn path(args: &ClientArgs) -> anyhow::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    choose(args, &variable("KUBECONFIG"), &variable("CARRACK_DATA_DIR"))
}

/// The kubeconfig to use: what was asked for goes before what the environment says, and what that names is never another
/// cluster's because a file is missing.
fn choose(args: &ClientArgs, kubeconfig: &OsStr, data_dir: &OsStr) -> anyhow::Result<PathBuf> {
    if let Some(path) = &args.kubeconfig {
        return Ok(path.clone());
    }
    if args.data_dir.is_none() {
        let named: Vec<PathBuf> =
            std::env::split_paths(kubeconfig).filter(|path| !path.as_os_str().is_empty()).collect();
        for path in &named {
            if is_there(path)? {
                return Ok(path.clone());
            }
        }
        if !named.is_empty() {
            bail!(
                "KUBECONFIG names {}, which does not exist: set it anew, unset it, or choose with --kubeconfig or \
                 --data-dir",
                kubeconfig.display()
            );
        }
    }
    let default = if data_dir.is_empty() { OsStr::new(DEFAULT_DATA_DIR) } else { data_dir };
    let data_dir = args.data_dir.clone().unwrap_or_else(|| default.into());
    let ours = DataDir { data_dir }.layout()?.kubeconfig();
    if is_there(&ours)? {
        return Ok(ours);
    }
    bail!("no kubeconfig: {} does not exist (carrack up makes it); choose one with --kubeconfig", ours.display())
}

#[cfg(test)]
mod tests {
    use carrack_auth::pki::KeyPairPem;
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(dir: &Path, words: &[&str]) -> Option<KubeconfigArgs> {
        let dir = dir.display().to_string();
        let words = ["carrack", "kubeconfig", "--data-dir", &dir].into_iter().chain(words.iter().copied());
        match Cli::try_parse_from(words).ok()?.command {
            Command::Kubeconfig(args) => Some(args),
            _ => None,
        }
    }

    #[test]
    fn what_other_machines_need_is_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = carrack_noderuntime::Layout::new(dir.path().canonicalize().expect("it is there"));
        let pki = roles::apiserver::open_pki(&layout).expect("made");
        let pair = pki.client(&Identity::Admin, roles::apiserver::now_unix_s()).expect("made");
        let here = Kubeconfig::for_certificate(CLUSTER, "admin", "https://127.0.0.1:6443", pki.ca_pem(), &pair);
        here.write(&layout.kubeconfig()).expect("written");
        let printed = |words: &[&str]| {
            let args = args(layout.data_dir(), words).expect("arguments");
            printed(&args, &layout.kubeconfig()).map_err(|error| format!("{error:#}"))
        };
        let server = |text: &str| {
            let file = dir.path().join("printed.yaml");
            fs::write(&file, text).expect("written");
            Kubeconfig::load(&file).expect("a kubeconfig").resolve(None).expect("it is whole").server
        };
        let there = "https://192.0.2.10:6443";
        assert_eq!(printed(&[]), Ok(format!("{}\n", layout.kubeconfig().display())));
        let rows: [(&[&str], &str); 4] = [
            (&["--raw"], "https://127.0.0.1:6443"),
            (&["--user", "scheduler"], "https://127.0.0.1:6443"),
            (&["--raw", "--server", there], there),
            (&["--user", "scheduler", "--server", there], there),
        ];
        for (words, expected) in rows {
            assert_eq!(server(&printed(words).expect("printed")), expected, "{words:?}");
        }
        assert!(printed(&["--server", there]).is_err_and(|why| why.contains("--raw")));

        let tls = dir.path().join("n2");
        let of = |user: &str| {
            let dir = tls.display().to_string();
            printed(&["--user", user, "--node-name", "n2", "--tls-dir", &dir, "--node-ip", "192.0.2.12"])
        };
        assert!(of("scheduler").is_err_and(|why| why.contains("virt-handler")) && !tls.exists());
        of("virt-handler").expect("printed");
        let read = |name: &str| fs::read_to_string(tls.join(name)).expect("written");
        let served = KeyPairPem { certificate: read("tls.crt"), key: read("tls.key").into() };
        let sans = served.facts().expect("a certificate").subject.sans;
        let address: std::net::IpAddr = "192.0.2.12".parse().expect("an address");
        assert!(sans.names.contains("n2") && sans.addresses.contains(&address), "{sans:?}");
        assert_eq!(read("ca.crt"), pki.ca_pem());
        assert!(args(layout.data_dir(), &["--user", "virt-handler", "--tls-dir", "x"]).is_none(), "at no address");
    }

    #[test]
    fn nobody_is_led_to_another_cluster() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("it is there");
        let file = |name: &str| root.join(name).display().to_string();
        for name in ["one", "two"] {
            fs::create_dir(root.join(name)).expect("made");
            fs::write(root.join(name).join("kubeconfig.yaml"), "").expect("written");
        }
        let (one, two) = (file("one/kubeconfig.yaml"), file("two/kubeconfig.yaml"));
        let check = |words: &[&str], kubeconfig: &str, data_dir: &str, expected: Result<&str, &str>| {
            let words = ["carrack", "console", "demo"].iter().chain(words);
            let Ok(Cli { command: Command::Console(args) }) = Cli::try_parse_from(words.clone()) else {
                panic!("{:?}", words.collect::<Vec<_>>())
            };
            let chosen = choose(&args.client, OsStr::new(kubeconfig), OsStr::new(data_dir));
            let chosen = chosen.map(|path| path.display().to_string()).map_err(|error| format!("{error:#}"));
            let good = match (&chosen, expected) {
                (Ok(path), Ok(expected)) => path == expected,
                (Err(why), Err(part)) => why.contains(part),
                _ => false,
            };
            assert!(good, "{:?} {kubeconfig:?} {data_dir:?}: {chosen:?}", words.collect::<Vec<_>>());
        };
        check(&["--kubeconfig", "x"], &one, &file("two"), Ok("x"));
        check(&[], &one, &file("two"), Ok(&one));
        check(&[], &format!("{}:{two}:{one}", file("none")), "", Ok(&two));
        check(&[], "", &file("two"), Ok(&two));
        check(&["--data-dir", &file("two")], &one, &file("one"), Ok(&two));
        check(&[], &file("none"), &file("two"), Err("KUBECONFIG names"));
        check(&["--data-dir", &file("none")], &one, &file("one"), Err("carrack up"));
        assert!(Cli::try_parse_from(["carrack", "console", "x", "--data-dir", "a", "--kubeconfig", "b"]).is_err());
    }

    #[test]
    fn keys_are_not_for_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("written");
        for (mode, expected) in [(0o600, false), (0o640, true), (0o604, true), (0o622, false)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("changed");
            assert_eq!(is_read_by_others(&file), expected, "{mode:o}");
        }
        assert!(!is_read_by_others(Path::new("/dev/null")) && !is_read_by_others(&dir.path().join("none")));
    }

    #[test]
    fn what_cannot_be_looked_for_is_not_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("written");
        assert!(is_there(&file).expect("seen"));
        assert!(!is_there(&dir.path().join("other")).expect("seen"));
        // No directory, which is as good as one that may not be entered; tests run as root.
        assert!(is_there(&file.join("kubeconfig.yaml")).is_err());
    }
}
