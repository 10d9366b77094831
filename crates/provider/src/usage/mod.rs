//! What a call used, read from the answer while it passes.
//!
//! [`ResponseMeter`] is fed every piece of a body as it comes. It says what may go to the client at
//! once and what waits for the settlement, keeps bounded memory, never changes a byte it was not
//! told to remove, and in the end gives a [`Reading`] that is honest about where its figures come
//! from.

mod anthropic;
mod bedrock;
mod cohere;
mod decode;
mod deepgram;
mod elevenlabs;
mod estimate;
mod events;
mod excerpt;
mod extractor;
mod formats;
mod frames;
mod google;
mod json;
mod kept;
mod meter;
mod objects;
mod openai;
mod reading;

pub use self::estimate::estimate_input;
pub use self::kept::AnswerMemory;
pub use self::meter::ResponseMeter;
pub use self::reading::{Ended, Fed, Reading};
