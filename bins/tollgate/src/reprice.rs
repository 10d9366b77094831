//! `tollgate reprice`: prices settled records again by this configuration, and books the differences.

use std::collections::BTreeMap;
use std::fmt::Display;

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::{Value, json};
use tollgate_domain::{Clock, MerchantId, Timestamp};
use tollgate_pricing::{Amount, ModelPattern};
use tollgate_store::repricings::{Repricing, RepricingChange, RepricingOutcome, RepricingScope};

use crate::config::{DateArgument, TollgateConfig};
use crate::database::{open, store_of};
use crate::output;
use crate::price_lists::prices_of;
use crate::progress::Progress;

/// The records to reprice, and whether to book the differences.
#[derive(Args)]
pub(crate) struct RepriceArgs {
    /// The first day (UTC) of admission, such as 2026-11-01.
    #[arg(long, value_name = "DATE")]
    from: DateArgument,
    /// The last day (UTC) of admission.
    #[arg(long, value_name = "DATE")]
    to: DateArgument,
    /// Reprice only records of this provider.
    #[arg(long)]
    provider: Option<String>,
    /// Reprice only records of this model; `*` matches anything.
    #[arg(long)]
    model: Option<String>,
    /// Reprice only records of this merchant.
    #[arg(long, value_name = "mch_…")]
    merchant: Option<MerchantId>,
    /// Print what would be booked, and book nothing.
    #[arg(long)]
    dry_run: bool,
}

/// The sums of the records of a model, or of all. They may be beyond the range of an amount.
#[derive(Clone, Copy, Default)]
struct RepricingSums {
    records: u64,
    differ: u64,
    base: i128,
    wallets: i128,
    merchants: i128,
}

impl RepricingSums {
    fn add(&mut self, change: Option<&RepricingChange>) {
        self.records = self.records.saturating_add(1);
        let Some(change) = change else { return };
        let units = |amount: Amount| i128::from(amount.units());
        self.differ = self.differ.saturating_add(1);
        self.base += units(change.base_after) - units(change.base_before);
        self.wallets += units(change.more.wallet);
        self.merchants += units(change.more.merchant);
    }
}

/// The results of a repricing so far.
#[derive(Default)]
struct RepricingReport {
    by_model: BTreeMap<(String, String), RepricingSums>,
    all: RepricingSums,
    without_price: u64,
    service_charges_kept: u64,
    skipped: Vec<String>,
}

impl RepricingReport {
    fn add(&mut self, one: &Repricing) {
        let mut change = None;
        match &one.outcome {
            RepricingOutcome::Same => {}
            RepricingOutcome::NoPrice => self.without_price = self.without_price.saturating_add(1),
            RepricingOutcome::TooMuch => {
                let line = format!("{}: costs more than an amount can say", one.request_id);
                self.skipped.push(line);
            }
            RepricingOutcome::OutOfRange(_) => {
                let line = format!("{}: leaves the range of a balance", one.request_id);
                self.skipped.push(line);
            }
            RepricingOutcome::Differs(differs) => {
                let kept = u64::from(differs.service_charge_kept);
                self.service_charges_kept = self.service_charges_kept.saturating_add(kept);
                change = Some(&**differs);
            }
        }
        let model = one.model.clone().unwrap_or_else(|| "without a model".to_owned());
        self.by_model.entry((one.provider.clone(), model)).or_default().add(change);
        self.all.add(change);
    }

    fn lines(&self, dry_run: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let differing = self.by_model.iter().filter(|(_, sums)| sums.differ > 0);
        for ((provider, model), sums) in differing {
            lines.push(format!("{provider} {model}: {}", sums_line(sums)));
        }
        lines.push(format!("in all: {}", sums_line(&self.all)));
        if self.without_price > 0 {
            lines.push(format!("{} records have no price and stay.", self.without_price));
        }
        if self.service_charges_kept > 0 {
            lines.push(format!(
                "The service charge of {} records stays: they had no fee to tell its rate from.",
                self.service_charges_kept
            ));
        }
        lines.extend(self.skipped.iter().map(|line| format!("let go: {line}")));
        lines.push(match (self.all.differ, dry_run) {
            (0, _) => "Nothing is to be booked.".to_owned(),
            (_, true) => "Nothing was booked: this was a dry run.".to_owned(),
            (_, false) => "Corrections are booked.".to_owned(),
        });
        lines
    }
}

