//! Families of measures, written in the text form that Prometheus reads.

use std::fmt::Write as _;
use std::time::Duration;

/// A histogram under upper bounds that never change.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: Vec<f64>,
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

/// Upper bounds, each so many times the one before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The first one.
    pub first: f64,
    /// How many times the one before it each other one is.
    pub factor: f64,
    /// How many there are.
    pub count: u32,
}

impl Bounds {
    /// All of them, from the least (`ExponentialBuckets` of Prometheus' client).
    fn all(self) -> impl Iterator<Item = f64> {
        std::iter::successors(Some(self.first), move |bound| Some(bound * self.factor)).take(self.count as usize)
    }
}

impl Histogram {
    /// An empty one.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self::under(bounds.all().collect())
    }
    /// An empty one under these bounds, from the least.
    #[must_use]
    pub fn under(bounds: Vec<f64>) -> Self {
        Self { buckets: vec![0; bounds.len()], bounds, count: 0, sum: 0.0 }
    }
    /// Counts a duration, in seconds.
    pub fn observe(&mut self, duration: Duration) {
        self.observe_number(duration.as_secs_f64());
    }
    /// How often it has counted something.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
    /// Counts a number.
    pub fn observe_number(&mut self, value: f64) {
        if let Some((slot, _)) = self.buckets.iter_mut().zip(&self.bounds).find(|(_, bound)| value <= **bound) {
            *slot += 1;
        }
        self.count += 1;
        self.sum += value;
    }
}

/// A page of measures.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
    name: String,
}

impl Page {
    /// Begins a family; what follows belongs to it.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) -> &mut Self {
        name.clone_into(&mut self.name);
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        self
    }
    fn line(&mut self, args: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        writeln!(self.text, "{args}").unwrap_or_default();
    }
    /// One value with its labels.
    pub fn value(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) -> &mut Self {
        let sample = format!("{}{} {value}", self.name, braced(&joined(labels)));
        self.line(format_args!("{sample}"));
        self
    }
    /// One histogram with its labels.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) -> &mut Self {
        let (name, labels) = (self.name.clone(), joined(labels));
        let comma = if labels.is_empty() { "" } else { "," };
        let mut sum = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.buckets) {
            sum += count;
            let bound = number(*bound);
            self.line(format_args!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {sum}"));
        }
        self.line(format_args!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {}", histogram.count));
        let labels = braced(&labels);
        self.line(format_args!("{name}_sum{labels} {}", histogram.sum));
        self.line(format_args!("{name}_count{labels} {}", histogram.count));
        self
    }
    /// All of it.
    #[must_use]
    pub fn text(self) -> String {
        self.text
    }
}

/// A bound as Go writes one, so that it is the same label as upstream's.
fn number(bound: f64) -> String {
    if bound == 0.0 || bound.abs() >= 1e-4 {
        return bound.to_string();
    }
    let text = format!("{bound:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text,
    }
}

fn joined(labels: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
    pairs.join(",")
}

fn braced(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_their_samples() {
        let mut histogram = Histogram::new(Bounds { first: 0.5, factor: 2.0, count: 2 });
        for value in [0.5, 0.75, 3.0] {
            histogram.observe_number(value);
        }
        let mut page = Page::default();
        page.family("x_total", "counter", "Help.").value(&[], 3).value(&[("a", "q\"\\\n")], 4);
        page.family("y", "histogram", "Help.").histogram(&[("a", "b")], &histogram).histogram(&[], &histogram);
        let text = page.text();
        for line in [
            "x_total 3",
            "x_total{a=\"q\\\"\\\\\\n\"} 4",
            "y_bucket{a=\"b\",le=\"0.5\"} 1",
            "y_bucket{a=\"b\",le=\"1\"} 2",
            "y_bucket{a=\"b\",le=\"+Inf\"} 3",
            "y_sum{a=\"b\"} 4.25",
            "y_count{a=\"b\"} 3",
            "y_bucket{le=\"0.5\"} 1",
            "y_count 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn bounds_are_written_as_go_writes_them() {
        let check = |bound: f64, want: &str| assert_eq!(number(bound), want);
        check(0.5, "0.5");
        check(1000.0, "1000");
        check(0.0001, "0.0001");
        check(0.00005, "5e-05");
        check(1e-6, "1e-06");
        check(1e-12, "1e-12");
    }
}
