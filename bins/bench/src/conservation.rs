//! What was fast but wrong does not count: every call is looked for in the books.

use anyhow::{Context, ensure};
use tollgate_pricing::Amount;

use crate::load::Until;
use crate::merchant::Connection;
use crate::stand::{Call, Stand, Target, Tollgate, text_or_count};

/// Spends a small wallet to its end, ends the service, and audits what it left. Whether nothing
/// was lost and nothing overspent.
pub(crate) async fn check(mut stand: Stand) -> anyhow::Result<bool> {
    let spent = stand.drive(Target::Tollgate, &Call::default(), 64, Until::Refused).await?;
    let overspend = overspend(&stand.tollgate, spent.answered).await?;

    let booked = books(stand.tollgate)?;
    println!("overspend: {}", if overspend == 0 { "0".to_owned() } else { usd(overspend) });
    Ok(booked && overspend == 0)
}

/// Ends the service and audits what it left. Whether every call that was answered, and none that
/// was not, is in the books.
pub(crate) fn books(tollgate: Tollgate) -> anyhow::Result<bool> {
    let Tollgate { program, commands, records_before, answered, provided, refused, .. } = tollgate;
    program.end()?;
    let audit = commands.run(&["audit"])?;
    let count = |name| -> anyhow::Result<u64> { Ok(text_or_count(&audit, name)?.parse()?) };
    let (records, pending) = (count("requests")? - records_before, count("pending")?);
    let differences = audit.get("differences").and_then(|list| list.as_array().map(Vec::len));
    let differences = differences.context("an audit without differences")?;
    println!(
        "Calls through Tollgate: {answered} answered, {provided} at the provider, {records} \
         recorded, {pending} of them pending; {differences} differences in the audit.\n"
    );
    if refused > 0 {
        println!("Beside them {refused} were refused.\n");
    }
    let lost = answered.max(provided).saturating_sub(records.saturating_sub(pending));
    println!("records lost: {lost}");
    let as_many = answered == provided && provided == records;
    Ok(lost == 0 && as_many && pending == 0 && differences == 0)
}

/// What the wallets paid beyond what they had, in units of an amount. A call is admitted while
/// anything is available, so the last one may take a wallet below zero by less than its own cost,
/// however many calls were on their way: only what is beyond that is overspent.
async fn overspend(tollgate: &Tollgate, paid: u64) -> anyhow::Result<i64> {
    let rich = balance(tollgate, &tollgate.rich).await?;
    let poor = balance(tollgate, &tollgate.poor).await?;
    let (spent, paid) = (tollgate.poor.credit.units() - poor, i64::try_from(paid)?);
    // Equal calls within one tier: a remainder means that one of them was charged otherwise.
    let (cost, remainder) = (spent.checked_div(paid).context("no call was paid")?, spent % paid);
    ensure!(remainder == 0, "{paid} equal calls cost {} together", usd(spent));
    println!(
        "A wallet with {} USD paid {paid} calls of {} USD, 64 at a time, until all were refused; \
         {} USD are left.",
        tollgate.poor.credit,
        usd(cost),
        usd(poor),
    );
    Ok((-rich).max(0) + (-poor - cost).max(0))
}

fn usd(units: i64) -> String {
    Amount::from_units(units).to_string()
}

async fn balance(tollgate: &Tollgate, connection: &Connection) -> anyhow::Result<i64> {
    let wallet = tollgate.wallet(&connection.wallet_id).await?;
    let balance: Amount = text_or_count(&wallet, "balance")?.parse()?;
    Ok(balance.units())
}
