//! API types of Carrack's own (KubeVirt's groups), resource names and well-known labels.
