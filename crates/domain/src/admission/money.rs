//! The limits and wallets that a call draws on, and whether each has enough left.

use crate::quote::Quote;
use tollgate_pricing::{Amount, Overflow};

use super::bound::CostBound;
use super::call::{AdmissionFacts, MerchantAccount};
use super::refusal::{LimitReset, Refusal, Shortage};
use crate::budget::Budget;
use crate::cycle::Cycle;
use crate::limit::{LimitOwner, LimitedAccount};
use crate::run::Run;
use crate::spend_counters::SpendLimit;
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

/// All limits and wallets that must allow a call, in the order in which they are checked: those of the spend key, those
/// of the budgets by ascending id, that of the run, the wallets. Within one account, calls come before money.
pub(super) struct LimitChecks<'a>(Vec<LimitCheck<'a>>);

enum LimitCheck<'a> {
    /// A limit of calls that is reached.
    Calls {
        refusal: Refusal,
        /// Whether it refuses the call.
        is_enforced: bool,
    },
    Money(FundingSource<'a>),
}

/// A limit of money, or a wallet.
struct FundingSource<'a> {
    kind: FundingSourceKind<'a>,
    /// The amount that a new call may draw on.
    left: Amount,
    held: Amount,
    /// The part of a call's cost that is drawn here.
    share: fn(&PayerCosts) -> Amount,
    /// `None` for a limit that refuses nothing.
    enforcement: Option<Enforcement>,
}

enum FundingSourceKind<'a> {
    SpendLimit {
        owner: LimitOwner,
        limit: SpendLimit,
        spent: Amount,
        reset: Option<LimitReset>,
    },
    /// A wallet, and whether the caller may know its id.
    Wallet(&'a Wallet, bool),
}

/// The limit of calls of an account, if it is reached.
fn calls_check<'a>(account: &LimitedAccount<'_>, now: Timestamp) -> Option<LimitCheck<'a>> {
    let limit = account.request_limit?;
    let used = *account.counters.requests.get(limit.cycle);
    let ends_at = account.calendars.requests.ends_at(limit.cycle, now);
    (used >= limit.count).then(|| LimitCheck::Calls {
        refusal: Refusal::RequestLimitReached {
            owner: account.owner,
            limit,
            used,
            reset: ends_at.map(|at| LimitReset::new(at, now)),
        },
        is_enforced: account.enforcement.is_some(),
    })
}

impl<'a> FundingSource<'a> {
    /// The spend limit of an account, if it has one.
    fn spend_limit(account: &LimitedAccount<'_>, now: Timestamp) -> Option<Self> {
        let (limit, counters) = (account.spend_limit?, &account.counters);
        // A run of a day ends with its day, and counts all its calls.
        let counted = match account.owner {
            LimitOwner::Run => Cycle::Total,
            LimitOwner::SpendKey | LimitOwner::Budget(_) => limit.cycle,
        };
        let (spent, held) = (*counters.spent.get(counted), *counters.held.get(counted));
        let ends_at = account.calendars.spend.ends_at(limit.cycle, now);
        let reset = ends_at.map(|at| LimitReset::new(at, now));
        Some(Self {
            kind: FundingSourceKind::SpendLimit { owner: account.owner, limit, spent, reset },
            left: limit.amount.saturating_sub(spent).saturating_sub(held),
            held,
            share: |costs| costs.request,
            enforcement: account.enforcement,
        })
    }

    /// A wallet, if it has an overdraft limit.
    fn wallet(
        wallet: &'a Wallet,
        draws_on_credit: bool,
        is_known: bool,
        enforcement: Enforcement,
        share: fn(&PayerCosts) -> Amount,
    ) -> Option<Self> {
        wallet.overdraft_limit?;
        let (left, held) = match draws_on_credit {
            true => (wallet.available(), wallet.held.saturating_add(wallet.credits.held())),
            false => (wallet.available_balance(), wallet.held),
        };
        let kind = FundingSourceKind::Wallet(wallet, is_known);
        Some(Self { kind, left, held, share, enforcement: Some(enforcement) })
    }

    /// Returns whether enough is left. A call without cost is never refused for money.
    fn has_enough(&self, costs: &PayerCosts) -> bool {
        let share = (self.share)(costs);
        match self.enforcement {
            _ if !share.is_positive() => true,
            // A limit that refuses nothing counts as a bounded one.
            None | Some(Enforcement::Bounded) => self.left.is_positive(),
            Some(Enforcement::Strict) => share <= self.left,
        }
    }
}

