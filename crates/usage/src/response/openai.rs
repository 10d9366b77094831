//! OpenAI's answers, and others of the same form.
//!
//! Chat, completions and embeddings have `prompt_tokens` and `completion_tokens`; responses and the
//! rest have `input_tokens` and `output_tokens`. Both contain their details, so cached, audio and
//! reasoning tokens are subtracted from the total before the rest counts as text. Other providers
//! use the same format with fields of their own. Each field is read wherever it occurs, because no
//! two providers use one name for different things.

mod counts;
mod media;
mod session;
mod text;
mod tools;

pub(super) use self::counts::ReasoningPlacement;
pub(super) use self::media::MediaExtractor;
pub(super) use self::session::SessionExtractor;
pub(super) use self::text::OpenAiExtractor;
