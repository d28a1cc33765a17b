//! From OpenMetrics, which the library writes, to the older text format that every reader understands.

use std::fmt::Write as _;

use prometheus_client::registry::Registry;

/// Counters whose names upstream gave them before all had to end in `_total`.
const BARE: [&str; 4] = [
    "apiserver_admission_webhook_fail_open_count",
    "apiserver_admission_webhook_rejection_count",
    "authenticated_user_requests",
    "authentication_attempts",
];

/// What is registered, in the format 0.0.4.
pub(super) fn encoded(registry: &Registry) -> String {
    let mut out = String::new();
    if let Err(error) = prometheus_client::encoding::text::encode(&mut out, registry) {
        // Writing to memory does not fail.
        tracing::error!(%error, "metrics cannot be written");
    }
    plain(&out)
}

/// The same metrics in the format 0.0.4: there a counter's name is that of its samples.
fn plain(open: &str) -> String {
    let mut out = String::with_capacity(open.len());
    let mut help: Option<(&str, &str)> = None;
    // The counter whose samples lose their ending.
    let mut bare: Option<&str> = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
            continue;
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else {
            let sample = bare.and_then(|name| Some((name, line.strip_prefix(name)?.strip_prefix("_total")?)));
            match sample {
                Some((name, rest)) => push(&mut out, format_args!("{name}{rest}\n")),
                None if !line.starts_with('#') => push(&mut out, format_args!("{line}\n")),
                None => {}
            }
            continue;
        };
        bare = BARE.into_iter().find(|bare| *bare == name);
        let suffix = if kind == "counter" && bare.is_none() { "_total" } else { "" };
        if let Some((_, text)) = help.take() {
            push(&mut out, format_args!("# HELP {name}{suffix} {text}\n"));
        }
        push(&mut out, format_args!("# TYPE {name}{suffix} {kind}\n"));
    }
    out
}

/// A family: the labels of each sample, and its number.
pub(super) fn family(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    samples: impl Iterator<Item = (Vec<(&'static str, String)>, usize)>,
) {
    push(out, format_args!("# HELP {name} {help}.\n# TYPE {name} {kind}\n"));
    for (labels, count) in samples {
        let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        push(out, format_args!("{name}{{{}}} {count}\n", labels.join(",")));
    }
}

/// A metric of one number.
pub(super) fn single(out: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    push(out, format_args!("# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}\n"));
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    if out.write_fmt(text).is_err() {
        // Writing to a string does not fail.
        tracing::error!("metrics cannot be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_named_as_their_samples() {
        let old = "# TYPE authentication_attempts counter\nauthentication_attempts_total{result=\"a\"} 1\n# TYPE b counter\nb_total 2\n";
        let bare = "# TYPE authentication_attempts counter\nauthentication_attempts{result=\"a\"} 1\n# TYPE b_total counter\nb_total 2\n";
        assert_eq!(plain(old), bare);
        let open = "# HELP a Some text.\n# TYPE a counter\na_total{x=\"y\"} 1\n# HELP b_seconds More.\n# TYPE b_seconds histogram\n# UNIT b_seconds seconds\nb_seconds_sum 0.5\n# EOF\n";
        assert_eq!(
            plain(open),
            "# HELP a_total Some text.\n# TYPE a_total counter\na_total{x=\"y\"} 1\n# HELP b_seconds More.\n# TYPE b_seconds histogram\nb_seconds_sum 0.5\n"
        );
    }
}
