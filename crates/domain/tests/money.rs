//! The payers of a call: admission and settlement as tables, without a database.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use tollgate_domain::admission::{
    AdmissionFacts, Call, CallKey, CostBound, MerchantAccount, Refusal, decide,
};
use tollgate_domain::settlement::{CallReport, Ending, SettlementResult, settle};
use tollgate_domain::*;
use tollgate_pricing::*;

const NOW: Timestamp = Timestamp::from_unix_micros(1_700_000_000_000_000);

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

fn wallet(balance: &str, held: &str, overdraft_limit: Option<&str>) -> Wallet {
    Wallet {
        wallet_id: WalletId::generate(NOW),
        merchant_id: MerchantId::generate(NOW),
        connection_id: None,
        balance: amount(balance),
        held: amount(held),
        credits: Credits::default(),
        overdraft_limit: overdraft_limit.map(amount),
        low_balance_threshold: None,
        created_at: NOW,
    }
}

fn account_of(wallet: &Wallet) -> MerchantAccount<'_> {
    let limited = wallet.overdraft_limit.is_some().then_some(wallet);
    MerchantAccount { wallet_id: wallet.wallet_id, guarded: limited }
}

fn connection(status: ConnectionStatus) -> Connection {
    Connection {
        connection_id: ConnectionId::generate(NOW),
        merchant_id: MerchantId::generate(NOW),
        reference_id: None,
        name: None,
        email: None,
        metadata: Metadata::default(),
        wallet_id: WalletId::generate(NOW),
        status,
        report: None,
        budget_id: None,
        created_at: NOW,
    }
}

/// A meter of 10 USD per million tokens.
fn meter(base_cost_payer: Payer) -> MerchantMeter {
    let tiers = vec![Tier { start: 0, rate: Rate::from(10) }];
    let mut model = FeeModel::from(Meter::new(RateType::Fixed, TierUnit::Tokens, tiers).unwrap());
    model.base_cost_payer = base_cost_payer;
    MerchantMeter {
        meter_id: MeterId::generate(NOW),
        merchant_id: MerchantId::generate(NOW),
        slug: "plan".to_owned(),
        name: "Plan".to_owned(),
        tier_period: TierPeriod::Lifetime,
        version: 1,
        model,
        created_at: NOW,
    }
}

/// A usage of `tokens` with the base cost `base`.
fn priced(tokens: u64, base: &str) -> PricedUsage {
    PricedUsage {
        usage: Usage::tokens(tokens, 0),
        usage_source: UsageSource::Reported,
        base: BaseCost { input: amount(base), output: Amount::ZERO },
        price_source: PriceSource::Catalog,
    }
}

fn forwarded(provider_key_type: ProviderKeyType) -> ForwardedRequest {
    ForwardedRequest {
        provider: "openai".to_owned(),
        endpoint: "POST https://api.openai.com/v1/chat/completions".to_owned(),
        metered: true,
        provider_key_type,
        model: Some("m".to_owned()),
        metadata: Metadata::default(),
        socket_id: None,
        input_estimate: PricedUsage { usage_source: UsageSource::Estimated, ..priced(100, "0.25") },
    }
}

/// A call that can use a million tokens, with a base cost of 2 USD.
fn call() -> Call {
    Call {
        request_id: RequestId::generate(NOW),
        merchant_id: MerchantId::generate(NOW),
        key: CallKey::Secret(SecretKeyId::generate(NOW)),
        connection_id: Some(ConnectionId::generate(NOW)),
        meter_slug: Some("plan".to_owned()),
        disable_billing: false,
        forwarded: forwarded(ProviderKeyType::Managed),
        shape: Some(RequestFormat::ShapeA),
        names_other_models: false,
        run: None,
        bound: CostBound {
            input_tokens: 1_000_000,
            answers: 1,
            prices: Some(UnitPrices { input: Some(2.into()), ..UnitPrices::default() }),
            ..CostBound::default()
        },
        report: None,
        ahead: false,
        created_at: NOW,
    }
}

