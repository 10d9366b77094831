//! The notes that the server takes of a call while it runs.

use tollgate_domain::PendingRecord;
use tollgate_domain::settlement::CallReport;

/// An observer of one call, such as its line in a log.
pub trait CallObserver {
    /// The call is admitted.
    fn admitted(&self, pending: &PendingRecord);

    /// The call has ended, which is before its settlement is durable.
    fn ended(&self, report: &CallReport);
}

/// No notes.
impl CallObserver for () {
    fn admitted(&self, _: &PendingRecord) {}

    fn ended(&self, _: &CallReport) {}
}
