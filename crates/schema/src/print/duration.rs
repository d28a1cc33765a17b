//! Spans of time as kubectl prints them.

use jiff::Timestamp;

/// A span in seconds, in two units at most: `5s`, `3m20s`, `5h`, `2d4h`, `3y`.
#[must_use]
pub fn human_duration(seconds: i64) -> String {
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{big_unit}") } else { format!("{big}{big_unit}{small}{small_unit}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match () {
        () if seconds < -1 => "<invalid>".to_owned(),
        () if seconds < 0 => "0s".to_owned(),
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 192 => two(days, "d", hours % 24, "h"),
        () if days < 365 * 2 => format!("{days}d"),
        () if days < 365 * 8 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

/// Time since a timestamp in RFC 3339; `<unknown>` when there is none.
pub(super) fn since(text: &str, now: Timestamp) -> String {
    match text.parse::<Timestamp>() {
        Ok(then) => human_duration(now.duration_since(then).as_secs()),
        Err(_) => "<unknown>".to_owned(),
    }
}
