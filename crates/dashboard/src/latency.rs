//! The time of the newest calls from their admission to their settlement. No sum is kept of it, so records are read.

use tollgate_domain::{MerchantId, RequestRecord, RequestStatus};
use tollgate_store::requests::{self, ListFilter};
use tollgate_store::{Conn, Page, RecordArchive, StoreError};

use crate::chart::{Chart, ChartUnit, GOOD, Layer};
use crate::text;

/// The percentiles of the newest calls, and a chart of them.
pub(crate) struct Latency {
    pub(crate) calls: usize,
    pub(crate) median: String,
    pub(crate) p95: String,
    pub(crate) p99: String,
    pub(crate) chart: Chart,
}

/// The number of the newest records that are read for it.
const NEWEST: u32 = 500;
const BOUNDS_MILLIS: [(i64, &str); 8] = [
    (100, "< 0.1 s"),
    (250, "< 0.25 s"),
    (500, "< 0.5 s"),
    (1_000, "< 1 s"),
    (2_000, "< 2 s"),
    (5_000, "< 5 s"),
    (15_000, "< 15 s"),
    (i64::MAX, "longer"),
];

impl Latency {
    pub(crate) fn read(
        conn: &mut Conn,
        merchant_id: MerchantId,
        filter: ListFilter,
    ) -> Result<Self, StoreError> {
        let page = Page { after: None, limit: NEWEST };
        let records =
            requests::list(conn, &RecordArchive::left_out(), merchant_id, &filter, &page)?.records;
        // Reported usage was not waited for, and the end of a swept call is not known.
        let waited = records.iter().filter(|record| {
            record.status == RequestStatus::Completed
                && record.reference_id.is_none()
                && !record.swept
        });
        let mut millis: Vec<i64> = waited.filter_map(took_millis).collect();
        millis.sort_unstable();
        let at = |percent: usize| {
            let place = (millis.len() * percent).div_ceil(100).saturating_sub(1);
            millis.get(place).map_or_else(|| "–".to_owned(), |millis| text::duration(*millis))
        };
        let mut counts = [0_i128; BOUNDS_MILLIS.len()];
        for took in &millis {
            let place = BOUNDS_MILLIS.iter().position(|(bound, _)| took < bound);
            if let Some(count) = place.and_then(|place| counts.get_mut(place)) {
                *count += 1;
            }
        }
        let labels = BOUNDS_MILLIS.map(|(_, label)| label.to_owned());
        let layer = Layer::new("Requests", GOOD, counts.to_vec());
        Ok(Self {
            calls: millis.len(),
            median: at(50),
            p95: at(95),
            p99: at(99),
            chart: Chart::new("How long requests took", ChartUnit::Count, &labels, vec![layer]),
        })
    }
}

/// The time of a call, in milliseconds.
pub(crate) fn took_millis(record: &RequestRecord) -> Option<i64> {
    let settled_at = record.settled_at?.unix_micros();
    Some(settled_at.saturating_sub(record.created_at.unix_micros()).max(0) / 1_000)
}
