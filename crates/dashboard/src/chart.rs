//! Charts of columns, drawn on the server. All geometry is in integers. The figures of each column are in its
//! title, and all of them in a table below.

use askama::Template;

use crate::text::{self, Figure};

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

    fn rounded(self, value: i128) -> String {
        match self {
            Self::Money => Figure::of(value).shown,
            Self::Count => text::count(value),
        }
    }
}

/// A layer of the stack: its name, its colour, and a value for each column.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) color: &'static str,
    /// The page of its calls alone; empty for none.
    pub(crate) href: String,
    pub(crate) values: Vec<i128>,
}

impl Layer {
    pub(crate) fn new(name: &str, color: &'static str, values: Vec<i128>) -> Self {
        Self { name: name.to_owned(), color, href: String::new(), values }
    }
}

/// The colours of layers, in their order; the rest is grey.
pub(crate) const COLORS: [&str; 7] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6"];
pub(crate) const GREY: &str = "rest";
pub(crate) const GOOD: &str = "c0";

/// A chart of columns, over time or over other labels.
#[derive(Template)]
#[template(path = "chart.html")]
pub(crate) struct Chart {
    title: String,
    /// The labels of the axis at equal distances, from the top down. Some have no room for one.
    marks: Vec<String>,
    /// The lines of the axis.
    grid: Vec<i128>,
    width: usize,
    columns: Vec<ChartColumn>,
    /// A label for each column; most have no room for one.
    ticks: Vec<Option<String>>,
    layers: Vec<Layer>,
    /// The height of the average of all columns, and its figure.
    average: Option<(i128, String)>,
    /// The outline of the columns of the period before; empty without one.
    before: String,
    rows: Vec<ChartRow>,
    is_empty: bool,
}

struct ChartColumn {
    x: usize,
    title: String,
    parts: Vec<ChartSegment>,
}

struct ChartSegment {
    name: String,
    color: &'static str,
    href: String,
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
        unit: ChartUnit,
        labels: &[String],
        layers: Vec<Layer>,
    ) -> Self {
        let sums = column_sums(&layers, labels.len());
        Self::draw(title.into(), unit, labels, layers, &Axis::around(&sums), &sums)
    }

    /// With the average of the columns that have begun, and the sums of the columns of the period before behind them.
    pub(crate) fn with_period_before(
        title: impl Into<String>,
        unit: ChartUnit,
        labels: &[String],
        layers: Vec<Layer>,
        before: &[i128],
        begun: usize,
    ) -> Self {
        let sums = column_sums(&layers, labels.len());
        let before = before.get(..labels.len()).unwrap_or(before);
        let whole = |value: &i128| ColumnSum { above: (*value).max(0), below: (*value).min(0) };
        let all: Vec<_> = sums.iter().copied().chain(before.iter().map(whole)).collect();
        let axis = Axis::around(&all);
        let count = i128::try_from(begun).unwrap_or(1).max(1);
        let average = sums.iter().map(ColumnSum::total).sum::<i128>() / count;
        Self {
            average: Some((axis.y(average), unit.rounded(average))),
            before: outline(before, &axis),
            ..Self::draw(title.into(), unit, labels, layers, &axis, &sums)
        }
    }

    fn draw(
        title: String,
        unit: ChartUnit,
        labels: &[String],
        layers: Vec<Layer>,
        axis: &Axis,
        sums: &[ColumnSum],
    ) -> Self {
        let columns = labels.iter().zip(sums).enumerate().map(|(place, (label, sum))| {
            let mut title = format!("{label}: {}", unit.exact(sum.total()));
            let (mut above, mut below, mut parts) = (0, 0, Vec::new());
            for layer in &layers {
                let value = layer.values.get(place).copied().unwrap_or_default();
                if value == 0 {
                    continue;
                }
                if layers.len() > 1 {
                    title.push_str(&format!("\n{}: {}", layer.name, unit.exact(value)));
                }
                let from = if value > 0 { &mut above } else { &mut below };
                let (one, other) = (axis.y(*from), axis.y(*from + value));
                // The first value of a stack is always visible.
                let least = if *from == 0 { 4 } else { 0 };
                *from += value;
                let height = (one - other).abs().max(least);
                let y = if value > 0 { one - height } else { one };
                parts.push(ChartSegment {
                    name: layer.name.clone(),
                    color: layer.color,
                    href: layer.href.clone(),
                    y,
                    height,
                });
            }
            ChartColumn { x: place * STEP, title, parts }
        });
        let columns = columns.collect();
        let rows = labels.iter().enumerate().map(|(place, label)| {
            let values = layers
                .iter()
                .map(|layer| unit.exact(layer.values.get(place).copied().unwrap_or_default()));
            ChartRow { label: label.clone(), values: values.collect() }
        });
        let rows = rows.collect();
        let every = labels.len().div_ceil(TICKS).max(1);
        let has_tick = |place: usize| (labels.len() - 1 - place).is_multiple_of(every);
        let ticks = labels.iter().enumerate();
        let ticks = ticks.map(|(place, label)| has_tick(place).then(|| label.clone())).collect();
        Self {
            title,
            marks: axis.marks(unit),
            grid: axis.lines().map(|value| axis.y(value).clamp(1, HEIGHT - 1)).collect(),
            width: labels.len().max(1) * STEP,
            columns,
            ticks,
            is_empty: sums.iter().all(|sum| *sum == ColumnSum::default()),
            layers,
            average: None,
            before: String::new(),
            rows,
        }
    }
}

/// The values of a column above and below 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ColumnSum {
    above: i128,
    below: i128,
}

