//! What `scripts/rustc-with-clippy` makes of cargo's calls: which crates clippy looks at, and what the compiler is told besides. In
//! place of both are programs that say how they were called.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

const XTASK: &str = env!("CARGO_MANIFEST_DIR");

/// What cargo says of any crate that it compiles.
const COMPILED: &str =
    "--edition=2024 src/lib.rs --json=diagnostic-rendered-ansi,artifacts --emit=dep-info,metadata,link";

/// The lines that the programs say when the script is called so for a crate in this directory.
fn called(programs: &Path, manifest_dir: &str, arguments: &str) -> Vec<String> {
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").expect("a path"));
    let output = Command::new(format!("{XTASK}/../scripts/rustc-with-clippy"))
        .arg(programs.join("rustc"))
        .args(arguments.split(' '))
        .env("PATH", path)
        .env("CARGO_MANIFEST_DIR", manifest_dir)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{arguments}: {output:?}");
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn clippy_looks_once_at_each_crate_and_compiles_none() {
    let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rustc-with-clippy");
    fs::create_dir_all(&programs).expect("made");
    for name in ["rustc", "clippy-driver"] {
        let path = programs.join(name);
        fs::write(&path, format!("#!/bin/sh\necho {name} \"$@\"\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
    }
    // The crate and what it is compiled as, whether clippy looks, and what the compiler is told besides.
    for (manifest_dir, arguments, looks, besides) in [
        (XTASK, format!("--crate-name a {COMPILED} --crate-type lib --out-dir /o"), false, " -D warnings"),
        (XTASK, format!("--crate-name a {COMPILED} --crate-type lib --test --out-dir /o"), true, " -C opt-level=0"),
        (XTASK, format!("--crate-name a {COMPILED} --test --out-dir /o"), true, " -C opt-level=0"),
        (XTASK, format!("--crate-name carrack_controllers {COMPILED} --test --out-dir /o"), true, ""),
        (XTASK, format!("--crate-name a {COMPILED} --crate-type bin --out-dir /o"), true, ""),
        (XTASK, format!("--crate-name a {COMPILED} --crate-type proc-macro --out-dir /o"), true, ""),
        ("/elsewhere", format!("--crate-name a {COMPILED} --crate-type lib --test --out-dir /o"), false, ""),
        (XTASK, "- --crate-name ___ --print=file-names --crate-type lib".to_owned(), false, ""),
    ] {
        let said = called(&programs, manifest_dir, &arguments);
        let (compiler, clippy) = said.split_last().expect("the compiler is called");
        assert_eq!(*compiler, format!("rustc {arguments}{besides}"));
        assert_eq!(clippy.len(), usize::from(looks), "{arguments}: {said:?}");
        for line in clippy {
            let words: Vec<&str> = line.split(' ').collect();
            let emitted: Vec<&str> = words.iter().copied().filter(|word| word.starts_with("--emit")).collect();
            assert_eq!(emitted, ["--emit=metadata"], "{line}");
            assert_eq!(words.first(), Some(&"clippy-driver"), "{line}");
            assert_eq!(words.contains(&"--test"), arguments.contains("--test"), "{line}");
            assert!(!words.contains(&"/o") && !line.contains("artifacts"), "{line}");
        }
    }
}
