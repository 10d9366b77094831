//! AI providers: their URLs and headers, and the client that forwards calls.
//!
//! | module | question it answers | IO |
//! |---|---|---|
//! | table | Where does this URL lead, and may the operator's key go there? | none |
//! | headers | Which headers pass? | none |
//! | client | Was it sent, and what comes back? | network |
//!
//! A call passes through them in that order. [`ProviderTable::resolve`] makes an [`Endpoint`] of
//! the caller's URL, or [`Provider::endpoint`] of a path below a provider's. [`request_headers`]
//! chooses the headers, and [`ProviderClient::send`] sends the call. The crate `tollgate-usage`
//! reads the bodies, by the [`format`](Endpoint::format) of the endpoint.
//!
//! # Invariants
//! - **A key goes to one place.** A URL that can be read in two ways is refused, redirects are not
//!   followed, and addresses are checked when they are connected to, not when they are looked up.
//! - **Bodies pass as they are**, whatever their length, apart from the bytes of the managed key, which
//!   are masked.
//!
//! # How to add a provider
//! 1. For a known dialect, add a row to `BUILTIN` in `table/builtin.rs`: name, base URLs, the parts
//!    of its API with their dialects and rows, and whether `stream_options` may be inserted. Then
//!    make `docs/features/providers/` again (`cargo run -p tollgate-provider --example providers`).
//!    Nothing else is needed.
//! 2. Otherwise add the dialect first, as `tollgate-usage` describes, and the header of its key in
//!    `key_header.rs`.
//! 3. Add golden files in `tests/golden`: `<provider>_<feature>.json`, `.sse`, `.ndjson` or
//!    `.frames` with a `.expected.json` beside it. They are replayed at every cut and through every
//!    compression, and `<name>_stream` must come to the same as `<name>`.

mod address;
mod client;
mod headers;
mod key_header;
mod table;
mod trace;

/// The types of HTTP that requests and answers are made of.
pub mod http {
    pub use awc::http::header::{self, HeaderMap};
    pub use awc::http::{Method, StatusCode};
}

pub use client::{
    BodyError, CloseCode, CloseReason, FetchError, FileBody, MessageDecoder, MessageEncoder,
    NameServer, NotSentReason, ProviderClient, ProviderSocket, RequestBody, Resolver, SendError,
    SocketFault, SocketMessage, SocketOpenError, SocketReader, SocketWriter, Timeouts,
    UpstreamRequest, UpstreamResponse, UpstreamSocket, WebhookClient, WebhookResponse, WebhookUrl,
    WebhookUrlError, WebhookUrlPolicy, fetch,
};
pub use headers::{AnswerHeaders, ProviderKey, request_headers, response_headers};
pub use table::{
    Endpoint, EndpointError, Mount, Provider, ProviderSettings, ProviderTable, provider_pages,
};
pub use trace::trace_id;
