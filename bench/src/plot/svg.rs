//! Shapes and words of an SVG file. Lengths are in user units, which are pixels at scale 1.

use std::fmt::Write;

/// Where a text stands relative to its point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Font<'a> {
    /// Height, in `8..=20`.
    pub(super) size: f64,
    pub(super) bold: bool,
    pub(super) colour: &'a str,
}

/// How a line looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stroke<'a> {
    pub(super) colour: &'a str,
    pub(super) width: f64,
    /// Lengths of dashes and gaps as SVG writes them; empty for a solid line.
    pub(super) dashes: &'a str,
}

impl<'a> Stroke<'a> {
    pub(super) fn solid(colour: &'a str, width: f64) -> Self {
        Stroke {
            colour,
            width,
            dashes: "",
        }
    }

    fn attributes(self) -> String {
        let mut text = format!(r#"stroke="{}" stroke-width="{}""#, self.colour, self.width);
        if !self.dashes.is_empty() {
            let _ = write!(text, r#" stroke-dasharray="{}""#, self.dashes);
        }
        text
    }
}

/// A shape that marks a point of a series, so that series differ by more than colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    /// Limits are drawn without points.
    None,
}

/// A picture being drawn.
#[derive(Debug)]
pub(super) struct Svg {
    body: String,
}

impl Svg {
    /// A white picture; `title` is what screen readers say.
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        let mut body = format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:.0} {h:.0}" width="{w:.0}" height="{h:.0}" "#,
                r#"role="img" font-family="Helvetica, Arial, 'Liberation Sans', sans-serif">"#
            ),
            w = width,
            h = height
        );
        body.push('\n');
        let _ = writeln!(body, "<title>{}</title>", escape(title));
        let _ = writeln!(
            body,
            r##"<rect width="{width:.0}" height="{height:.0}" rx="6" fill="#ffffff"/>"##
        );
        Svg { body }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: Stroke<'_>) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" {}/>"#,
            from.0,
            from.1,
            to.0,
            to.1,
            stroke.attributes()
        );
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], stroke: Stroke<'_>) {
        let list: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke-linejoin="round" {}/>"#,
            list.join(" "),
            stroke.attributes()
        );
    }

    pub(super) fn bar(&mut self, corner: (f64, f64), size: (f64, f64), colour: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{colour}"/>"#,
            corner.0, corner.1, size.0, size.1
        );
    }

    pub(super) fn marker(&mut self, (x, y): (f64, f64), marker: Marker, colour: &str) {
        let rim = format!(r##"fill="{colour}" stroke="#ffffff" stroke-width="0.8""##);
        let _ = match marker {
            Marker::None => Ok(()),
            Marker::Circle => writeln!(
                self.body,
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="4" {rim}/>"#
            ),
            Marker::Square => writeln!(
                self.body,
                r#"<rect x="{:.1}" y="{:.1}" width="7" height="7" {rim}/>"#,
                x - 3.5,
                y - 3.5
            ),
            Marker::Triangle => writeln!(
                self.body,
                r#"<path d="M{x:.1},{:.1} l4.6,8 h-9.2 z" {rim}/>"#,
                y - 5.0
            ),
            Marker::Diamond => writeln!(
                self.body,
                r#"<path d="M{x:.1},{:.1} l4.8,4.8 l-4.8,4.8 l-4.8,-4.8 z" {rim}/>"#,
                y - 4.8
            ),
        };
    }

    pub(super) fn text(&mut self, at: (f64, f64), anchor: Anchor, font: Font<'_>, text: &str) {
        self.turned_text(at, anchor, font, 0.0, text);
    }

    /// A text turned by `degrees` clockwise around its point.
    pub(super) fn turned_text(
        &mut self,
        (x, y): (f64, f64),
        anchor: Anchor,
        font: Font<'_>,
        degrees: f64,
        text: &str,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if font.bold {
            r#" font-weight="bold""#
        } else {
            ""
        };
        let turn = if degrees == 0.0 {
            String::new()
        } else {
            format!(r#" transform="rotate({degrees:.0} {x:.1} {y:.1})""#)
        };
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{}" fill="{}"{weight}{turn}>{}</text>"#,
            font.size,
            font.colour,
            escape(text)
        );
    }

    /// The file.
    pub(super) fn finish(mut self) -> String {
        self.body.push_str("</svg>\n");
        self.body
    }
}

/// About how wide a text is: sans-serif letters are a little over half as wide as high.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().fold(0.0, |width, _| width + 0.56 * size)
}

/// `text` with the characters that XML gives a meaning replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_break_the_file() {
        let mut svg = Svg::new(10.0, 10.0, "a < b");
        let font = Font {
            size: 12.0,
            bold: false,
            colour: "#000000",
        };
        svg.text((1.0, 2.0), Anchor::Start, font, r#"<&">"#);
        let file = svg.finish();
        assert!(file.contains("<title>a &lt; b</title>"));
        assert!(file.contains(">&lt;&amp;&quot;&gt;</text>"));
        assert!(file.ends_with("</svg>\n"));
    }
}
