//! The latencies as an SVG: one line for each kind of request, percentiles to the right, milliseconds upwards.

use super::figures::{GRID, Report};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 40.0;
const COLOURS: [&str; 9] =
    ["#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#6a4c93", "#00798c", "#8d5524", "#555555", "#e07a5f"];

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
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}: latency by percentile, {} clients, {} pods</text>\n",
        escape(&report.server),
        report.clients,
        report.pods
    );
    let mut decade = low;
    while decade <= high {
        let (ms, at) = (10_f64.powf(decade), y(10_f64.powf(decade)));
        out.push_str(&format!(
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{ms} ms</text>\n",
            WIDTH - RIGHT, LEFT - 6.0, at + 4.0
        ));
        decade += 1.0;
    }
    for (place, percent) in GRID.iter().enumerate() {
        out.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">p{percent}</text>\n",
            x(place),
            HEIGHT - BOTTOM + 18.0
        ));
    }
    for (number, figure) in report.figures.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<String> =
            figure.curve_ms.iter().enumerate().map(|(place, ms)| format!("{:.1},{:.1}", x(place), y(*ms))).collect();
        let line = TOP + 14.0 + number as f64 * 20.0;
        out.push_str(&format!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n\
             <text x=\"{}\" y=\"{line}\" fill=\"{colour}\">{}: {:.0}/s</text>\n",
            points.join(" "),
            WIDTH - RIGHT + 14.0,
            escape(figure.name),
            figure.rate_per_s
        ));
    }
    out.push_str("</svg>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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
