//! Whether a call may go out. Pure: the store loads the facts, locks what money depends on, asks
//! here, and writes what comes back.
//!
//! Limits on money are kept in one of two ways. *Bounded*: a call is admitted while anything is
//! left, so that a limit is passed by less than the cost of one call, however many come at once.
//! *Strict*: a call is admitted if the most it can cost is left, so that no limit is ever passed.
//! In both, an admitted call holds the most it can cost until it ends.

mod money;
mod refusal;

use tollgate_pricing::{
    Amount, BaseCost, Meter, Overflow, PerUnit, PriceSource, Quote, Rate, Terms, Unit, UnitPrices,
    Usage,
};

use self::money::{Costs, Purses};
pub use self::refusal::{Refusal, Reset, Shortage};
use crate::connection::{Connection, ConnectionStatus};
use crate::id::{ConnectionId, MerchantId, RequestId, SecretKeyId, SpendKeyId, WalletId};
use crate::key::KeyHash;
use crate::meter::MerchantMeter;
use crate::record::{
    Forwarded, MeterVersion, PendingRecord, PricedUsage, ProviderKeyType, UsageSource,
};
use crate::spend_counters::SpendCounters;
use crate::spend_key::{Enforcement, RequestFormat, SpendKey, SpendKeyStatus, SpendRules};
use crate::time::Timestamp;
use crate::wallet::Wallet;

/// The most that one call may hold: a million USD. Whoever states a maximum beyond all sense must
/// not fill what amounts can hold, for the calls of others would find no place.
pub const MOST_HELD: Amount = Amount::from_units(1_000_000 * 10_000_000_000);

impl CostBound {
    /// The most that the call can use, and what the provider can charge for it: what a call is settled
    /// at whose use is not known and whose limit must not be passed.
    pub fn at_most(&self, source: PriceSource) -> PricedUsage {
        let (usage, base) = self.most(self.max_tokens).unwrap_or_default();
        PricedUsage { usage, usage_source: UsageSource::Estimated, base, price_source: source }
    }
}

/// A call that asks to be admitted.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its id.
    pub request_id: RequestId,
    /// Whose call it is, by its key.
    pub merchant_id: MerchantId,
    /// The key it was made with.
    pub key: CallKey,
    /// The customer named in the credential.
    pub connection_id: Option<ConnectionId>,
    /// The meter named in the credential.
    pub meter_slug: Option<String>,
    /// Whether the credential asks not to bill the customer.
    pub disable_billing: bool,
    /// What is forwarded where.
    pub forwarded: Forwarded,
    /// The format of its body, if it has one of the two.
    pub shape: Option<RequestFormat>,
    /// Whether its body names models that may serve it instead of the one it asks for.
    pub names_other_models: bool,
    /// The most it can cost.
    pub bound: CostBound,
    /// When it came in.
    pub created_at: Timestamp,
}

/// The key a call was made with. What a node remembers of keys may be old, so both are looked up
/// again when the call is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKey {
    /// A merchant's own key, which is never changed.
    Secret(SecretKeyId),
    /// A restricted key, whose id outlives the key when it is rotated.
    Spend(SpendKeyId, KeyHash),
}

/// The most a call can use, and the prices it can meet at most. One that is free has none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostBound {
    /// Tokens that go in.
    pub input_tokens: u64,
    /// Tokens of one answer.
    pub max_tokens: u64,
    /// Tokens that go in besides once the call states a maximum of its own: none when it does.
    pub to_state_maximum: u64,
    /// Answers.
    pub answers: u64,
    /// Calls of the provider's own tools.
    pub tool_calls: u64,
    /// What of other units it can use: characters, seconds, images.
    pub others: PerUnit<u64>,
    /// The dearest prices that can apply; none when the model has no price.
    pub prices: Option<UnitPrices>,
    /// The field that leaves the cost without bound: what is held is then an estimate.
    pub unbounded: Option<Vec<String>>,
}

impl CostBound {
    /// What the call can use if an answer has at most `max_tokens`, and what the provider can
    /// charge for it.
    fn most(&self, max_tokens: u64) -> Result<(Usage, BaseCost), Overflow> {
        let stated = if max_tokens == self.max_tokens { 0 } else { self.to_state_maximum };
        let input_tokens = self.input_tokens.saturating_add(stated);
        let mut usage = Usage::tokens(input_tokens, max_tokens.saturating_mul(self.answers));
        for &unit in Unit::ALL.iter().filter(|unit| !unit.counts_tokens()) {
            *usage.quantities.get_mut(unit) = *self.others.get(unit);
        }
        usage.quantities.tool_call = self.tool_calls;
        usage.quantities.request = 1;
        let base = self.prices.as_ref().map(|prices| BaseCost::of(&usage, prices)).transpose()?;
        Ok((usage, base.unwrap_or_default()))
    }

