//! Charts of columns, drawn on the server. All geometry is in integers. The figures of each column are in its
//! title, and all of them in a table below.

use askama::Template;

use crate::text;

/// The kind of figure that a chart shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChartUnit {
    Money,
    Count,
}

impl ChartUnit {
    fn exact(self, value: i128) -> String {
        match self {
            Self::Money => text::money_of(value),
            Self::Count => text::count(value),
        }
    }

    /// The figure as a label of an axis.
    fn short(self, value: i128) -> String {
        match self {
            Self::Money => text::money_of(value),
            Self::Count => text::short(value),
        }
    }
}

/// A layer of the stack: its name, its colour, and a value for each column.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) color: &'static str,
    pub(crate) values: Vec<i128>,
}

/// The colours of layers, in their order; the rest is grey.
pub(crate) const COLORS: [&str; 7] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6"];
pub(crate) const GREY: &str = "rest";
pub(crate) const GOOD: &str = "c0";
pub(crate) const BAD: &str = "bad";

/// A chart of columns, over time or over other labels.
#[derive(Template)]
#[template(path = "chart.html")]
pub(crate) struct Chart {
    title: String,
    /// The labels of the axis: top, middle and bottom.
    marks: [String; 3],
    width: usize,
    columns: Vec<ChartColumn>,
    /// A label for each column; most have no room for one.
    ticks: Vec<Option<String>>,
    layers: Vec<Layer>,
    rows: Vec<ChartRow>,
    is_empty: bool,
}

struct ChartColumn {
    x: usize,
    title: String,
    parts: Vec<ChartSegment>,
}

struct ChartSegment {
    color: &'static str,
    y: i128,
    height: i128,
}

/// A row of the table.
struct ChartRow {
    label: String,
    values: Vec<String>,
}

/// The height of a chart and the width of a column, in units of the drawing.
const HEIGHT: i128 = 1_000;
const STEP: usize = 100;
/// The most labels on an axis.
const TICKS: usize = 8;

impl Chart {
    /// `labels` name the columns, one for each value of every layer.
    pub(crate) fn new(
        title: impl Into<String>,
        figure: ChartUnit,
        labels: &[String],
        layers: Vec<Layer>,
    ) -> Self {
        let of = |layer: &Layer, column: usize| {
            layer.values.get(column).copied().unwrap_or_default().max(0)
        };
        let sum = |column: usize| layers.iter().map(|layer| of(layer, column)).sum::<i128>();
        let sums: Vec<_> = (0..labels.len()).map(sum).collect();
        let most = sums.iter().copied().max().unwrap_or_default();
        let top = round_above(most, figure);
        let columns = labels.iter().zip(&sums).enumerate().map(|(place, (label, sum))| {
            let mut title = format!("{label}: {}", figure.exact(*sum));
            let (mut below, mut parts) = (0, Vec::new());
            for layer in &layers {
                let value = of(layer, place);
                if value == 0 {
                    continue;
                }
                if layers.len() > 1 {
                    title.push_str(&format!("\n{}: {}", layer.name, figure.exact(value)));
                }
                let (from, to) = (below * HEIGHT / top, (below + value) * HEIGHT / top);
                // A value above 0 is always visible.
                let height = (to - from).max(if below == 0 { 4 } else { 0 });
                parts.push(ChartSegment { color: layer.color, y: HEIGHT - from - height, height });
                below += value;
            }
            ChartColumn { x: place * STEP, title, parts }
        });
        let columns = columns.collect();
        let rows = labels.iter().enumerate().map(|(place, label)| {
            let values = layers
                .iter()
                .map(|layer| figure.exact(layer.values.get(place).copied().unwrap_or_default()));
            ChartRow { label: label.clone(), values: values.collect() }
        });
        let rows = rows.collect();
        let marks = [top, top / 2, 0].map(|mark| figure.short(mark));
        let every = labels.len().div_ceil(TICKS).max(1);
        let has_tick = |place: usize| (labels.len() - 1 - place).is_multiple_of(every);
        let ticks = labels.iter().enumerate();
        let ticks = ticks.map(|(place, label)| has_tick(place).then(|| label.clone())).collect();
        Self {
            title: title.into(),
            marks,
            width: labels.len().max(1) * STEP,
            columns,
            ticks,
            layers,
            rows,
            is_empty: most == 0,
        }
    }
}

/// A round number above `most`, whose half is round, too.
fn round_above(most: i128, figure: ChartUnit) -> i128 {
    // A hundredth of a cent is the smallest step of an axis of money.
    let mut scale: i128 = if figure == ChartUnit::Money { 1_000_000 } else { 1 };
    while most > scale.saturating_mul(10) {
        scale = scale.saturating_mul(10);
    }
    [2, 4, 6, 8, 10]
        .map(|times| scale.saturating_mul(times))
        .into_iter()
        .find(|top| *top >= most)
        .unwrap_or(most)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(values: &[i128]) -> Layer {
        Layer { name: "a <b>".to_owned(), color: COLORS[0], values: values.to_vec() }
    }

    #[test]
    fn an_axis_ends_at_a_round_number_above_all_columns() {
        for (most, top) in [(0, 2), (1, 2), (2, 2), (3, 4), (7, 8), (9, 10), (11, 20), (401, 600)] {
            assert_eq!(round_above(most, ChartUnit::Count), top, "{most}");
        }
        assert_eq!(round_above(i128::MAX, ChartUnit::Count), i128::MAX);
    }

    #[test]
    fn columns_are_stacked_to_their_sum_and_nothing_is_outside() {
        let labels: Vec<String> = (0..30).map(|day| day.to_string()).collect();
        let values: Vec<i128> = (0..30).map(|day| day * day).collect();
        let chart =
            Chart::new("t", ChartUnit::Count, &labels, vec![layer(&values), layer(&values)]);
        for column in &chart.columns {
            for part in &column.parts {
                assert!(part.y >= 0 && part.height >= 0 && part.y + part.height <= HEIGHT);
            }
        }
        assert_eq!(chart.columns[29].parts[0].height, 841 * HEIGHT / 2_000);
        assert!(chart.ticks.iter().flatten().count() <= TICKS);
        assert_eq!(chart.ticks[29].as_deref(), Some("29"), "the present is named");
        let text = chart.render().unwrap();
        assert!(text.contains("a &#60;b&#62;") && !text.contains("<b>"), "{text}");
    }
}
