//! The API server. Most files ask its logic over HTTP requests in the process, polled by hand: nothing in it may need a runtime.
//! `aggregation`, `serve`, `webhooks` and `writers` have real sockets and time. One program, since each would have most of it.
#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod admission;
mod admission_policies;
mod aggregation;
mod apply;
mod audit;
mod certificates;
mod common;
mod completed;
mod crd;
mod crd_changes;
mod delete;
mod devices;
mod discovery;
mod event_rate;
mod former;
mod fuzz;
mod harness;
mod hostile;
mod kept;
mod model;
mod oidc;
mod policies;
mod quota;
mod rbac;
mod reads;
mod request_metrics;
mod rests_on;
mod routes;
mod serve;
mod services;
mod subresources;
mod warnings;
mod watch;
mod webhooks;
mod writers;
mod writes;
