//! WebSockets of providers: what their messages mean for the cost of a call. All of it is pure.
//!
//! A response on a socket is a call of its own. A [`Conversation`] reads the messages of both sides: which of them begins or
//! ends a response, and the most that the next one can use.
//! [`ResponseMeter::of_socket`](crate::ResponseMeter::of_socket) measures a response.
//!
//! | module | protocol |
//! |---|---|
//! | `responses` | OpenAI's Responses API |
//! | `realtime` | OpenAI's Realtime API |
//! | `live` | Google's Gemini Live API |
//! | `gpt_live` | OpenAI's GPT-Live, whose session is a call as well |

mod conversation;
mod fields;
mod gpt_live;
mod live;
mod message;
mod realtime;
mod responses;

pub use self::conversation::{Conversation, SocketInput};
pub use self::message::{ClientMessage, ClientRole, Lane, ProviderFact, ProviderMessage};

#[cfg(test)]
mod tests;