    /// What the call costs if an answer has at most `max_tokens`, whatever tier it falls into.
    fn quote(&self, max_tokens: u64, terms: &Terms<'_>) -> Result<Quote, Overflow> {
        let (usage, base) = self.most(max_tokens)?;
        let dearest = terms.meter.map(Meter::at_dearest_rate);
        Quote::new(&usage, base, &Terms { meter: dearest.as_ref(), counter: 0, ..*terms })
    }

    /// The most that the call can cost under these terms, in any tier: what it holds.
    ///
    /// # Errors
    /// [`Refusal::BoundTooLarge`].
    pub fn hold(&self, terms: &Terms<'_>) -> Result<Quote, Refusal> {
        let most = self.quote(self.max_tokens, terms).ok();
        most.filter(|most| most.total_request_cost <= MOST_HELD).ok_or(Refusal::BoundTooLarge)
    }
}

/// What the decision rests on, as it stands under the store's locks.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The merchant's own account; absent when the key is no longer valid.
    pub account: Option<Account<'a>>,
    /// The spend key that the call was made with.
    pub spend_key: Option<&'a SpendKey>,
    /// The connection that the credential names, if it is this merchant's.
    pub connection: Option<&'a Connection>,
    /// The connection whose wallet the spend key draws on.
    pub key_connection: Option<&'a Connection>,
    /// The wallet of the connection, else of the spend key.
    pub wallet: Option<&'a Wallet>,
    /// The meter that the credential or the spend key names, if it is this merchant's.
    pub meter: Option<&'a MerchantMeter>,
    /// Whether the subscription that fills the wallet's credit lets calls under the meter draw on it.
    pub draws_on_credit: bool,
}

/// A merchant's own account: without limit unless the operator set one.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    /// Its wallet.
    pub wallet_id: WalletId,
    /// The wallet as it stands, if it has a limit, or [almost no room](Wallet::LEAST_BALANCE) left;
    /// another one guards nothing, and is a hot row that an admission leaves alone.
    pub guarded: Option<&'a Wallet>,
}

/// A call that may go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What is stored before a byte goes to the provider.
    pub pending: PendingRecord,
    /// The counters of its spend key, with this call.
    pub counters: Option<SpendCounters>,
}

