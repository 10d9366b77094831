//! The corpus of recorded answers, and their replay.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::iter;
use std::path::Path;
use std::sync::LazyLock;

use awc::http::Method;
use awc::http::header::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use serde::Deserialize;
use tollgate_domain::UsageSource;
use tollgate_pricing::{Amount, PerModelUsage, PerUnit};
use tollgate_provider::{AnswerHeaders, ProviderSettings, ProviderTable};
use tollgate_usage::{
    EndpointFormat, InspectedBody, MeteredPiece, ResponseEnd, ResponseMeter, UsageReading,
};

/// The expected reading of an answer.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedReading {
    /// The path below the base URL of the provider that begins the file's name, or `url` as a
    /// whole.
    #[serde(default)]
    path: String,
    #[serde(default)]
    url: Option<String>,
    /// The content type, if the file's ending does not imply it.
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    response_headers: BTreeMap<String, String>,
    #[serde(default)]
    request: GoldenRequest,
    #[serde(default = "ok")]
    status: u16,
    #[serde(default)]
    request_bytes: u64,
    source: UsageSource,
    quantities: PerUnit<u64>,
    complete: bool,
    #[serde(default)]
    provider_error: bool,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    response_id: Option<String>,
    #[serde(default)]
    created_unix_s: Option<i64>,
    #[serde(default)]
    tiers: Vec<String>,
    #[serde(default)]
    cost: Option<Amount>,
    #[serde(default)]
    parts: Vec<PerModelUsage>,
    #[serde(default)]
    total_differs: bool,
    #[serde(default)]
    held: Option<String>,
}

/// The known facts of the answered request.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GoldenRequest {
    model: Option<String>,
    stream: bool,
    characters: u64,
    audio_micros: u64,
}

fn ok() -> u16 {
    200
}

/// One file of the corpus.
#[derive(Clone)]
pub(crate) struct GoldenCase {
    pub(crate) name: String,
    pub(crate) body: Vec<u8>,
    pub(crate) is_stream: bool,
    pub(crate) status: u16,
    /// The `content-encoding`; empty for none.
    pub(crate) encoding: String,
    pub(crate) held: Option<String>,
    content_type: String,
    endpoint: EndpointFormat,
    expected: ExpectedReading,
}

/// The whole corpus.
pub(crate) fn cases() -> Vec<GoldenCase> {
    static CASES: LazyLock<Vec<GoldenCase>> = LazyLock::new(read_cases);
    CASES.clone()
}

fn read_cases() -> Vec<GoldenCase> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut cases: Vec<_> = files.filter_map(|path| case(&path)).collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

fn case(path: &Path) -> Option<GoldenCase> {
    let name = path.file_stem()?.to_str()?.to_owned();
    if name.ends_with(".expected") {
        return None;
    }
    let expected = fs::read(path.with_extension("expected.json")).ok()?;
    let expected: ExpectedReading = serde_json::from_slice(&expected)
        .unwrap_or_else(|error| unreachable!("{name}.expected.json: {error}"));
    let ending = path.extension()?.to_str()?;
    let content_type = match ending {
        "sse" => "text/event-stream; charset=utf-8",
        "frames" => "application/vnd.amazon.eventstream",
        _ => "application/json",
    };
    let provider = name.split('_').next().unwrap_or_default();
    let below = || format!("https://api.{provider}.com/v1{}", expected.path);
    let url = expected.url.clone().unwrap_or_else(below);
    Some(GoldenCase {
        endpoint: endpoint(&url),
        body: fs::read(path).ok()?,
        is_stream: ending == "sse",
        content_type: expected.content_type.clone().unwrap_or_else(|| content_type.to_owned()),
        status: expected.status,
        encoding: String::new(),
        held: expected.held.clone(),
        expected,
        name,
    })
}

