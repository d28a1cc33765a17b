//! What was measured, against what was promised, for people and for programs.

use serde::Serialize;

/// One measured quantity.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Figure {
    pub(super) name: &'static str,
    unit: &'static str,
    /// The middle of all samples.
    median: f64,
    /// The largest, or for rates the smallest.
    worst: f64,
    /// What it must not be beyond; none where nothing was promised.
    bound: Option<f64>,
    /// Whether the bound is the middle's, and not each sample's.
    of_the_middle: bool,
    samples: Vec<f64>,
}

impl Figure {
    /// Milliseconds.
    pub(super) fn time(name: &'static str, bound: Option<f64>, samples: Vec<f64>) -> Self {
        Self::of(name, "ms", bound, samples)
    }

    /// What must not become too much.
    pub(super) fn of(name: &'static str, unit: &'static str, bound: Option<f64>, samples: Vec<f64>) -> Self {
        let worst = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { name, unit, median: median(&samples), worst, bound, of_the_middle: false, samples }
    }

    /// The bound is meant for the middle of the samples.
    pub(super) fn in_the_middle(self) -> Self {
        Self { of_the_middle: true, ..self }
    }

    /// What is held against the bound.
    fn judged(&self) -> f64 {
        if self.of_the_middle { self.median } else { self.worst }
    }

    /// Whether it is beyond its bound. What was not measured is no proof.
    pub(super) fn missed(&self) -> bool {
        let known = !self.samples.is_empty() && !self.samples.iter().any(|sample| sample.is_nan());
        self.bound.is_some_and(|bound| !known || self.judged() > bound)
    }

    /// What had better be much.
    pub(super) fn rate(name: &'static str, unit: &'static str, samples: Vec<f64>) -> Self {
        let worst = samples.iter().copied().fold(f64::INFINITY, f64::min);
        Self { name, unit, median: median(&samples), worst, bound: None, of_the_middle: false, samples }
    }
}

/// Whether everything kept its bound.
///
/// # Errors
/// What did not.
pub(super) fn verdict(figures: &[Figure]) -> anyhow::Result<()> {
    let missed: Vec<String> = figures
        .iter()
        .filter(|figure| figure.missed())
        .map(|figure| {
            let bound = figure.bound.unwrap_or_default();
            format!("{} ({}, at most {bound})", figure.name.trim(), amount(figure.judged(), figure.unit))
        })
        .collect();
    anyhow::ensure!(missed.is_empty(), "missed: {}", missed.join("; "));
    Ok(())
}

/// A number with its unit; small ones with their parts.
fn amount(value: f64, unit: &str) -> String {
    if value < 100.0 { format!("{value:.2} {unit}") } else { format!("{value:.0} {unit}") }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// For people.
pub(super) fn table(figures: &[Figure]) -> String {
    let mut text = format!("{:<38} {:>12} {:>12} {:>12}\n", "MEASURE", "MIDDLE", "WORST", "BOUND");
    for figure in figures {
        let bound = match figure.bound {
            None => "-".to_owned(),
            Some(bound) => format!("{bound} {}", if figure.missed() { "MISSED" } else { "ok" }),
        };
        text.push_str(&format!(
            "{:<38} {:>12} {:>12} {:>12}\n",
            figure.name,
            amount(figure.median, figure.unit),
            amount(figure.worst, figure.unit),
            bound
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_bound_shows() {
        let figures = [Figure::time("a", Some(10.0), vec![1.0, 11.0, 2.0]), Figure::rate("b", "1/s", vec![5.0, 3.0])];
        assert!((figures[0].median - 2.0).abs() < f64::EPSILON);
        assert!((figures[1].worst - 3.0).abs() < f64::EPSILON);
        let text = table(&figures);
        assert!(text.contains("MISSED"), "{text}");
        assert!(text.lines().nth(2).is_some_and(|line| line.contains('-')), "{text}");
    }

    #[test]
    fn what_is_missed_is_named_and_ends_in_failure() {
        let of = |bound, samples| Figure::of("  writes", "writes", Some(bound), samples);
        verdict(&[of(2.5, vec![2.5]), Figure::of("free", "s", None, vec![9.0])]).expect("all is within its bounds");
        let missed = verdict(&[of(2.5, vec![2.5]), of(0.0, vec![0.0, 0.01])]).expect_err("one is beyond");
        assert_eq!(missed.to_string(), "missed: writes (0.01 writes, at most 0)");
        verdict(&[of(2.5, Vec::new())]).expect_err("nothing was measured");
        verdict(&[of(2.5, vec![f64::NAN])]).expect_err("nothing was measured");
        verdict(&[of(2.0, vec![1.0, 2.0, 9.0]).in_the_middle()]).expect("the middle is within its bound");
        let missed = verdict(&[of(2.0, vec![1.0, 3.0, 9.0]).in_the_middle()]).expect_err("the middle is beyond");
        assert_eq!(missed.to_string(), "missed: writes (3.00 writes, at most 2)");
    }
}
