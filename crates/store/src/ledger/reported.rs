//! Reported usage: calls that did not pass through this service and are reported after their end. They are booked at
//! once, by the same rules as any other call.

use std::sync::Arc;

use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::{
    CallBudgets, CallDetails, Connection, ConnectionId, ConnectionStatus, CreditHold,
    ForwardedRequest, Merchant, MerchantId, MerchantMeter, MeterVersion, MissingPrice,
    PendingRecord, PricedUsage, RequestId, RequestRecord, Timestamp, Wallet,
};
use tollgate_pricing::{Amount, AppliedPrices};

use super::command::{CommandOutcome, LedgerCommand, SettleOutcome, Settlement};
use super::config::ConfigCache;
use super::context::LedgerContext;
use super::decide;
use super::load::{self, CallMemory, LoadOutcome};
use super::state::{CallState, LedgerState};
use crate::archived::{self, RecordArchive};
use crate::conn::Conn;
use crate::dialect::RowLock;
use crate::dialect::group::ConfigBasis;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::ReportedUsageRow;
use crate::{connections, dialect, merchants, meters, requests, subscriptions, wallets};

/// The usage that a merchant reports.
#[derive(Clone, Debug)]
pub struct ReportedUsage {
    /// The merchant's own id of the report. A report with a known id is not booked again.
    pub reference_id: String,
    /// The customer that used it.
    pub connection_id: ConnectionId,
    /// The meter that prices it.
    pub meter_slug: String,
    /// The call, as far as it is known.
    pub forwarded: ForwardedRequest,
    /// The usage, and the provider's charge for it.
    pub priced: PricedUsage,
    /// The applied prices.
    pub applied: Vec<AppliedPrices>,
    /// The price that the usage needed and no price list has.
    pub missing: Option<MissingPrice>,
}

/// The outcome of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportOutcome {
    /// Booked.
    Booked(Arc<RequestRecord>),
    /// Booked before. Nothing is changed.
    Known(Box<RequestRecord>),
    /// Another report has used the same reference.
    ReferenceReused,
    /// The merchant has no such customer.
    ConnectionNotFound,
    /// The customer was deleted.
    ConnectionDisabled,
    /// The merchant has no such meter.
    MeterNotFound,
    /// The cost, or a balance after it, would be out of range. The caller must roll the transaction back.
    OutOfRange,
}

pub(crate) fn book(
    conn: &mut Conn,
    merchant_id: MerchantId,
    reported: &ReportedUsage,
    context: &LedgerContext,
) -> Result<ReportOutcome, StoreError> {
    let now = context.clock.now();
    if let Some(known) = find_known(conn, merchant_id, reported)? {
        return Ok(known);
    }
    let Some(connection) = connections::find(conn, merchant_id, reported.connection_id)? else {
        return Ok(ReportOutcome::ConnectionNotFound);
    };
    if connection.status == ConnectionStatus::Deleted {
        return Ok(ReportOutcome::ConnectionDisabled);
    }
    let slug = &reported.meter_slug;
    let Some(meter) = meters::find_by_slug(conn, merchant_id, slug)? else {
        return Ok(ReportOutcome::MeterNotFound);
    };
    let Some(merchant) = merchants::find(conn, merchant_id)? else {
        return Err(StoreError::missing("merchant", merchant_id));
    };
    let Some(wallet) = wallets::find(conn, merchant_id, connection.wallet_id)? else {
        return Err(StoreError::missing("wallet", connection.wallet_id));
    };
    let draws = subscriptions::allows_draw(conn, connection.wallet_id, meter.meter_id, now)?;
    let pending = PendingRecord {
        credit_hold: draws.then(CreditHold::default),
        ..pending_record(reported, &merchant, &connection, &meter, now)
    };
    let claim = ReportedUsageRow {
        merchant_id: Id(merchant_id),
        reference_id: reported.reference_id.clone(),
        request_id: Id(pending.request_id),
    };
    // Another report of the same usage may have come between.
    if !dialect::claim_reference(conn, &claim)? {
        let known = find_known(conn, merchant_id, reported)?;
        return Ok(known.unwrap_or(ReportOutcome::ReferenceReused));
    }
    settle(conn, Arc::new(pending), report(reported, now), &wallet, context)
}

