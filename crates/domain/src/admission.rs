//! Admission: the decision that a call may go out.
//!
//! Pure: the store loads the facts, locks the rows that money depends on, calls this module and
//! writes the result.
//!
//! Limits on money have one of two modes. *Bounded*: a call is admitted while anything is left. The
//! limit is passed by less than the cost of one call, however many come at once. *Strict*: a call
//! is admitted if the most that it can cost is left. The limit is never passed. In both modes, an
//! admitted call holds the most that it can cost until it ends.

mod bound;
mod call;
mod money;
mod refusal;

use crate::quote::PricingTerms;
use tollgate_pricing::{Amount, Overflow, Rate};

pub use self::bound::{CostBound, MOST_HELD};
pub use self::call::{AdmissionFacts, Call, CallKey, MerchantAccount};
pub use self::money::remaining;
use self::money::{LimitChecks, PayerCosts};
pub use self::refusal::{LimitReset, Refusal, Shortage};
use crate::answer_report::AnswerReport;
use crate::budget::BudgetStatus;
use crate::connection::ConnectionStatus;
use crate::cycle::Cycle;
use crate::limit::{LimitOwner, LimitedAccount};
use crate::record::{CallBudgets, ForwardedRequest, MeterVersion, PendingRecord, ProviderKeyType};
use crate::run::Run;
use crate::spend_counters::{SpendCounters, SpendLimit};
use crate::spend_key::{Enforcement, SpendKey, SpendKeyStatus, SpendRules};
use crate::time::Timestamp;

/// An admitted call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The record that is stored before a byte goes to the provider.
    pub pending: PendingRecord,
    /// The counters of its spend key, with this call.
    pub counters: Option<SpendCounters>,
    /// The counters of its budgets, with this call, in the order of the budgets.
    pub budget_counters: Vec<SpendCounters>,
    /// Its run, with this call.
    pub run: Option<Run>,
}

/// Admits `call` or refuses it.
///
/// # Errors
/// The first [`Refusal`] that applies, in the order of that enum.
pub fn decide(
    call: &Call,
    facts: &AdmissionFacts<'_>,
    service_charge_rate: Rate,
) -> Result<Admission, Refusal> {
    let account = facts.account.ok_or(Refusal::KeyInvalid)?;
    check_references(call, facts)?;
    if let Some(key) = facts.spend_key {
        check_rules(call, key)?;
    }
    let paused = facts.budgets.iter().find(|one| one.rules.status == BudgetStatus::Paused);
    if let Some(budget) = paused {
        return Err(Refusal::BudgetPaused { budget_id: budget.budget_id });
    }
    let run = facts.run.map(|run| with_run_limit(call, run)).transpose()?;
    let run_limit = run
        .as_ref()
        .and_then(|run| run.limit_with(facts.spend_key.and_then(|key| key.rules.run_limit)));
    check_bound(call, facts, run_limit)?;
    let terms = terms(call, facts, service_charge_rate);
    let costs = |max_tokens| call.bound.quote(max_tokens, &terms).map(|most| PayerCosts::of(&most));
    let hold = PayerCosts::of(&call.bound.hold(&terms)?);
    // The call is admitted at one instant, which is not before the last admission of any of its accounts.
    let counters = facts.spend_key.map(|key| &key.counters).into_iter();
    let counters = counters.chain(facts.budgets.iter().map(|budget| &budget.counters));
    let counters = counters.chain(run.as_ref().map(|run| &run.counters));
    let created_at = counters.fold(call.created_at, |at, counters| counters.admitted_at(at));
    let key = facts.spend_key.map(|key| LimitedAccount::of_key(key, created_at));
    let budgets = facts.budgets.iter().map(|budget| LimitedAccount::of_budget(budget, created_at));
    let mode = facts.spend_key.map(|key| key.rules.enforcement).unwrap_or_default();
    let limited_run = run.as_ref().map(|run| LimitedAccount::of_run(run, run_limit, mode));
    let mut limited: Vec<_> = key.into_iter().chain(budgets).chain(limited_run).collect();
    if let (Some(key), Some(account)) = (facts.spend_key, limited.first_mut()) {
        check_rate(key, created_at, &mut account.counters)?;
    }
    let would_refuse =
        LimitChecks::of(facts, &account, &limited, created_at).check(&call.bound, costs, &hold)?;
    for account in &mut limited {
        let counted = account.counters.admit(created_at, hold.request, account.calendars);
        counted.map_err(|Overflow| Refusal::BoundTooLarge)?;
    }
    for (wallet, is_known) in
        facts.wallet.map(|it| (it, true)).into_iter().chain(account.guarded.map(|it| (it, false)))
    {
        if wallet.held.checked_add(hold.request).is_err() {
            return Err(Refusal::BoundTooLarge);
        }
        if hold.request.is_positive() && !wallet.has_room_for(hold.request) {
            return Err(Refusal::wallet_overflow(wallet, is_known || facts.spend_key.is_none()));
        }
    }
    let wallet = facts.wallet.filter(|_| facts.draws_on_credit && !call.disable_billing);
    let credit_hold = wallet.map(|wallet| { wallet.credits }.reserve(hold.wallet)).transpose();
    let credit_hold = credit_hold.map_err(|Overflow| Refusal::BoundTooLarge)?;
    let on_credit = credit_hold.unwrap_or_default();
    let on_balance = hold.wallet.checked_sub(on_credit.cycle);
    let on_balance = on_balance.and_then(|rest| rest.checked_sub(on_credit.bundle));
    let on_balance = on_balance.map_err(|Overflow| Refusal::BoundTooLarge)?;
    let pending = PendingRecord {
        request_id: call.request_id,
        merchant_id: call.merchant_id,
        reference_id: None,
        // The customer of the credential, else the customer whose wallet pays.
        connection_id: call
            .connection_id
            .or_else(|| facts.wallet.and_then(|wallet| wallet.connection_id)),
        spend_key_id: facts.spend_key.map(|key| key.spend_key_id),
        wallet_id: facts.wallet.map(|wallet| wallet.wallet_id),
        merchant_wallet_id: account.wallet_id,
        meter: facts
            .meter
            .map(|meter| MeterVersion { meter_id: meter.meter_id, version: meter.version }),
        disable_billing: call.disable_billing,
        forwarded: call.forwarded.clone(),
        budgets: CallBudgets {
            own: facts.own_budget_id,
            ids: facts.budgets.iter().map(|budget| budget.budget_id).collect(),
            would_refuse,
        },
        run_id: run.as_ref().map(|run| run.run_id.clone()),
        spend_hold: if limited.is_empty() { Amount::ZERO } else { hold.request },
        wallet_hold: facts.wallet.map(|_| on_balance).unwrap_or_default(),
        credit_hold,
        merchant_hold: account.guarded.map(|_| hold.merchant).unwrap_or_default(),
        enforcement: strictest(&limited),
        report: report(call, facts),
        ahead: call.ahead,
        created_at,
    };
    let mut counters = limited.into_iter().map(|account| account.counters);
    Ok(Admission {
        pending,
        counters: facts.spend_key.and_then(|_| counters.next()),
        budget_counters: counters.by_ref().take(facts.budgets.len()).collect(),
        run: run.zip(counters.next()).map(|(run, counters)| Run {
            counters,
            first_at: run.first_at.or(Some(created_at)),
            ..run
        }),
    })
}

