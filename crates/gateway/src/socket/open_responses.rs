//! The open responses of a socket, and which of them a message of the provider belongs to.

use std::time::Duration;

use tokio::time::Instant;
use tollgate_domain::CallTimings;
use tollgate_usage::ResponseMeter;
use tollgate_usage::socket::{ClientMessage, ProviderFact, ProviderMessage, SocketInput};

use crate::admitted::AdmittedCall;
use crate::in_flight::InFlightGuard;
use crate::outbound::OutboundCall;

/// A response that was asked for, or that the provider has begun, and that has not ended.
pub(super) struct OpenResponse<'a> {
    /// The message that asks for it.
    pub(super) message: ClientMessage,
    pub(super) admitted: AdmittedCall<'a, ()>,
    /// Whether it is the session, and not a response.
    pub(super) is_session: bool,
    pub(super) outbound: OutboundCall,
    pub(super) meter: ResponseMeter,
    pub(super) _in_flight: InFlightGuard,
    /// The input of the conversation that it may have. `None` for one that is no part of it.
    pub(super) input: Option<SocketInput>,
    /// Whether the provider may have its message.
    pub(super) is_sent: bool,
    /// The provider's id, once it has begun.
    pub(super) id: Option<String>,
    /// When it has begun at the provider.
    pub(super) begun_at: Option<Instant>,
    pub(super) sent_at: Instant,
    pub(super) timings: CallTimings,
}

impl OpenResponse<'_> {
    /// Whether it has begun at the provider.
    pub(super) const fn has_begun(&self) -> bool {
        self.begun_at.is_some()
    }

    /// The time since its beginning; nothing before it.
    pub(super) fn passed(&self) -> Duration {
        self.begun_at.map_or(Duration::ZERO, |begun_at| begun_at.elapsed())
    }

    /// The most tokens of its output.
    pub(super) fn most_output(&self) -> u64 {
        self.admitted.bound.at_most.usage.output_tokens()
    }

    /// The most tokens of its input.
    pub(super) fn most_input(&self) -> u64 {
        self.admitted.bound.at_most.usage.input_tokens()
    }
}

/// The place of the open response that a message of the provider belongs to.
///
/// On a socket of Responses, every message that was sent on asks for a response. So an error belongs to one of the open
/// ones, and to that one if it is alone in its stream. If there are several, it is not known which has failed, and none is
/// ended. On other sockets an error refuses a message, and may name it.
pub(super) fn owner_of(open: &[OpenResponse<'_>], message: &ProviderMessage) -> Option<usize> {
    // A provider may leave out the stream, or name one where the client has named none.
    let may_be_of_lane = |response: &OpenResponse<'_>| {
        let lane = &response.message.lane;
        message.lane.is_none() || lane.is_none() || *lane == message.lane
    };
    let find = |is_it: &dyn Fn(&OpenResponse<'_>) -> bool| {
        let is_it = |response: &OpenResponse<'_>| {
            response.is_session == message.of_session && is_it(response)
        };
        let in_lane = open
            .iter()
            .position(|response| response.message.lane == message.lane && is_it(response));
        in_lane.or_else(|| {
            open.iter().position(|response| may_be_of_lane(response) && is_it(response))
        })
    };
    let is_named =
        |response: &OpenResponse<'_>| response.id.is_some() && response.id == message.response_id;
    match &message.fact {
        ProviderFact::Begun => find(&is_named).or_else(|| find(&|response| !response.has_begun())),
        // A provider may leave out the beginning of a response, or its id.
        ProviderFact::Ended => find(&is_named).or_else(|| match message.response_id {
            Some(_) => find(&|response| response.id.is_none()),
            None => find(&|response| response.has_begun()).or_else(|| find(&|_| true)),
        }),
        ProviderFact::EndedBefore => find(&|response| response.has_begun()),
        ProviderFact::Failed { .. } => {
            let alike = open.iter().filter(|response| response.is_session == message.of_session);
            let in_lane = alike.clone().filter(|response| response.message.lane == message.lane);
            let is_alone = match in_lane.count() {
                0 => alike.filter(|response| may_be_of_lane(response)).count() == 1,
                count => count == 1,
            };
            find(&|_| is_alone)
        }
        // Without an id it is about the oldest one that has none either.
        ProviderFact::Refused { event_id } => {
            find(&|response| !response.has_begun() && response.message.event_id == *event_id)
        }
        ProviderFact::Other => match message.response_id {
            Some(_) => find(&is_named),
            None => find(&|response| response.has_begun() || response.is_session),
        },
        ProviderFact::Committed
        | ProviderFact::Transcribed
        | ProviderFact::NotTranscribed
        | ProviderFact::Settings
        | ProviderFact::Unrelated => None,
    }
}
