//! Prometheus' text format 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
//!
//! Callers name counters without `_total` and infos without `_info`. The text has the suffixes.

use std::fmt::{Display, Write as _};

/// Labels of a sample. Label names are constants of this crate; values may be any text.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// The text of the metrics. A family without samples is left out.
#[derive(Debug)]
pub(super) struct Exposition {
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricKind {
    Counter,
    Gauge,
    Info,
    Histogram,
}

#[derive(Debug)]
pub(super) struct Family<'a> {
    exposition: &'a mut Exposition,
    kind: MetricKind,
    name: &'static str,
    help: &'static str,
    is_begun: bool,
}

impl MetricKind {
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

    /// A family of counters.
    pub(super) fn counter(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(MetricKind::Counter, name, help)
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(MetricKind::Gauge, name, help)
    }

    /// A family with constant texts as labels.
    pub(super) fn info(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(MetricKind::Info, name, help)
    }

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
    /// Adds a sample. An unknown value adds no sample.
    pub(super) fn add<N: Display>(&mut self, labels: Labels<'_>, value: Option<N>) {
        if let Some(value) = value {
            self.begin();
            let name = (self.name, self.kind.suffix());
            self.exposition.sample(name, labels, &[], &value);
        }
    }

    /// Adds a histogram. `buckets` has upper bounds in seconds, the last infinite, and the count of
    /// values between the previous bound and this bound. `sum` is in seconds.
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

/// Appends a label value with backslash, quote and line feed escaped.
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
