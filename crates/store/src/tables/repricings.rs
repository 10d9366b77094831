//! Queries of the table of repricings.

use std::collections::BTreeMap;

use diesel::prelude::*;
use tollgate_domain::repricing::CostShares;
use tollgate_domain::{MerchantId, RequestId};
use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::RepricingRow;
use crate::schema::repricings;

/// The totals of a record's repricings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RepricingTotals {
    /// The number of the last repricing.
    pub(crate) number: i32,
    pub(crate) base: Option<i64>,
    pub(crate) wallet_delta: i64,
    pub(crate) merchant_delta: i64,
}

impl RepricingTotals {
    pub(crate) fn shares(&self) -> CostShares {
        CostShares {
            wallet: Amount::from_units(self.wallet_delta),
            merchant: Amount::from_units(self.merchant_delta),
        }
    }
}

/// Returns the totals of the repricings of these records, all of which belong to these merchants.
pub(crate) fn repricing_totals(
    conn: &mut Conn,
    merchant_ids: impl IntoIterator<Item = Id<MerchantId>>,
    request_ids: &[Id<RequestId>],
) -> Result<BTreeMap<Id<RequestId>, RepricingTotals>, StoreError> {
    let rows: Vec<RepricingRow> = repricings::table
        .filter(repricings::merchant_id.eq_any(merchant_ids))
        .filter(repricings::request_id.eq_any(request_ids))
        .order((repricings::request_id, repricings::number))
        .select(RepricingRow::as_select())
        .load(conn)?;
    Ok(by_request(rows))
}

fn by_request(rows: Vec<RepricingRow>) -> BTreeMap<Id<RequestId>, RepricingTotals> {
    let mut all: BTreeMap<Id<RequestId>, RepricingTotals> = BTreeMap::new();
    for row in rows {
        let sum = all.entry(row.request_id).or_default();
        sum.number = row.number;
        sum.base = Some(row.base_after);
        sum.wallet_delta = sum.wallet_delta.saturating_add(row.wallet_delta);
        sum.merchant_delta = sum.merchant_delta.saturating_add(row.merchant_delta);
    }
    all
}
