//! Metrics as text, in Prometheus' format (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
//!
//! What is told is computed when somebody asks, from what is known then; so a page is made anew each time, and no registry is
//! kept.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A family of metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: &'static str,
    /// What it is, for people.
    pub help: &'static str,
}

/// A page of samples.
#[derive(Debug, Default)]
pub(crate) struct Page {
    lines: BTreeMap<&'static str, Vec<String>>,
}

impl Page {
    /// Adds a sample.
    pub fn add(&mut self, family: &'static str, labels: &[(&str, &str)], value: f64) {
        self.line(family, family, labels, value);
    }

    /// Adds a line under its own name (`_bucket`, `_sum`, `_count`) to a family.
    pub fn line(&mut self, family: &'static str, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.lines.entry(family).or_default().push(format!("{name}{labels} {value}"));
    }

    /// The text. Families without a sample are left out.
    pub fn text(&self, families: &[Family]) -> String {
        let mut text = String::new();
        for Family { name, kind, help } in families {
            let Some(lines) = self.lines.get(name) else { continue };
            // Writing to a string cannot fail.
            _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{}\n", lines.join("\n"));
        }
        text
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::{Family, Page};

    #[test]
    fn pages_are_as_prometheus_reads_them() {
        let family = |name| Family { name, kind: "gauge", help: "Some." };
        let mut page = Page::default();
        page.add("a", &[], 1.5);
        page.add("a", &[("name", "x\"y\\z\n"), ("other", "")], 2.0);
        let expected = "# HELP a Some.\n# TYPE a gauge\na 1.5\na{name=\"x\\\"y\\\\z\\n\",other=\"\"} 2\n";
        assert_eq!(page.text(&[family("a"), family("b")]), expected);
    }
}
