//! The end of a socket: its reason, and what each side learns of it.

use tollgate_provider::{CloseCode, CloseReason, SocketFault};

/// The reason for which a socket ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketEnd {
    /// The client has closed it, or has left.
    Client(Option<CloseReason>),
    /// The provider has closed it.
    Provider(Option<CloseReason>),
    /// The bytes of the client are not valid.
    ClientFault(SocketFault),
    /// The provider has left, or its bytes are not valid.
    ProviderFault(SocketFault),
    /// The provider makes a response that was not asked for.
    NotAskedFor,
    /// The provider makes a response that is refused for the reason with this code.
    NotAdmitted(&'static str),
    /// Calls are refused, for the reason with this code.
    Refused(&'static str),
    /// It was open for the longest time.
    TooLong,
    /// No message came for the longest time.
    Idle,
    /// This service shuts down.
    ShuttingDown,
}

impl SocketEnd {
    /// The reason that the client gets. `None` if it is not there any more.
    pub(crate) fn to_client(&self) -> Option<Option<CloseReason>> {
        let stated = |code, reason: &str| {
            Some(Some(CloseReason { code, description: Some(reason.to_owned()) }))
        };
        match self {
            Self::Client(None) | Self::ClientFault(SocketFault::Lost) => None,
            Self::Client(reason) | Self::Provider(reason) => Some(reason.clone()),
            Self::ClientFault(fault) => stated(fault.close_code(), "socket_message_invalid"),
            // A code of its own for a connection that was lost may not be sent.
            Self::ProviderFault(_) => stated(CloseCode::Error, "provider_unreachable"),
            Self::NotAskedFor => stated(CloseCode::Error, "response_not_asked_for"),
            Self::Refused(code) | Self::NotAdmitted(code) => stated(CloseCode::Policy, code),
            Self::TooLong => stated(CloseCode::Away, "socket_max_reached"),
            Self::Idle => stated(CloseCode::Away, "socket_idle"),
            Self::ShuttingDown => stated(CloseCode::Away, "shutting_down"),
        }
    }

    /// The reason that the provider gets. `None` if it is not there any more.
    pub(crate) fn to_provider(&self) -> Option<Option<CloseReason>> {
        match self {
            Self::Provider(_) | Self::ProviderFault(SocketFault::Lost) => None,
            Self::Client(reason) => Some(reason.clone()),
            Self::ProviderFault(fault) => Some(Some(fault.close_code().into())),
            _ => Some(Some(CloseCode::Normal.into())),
        }
    }

    /// Whether the provider may still send what it has.
    pub(crate) fn leaves_provider(&self) -> bool {
        !matches!(
            self,
            Self::Provider(_) | Self::ProviderFault(_) | Self::NotAskedFor | Self::NotAdmitted(_)
        )
    }
}
