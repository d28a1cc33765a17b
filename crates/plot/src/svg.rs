//! The few shapes that plots are made of.

use std::fmt::Write as _;

/// Colours of lines that belong to different things, dark enough for white ground.
pub const COLOURS: [&str; 9] =
    ["#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#6a4c93", "#00798c", "#8d5524", "#555555", "#e07a5f"];

/// Which end of a text stands at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Its beginning.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// A picture that is being drawn. Shapes that are drawn later lie above earlier ones.
#[derive(Clone, Debug)]
pub struct Svg {
    out: String,
}

impl Svg {
    /// White ground of this size.
    #[must_use]
    pub fn new(width: f64, height: f64) -> Self {
        let mut svg = Self { out: String::new() };
        svg.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        ));
        svg
    }

    /// The picture's title.
    pub fn title(&mut self, x: f64, y: f64, text: &str) {
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"15\">{}</text>\n", escape(text)));
    }

    /// A text.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, colour: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>\n"
        ));
    }

    /// A straight line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
        self.put(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>\n"
        ));
    }

    /// A line through points.
    pub fn polyline(&mut self, points: impl IntoIterator<Item = (f64, f64)>, colour: &str) {
        let points: Vec<String> = points.into_iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        self.put(format_args!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{points}\"/>\n"
        ));
    }

    /// A filled box, with a text that shows when somebody points at it.
    pub fn span(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str, about: &str) {
        let about = escape(about);
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" fill=\"{colour}\">\
             <title>{about}</title></rect>\n"
        ));
    }

    /// A dot, with a text that shows when somebody points at it.
    pub fn dot(&mut self, (x, y): (f64, f64), colour: &str, about: &str) {
        let about = escape(about);
        self.put(format_args!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{about}</title></circle>\n"
        ));
    }

    /// The file's text.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }

    fn put(&mut self, shape: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        self.out.write_fmt(shape).unwrap_or_default();
    }
}

/// Text as XML has it. Characters that XML has no way to write are shown as a replacement.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' => out.push(' '),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(escape("a<b & \"c\"\n\u{1b}"), "a&lt;b &amp; &quot;c&quot; \u{fffd}");
        let mut svg = Svg::new(10.0, 20.0);
        svg.text((1.0, 2.0), Anchor::End, "#000", "</svg>");
        let text = svg.finish();
        assert_eq!(text.matches("</svg>").count(), 1, "{text}");
        assert!(text.contains("&lt;/svg&gt;"), "{text}");
    }
}
