//! Bodies: requests and answers of growing size, compared to nginx and to direct calls.

use crate::call::Call;
use crate::line::{self, Line};
use crate::nginx::Buffering;
use crate::options::Options;
use crate::report::{self, Compare, Table};
use crate::stand::{Stand, Target};

const SIZES: [(&str, usize); 5] = [
    ("1 KB", 1_000),
    ("10 KB", 10_000),
    ("100 KB", 100_000),
    ("1 MB", 1_000_000),
    ("10 MB", 10_000_000),
];
const CALLERS: usize = 4;

pub(crate) async fn run(stand: &mut Stand, options: &Options) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for (kind, call) in [("request", of_request as fn(usize) -> Call), ("answer", of_answer)] {
        for (size, bytes) in SIZES {
            let name = format!("{kind} of {size}");
            if options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
                continue;
            }
            for target in stand.targets() {
                lines.push(Line::new(&name, target, stand.load(target, &call(bytes), CALLERS)?));
            }
        }
    }
    line::drive(stand, &mut lines, options).await?;
    let host = stand.service(0)?.database.host;
    report::title(&format!("Bodies, {CALLERS} calls at a time"), host, options);
    let to_nginx = || report::same_on(&lines, Target::Nginx(Buffering::Off));
    Table::of("body")
        .text("target", |line| line.target.to_string())
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .figure("MB/s", 1, |figures| figures.megabytes_per_s)
        .beside("MB/s × nginx", Compare::Ratio, |figures| figures.megabytes_per_s, to_nginx())
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .beside("CPU × nginx", Compare::Ratio, |figures| figures.cpu_us, to_nginx())
        .cpu(host)
        .print(&lines);
    report::generator(&lines);
    Ok(())
}

/// A call with a body of this size. The provider counts no tokens of it, because that would take most of the time.
fn of_request(bytes: usize) -> Call {
    let behavior = vec![("x-simulate-input-tokens", "100".to_owned())];
    Call { behavior, ..Call::of_size(bytes) }
}

/// A call with an answer of this size. A word of the provider has six bytes with its space.
fn of_answer(bytes: usize) -> Call {
    let words = bytes.div_ceil(6);
    let behavior = vec![
        ("x-simulate-words", words.to_string()),
        ("x-simulate-output-tokens", "20".to_owned()),
    ];
    Call { behavior, max_tokens: u64::try_from(words).ok(), ..Call::default() }
}
