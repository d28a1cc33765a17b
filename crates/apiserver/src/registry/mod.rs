//! The generic registry: every kind's get, list, watch and writes, over one table and one store.

pub(crate) mod apply;
pub(crate) mod create;
pub(crate) mod decode;
pub(crate) mod defined;
pub(crate) mod delete;
pub(crate) mod delete_collection;
pub(crate) mod delete_options;
pub(crate) mod managers;
pub(crate) mod meta;
pub(crate) mod operations;
pub(crate) mod options;
pub(crate) mod owners;
pub(crate) mod patch;
mod pods;
pub(crate) mod read;
pub(crate) mod render;
pub(crate) mod strategy;
pub(crate) mod update;
pub(crate) mod watch;