#[test]
fn refusals_come_in_their_order() {
    let own = wallet("0", "0", None);
    let (empty, full) = (wallet("0", "0", Some("0")), wallet("1", "0", Some("0")));
    let (active, deleted) =
        (connection(ConnectionStatus::Active), connection(ConnectionStatus::Deleted));
    let plan = meter(Payer::Wallet);
    let refused = |account: Option<&Wallet>, connection, meter, wallet| {
        let account = account.map(account_of);
        decide(
            &call(),
            &AdmissionFacts {
                account,
                spend_key: None,
                connection,
                key_connection: None,
                wallet,
                meter,
                draws_on_credit: false,
                budgets: &[],
                own_budget_id: None,
                run: None,
            },
            Rate::ZERO,
        )
        .err()
    };

    assert_eq!(refused(None, None, None, None), Some(Refusal::KeyInvalid));
    assert_eq!(refused(Some(&own), None, None, None), Some(Refusal::ConnectionNotFound));
    assert_eq!(
        refused(Some(&own), Some(&deleted), None, Some(&empty)),
        Some(Refusal::MeterNotFound)
    );
    assert_eq!(
        refused(Some(&own), Some(&deleted), Some(&plan), Some(&empty)),
        Some(Refusal::ConnectionDisabled)
    );
    assert!(matches!(
        refused(Some(&own), Some(&active), Some(&plan), Some(&empty)),
        Some(Refusal::WalletInsufficient { .. })
    ));
    assert_eq!(refused(Some(&own), Some(&active), Some(&plan), Some(&full)), None);
}

#[test]
fn the_hold_is_the_upper_bound_of_what_the_wallet_would_pay() {
    let own = wallet("0", "0", None);
    let active = connection(ConnectionStatus::Active);
    let full = wallet("1", "0", Some("0"));
    let held = |call: &Call, meter: &MerchantMeter| {
        let facts = AdmissionFacts {
            account: Some(account_of(&own)),
            spend_key: None,
            key_connection: None,
            connection: Some(&active),
            wallet: Some(&full),
            meter: Some(meter),
            draws_on_credit: false,
            budgets: &[],
            own_budget_id: None,
            run: None,
        };
        let pending = decide(call, &facts, Rate::ZERO).unwrap().pending;
        (pending.wallet_hold.to_string(), pending.merchant_hold.to_string())
    };
    let nothing = "0.0000000000".to_owned();

    assert_eq!(held(&call(), &meter(Payer::Wallet)), ("12.0000000000".to_owned(), nothing.clone()));
    assert_eq!(
        held(&call(), &meter(Payer::Merchant)),
        ("10.0000000000".to_owned(), nothing.clone())
    );
    let unbilled = Call { disable_billing: true, ..call() };
    assert_eq!(held(&unbilled, &meter(Payer::Wallet)), (nothing.clone(), nothing.clone()));
    let own_key = Call { forwarded: forwarded(ProviderKeyType::Unmanaged), ..call() };
    assert_eq!(held(&own_key, &meter(Payer::Wallet)), ("10.0000000000".to_owned(), nothing));
}

#[test]
fn a_wallet_admits_while_anything_is_left_and_not_after() {
    let own = wallet("0", "0", None);
    let active = connection(ConnectionStatus::Active);
    let plan = meter(Payer::Wallet);
    for (balance, held, overdraft, admitted) in [
        ("0.0000000001", "0", Some("0"), true),
        ("0", "0", Some("0"), false),
        ("5", "5", Some("0"), false),
        ("5", "4.9999999999", Some("0"), true),
        ("-3", "0", Some("3"), false),
        ("-3", "0", Some("3.1"), true),
        ("-1000", "0", None, true),
    ] {
        let wallet = wallet(balance, held, overdraft);
        let facts = AdmissionFacts {
            account: Some(account_of(&own)),
            spend_key: None,
            key_connection: None,
            connection: Some(&active),
            wallet: Some(&wallet),
            meter: Some(&plan),
            draws_on_credit: false,
            budgets: &[],
            own_budget_id: None,
            run: None,
        };
        let case = (balance, held, overdraft);
        assert_eq!(decide(&call(), &facts, Rate::ZERO).is_ok(), admitted, "{case:?}");
    }
}

