//! What was fast but wrong does not count: every call is looked for in the books.

use tollgate_pricing::Amount;

use crate::load::Until;
use crate::stand::{Call, Stand, Target, Tollgate, text_or_count};

/// Spends a small wallet to its end, ends the service, and audits what it left. Whether nothing
/// was lost and nothing overspent.
pub(crate) async fn check(mut stand: Stand) -> anyhow::Result<bool> {
    let spent = stand.drive(Target::Tollgate, &Call::default(), 64, Until::Refused).await?;
    let mut overspend = Amount::ZERO;
    for wallet_id in [&stand.tollgate.rich.wallet_id, &stand.tollgate.poor.wallet_id] {
        let balance = balance(&stand.tollgate, wallet_id).await?;
        println!("wallet {wallet_id}: {balance} USD left");
        overspend = Amount::from_units(overspend.units() + (-balance.units()).max(0));
    }
    println!(
        "the second one paid for {} calls before {} were refused",
        spent.answered, spent.refused
    );

    let Tollgate { program, commands, records_before, answered, provided, .. } = stand.tollgate;
    program.end()?;
    let audit = commands.run(&["audit"])?;
    let count = |name| -> anyhow::Result<u64> { Ok(text_or_count(&audit, name)?.parse()?) };
    let (records, pending) = (count("requests")? - records_before, count("pending")?);
    let differences = audit.get("differences").and_then(|list| list.as_array().map(Vec::len));
    let differences = differences.unwrap_or(usize::MAX);
    println!(
        "calls through tollgate: {answered} answered, {provided} at the provider, {records} \
         recorded, {pending} pending; {differences} differences in the audit"
    );
    let lost = answered.max(provided).saturating_sub(records.saturating_sub(pending));
    println!("records lost: {lost}");
    println!(
        "overspend: {}",
        if overspend == Amount::ZERO { "0".into() } else { overspend.to_string() }
    );
    let as_many = answered == provided && provided == records;
    Ok(lost == 0 && overspend == Amount::ZERO && as_many && pending == 0 && differences == 0)
}

async fn balance(tollgate: &Tollgate, wallet_id: &str) -> anyhow::Result<Amount> {
    let wallet = tollgate.wallet(wallet_id).await?;
    Ok(text_or_count(&wallet, "balance")?.parse()?)
}
