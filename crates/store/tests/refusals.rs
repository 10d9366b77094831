//! Tests of the records of refused calls on both databases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_domain::admission::CallKey;
use tollgate_domain::*;
use tollgate_store::refusals::{self, RefusalFilter};
use tollgate_store::requests::RequestFilter;
use tollgate_store::usage::{self, Dimension};
use tollgate_store::{Page, RecordArchive, RefusalCause};
use tollgate_testkit::store::each_store;

const CODES: [&str; 4] =
    ["spend_limit_reached", "rate_limited", "spend_key_paused", "wallet_balance_insufficient"];
const THREADS: usize = 8;
const STORM: usize = 100_000;

/// 100,000 refused calls of three keys at once, while they are written: the numbers are exact, every id leads to a row,
/// and rows are merged.
#[test]
fn in_a_storm_of_a_hundred_thousand_the_numbers_are_exact_and_rows_are_merged() {
    each_store(async |store| {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let secret = CallKey::Secret(store.secret_key_id(&merchant).await);
        let customer = store.connection(merchant_id, "1").await;
        let on_customer = Some(customer.wallet_id);
        let (one, key) = store.spend_key(merchant_id, on_customer, SpendRules::default()).await;
        let (other, other_key) = store.spend_key(merchant_id, None, SpendRules::default()).await;
        let keys = [
            secret,
            CallKey::Spend(one.spend_key_id, key.hash()),
            CallKey::Spend(other.spend_key_id, other_key.hash()),
        ];
        let is_over = AtomicBool::new(false);
        let at = store.clock.now();
        let refuse = |number: usize| {
            let cause = RefusalCause {
                merchant_id,
                key: *keys.get(number % keys.len()).unwrap(),
                connection_id: None,
                model: Some("m"),
                run_id: None,
                code: CODES.get(number % CODES.len()).unwrap(),
                at,
            };
            store.store.record_refusal(&cause, RefusedCall::default)
        };
        let mut batches = 0;
        let mut ids = BTreeSet::new();
        std::thread::scope(|scope| {
            let storm = (0..THREADS).map(|thread| {
                let refuse = &refuse;
                scope.spawn(move || {
                    (thread..STORM).step_by(THREADS).map(refuse).collect::<BTreeSet<_>>()
                })
            });
            let storm: Vec<_> = storm.collect();
            let writer = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.unwrap();
                let mut batches = 0_usize;
                while !is_over.load(Ordering::Acquire) {
                    runtime.block_on(store.store.write_refusals()).unwrap();
                    batches += 1;
                }
                batches
            });
            for thread in storm {
                ids.append(&mut thread.join().unwrap());
            }
            is_over.store(true, Ordering::Release);
            batches = writer.join().unwrap() + 1;
        });
        store.store.write_refusals().await.unwrap();

        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = Page { after, limit: 5_000 };
            let filter = RefusalFilter::default();
            let read = move |conn: &mut _| {
                refusals::list(conn, &RecordArchive::default(), merchant_id, &filter, &page)
            };
            let mut found = store.store.read(read).await.unwrap();
            let is_last = found.len() <= 5_000;
            found.truncate(5_000);
            after = found.last().map(|row| row.refusal_id);
            rows.append(&mut found);
            if is_last {
                break;
            }
        }
        let known: BTreeMap<_, _> = rows.iter().map(|row| (row.refusal_id, row.count)).collect();
        let counted: u64 = known.values().sum();
        assert_eq!(usize::try_from(counted).unwrap(), STORM);
        assert_eq!(known.keys().copied().collect::<BTreeSet<_>>(), ids, "every id leads to a row");
        // In each batch, each key and code has a hundred rows, and one more for the rest.
        let causes = keys.len() * CODES.len();
        assert!(rows.len() <= causes * 101 * batches, "{} rows, {batches} batches", rows.len());
        let shared = rows.iter().filter(|row| row.count > 1).count();
        assert!(shared > 0 && rows.len() < STORM, "{shared} of {}", rows.len());

        let span = TimeSpan::ending(at, Interval::Day, 1, TimeZone::UTC);
        let read = move |conn: &mut _| {
            let all = RequestFilter::default();
            let by = [Dimension::SpendKey, Dimension::Connection];
            let sums = usage::refused(conn, merchant_id, &all, &by, &span)?.unwrap();
            let by_code = refusals::counts_by_code(conn, merchant_id, &span, None, None)?;
            let of_key =
                refusals::counts_by_code(conn, merchant_id, &span, Some(one.spend_key_id), None)?;
            Ok::<_, tollgate_store::StoreError>((sums, by_code, of_key))
        };
        let (sums, by_code, of_key) = store.store.read(read).await.unwrap();
        let total: i64 = sums.values().flat_map(|periods| periods.values()).sum();
        assert_eq!(usize::try_from(total).unwrap(), STORM);
        let by_code: BTreeMap<_, _> = by_code.into_iter().collect();
        assert!(CODES.iter().all(|code| by_code.get(*code) == Some(&25_000)), "{by_code:?}");
        let of_key: i64 = of_key.iter().map(|(_, count)| count).sum();
        let of_numbers = (0..STORM).filter(|number| number % 3 == 1).count();
        assert_eq!(usize::try_from(of_key).unwrap(), of_numbers);
        let of_customer = Some(customer.connection_id.to_string());
        let of_customer: i64 = sums
            .iter()
            .filter(|(members, _)| members.get(1) == Some(&of_customer))
            .flat_map(|(_, periods)| periods.values())
            .sum();
        assert_eq!(usize::try_from(of_customer).unwrap(), of_numbers);
    });
}
