//! The rows of a month.

use std::collections::HashSet;
use std::ops::Range;

use diesel::prelude::*;
use serde::Serialize;
use tollgate_domain::{MerchantId, Month, RefusalId, RequestId, TimeZone, Timestamp};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::merchants;
use crate::rows::RequestRow;
use crate::schema::requests;

/// The primary key of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Queryable, Selectable, Serialize)]
#[diesel(table_name = requests)]
pub(super) struct RecordKey {
    pub(super) merchant_id: Id<MerchantId>,
    pub(super) request_id: Id<RequestId>,
}

/// The ids of the calls and refusals of a month.
#[derive(Clone, Copy, Debug)]
pub(super) struct MonthIds {
    pub(super) month: Month,
    /// The first instant.
    pub(super) from: Timestamp,
    /// The first instant after it.
    pub(super) to: Timestamp,
}

impl MonthIds {
    pub(super) fn of(month: Month) -> Self {
        let range = month.range(&TimeZone::UTC);
        Self { month, from: range.start, to: range.end }
    }

    pub(super) fn requests(&self) -> Range<Id<RequestId>> {
        Id(RequestId::least(self.from))..Id(RequestId::least(self.to))
    }

    /// The next records of a merchant after an id, as they were settled first.
    pub(super) fn records_after(
        &self,
        conn: &mut Conn,
        merchant_id: MerchantId,
        after: Option<Id<RequestId>>,
        most: i64,
    ) -> Result<Vec<RequestRow>, StoreError> {
        let range = self.requests();
        let mut query = requests::table
            .filter(requests::merchant_id.eq(Id(merchant_id)))
            .filter(requests::request_id.ge(range.start))
            .filter(requests::request_id.lt(range.end))
            .order(requests::request_id)
            .limit(most)
            .select(RequestRow::as_select())
            .into_boxed();
        if let Some(after) = after {
            query = query.filter(requests::request_id.gt(after));
        }
        Ok(query.load(conn)?)
    }

    /// The records of these keys that are there.
    pub(super) fn records<'a>(
        &self,
        keys: &'a [RecordKey],
    ) -> requests::BoxedQuery<'a, <Conn as Connection>::Backend> {
        let range = self.requests();
        let merchants: HashSet<_> = keys.iter().map(|key| key.merchant_id).collect();
        requests::table
            .filter(requests::merchant_id.eq_any(merchants))
            .filter(requests::request_id.eq_any(keys.iter().map(|key| key.request_id)))
            // PostgreSQL then looks at the partition of the month alone.
            .filter(requests::request_id.ge(range.start))
            .filter(requests::request_id.lt(range.end))
            .into_boxed()
    }

    pub(super) fn refusals(&self) -> Range<Id<RefusalId>> {
        Id(RefusalId::least(self.from))..Id(RefusalId::least(self.to))
    }
}

/// The merchants in the order of the archive.
pub(super) fn merchants_in_order(conn: &mut Conn) -> Result<Vec<MerchantId>, StoreError> {
    let mut ids = merchants::ids(conn)?;
    ids.sort_unstable();
    Ok(ids)
}
