//! From a pod's spec to what the runtime is asked for: pure translations, one subject a file.

pub mod container;
pub mod env;
pub mod env_file;
pub mod image_name;
pub mod manifest;
pub mod pod;
pub mod pull;
pub mod resources;
pub mod sandbox;
