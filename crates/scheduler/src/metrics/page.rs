//! Families of measures, written in the text form that Prometheus reads.

use std::fmt::Write as _;
use std::time::Duration;

/// A histogram under upper bounds that never change.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: Bounds,
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
        Self { bounds, buckets: vec![0; bounds.count as usize], count: 0, sum: 0.0 }
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
        if let Some((slot, _)) = self.buckets.iter_mut().zip(self.bounds.all()).find(|(_, bound)| value <= *bound) {
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
    name: &'static str,
}

impl Page {
    /// Begins a family; what follows belongs to it.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) -> &mut Self {
        self.name = name;
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        self
    }
    fn line(&mut self, args: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        writeln!(self.text, "{args}").unwrap_or_default();
    }
    /// One value with its labels.
    pub fn value(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) -> &mut Self {
        let (name, labels) = (self.name, braced(&joined(labels)));
        self.line(format_args!("{name}{labels} {value}"));
        self
    }
    /// One histogram with its labels.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) -> &mut Self {
        let (name, labels) = (self.name, joined(labels));
        let comma = if labels.is_empty() { "" } else { "," };
        let mut sum = 0;
        for (bound, count) in histogram.bounds.all().zip(&histogram.buckets) {
            sum += count;
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
}
