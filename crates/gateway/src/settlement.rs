//! The end of a call with an answer: how it ended, and which usage is charged.
//!
//! The usage that was read is charged, with two exceptions, which are charged at the call's hold:
//!
//! | usage | strict spend key | else |
//! |---|---|---|
//! | reported | as read | as read |
//! | not reported by an answer that is no stream | as estimated | as estimated |
//! | not known: a stream without figures, or one that broke off or was left before its figures | the hold | as estimated |
//! | suspicious: far more than the call could use | the hold | as read; the hold if it has no price |
//!
//! A strict key trusts no estimate, because its limit must hold. All of it is pure; [`crate::call_task`] does what it says.

use tollgate_domain::settlement::Ending;
use tollgate_domain::{CallFailure, FailureSource, PricedUsage, UsageSource};
use tollgate_pricing::PriceSource;
use tollgate_usage::{ResponseEnd, UsageReading};

use crate::price::{PricedReading, RequestedBound};

/// The ending of a call whose answer had a status and was read until `end`.
pub(crate) fn ending_of(status: u16, end: ResponseEnd, reading: &UsageReading) -> Ending {
    let is_accepted = (200..300).contains(&status);
    match end {
        _ if !is_accepted => Ending::Rejected,
        _ if reading.provider_error => Ending::Broken,
        _ if reading.complete => Ending::Answered,
        ResponseEnd::Left => Ending::Abandoned,
        ResponseEnd::Complete | ResponseEnd::Broken => Ending::Broken,
    }
}

/// The failure of a call whose answer had a status; `None` if it has not failed, or if nothing more than its ending is
/// known.
pub(crate) fn failure_of(
    ending: Ending,
    reading: &UsageReading,
    keeps_message: bool,
) -> Option<CallFailure> {
    let is_of_provider =
        ending == Ending::Rejected || (ending == Ending::Broken && reading.provider_error);
    let words = reading.error.clone().unwrap_or_default();
    is_of_provider.then(|| CallFailure {
        source: FailureSource::Provider,
        kind: words.kind,
        code: words.code,
        message: words.message.filter(|_| keeps_message),
    })
}

/// The facts that decide whether a usage is charged as it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeFacts {
    pub(crate) ending: Ending,
    pub(crate) is_stream: bool,
    /// Whether a strict spend key pays.
    pub(crate) is_strict: bool,
    /// Whether the provider itself reported an error.
    pub(crate) provider_error: bool,
    /// Whether it is far more than the call could use.
    pub(crate) is_suspicious: bool,
}

impl ChargeFacts {
    /// Whether the usage of the call is not known.
    fn is_unknown(&self, source: UsageSource) -> bool {
        let is_guess = matches!(source, UsageSource::Estimated | UsageSource::Partial);
        match self.ending {
            Ending::Answered => self.is_stream && source == UsageSource::Estimated,
            Ending::Broken => self.is_stream && is_guess && !self.provider_error,
            Ending::Abandoned => source == UsageSource::Partial,
            Ending::Rejected | Ending::NotSent | Ending::Unanswered | Ending::Lost => false,
        }
    }

    /// The usage that is charged: as it was read, or the most that the call could use.
    pub(crate) fn charged(&self, read: PricedReading, bound: &RequestedBound) -> PricedReading {
        let source = read.priced.usage_source;
        let is_unknown = self.is_unknown(source);
        let is_unpriced = read.priced.price_source == PriceSource::Unpriced;
        let takes_hold = (self.is_strict && (is_unknown || self.is_suspicious))
            || (self.is_suspicious && is_unpriced);
        if !takes_hold {
            return read;
        }
        let usage_source = if is_unknown { source } else { UsageSource::Estimated };
        let priced = PricedUsage { usage_source, ..bound.at_most };
        PricedReading { priced, applied: Vec::new(), missing: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strict_key_pays_its_hold_where_the_usage_is_not_known_or_not_credible() {
        use Ending::{Abandoned, Answered, Broken, Rejected};
        use UsageSource::{Estimated, Partial, Reported};
        // The ending, whether it is a stream, the source of the usage, and whether it is known.
        let table = [
            (Answered, true, Reported, true),
            (Answered, true, Estimated, false),
            (Answered, false, Estimated, true),
            (Broken, true, Partial, false),
            (Broken, true, Estimated, false),
            (Broken, false, Estimated, true),
            (Abandoned, true, Partial, false),
            (Abandoned, false, Partial, false),
            (Rejected, true, Estimated, true),
        ];
        let usage = |output: u64, usage_source, price_source| PricedUsage {
            usage: tollgate_pricing::Usage::tokens(1, output),
            usage_source,
            price_source,
            ..PricedUsage::nothing()
        };
        for (ending, is_stream, source, is_known) in table {
            for is_strict in [false, true] {
                for is_suspicious in [false, true] {
                    for price in [PriceSource::Catalog, PriceSource::Unpriced] {
                        let facts = ChargeFacts {
                            ending,
                            is_stream,
                            is_strict,
                            provider_error: false,
                            is_suspicious,
                        };
                        let bound = RequestedBound::of_usage(usage(99, Estimated, price));
                        let priced = usage(7, source, price);
                        let read = PricedReading { priced, applied: Vec::new(), missing: None };
                        let charged = facts.charged(read, &bound).priced.usage.output_tokens();
                        let at_hold = (is_strict && (!is_known || is_suspicious))
                            || (is_suspicious && price == PriceSource::Unpriced);
                        assert_eq!(charged, if at_hold { 99 } else { 7 }, "{facts:?} {source:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_provider_that_says_that_it_failed_is_believed() {
        let facts = ChargeFacts {
            ending: Ending::Broken,
            is_stream: true,
            is_strict: true,
            provider_error: true,
            is_suspicious: false,
        };
        assert!(!facts.is_unknown(UsageSource::Partial));
        assert!(ChargeFacts { provider_error: false, ..facts }.is_unknown(UsageSource::Partial));
    }
}
