#![doc = include_str!("../README.md")]

pub mod dialect;
mod endpoint;
mod headers;
mod issue;
mod number;
mod object;
mod request;
mod response;
pub mod socket;

pub use dialect::{Dialect, Operation};
pub use endpoint::{EndpointFormat, ProviderTraits};
pub use headers::Headers;
pub use issue::Issue;
pub use request::{
    BodyRefusal, InspectedBody, MISSPELT, NamedFile, OutputBound, TOKENS_PER_IMAGE_MADE,
    ToolCharge, UploadForm, UploadReader, UsageBound, misspelt_key,
};
pub use response::{
    AnswerForm, BatchResultReader, ErrorWords, MemoryReservation, MeteredPiece, ObjectState,
    OperationReader, ResponseEnd, ResponseMemory, ResponseMeter, UsageReading, estimate_input,
};
