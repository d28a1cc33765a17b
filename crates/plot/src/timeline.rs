//! What happened when: a lane for each thing, with spans of states, and marks.

use std::fmt::Write as _;
use std::time::Duration;

use crate::svg::{Anchor, Svg};

/// What a state or a mark means to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// It is as it should be.
    Good,
    /// It is on its way.
    Busy,
    /// It is down, as somebody wanted.
    Down,
    /// It must not be.
    Bad,
    /// It is neither: what people did, what was noticed.
    Plain,
}

impl Tone {
    fn colour(self) -> &'static str {
        match self {
            Self::Good => "#8cc6a0",
            Self::Busy => "#f2cf8d",
            Self::Down => "#9aa1ab",
            Self::Bad => "#d1495b",
            Self::Plain => "#1b6ca8",
        }
    }
}

#[derive(Clone, Debug)]
struct Span {
    from: Duration,
    to: Option<Duration>,
    text: String,
    tone: Tone,
}

#[derive(Clone, Debug)]
struct Lane {
    name: String,
    spans: Vec<Span>,
    marks: Vec<(Duration, String, Tone)>,
}

/// A timeline that is being written. Times count from its beginning, and come in their order within a lane.
#[derive(Clone, Debug)]
pub struct Timeline {
    title: String,
    lanes: Vec<Lane>,
    steps: Vec<(Duration, String, Tone)>,
    end: Duration,
}

const LEFT: f64 = 190.0;
const RIGHT: f64 = 30.0;
const WIDTH: f64 = 1200.0;
const LANE: f64 = 24.0;
/// A step's line of text.
const STEP: f64 = 17.0;
/// A character's width at the size of the text, near enough.
const CHARACTER: f64 = 6.4;
const GRID: &str = "#dddddd";
const INK: &str = "#333333";

impl Timeline {
    /// Nothing has happened.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), lanes: Vec::new(), steps: Vec::new(), end: Duration::ZERO }
    }

    /// A thing is in this state from now on. Saying the same again changes nothing; true when it was new.
    pub fn state(&mut self, lane: &str, at: Duration, text: &str, tone: Tone) -> bool {
        self.end = self.end.max(at);
        let lane = self.lane(lane);
        if let Some(last) = lane.spans.last_mut().filter(|span| span.to.is_none()) {
            if last.text == text && last.tone == tone {
                return false;
            }
            last.to = Some(at);
        }
        lane.spans.push(Span { from: at, to: None, text: text.to_owned(), tone });
        true
    }

    /// A thing is gone. True when it was there.
    pub fn gone(&mut self, lane: &str, at: Duration) -> bool {
        self.end = self.end.max(at);
        match self.lane(lane).spans.last_mut().filter(|span| span.to.is_none()) {
            Some(last) => {
                last.to = Some(at);
                true
            }
            None => false,
        }
    }

    /// Something happened to a thing.
    pub fn mark(&mut self, lane: &str, at: Duration, text: &str, tone: Tone) {
        self.end = self.end.max(at);
        self.lane(lane).marks.push((at, text.to_owned(), tone));
    }

    /// Something happened, or was done, to no thing in particular: a line across all lanes.
    pub fn step(&mut self, at: Duration, text: &str, tone: Tone) {
        self.end = self.end.max(at);
        self.steps.push((at, text.to_owned(), tone));
    }

    fn lane(&mut self, name: &str) -> &mut Lane {
        let at = self.lanes.iter().position(|lane| lane.name == name).unwrap_or_else(|| {
            self.lanes.push(Lane { name: name.to_owned(), spans: Vec::new(), marks: Vec::new() });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// In words: a line for each change, in the order of time.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines: Vec<(Duration, String)> =
            self.steps.iter().map(|(at, text, tone)| (*at, format!("{} {text}", sign(*tone)))).collect();
        let width = self.lanes.iter().map(|lane| lane.name.chars().count()).max().unwrap_or(0);
        for lane in &self.lanes {
            for (number, span) in lane.spans.iter().enumerate() {
                lines.push((span.from, format!("    {:<width$}  {}", lane.name, span.text)));
                let followed = lane.spans.get(number + 1).is_some_and(|next| Some(next.from) == span.to);
                if let Some(to) = span.to.filter(|_| !followed) {
                    lines.push((to, format!("    {:<width$}  gone", lane.name)));
                }
            }
            for (at, text, tone) in &lane.marks {
                lines.push((*at, format!("    {:<width$}  {} {text}", lane.name, sign(*tone))));
            }
        }
        // Stable: what happened at the same moment stays in the order in which it was written.
        lines.sort_by_key(|(at, _)| *at);
        let mut out = format!("{}\n\n", self.title);
        for (at, line) in lines {
            writeln!(out, "{:>9.3}  {line}", at.as_secs_f64()).unwrap_or_default();
        }
        out
    }

    /// As a picture: lanes from top to bottom, time to the right, steps numbered above and told below.
    #[must_use]
    pub fn svg(&self) -> String {
        let total_s = self.end.as_secs_f64().max(0.001);
        let x = |at: Duration| LEFT + at.as_secs_f64() / total_s * (WIDTH - LEFT - RIGHT);
        let top = 66.0;
        let bottom = top + LANE * self.lanes.len() as f64;
        let height = bottom + 40.0 + STEP * self.steps.len() as f64 + 10.0;
        let mut svg = Svg::new(WIDTH, height);
        svg.title(16.0, 26.0, &self.title);
        for second in ticks(total_s) {
            let at = LEFT + second / total_s * (WIDTH - LEFT - RIGHT);
            svg.line((at, top), (at, bottom), GRID);
            svg.text((at, bottom + 16.0), Anchor::Middle, INK, &format!("{second} s"));
        }
        for (number, lane) in self.lanes.iter().enumerate() {
            let y = top + LANE * number as f64;
            svg.text((LEFT - 8.0, y + 16.0), Anchor::End, INK, &short(&lane.name, LEFT - 16.0));
            for span in &lane.spans {
                let (from, to) = (x(span.from), x(span.to.unwrap_or(self.end)));
                let width = (to - from).max(1.5);
                let about = format!("{:.3} s: {} {}", span.from.as_secs_f64(), lane.name, span.text);
                svg.span((from, y + 3.0), (width, LANE - 6.0), span.tone.colour(), &about);
                let shown = short(&span.text, width - 8.0);
                if !shown.is_empty() {
                    svg.text((from + 4.0, y + 16.0), Anchor::Start, "#1a1a1a", &shown);
                }
            }
            for (at, text, tone) in &lane.marks {
                let about = format!("{:.3} s: {} {text}", at.as_secs_f64(), lane.name);
                svg.dot((x(*at), y + LANE / 2.0), tone.colour(), &about);
            }
        }
        let mut last = f64::NEG_INFINITY;
        for (number, (at, text, tone)) in self.steps.iter().enumerate() {
            let at_x = x(*at);
            svg.line((at_x, top - 8.0), (at_x, bottom), tone.colour());
            // Numbers that would lie on one another are left out above; the list below has all of them.
            if at_x - last > 14.0 {
                svg.text((at_x, top - 12.0), Anchor::Middle, tone.colour(), &(number + 1).to_string());
                last = at_x;
            }
            let line = format!("{:>3}.  {:.1} s  {text}", number + 1, at.as_secs_f64());
            let y = bottom + 40.0 + STEP * number as f64;
            let colour = if *tone == Tone::Bad { tone.colour() } else { INK };
            svg.text((24.0, y), Anchor::Start, colour, &line);
        }
        svg.finish()
    }
}

fn sign(tone: Tone) -> &'static str {
    match tone {
        Tone::Bad => "!!",
        Tone::Good => "ok",
        _ => "--",
    }
}

