//! Schedules of CronJobs: five fields of numbers, ranges, steps and lists, or a name after `@`.
//!
//! What is read here is what upstream's library reads (github.com/robfig/cron), so that whoever checks a schedule and whoever
//! follows it agree. Fields come out as plain lists of numbers: other libraries differ in what they make of steps and stars.

use std::collections::BTreeSet;
use std::time::Duration;

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Names for common schedules, and their fields.
const NAMED: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Lowest and highest number of each field, and names for them.
const FIELDS: [(u32, u32, &[&str]); 5] = [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, &MONTHS), (0, 6, &DAYS)];

/// A schedule that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Minutes, hours, days of the month, months and days of the week: each a list of numbers, or `*`. Where both kinds of days
    /// are lists, a day of either kind will do; where one is `*`, the other decides.
    Fields([String; 5]),
    /// Every so often: whole seconds, and one at the least.
    Every(Duration),
}

impl Schedule {
    /// Reads a schedule without a time zone.
    ///
    /// # Errors
    /// Why it cannot be read, in upstream's words.
    pub fn parse(schedule: &str) -> Result<Self, String> {
        if let Some(every) = schedule.strip_prefix("@every ") {
            let parsed = carrack_cel::parse_duration(every);
            let bad = || format!("failed to parse duration {schedule}: time: invalid duration {every:?}");
            let whole_s = u64::try_from(parsed.ok_or_else(bad)?.as_secs()).unwrap_or(0);
            return Ok(Self::Every(Duration::from_secs(whole_s.max(1))));
        }
        let named = NAMED.iter().find(|(name, _)| *name == schedule).map(|(_, fields)| *fields);
        if named.is_none() && schedule.starts_with('@') {
            return Err(format!("unrecognized descriptor: {schedule}"));
        }
        let fields: Vec<&str> = named.unwrap_or(schedule).split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
        };
        let [m, h, d, n, w] = FIELDS;
        Ok(Self::Fields([
            field(minutes, m)?,
            field(hours, h)?,
            field(days, d)?,
            field(months, n)?,
            field(weekdays, w)?,
        ]))
    }
}

/// A field as a list of numbers; `*` if any part of it is one. A star with a step is none.
fn field(text: &str, (low, high, names): (u32, u32, &[&str])) -> Result<String, String> {
    let mut numbers = BTreeSet::new();
    let mut star = false;
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last, step) = part_of(part, low, high, names)?;
        star |= step == 1 && matches!(part.split('/').next(), Some("*" | "?"));
        numbers.extend((first..=last).step_by(usize::try_from(step).unwrap_or(usize::MAX)));
    }
    if star {
        return Ok("*".to_owned());
    }
    if numbers.is_empty() {
        return Err(format!("nothing is listed: {text}"));
    }
    Ok(numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

/// A part of a field: `*`, a number or a range of two, and perhaps a step. A number with a step goes on to the highest.
fn part_of(part: &str, low: u32, high: u32, names: &[&str]) -> Result<(u32, u32, u32), String> {
    let number = |text: &str| {
        let named = names.iter().zip(low..).find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, at)| at);
        let digits = || text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten();
        named.or_else(digits).ok_or_else(|| format!("failed to parse int from {text}: invalid syntax"))
    };
    let (range, step) = match part.split_once('/') {
        None => (part, None),
        Some((_, step)) if step.contains('/') => return Err(format!("too many slashes: {part}")),
        Some((range, step)) => (range, Some(step)),
    };
    let (from, to) = match range.split_once('-') {
        _ if matches!(range, "*" | "?") => (low, high),
        Some((_, last)) if last.contains('-') => return Err(format!("too many hyphens: {part}")),
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(range)?, if step.is_some() { high } else { number(range)? }),
    };
    let step = match step {
        Some(text) => number_of_step(text)?,
        None => 1,
    };
    if from < low {
        return Err(format!("beginning of range ({from}) below minimum ({low}): {part}"));
    }
    if to > high {
        return Err(format!("end of range ({to}) above maximum ({high}): {part}"));
    }
    if from > to {
        return Err(format!("beginning of range ({from}) beyond end of range ({to}): {part}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {part}"));
    }
    Ok((from, to, step))
}

fn number_of_step(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("failed to parse int from {text}: invalid syntax"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let read = match Schedule::parse(text) {
            Ok(Schedule::Fields(fields)) => fields.join(" "),
            Ok(Schedule::Every(every)) => format!("every {} s", every.as_secs()),
            Err(problem) => format!("no: {problem}"),
        };
        assert_eq!(read, expected, "{text}");
    }

    #[test]
    fn schedules_are_read_as_upstream_reads_them() {
        check("*/20 1-3 1,15 jan,FEB mon-Wed", "0,20,40 1,2,3 1,15 1,2 1,2,3");
        check("@weekly", "0 0 * * 0");
        check("? ? ? ? ?", "* * * * *");
        // A star with a step is no star, one with a step of one is; a star in a list is.
        check("0 0 */10 * */2", "0 0 1,11,21,31 * 0,2,4,6");
        check("0 0 */1 * 1,*", "0 0 * * *");
        check("0 0 */10,* * */2,1", "0 0 * * 0,1,2,4,6");
        // A number with a step goes on to the end; a step may be longer than the field.
        check("50/5 20/9 1 * *", "50,55 20 1 * *");
        check("0 0 */40 * *", "0 0 1 * *");
        check("1,,2 * * * *", "1,2 * * * *");
        for (text, every_s) in [
            ("@every 1h30m", 5400),
            ("@every 1.5h", 5400),
            ("@every 500ms", 1),
            ("@every 1500ms", 1),
            ("@every 2m0.9s", 120),
            ("@every -5m", 1),
            ("@every 0", 1),
        ] {
            check(text, &format!("every {every_s} s"));
        }
    }

    #[test]
    fn what_is_no_schedule_is_told() {
        for (text, problem) in [
            ("", "expected exactly 5 fields, found 0: []"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* 5-3 * * *", "beginning of range (5) beyond end of range (3): 5-3"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("*/x * * * *", "failed to parse int from x: invalid syntax"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            (", * * * *", "nothing is listed: ,"),
            ("a * * * *", "failed to parse int from a: invalid syntax"),
            ("* * L * *", "failed to parse int from L: invalid syntax"),
            ("@never", "unrecognized descriptor: @never"),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
            ("@every 5", "failed to parse duration @every 5: time: invalid duration \"5\""),
            ("@every ", "failed to parse duration @every : time: invalid duration \"\""),
        ] {
            check(text, &format!("no: {problem}"));
        }
    }
}
