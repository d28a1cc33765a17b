//! The launcher around a real QEMU: its own life, and the demo guest's. Needs root.
#![expect(clippy::expect_used, clippy::panic, reason = "what is not as expected fails the test")]

mod copies;
mod guest;
mod lifecycle;
mod machine;
mod pod;