/// Admits `call` or refuses it.
///
/// # Errors
/// The first [`Refusal`] in the order of that enum.
pub fn decide(
    call: &Call,
    facts: &Facts<'_>,
    service_charge_rate: Rate,
) -> Result<Admission, Refusal> {
    let account = facts.account.ok_or(Refusal::KeyInvalid)?;
    find(call, facts)?;
    if let Some(key) = facts.spend_key {
        obey(call, key)?;
    }
    let terms = terms(call, facts, service_charge_rate);
    let costs = |max_tokens| call.bound.quote(max_tokens, &terms).map(|most| Costs::of(&most));
    let hold = Costs::of(&call.bound.hold(&terms)?);
    let created_at = match facts.spend_key {
        Some(key) => key.counters.admitted_at(call.created_at),
        None => call.created_at,
    };
    let mut counters = facts.spend_key.map(|key| key.counters.at(created_at));
    if let (Some(key), Some(counters)) = (facts.spend_key, &mut counters) {
        pace(call, key, counters, created_at)?;
    }
    Purses::of(facts, &account, counters.as_ref(), created_at).afford(&call.bound, costs, &hold)?;
    if let Some(counters) = &mut counters {
        counters.admit(created_at, hold.request).map_err(|Overflow| Refusal::BoundTooLarge)?;
    }
    for (wallet, is_known) in
        facts.wallet.map(|it| (it, true)).into_iter().chain(account.guarded.map(|it| (it, false)))
    {
        if wallet.held.checked_add(hold.request).is_err() {
            return Err(Refusal::BoundTooLarge);
        }
        if hold.request.is_positive() && !wallet.has_room_for(hold.request) {
            return Err(Refusal::out_of_room(wallet, is_known || facts.spend_key.is_none()));
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
        // Whom the call was made for: the customer of the credential, else the one whose wallet pays.
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
        spend_hold: facts.spend_key.map(|_| hold.request).unwrap_or_default(),
        wallet_hold: facts.wallet.map(|_| on_balance).unwrap_or_default(),
        credit_hold,
        merchant_hold: account.guarded.map(|_| hold.merchant).unwrap_or_default(),
        enforcement: facts.spend_key.map(|key| key.rules.enforcement),
        created_at,
    };
    Ok(Admission { pending, counters })
}

/// Whether all that the call names is there.
fn find(call: &Call, facts: &Facts<'_>) -> Result<(), Refusal> {
    if call.connection_id.is_some() && facts.connection.is_none() {
        return Err(Refusal::ConnectionNotFound);
    }
    let names_meter =
        call.meter_slug.is_some() || facts.spend_key.is_some_and(|key| key.meter_id.is_some());
    if names_meter && facts.meter.is_none() {
        return Err(Refusal::MeterNotFound);
    }
    // A customer who was deleted spends nothing any more, by whichever key.
    let connections = facts.connection.into_iter().chain(facts.key_connection);
    match connections.into_iter().any(|one| one.status == ConnectionStatus::Deleted) {
        true => Err(Refusal::ConnectionDisabled),
        false => Ok(()),
    }
}

impl SpendRules {
    /// Whether the key may be used at all.
    ///
    /// # Errors
    /// [`Refusal::SpendKeyPaused`] and [`Refusal::SpendKeyExpired`].
    pub fn may_be_used(&self, now: Timestamp) -> Result<(), Refusal> {
        match (self.status, self.expires_at) {
            (SpendKeyStatus::Paused, _) => Err(Refusal::SpendKeyPaused),
            (SpendKeyStatus::Active, Some(expired_at)) if expired_at <= now => {
                Err(Refusal::SpendKeyExpired { expired_at })
            }
            (SpendKeyStatus::Active, _) => Ok(()),
        }
    }
}

/// Whether the rules of the key allow such a call at all.
fn obey(call: &Call, key: &SpendKey) -> Result<(), Refusal> {
    let rules = &key.rules;
    let forwarded = &call.forwarded;
    rules.may_be_used(call.created_at)?;
    // A call without a model has no body either, and so no format.
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
    let unpriced = forwarded.metered && call.bound.prices.is_none();
    if unpriced && rules.spend_limit.is_some() {
        return Err(Refusal::CostBoundUnknown { field: vec!["model".to_owned()] });
    }
    match &call.bound.unbounded {
        Some(field) if rules.enforcement == Enforcement::Strict => {
            Err(Refusal::CostBoundUnknown { field: field.clone() })
        }
        _ => Ok(()),
    }
}

/// Whether the key may make one more call now; the call is taken from its bucket.
fn pace(
    call: &Call,
    key: &SpendKey,
    counters: &mut SpendCounters,
    admitted_at: Timestamp,
) -> Result<(), Refusal> {
    if let Some(limit) = key.rules.rate_limit {
        let taken = counters.bucket.take(call.created_at, limit.rpm, limit.burst);
        taken.map_err(|too_soon| Refusal::RateLimited {
            rpm: limit.rpm,
            reset: Reset::new(call.created_at.plus_micros(too_soon.wait_micros), call.created_at),
        })?;
    }
    match key.rules.request_limit {
        Some(limit) if *counters.requests.get(limit.cycle) >= limit.count => {
            Err(Refusal::RequestLimitReached {
                used: *counters.requests.get(limit.cycle),
                limit,
                reset: limit.cycle.ends_at(admitted_at).map(|at| Reset::new(at, admitted_at)),
            })
        }
        _ => Ok(()),
    }
}

/// Under which terms the call would be settled if it goes well. One that is free costs nothing.
fn terms<'a>(call: &Call, facts: &Facts<'a>, service_charge_rate: Rate) -> Terms<'a> {
    let Forwarded { metered, provider_key_type, .. } = call.forwarded;
    Terms {
        meter: facts.meter.map(|meter| &meter.model),
        counter: 0,
        service_charge_rate,
        wallet_pays: facts.wallet.is_some() && !call.disable_billing,
        base_due: metered && provider_key_type == ProviderKeyType::Managed,
        fee_due: metered,
    }
}