#[test]
fn what_costs_the_wallet_nothing_is_not_refused_for_its_balance() {
    let own = wallet("0", "0", None);
    let (active, empty) = (connection(ConnectionStatus::Active), wallet("0", "0", Some("0")));
    let plan = meter(Payer::Wallet);
    let facts = AdmissionFacts {
        account: Some(account_of(&own)),
        spend_key: None,
        key_connection: None,
        connection: Some(&active),
        wallet: Some(&empty),
        meter: Some(&plan),
        draws_on_credit: false,
        budgets: &[],
        own_budget_id: None,
        run: None,
    };
    let free = Call { bound: CostBound::default(), ..call() };
    assert!(decide(&free, &facts, Rate::ZERO).is_ok());
}

#[test]
fn a_report_is_requested_by_the_call_its_key_or_its_customer() {
    let (own, cost) = (wallet("0", "0", None), Some(AnswerReport::Cost));
    let requested = |of_call, of_customer, of_key_customer| {
        let customer = |report| Connection { report, ..connection(ConnectionStatus::Active) };
        let (connection, key_connection) = (customer(of_customer), customer(of_key_customer));
        let facts = AdmissionFacts {
            account: Some(account_of(&own)),
            spend_key: None,
            connection: Some(&connection),
            key_connection: Some(&key_connection),
            wallet: None,
            meter: Some(&meter(Payer::Wallet)),
            draws_on_credit: false,
            budgets: &[],
            own_budget_id: None,
            run: None,
        };
        let call = Call { report: of_call, ..call() };
        decide(&call, &facts, Rate::ZERO).unwrap().pending.report
    };
    assert_eq!(requested(None, None, None), None);
    for [of_call, of_customer, of_key_customer] in
        [[cost, None, None], [None, cost, None], [None, None, cost]]
    {
        assert_eq!(requested(of_call, of_customer, of_key_customer), cost);
    }
}

#[test]
fn a_merchants_account_is_guarded_once_it_has_a_limit() {
    let bare = Call { connection_id: None, meter_slug: None, ..call() };
    for (limit, admitted) in [(None, true), (Some("0"), false), (Some("1"), true)] {
        let own = wallet("0", "0", limit);
        let facts = AdmissionFacts {
            account: Some(account_of(&own)),
            spend_key: None,
            key_connection: None,
            connection: None,
            wallet: None,
            meter: None,
            draws_on_credit: false,
            budgets: &[],
            own_budget_id: None,
            run: None,
        };
        let decision = decide(&bare, &facts, Rate::ZERO);
        assert_eq!(decision.is_ok(), admitted, "{limit:?}");
        let held = decision.map(|admission| admission.pending.merchant_hold);
        assert_eq!(
            held.ok(),
            admitted.then(|| if limit.is_some() { amount("2") } else { Amount::ZERO })
        );
    }
}

fn pending(wallet_id: Option<WalletId>) -> PendingRecord {
    PendingRecord {
        request_id: RequestId::generate(NOW),
        merchant_id: MerchantId::generate(NOW),
        reference_id: None,
        connection_id: Some(ConnectionId::generate(NOW)),
        spend_key_id: None,
        wallet_id,
        merchant_wallet_id: WalletId::generate(NOW),
        meter: None,
        disable_billing: false,
        forwarded: forwarded(ProviderKeyType::Managed),
        spend_hold: Amount::ZERO,
        wallet_hold: Amount::ZERO,
        credit_hold: None,
        merchant_hold: Amount::ZERO,
        enforcement: None,
        budgets: CallBudgets::default(),
        run_id: None,
        report: None,
        ahead: false,
        created_at: NOW,
    }
}

fn settled(
    pending: &PendingRecord,
    ending: Ending,
    priced: PricedUsage,
    base_payer: Payer,
) -> SettlementResult {
    let report = match ending {
        Ending::Unanswered | Ending::Lost => CallReport::unknown(pending, ending, NOW),
        Ending::NotSent => CallReport::not_sent(NOW),
        _ => CallReport { ending, priced, ..CallReport::not_sent(NOW) },
    };
    settle(pending, &report, Some(&meter(base_payer).model), 0, Rate::ZERO)
}

