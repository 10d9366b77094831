//! The open responses of a socket, and which of them a message of the provider belongs to.

use tokio::time::Instant;
use tollgate_domain::CallTimings;
use tollgate_usage::ResponseMeter;
use tollgate_usage::socket::{Lane, ProviderFact, ProviderMessage};

use crate::admitted::AdmittedCall;
use crate::in_flight::InFlightGuard;
use crate::outbound::OutboundCall;

/// A response that was asked for and has not ended.
pub(crate) struct OpenResponse<'a> {
    pub(crate) lane: Lane,
    pub(crate) admitted: AdmittedCall<'a, ()>,
    pub(crate) outbound: OutboundCall,
    pub(crate) meter: ResponseMeter,
    pub(crate) _in_flight: InFlightGuard,
    /// Whether the provider may have its message.
    pub(crate) is_sent: bool,
    /// The provider's id, once it has begun.
    pub(crate) id: Option<String>,
    pub(crate) has_begun: bool,
    pub(crate) sent_at: Instant,
    pub(crate) timings: CallTimings,
}

/// The place of the open response that a message of the provider belongs to.
///
/// Every message that was sent on asks for a response. So an error belongs to one of the open ones, and to that one if it
/// is alone in its stream. If there are several, it is not known which has failed, and none is ended.
pub(crate) fn owner_of(open: &[OpenResponse<'_>], message: &ProviderMessage) -> Option<usize> {
    // A provider may leave out the stream, or name one where the client has named none.
    let may_be_of_lane = |response: &OpenResponse<'_>| {
        message.lane.is_none() || response.lane.is_none() || response.lane == message.lane
    };
    let find = |is_it: &dyn Fn(&OpenResponse<'_>) -> bool| {
        let in_lane =
            open.iter().position(|response| response.lane == message.lane && is_it(response));
        in_lane.or_else(|| {
            open.iter().position(|response| may_be_of_lane(response) && is_it(response))
        })
    };
    let is_named =
        |response: &OpenResponse<'_>| response.id.is_some() && response.id == message.response_id;
    match message.fact {
        ProviderFact::Begun => find(&is_named).or_else(|| find(&|response| !response.has_begun)),
        // A provider may leave out the beginning of a response, or its id.
        ProviderFact::Ended => find(&is_named).or_else(|| match message.response_id {
            Some(_) => find(&|response| response.id.is_none()),
            None => find(&|response| response.has_begun).or_else(|| find(&|_| true)),
        }),
        ProviderFact::Failed { .. } => {
            let is_alone = open.iter().filter(|response| may_be_of_lane(response)).count() == 1;
            find(&|_| is_alone)
        }
        ProviderFact::Other => find(&|response| response.has_begun),
    }
}
