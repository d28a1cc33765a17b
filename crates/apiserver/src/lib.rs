//! The Kubernetes API: one pipeline for every kind, on the store.
