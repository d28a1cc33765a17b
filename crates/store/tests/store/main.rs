//! Tests of the store from outside.
//!
//! `suite` holds for every implementation of the contract; `model` compares with a naive one;
//! `etcd` is about what only a store on etcd meets;
//! `rivals` is about who changes the same key as others;
//! `backup` is about copies of running stores;
//! `files` is about what the embedded store leaves on disk, `crash` about a process that dies, and
//! `disk_full` about one whose disk refuses to write.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that fails panics")]

mod backup;
mod crash;
mod disk_full;
mod etcd;
mod files;
mod help;
mod model;
mod rivals;
mod suite;
