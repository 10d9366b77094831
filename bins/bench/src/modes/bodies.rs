//! Bodies: requests and answers of growing size, compared to nginx and to direct calls.

use crate::call::ChatCall;
use crate::measurement::{self, Measurement};
use crate::nginx::Buffering;
use crate::options::BenchOptions;
use crate::report::{self, Comparison, ReportTable};
use crate::testbed::{LoadTarget, Testbed};

const SIZES: [(&str, usize); 5] = [
    ("1 KB", 1_000),
    ("10 KB", 10_000),
    ("100 KB", 100_000),
    ("1 MB", 1_000_000),
    ("10 MB", 10_000_000),
];
const CALLERS: usize = 4;

pub(crate) async fn run(stand: &mut Testbed, options: &BenchOptions) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for (kind, call) in
        [("request", call_with_body as fn(usize) -> ChatCall), ("answer", call_with_answer)]
    {
        for (size, bytes) in SIZES {
            let name = format!("{kind} of {size}");
            if options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
                continue;
            }
            for target in stand.targets() {
                lines.push(Measurement::new(
                    &name,
                    target,
                    stand.load(target, &call(bytes), CALLERS)?,
                ));
            }
        }
    }
    measurement::drive(stand, &mut lines, options).await?;
    let host = stand.service(0)?.database.host;
    report::print_title(&format!("Bodies, {CALLERS} calls at a time"), host, options);
    let to_nginx = || report::baseline_on(&lines, LoadTarget::Nginx(Buffering::Off));
    ReportTable::of("body")
        .text("target", |line| line.target.to_string())
        .figure("calls/s", 0, |figures| figures.calls_per_s)
        .figure("MB/s", 1, |figures| figures.megabytes_per_s)
        .compared_to(
            "MB/s × nginx",
            Comparison::Ratio,
            |figures| figures.megabytes_per_s,
            to_nginx(),
        )
        .figure("p50", 0, |figures| figures.p50_us)
        .figure("p99", 0, |figures| figures.p99_us)
        .compared_to("CPU × nginx", Comparison::Ratio, |figures| figures.cpu_us, to_nginx())
        .cpu(host)
        .print(&lines);
    report::print_generator_load(&lines);
    Ok(())
}

/// A call with a body of this size. The provider counts no tokens of it, because that would take most of the time.
fn call_with_body(bytes: usize) -> ChatCall {
    let behavior = vec![("x-simulate-input-tokens", "100".to_owned())];
    ChatCall { behavior, ..ChatCall::of_size(bytes) }
}

/// A call with an answer of this size. A word of the provider has six bytes with its space.
fn call_with_answer(bytes: usize) -> ChatCall {
    let words = bytes.div_ceil(6);
    let behavior = vec![
        ("x-simulate-words", words.to_string()),
        ("x-simulate-output-tokens", "20".to_owned()),
    ];
    ChatCall { behavior, max_tokens: u64::try_from(words).ok(), ..ChatCall::default() }
}
