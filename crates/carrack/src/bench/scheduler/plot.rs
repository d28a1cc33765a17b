//! The cost of a decision over the number of nodes, as an SVG: one line for each workload, nodes to the right (each step
//! ten times as many), microseconds upwards.

use carrack_plot::{Anchor, COLOURS, Svg};

use super::Cost;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 45.0;

/// Draws costs. Lines that go up one decade for each decade of nodes would mean that a pod costs what there is; level ones
/// mean that it costs what changed.
pub fn svg(costs: &[Cost]) -> String {
    let nodes = || costs.iter().map(|cost| cost.nodes as f64);
    let (few, many) = (nodes().fold(f64::INFINITY, f64::min).max(1.0), nodes().fold(2.0, f64::max));
    let most = costs.iter().map(|cost| cost.us_per_pod).fold(1.0, f64::max) * 1.1;
    let x = |nodes: f64| {
        let share = (nodes.max(1.0) / few).log10() / (many / few).log10().max(1e-9);
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    };
    let y = |us: f64| TOP + (1.0 - (us / most).clamp(0.0, 1.0)) * (HEIGHT - TOP - BOTTOM);
    let mut svg = Svg::new(WIDTH, HEIGHT);
    svg.title(LEFT, 24.0, "Cost of a decision over the number of nodes, every node considered");
    for step in 0..=5 {
        let us = most * f64::from(step) / 5.0;
        svg.line((LEFT, y(us)), (WIDTH - RIGHT, y(us)), "#ddd");
        svg.text((LEFT - 6.0, y(us) + 4.0), Anchor::End, "#000", &format!("{us:.0} us"));
    }
    let mut counts: Vec<usize> = costs.iter().map(|cost| cost.nodes).collect();
    counts.sort_unstable();
    counts.dedup();
    for count in counts {
        svg.text((x(count as f64), HEIGHT - BOTTOM + 18.0), Anchor::Middle, "#000", &count.to_string());
    }
    let mut names: Vec<&str> = Vec::new();
    for cost in costs {
        let name = &*cost.workload;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for (number, name) in names.into_iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let own = || costs.iter().filter(|cost| cost.workload == name);
        svg.polyline(own().map(|cost| (x(cost.nodes as f64), y(cost.us_per_pod))), colour);
        let last = own().next_back().map_or(0.0, |cost| cost.us_per_pod);
        let place = (WIDTH - RIGHT + 12.0, TOP + 14.0 + number as f64 * 20.0);
        svg.text(place, Anchor::Start, colour, &format!("{name}: {last:.1} us"));
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_is_a_line() {
        let cost = |workload: &'static str, nodes, us_per_pod| Cost { workload: workload.into(), nodes, us_per_pod };
        let svg = svg(&[cost("a", 500, 5.0), cost("a", 20_000, 7.0), cost("b", 500, 0.0), cost("b", 20_000, 9.0)]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains(">20000<") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(!super::svg(&[]).contains("NaN"));
    }
}
