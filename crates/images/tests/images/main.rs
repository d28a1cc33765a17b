//! What is built into images, and what runs in them.

mod build;
mod cloud_config;
