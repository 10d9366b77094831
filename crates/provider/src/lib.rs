//! AI providers: their URLs, headers, request bodies and usage, and the client that forwards calls.
//!
//! | module | question it answers | IO |
//! |---|---|---|
//! | table | Where does this URL lead, and may the operator's key go there? | none |
//! | request | What does this body ask for, is it allowed, and what can it use at most? | none |
//! | headers | Which headers pass? | none |
//! | usage | What may the client see already, and what did the call use? | none |
//! | client | Was it sent, and what comes back? | network |
//!
//! A call passes through them in that order. [`ProviderTable::resolve`] makes an [`Endpoint`] of
//! the caller's URL, or [`Provider::endpoint`] of a path below a provider's. [`CallBody::inspect`]
//! reads the few fields that decide about money, and [`CallBody::bound`] computes how much they
//! allow. [`request_headers`] chooses the headers, [`ProviderClient::send`] sends the call, and a
//! [`ResponseMeter`] takes the answer piece by piece. The meter decides which bytes pass and which
//! wait for the settlement, and returns a [`Reading`] at the end.
//!
//! # Invariants
//! - **Bodies are not rewritten.** No body is parsed and written again. The only changes are a
//!   token that asks for usage in a stream, with the removal of the event that it causes, and the
//!   name of the model if the caller put the provider's name before it.
//! - **A key goes to one place.** A URL that can be read in two ways is refused, redirects are not
//!   followed, and addresses are checked when they are connected to, not when they are looked up.
//! - **The source of figures is stated.** A [`Reading`] says whether its figures are reported by
//!   the provider or estimated here. An explicit 0 is 0; absent and null are not.
//! - **A bound is an upper limit.** A [`UsageBound`] is rather too large than too small, and a part
//!   without a bound is named. A tool of an unknown kind has no bound.
//! - **Memory is bounded**, whatever a provider sends: endless lines, bombs, huge bodies.
//!
//! # How to add a provider
//! 1. For a known dialect, add a row to `BUILTIN` in `table/builtin.rs`: name, base URLs, the parts
//!    of its API with their dialects and rows, and whether `stream_options` may be inserted. Then
//!    generate `docs/PROVIDERS.md` again (`cargo run -p tollgate-provider --example providers`).
//!    Nothing else is needed.
//! 2. Otherwise add the dialect to [`Dialect`]: its word in the configuration, its rows in
//!    `dialect/rows.rs` ([`Operation`]: method, path below the base URL, metered or free, position
//!    of the model), the header of its key, and the tokens that it counts beyond the bytes of a
//!    body. A managed key is used on the rows and nowhere else, so list only endpoints that an
//!    extractor meters, or that are free and harmless. Maxima and stored things that its bodies
//!    name belong into `request/native.rs`.
//! 3. If it reports usage in a place of its own, add a file in `usage/` beside `openai.rs` and an
//!    arm to the function in `usage/formats.rs`. An extractor is pure: it takes one event or one
//!    body at a time, keeps the last value of each field that is not null, and at the end returns
//!    **disjoint** quantities: the details that a total contains are subtracted from it. It names
//!    the lines that end a stream, and the keys of text, for estimates.
//! 4. Add golden files in `tests/golden`: `<provider>_<feature>.json`, `.sse`, `.ndjson` or
//!    `.frames` with a `.expected.json` beside it. They are replayed at every cut and through every
//!    compression, and `<name>_stream` must come to the same as `<name>`.

mod address;
mod client;
mod dialect;
mod headers;
mod number;
mod object;
mod request;
mod table;
mod trace;
mod usage;

pub use client::{
    BodyError, Incoming, NameServer, NotSent, Outgoing, ProviderClient, Reach, Resolver, SendError,
    Timeouts, WebhookAnswer, WebhookClient, WebhookUrl, WebhookUrlError,
};
pub use dialect::{Dialect, Operation, ParseDialectError};
pub use headers::{ProviderKey, request_headers, response_headers};
pub use request::{
    BodyRefused, CallBody, OutputBound, TOKENS_PER_IMAGE_MADE, ToolCharge, UsageBound,
};
pub use table::{
    Endpoint, EndpointError, Mount, Provider, ProviderSettings, ProviderTable, ProvidersDocument,
};
pub use trace::trace_id;
pub use usage::{AnswerMemory, Ended, Fed, Reading, ResponseMeter, estimate_input};
