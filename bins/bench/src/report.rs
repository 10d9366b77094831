//! Tables in Markdown, in the format of docs/internals/benchmarks.md.

use crate::database::DatabaseHost;
use crate::measurement::{Measurement, RoundResult};
use crate::options::BenchOptions;
use crate::testbed::LoadTarget;

/// The comparison of one line with another.
#[derive(Clone, Copy)]
pub(crate) enum Comparison {
    Ratio,
    /// The difference, with this number of decimals.
    Difference(usize),
}

/// The columns of a table, each with the rule for its cells.
pub(crate) struct ReportTable<'a> {
    columns: Vec<ReportColumn<'a>>,
}

struct ReportColumn<'a> {
    title: &'static str,
    rule: &'static str,
    cell: Box<dyn Fn(&Measurement) -> String + 'a>,
}

impl<'a> ReportTable<'a> {
    /// A table with this title of the name column. A name with several parts needs a title with as many.
    pub(crate) fn of(title: &'static str) -> Self {
        Self { columns: Vec::new() }.text(title, |line| line.name.clone())
    }

    pub(crate) fn text(
        mut self,
        title: &'static str,
        cell: impl Fn(&Measurement) -> String + 'a,
    ) -> Self {
        self.columns.push(ReportColumn { title, rule: "---|", cell: Box::new(cell) });
        self
    }

    pub(crate) fn number(
        mut self,
        title: &'static str,
        cell: impl Fn(&Measurement) -> String + 'a,
    ) -> Self {
        self.columns.push(ReportColumn { title, rule: "---:|", cell: Box::new(cell) });
        self
    }

    /// Adds the median of a figure, with this number of decimals.
    pub(crate) fn figure(
        self,
        title: &'static str,
        decimals: usize,
        of: fn(&RoundResult) -> f64,
    ) -> Self {
        self.number(title, move |line| format!("{:.decimals$}", line.median(of)))
    }

    /// Adds the median of the comparisons with the same rounds of the line that `other` finds.
    pub(crate) fn compared_to(
        self,
        title: &'static str,
        compare: Comparison,
        of: fn(&RoundResult) -> f64,
        other: impl Fn(&Measurement) -> Option<&'a Measurement> + 'a,
    ) -> Self {
        self.number(title, move |line| match (other(line), compare) {
            (None, _) => String::new(),
            (Some(other), Comparison::Ratio) => {
                format!("{:.2}", line.median_against(other, of, |one, other| one / other))
            }
            (Some(other), Comparison::Difference(decimals)) => {
                format!("{:+.decimals$}", line.median_against(other, of, |one, other| one - other))
            }
        })
    }

    /// Adds the CPU time of a call: all of it, that of the ledger and of the workers, and the database's.
    pub(crate) fn cpu(self, host: DatabaseHost) -> Self {
        // Other targets have no such parts.
        let part = |of: fn(&RoundResult) -> f64| {
            move |line: &Measurement| match line.target.is_tollgate() {
                true => format!("{:.1}", line.median(of)),
                false => String::new(),
            }
        };
        let table = self
            .figure("CPU/call", 1, |figures| figures.cpu_us)
            .number("ledger", part(|figures| figures.ledger_us))
            .number("workers", part(|figures| figures.workers_us));
        match host {
            DatabaseHost::Sqlite => table,
            DatabaseHost::Server(_) | DatabaseHost::Elsewhere => {
                table.number("database CPU", part(|figures| figures.database_us))
            }
        }
    }

    pub(crate) fn print<'l>(&self, lines: impl IntoIterator<Item = &'l Measurement>) {
        let titles = self.columns.iter().map(|column| column.title);
        println!("| {} |", titles.collect::<Vec<_>>().join(" | "));
        let rules = self.columns.iter().map(|column| {
            let parts = column.title.matches(" | ").count() + 1;
            column.rule.repeat(parts)
        });
        println!("|{}", rules.collect::<String>());
        let mut name = "";
        for line in lines {
            let cells = self.columns.iter().map(|column| (column.cell)(line));
            let mut cells: Vec<_> = cells.collect();
            // A name is printed once for consecutive lines.
            if let (true, Some(first)) = (name == line.name, cells.first_mut()) {
                first.clear();
            }
            name = &line.name;
            println!("| {} |", cells.join(" | "));
        }
        println!();
    }
}

/// Finds the line of the same name with another target, for lines whose target comes after it.
pub(crate) fn baseline_on<'a>(
    lines: &'a [Measurement],
    target: LoadTarget,
) -> impl Fn(&Measurement) -> Option<&'a Measurement> {
    move |line| {
        let same = |other: &&Measurement| other.name == line.name && other.target == target;
        lines.iter().find(same).filter(|_| line.target > target)
    }
}

/// Finds the first line with the same concurrency.
pub(crate) fn first_at_concurrency<'a>(
    lines: &'a [Measurement],
) -> impl Fn(&Measurement) -> Option<&'a Measurement> {
    move |line| lines.iter().find(|first| first.load.concurrency == line.load.concurrency)
}

/// Prints the title of a table.
pub(crate) fn print_title(what: &str, host: DatabaseHost, options: &BenchOptions) {
    let (rounds, seconds) = (options.rounds, options.seconds);
    println!("\n{what}, on {host}; {rounds} rounds of {seconds} s, medians; times in µs.\n");
}

/// Prints, below the tables, the load of the generator, which may have been the limit.
pub(crate) fn print_generator_load(lines: &[Measurement]) {
    let most = lines.iter().max_by(|one, other| {
        f64::total_cmp(&one.median(|figures| figures.generator), &other.median(|f| f.generator))
    });
    let Some(line) = most else { return };
    println!(
        "The generator took at most {:.0} % of its one thread ({}, {}).\n",
        line.median(|figures| figures.generator) * 100.0,
        line.name.replace(" | ", ", "),
        line.target,
    );
}
