//! What the targets share: endpoints, and feeding an answer to a meter in pieces.

use std::sync::LazyLock;

use awc::http::Method;
use awc::http::header::{self, HeaderMap, HeaderValue};
use bytes::Bytes;
use tollgate_domain::UsageSource;
use tollgate_provider::{AnswerHeaders, ProviderSettings, ProviderTable};
use tollgate_usage::{InspectedBody, ResponseEnd, EndpointFormat, MeteredPiece, UsageReading, ResponseMeter};

/// All providers, with those that want a name.
pub static TABLE: LazyLock<ProviderTable> = LazyLock::new(|| {
    let mut table = ProviderTable::builtin();
    let resource = ProviderSettings { resource: Some("mine".into()), ..Default::default() };
    table.configure("azure", resource).expect("a resource");
    let region = ProviderSettings { region: Some("eu-central-1".into()), ..Default::default() };
    table.configure("bedrock", region).expect("a region");
    table
});

/// The endpoint that a POST to `url` leads to.
pub fn endpoint(url: &str) -> EndpointFormat {
    TABLE.resolve(&Method::POST, url).expect("an endpoint of the table").format
}

/// One answer, as the first bytes of an input describe it.
pub struct Answer<'a> {
    pub endpoint: &'a EndpointFormat,
    pub content_type: &'static str,
    pub body: &'a [u8],
    pub strip: bool,
    pub how: ResponseEnd,
}

/// What came of it.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// Everything that the client gets.
    pub bytes: Vec<u8>,
    pub held: Vec<u8>,
    pub reading: UsageReading,
}

/// How an answer ends, by a byte.
pub fn ended(byte: u8) -> ResponseEnd {
    [ResponseEnd::Complete, ResponseEnd::Broken, ResponseEnd::Left][usize::from(byte) % 3]
}

impl Answer<'_> {
    /// Feeds the body in pieces of these lengths, over and over, and checks on the way that nothing
    /// overtakes what is held.
    pub fn feed(&self, lengths: &[usize]) -> Outcome {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        let mut request = InspectedBody::empty();
        request.stream = true;
        let mut meter = ResponseMeter::new(self.endpoint, 200, &AnswerHeaders(&headers), &request, self.strip);
        let (mut passed, mut held) = (Vec::new(), Vec::new());
        let mut rest = self.body;
        let mut lengths = lengths.iter().cycle();
        while !rest.is_empty() {
            let length = lengths.next().copied().unwrap_or(usize::MAX).clamp(1, rest.len());
            let (piece, behind) = rest.split_at(length);
            rest = behind;
            let settled = meter.done();
            let MeteredPiece { pass, held: more } = meter.feed(Bytes::copy_from_slice(piece));
            if settled {
                assert!(more.is_none(), "all is held that will be");
                held.extend_from_slice(&pass);
                continue;
            }
            assert!(held.is_empty() || pass.is_empty(), "something overtook what is held");
            passed.extend_from_slice(&pass);
            held.extend_from_slice(more.as_deref().unwrap_or_default());
        }
        let reading = meter.finish(self.how);
        assert!(held.is_empty() || reading.rest.is_empty(), "the rest would overtake what is held");
        let mut bytes = passed;
        bytes.extend_from_slice(&held);
        bytes.extend_from_slice(&reading.rest);
        self.check(&reading);
        Outcome { bytes, held, reading: UsageReading { rest: Bytes::new(), ..reading } }
    }

    /// What holds of every reading.
    fn check(&self, reading: &UsageReading) {
        assert_eq!(reading.usage.quantities.request, u64::from(self.endpoint.metered()));
        if reading.source == UsageSource::Estimated {
            assert!(reading.complete && !reading.provider_error, "an estimate of a part");
        }
    }

    /// The same comes of it whole, in pieces, and byte by byte; and it is all there.
    pub fn check_at_cuts(&self, lengths: &[usize]) -> Outcome {
        let whole = self.feed(&[usize::MAX]);
        let parts = self.feed(lengths);
        assert_eq!(parts.bytes, whole.bytes, "the cuts change what the client gets");
        assert_eq!(parts.reading, whole.reading, "the cuts change what is read");
        if !self.strip {
            assert_eq!(whole.bytes, self.body, "bytes are sacred");
            // Lines of the last event that come before the one that shows it may have passed.
            let same_end = parts.held.ends_with(&whole.held) || whole.held.ends_with(&parts.held);
            assert!(same_end, "the cuts change what is held");
            assert_eq!(parts.held.is_empty(), whole.held.is_empty(), "held or not");
        } else {
            let mut from = self.body.iter();
            let within = whole.bytes.iter().all(|byte| from.any(|other| other == byte));
            assert!(within, "something came that was not sent");
        }
        whole
    }
}

/// The lengths of pieces that a byte stands for.
pub fn lengths(byte: u8) -> Vec<usize> {
    match byte {
        0 => vec![1],
        1..=15 => vec![usize::from(byte)],
        _ => vec![usize::from(byte >> 4), 1, usize::from(byte & 15) * 7 + 1],
    }
}
