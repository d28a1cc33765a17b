//! Where the API server keeps its objects.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use carrack_store::etcd;
use clap::Args;

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
