//! OpenAI's answers, and others of the same form.
//!
//! Chat, completions and embeddings have `prompt_tokens` and `completion_tokens`; responses and the
//! rest have `input_tokens` and `output_tokens`. Both contain their details, so cached, audio and
//! reasoning tokens are subtracted from the total before the rest counts as text. Other providers
//! use the same format with fields of their own. Each field is read wherever it occurs, because no
//! two providers use one name for different things.

mod figures;
mod media;
mod text;
mod tools;

pub(super) use self::figures::Thoughts;
pub(super) use self::media::Media;
pub(super) use self::text::OpenAi;
