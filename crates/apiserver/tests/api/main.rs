//! The API server's logic, asked over HTTP requests in the process and polled by hand: nothing in it
//! may need a runtime.
#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod admission;
mod admission_policies;
mod apply;
mod audit;
mod certificates;
mod completed;
mod crd;
mod crd_changes;
mod delete;
mod devices;
mod discovery;
mod former;
mod fuzz;
mod harness;
mod hostile;
mod model;
mod oidc;
mod policies;
mod quota;
mod rbac;
mod reads;
mod rests_on;
mod services;
mod subresources;
mod watch;
mod writes;
