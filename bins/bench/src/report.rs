//! Tables in Markdown, in the format of docs/BENCHMARKS.md.

use crate::database::Host;
use crate::line::{Figures, Line};
use crate::options::Options;
use crate::stand::Target;

/// The comparison of one line with another.
#[derive(Clone, Copy)]
pub(crate) enum Compare {
    Ratio,
    /// The difference, with this number of decimals.
    Difference(usize),
}

/// The columns of a table, each with the rule for its cells.
pub(crate) struct Table<'a> {
    columns: Vec<Column<'a>>,
}

struct Column<'a> {
    title: &'static str,
    rule: &'static str,
    cell: Box<dyn Fn(&Line) -> String + 'a>,
}

impl<'a> Table<'a> {
    /// A table with this title of the name column. A name with several parts needs a title with as many.
    pub(crate) fn of(title: &'static str) -> Self {
        Self { columns: Vec::new() }.text(title, |line| line.name.clone())
    }

    pub(crate) fn text(mut self, title: &'static str, cell: impl Fn(&Line) -> String + 'a) -> Self {
        self.columns.push(Column { title, rule: "---|", cell: Box::new(cell) });
        self
    }

    pub(crate) fn number(
        mut self,
        title: &'static str,
        cell: impl Fn(&Line) -> String + 'a,
    ) -> Self {
        self.columns.push(Column { title, rule: "---:|", cell: Box::new(cell) });
        self
    }

    /// Adds the median of a figure, with this number of decimals.
    pub(crate) fn figure(
        self,
        title: &'static str,
        decimals: usize,
        of: fn(&Figures) -> f64,
    ) -> Self {
        self.number(title, move |line| format!("{:.decimals$}", line.median(of)))
    }

    /// Adds the median of the comparisons with the same rounds of the line that `other` finds.
    pub(crate) fn beside(
        self,
        title: &'static str,
        compare: Compare,
        of: fn(&Figures) -> f64,
        other: impl Fn(&Line) -> Option<&'a Line> + 'a,
    ) -> Self {
        self.number(title, move |line| match (other(line), compare) {
            (None, _) => String::new(),
            (Some(other), Compare::Ratio) => {
                format!("{:.2}", line.beside(other, of, |one, other| one / other))
            }
            (Some(other), Compare::Difference(decimals)) => {
                format!("{:+.decimals$}", line.beside(other, of, |one, other| one - other))
            }
        })
    }

    /// Adds the CPU time of a call: all of it, that of the ledger and of the workers, and the database's.
    pub(crate) fn cpu(self, host: Host) -> Self {
        // Other targets have no such parts.
        let part = |of: fn(&Figures) -> f64| {
            move |line: &Line| match line.target.is_tollgate() {
                true => format!("{:.1}", line.median(of)),
                false => String::new(),
            }
        };
        let table = self
            .figure("CPU/call", 1, |figures| figures.cpu_us)
            .number("ledger", part(|figures| figures.ledger_us))
            .number("workers", part(|figures| figures.workers_us));
        match host {
            Host::Sqlite => table,
            Host::Server(_) | Host::Elsewhere => {
                table.number("database CPU", part(|figures| figures.database_us))
            }
        }
    }

    pub(crate) fn print<'l>(&self, lines: impl IntoIterator<Item = &'l Line>) {
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
pub(crate) fn same_on<'a>(lines: &'a [Line], target: Target) -> impl Fn(&Line) -> Option<&'a Line> {
    move |line| {
        let same = |other: &&Line| other.name == line.name && other.target == target;
        lines.iter().find(same).filter(|_| line.target > target)
    }
}

/// Finds the first line with the same concurrency.
pub(crate) fn first_as_many<'a>(lines: &'a [Line]) -> impl Fn(&Line) -> Option<&'a Line> {
    move |line| lines.iter().find(|first| first.load.concurrency == line.load.concurrency)
}

/// Prints the title of a table.
pub(crate) fn title(what: &str, host: Host, options: &Options) {
    let (rounds, seconds) = (options.rounds, options.seconds);
    println!("\n{what}, on {host}; {rounds} rounds of {seconds} s, medians; times in µs.\n");
}

/// Prints, below the tables, the load of the generator, which may have been the limit.
pub(crate) fn generator(lines: &[Line]) {
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
