//! OpenAI's answers, and those that are shaped like them.
//!
//! Chat, completions and embeddings say `prompt_tokens` and `completion_tokens`, responses and the
//! rest say `input_tokens` and `output_tokens`; both contain their details, so what is cached,
//! audio or reasoning is taken out of the total before the rest is called text. Other providers
//! speak the same format with fields of their own; each is read wherever it stands, for no two mean
//! different things by one name.

mod figures;
mod media;
mod text;
mod tools;

pub(super) use self::figures::Thoughts;
pub(super) use self::media::Media;
pub(super) use self::text::OpenAi;
