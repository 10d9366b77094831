//! The text format of OpenMetrics 1.0.

use std::fmt::{self, Display, Write};
use std::sync::atomic::Ordering;

use crate::instruments::{Histogram, HistogramUnit, MicrosAsSeconds};

/// The type of a family of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A number that only grows.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// Buckets, a sum and a count.
    Histogram,
    /// Labels that carry information; the value is 1.
    Info,
}

impl MetricType {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// The part of a sample's name after the name of its family.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge | Self::Histogram => "",
            Self::Info => "_info",
        }
    }
}

/// An OpenMetrics text, while it is written.
#[derive(Debug)]
pub struct Exposition {
    prefix: &'static str,
    text: String,
}

/// A family of series, while its samples are written.
#[derive(Debug)]
pub struct MetricFamily<'a> {
    text: &'a mut String,
    name: String,
    kind: MetricType,
}

impl Exposition {
    /// The media type of the text.
    pub const MEDIA_TYPE: &'static str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Creates an empty text. The names of its families begin with `prefix` and an underscore.
    pub const fn new(prefix: &'static str) -> Self {
        Self { prefix, text: String::new() }
    }

    /// Begins a family. Its type and help are written even without samples, so that all names are
    /// known from the start.
    pub fn family(&mut self, kind: MetricType, name: &str, help: &str) -> MetricFamily<'_> {
        let name = format!("{}_{name}", self.prefix);
        write(&mut self.text, format_args!("# TYPE {name} {}\n", kind.name()));
        write(&mut self.text, format_args!("# HELP {name} {}\n", EscapedText(help)));
        MetricFamily { text: &mut self.text, name, kind }
    }

    /// Writes a gauge with one sample and no labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(MetricType::Gauge, name, help).sample(&[], value);
    }

    /// Ends the text and returns it.
    pub fn end(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }
}

impl MetricFamily<'_> {
    /// Writes a sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line(self.kind.suffix(), labels, None, value);
    }

    /// Writes the samples of a histogram.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let shown = |value: u64| match histogram.unit {
            HistogramUnit::Microseconds => MicrosAsSeconds(value).to_string(),
            HistogramUnit::Each => format!("{value}.0"),
        };
        let bounds = histogram.bounds.iter().map(|bound| shown(*bound));
        let mut count: u64 = 0;
        for (bound, bucket) in bounds.chain(["+Inf".to_owned()]).zip(&histogram.buckets) {
            count = count.saturating_add(bucket.load(Ordering::Relaxed));
            self.line("_bucket", labels, Some(&bound), count);
        }
        self.line("_sum", labels, None, shown(histogram.sum.load(Ordering::Relaxed)));
        self.line("_count", labels, None, count);
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &[(&str, &str)],
        bound: Option<&str>,
        value: impl Display,
    ) {
        write(self.text, format_args!("{}{suffix}", self.name));
        let labels = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let mut before = "{";
        for (name, value) in labels {
            write(self.text, format_args!("{before}{name}=\"{}\"", EscapedText(value)));
            before = ",";
        }
        let after = if before == "{" { "" } else { "}" };
        write(self.text, format_args!("{after} {value}\n"));
    }
}

/// A text with escapes for the characters that would end a label or a line.
struct EscapedText<'a>(&'a str);

impl Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            letter => f.write_char(letter),
        })
    }
}

fn write(text: &mut String, what: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(what);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_that_of_openmetrics() {
        let times = Histogram::of_times(&[50, 1_000_000]);
        for micros in [7, 50, 51, 2_000_000] {
            times.observe(micros);
        }
        let mut text = Exposition::new("x");
        text.family(MetricType::Counter, "calls", "Calls").sample(&[("to", "a\"b\\c\n")], 3);
        text.family(MetricType::Histogram, "wait_seconds", "A wait")
            .histogram(&[("to", "a")], &times);
        text.gauge("open", "What is open", 5);
        text.family(MetricType::Info, "build", "Which it is").sample(&[("version", "1")], 1);
        text.family(MetricType::Gauge, "none", "Nothing");
        let expected = r#"# TYPE x_calls counter
# HELP x_calls Calls
x_calls_total{to="a\"b\\c\n"} 3
# TYPE x_wait_seconds histogram
# HELP x_wait_seconds A wait
x_wait_seconds_bucket{to="a",le="0.00005"} 2
x_wait_seconds_bucket{to="a",le="1.0"} 3
x_wait_seconds_bucket{to="a",le="+Inf"} 4
x_wait_seconds_sum{to="a"} 2.000108
x_wait_seconds_count{to="a"} 4
# TYPE x_open gauge
# HELP x_open What is open
x_open 5
# TYPE x_build info
# HELP x_build Which it is
x_build_info{version="1"} 1
# TYPE x_none gauge
# HELP x_none Nothing
# EOF
"#;
        assert_eq!(text.end(), expected);
    }
}
