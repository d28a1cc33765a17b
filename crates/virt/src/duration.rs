//! Durations in Go's notation, as KubeVirt's options and specs have them.

use std::time::Duration;

/// A duration in Go's notation, such as `5m30s`.
pub(crate) fn go_duration(given: &str) -> Option<Duration> {
    let mut rest = given;
    let mut total = Duration::ZERO;
    if rest == "0" {
        return Some(total);
    }
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let units = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(units);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        let part = number.parse::<f64>().ok()? * seconds;
        total = total.checked_add(Duration::try_from_secs_f64(part).ok()?)?;
        rest = tail;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::go_duration;

    #[test]
    fn durations_in_gos_notation() {
        let check = |text: &str, ms: Option<u128>| assert_eq!(go_duration(text).map(|d| d.as_millis()), ms, "{text}");
        check("5m0s", Some(300_000));
        check("1h", Some(3_600_000));
        check("1.5s", Some(1500));
        check("20ms", Some(20));
        check("0", Some(0));
        check("", None);
        check("5", None);
        check("m", None);
        check("1e400s", None);
        check("999999999999999999999h", None);
    }
}
