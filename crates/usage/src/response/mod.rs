//! The usage of a call, read from the answer while it passes.
//!
//! [`ResponseMeter`] takes every piece of a body as it comes. It decides which bytes go to the
//! client at once and which wait for the settlement, keeps bounded memory, and changes no bytes
//! except for an event that it is set to remove. At the end it returns a [`UsageReading`], which states
//! the source of its figures.

mod anthropic;
mod batch;
mod batch_results;
mod bedrock;
mod body_buffer;
mod cohere;
mod decode;
mod deepgram;
mod elevenlabs;
mod error_words;
mod estimate;
mod events;
mod excerpt;
mod extractor;
mod formats;
mod frames;
mod google;
mod json;
mod meter;
mod objects;
mod openai;
mod operation;
mod reading;
mod video;

pub use self::batch_results::BatchResultReader;
pub use self::body_buffer::{MemoryReservation, ResponseMemory};
pub use self::error_words::ErrorWords;
pub use self::estimate::estimate_input;
pub use self::meter::ResponseMeter;
pub use self::operation::OperationReader;
pub use self::reading::{AnswerForm, MeteredPiece, ObjectState, ResponseEnd, UsageReading};
