//! Tells the linker to keep one copy of functions that came out alike, in the release build: most of the program is generated
//! for each kind (drop glue, maps, readers and writers of JSON), and what of it is touched counts as its memory. Rust's own
//! linker on Linux, lld, does this; so do mold and gold.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
