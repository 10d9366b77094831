//! The checks after a measurement: every call is in the ledger, and no wallet or limit was overspent.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tollgate_pricing::Amount;

use crate::call::ChatCall;
use crate::http::field_text;
use crate::load::{Load, StopCondition};
use crate::service::BenchService;
use crate::testbed::{LoadTarget, Testbed};

const CALLERS: usize = 64;

/// The counts of a service's ledger.
struct LedgerCounts {
    records: u64,
    pending: u64,
    differences: usize,
}

/// Spends a small wallet and a small limit to their ends on each service, ends the services, and audits
/// their stores. Returns whether no record was lost and nothing overspent.
pub(crate) async fn check(mut stand: Testbed) -> anyhow::Result<bool> {
    let (mut overspent, mut lost, mut agreed) = (0, 0, true);
    let places: Vec<_> = stand.services().map(|(place, _)| place).collect();
    for place in places {
        overspent += overspend(&mut stand, place).await?;
    }
    for service in stand.take_services() {
        let (answered, provided, refused) = (service.answered, service.provided, service.refused);
        let LedgerCounts { records, pending, differences } = stop_and_audit(service).await?;
        println!(
            "Calls through Tollgate: {answered} answered, {provided} at the provider, {records} \
             recorded, {pending} of them pending, {refused} refused beside them; {differences} \
             differences in the audit."
        );
        lost += answered.max(provided).saturating_sub(records.saturating_sub(pending));
        agreed &= answered == provided && provided == records;
        agreed &= pending == 0 && differences == 0;
    }
    println!("\nrecords lost: {lost}\noverspend: {}", usd(overspent));
    Ok(lost == 0 && overspent == 0 && agreed)
}

/// Ends a service and audits its store.
async fn stop_and_audit(service: BenchService) -> anyhow::Result<LedgerCounts> {
    let BenchService { nodes, commands, merchant, filled, .. } = service;
    let usage = merchant.send("GET", "/usage", "").await?;
    let settled = usage.get("totals").context("usage without totals")?;
    let settled = field_text(settled, "total_requests")?.parse()?;
    for node in nodes {
        node.program.end()?;
    }
    if filled {
        return Ok(LedgerCounts { records: settled, pending: 0, differences: 0 });
    }
    let audit = commands.run(&["audit"])?;
    let count = |name| -> anyhow::Result<u64> { Ok(field_text(&audit, name)?.parse()?) };
    let differences = audit.get("differences").and_then(Value::as_array);
    let differences = differences.context("an audit without differences")?;
    differences.iter().for_each(|difference| println!("{difference}"));
    Ok(LedgerCounts {
        records: count("requests")?,
        pending: count("pending")?,
        differences: differences.len(),
    })
}

/// The amount that was overspent on a service, in units.
///
/// A call is admitted while anything is available, so the last one may take a wallet below zero by less
/// than its own cost, for any number of calls in flight: only more than that is overspent. Under a strict
/// key, any amount beyond its limit is overspent.
async fn overspend(stand: &mut Testbed, place: usize) -> anyhow::Result<i64> {
    let merchant = &stand.service(place)?.merchant;
    let poor = merchant.create_customer("0.5").await?;
    let key = merchant.create_spend_key(json!({"wallet_id": poor.wallet_id})).await?;
    let paid = spend(stand, place, &field_text(&key, "key")?).await?;
    let service = stand.service(place)?;
    let left = service.merchant.balance(&poor.wallet_id).await?.units();
    let spent = poor.credit.units() - left;
    // Equal calls within one tier: a remainder means that one of them had another price.
    let (cost, remainder) = (spent.checked_div(paid).context("no call was paid")?, spent % paid);
    ensure!(remainder == 0, "{paid} equal calls cost {} together", usd(spent));
    println!(
        "A wallet with {} USD paid {paid} calls of {} USD, {CALLERS} at a time, until all were \
         refused; {} USD are left.",
        poor.credit,
        usd(cost),
        usd(left),
    );

    let other = service.merchant.create_customer("1000").await?;
    let limit: Amount = "0.5".parse()?;
    let rules = json!({
        "wallet_id": other.wallet_id,
        "enforcement": "strict",
        "spend_limit": {"amount": limit.to_string(), "cycle": "total"},
    });
    let key = service.merchant.create_spend_key(rules).await?;
    let paid = spend(stand, place, &field_text(&key, "key")?).await?;
    let service = stand.service(place)?;
    let path = format!("/spend_keys/{}", field_text(&key, "spend_key_id")?);
    let key = service.merchant.send("GET", &path, "").await?;
    let spent: Amount = field_text(&key, "total_spend")?.parse()?;
    println!("A strict spend key with a limit of {limit} USD spent {spent} USD in {paid} calls.");

    let rich = service.merchant.balance(&service.rich.wallet_id).await?.units();
    let beyond_limit = spent.units() - limit.units();
    Ok((-rich).max(0) + (-left - cost).max(0) + beyond_limit.max(0))
}

/// Sends calls with a key, on all nodes, until all are refused; returns the number of answered calls.
async fn spend(stand: &mut Testbed, place: usize, key: &str) -> anyhow::Result<i64> {
    let target = LoadTarget::Tollgate(place);
    let service = stand.service(place)?;
    let load = Load {
        addresses: service.nodes.iter().map(|node| node.address).collect(),
        requests: [ChatCall::default().request_to(service.address()?, key)].into(),
        ..stand.load(target, &ChatCall::default(), CALLERS)?
    };
    let driven = stand.drive(target, &load, StopCondition::Refused).await?;
    Ok(driven.answered.try_into()?)
}

fn usd(units: i64) -> String {
    if units == 0 { "0".to_owned() } else { Amount::from_units(units).to_string() }
}
