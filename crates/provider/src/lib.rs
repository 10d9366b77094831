//! AI providers, as Tollgate sees them.
//!
//! | module | question it answers | IO |
//! |---|---|---|
//! | table | Where does this URL lead, and may the operator's key go there? | none |
//! | request | What does this body ask for, is it allowed, and what can it use at most? | none |
//! | headers | Which headers pass? | none |
//! | usage | What may the client see already, and what did the call use? | none |
//! | client | Was it sent, and what comes back? | network |
//!
//! A call goes through them in that order: [`ProviderTable::resolve`] makes an [`Endpoint`] of the
//! caller's URL, or [`Provider::endpoint`] of a path below a provider's; [`CallBody::inspect`] reads
//! the few fields that decide about money, and [`CallBody::bound`] says how much they allow;
//! [`request_headers`] chooses what is sent along, [`ProviderClient::send`] sends it, and a
//! [`ResponseMeter`] is fed the answer piece by piece. It says which bytes may go on and which wait
//! for the settlement, and gives a [`Reading`] in the end.
//!
//! # What holds everywhere
//! - **Bytes are sacred.** No body is parsed and written again. What is changed is a token that asks
//!   for usage in a stream, with the removal of the event that it brings, and the name of the model
//!   where the caller put the provider's before it.
//! - **A key goes to one place.** A URL that can be read in two ways is refused, redirects are not
//!   followed, and addresses are checked as they are connected to, not as they were looked up.
//! - **Figures are honest.** A [`Reading`] says whether the provider reported its figures or we
//!   estimated them. An explicit 0 is 0; absent and null are not.
//! - **A bound is a bound.** A [`UsageBound`] is rather too large than too small, and what has none
//!   is named. A kind of tool that is not known is one that nothing bounds.
//! - **Memory is bounded**, whatever a provider sends: endless lines, bombs, huge bodies.
//!
//! # How to add a provider
//! 1. If it speaks a dialect that is known, add a row to `BUILTIN` in `table/builtin.rs`: name, base
//!    URLs, the parts of its API with their dialects and rows, and whether `stream_options` may be
//!    inserted; then write `docs/PROVIDERS.md` anew (`cargo run -p tollgate-provider --example
//!    providers`). That is all.
//! 2. Otherwise add the dialect to [`Dialect`]: its word in the configuration, its rows in
//!    `dialect/rows.rs` ([`Operation`]: method, path below the base URL, metered or free, where the
//!    model stands), how it takes its key, and what it counts beyond the bytes of a body. A managed
//!    key is used on the rows and nowhere else, so list only what is metered by an extractor, and
//!    what is free and harmless. What its bodies say of maxima and stored things belongs into
//!    `request/native.rs`.
//! 3. If it reports usage in a place of its own, add a file in `usage/` beside `openai.rs` and an
//!    arm to the function in `usage/formats.rs`. An extractor is pure: it is shown one event or
//!    one body at a time, keeps the last value of each field that is not null, and in the end makes
//!    **disjoint** quantities of them: what is contained in a total is taken out of it, what is
//!    beside it is left alone. It names the lines that end a stream and the keys under which text
//!    stands, for estimates.
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
