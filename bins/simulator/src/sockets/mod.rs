//! WebSockets: OpenAI's responses and its Realtime API, and Google's Gemini Live.

mod live;
mod peer;
mod realtime;
mod responses;
mod speech;

pub(crate) use live::live;
pub(crate) use realtime::realtime;
pub(crate) use responses::responses;