impl ColumnSum {
    const fn total(&self) -> i128 {
        self.above + self.below
    }
}

fn column_sums(layers: &[Layer], columns: usize) -> Vec<ColumnSum> {
    let mut sums = vec![ColumnSum::default(); columns];
    for layer in layers {
        for (sum, value) in sums.iter_mut().zip(&layer.values) {
            sum.above += (*value).max(0);
            sum.below += (*value).min(0);
        }
    }
    sums
}

/// The outline of columns: a line that steps from value to value, and closes at 0.
fn outline(values: &[i128], axis: &Axis) -> String {
    if values.iter().all(|value| *value == 0) {
        return String::new();
    }
    let mut path = format!("M0 {}", axis.y(0));
    for (place, value) in values.iter().enumerate() {
        path.push_str(&format!("V{}H{}", axis.y(*value), (place + 1) * STEP));
    }
    path.push_str(&format!("V{}Z", axis.y(0)));
    path
}

/// An axis whose lines are whole steps. The highest value fills at least 80 % of what is above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    low: i128,
    high: i128,
    step: i128,
}

impl Axis {
    fn around(sums: &[ColumnSum]) -> Self {
        let most = sums.iter().map(|sum| sum.above).max().unwrap_or_default();
        let least = sums.iter().map(|sum| sum.below).min().unwrap_or_default();
        let size = most.max(least.saturating_neg());
        // The largest of 1, 2, 5, 10, 20 … of which the larger side has more than four.
        let (mut step, mut scale) = (1, 1_i128);
        'steps: loop {
            for times in [1, 2, 5] {
                let next = scale.saturating_mul(times);
                if next.saturating_mul(4) >= size {
                    break 'steps;
                }
                step = next;
            }
            scale = scale.saturating_mul(10);
        }
        let steps = |value: i128| value / step + i128::from(value % step != 0);
        let (above, below) = (steps(most), steps(least.saturating_neg()));
        let above = if above + below == 0 { 1 } else { above };
        Self {
            low: below.saturating_mul(step).saturating_neg(),
            high: above.saturating_mul(step),
            step,
        }
    }

    /// The place of a value, from the top of the drawing.
    fn y(&self, value: i128) -> i128 {
        let below_top = self.high.saturating_sub(value).clamp(0, self.high - self.low);
        below_top.saturating_mul(HEIGHT) / (self.high - self.low)
    }

    /// The values of its lines, from the top down.
    fn lines(&self) -> impl Iterator<Item = i128> {
        let (high, step) = (self.high, self.step);
        (0..=(high - self.low) / step).map(move |place| high - place * step)
    }

    /// The labels of its lines. Every second one is left out where there are many.
    fn marks(&self, unit: ChartUnit) -> Vec<String> {
        let is_crowded = (self.high - self.low) / self.step > 6;
        let is_left_out = |value: i128| is_crowded && (value / self.step) % 2 != 0;
        let label = |value| match is_left_out(value) {
            true => String::new(),
            false => unit.short(value),
        };
        self.lines().map(label).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(values: &[i128]) -> Layer {
        Layer::new("a <b>", COLORS[0], values.to_vec())
    }

    fn axis(above: i128, below: i128) -> Axis {
        Axis::around(&[ColumnSum { above, below }, ColumnSum::default()])
    }

    #[test]
    fn the_highest_value_fills_at_least_four_fifths_of_the_axis() {
        for (most, high) in [(0, 1), (1, 1), (4, 4), (5, 5), (7, 7), (9, 10), (11, 12), (401, 500)]
        {
            assert_eq!(axis(most, 0).high, high, "{most}");
        }
        let sizes =
            (0..30).map(|power| 3_i128.pow(power)).flat_map(|size| [size, size + 1, size * 2]);
        for size in sizes {
            let Axis { low, high, step } = axis(size, 0);
            assert!(low == 0 && high >= size && size * 5 >= high * 4, "{size} of {high}");
            assert!(high / step <= 11, "{size} has {} lines", high / step);
            assert_eq!(axis(0, -size).low, -high, "the same below 0");
        }
        assert_eq!(axis(10, -3), Axis { low: -4, high: 10, step: 2 });
    }

    #[test]
    fn columns_are_stacked_to_their_sum_and_nothing_is_outside() {
        let labels: Vec<String> = (0..30).map(|day| day.to_string()).collect();
        let values: Vec<i128> = (0..30).map(|day| day * day - 100).collect();
        let before: Vec<i128> = (0..31).map(|day| day * 70).collect();
        let layers = vec![layer(&values), layer(&values)];
        let chart = Chart::with_period_before("t", ChartUnit::Count, &labels, layers, &before, 20);
        for column in &chart.columns {
            for part in &column.parts {
                assert!(part.y >= 0 && part.height >= 0 && part.y + part.height <= HEIGHT);
            }
        }
        // The axis is from -500 to 2500: 741 twice are up to 1482.
        assert_eq!(chart.columns[29].parts[1].y, (2_500 - 1_482) * HEIGHT / 3_000);
        assert_eq!(chart.columns[0].parts[0].y, 2_500 * HEIGHT / 3_000, "losses hang from 0");
        assert_eq!(chart.average.as_ref().unwrap().1, "555", "of the 20 that have begun");
        assert!(chart.before.ends_with("H3000V833Z"), "{}", chart.before);
        assert!(chart.ticks.iter().flatten().count() <= TICKS);
        assert_eq!(chart.ticks[29].as_deref(), Some("29"), "the present is named");
        let text = chart.render().unwrap();
        assert!(text.contains("a &#60;b&#62;") && !text.contains("<b>"), "{text}");
    }
}
