//! Bedrock's answers. `converse` has one form for all models. `invoke` returns the format of the
//! model's vendor, with Bedrock's own count in headers, or at the end of a stream.

mod converse;
mod invoke;

pub(super) use self::converse::ConverseExtractor;
pub(super) use self::invoke::InvokeExtractor;