/// The run with the limit that the call sets. A call may lower the limit, and not raise it.
fn with_run_limit(call: &Call, run: &Run) -> Result<Run, Refusal> {
    let new = call.run.as_ref().and_then(|named| named.limit);
    match (run.limit, new) {
        (Some(limit), Some(new)) if new > limit => Err(Refusal::RunLimitConflict { limit }),
        (limit, new) => Ok(Run { limit: new.or(limit), ..run.clone() }),
    }
}

/// The strictest mode of the accounts that a call counts against; `None` if all of them refuse nothing.
fn strictest(limited: &[LimitedAccount<'_>]) -> Option<Enforcement> {
    let mut modes = limited.iter().filter_map(|account| account.enforcement);
    let first = modes.next()?;
    let is_strict = [first].into_iter().chain(modes).any(|mode| mode == Enforcement::Strict);
    Some(if is_strict { Enforcement::Strict } else { Enforcement::Bounded })
}

/// Checks that everything the call names exists.
fn check_references(call: &Call, facts: &AdmissionFacts<'_>) -> Result<(), Refusal> {
    if call.connection_id.is_some() && facts.connection.is_none() {
        return Err(Refusal::ConnectionNotFound);
    }
    let names_meter =
        call.meter_slug.is_some() || facts.spend_key.is_some_and(|key| key.meter_id.is_some());
    if names_meter && facts.meter.is_none() {
        return Err(Refusal::MeterNotFound);
    }
    // A customer that is deleted or suspended can spend nothing, whichever key is used.
    let connections = facts.connection.into_iter().chain(facts.key_connection);
    for connection in connections {
        match connection.status {
            ConnectionStatus::Active => {}
            ConnectionStatus::Suspended => return Err(Refusal::ConnectionSuspended),
            ConnectionStatus::Deleted => return Err(Refusal::ConnectionDisabled),
        }
    }
    Ok(())
}

impl SpendRules {
    /// Checks whether the key may be used at `now`.
    ///
    /// # Errors
    /// [`Refusal::SpendKeyPaused`] or [`Refusal::SpendKeyExpired`].
    pub fn check_usable(&self, now: Timestamp) -> Result<(), Refusal> {
        match (self.status, self.expires_at) {
            (SpendKeyStatus::Paused, _) => Err(Refusal::SpendKeyPaused),
            (SpendKeyStatus::Active, Some(expired_at)) if expired_at <= now => {
                Err(Refusal::SpendKeyExpired { expired_at })
            }
            (SpendKeyStatus::Active, _) => Ok(()),
        }
    }
}

/// Checks whether the rules of the key allow the call.
fn check_rules(call: &Call, key: &SpendKey) -> Result<(), Refusal> {
    let rules = &key.rules;
    let forwarded = &call.forwarded;
    rules.check_usable(call.created_at)?;
    // A call without a model has no body, and so no format.
    if forwarded.model.is_some() && !rules.request_shape.accepts(call.shape) {
        return Err(Refusal::RequestShapeMismatch { accepted: rules.request_shape });
    }
    if let Some(model) = forwarded.model.as_deref().filter(|model| !rules.allows_model(model)) {
        return Err(Refusal::ModelNotAllowed { model: Some(model.to_owned()) });
    }
    if call.names_other_models && rules.allowed_models.is_some() {
        return Err(Refusal::ModelNotAllowed { model: None });
    }
    if !rules.allows_provider(&forwarded.provider) {
        return Err(Refusal::ProviderNotAllowed { provider: forwarded.provider.clone() });
    }
    Ok(())
}

/// Checks whether the cost of the call has the bound that its limits need.
fn check_bound(
    call: &Call,
    facts: &AdmissionFacts<'_>,
    run_limit: Option<Amount>,
) -> Result<(), Refusal> {
    let key = facts.spend_key.map(|key| &key.rules);
    let key = key.map(|it| (LimitOwner::SpendKey, it.spend_limit, Some(it.enforcement)));
    let budgets = facts.budgets.iter().map(|budget| {
        let rules = &budget.rules;
        let owner = LimitOwner::Budget(budget.budget_id);
        (owner, rules.spend_limit, rules.enforcement.enforced())
    });
    // The run of a strict key needs a bound because the key does.
    let run = run_limit.map(|amount| {
        let limit = SpendLimit { amount, cycle: Cycle::Total };
        (LimitOwner::Run, Some(limit), Some(Enforcement::Bounded))
    });
    let limits = key.into_iter().chain(budgets).chain(run).filter(|(.., mode)| mode.is_some());
    let limits: Vec<_> = limits.collect();
    let unpriced = call.forwarded.metered && call.bound.prices.is_none();
    if unpriced && let Some((owner, ..)) = limits.iter().find(|(_, limit, _)| limit.is_some()) {
        return Err(Refusal::CostBoundUnknown { owner: *owner, field: vec!["model".to_owned()] });
    }
    let is_strict = |mode: &Option<Enforcement>| *mode == Some(Enforcement::Strict);
    let strict = limits.iter().find(|(.., mode)| is_strict(mode));
    match (&call.bound.unbounded, strict) {
        (Some(field), Some((owner, ..))) => {
            Err(Refusal::CostBoundUnknown { owner: *owner, field: field.clone() })
        }
        _ => Ok(()),
    }
}

/// Checks whether the key may make one more call at its admission, and takes the call from its bucket.
fn check_rate(
    key: &SpendKey,
    created_at: Timestamp,
    counters: &mut SpendCounters,
) -> Result<(), Refusal> {
    let Some(limit) = key.rules.rate_limit else { return Ok(()) };
    let taken = counters.bucket.take(created_at, limit.rpm, limit.burst);
    taken.map_err(|too_soon| Refusal::RateLimited {
        rpm: limit.rpm,
        reset: LimitReset::new(created_at.plus_micros(too_soon.wait_micros), created_at),
    })
}

/// The report that the caller, the spend key or the customer requests.
fn report(call: &Call, facts: &AdmissionFacts<'_>) -> Option<AnswerReport> {
    let connections = facts.connection.into_iter().chain(facts.key_connection);
    let of_key = facts.spend_key.and_then(|key| key.rules.report);
    let of_connection = connections.filter_map(|connection| connection.report).next();
    call.report.or(of_key).or(of_connection)
}

/// The terms of the settlement if the call goes well. A call that is not metered costs nothing.
fn terms<'a>(
    call: &Call,
    facts: &AdmissionFacts<'a>,
    service_charge_rate: Rate,
) -> PricingTerms<'a> {
    let ForwardedRequest { metered, provider_key_type, .. } = call.forwarded;
    PricingTerms {
        meter: facts.meter.map(|meter| &meter.model),
        counter: 0,
        service_charge_rate,
        wallet_pays: facts.wallet.is_some() && !call.disable_billing,
        base_due: metered && provider_key_type == ProviderKeyType::Managed,
        fee_due: metered,
    }
}
