//! The `carrack` command.
fn main() {}
