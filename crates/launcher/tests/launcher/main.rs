//! The launcher around a real QEMU: its own life, and the demo guest's. Needs root.

mod guest;
mod lifecycle;
mod pod;
