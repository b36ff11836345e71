//! Which of the two text formats a client gets.

/// A text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0, which Prometheus asks for.
    OpenMetrics,
    /// The older text format of Prometheus, version 0.0.4, which `promtool check metrics` and people read.
    Text,
}

impl Format {
    /// What stands in `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Chooses by the `Accept` fields of a request, given line by line (RFC 9110, section 12.5.1): of the media ranges that match a format the most specific one
    /// says how much it is wanted, and of formats that are wanted alike the text of Prometheus is taken. Where none is wanted, as by an `Accept`
    /// of other types only, that is sent too: the section allows to disregard the field. Parameters but `version`, `charset` and `q` are passed over.
    #[must_use]
    pub fn negotiate<'a>(accept: impl IntoIterator<Item = &'a str>) -> Self {
        let mut wanted = [Wanted::default(); 2];
        for field in accept {
            for range in split(field, ',') {
                let Some(range) = Range::read(range) else {
                    continue;
                };
                for (format, wanted) in [Self::OpenMetrics, Self::Text].into_iter().zip(&mut wanted)
                {
                    if let Some(precision) = range.precision(format)
                        && wanted.precision.is_none_or(|before| before < precision)
                    {
                        *wanted = Wanted {
                            precision: Some(precision),
                            thousandths: range.thousandths,
                        };
                    }
                }
            }
        }
        let [open_metrics, text] = wanted.map(|wanted| wanted.thousandths);
        if open_metrics > text {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    /// Type, subtype and version.
    fn media_type(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::OpenMetrics => ("application", "openmetrics-text", "1.0.0"),
            Self::Text => ("text", "plain", "0.0.4"),
        }
    }
}

/// How much a format is wanted, by the most specific range so far.
#[derive(Debug, Clone, Copy, Default)]
struct Wanted {
    precision: Option<usize>,
    thousandths: u16,
}

/// A media range with its weight.
#[derive(Debug)]
struct Range<'a> {
    kind: &'a str,
    subkind: &'a str,
    version: Option<&'a str>,
    charset: Option<&'a str>,
    thousandths: u16,
}

impl<'a> Range<'a> {
    /// `None`: it is none.
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = split(text, ';');
        let (kind, subkind) = parts.next()?.trim().split_once('/')?;
        let mut range = Self {
            kind,
            subkind,
            version: None,
            charset: None,
            thousandths: 1000,
        };
        for parameter in parts {
            let parameter = parameter.trim();
            if parameter.is_empty() {
                continue;
            }
            let (name, value) = parameter.split_once('=')?;
            let value = value.trim();
            let quoted = value.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
            let value = quoted.unwrap_or(value);
            match name.trim() {
                name if name.eq_ignore_ascii_case("q") => range.thousandths = weight(value)?,
                name if name.eq_ignore_ascii_case("version") => range.version = Some(value),
                name if name.eq_ignore_ascii_case("charset") => range.charset = Some(value),
                _ => {}
            }
        }
        Some(range)
    }

    /// How specific it is, where it takes the format.
    fn precision(&self, format: Format) -> Option<usize> {
        let (kind, subkind, version) = format.media_type();
        if self.version.is_some_and(|it| it != version)
            || self
                .charset
                .is_some_and(|it| !it.eq_ignore_ascii_case("utf-8"))
        {
            return None;
        }
        let parameters = usize::from(self.version.is_some()) + usize::from(self.charset.is_some());
        match (self.kind, self.subkind) {
            ("*", "*") => Some(0),
            (it, "*") if it.eq_ignore_ascii_case(kind) => Some(1),
            (it, subtype)
                if it.eq_ignore_ascii_case(kind) && subtype.eq_ignore_ascii_case(subkind) =>
            {
                Some(2 + parameters)
            }
            _ => None,
        }
    }
}

/// A weight in thousandths: 0 to 1 with three digits at most (RFC 9110, section 12.4.2).
fn weight(text: &str) -> Option<u16> {
    let (whole, digits) = text.split_once('.').unwrap_or((text, ""));
    let is_number = digits.len() <= 3 && digits.bytes().all(|digit| digit.is_ascii_digit());
    let thousandths = format!("{digits:0<3}").parse::<u16>().ok();
    match (whole, thousandths.filter(|_| is_number)?) {
        ("0", thousandths) => Some(thousandths),
        ("1", 0) => Some(1000),
        _ => None,
    }
}

/// The parts between separators that stand outside of quotes.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |letter| {
        let is_here = letter == separator && !is_quoted;
        if letter == '"' && !is_escaped {
            is_quoted = !is_quoted;
        }
        is_escaped = is_quoted && letter == '\\' && !is_escaped;
        is_here
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_one_that_is_wanted_most() {
        use Format::{OpenMetrics, Text};
        let prometheus_2 = "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (prometheus_2, OpenMetrics),
            (prometheus_3, OpenMetrics),
            ("", Text),
            ("*/*", Text),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Text),
            ("application/openmetrics-text", OpenMetrics),
            (
                "Application/OpenMetrics-Text; Version=1.0.0; Charset=UTF-8",
                OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=\"1.0.0\"",
                OpenMetrics,
            ),
            ("application/openmetrics-text;version=0.0.1", Text),
            ("application/openmetrics-text;version=2.0.0", Text),
            ("application/openmetrics-text;charset=latin-1", Text),
            ("application/openmetrics-text;q=0", Text),
            ("application/openmetrics-text;q=0.001", OpenMetrics),
            ("application/*, text/*;q=0.5", OpenMetrics),
            ("application/*;q=0.5, text/*", Text),
            ("application/json", Text),
            ("*/*;q=0", Text),
            // The most specific range counts, wherever it stands.
            (
                "application/openmetrics-text;q=0.2, application/*, text/plain;q=0.3",
                Text,
            ),
            (
                "application/*, application/openmetrics-text;q=0.2, text/plain;q=0.1",
                OpenMetrics,
            ),
            ("text/plain;q=0.1, */*", OpenMetrics),
            (
                "text/plain;version=0.0.4;q=0.1, text/plain, application/*;q=0.5",
                OpenMetrics,
            ),
            // What is no media range, or no weight, is passed over.
            ("application/openmetrics-text;q=2", Text),
            ("application/openmetrics-text;q=0.1234", Text),
            ("application/openmetrics-text;q=1.001", Text),
            ("application/openmetrics-text;q=-1", Text),
            ("application/openmetrics-text;q=", Text),
            ("openmetrics-text", Text),
            (",,;;=,/,application/openmetrics-text", OpenMetrics),
            (
                "text/plain;q=0.1;a=\",\", application/openmetrics-text;q=0.2;b=\"\\\";q=0\"",
                OpenMetrics,
            ),
            ("a/b;c=\"never closed, application/openmetrics-text", Text),
        ] {
            assert_eq!(Format::negotiate([accept]), format, "{accept}");
        }
        assert_eq!(Format::negotiate([]), Text);
        assert_eq!(
            Format::negotiate(["text/plain;q=0.5", "application/openmetrics-text"]),
            OpenMetrics,
            "of several lines"
        );
    }
}