impl GoldenCase {
    /// A meter for the answer.
    pub(crate) fn meter(&self, strip: bool) -> ResponseMeter {
        let mut headers = HeaderMap::new();
        let mut add = |name: &str, value: &str| {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), value.parse()) {
                let value: HeaderValue = value;
                headers.insert(name, value);
            }
        };
        add("content-type", &self.content_type);
        if !self.encoding.is_empty() {
            add("content-encoding", &self.encoding);
        }
        self.expected.response_headers.iter().for_each(|(name, value)| add(name, value));
        let sent = &self.expected.request;
        let mut request = InspectedBody::of_media(sent.characters, sent.audio_micros);
        request.model.clone_from(&sent.model);
        request.stream = sent.stream;
        request.input_bytes = self.expected.request_bytes;
        ResponseMeter::new(&self.endpoint, self.status, &AnswerHeaders(&headers), &request, strip)
    }

    /// Replays the body cut in pieces, removing the event that carries only usage.
    pub(crate) fn strip(&self, cuts: &[usize]) -> ReplayResult {
        self.run(cuts, true)
    }

    fn run(&self, cuts: &[usize], strip: bool) -> ReplayResult {
        let mut meter = self.meter(strip);
        let starts = iter::once(0).chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([self.body.len()]);
        let pieces = starts.zip(ends).filter_map(|(start, end)| self.body.get(start..end));
        let mut out = feed(&mut meter, pieces.map(Bytes::copy_from_slice));
        let reading = meter.finish(ResponseEnd::Complete);
        out.add_rest(&reading);
        ReplayResult { passed: out.passed, held: out.held, reading }
    }

    /// The body for a client that did not request usage.
    pub(crate) fn without_usage_event(&self) -> Vec<u8> {
        let text = String::from_utf8_lossy(&self.body);
        let line_end = ["\r\n", "\n", "\r"].into_iter().find(|end| text.contains(end));
        let end = line_end.unwrap_or("\n").repeat(2);
        let kept = text
            .split_inclusive(end.as_str())
            .filter(|event| !(event.contains("\"choices\":[]") && event.contains("\"usage\":{")));
        kept.collect::<String>().into_bytes()
    }

    /// Checks that the reading is as stated in the file beside the answer.
    pub(crate) fn check(&self, reading: &UsageReading) {
        let expected = &self.expected;
        self.check_usage(reading);
        let name = &self.name;
        assert_eq!(reading.source, expected.source, "{name}");
        assert_eq!(reading.complete, expected.complete, "{name}");
        assert_eq!(reading.provider_error, expected.provider_error, "{name}");
        assert_eq!(reading.model, expected.model, "{name}");
        assert_eq!(reading.response_id, expected.response_id, "{name}");
        assert_eq!(reading.created_unix_s, expected.created_unix_s, "{name}");
        assert_eq!(reading.tiers, expected.tiers, "{name}");
        assert_eq!(reading.total_differs, expected.total_differs, "{name}");
    }

    /// Checks that the usage is as stated in the file beside the answer.
    pub(crate) fn check_usage(&self, reading: &UsageReading) {
        assert_eq!(reading.usage.quantities, self.expected.quantities, "{}", self.name);
        assert_eq!(reading.usage.provider_cost, self.expected.cost, "{}", self.name);
        assert_eq!(reading.parts, self.expected.parts, "{}", self.name);
    }
}

/// Every built-in provider, with a URL.
pub(crate) static TABLE: LazyLock<ProviderTable> = LazyLock::new(|| {
    let mut table = ProviderTable::builtin();
    let resource = Some("res".to_owned());
    let region = Some("eu-central-1".to_owned());
    for (name, settings) in [
        ("azure", ProviderSettings { resource, ..ProviderSettings::default() }),
        ("bedrock", ProviderSettings { region, ..ProviderSettings::default() }),
    ] {
        assert!(table.configure(name, settings).is_ok(), "{name}");
    }
    table
});

