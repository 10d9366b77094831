//! Tests of sums by day and of filtered lists on both databases, compared with the records.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use diesel::connection::SimpleConnection;
use diesel::{Connection as _, RunQueryDsl as _, SqliteConnection};
use tollgate_domain::admission::Call;
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::*;
use tollgate_store::requests::{self, ListFilter, RequestFilter};
use tollgate_store::usage::{self, Dimension, GroupedSums, RollupSums};
use tollgate_store::{
    Conn, DatabaseUrl, MigrationError, OpenError, Options, Page, RecordArchive, SettleOutcome,
    Store, StoreError, rollups,
};
use tollgate_testkit::store::{START, TestStore, answered, each_store};

/// Pseudo-random numbers that are the same in every run.
struct UsageRandom(u64);

impl UsageRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }

    fn one_or_none<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        (self.below(3) > 0).then(|| *self.one_of(all))
    }

    /// Up to three pairs of metadata. The key `user` has many values.
    fn metadata(&mut self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for (key, values) in [("env", 2), ("feature", 3), ("user", 60)] {
            if self.below(4) > 0 {
                pairs.push((key.to_owned(), format!("{key}-{}", self.below(values))));
            }
        }
        pairs
    }

    /// A quarter hour of the days around the start of the clock.
    fn quarter(&mut self) -> i64 {
        START.unix_micros() + (self.below(6 * 96) as i64 - 3 * 96) * 900_000_000
    }
}

struct UsageShop {
    merchant_id: MerchantId,
    key: SecretKeyId,
    connections: Vec<ConnectionId>,
    meters: Vec<(MeterId, String)>,
    spend_keys: Vec<SpendKeyId>,
    budgets: Vec<BudgetId>,
    /// Calls of the spend keys.
    key_calls: Vec<Call>,
}