/// The table of outcomes: a call of 100,000 tokens with a base cost of 2 USD, under a meter of 10
/// USD per million. Its input alone was estimated at 0.25 USD.
#[test]
fn every_ending_charges_as_the_table_says() {
    use RequestStatus::{Completed, Error};
    use UsageSource::{Estimated, Reported};
    let used = priced(100_000, "2");
    let nothing = PricedUsage::nothing();
    for (ending, priced, status, source, by_wallet, by_merchant, counted) in [
        (Ending::Answered, used, Completed, Reported, "3", "0", 100_000),
        (Ending::Abandoned, used, Completed, Reported, "3", "0", 100_000),
        (Ending::Broken, used, Error, Reported, "3", "0", 100_000),
        (Ending::Rejected, nothing, Error, UsageSource::None, "0", "0", 0),
        // The provider bills an error that reports usage. The meter charges nothing.
        (Ending::Rejected, used, Error, Reported, "2", "0", 0),
        (Ending::NotSent, nothing, Error, UsageSource::None, "0", "0", 0),
        (Ending::Unanswered, nothing, Error, Estimated, "0", "0.25", 0),
        (Ending::Lost, nothing, Error, Estimated, "0", "0.25", 0),
    ] {
        let wallet_id = WalletId::generate(NOW);
        let settled = settled(&pending(Some(wallet_id)), ending, priced, Payer::Wallet);
        let record = settled.record;
        assert_eq!((record.status, record.priced.usage_source), (status, source), "{ending:?}");
        assert_eq!(record.quote.total_wallet_cost, amount(by_wallet), "{ending:?}");
        assert_eq!(record.quote.total_merchant_cost, amount(by_merchant), "{ending:?}");
        assert_eq!(settled.counter_delta, counted, "{ending:?}");
    }
}

#[test]
fn the_merchant_pays_what_the_meter_or_the_lack_of_a_wallet_says() {
    let used = priced(100_000, "2");
    let with_wallet = pending(Some(WalletId::generate(NOW)));
    let unbilled = PendingRecord { disable_billing: true, ..with_wallet.clone() };
    let own_key =
        PendingRecord { forwarded: forwarded(ProviderKeyType::Unmanaged), ..with_wallet.clone() };
    for (pending, base_payer, by_wallet, by_merchant, payer, counted) in [
        (&with_wallet, Payer::Wallet, "3", "0", Payer::Wallet, 100_000),
        (&with_wallet, Payer::Merchant, "1", "2", Payer::Merchant, 100_000),
        (&pending(None), Payer::Wallet, "0", "3", Payer::Merchant, 100_000),
        (&unbilled, Payer::Wallet, "0", "3", Payer::Merchant, 0),
        // With the caller's own key the base cost is shown, and owed to the provider.
        (&own_key, Payer::Wallet, "1", "0", Payer::Wallet, 100_000),
    ] {
        let settled = settled(pending, Ending::Answered, used, base_payer);
        let quote = settled.record.quote;
        assert_eq!(quote.base.total(), Ok(amount("2")));
        assert_eq!(quote.total_wallet_cost, amount(by_wallet), "{pending:?}");
        assert_eq!(quote.total_merchant_cost, amount(by_merchant), "{pending:?}");
        assert_eq!(quote.base_payer, payer, "{pending:?}");
        assert_eq!(settled.counter_delta, counted, "{pending:?}");
    }
}

#[test]
fn a_cost_beyond_all_amounts_leaves_the_call_unpriced_instead_of_failing() {
    let used = priced(u64::MAX, "900000000");
    let settled =
        settled(&pending(Some(WalletId::generate(NOW))), Ending::Answered, used, Payer::Wallet);
    assert!(settled.overflowed);
    assert_eq!(settled.record.priced.price_source, PriceSource::Unpriced);
    assert_eq!(settled.record.quote.total_request_cost, Amount::ZERO);
}