/// The least amount in USD that is left for a new call at `now`: of the spend limits of a key, of the budgets that enforce
/// theirs and of a run, and of a wallet with an overdraft limit, after the holds of the calls in flight. It may be negative.
/// `None` if none has a limit.
pub fn remaining<'a>(
    key: Option<&SpendKey>,
    budgets: impl IntoIterator<Item = &'a Budget>,
    run: Option<&Run>,
    wallet: Option<&Wallet>,
    draws_on_credit: bool,
    now: Timestamp,
) -> Option<Amount> {
    let run = run.map(|run| {
        let limit = run.limit_with(key.and_then(|key| key.rules.run_limit));
        LimitedAccount::of_run(run, limit, Enforcement::default())
    });
    let key = key.map(|key| LimitedAccount::of_key(key, now));
    let budgets = budgets.into_iter().map(|budget| LimitedAccount::of_budget(budget, now));
    let limits = key.into_iter().chain(budgets).chain(run);
    let limits = limits.filter(|account| account.enforcement.is_some());
    let limits = limits.filter_map(|account| Some(FundingSource::spend_limit(&account, now)?.left));
    let wallet = wallet.and_then(|wallet| {
        let enforcement = Enforcement::default();
        FundingSource::wallet(wallet, draws_on_credit, true, enforcement, |costs| costs.wallet)
    });
    limits.chain(wallet.map(|source| source.left)).min()
}

impl<'a> LimitChecks<'a> {
    /// The checks of a call that is admitted at `now`. `limited` are the accounts with limits, in their order.
    pub(super) fn of(
        facts: &AdmissionFacts<'a>,
        account: &MerchantAccount<'a>,
        limited: &[LimitedAccount<'_>],
        now: Timestamp,
    ) -> Self {
        let enforcement = facts.spend_key.map_or(Enforcement::Bounded, |key| key.rules.enforcement);
        // A spend key can draw on the merchant's own wallet, which then pays both parts.
        let is_merchants = facts.wallet.is_some_and(|wallet| wallet.wallet_id == account.wallet_id);
        let share: fn(&PayerCosts) -> Amount = match is_merchants {
            true => |costs| costs.wallet.saturating_add(costs.merchant),
            false => |costs| costs.wallet,
        };
        let wallet = facts.wallet.and_then(|wallet| {
            FundingSource::wallet(wallet, facts.draws_on_credit, true, enforcement, share)
        });
        let merchants = account.guarded.filter(|_| !is_merchants).and_then(|wallet| {
            // The holder of a spend key need not be the merchant.
            let is_known = facts.spend_key.is_none();
            FundingSource::wallet(wallet, false, is_known, enforcement, |costs| costs.merchant)
        });
        let mut checks = Vec::with_capacity(limited.len().saturating_add(2));
        for account in limited {
            checks.extend(calls_check(account, now));
            checks.extend(FundingSource::spend_limit(account, now).map(LimitCheck::Money));
        }
        checks.extend(wallet.into_iter().chain(merchants).map(LimitCheck::Money));
        Self(checks)
    }

    /// Checks whether a call that costs at most `hold` is allowed by all of them. `costs` returns its
    /// cost with another maximum of tokens. Returns whether a limit that refuses nothing is reached.
    pub(super) fn check(
        &self,
        bound: &CostBound,
        costs: impl Fn(u64) -> Result<PayerCosts, Overflow>,
        hold: &PayerCosts,
    ) -> Result<bool, Refusal> {
        let mut would_refuse = false;
        for check in &self.0 {
            match check {
                LimitCheck::Calls { refusal, is_enforced: true } => return Err(refusal.clone()),
                LimitCheck::Calls { is_enforced: false, .. } => would_refuse = true,
                LimitCheck::Money(source) if source.has_enough(hold) => {}
                LimitCheck::Money(source) if source.enforcement.is_none() => would_refuse = true,
                LimitCheck::Money(source) => {
                    return Err(self.shortage(source, bound, costs, hold));
                }
            }
        }
        Ok(would_refuse)
    }

    /// The refusal of a call because a source has too little left.
    fn shortage(
        &self,
        source: &FundingSource<'_>,
        bound: &CostBound,
        costs: impl Fn(u64) -> Result<PayerCosts, Overflow>,
        hold: &PayerCosts,
    ) -> Refusal {
        let is_strict = source.enforcement == Some(Enforcement::Strict);
        let fits = |max_tokens| {
            let all = |costs: PayerCosts| {
                self.0.iter().all(|check| match check {
                    LimitCheck::Calls { is_enforced, .. } => !is_enforced,
                    LimitCheck::Money(source) => {
                        source.enforcement.is_none() || source.has_enough(&costs)
                    }
                })
            };
            costs(max_tokens).is_ok_and(all)
        };
        let shortage = Shortage {
            left: source.left,
            held: source.held,
            needed: is_strict.then_some((source.share)(hold)),
            largest_max_tokens: match is_strict {
                true => largest_fitting(bound.max_tokens, fits),
                false => None,
            },
        };
        match source.kind {
            FundingSourceKind::SpendLimit { owner, limit, spent, reset } => {
                Refusal::SpendLimitReached { owner, limit, spent, shortage, reset }
            }
            FundingSourceKind::Wallet(wallet, is_known) => Refusal::WalletInsufficient {
                wallet_id: is_known.then_some(wallet.wallet_id),
                shortage,
            },
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
