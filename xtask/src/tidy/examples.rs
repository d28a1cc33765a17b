//! Examples: each is told of in the README, and an end-to-end test does what it shows.

use super::{Complaint, Tree};

pub fn check(tree: &Tree) -> Vec<Complaint> {
    let readme = tree.get("README.md").map_or("", String::as_str);
    let tests: Vec<&str> =
        tree.iter().filter(|(path, _)| path.starts_with("tests/tests/")).map(|(_, text)| text.as_str()).collect();
    let mut complaints = Vec::new();
    for path in tree.keys() {
        let Some(name) = path.strip_prefix("examples/") else { continue };
        if !readme.contains(path.as_str()) {
            complaints.push(format!("{path}: the README does not tell of it"));
        }
        if !tests.iter().any(|text| text.contains(name)) {
            complaints.push(format!("{path}: no end-to-end test names it"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::super::tests::complaints;

    #[test]
    fn each_is_told_of_and_tested() {
        let check = |readme: &str, test: &str, expected: &[&str]| {
            let files =
                [("README.md", readme), ("tests/tests/a.rs", test), ("examples/vm.yaml", ""), ("docs/a.md", "")];
            assert_eq!(complaints(super::check, &files), expected, "{readme} {test}");
        };
        check("`examples/vm.yaml`", "example(\"vm.yaml\")", &[]);
        check("", "examples/vm.yaml", &["examples/vm.yaml: the README does not tell of it"]);
        check("`examples/vm.yaml`", "pod.yaml", &["examples/vm.yaml: no end-to-end test names it"]);
    }
}
