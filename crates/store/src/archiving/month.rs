//! The rows of a month.

use std::ops::Range;

use tollgate_domain::{MerchantId, Month, RefusalId, RequestId, TimeZone, Timestamp};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::merchants;

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