fn sums_line(sums: &RepricingSums) -> String {
    format!(
        "{} of {} records differ; base {}, wallets {}, merchants {} USD",
        sums.differ,
        sums.records,
        signed(sums.base),
        signed(sums.wallets),
        signed(sums.merchants)
    )
}

/// Units of 10⁻¹⁰ USD as a signed difference.
fn signed(units: i128) -> String {
    let sign = if units < 0 { "-" } else { "+" };
    let (whole, rest) =
        (units.unsigned_abs() / 10_000_000_000, units.unsigned_abs() % 10_000_000_000);
    format!("{sign}{whole}.{rest:010}")
}

/// Reprices, books unless it is a dry run, and prints the results.
pub(crate) async fn run(
    config: &TollgateConfig,
    what: RepriceArgs,
    json: bool,
) -> anyhow::Result<()> {
    if what.to.0 < what.from.0 {
        bail!("--to is before --from");
    }
    let scope = RepricingScope {
        from: what.from.0,
        to: what.to.0,
        provider: what.provider,
        model: what.model.as_deref().map(ModelPattern::new),
        merchant_id: what.merchant,
    };
    // Records are read in the order of their time, so progress starts at the time of the first one.
    let end = Timestamp::at_midnight(scope.to.next_day().unwrap_or(scope.to)).unix_micros();
    let end = end.min(Clock::system().now().unix_micros());
    let mut first = None;
    let (mut report, mut progress) = (RepricingReport::default(), Progress::new());
    let store = match scope.merchant_id {
        Some(merchant_id) => store_of(config, merchant_id).await?,
        None => open(config)?,
    };
    let prices = prices_of(config, &store).await?;
    // A closed standard output must not stop the booking, so its error is kept until the end.
    let mut written = Ok(());
    let mut print = |line: &dyn Display| {
        if written.is_ok() {
            written = output::print_line(line);
        }
    };
    let walk = store.reprice(&scope, &prices, what.dry_run, |one| {
        report.add(&one);
        let RepricingSums { records, differ, .. } = report.all;
        let at = one.created_at.unix_micros();
        let begin = *first.get_or_insert(at);
        let (done, all) = (at - begin, end - begin);
        let how_far = format_args!("{records} records looked at, {differ} differ");
        progress.update_with_bar(done, all, how_far);
        if json && let Some(line) = repricing_json(&one, what.dry_run) {
            print(&line);
        }
    });
    let walked = walk.await;
    progress.clear();
    // After an error too: the differences booked before it stay booked.
    if !json {
        report.lines(what.dry_run).iter().for_each(|line| print(line));
    }
    walked.map_err(|cause| anyhow!("stopped: {cause}; run it again to go on"))?;
    written
}

/// A record that differs, has no price, or whose new cost could not be booked, as JSON.
fn repricing_json(one: &Repricing, dry_run: bool) -> Option<Value> {
    let (change, outcome) = match &one.outcome {
        RepricingOutcome::Same => return None,
        RepricingOutcome::NoPrice => (None, "no_price"),
        RepricingOutcome::TooMuch => (None, "too_much"),
        RepricingOutcome::OutOfRange(change) => (Some(change), "balance_out_of_range"),
        RepricingOutcome::Differs(change) if dry_run => (Some(change), "differs"),
        RepricingOutcome::Differs(change) => (Some(change), "booked"),
    };
    let mut value = json!({
        "request_id": one.request_id,
        "merchant_id": one.merchant_id,
        "provider": one.provider,
        "model": one.model,
        "created_at": one.created_at,
        "outcome": outcome,
    });
    if let (Some(change), Some(fields)) = (change, value.as_object_mut()) {
        let more = json!({
            "base_before": change.base_before,
            "base_after": change.base_after,
            "wallet_difference": change.more.wallet,
            "merchant_difference": change.more.merchant,
            "service_charge_kept": change.service_charge_kept,
            "applied": change.applied,
        });
        fields.extend(more.as_object().cloned().unwrap_or_default());
    }
    Some(value)
}
