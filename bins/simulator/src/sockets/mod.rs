//! WebSockets: OpenAI's responses, its Realtime API and GPT-Live, and Google's Gemini Live.

mod gpt_live;
mod live;
mod peer;
mod realtime;
mod responses;
mod speech;

pub(crate) use gpt_live::gpt_live;
pub(crate) use live::live;
pub(crate) use realtime::realtime;
pub(crate) use responses::responses;