/// As much of a text as has room; nothing where hardly any has.
fn short(text: &str, width: f64) -> String {
    let room = (width / CHARACTER).max(0.0) as usize;
    if text.chars().count() <= room {
        text.to_owned()
    } else if room < 4 {
        String::new()
    } else {
        text.chars().take(room - 1).chain(['…']).collect()
    }
}

/// Round numbers of seconds, about ten of them.
fn ticks(total_s: f64) -> Vec<f64> {
    let rough = total_s / 10.0;
    // Nothing is written finer than a thousandth.
    let decade = 10_f64.powf(rough.log10().floor()).max(0.001);
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade).into_iter().find(|step| *step >= rough).unwrap_or(rough);
    (0..)
        .map(|n| f64::from(n) * step)
        // A step of a tenth does not add up to round numbers.
        .map(|s| (s * 1000.0).round() / 1000.0)
        .take_while(|s| *s <= total_s)
        .take(50)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn example() -> Timeline {
        let mut line = Timeline::new("a <story>");
        line.step(s(0), "it begins", Tone::Plain);
        assert!(line.state("pod a", s(1), "Pending", Tone::Busy));
        assert!(!line.state("pod a", s(2), "Pending", Tone::Busy));
        assert!(line.state("pod a", s(3), "Running", Tone::Good));
        line.mark("pod a", s(4), "touched", Tone::Bad);
        assert!(line.gone("pod a", s(5)));
        assert!(!line.gone("pod a", s(6)));
        line.state("node", s(2), "up", Tone::Good);
        line.step(s(7), "it ends", Tone::Good);
        line
    }

    #[test]
    fn words_come_in_the_order_of_time() {
        let text = example().text();
        let lines: Vec<&str> = text.lines().skip(2).map(|line| line[11..].trim()).collect();
        let expected = [
            "-- it begins",
            "pod a  Pending",
            "node   up",
            "pod a  Running",
            "pod a  !! touched",
            "pod a  gone",
            "ok it ends",
        ];
        assert_eq!(lines, expected, "{text}");
    }

    #[test]
    fn each_lane_and_step_is_drawn() {
        let svg = example().svg();
        assert_eq!(svg.matches("<title>").count(), 4, "three spans and a mark: {svg}");
        for part in ["a &lt;story&gt;", "pod a", "node", "it begins", "it ends", "Running"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let empty = Timeline::new("").svg();
        assert!(!empty.contains("NaN") && !empty.contains("inf"), "{empty}");
    }

    #[test]
    fn ticks_are_round() {
        let check = |total: f64, expected: &[f64]| assert_eq!(ticks(total), expected, "{total}");
        check(4.2, &[0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]);
        check(95.0, &[0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]);
        assert!(ticks(0.001).len() < 12);
    }
}
