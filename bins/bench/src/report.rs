//! The table: medians over the rounds; a ratio is the median of the rounds' ratios, because only
//! what was measured side by side is compared.

use crate::Options;
use crate::database::Database;
use crate::gauge::Figures;
use crate::measure::{Measured, Round};
use crate::stand::{Stand, Target};

pub(crate) fn print(stand: &Stand, options: &Options, measured: &Measured) {
    let baseline = stand.targets().contains(&Target::Nginx).then_some(Target::Nginx);
    let with_database = stand.database != Database::Sqlite;
    println!(
        "\nTollgate on {}, {} rounds of {} s; medians. Latencies and CPU in µs, added to and \
         beside direct calls.\n",
        stand.database, options.rounds, options.seconds
    );
    let mut titles = vec!["load", "target", "calls/s", "p50", "p99", "added p50", "added p99"];
    titles.push("CPU/call");
    titles.push(if baseline.is_some() { "× nginx" } else { "× direct" });
    if with_database {
        titles.push("database CPU/call");
    }
    println!("| {} |", titles.join(" | "));
    println!("|---|---|{}", "---:|".repeat(titles.len() - 2));
    let baseline = baseline.unwrap_or(Target::Direct);
    for (cell, rounds) in &measured.cells {
        for target in stand.targets() {
            let name = if target == Target::Direct { cell.name.as_str() } else { "" };
            let figure = |of: fn(&Figures) -> f64| median(each(rounds, target, of));
            let to = |other, of: fn(&Figures) -> f64, compare: fn(f64, f64) -> f64| {
                let pairs = each(rounds, target, of).zip(each(rounds, other, of));
                median(pairs.map(|(one, other)| compare(one, other)))
            };
            let added = |of| match target {
                Target::Direct => String::new(),
                _ => format!("{:+.0}", to(Target::Direct, of, |one, other| one - other)),
            };
            let ratio = format!("{:.2}", to(baseline, |f| f.cpu_us, |one, other| one / other));
            let mut line = vec![
                name.to_owned(),
                format!("{target:?}").to_lowercase(),
                format!("{:.0}", figure(|f| f.calls_per_s)),
                format!("{:.0}", figure(|f| f.p50_us)),
                format!("{:.0}", figure(|f| f.p99_us)),
                added(|f: &Figures| f.p50_us),
                added(|f: &Figures| f.p99_us),
                format!("{:.1}", figure(|f| f.cpu_us)),
                if target == Target::Direct { String::new() } else { ratio },
            ];
            if with_database {
                let cpu = format!("{:.1}", figure(|f| f.database_cpu_us));
                line.push(if target == Target::Tollgate { cpu } else { String::new() });
            }
            println!("| {} |", line.join(" | "));
        }
    }
    let peaks = measured.peak_memory_kib.iter();
    let peaks: Vec<_> = peaks
        .map(|(target, kib)| format!("{} {:.1} MB", name(*target), *kib as f64 * 1.024e-3))
        .collect();
    println!("\nPeak memory: {}.\n", peaks.join(", "));
}

fn name(target: Target) -> &'static str {
    match target {
        Target::Direct => "simulator",
        Target::Nginx => "nginx",
        Target::Tollgate => "tollgate",
    }
}

fn each(
    rounds: &[Round],
    target: Target,
    of: fn(&Figures) -> f64,
) -> impl Iterator<Item = f64> + '_ {
    rounds.iter().filter_map(move |round| round.get(&target).map(of))
}

/// The middle one, or what lies between the two in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    if values.len() % 2 == 1 { at(middle) } else { (at(middle.wrapping_sub(1)) + at(middle)) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }
}
