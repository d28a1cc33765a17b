//! Garbage collection, namespaces and service accounts, each a pure reconcile.
