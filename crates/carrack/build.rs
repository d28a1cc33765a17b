//! Tells the linker to keep one copy of functions that came out alike, in the release build: most of the program is generated
//! for each kind (drop glue, maps, readers and writers of JSON), and what of it is touched counts as its memory. Rust's own
//! linker on Linux, lld, does this; so do mold and gold.
//!
//! The program has a fixed address, as upstream's have. A movable one adjusts 79,000 pointers whenever it starts (480,000 in
//! the development build), and the runtime starts it as a plugin for every pod; besides, each process then has its own copy
//! of the pages with those pointers, beside every guest, too. Libraries, stacks and heap are placed at random as ever.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-no-pie");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
