//! The latencies as an SVG: one line for each kind of request, percentiles to the right, milliseconds upwards.

use carrack_plot::{Anchor, COLOURS, Svg};

use super::figures::{GRID, Report};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 40.0;

/// Draws a report.
pub fn svg(report: &Report) -> String {
    let all = || report.figures.iter().flat_map(|figure| &figure.curve_ms).copied().filter(|ms| *ms > 0.0);
    let low = all().fold(f64::INFINITY, f64::min).clamp(1e-3, 1e6).log10().floor();
    let high = all().fold(0.0, f64::max).clamp(1e-2, 1e6).log10().ceil().max(low + 1.0);
    let y = |ms: f64| {
        let share = (ms.max(1e-3).log10() - low) / (high - low);
        TOP + (1.0 - share.clamp(0.0, 1.0)) * (HEIGHT - TOP - BOTTOM)
    };
    let x = |place: usize| LEFT + place as f64 / (GRID.len() - 1) as f64 * (WIDTH - LEFT - RIGHT);
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let (server, clients, pods) = (&report.server, report.clients, report.pods);
    svg.title(LEFT, 24.0, &format!("{server}: latency by percentile, {clients} clients, {pods} pods"));
    let mut decade = low;
    while decade <= high {
        let (ms, at) = (10_f64.powf(decade), y(10_f64.powf(decade)));
        svg.line((LEFT, at), (WIDTH - RIGHT, at), "#ddd");
        svg.text((LEFT - 6.0, at + 4.0), Anchor::End, "#000", &format!("{ms} ms"));
        decade += 1.0;
    }
    for (place, percent) in GRID.iter().enumerate() {
        svg.text((x(place), HEIGHT - BOTTOM + 18.0), Anchor::Middle, "#000", &format!("p{percent}"));
    }
    for (number, figure) in report.figures.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        svg.polyline(figure.curve_ms.iter().enumerate().map(|(place, ms)| (x(place), y(*ms))), colour);
        let place = (WIDTH - RIGHT + 14.0, TOP + 14.0 + number as f64 * 20.0);
        svg.text(place, Anchor::Start, colour, &format!("{}: {:.0}/s", figure.name, figure.rate_per_s));
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figure;
    use super::*;

    #[test]
    fn each_figure_is_a_line() {
        let report = Report {
            server: "v1<2".to_owned(),
            clients: 1,
            pods: 2,
            pod_bytes: 3,
            watchers: 4,
            cores: 2,
            ready_ms: None,
            idle_mb: None,
            loaded_mb: None,
            figures: vec![Figure::of("a", vec![100, 2000, 30_000], 1.0), Figure::of("b", Vec::new(), 1.0)],
        };
        let svg = svg(&report);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("v1&lt;2") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
