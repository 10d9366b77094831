//! A spend key with its wallet and its calls: a store of one row, in memory.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails by panicking")]
#![expect(unreachable_pub, reason = "it is all of one program")]

use tollgate_domain::admission::{
    AdmissionFacts, Call, CallKey, CostBound, MerchantAccount, Refusal, decide,
};
use tollgate_domain::*;
use tollgate_pricing::*;

pub fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

/// An admitted call.
#[derive(Clone, Copy, Debug)]
pub struct ModelledCall {
    pub admitted_at: Timestamp,
    pub hold: Amount,
    /// The cost, once the call has ended.
    pub cost: Option<Amount>,
    /// Whether the call had ended at another cost before.
    pub corrected: bool,
}

impl ModelledCall {
    /// The amount that it takes from a limit: its hold, then its cost.
    pub fn weight(&self) -> Amount {
        self.cost.unwrap_or(self.hold)
    }
}

#[derive(Clone, Debug)]
pub struct SpendKeyModel {
    pub key: SpendKey,
    pub wallet: Wallet,
    pub calls: Vec<ModelledCall>,
    pub told: Vec<(u8, Timestamp)>,
    merchants_own: WalletId,
}

impl SpendKeyModel {
    /// Creates a key with these rules and a wallet with this balance.
    pub fn new(rules: SpendRules, balance: &str) -> Self {
        let now = at("2026-01-01T00:00:00Z");
        let merchant_id = MerchantId::generate(now);
        let wallet = Wallet {
            wallet_id: WalletId::generate(now),
            merchant_id,
            connection_id: None,
            balance: amount(balance),
            held: Amount::ZERO,
            credits: Credits::default(),
            overdraft_limit: Some(Amount::ZERO),
            low_balance_threshold: None,
            created_at: now,
        };
        let key = SpendKey {
            spend_key_id: SpendKeyId::generate(now),
            merchant_id,
            wallet_id: wallet.wallet_id,
            meter_id: None,
            budget_id: None,
            name: "key".to_owned(),
            key_preview: "tgk_abcdefgh****".to_owned(),
            rules,
            counters: SpendCounters::default(),
            created_at: now,
        };
        let merchants_own = WalletId::generate(now);
        Self { key, wallet, calls: Vec::new(), told: Vec::new(), merchants_own }
    }

    /// Requests the admission of `call`, and books it if it is admitted.
    pub fn admit(&mut self, call: &Call) -> Result<usize, Refusal> {
        let facts = AdmissionFacts {
            account: Some(MerchantAccount { wallet_id: self.merchants_own, guarded: None }),
            spend_key: Some(&self.key),
            connection: None,
            key_connection: None,
            wallet: Some(&self.wallet),
            meter: None,
            draws_on_credit: false,
            budgets: &[],
            own_budget_id: None,
            run: None,
        };
        let admission = decide(call, &facts, Rate::ZERO)?;
        let pending = admission.pending;
        self.key.counters = admission.counters.unwrap();
        self.wallet.held = self.wallet.held.checked_add(pending.wallet_hold).unwrap();
        self.calls.push(ModelledCall {
            admitted_at: pending.created_at,
            hold: pending.spend_hold,
            cost: None,
            corrected: false,
        });
        Ok(self.calls.len() - 1)
    }

    /// Ends a call, or corrects its earlier end.
    pub fn settle(&mut self, index: usize, cost: Amount) {
        let call = self.calls.get_mut(index).unwrap();
        call.corrected = call.cost.is_some();
        let counted = call.cost.unwrap_or_default();
        let hold = if call.cost.is_some() { Amount::ZERO } else { call.hold };
        let more = cost.checked_sub(counted).unwrap();
        call.cost = Some(cost);
        let admitted_at = call.admitted_at;
        for news in self.key.settle(admitted_at, hold, more).unwrap() {
            let percent = match news {
                EventPayload::SpendKeyThresholdReached { threshold, .. } => threshold,
                EventPayload::SpendKeyLimitReached { .. } => 100,
                other => panic!("not of a spend key: {other:?}"),
            };
            self.told.push((percent, self.key.counters.last_used_at.unwrap()));
        }
        self.wallet.held = self.wallet.held.checked_sub(hold).unwrap();
        self.wallet.balance = self.wallet.balance.checked_sub(more).unwrap();
    }