async fn shop(store: &TestStore) -> UsageShop {
    let new = store.merchant().await;
    let merchant_id = new.merchant.merchant_id;
    let mut shop = UsageShop {
        merchant_id,
        key: store.secret_key_id(&new).await,
        connections: Vec::new(),
        meters: Vec::new(),
        spend_keys: Vec::new(),
        budgets: Vec::new(),
        key_calls: Vec::new(),
    };
    // A tree that a spend key and a customer name, and a budget that takes calls by their metadata.
    let rules = |enforcement, usd: &str| BudgetRules {
        enforcement,
        spend_limit: Some(SpendLimit { amount: usd.parse().unwrap(), cycle: Cycle::Total }),
        ..BudgetRules::default()
    };
    let root = store.budget(merchant_id, None, rules(BudgetEnforcement::Observe, "0.5")).await;
    let root = root.budget_id;
    let named = rules(BudgetEnforcement::Bounded, "1000000");
    let team = store.budget(merchant_id, Some(root), named.clone()).await.budget_id;
    let pairs = Some(Metadata::parse(r#"{"env": "env-0"}"#).unwrap());
    let matching = store.budget(merchant_id, None, BudgetRules { pairs, ..named }).await;
    shop.budgets = vec![root, team, matching.budget_id];
    for number in 0..3 {
        let connection = store.connection(merchant_id, "1000000").await;
        shop.connections.push(connection.connection_id);
        // One key draws on the merchant's own wallet.
        let wallet_id = (number > 0).then_some(connection.wallet_id);
        let (spend_key, key) = store.spend_key(merchant_id, wallet_id, SpendRules::default()).await;
        shop.spend_keys.push(spend_key.spend_key_id);
        match number {
            0 => store.move_key(&spend_key, Some(team)).await,
            1 => store.move_customer(&connection, Some(root)).await,
            _ => {}
        }
        shop.key_calls.push(store.call_with(&spend_key, &key));
    }
    for (slug, rate) in [("plan", "10"), ("other", "3")] {
        let meter = meter(store, merchant_id, slug, rate).await;
        shop.meters.push((meter, slug.to_owned()));
    }
    shop
}

async fn meter(store: &TestStore, merchant_id: MerchantId, slug: &str, rate: &str) -> MeterId {
    use tollgate_pricing::{Meter, RateType, Tier, TierUnit};
    let tiers = vec![Tier { start: 0, rate: rate.parse().unwrap() }];
    let new = NewMeter {
        name: slug.to_owned(),
        slug: Some(slug.to_owned()),
        tier_period: TierPeriod::Lifetime,
        model: Meter::new(RateType::Fixed, TierUnit::Tokens, tiers).unwrap().into(),
    };
    let now = store.clock.now();
    let made =
        store.store.write(move |conn| tollgate_store::meters::create(conn, merchant_id, &new, now));
    made.await.unwrap().unwrap().meter_id
}

impl UsageShop {
    fn call(&self, store: &TestStore, dice: &mut UsageRandom) -> Call {
        let pairs: BTreeMap<_, _> = dice.metadata().into_iter().collect();
        let has_key = dice.below(3) == 0;
        let connection_id = dice.one_or_none(&self.connections);
        let is_counted = has_key
            || connection_id == self.connections.get(1).copied()
            || pairs.get("env").is_some_and(|env| env == "env-0");
        // A call is not recorded before the last one of its spend key and of its budgets, and at most a day after its
        // id.
        let quarter = match is_counted {
            true => START.unix_micros() + dice.below(60) as i64 * 900_000_000,
            false => dice.quarter(),
        };
        let at = Timestamp::from_unix_micros(quarter + dice.below(900_000_000) as i64);
        // After a clock was set back, ids are ahead of it. With clocks that differ, they may be behind.
        let ahead = dice.one_or_none(&[-20_000_000, -1, 1, 20_000_000]).unwrap_or_default();
        let request_id = RequestId::least(at.plus_millis(ahead));
        let mut call = match has_key {
            true => Call { request_id, created_at: at, ..dice.one_of(&self.key_calls).clone() },
            false => Call {
                request_id,
                connection_id,
                meter_slug: (dice.below(3) > 0).then(|| dice.one_of(&self.meters).1.clone()),
                created_at: at,
                ..store.call(self.merchant_id, self.key)
            },
        };
        call.forwarded.metadata =
            Metadata::from_json(&serde_json::to_value(pairs).unwrap()).unwrap();
        let long = "m".repeat(5_000);
        let models = [None, Some("a"), Some("b/c"), Some("b\u{1}"), Some(long.as_str())];
        call.forwarded.provider = (*dice.one_of(&["house", "mansion"])).to_owned();
        call.forwarded.model = dice.one_of(&models).map(str::to_owned);
        call
    }

    async fn records(
        &self,
        store: &Store,
        filter: RequestFilter,
        limit: u32,
    ) -> Vec<RequestRecord> {
        self.records_that(store, filter.into(), limit).await
    }

    async fn records_that(
        &self,
        store: &Store,
        filter: ListFilter,
        limit: u32,
    ) -> Vec<RequestRecord> {
        let merchant_id = self.merchant_id;
        let (mut all, mut after): (Vec<RequestRecord>, _) = (Vec::new(), None);
        loop {
            let page = Page { after, limit };
            let filter = filter.clone();
            let read = move |conn: &mut Conn| {
                requests::list(conn, &RecordArchive::default(), merchant_id, &filter, &page)
            };
            let found = store.read(read).await.unwrap();
            assert!(found.records.len() <= limit as usize);
            all.extend(found.records);
            after = found.next;
            if after.is_none() {
                return all;
            }
        }
    }
}

/// Makes a call that does not reach the provider.
async fn fail(store: &TestStore, call: Call) {
    let request_id = call.request_id;
    let pending = store.store.admit(Box::new(call)).await.unwrap().unwrap();
    let report = CallReport::unknown(&pending, Ending::NotSent, store.clock.now());
    store.store.settle(request_id, report).await;
}

fn passes(filter: &RequestFilter, record: &RequestRecord) -> bool {
    let pairs: Vec<_> = record.metadata.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    let model = record.model.as_ref().filter(|model| model.len() < 10 && !model.contains('\u{1}'));
    filter.connection_id.is_none_or(|id| record.connection_id == Some(id))
        && filter.spend_key_id.is_none_or(|id| record.spend_key_id == Some(id))
        && filter.provider.as_ref().is_none_or(|name| record.provider == *name)
        && filter.model.as_ref().is_none_or(|name| model == Some(name))
        && filter.budget_id.is_none_or(|id| record.budgets.ids.contains(&id))
        && filter.meter_id.is_none_or(|id| record.meter_id == Some(id))
        && filter.metadata.iter().all(|pair| pairs.contains(pair))
}

/// The member of a record in a dimension.
fn member(dimension: &Dimension, record: &RequestRecord) -> Option<String> {
    match dimension {
        Dimension::Connection => record.connection_id.map(|id| id.to_string()),
        Dimension::SpendKey => record.spend_key_id.map(|id| id.to_string()),
        Dimension::Budget => record.budgets.own.map(|id| id.to_string()),
        Dimension::Meter => record.meter_id.map(|id| id.to_string()),
        Dimension::Provider => Some(record.provider.clone()),
        Dimension::Model => {
            record.model.clone().filter(|name| name.len() < 10 && !name.contains('\u{1}'))
        }
        Dimension::Status => Some(
            if record.status == RequestStatus::Error { "error" } else { "completed" }.to_owned(),
        ),
        Dimension::Metadata(key) => record.metadata.get(key).cloned(),
    }
}

/// The sums of the records for each group and period.
fn added_up(
    records: &[RequestRecord],
    filter: &RequestFilter,
    group_by: &[Dimension],
    span: &TimeSpan,
) -> GroupedSums {
    let periods = span.periods();
    let mut all = GroupedSums::new();
    for record in records {
        let period = periods.iter().position(|period| {
            period.start.instant() <= record.created_at && record.created_at < period.end.instant()
        });
        let Some(period) = period else { continue };
        if record.status != RequestStatus::Pending && passes(filter, record) {
            let sums = RollupSums::of(record);
            assert_eq!(record.quote.total_request_cost.units() as i128, sums.request_cost());
            let members = group_by.iter().map(|dimension| member(dimension, record)).collect();
            *all.entry(members).or_default().entry(period).or_default() += sums;
        }
    }
    all
}

struct UsageQuestion {
    filter: RequestFilter,
    group_by: Vec<Dimension>,
    span: TimeSpan,
}

/// A random query of a merchant.
fn question(shop: &UsageShop, dice: &mut UsageRandom) -> UsageQuestion {
    let mut metadata = if dice.below(3) > 0 { dice.metadata() } else { Vec::new() };
    if dice.below(8) == 0 {
        metadata.push(("env".to_owned(), "env-0".to_owned()));
    }
    let meters: Vec<_> = shop.meters.iter().map(|(id, _)| *id).collect();
    let rarely = |dice: &mut UsageRandom| dice.below(4) == 0;
    let filter = RequestFilter {
        connection_id: (dice.below(2) > 0).then(|| *dice.one_of(&shop.connections)),
        spend_key_id: rarely(dice).then(|| *dice.one_of(&shop.spend_keys)),
        budget_id: rarely(dice).then(|| *dice.one_of(&shop.budgets)),
        meter_id: (dice.below(2) > 0).then(|| *dice.one_of(&meters)),
        provider: rarely(dice).then(|| (*dice.one_of(&["house", "mansion"])).to_owned()),
        model: rarely(dice).then(|| (*dice.one_of(&["a", "b/c", "m-2026", "none"])).to_owned()),
        metadata,
    };
    let metadata = |key: &str| Dimension::Metadata(key.to_owned());
    let dimensions = [
        metadata("env"),
        metadata("user"),
        metadata("nothing"),
        Dimension::Connection,
        Dimension::SpendKey,
        Dimension::Budget,
        Dimension::Meter,
        Dimension::Provider,
        Dimension::Model,
        Dimension::Status,
    ];
    // Some questions are about nothing but metadata.
    let of_metadata = rarely(dice);
    let filter = match of_metadata {
        true => RequestFilter { metadata: filter.metadata, ..RequestFilter::default() },
        false => filter,
    };
    let dimensions = if of_metadata { &dimensions[..3] } else { &dimensions[..] };
    let group_by = (0..dice.below(3)).map(|_| dice.one_of(dimensions).clone()).collect();
    let (a, b) = (dice.quarter(), dice.quarter());
    let offset = *dice.one_of(&["Z", "+05:45", "-03:30", "+01:00", "+14:00", "-12:00", "+00:15"]);
    let at = |micros: i64| {
        let text = Timestamp::from_unix_micros(micros).to_string();
        // The same local time in another zone is another instant, also at a quarter hour.
        text.replace('Z', offset).parse::<LocalTime>().unwrap()
    };
    let (start, end) = (at(a.min(b)), at(a.max(b) + 900_000_000));
    let zone = match dice.below(3) {
        0 => TimeZone::named("America/St_Johns").unwrap(),
        _ => start.zone(),
    };
    let intervals =
        [Interval::Hour, Interval::Day, Interval::Week, Interval::Month, Interval::None];
    let interval = *dice.one_of(&intervals);
    let span = TimeSpan::new(start.instant(), end.instant(), zone, interval).unwrap();
    UsageQuestion { filter, group_by, span }
}

/// The days of UTC from `start` to `end`, in milliseconds after the start of the clock.
fn days(start: i64, end: i64) -> TimeSpan {
    let [start, end] = [start, end].map(|millis| START.plus_millis(millis));
    TimeSpan::new(start, end, TimeZone::UTC, Interval::Day).unwrap()
}

async fn by_day(
    store: &Store,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    span: &TimeSpan,
) -> Vec<RollupSums> {
    let mut sums = sums(store, merchant_id, filter, &[], span).await;
    in_periods(&sums.remove(&Vec::new()).unwrap_or_default(), span)
}

/// The sums of each period, also of those without calls.
fn in_periods(sums: &BTreeMap<usize, RollupSums>, span: &TimeSpan) -> Vec<RollupSums> {
    let periods = 0..span.periods().len();
    periods.map(|period| sums.get(&period).copied().unwrap_or_default()).collect()
}

async fn sums(
    store: &Store,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    group_by: &[Dimension],
    span: &TimeSpan,
) -> GroupedSums {
    let (filter, group_by, span) = (filter.clone(), group_by.to_vec(), span.clone());
    let read = move |conn: &mut Conn| {
        let sums =
            usage::sums(conn, &RecordArchive::default(), merchant_id, &filter, &group_by, &span)?
                .unwrap();
        let some: Vec<_> = sums.keys().step_by(2).cloned().collect();
        let of_some = (&*group_by, &*some);
        let among = usage::sums_among(
            conn,
            &RecordArchive::default(),
            merchant_id,
            &filter,
            of_some,
            &span,
        )?
        .unwrap();
        let mut expected = sums.clone();
        expected.retain(|members, _| some.contains(members));
        assert_eq!(among, expected, "sums among {some:?} by {group_by:?}");
        let margins = usage::margins(
            conn,
            &RecordArchive::default(),
            merchant_id,
            &filter,
            &group_by,
            &span,
        )?;
        Ok::<_, StoreError>((sums, margins.unwrap()))
    };
    let (sums, margins) = store.read_snapshot(read).await.unwrap();
    let mut expected = sums.clone();
    for sums in expected.values_mut() {
        for sums in sums.values_mut() {
            let RollupSums { revenue, provider_cost, service_charge, .. } = *sums;
            let none = RollupSums::default();
            *sums = RollupSums { revenue, provider_cost, service_charge, ..none };
        }
        sums.retain(|_, sums| *sums != RollupSums::default());
    }
    expected.retain(|_, sums| !sums.is_empty());
    assert_eq!(margins, expected, "the margins are those of the sums");
    sums
}

async fn assert_adds_up(store: &Store, shop: &UsageShop, dice: &mut UsageRandom) {
    let records = shop.records(store, RequestFilter::default(), 100).await;
    for _ in 0..80 {
        let UsageQuestion { filter, group_by, span } = question(shop, dice);
        let found = sums(store, shop.merchant_id, &filter, &group_by, &span).await;
        let expected = added_up(&records, &filter, &group_by, &span);
        assert_eq!(found, expected, "{filter:?} {group_by:?} {span:?}");
    }
}

#[test]
fn usage_is_what_the_records_come_to_whatever_is_asked_and_corrected() {
    each_store(async |store| {
        let mut dice = UsageRandom(20_261_121);
        let shops = [shop(store).await, shop(store).await];
        let mut ends = Vec::new();
        let mut lost = Vec::new();
        for number in 0..400 {
            let call = dice.one_of(&shops).call(store, &mut dice);
            let (request_id, tokens) = (call.request_id, dice.below(5_000));
            let base = format!("0.{:010}", dice.below(900_000_000));
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
            let mut report = answered(tokens, &base);
            report.model = report.model.filter(|_| number % 3 > 0);
            if number % 10 == 0 {
                lost.push((request_id, report));
                continue;
            }
            let store = store.store.clone();
            ends.push(tokio::spawn(async move { store.settle(request_id, report).await }));
        }
        for end in ends {
            end.await.unwrap();
        }
        assert_adds_up(&store.store, &shops[0], &mut dice).await;

        store.store.close().await.unwrap();
        let next = store.open_again();
        store.expire_other_leases(&next).await;
        assert!(next.sweep().await.unwrap() > 0);
        store.assert_audited().await;
        assert_adds_up(&next, &shops[0], &mut dice).await;
        for (request_id, report) in lost.into_iter().step_by(2) {
            next.settle(request_id, report).await;
        }
        for shop in &shops {
            assert_adds_up(&next, shop, &mut dice).await;
        }
        next.close().await.unwrap();
    });
}

/// Whether the call is folded as the sweeper ended it, or corrected before the fold.
#[test]
fn a_swept_call_that_has_failed_after_all_stays_a_failure_and_one_that_has_not_does_not() {
    each_store(async |store| {
        let shop = shop(store).await;
        let mut failed = Vec::new();
        let mut node = store.store.clone();
        for is_folded_between in [true, false] {
            let [broken, answered_late] = [0, 1].map(|_| store.call(shop.merchant_id, shop.key));
            let ids = [broken.request_id, answered_late.request_id];
            for call in [broken, answered_late] {
                node.admit(Box::new(call)).await.unwrap().unwrap();
            }
            node.close().await.unwrap();
            node = store.open_again();
            store.expire_other_leases(&node).await;
            assert_eq!(node.sweep().await.unwrap(), 2);
            if is_folded_between {
                assert_eq!(node.fold().await.unwrap(), 2);
            }
            let report = CallReport { ending: Ending::Broken, ..answered(1, "0.01") };
            node.settle(ids[0], report).await;
            node.settle(ids[1], answered(1, "0.01")).await;
            failed.insert(0, ids[0]);
            let list = async || {
                let (merchant_id, newest) = (shop.merchant_id, Page { after: None, limit: 2 });
                let filter =
                    ListFilter { status: Some(RequestStatus::Error), ..ListFilter::default() };
                let list = node.read(move |conn| {
                    requests::list(conn, &RecordArchive::default(), merchant_id, &filter, &newest)
                });
                let list = list.await.unwrap().records;
                list.into_iter().map(|record| record.request_id).collect::<Vec<_>>()
            };
            assert_eq!(list().await, failed);
            assert!(node.fold().await.unwrap() >= 4);
            assert_eq!(list().await, failed);
            assert_eq!(node.audit().await.unwrap().differences, []);
        }
        node.close().await.unwrap();
    });
}

#[test]
fn a_filtered_list_has_just_the_records_that_pass_newest_first() {
    each_store(async |store| {
        let mut dice = UsageRandom(7);
        let shops = [shop(store).await, shop(store).await];
        for _ in 0..250 {
            let call = dice.one_of(&shops).call(store, &mut dice);
            store.clock.advance_millis(1);
            match dice.below(5) {
                0 => fail(store, call).await,
                _ => drop(store.forward(call, 10, "0.01").await.unwrap()),
            }
        }
        let shop = &shops[0];
        let all = shop.records(&store.store, RequestFilter::default(), 100).await;
        assert!(all.iter().any(|record| record.status == RequestStatus::Error));
        assert!(all.iter().any(|record| record.budgets.would_refuse));
        assert!(all.is_sorted_by(|one, next| one.request_id > next.request_id));
        for _ in 0..100 {
            let UsageQuestion { filter, span, .. } = question(shop, &mut dice);
            let limit = 1 + dice.below(20) as u32;
            let statuses = [RequestStatus::Completed, RequestStatus::Error];
            let is_timed = dice.below(2) > 0;
            let filter = ListFilter {
                calls: filter,
                status: dice.one_or_none(&statuses),
                provider_status: (dice.below(4) == 0).then_some(200),
                run_id: None,
                socket_id: None,
                would_refuse: dice.below(6) == 0,
                min_cost: (dice.below(4) == 0).then(|| "0.0100000001".parse().unwrap()),
                start: is_timed.then(|| span.start().instant()),
                end: is_timed.then(|| span.end().instant()),
            };
            let found = shop.records_that(&store.store, filter.clone(), limit).await;
            let expected = all.iter().filter(|record| {
                passes(&filter.calls, record)
                    && filter.status.is_none_or(|status| record.status == status)
                    && (filter.provider_status.is_none() || record.provider_status == Some(200))
                    && (!filter.would_refuse || record.budgets.would_refuse)
                    && filter.min_cost.is_none_or(|it| record.quote.total_request_cost >= it)
                    && filter.start.is_none_or(|start| start <= record.created_at)
                    && filter.end.is_none_or(|end| record.created_at < end)
            });
            assert!(found.iter().eq(expected), "{filter:?}");
        }
    });
}

#[test]
fn nobody_sees_what_a_connection_of_others_used() {
    each_store(async |store| {
        let (mine, others) = (shop(store).await, shop(store).await);
        let call = Call {
            connection_id: Some(others.connections[0]),
            ..store.call(others.merchant_id, others.key)
        };
        store.forward(call, 10, "0.5").await.unwrap();
        let filter = RequestFilter {
            connection_id: Some(others.connections[0]),
            ..RequestFilter::default()
        };
        let span = days(0, 3_600_000);
        let found = by_day(&store.store, mine.merchant_id, &filter, &span).await;
        assert_eq!(found, [RollupSums::default()]);
        let found = by_day(&store.store, others.merchant_id, &filter, &span).await;
        assert_eq!(found[0].requests, 1);
    });
}

#[test]
fn a_sum_is_exact_over_rows_and_stays_at_the_end_of_its_range_in_one() {
    each_store(async |store| {
        let (shop, other) = (shop(store).await, shop(store).await);
        let mut open = Vec::new();
        for _ in 0..3 {
            let call = Call { disable_billing: true, ..store.call(shop.merchant_id, shop.key) };
            open.push(call.request_id);
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
            store.clock.advance_millis(900_000);
        }
        for request_id in open {
            let mut report = answered(u64::MAX / 4, "600000000");
            report.priced.base.output = "1.0000000001".parse().unwrap();
            store.store.settle(request_id, report).await;
        }
        let (span, all) = (days(0, 3_600_000), RequestFilter::default());
        let found = by_day(&store.store, shop.merchant_id, &all, &span).await;
        let records = shop.records(&store.store, RequestFilter::default(), 100).await;
        assert_eq!(found, in_periods(&added_up(&records, &all, &[], &span)[&Vec::new()], &span));
        assert!(found[0].usage_cost > i128::from(i64::MAX), "{found:?}");

        // The sums of three quarter hours, and those by metadata.
        store.store.fold().await.unwrap();
        let span = days(0, 2_700_000);
        let keys = ["env", "user"].map(|key| Dimension::Metadata(key.to_owned()));
        let by_metadata = sums(&store.store, shop.merchant_id, &all, &keys, &span).await;
        assert_eq!(in_periods(&by_metadata[&vec![None, None]], &span), found);

        // Two calls whose sum is out of the range of one row.
        let mut open = Vec::new();
        for _ in 0..2 {
            let call = Call { disable_billing: true, ..store.call(other.merchant_id, other.key) };
            open.push(call.request_id);
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
        }
        for request_id in open {
            store.store.settle(request_id, answered(u64::MAX, "600000000")).await;
            store.store.fold().await.unwrap();
        }
        let span = days(2_700_000, 3_600_000);
        let found = by_day(&store.store, other.merchant_id, &all, &span).await;
        let (requests, most) = (found[0].requests, i128::from(i64::MAX));
        assert_eq!((requests, found[0].input_tokens, found[0].usage_cost), (2, most, most));
    });
}

#[test]
fn an_audit_names_what_a_rollup_lost() {
    each_store(async |store| {
        let shop = shop(store).await;
        let mut call = store.call(shop.merchant_id, shop.key);
        call.forwarded.metadata = Metadata::parse(r#"{"env":"prod"}"#).unwrap();
        store.forward(call, 10, "0.5").await.unwrap();
        store.store.fold().await.unwrap();
        execute(&store.store, "UPDATE usage_rollups SET output_tokens = output_tokens + 1").await;
        let audit = store.store.audit().await.unwrap();
        let names: Vec<_> = audit.differences.iter().map(|one| one.what.as_str()).collect();
        let merchant_id = shop.merchant_id;
        let series = [
            ":all",
            ":customers",
            "house, m-2026, :models",
            "house, m-2026, :calls",
            "house, m-2026, env = prod",
            ":pair.env = prod",
        ];
        let series = series.map(|series| format!("{merchant_id}, {series}"));
        let expected: Vec<_> = series
            .iter()
            .flat_map(|series| {
                let has_hours = series.ends_with(":all") || series.ends_with(":models");
                let widths = if has_hours { vec![96, 4, 1] } else { vec![96, 1] };
                widths.into_iter().map(move |width| {
                    format!("usage of {series} in rows of {width}: output tokens")
                })
            })
            .collect();
        assert!(expected.iter().all(|name| names.contains(&name.as_str())), "{names:?}");
        assert_eq!(names.len(), expected.len(), "{names:?}");
        execute(&store.store, "UPDATE usage_rollups SET output_tokens = output_tokens - 1").await;
    });
}

#[test]
fn an_audit_names_an_entry_that_the_index_lost_and_a_rebuild_restores_it() {
    each_store(async |store| {
        let shop = shop(store).await;
        let mut call = store.call(shop.merchant_id, shop.key);
        call.forwarded.metadata = Metadata::parse(r#"{"env":"prod","team":"a"}"#).unwrap();
        store.forward(call, 10, "0.5").await.unwrap();
        store.store.fold().await.unwrap();
        execute(&store.store, "DELETE FROM request_index WHERE key = 'team'").await;
        let audit = store.store.audit().await.unwrap();
        let names: Vec<_> = audit.differences.iter().map(|one| one.what.as_str()).collect();
        assert_eq!(names, [format!("index of {} by team = a", shop.merchant_id)]);
        let now = store.clock.now();
        store.store.write(move |conn| rollups::rebuild(conn, now)).await.unwrap();
        store.assert_audited().await;
    });
}

async fn execute(store: &Store, sql: &'static str) {
    store
        .write(move |conn| match conn {
            Conn::Sqlite(conn) => conn.batch_execute(sql).map_err(StoreError::from),
            Conn::Postgres(conn) => conn.batch_execute(sql).map_err(StoreError::from),
        })
        .await
        .unwrap();
}

#[test]
fn sums_are_right_before_calls_are_folded_afterwards_and_when_they_are_rebuilt() {
    each_store(async |store| {
        let mut dice = UsageRandom(5);
        let shop = shop(store).await;
        for _ in 0..3 {
            for _ in 0..120 {
                let (call, tokens) = (shop.call(store, &mut dice), dice.below(5_000));
                let request_id = call.request_id;
                store.store.admit(Box::new(call)).await.unwrap().unwrap();
                let mut report = answered(tokens, "0.0123456789");
                report.model = report.model.filter(|_| tokens % 2 == 0);
                report.ending = *dice.one_of(&[Ending::Answered, Ending::Broken]);
                store.store.settle(request_id, report).await;
            }
            store.store.admit(Box::new(shop.call(store, &mut dice))).await.unwrap().unwrap();
            assert_adds_up(&store.store, &shop, &mut dice).await;
            assert_eq!(store.store.fold().await.unwrap(), 120);
            assert_eq!(store.store.fold().await.unwrap(), 0);
            assert_adds_up(&store.store, &shop, &mut dice).await;
        }
        let now = store.clock.now();
        store.store.write(move |conn| rollups::rebuild(conn, now)).await.unwrap();
        assert_adds_up(&store.store, &shop, &mut dice).await;
    });
}

#[test]
fn series_that_a_migration_left_out_are_added_up_at_the_next_start() {
    each_store(async |store| {
        let mut dice = UsageRandom(6);
        let shop = shop(store).await;
        for number in 0..300 {
            let call = shop.call(store, &mut dice);
            let request_id = call.request_id;
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
            // The last ones stay in the queue.
            if number == 250 {
                store.store.fold().await.unwrap();
            }
            store.store.settle(request_id, answered(dice.below(5_000), "0.01")).await;
        }
        execute(
            &store.store,
            "DELETE FROM usage_rollups WHERE series_id IN (SELECT series_id FROM usage_series \
             WHERE key IN (':customers', ':models') OR key LIKE ':pair.%'); \
             DELETE FROM usage_series WHERE key IN (':customers', ':models') OR key LIKE ':pair.%'; \
             INSERT INTO usage_series (merchant_id, key, value, series_id) \
             SELECT DISTINCT merchant_id, ':incomplete', '', merchant_id FROM usage_series WHERE key = ':all'",
        )
        .await;
        assert!(!store.store.audit().await.unwrap().differences.is_empty());
        let options = Options { clock: store.clock.clone(), migrate: false, ..Options::default() };
        // A SQLite file is not migrated while a process serves from it.
        let folder = tempfile::tempdir().unwrap();
        let url = match &store.url {
            DatabaseUrl::Sqlite(file) => {
                let copy = folder.path().join("copy.db");
                let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
                conn.batch_execute(&format!("VACUUM INTO '{}'", copy.display())).unwrap();
                DatabaseUrl::Sqlite(copy)
            }
            other => other.clone(),
        };
        let pending = Store::open(&url, &options).map(drop);
        assert!(matches!(pending, Err(OpenError::Migration(MigrationError::Pending(1)))));
        let opened = Store::open(&url, &Options { migrate: true, ..options }).unwrap();
        assert_adds_up(&opened, &shop, &mut dice).await;
        assert_eq!(opened.audit().await.unwrap().differences, []);
        let now = store.clock.now();
        store.store.write(move |conn| rollups::rebuild(conn, now)).await.unwrap();
    });
}

#[test]
fn a_sum_by_two_pairs_and_a_provider_is_right_over_several_pages_of_records() {
    const CALLS: u64 = 2_300;
    each_store(async |store| {
        let shop = shop(store).await;
        let call = async |number: u64| {
            let mut call = store.call(shop.merchant_id, shop.key);
            let pairs = format!(r#"{{"env":"prod","team":"team-{}"}}"#, number % 2);
            call.forwarded.metadata = Metadata::parse(&pairs).unwrap();
            let request_id = call.request_id;
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
            let settle = async || store.store.settle(request_id, answered(number, "0.01")).await;
            while matches!(settle().await, SettleOutcome::NotSettled) {}
        };
        futures_util::future::join_all((0..CALLS).map(call)).await;
        // On a busy machine, a settlement can take longer than the store waits for it, and is in the journal.
        store.store.replay_journal().await.unwrap();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let span = days(0, 900_000);
        for is_folded in [false, true] {
            if is_folded {
                store.store.fold().await.unwrap();
            }
            for metadata in [
                vec![pair("env", "prod")],
                vec![pair("env", "prod"), pair("team", "team-0")],
                vec![pair("team", "team-1"), pair("env", "prod")],
                vec![pair("team", "team-1"), pair("team", "team-0")],
            ] {
                let half = metadata.iter().find(|(key, _)| key == "team");
                let is_none = metadata.iter().all(|(key, _)| key == "team");
                let counts = |number: &u64| match half {
                    None => true,
                    Some((_, value)) => !is_none && *value == format!("team-{}", number % 2),
                };
                let expected: Vec<u64> = (0..CALLS).filter(counts).collect();
                let provider = Some("house".to_owned());
                let filter = RequestFilter { metadata, provider, ..RequestFilter::default() };
                let found = by_day(&store.store, shop.merchant_id, &filter, &span).await;
                let sums = (found[0].requests, found[0].tokens());
                let tokens = i128::from(expected.iter().sum::<u64>());
                assert_eq!(sums, (expected.len() as i128, tokens), "{filter:?}");
            }
        }
    });
}

/// Makes calls with these values of `env` and `user`, each a quarter hour after the one before.
async fn forward_each(store: &TestStore, shop: &UsageShop, pairs: &[(&str, &str)]) {
    for (env, user) in pairs {
        let mut call = store.call(shop.merchant_id, shop.key);
        let pairs = format!(r#"{{"env":"{env}","user":"{user}"}}"#);
        call.forwarded.metadata = Metadata::parse(&pairs).unwrap();
        store.forward(call, 10, "0.5").await.unwrap();
        store.clock.advance_millis(900_000);
    }
    store.store.fold().await.unwrap();
}

/// The numbers of calls by two keys of metadata.
async fn counts(store: &TestStore, shop: &UsageShop, keys: [&str; 2]) -> Vec<(String, i128)> {
    let keys = keys.map(|key| Dimension::Metadata(key.to_owned()));
    let span = days(-48 * 3_600_000, 48 * 3_600_000);
    let span =
        TimeSpan::new(span.start().instant(), span.end().instant(), TimeZone::UTC, Interval::None);
    let all = RequestFilter::default();
    let found = sums(&store.store, shop.merchant_id, &all, &keys, &span.unwrap()).await;
    let counts = found.into_iter().map(|(members, sums)| {
        let members: Vec<_> = members.into_iter().map(Option::unwrap_or_default).collect();
        (members.join("-"), sums[&0].requests)
    });
    counts.collect()
}

fn counted(counts: &[(&str, i128)]) -> Vec<(String, i128)> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn sums_by_several_keys_of_metadata_need_no_records() {
    each_store(async |store| {
        let shop = shop(store).await;
        let pairs = [("prod", "a"), ("prod", "b"), ("prod", "a"), ("test'.$", "a")];
        forward_each(store, &shop, &pairs).await;
        store.forward(store.call(shop.merchant_id, shop.key), 10, "0.5").await.unwrap();
        store.store.fold().await.unwrap();
        let expected = counted(&[("-", 1), ("prod-a", 2), ("prod-b", 1), ("test'.$-a", 1)]);
        assert_eq!(counts(store, &shop, ["env", "user"]).await, expected);
        execute(&store.store, "ALTER TABLE requests RENAME COLUMN created_at TO hidden").await;
        assert_eq!(counts(store, &shop, ["env", "user"]).await, expected);
        execute(&store.store, "ALTER TABLE requests RENAME COLUMN hidden TO created_at").await;
        // A call is counted that is not folded yet.
        let mut call = store.call(shop.merchant_id, shop.key);
        call.forwarded.metadata = Metadata::parse(r#"{"env":"prod","user":"b","x":"y"}"#).unwrap();
        store.forward(call, 10, "0.5").await.unwrap();
        let expected = counted(&[("-", 1), ("prod-a", 2), ("prod-b", 2), ("test'.$-a", 1)]);
        assert_eq!(counts(store, &shop, ["env", "user"]).await, expected);
    });
}

/// As if a program that keeps no sets had counted some of the calls, or a correction.
#[test]
fn where_sets_miss_calls_the_records_are_read() {
    each_store(async |store| {
        let shop = shop(store).await;
        forward_each(store, &shop, &[("prod", "a"), ("prod", "b"), ("test", "a")]).await;
        execute(&store.store, "UPDATE metadata_rollups SET revenue = revenue + 1, usage_cost = 0")
            .await;
        let expected = counted(&[("prod-a", 1), ("prod-b", 1), ("test-a", 1)]);
        assert_eq!(counts(store, &shop, ["env", "user"]).await, expected);
        let before = format!(
            "DELETE FROM metadata_rollups WHERE width < 96 AND slot = {}; UPDATE metadata_rollups \
             SET requests = requests - 1, output_tokens = 0 WHERE width = 96 AND set_id IN \
             (SELECT set_id FROM metadata_sets WHERE metadata LIKE '%prod%')",
            START.unix_micros().div_euclid(900_000_000),
        );
        execute(&store.store, before.leak()).await;
        assert_eq!(counts(store, &shop, ["env", "user"]).await, expected);
        store.assert_audited().await;
    });
}

/// If the sums of all sets are wrong, no query reads them. So the audit compares the sets with each other.
#[test]
fn an_audit_names_a_set_that_has_what_another_lost() {
    each_store(async |store| {
        let shop = shop(store).await;
        forward_each(store, &shop, &[("prod", "a"), ("test", "b")]).await;
        let shift = async |more: i64| {
            let sql = format!(
                "UPDATE metadata_rollups SET output_tokens = output_tokens + {more} * (SELECT CASE \
                 WHEN metadata LIKE '%prod%' THEN 1 ELSE -1 END FROM metadata_sets AS s \
                 WHERE s.set_id = metadata_rollups.set_id) WHERE width = 96"
            );
            execute(&store.store, sql.leak()).await;
        };
        shift(3).await;
        let audit = store.store.audit().await.unwrap();
        let mut names: Vec<_> = audit.differences.iter().map(|one| one.what.as_str()).collect();
        names.sort_unstable();
        let of = |pairs: &str| {
            format!("usage of {}, {pairs} in rows of 96: output tokens", shop.merchant_id)
        };
        let of = [r#"{"env":"prod","user":"a"}"#, r#"{"env":"test","user":"b"}"#].map(of);
        assert_eq!(names, of);
        shift(-3).await;
    });
}

#[test]
fn a_key_with_too_many_values_is_left_out_of_the_sets() {
    each_store(async |store| {
        let shop = shop(store).await;
        forward_each(store, &shop, &[("prod", "a"), ("prod", "b"), ("test", "b")]).await;
        let merchant = shop.merchant_id;
        let many = move |conn: &mut Conn| {
            let insert = |number: u32| {
                let id = format!("{:032x}", number + 1);
                let merchant: String =
                    merchant.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
                let [id, merchant] = [id, merchant].map(|hex| match conn {
                    Conn::Sqlite(_) => format!("x'{hex}'"),
                    Conn::Postgres(_) => format!("'\\x{hex}'"),
                });
                let pairs = format!(r#"{{"env":"{}","user":"{number}"}}"#, number % 7);
                format!("({merchant}, {id}, '{pairs}')")
            };
            let rows: Vec<_> = (0..4_000).map(insert).collect();
            let rows = rows.join(", ");
            let sql =
                format!("INSERT INTO metadata_sets (merchant_id, set_id, metadata) VALUES {rows}");
            let done = match conn {
                Conn::Sqlite(conn) => conn.batch_execute(&sql),
                Conn::Postgres(conn) => conn.batch_execute(&sql),
            };
            done.map_err(StoreError::from)
        };
        store.store.write(many).await.unwrap();
        // This call makes one set more than there may be.
        forward_each(store, &shop, &[("prod", "c")]).await;
        forward_each(store, &shop, &[("prod", "d"), ("test", "d"), ("test", "b")]).await;
        store.assert_audited().await;
        let left_out = async |key: &'static str| {
            let sql =
                format!("SELECT count(*) AS rows FROM high_cardinality_keys WHERE key = '{key}'");
            rows(&store.store, sql.leak()).await
        };
        assert_eq!((left_out("user").await, left_out("env").await), (1, 0));
        let users = [
            ("prod-a", 1),
            ("prod-b", 1),
            ("prod-c", 1),
            ("prod-d", 1),
            ("test-b", 2),
            ("test-d", 1),
        ];
        assert_eq!(counts(store, &shop, ["env", "user"]).await, counted(&users));
        execute(&store.store, "ALTER TABLE requests RENAME COLUMN created_at TO hidden").await;
        // Those by other keys need no records still.
        let others = counted(&[("prod-", 4), ("test-", 3)]);
        assert_eq!(counts(store, &shop, ["env", "nothing"]).await, others);
        execute(&store.store, "ALTER TABLE requests RENAME COLUMN hidden TO created_at").await;
    });
}

async fn rows(store: &Store, sql: &'static str) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Count {
        #[diesel(sql_type = diesel::sql_types::BigInt)]
        rows: i64,
    }
    let read = move |conn: &mut Conn| {
        let query = diesel::sql_query(sql);
        let found: Result<Count, _> = match conn {
            Conn::Sqlite(conn) => query.get_result(conn),
            Conn::Postgres(conn) => query.get_result(conn),
        };
        found.map_err(StoreError::from)
    };
    store.read(read).await.unwrap().rows
}

/// Several processes fold, and a reader sees each call once at any moment.
#[test]
fn a_call_is_counted_once_however_many_fold_and_while_they_do() {
    const SETTLERS: usize = 8;
    const CALLS: usize = 25;
    each_store(async |store| {
        let shop = shop(store).await;
        let (merchant_id, key) = (shop.merchant_id, shop.key);
        let begun = store.clock.now();
        let settled = AtomicUsize::new(0);
        let nodes = nodes(store);
        let settle = async |node: &Store| {
            for _ in 0..CALLS {
                let mut call = store.call(merchant_id, key);
                call.forwarded.metadata = Metadata::parse(r#"{"env":"prod"}"#).unwrap();
                let request_id = call.request_id;
                node.admit(Box::new(call)).await.unwrap().unwrap();
                node.settle(request_id, answered(10, "0.01")).await;
                settled.fetch_add(1, Ordering::SeqCst);
            }
        };
        let all = SETTLERS * CALLS;
        let is_done = || settled.load(Ordering::SeqCst) == all;
        let fold = async |node: &Store| {
            let mut folded = 0;
            loop {
                let done = is_done();
                folded += node.fold().await.unwrap();
                if done {
                    return folded;
                }
            }
        };
        let past = begun.plus_millis(900_000);
        let span = TimeSpan::new(begun, past, TimeZone::UTC, Interval::Day).unwrap();
        let filter = RequestFilter {
            metadata: vec![("env".to_owned(), "prod".to_owned())],
            ..RequestFilter::default()
        };
        let count = async || {
            let sums = by_day(&store.store, merchant_id, &filter, &span).await;
            let newest = Page { after: None, limit: 1_000 };
            let asked = filter.clone().into();
            let list = store.store.read(move |conn| {
                requests::list(conn, &RecordArchive::default(), merchant_id, &asked, &newest)
            });
            let list = list.await.unwrap().records;
            let ended = list.iter().filter(|one| one.status != RequestStatus::Pending).count();
            (sums.iter().map(|sums| sums.requests).sum::<i128>(), ended)
        };
        let read = async || {
            loop {
                let before = settled.load(Ordering::SeqCst);
                let (counted, listed) = count().await;
                let after = settled.load(Ordering::SeqCst) + SETTLERS;
                let range = before..=after;
                assert!(range.contains(&listed), "{listed} of {range:?} are listed");
                let range = i128::try_from(before).unwrap()..=i128::try_from(after).unwrap();
                assert!(range.contains(&counted), "{counted} of {range:?} are counted");
                if before == all {
                    return;
                }
            }
        };
        let settlers = (0..SETTLERS).map(|number| settle(&nodes[number % nodes.len()]));
        let folders = nodes.iter().cycle().take(3).map(fold);
        let (_, folded, ()) = tokio::join!(
            futures_util::future::join_all(settlers),
            futures_util::future::join_all(folders),
            read()
        );
        assert_eq!(folded.iter().sum::<usize>(), all);
        assert_eq!(count().await, (i128::try_from(all).unwrap(), all));
        store.assert_audited().await;
    });
}

/// Several nodes on PostgreSQL, one on SQLite.
fn nodes(store: &TestStore) -> Vec<Store> {
    match store.url {
        DatabaseUrl::Postgres(_) => {
            vec![store.store.clone(), store.open_again(), store.open_again()]
        }
        _ => vec![store.store.clone()],
    }
}

#[test]
fn every_list_and_every_sum_walks_the_index_it_is_meant_to() {
    each_store(async |store| {
        let shop = shop(store).await;
        let mut dice = UsageRandom(7);
        for _ in 0..50 {
            let call = shop.call(store, &mut dice);
            store.forward(call, 1, "0.1").await.unwrap();
        }
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let user = pair("user", "user-1");
        let (connection, meter) = (shop.connections[0], shop.meters[0].0);
        let filter = |connection_id, meter_id, metadata: &[(String, String)]| RequestFilter {
            connection_id,
            meter_id,
            metadata: metadata.to_vec(),
            ..RequestFilter::default()
        };
        for filter in [
            filter(None, None, &[]),
            filter(Some(connection), None, &[]),
            filter(None, Some(meter), &[]),
            filter(None, None, std::slice::from_ref(&user)),
            filter(None, None, &[pair("env", "env-1"), user.clone()]),
            filter(Some(connection), None, std::slice::from_ref(&user)),
            filter(Some(connection), Some(meter), &[]),
            filter(Some(connection), Some(meter), &[user]),
        ] {
            let after = Some(RequestId::generate(store.clock.now()));
            let statuses = [None, Some(RequestStatus::Error)];
            for (after, status) in
                [None, after].into_iter().flat_map(|it| statuses.map(|status| (it, status)))
            {
                let merchant_id = shop.merchant_id;
                let asked = ListFilter { status, ..filter.clone().into() };
                let page = Page { after, limit: 10 };
                let plans =
                    planned(store, move |conn| requests::plans(conn, merchant_id, &asked, &page));
                for plan in plans.await {
                    assert_walks(
                        &plan,
                        &[
                            // The primary index of each partition.
                            "_pkey on requests_",
                            "_pkey on request_index_",
                            "sqlite_autoindex_requests_1",
                            "PRIMARY KEY (merchant_id=? AND key=? AND value=?",
                        ],
                    );
                }
            }
        }
        let [start, end] = ["2026-11-01T00:00:00+05:45", "2026-11-30T00:00:00+05:45"]
            .map(|at| at.parse::<LocalTime>().unwrap());
        let span = TimeSpan::new(start.instant(), end.instant(), start.zone(), Interval::Day);
        let (merchant_id, span) = (shop.merchant_id, span.unwrap());
        for (filter, of_series) in [
            (filter(None, Some(meter), &[]), &["(merchant_id=? AND key=?)", "usage_series_"]),
            (
                filter(Some(connection), None, &[]),
                &["usage_series_of_connection", "usage_series_of_spend_key"],
            ),
            (
                filter(Some(connection), Some(meter), &[]),
                &["usage_series_by_connection", "usage_series_by_spend_key"],
            ),
        ] {
            let span = span.clone();
            let plan = planned(store, move |conn| usage::plan(conn, merchant_id, &filter, &span));
            let plan = plan.await;
            assert_walks(&plan, of_series);
            let of_rows = ["PRIMARY KEY (series_id=? AND width=? AND slot>", "usage_rollups_pkey"];
            assert_walks(&plan, &of_rows);
        }
    });
}

/// The database's query plan when it must not read and sort whole tables.
///
/// With the few rows of a test it would do so.
async fn planned<Plan: Send + 'static>(
    store: &TestStore,
    work: impl FnOnce(&mut Conn) -> Result<Plan, StoreError> + Send + 'static,
) -> Plan {
    let planned = store.store.read(move |conn| {
        if let Conn::Postgres(conn) = conn {
            let choices = "SET enable_seqscan = off; SET enable_bitmapscan = off";
            conn.batch_execute(choices).map_err(StoreError::from)?;
        }
        work(conn)
    });
    planned.await.unwrap()
}

/// Fails unless the plan walks one of these indexes in order.
///
/// It must not read or sort a whole table.
fn assert_walks(plan: &[String], indexes: &[&str]) {
    let says = |words: &str| plan.iter().any(|step| step.contains(words));
    assert!(indexes.iter().any(|index| says(index)), "{plan:#?}");
    for step in plan {
        assert!(!step.contains("Seq Scan") && !step.starts_with("SCAN d"), "{plan:#?}");
        assert!(!step.contains("TEMP B-TREE FOR ORDER BY"), "{plan:#?}");
    }
    // Indexes of partitions are ordered, so they are merged and not sorted.
    for pair in plan.windows(2) {
        let [step, key] = pair else { continue };
        let sorts_ids = step.contains("Sort  (") && key.contains("Sort Key: d.request_id");
        assert!(!sorts_ids, "{plan:#?}");
    }
}