/// The endpoint of a POST to a URL.
pub(crate) fn endpoint(url: &str) -> EndpointFormat {
    let endpoint = TABLE.resolve(&Method::POST, url);
    endpoint.unwrap_or_else(|error| unreachable!("{url}: {error}")).format
}

/// The output of a meter.
#[derive(Default)]
pub(crate) struct MeterOutput {
    pub(crate) passed: Vec<u8>,
    pub(crate) held: Vec<u8>,
}

impl MeterOutput {
    /// All bytes that the client gets.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.passed.as_slice(), self.held.as_slice()].concat()
    }

    /// Adds the bytes that were kept back until the end.
    pub(crate) fn add_rest(&mut self, reading: &UsageReading) {
        if self.held.is_empty() {
            self.passed.extend_from_slice(&reading.rest);
        } else {
            assert!(reading.rest.is_empty(), "something would overtake what is held");
        }
    }
}

/// Feeds pieces, and checks that no bytes overtake held ones.
pub(crate) fn feed(
    meter: &mut ResponseMeter,
    pieces: impl IntoIterator<Item = Bytes>,
) -> MeterOutput {
    let mut out = MeterOutput::default();
    for piece in pieces {
        let settled = meter.done();
        let MeteredPiece { pass, held } = meter.feed(piece);
        if settled {
            assert!(held.is_none(), "all is held that will be");
            // By now the client has the held bytes.
            out.held.extend_from_slice(&pass);
            continue;
        }
        assert!(out.held.is_empty() || pass.is_empty(), "something overtook what is held");
        out.passed.extend_from_slice(&pass);
        out.held.extend_from_slice(held.as_deref().unwrap_or_default());
    }
    out
}

/// The result of a replay.
pub(crate) struct ReplayResult {
    pub(crate) passed: Vec<u8>,
    pub(crate) held: Vec<u8>,
    pub(crate) reading: UsageReading,
}

impl ReplayResult {
    /// All bytes that the client gets.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.passed.as_slice(), self.held.as_slice()].concat()
    }
}

/// Replays the body, cut in pieces.
pub(crate) fn replay(case: &GoldenCase, cuts: &[usize]) -> ReplayResult {
    case.run(cuts, false)
}

/// The same answer in every compression, singly and doubly.
pub(crate) fn compressions(case: &GoldenCase) -> Vec<GoldenCase> {
    let encodings = ["gzip", "deflate", "raw deflate", "br", "zstd", "gzip, br"];
    encodings
        .into_iter()
        .map(|encoding| {
            let body =
                encoding.split(", ").fold(case.body.clone(), |body, coding| pack(coding, &body));
            let encoding = encoding.trim_start_matches("raw ").to_owned();
            GoldenCase { body, encoding, ..case.clone() }
        })
        .collect()
}

fn pack(coding: &str, body: &[u8]) -> Vec<u8> {
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    let level = Compression::default();
    let packed = match coding {
        "gzip" => finish(GzEncoder::new(Vec::new(), level), body, GzEncoder::finish),
        "deflate" => finish(ZlibEncoder::new(Vec::new(), level), body, ZlibEncoder::finish),
        "raw deflate" => {
            finish(DeflateEncoder::new(Vec::new(), level), body, DeflateEncoder::finish)
        }
        "zstd" => zstd::encode_all(body, 3),
        _ => {
            let mut packed = Vec::new();
            // The best quality would take most of the time of these tests.
            let parameters = brotli::enc::BrotliEncoderParams { quality: 4, ..Default::default() };
            brotli::BrotliCompress(&mut &*body, &mut packed, &parameters).map(|_| packed)
        }
    };
    packed.unwrap_or_else(|error| unreachable!("packing into memory: {error}"))
}

fn finish<W: Write>(
    mut encoder: W,
    body: &[u8],
    finish: impl FnOnce(W) -> std::io::Result<Vec<u8>>,
) -> std::io::Result<Vec<u8>> {
    encoder.write_all(body)?;
    finish(encoder)
}