    /// Returns whether a released hold was charged later, because a call that was given up as lost
    /// had ended otherwise. It is the one case outside the guarantees.
    pub fn is_corrected(&self) -> bool {
        self.calls.iter().any(|call| call.corrected)
    }

    /// The amount that the calls admitted in the cycle of `at` take from a limit.
    pub fn weight_in(&self, cycle: Cycle, at: Timestamp) -> Amount {
        let calendar = &self.key.rules.spend_calendar;
        let is_same = |call: &&ModelledCall| calendar.is_same(cycle, call.admitted_at, at);
        let of_cycle = self.calls.iter().filter(is_same);
        of_cycle.map(ModelledCall::weight).sum::<Result<Amount, _>>().unwrap()
    }

    /// Asserts that every counter is the sum over the calls.
    pub fn assert_counted(&self) {
        let Some(last) = self.key.counters.last_used_at else { return };
        for cycle in [Cycle::Daily, Cycle::Weekly, Cycle::Monthly, Cycle::Total] {
            let LimitCalendars { spend, requests } = self.key.rules.calendars();
            let counted = |calendar: &CycleCalendar| {
                let is_same =
                    |call: &&ModelledCall| calendar.is_same(cycle, call.admitted_at, last);
                self.calls.iter().filter(is_same).collect::<Vec<_>>()
            };
            let of_cycle = || counted(spend).into_iter();
            let spent = of_cycle().filter_map(|call| call.cost).sum::<Result<Amount, _>>().unwrap();
            let open = of_cycle().filter(|call| call.cost.is_none());
            let held = open.map(|call| call.hold).sum::<Result<Amount, _>>().unwrap();
            let counters = &self.key.counters;
            assert_eq!(*counters.spent.get(cycle), spent, "spent {cycle:?}");
            assert_eq!(*counters.held.get(cycle), held, "held {cycle:?}");
            let requests = u64::try_from(counted(requests).len()).unwrap();
            assert_eq!(*counters.requests.get(cycle), requests, "requests {cycle:?}");
        }
        let open = self.calls.iter().filter(|call| call.cost.is_none());
        assert_eq!(
            self.wallet.held,
            open.map(|call| call.hold).sum::<Result<Amount, _>>().unwrap()
        );
    }
}

/// A call of at most these numbers of tokens in and out, at one USD per million each.
pub fn call(input_tokens: u64, max_tokens: u64, created_at: Timestamp) -> Call {
    let nothing = PricedUsage::nothing();
    Call {
        request_id: RequestId::generate(created_at),
        merchant_id: MerchantId::generate(created_at),
        key: CallKey::Spend(SpendKeyId::generate(created_at), [0; 32]),
        connection_id: None,
        meter_slug: None,
        disable_billing: false,
        forwarded: ForwardedRequest {
            provider: "house".to_owned(),
            endpoint: "POST https://house.example/v1/chat/completions".to_owned(),
            metered: true,
            provider_key_type: ProviderKeyType::Managed,
            model: Some("m-1".to_owned()),
            metadata: Metadata::default(),
            socket_id: None,
            input_estimate: nothing,
        },
        shape: Some(RequestFormat::ShapeA),
        names_other_models: false,
        run: None,
        bound: CostBound {
            input_tokens,
            max_tokens,
            to_state_maximum: 0,
            answers: 1,
            tool_calls: 0,
            others: PerUnit::default(),
            prices: Some(UnitPrices {
                input: Some(1.into()),
                output: Some(1.into()),
                ..UnitPrices::default()
            }),
            unbounded: None,
        },
        report: None,
        ahead: false,
        created_at,
    }
}

/// The cost of a number of tokens.
pub fn cost(tokens: u64) -> Amount {
    Amount::from_units(i64::try_from(tokens).unwrap() * 10_000)
}

/// A spend limit at the cost of a number of tokens.
pub fn spend_limit(tokens: u64, cycle: Cycle) -> Option<SpendLimit> {
    Some(SpendLimit { amount: cost(tokens), cycle })
}
