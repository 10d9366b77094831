//! The sums of archived records, with which an audit begins that does not read the archive.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use tollgate_domain::{MerchantId, MeterId, MeterVersion, Month};

use crate::archived::month_of;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::meters::{self, MeterPricing};
use crate::rows::{ArchivedSumRow, RequestRow, counter_key};

/// A month, a merchant, an owner, and the meter and the period of a tier counter.
type OwnerKey = (Month, Id<MerchantId>, Id<AnyId>, Id<AnyId>, String);

/// The sums of archived records by their owners.
#[derive(Default)]
pub(crate) struct OwnerSums {
    /// Records and amounts.
    sums: BTreeMap<OwnerKey, (i64, i64)>,
    meters: BTreeMap<(MeterId, i32), MeterPricing>,
}

impl OwnerSums {
    /// Adds a record that leaves, with the costs of the wallet and of the merchant.
    pub(crate) fn add(
        &mut self,
        conn: &mut Conn,
        row: &RequestRow,
        [wallet_cost, merchant_cost]: [i64; 2],
        cost: i64,
    ) -> Result<(), StoreError> {
        let call = row.call()?;
        let own = row.merchant_wallet_id.untyped();
        let wallet = row.wallet_id.map_or(own, Id::untyped);
        // The record has its number on the wallet of the call.
        self.add_sum(row, wallet, 1, wallet_cost);
        self.add_sum(row, own, 0, merchant_cost);
        let budgets = call.budgets.ids.iter().map(|id| Id(*id).untyped());
        for account in call.spend_key_id.map(|id| Id(id).untyped()).into_iter().chain(budgets) {
            self.add_sum(row, account, 1, cost);
        }
        let Some(MeterVersion { meter_id, version }) = row.meter() else { return Ok(()) };
        if row.counted_units == 0 {
            return Ok(());
        }
        let pricing = match self.meters.entry((meter_id, version)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(meters::model_of(conn, meter_id, version)?),
        };
        let (merchant, owner, meter, period) = counter_key(&call, meter_id, pricing.tier_period);
        let key = (month_of(row.request_id.get()), merchant, owner, meter.untyped(), period);
        let sum = self.sums.entry(key).or_default();
        *sum = (sum.0.saturating_add(1), sum.1.saturating_add(row.counted_units));
        Ok(())
    }

    fn add_sum(&mut self, row: &RequestRow, owner: Id<AnyId>, records: i64, amount: i64) {
        let month = month_of(row.request_id.get());
        let key = (month, row.merchant_id, owner, Id::default(), String::new());
        let sum = self.sums.entry(key).or_default();
        *sum = (sum.0.saturating_add(records), sum.1.saturating_add(amount));
    }

    pub(crate) fn rows(self) -> Vec<ArchivedSumRow> {
        let row = |((month, merchant_id, owner_id, meter_id, period), (records, amount)): (
            OwnerKey,
            (i64, i64),
        )| ArchivedSumRow {
            month: month.to_string(),
            merchant_id,
            owner_id,
            meter_id,
            period,
            records,
            amount,
        };
        self.sums.into_iter().map(row).collect()
    }
}