/// Decides and commits the settlement of a report as a group of one.
fn settle(
    conn: &mut Conn,
    call: Arc<PendingRecord>,
    report: CallReport,
    wallet: &Wallet,
    context: &LedgerContext,
) -> Result<ReportOutcome, StoreError> {
    let (request_id, now) = (call.request_id, report.timestamp);
    let settlement = Settlement { request_id, report: Some(Arc::new(report)), call: None };
    let command = LedgerCommand::Settle(Box::new(settlement));
    let group = [&command];
    let (mut configs, mut state) = (ConfigCache::default(), LedgerState::default());
    state.calls.insert(request_id, CallState::Unadmitted(call));
    let memory = CallMemory { context, is_trusted: false };
    let needs = load::load_calls(conn, &mut configs, &mut state, &group, memory)?;
    let not_booked = || StoreError::Corrupt {
        what: "request (it was not booked)",
        value: request_id.to_string(),
    };
    if load::load_accounts(conn, &configs, &mut state, &needs)? == LoadOutcome::Stale {
        return Err(not_booked());
    }
    let (outcomes, changes) = decide::decide(&mut state, &group, now, context.rules(&configs))?;
    let record = match outcomes.into_iter().next() {
        Some(CommandOutcome::Settled(SettleOutcome::Settled(settled))) => settled.record,
        Some(CommandOutcome::Settled(SettleOutcome::SettledFree(_))) => {
            return Ok(ReportOutcome::OutOfRange);
        }
        _ => return Err(not_booked()),
    };
    // Reported usage can be refused, unlike a call that was made.
    if !wallet.has_room_for(record.quote.total_wallet_cost) {
        return Ok(ReportOutcome::OutOfRange);
    }
    changes.commit(conn, &ConfigBasis::default())?;
    // The transaction is not committed yet. A fold that runs too early leaves the call to the next one.
    context.mark_committed(&changes);
    Ok(ReportOutcome::Booked(record))
}

/// The reported call, as if it had been admitted without a hold.
fn pending_record(
    reported: &ReportedUsage,
    merchant: &Merchant,
    connection: &Connection,
    meter: &MerchantMeter,
    now: Timestamp,
) -> PendingRecord {
    PendingRecord {
        request_id: RequestId::generate(now),
        merchant_id: merchant.merchant_id,
        reference_id: Some(reported.reference_id.clone()),
        connection_id: Some(connection.connection_id),
        spend_key_id: None,
        wallet_id: Some(connection.wallet_id),
        merchant_wallet_id: merchant.wallet_id,
        meter: Some(MeterVersion { meter_id: meter.meter_id, version: meter.version }),
        disable_billing: false,
        forwarded: reported.forwarded.clone(),
        spend_hold: Amount::ZERO,
        wallet_hold: Amount::ZERO,
        credit_hold: None,
        merchant_hold: Amount::ZERO,
        enforcement: None,
        budgets: CallBudgets::default(),
        run_id: None,
        report: None,
        ahead: false,
        created_at: now,
    }
}

/// The end of the reported call.
fn report(reported: &ReportedUsage, now: Timestamp) -> CallReport {
    CallReport {
        ending: Ending::Answered,
        provider_status: None,
        model: None,
        response_id: None,
        priced: reported.priced,
        applied: reported.applied.clone(),
        missing: reported.missing.clone(),
        timestamp: now,
        suspicious: false,
        extended: false,
        job: None,
        lines: Vec::new(),
        objects: Vec::new(),
        details: CallDetails::default(),
    }
}

/// The outcome of an earlier report with the same reference, if there is one. No transaction waits for the archive, so one
/// whose record is there is not found.
fn find_known(
    conn: &mut Conn,
    merchant_id: MerchantId,
    reported: &ReportedUsage,
) -> Result<Option<ReportOutcome>, StoreError> {
    let Some(request_id) = requests::id_of_reference(conn, merchant_id, &reported.reference_id)?
    else {
        return Ok(None);
    };
    let row = dialect::requests(conn, merchant_id, &[Id(request_id)], RowLock::No)?;
    match requests::to_records(conn, row)?.pop() {
        Some(record) => known(conn, reported, record).map(Some),
        None => Ok(None),
    }
}

/// The outcome of an earlier report with the same reference whose record is in the archive, if there is one.
pub(crate) fn find_archived(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    reported: &ReportedUsage,
) -> Result<Option<ReportOutcome>, StoreError> {
    let id = requests::id_of_reference(conn, merchant_id, &reported.reference_id)?;
    let until = archived::until(conn)?;
    if id.zip(until).is_none_or(|(id, until)| Id(id) >= until.id) {
        return Ok(None);
    }
    let reference_id = &reported.reference_id;
    match requests::find_by_reference(conn, archive, merchant_id, reference_id)? {
        Some(record) => known(conn, reported, record).map(Some),
        None => Ok(None),
    }
}

/// The outcome of a report whose reference has a record.
fn known(
    conn: &mut Conn,
    reported: &ReportedUsage,
    record: RequestRecord,
) -> Result<ReportOutcome, StoreError> {
    let slug = match record.meter_id {
        Some(meter_id) => meters::slug(conn, meter_id)?,
        None => None,
    };
    let forwarded = &reported.forwarded;
    let is_same = record.connection_id == Some(reported.connection_id)
        && slug.as_ref() == Some(&reported.meter_slug)
        && record.provider == forwarded.provider
        && record.model == forwarded.model
        && record.metadata == forwarded.metadata
        && record.priced.usage == reported.priced.usage;
    Ok(match is_same {
        true => ReportOutcome::Known(Box::new(record)),
        false => ReportOutcome::ReferenceReused,
    })
}
