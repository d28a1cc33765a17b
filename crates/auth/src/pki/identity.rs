//! Who has a certificate: each role its own user, so that RBAC can give each what it needs.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::PkiError;
use crate::caller;

/// A role with a client certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// The administrator: `system:masters`.
    Admin,
    /// The scheduler.
    Scheduler,
    /// The controllers.
    ControllerManager,
    /// virt-controller.
    VirtController,
    /// The virt-handler of a node.
    VirtHandler {
        /// The node's name.
        node: String,
    },
    /// The kubelet of a node.
    Node {
        /// The node's name.
        node: String,
    },
    /// The storage agent of a node.
    LocalStorage {
        /// The node's name.
        node: String,
    },
    /// The API server towards kubelets.
    ApiserverKubeletClient,
    /// The API server towards virt-handlers.
    ApiserverVirtHandlerClient,
    /// The GPU extender.
    GpuExtender,
    /// The API server towards aggregated API servers. Signed by the front proxy's authority.
    FrontProxy,
}

impl Identity {
    /// The user (the certificate's common name).
    #[must_use]
    pub fn user(&self) -> String {
        match self {
            Self::Admin => "system:admin".into(),
            Self::Scheduler => caller::USER_SCHEDULER.into(),
            Self::ControllerManager => caller::USER_CONTROLLER_MANAGER.into(),
            Self::VirtController => caller::USER_VIRT_CONTROLLER.into(),
            Self::VirtHandler { node } => format!("{}{node}", caller::VIRT_HANDLER_USER_PREFIX),
            Self::Node { node } => format!("{}{node}", caller::NODE_USER_PREFIX),
            Self::LocalStorage { node } => format!("{}{node}", caller::LOCAL_STORAGE_USER_PREFIX),
            Self::ApiserverKubeletClient => "kube-apiserver-kubelet-client".into(),
            Self::ApiserverVirtHandlerClient => "kube-apiserver-virt-handler-client".into(),
            Self::GpuExtender => caller::USER_GPU_EXTENDER.into(),
            Self::FrontProxy => "front-proxy-client".into(),
        }
    }

    /// The group (the certificate's organization), if it has one.
    #[must_use]
    pub fn group(&self) -> Option<&'static str> {
        match self {
            Self::Admin => Some(caller::GROUP_MASTERS),
            Self::Node { .. } => Some(caller::GROUP_NODES),
            Self::VirtHandler { .. } => Some(caller::GROUP_VIRT_HANDLERS),
            Self::LocalStorage { .. } => Some(caller::GROUP_LOCAL_STORAGE),
            _ => None,
        }
    }

    pub(super) fn file_name(&self) -> Result<String, PkiError> {
        Ok(match self {
            Self::Admin => "admin".into(),
            Self::Scheduler => "scheduler".into(),
            Self::ControllerManager => "controller-manager".into(),
            Self::VirtController => "virt-controller".into(),
            Self::VirtHandler { node } => format!("virt-handler-{}", checked(node)?),
            Self::Node { node } => format!("kubelet-{}", checked(node)?),
            Self::LocalStorage { node } => format!("local-storage-{}", checked(node)?),
            Self::ApiserverKubeletClient => "apiserver-kubelet-client".into(),
            Self::ApiserverVirtHandlerClient => "apiserver-virt-handler-client".into(),
            Self::GpuExtender => "gpu-extender".into(),
            Self::FrontProxy => "front-proxy-client".into(),
        })
    }
}

/// A server with a serving certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// The API server.
    Apiserver,
    /// A node's kubelet.
    Kubelet {
        /// The node's name.
        node: String,
    },
    /// A node's virt-handler.
    VirtHandler {
        /// The node's name.
        node: String,
    },
}

impl Server {
    pub(super) fn common_name(&self) -> String {
        match self {
            Self::Apiserver => "kube-apiserver".into(),
            Self::Kubelet { node } => format!("{}{node}", caller::NODE_USER_PREFIX),
            Self::VirtHandler { node } => format!("{}{node}", caller::VIRT_HANDLER_USER_PREFIX),
        }
    }

    pub(super) fn group(&self) -> Option<&'static str> {
        match self {
            Self::Apiserver => None,
            Self::Kubelet { .. } => Some(caller::GROUP_NODES),
            Self::VirtHandler { .. } => Some(caller::GROUP_VIRT_HANDLERS),
        }
    }

    pub(super) fn file_name(&self) -> Result<String, PkiError> {
        Ok(match self {
            Self::Apiserver => "serving-apiserver".into(),
            Self::Kubelet { node } => format!("serving-kubelet-{}", checked(node)?),
            Self::VirtHandler { node } => format!("serving-virt-handler-{}", checked(node)?),
        })
    }
}

/// A node's name becomes part of a file's name: it must be a DNS-1123 subdomain, and leave room for
/// what is put around it.
fn checked(node: &str) -> Result<&str, PkiError> {
    let ok = !node.is_empty()
        && node.len() <= 200
        && node.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
        && node.starts_with(|c: char| c.is_ascii_alphanumeric())
        && node.ends_with(|c: char| c.is_ascii_alphanumeric());
    if ok { Ok(node) } else { Err(PkiError::Name { name: node.into() }) }
}

/// The names and addresses under which a server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sans {
    /// DNS names.
    pub names: BTreeSet<String>,
    /// Addresses.
    pub addresses: BTreeSet<IpAddr>,
}

impl Sans {
    /// `localhost` and its addresses.
    #[must_use]
    pub fn loopback() -> Self {
        Self {
            names: BTreeSet::from(["localhost".to_owned()]),
            addresses: BTreeSet::from([IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]),
        }
    }

    /// The API server's: loopback, the `kubernetes` service under all its names and its address.
    #[must_use]
    pub fn apiserver(service_address: IpAddr) -> Self {
        let service =
            ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
        service.into_iter().fold(Self::loopback(), Self::with_name).with_address(service_address)
    }

    /// The same with one more name. A name that is an address counts as an address; one that cannot
    /// stand in a certificate (it has a space in it, say) is left out.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if let Ok(address) = name.parse::<IpAddr>() {
            self.addresses.insert(address);
        } else if rustls_pki_types::DnsName::try_from(name.as_str()).is_ok() {
            self.names.insert(name);
        }
        self
    }

    /// The same with one more address.
    #[must_use]
    pub fn with_address(mut self, address: IpAddr) -> Self {
        self.addresses.insert(address);
        self
    }
}
