//! Prometheus' text format 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
//!
//! Counters are named without `_total` and infos without `_info` here; the text has the suffixes.

use std::fmt::{Display, Write as _};

/// Labels of a sample: names that are ours, and values that may be anything.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// Text that grows family by family. A family without samples is left out.
#[derive(Debug)]
pub(super) struct Exposition {
    text: String,
}

/// What kind of family it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricKind {
    Counter,
    Gauge,
    Info,
    Histogram,
}

/// The samples of one family.
#[derive(Debug)]
pub(super) struct Family<'a> {
    exposition: &'a mut Exposition,
    kind: MetricKind,
    name: &'static str,
    help: &'static str,
    is_begun: bool,
}

impl MetricKind {
    /// The end of a sample's name.
    fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

impl Exposition {
    pub(super) fn new() -> Self {
        Self {
            text: String::with_capacity(16 << 10),
        }
    }

    /// What only grows. The name lacks `_total`.
    pub(super) fn counter(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(MetricKind::Counter, name, help)
    }

    /// What goes up and down.
    pub(super) fn gauge(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(MetricKind::Gauge, name, help)
    }

    /// Words that do not change. The name lacks `_info`.
    pub(super) fn info(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(MetricKind::Info, name, help)
    }

    /// A distribution.
    pub(super) fn histogram(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(MetricKind::Histogram, name, help)
    }

    fn family(&mut self, kind: MetricKind, name: &'static str, help: &'static str) -> Family<'_> {
        Family {
            exposition: self,
            kind,
            name,
            help,
            is_begun: false,
        }
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn sample(
        &mut self,
        name: (&str, &str),
        labels: Labels<'_>,
        last: Labels<'_>,
        value: &dyn Display,
    ) {
        self.text.push_str(name.0);
        self.text.push_str(name.1);
        let mut opening = '{';
        for (name, value) in labels.iter().chain(last) {
            self.text.push(opening);
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(&mut self.text, value);
            self.text.push('"');
            opening = ',';
        }
        if opening == ',' {
            self.text.push('}');
        }
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, " {value}");
    }
}

impl Family<'_> {
    /// A sample; unknown, it is left out.
    pub(super) fn add<N: Display>(&mut self, labels: Labels<'_>, value: Option<N>) {
        if let Some(value) = value {
            self.begin();
            let name = (self.name, self.kind.suffix());
            self.exposition.sample(name, labels, &[], &value);
        }
    }

    /// A distribution: how many were at most each of the bounds but no more than the bound before, seconds, and the sum of all, seconds, where it is known. The last bound is infinite.
    pub(super) fn add_histogram(
        &mut self,
        labels: Labels<'_>,
        buckets: impl Iterator<Item = (f64, u64)>,
        sum: Option<f64>,
    ) {
        self.begin();
        let name = self.name;
        let mut count = 0_u64;
        for (bound, more) in buckets {
            count = count.saturating_add(more);
            let bound = if bound.is_finite() {
                bound.to_string()
            } else {
                "+Inf".to_owned()
            };
            let last = [("le", bound.as_str())];
            self.exposition
                .sample((name, "_bucket"), labels, &last, &count);
        }
        if let Some(sum) = sum {
            self.exposition.sample((name, "_sum"), labels, &[], &sum);
        }
        self.exposition
            .sample((name, "_count"), labels, &[], &count);
    }

    /// What is told of a family before its samples.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.is_begun, true) {
            return;
        }
        let kind = match self.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge | MetricKind::Info => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let suffix = self.kind.suffix();
        let (name, help) = (self.name, self.help);
        let text = &mut self.exposition.text;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        let _ = writeln!(text, "# HELP {name}{suffix} {help}");
    }
}

/// Adds the value of a label.
fn escape(text: &mut String, value: &str) {
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            letter => text.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> String {
        let mut it = Exposition::new();
        it.counter("a_packets", "Packets.")
            .add(&[("source", "e\\t\"h\n0")], Some(3));
        let mut b = it.counter("b", "Left out.");
        b.add(&[], None::<u64>);
        let mut gauge = it.gauge("c_seconds", "Seconds.");
        gauge.add(&[], Some(1.5));
        gauge.add(&[("x", "é"), ("y", "")], Some(1e-9));
        it.info("d", "Words.").add(&[("version", "1")], Some(1));
        let mut histogram = it.histogram("e_seconds", "Times.");
        histogram.add_histogram(
            &[("x", "1")],
            [(0.001, 2), (1.0, 0), (f64::INFINITY, 1)].into_iter(),
            Some(2.25),
        );
        it.finish()
    }

    #[test]
    fn the_format_is_written_as_specified() {
        let expected = r##"# TYPE a_packets_total counter
# HELP a_packets_total Packets.
a_packets_total{source="e\\t\"h\n0"} 3
# TYPE c_seconds gauge
# HELP c_seconds Seconds.
c_seconds 1.5
c_seconds{x="é",y=""} 0.000000001
# TYPE d_info gauge
# HELP d_info Words.
d_info{version="1"} 1
# TYPE e_seconds histogram
# HELP e_seconds Times.
e_seconds_bucket{x="1",le="0.001"} 2
e_seconds_bucket{x="1",le="1"} 2
e_seconds_bucket{x="1",le="+Inf"} 3
e_seconds_sum{x="1"} 2.25
e_seconds_count{x="1"} 3
"##;
        assert_eq!(all(), expected);
    }
}
