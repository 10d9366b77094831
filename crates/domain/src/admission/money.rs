//! The money that a call needs, and the wallets and limits that must have it.

use crate::quote::Quote;
use tollgate_pricing::{Amount, Overflow};

use super::bound::CostBound;
use super::call::{AdmissionFacts, MerchantAccount};
use super::refusal::{LimitReset, Refusal, Shortage};
use crate::spend_counters::{SpendCounters, SpendLimit};
use crate::spend_key::{Enforcement, SpendKey};
use crate::time::Timestamp;
use crate::wallet::Wallet;

/// The most that a call costs, in total and for each payer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PayerCosts {
    pub(super) request: Amount,
    pub(super) wallet: Amount,
    pub(super) merchant: Amount,
}

impl PayerCosts {
    pub(super) fn of(most: &Quote) -> Self {
        Self {
            request: most.total_request_cost,
            wallet: most.total_wallet_cost,
            merchant: most.total_merchant_cost,
        }
    }
}

/// All places that must have enough left, in the order in which they are checked.
pub(super) struct FundingSources<'a> {
    sources: [Option<FundingSource<'a>>; 3],
    enforcement: Enforcement,
}

struct FundingSource<'a> {
    kind: FundingSourceKind<'a>,
    /// The amount that a new call may draw on.
    left: Amount,
    held: Amount,
    /// The part of a call's cost that is drawn here.
    share: fn(&PayerCosts) -> Amount,
}

enum FundingSourceKind<'a> {
    SpendLimit {
        limit: SpendLimit,
        spent: Amount,
        reset: Option<LimitReset>,
    },
    /// A wallet, and whether the caller may know its id.
    Wallet(&'a Wallet, bool),
}

impl<'a> FundingSource<'a> {
    /// The spend limit of a key, if it has one. `counters` are its counters at `now`.
    fn limit(key: &SpendKey, counters: &SpendCounters, now: Timestamp) -> Option<Self> {
        let limit = key.rules.spend_limit?;
        let (spent, held) = (*counters.spent.get(limit.cycle), *counters.held.get(limit.cycle));
        let reset =
            key.rules.spend_calendar.ends_at(limit.cycle, now).map(|at| LimitReset::new(at, now));
        Some(Self {
            kind: FundingSourceKind::SpendLimit { limit, spent, reset },
            left: limit.amount.saturating_sub(spent).saturating_sub(held),
            held,
            share: |costs| costs.request,
        })
    }

    fn wallet(
        wallet: &'a Wallet,
        draws_on_credit: bool,
        is_known: bool,
        share: fn(&PayerCosts) -> Amount,
    ) -> Self {
        let (left, held) = match draws_on_credit {
            true => (wallet.available(), wallet.held.saturating_add(wallet.credits.held())),
            false => (wallet.available_balance(), wallet.held),
        };
        Self { kind: FundingSourceKind::Wallet(wallet, is_known), left, held, share }
    }
}

/// The least amount in USD that the spend limit of a key and a wallet with an overdraft limit leave for a new call at
/// `now`, after the holds of the calls in flight. It may be negative. `None` if neither has a limit.
pub fn remaining(
    key: Option<&SpendKey>,
    wallet: Option<&Wallet>,
    draws_on_credit: bool,
    now: Timestamp,
) -> Option<Amount> {
    let limit = key.and_then(|key| FundingSource::limit(key, &key.counters_at(now), now));
    let wallet = wallet.filter(|wallet| wallet.overdraft_limit.is_some());
    let wallet =
        wallet.map(|one| FundingSource::wallet(one, draws_on_credit, true, |_| Amount::ZERO));
    limit.into_iter().chain(wallet).map(|source| source.left).min()
}

impl<'a> FundingSources<'a> {
    /// The purses of a call. `counters` are the spend key's counters at `now`.
    pub(super) fn of(
        facts: &AdmissionFacts<'a>,
        account: &MerchantAccount<'a>,
        counters: Option<&SpendCounters>,
        now: Timestamp,
    ) -> Self {
        let limit = facts.spend_key.zip(counters);
        let limit = limit.and_then(|(key, counters)| FundingSource::limit(key, counters, now));
        let wallet = facts.wallet.filter(|wallet| wallet.overdraft_limit.is_some());
        // A spend key can draw on the merchant's own wallet, which then pays both parts.
        let is_merchants = wallet.is_some_and(|wallet| wallet.wallet_id == account.wallet_id);
        let share: fn(&PayerCosts) -> Amount = match is_merchants {
            true => |costs| costs.wallet.saturating_add(costs.merchant),
            false => |costs| costs.wallet,
        };
        let merchants =
            account.guarded.filter(|wallet| !is_merchants && wallet.overdraft_limit.is_some());
        Self {
            sources: [
                limit,
                wallet.map(|wallet| {
                    FundingSource::wallet(wallet, facts.draws_on_credit, true, share)
                }),
                // The holder of a spend key need not be the merchant.
                merchants.map(|wallet| {
                    let is_known = facts.spend_key.is_none();
                    FundingSource::wallet(wallet, false, is_known, |costs| costs.merchant)
                }),
            ],
            enforcement: facts.spend_key.map_or(Enforcement::Bounded, |key| key.rules.enforcement),
        }
    }

    /// Checks whether a call that costs at most `hold` may draw on all of them. `costs` returns its
    /// cost with another maximum of tokens.
    pub(super) fn check_funds(
        &self,
        bound: &CostBound,
        costs: impl Fn(u64) -> Result<PayerCosts, Overflow>,
        hold: &PayerCosts,
    ) -> Result<(), Refusal> {
        let short = self.sources.iter().flatten().find(|purse| !self.has_enough(purse, hold));
        let Some(purse) = short else { return Ok(()) };
        let is_strict = self.enforcement == Enforcement::Strict;
        let fits = |max_tokens| {
            let all = |costs: PayerCosts| {
                self.sources.iter().flatten().all(|purse| self.has_enough(purse, &costs))
            };
            costs(max_tokens).is_ok_and(all)
        };
        let shortage = Shortage {
            left: purse.left,
            held: purse.held,
            needed: is_strict.then_some((purse.share)(hold)),
            largest_max_tokens: match is_strict {
                true => largest_fitting(bound.max_tokens, fits),
                false => None,
            },
        };
        Err(match purse.kind {
            FundingSourceKind::SpendLimit { limit, spent, reset } => {
                Refusal::SpendLimitReached { limit, spent, shortage, reset }
            }
            FundingSourceKind::Wallet(wallet, is_known) => Refusal::WalletInsufficient {
                wallet_id: is_known.then_some(wallet.wallet_id),
                shortage,
            },
        })
    }

    /// Returns whether enough is left in a purse. A call without cost is never refused for money.
    fn has_enough(&self, purse: &FundingSource<'_>, costs: &PayerCosts) -> bool {
        let share = (purse.share)(costs);
        match self.enforcement {
            _ if !share.is_positive() => true,
            Enforcement::Bounded => purse.left.is_positive(),
            Enforcement::Strict => share <= purse.left,
        }
    }
}

/// The largest number from 1 to below `above` that fits. Numbers below a fitting one must fit, too.
fn largest_fitting(above: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut fitting, mut too_large) = (0, above);
    while too_large.saturating_sub(fitting) > 1 {
        let middle = fitting.midpoint(too_large);
        match fits(middle) {
            true => fitting = middle,
            false => too_large = middle,
        }
    }
    (fitting > 0).then_some(fitting)
}
