//! A simulated AI provider: it accepts the requests of OpenAI, Anthropic and Google over real sockets,
//! works with their official clients, and counts the tokens of its answers.
//!
//! ```
//! # async fn run() -> std::io::Result<()> {
//! use tollgate_simulator::{Behavior, Simulator};
//!
//! let simulator = Simulator::start("127.0.0.1:0", Behavior::default())?;
//! println!("POST {}", simulator.url("/v1/chat/completions"));
//! simulator.stop().await;
//! assert_eq!(simulator.stats().calls, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Routes
//!
//! | route | answer |
//! |---|---|
//! | `POST /v1/chat/completions` | JSON, or a stream that honours `stream_options.include_usage` |
//! | `POST /v1/completions` | JSON or a stream, in the older format |
//! | `POST /v1/responses` | JSON, or a stream of `response.*` events; with `background` [a job](#jobs) |
//! | `GET`, `DELETE /v1/responses/{id}` | a response in the background; with `stream=true` its events after `starting_after` |
//! | `POST /v1/responses/{id}/cancel` | ends it |
//! | `GET /v1/responses/{id}/input_items` | its input |
//! | `GET /v1/responses` | a [WebSocket](#websockets) on which each `response.create` is answered |
//! | `GET /v1/realtime` | a [WebSocket](#websockets) of OpenAI's Realtime API |
//! | `GET /v1/live/sessions` | a [WebSocket](#websockets) of OpenAI's GPT-Live |
//! | `GET /ws/{service}` | a [WebSocket](#websockets) of Gemini Live |
//! | `POST /v1/embeddings` | one canned vector per input, as numbers or base64 |
//! | `GET /v1/models`, `/v1/models/{id}` | a short list; Anthropic's format if the request has `anthropic-version` |
//! | `POST /v1/messages` | JSON, or a stream from `message_start` to `message_stop` |
//! | `POST /v1/messages/count_tokens` | the words of the prompt |
//! | `POST`, `GET /v1/messages/batches` | a batch of messages, which is [a job](#jobs); the batches |
//! | `GET`, `DELETE /v1/messages/batches/{id}` | a batch |
//! | `POST /v1/messages/batches/{id}/cancel` | ends it |
//! | `GET /v1/messages/batches/{id}/results` | its results, a line each, once it has ended |
//! | `POST`, `GET /v1/files`, `/v1/batches` | files, and batches of the requests in one, in OpenAI's format |
//! | `POST /v1/conversations`, and `GET`, `POST`, `DELETE` of one and of its `/items` | conversations; responses do not read them |
//! | `POST`, `GET /v1/videos` | a video in OpenAI's format, which is [a job](#jobs) |
//! | `POST /v1beta/models/{model}:generateContent`, `:streamGenerateContent` | JSON, or a stream as with `alt=sse` |
//! | `POST /v1beta/models/{model}:batchGenerateContent` | a batch of Google's, which is [a job](#jobs) |
//! | `GET /v1beta/batches`, `GET`, `DELETE /v1beta/batches/{id}` | the batches; a batch, with its answers once it has ended |
//! | `POST /v1beta/batches/{id}:cancel` | ends it |
//! | `POST /v1beta/models/{model}:predictLongRunning` | videos of Google's, which are [a job](#jobs) |
//! | `GET /v1beta/models/{model}/operations/{id}` | the operation of videos; at Vertex AI's paths `POST …:fetchPredictOperation` |
//! | `GET /v1beta/files/{id}:download` | the content of a video |
//! | `GET /stats` | [`Stats`] as JSON |
//! | `POST /webhooks/{name}` | takes a message, under any name, [as the query says](#a-receiver-of-messages) |
//! | `GET /webhooks/{name}` | the messages that this name received, as JSON |
//!
//! Everything is deterministic except ids and times. A token is a word. The answer repeats the last
//! words of the prompt and continues with fixed ones. A request with `tools` is answered by one call
//! of the first tool, unless the prompt ends in a tool's result. `max_tokens` and its siblings cut
//! the answer short as they do at a real provider.
//!
//! # Behaviour
//!
//! Each setting is a field of [`Behavior`]. A header overrides it for one call, also through a gateway.
//! An unknown setting or a value that does not parse is answered with 400, so that a misspelt test fails.
//!
//! | header | meaning | default |
//! |---|---|---|
//! | `x-simulate-first-byte-delay-ms` | wait before the status line | 0 |
//! | `x-simulate-chunk-delay-ms` | wait before each event of a stream but the first | 0 |
//! | `x-simulate-words` | words of the answer; in a stream each is one event | 16 |
//! | `x-simulate-input-tokens` | tokens of the whole prompt, cached ones included | its words |
//! | `x-simulate-output-tokens` | tokens of the whole answer, reasoning included | its words |
//! | `x-simulate-cached-tokens` | tokens of the prompt that are read from a cache | 0 |
//! | `x-simulate-reasoning-tokens` | tokens of the answer that are reasoning | 0 |
//! | `x-simulate-usage` | `reported`, `missing` (no such field, no such event), `zero` or `null` | `reported` |
//! | `x-simulate-status` | anything but 200 is answered with an error of that status | 200 |
//! | `x-simulate-retry-after` | seconds, sent with an error | 1 with a 429 |
//! | `x-simulate-cut-after-events` | break the connection after N events; a plain body breaks half-way | `none` |
//! | `x-simulate-error-after-events` | send an error event after N events, and end | `none` |
//! | `x-simulate-encoding` | `identity` or `gzip`, independent of what the request accepts | `identity` |
//! | `x-simulate-snapshot` | append `-` and this to the model in the answer | `none` |
//! | `x-simulate-service-tier` | the tier that the answer names | `default` |
//! | `x-simulate-job-ms` | the time until a job ends | 1000 |
//! | `x-simulate-job-outcome` | `succeeded`, `failed`, `expired`: half of a batch is not served, or `forgotten`: the job is unknown from its end on | `succeeded` |
//! | `x-simulate-failed-requests` | the requests of a batch, its last ones, that fail | 0 |
//! | `x-simulate-event-url` | the address to which [events](#jobs) of jobs are sent | `none` |
//! | `x-simulate-event-secret` | the secret that signs them, `whsec_…` | `none` |
//! | `x-simulate-events` | `sent`, `lost`, `doubled` or `forged`: signed with another secret | `sent` |
//! | `x-simulate-event-delay-ms` | the time from the end of a job to its event | 0 |
//! | `x-simulate-session-ms` | the time after which a conversation on a WebSocket ends | `none` |
//! | `x-simulate-stamps` | `true`: each word of a stream is the time at which it was sent, in ns since 1970 | `false` |
//!
//! Where the numbers contradict each other, the whole is raised to its part: 5 cached tokens of a
//! prompt of 3 words make a prompt of 5.
//!
//! # Counts
//!
//! Tokens are counted when the answer begins, even if the connection breaks, as a provider counts
//! them. They are counted where the usage is not reported (`missing`, `null`), but not where it is
//! reported as `zero`, and not for errors.
//!
//! # Jobs
//!
//! A response with `background` is `queued` when it is created, `in_progress` until `job-ms` have passed, and then
//! ends as `job-outcome` says. Its tokens are counted when its end is first seen. A stream of it sends its events
//! at once when it has ended.
//!
//! A batch is `in_progress` until `job-ms` have passed or it is cancelled, and then `ended`. A batch that is `failed`
//! ends, and all of its requests have failed. The tokens of its requests are counted with those of
//! `/v1/messages/batches` when its end is first seen. A batch that is cancelled costs nothing.
//!
//! Files and the batches of OpenAI's format are played alike. A batch that is `failed` has no results: its file could not
//! be read. The lines of results are in the reverse order of the requests.
//!
//! A video is `queued`, and `completed` after `job-ms`. Its content is a few bytes that are no video. Its seconds are not
//! counted.
//!
//! Google's operations are alike. A batch that is `failed` or `expired` has no answers. Of videos, `failed-requests` are
//! filtered.
//!
//! With `event-url`, an event by Standard Webhooks tells the end of a response, batch or video in OpenAI's format, such
//! as `{"type": "response.completed", "data": {"id": "resp_…"}}`. It is sent once, whatever the answer. A job that is
//! cancelled has its event at the time at which it would have ended.
//!
//! # WebSockets
//!
//! The headers of the upgrade set the behaviour of all responses on it. `chunk-delay-ms` is the pace of the messages.
//!
//! In conversations, sound that is not zero is speech, and it ends with silence: 200 ms at OpenAI, or what
//! `silence_duration_ms` says, and 500 ms at Google. A second of it has 10 tokens. With voice activity a response
//! begins when the speech has ended, and new speech interrupts one. The input of a response is all that came before.
//! Each word of a response is a token of text and, unless only text is asked for, one of sound. The first tool is called
//! unless the last input is a tool's result.
//!
//! `/v1/realtime` knows the settings of sessions in the current form, `response.create` and `response.cancel`, items, and
//! transcription: `whisper-*` reports seconds, and another model tokens. A response with `status` other than 200
//! fails. After `session-ms` the session expires, with an error, or at Google with `goAway`.
//!
//! `/v1/live/sessions` reports the time of the session every 500 ms, and `cut-after-events` counts these reports. The
//! time is counted as input tokens: one is a millisecond. When speech has ended, the model speaks, and delegates to the
//! Responses API if the session says so. `response.create` delegates at once.
//!
//! # A receiver of messages
//!
//! `POST /webhooks/{name}` is a receiver of webhooks. It keeps each message, and answers with 200
//! unless its query says otherwise. A query that it does not know is answered with 400.
//!
//! | parameter | meaning |
//! |---|---|
//! | `status=503` | answers with this status |
//! | `fail=3` | answers the first three messages with 500 |
//! | `hang=1` | never answers |
//! | `cut=1` | closes the connection without an answer |
//! | `delay_ms=100` | answers, or closes, after this time |
//! | `body_bytes=1000` | answers with a body of this size, 1 MiB at most |
//! | `redirect=URL` | answers with 307 and this `location` |
//!
//! `GET /webhooks/{name}` returns them, oldest first, each with its `number`, `at_ms` (since 1970),
//! `headers`, `body` as text and `answered`: a status, `"hang"` or `"cut"`. The latest 4,096 messages,
//! of 64 MiB, are kept.

mod answer;
mod anthropic;
mod background;
mod behavior;
mod chat;
mod completions;
mod conversations;
mod deliver;
mod embeddings;
mod endpoint;
mod error;
mod events;
mod file_batches;
mod form;
mod google;
mod google_operations;
mod jobs;
mod message_batches;
mod models;
mod prompt;
mod receiver;
mod refuse;
mod request;
mod responses;
mod server;
mod sockets;
mod stats;
mod videos;

pub use behavior::{Behavior, Encoding, EventDelivery, InvalidSetting, JobOutcome, UsageReport};
pub use server::Simulator;
pub use stats::{EndpointStats, Stats};
