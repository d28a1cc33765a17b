//! Where the API server keeps its objects, and the arguments of `carrack store`.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use carrack_store::etcd;
use clap::{Args, Subcommand};

use super::{ClientArgs, DataDir};
use crate::output::Format;

/// Which store, and how it is reached. The names of the files' flags are upstream's.
#[derive(Debug, Clone, Default, Args)]
pub struct StoreArgs {
    /// Where objects are kept: embedded (below the data directory), or etcd://HOST:PORT[,HOST:PORT...]
    #[arg(long, value_name = "STORE", env = "CARRACK_STORE", default_value = "embedded")]
    pub store: String,
    /// Certificate authority of etcd's certificate, in PEM; makes the connection one over TLS
    #[arg(long, value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// Certificate to show to etcd, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["etcd_cafile", "etcd_keyfile"])]
    pub etcd_certfile: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
}

/// `carrack store`
#[derive(Debug, Args)]
#[command(after_help = "\
A backup holds all objects, secrets among them, as they were at one moment. It is made from a
running API server, whichever store that has, by whoever may read /debug/store/backup (the
administrator). A restored cluster's resourceVersions are far ahead of those of the backup, so
that clients list everything again. Not in it are what pods and machines keep in volumes, and pki/
below the data directory: without a copy of that, a cluster that is restored elsewhere has another
authority, and the kubeconfigs and tokens from before are good for nothing.

Examples:
  # While the cluster runs
  carrack store backup /srv/backup/monday

  # On a machine that lost its data directory
  carrack store restore /srv/backup/monday --data-dir /var/lib/carrack
  carrack up --detach

  # Is everything readable?
  carrack store check")]
pub struct StoreCommandArgs {
    /// What to do
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// What `carrack store` does.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Write all objects of a running API server to a file
    Backup {
        /// File to write; there may be none of that name yet
        file: PathBuf,
        /// Which cluster
        #[command(flatten)]
        client: ClientArgs,
        /// Output format
        #[arg(short, long, value_enum, value_name = "FORMAT")]
        output: Option<Format>,
    },
    /// Make the embedded store of a data directory from a backup
    Restore {
        /// Backup to read
        file: PathBuf,
        /// Where the cluster lives, or is to live; it may have no store yet
        #[command(flatten)]
        data_dir: DataDir,
        /// Output format
        #[arg(short, long, value_enum, value_name = "FORMAT")]
        output: Option<Format>,
    },
    /// Read a backup, or the embedded store of a stopped cluster, and say whether it is sound
    Check {
        /// Backup to read; the store below the data directory without it
        file: Option<PathBuf>,
        /// Where the cluster lives
        #[command(flatten)]
        data_dir: DataDir,
        /// Output format
        #[arg(short, long, value_enum, value_name = "FORMAT")]
        output: Option<Format>,
    },
}

/// What the arguments ask for.
#[derive(Debug)]
pub enum Choice {
    /// The one below the data directory.
    Embedded,
    /// etcd.
    Etcd(Box<etcd::Options>),
}

impl StoreArgs {
    /// Reads the address, and the files that it needs.
    ///
    /// # Errors
    /// The address makes no sense, or a file cannot be read.
    pub fn choice(&self) -> anyhow::Result<Choice> {
        if matches!(self.store.as_str(), "" | "embedded") {
            return Ok(Choice::Embedded);
        }
        let Some(hosts) = self.store.strip_prefix("etcd://") else {
            bail!("{:?} is no store: it is \"embedded\" or \"etcd://HOST:PORT[,HOST:PORT...]\"", self.store);
        };
        let mut endpoints = Vec::new();
        for host in hosts.trim_end_matches('/').split(',') {
            let port =
                host.rsplit_once(':').and_then(|(name, port)| port.parse::<u16>().ok().filter(|_| !name.is_empty()));
            if port.is_none() {
                bail!("{host:?} in --store is no HOST:PORT");
            }
            endpoints.push(host.to_owned());
        }
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut options = etcd::Options::new(endpoints);
        if let Some(ca) = &self.etcd_cafile {
            let identity = match (&self.etcd_certfile, &self.etcd_keyfile) {
                (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
                _ => None,
            };
            options.tls = Some(etcd::Tls { ca: read(ca)?, identity });
        }
        Ok(Choice::Etcd(Box::new(options)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let check = |store: &str, want: Option<&[&str]>| {
            let args = StoreArgs { store: store.to_owned(), ..StoreArgs::default() };
            let found = match args.choice() {
                Ok(Choice::Embedded) => Some(Vec::new()),
                Ok(Choice::Etcd(options)) => Some(options.endpoints),
                Err(_) => None,
            };
            assert_eq!(found, want.map(|want| want.iter().map(ToString::to_string).collect()), "{store}");
        };
        check("embedded", Some(&[]));
        check("etcd://127.0.0.1:2379", Some(&["127.0.0.1:2379"]));
        check("etcd://a:1,[::1]:2/", Some(&["a:1", "[::1]:2"]));
        check("etcd://a", None);
        check("etcd://:2379", None);
        check("etcd://a:1,", None);
        check("/var/lib/x", None);
    }
}
