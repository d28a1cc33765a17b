//! Aggregation: groups that another server serves, named by APIService objects.
//!
//! ```text
//!   request ─► authenticate, authorize ─► APIService of its group and version names a Service?
//!                                            ├ no: served here (built-in, by definition, by code)
//!                                            └ yes: carried on to it, with the caller in X-Remote- headers
//! ```
//!
//! Groups that are served here have APIService objects as well, kept by [`services`]. Upstream:
//! `k8s.io/kube-aggregator`.

mod available;
mod remote;
mod services;
mod told;

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_store::Entry;
use serde_json::Value;

use crate::follow::Fold;
use crate::keys;
use crate::object::{Object, at, name, str_at};
use crate::stored;

pub(crate) use remote::{Documents, Part, forward};
pub(crate) use services::{ApiServices, sync};

pub(crate) const GROUP: &str = "apiregistration.k8s.io";
pub(crate) const API_SERVICES: &str = "apiservices";

/// A group and version that a Service serves.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub group: String,
    pub version: String,
    /// Changes whenever the APIService does.
    pub revision: u64,
    namespace: String,
    service: String,
    port: u16,
    ca_pem: Option<String>,
    insecure: bool,
}

/// The groups and versions of other servers.
pub(crate) type Remotes = BTreeMap<(String, String), Arc<Remote>>;

/// Follows the APIServices.
#[derive(Default)]
pub(crate) struct RemotesFold {
    by_name: BTreeMap<String, Arc<Remote>>,
    now: Arc<Remotes>,
}

impl RemotesFold {
    pub(crate) fn prefixes() -> Vec<String> {
        vec![keys::of(GROUP, API_SERVICES, None)]
    }

    pub(crate) fn remotes(&self) -> Arc<Remotes> {
        Arc::clone(&self.now)
    }
}

impl Fold for RemotesFold {
    fn clear(&mut self) {
        *self = RemotesFold::default();
    }

    fn apply(&mut self, key: &str, entry: Option<&Entry>) {
        self.by_name.remove(key);
        if let Some(entry) = entry
            && let Some(remote) = read(&stored::parse(entry), entry.mod_revision.0)
        {
            self.by_name.insert(key.to_owned(), Arc::new(remote));
        }
    }

    fn settle(&mut self) {
        let of = |remote: &Arc<Remote>| ((remote.group.clone(), remote.version.clone()), Arc::clone(remote));
        self.now = Arc::new(self.by_name.values().map(of).collect());
    }
}

/// The remote that an APIService names; none when it is about a group that is served here.
fn read(object: &Object, revision: u64) -> Option<Remote> {
    use base64::Engine as _;
    let service = at(object, &["spec", "service"])?;
    let bundle = str_at(object, &["spec", "caBundle"]);
    let decoded = base64::engine::general_purpose::STANDARD.decode(bundle).ok();
    let (group, version) = (str_at(object, &["spec", "group"]), str_at(object, &["spec", "version"]));
    if group.is_empty() {
        tracing::warn!(name = name(object), "the core group is served here, whatever an APIService says");
        return None;
    }
    Some(Remote {
        group: group.to_owned(),
        version: version.to_owned(),
        revision,
        namespace: service["namespace"].as_str().unwrap_or_default().to_owned(),
        service: service["name"].as_str().unwrap_or_default().to_owned(),
        port: service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
        ca_pem: decoded.filter(|pem| !pem.is_empty()).and_then(|pem| String::from_utf8(pem).ok()),
        insecure: at(object, &["spec", "insecureSkipTLSVerify"]).and_then(Value::as_bool).unwrap_or(false),
    })
}
