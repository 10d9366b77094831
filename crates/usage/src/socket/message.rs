//! Messages of sockets, as far as they matter for calls.

/// A message from the client. It asks for a response, and its body is that of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientMessage {
    /// The stream that the response belongs to.
    pub lane: Lane,
}

/// The stream of a multiplexed socket that a message belongs to; `None` where there is only one.
pub type Lane = Option<String>;

/// A message from the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderMessage {
    /// The stream that it belongs to.
    pub lane: Lane,
    /// The provider's id of the response that it shows.
    pub response_id: Option<String>,
    /// The fact that it states.
    pub fact: ProviderFact,
}

/// The fact that a message from the provider states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderFact {
    /// A response has begun.
    Begun,
    /// A response has ended, with its usage.
    Ended,
    /// An error, in place of a response or in the middle of one.
    Failed {
        /// The status that the call would have had over HTTP, if it is stated.
        status: Option<u16>,
    },
    /// Another one.
    Other,
}
