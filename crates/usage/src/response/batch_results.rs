//! The results of the requests of a batch.

use bytes::Bytes;

use super::excerpt::Excerpt;
use super::meter::ResponseMeter;
use super::objects::ObjectReader;
use super::operation::OperationReader;
use super::reading::{ResponseEnd, UsageReading};
use crate::dialect::Dialect;
use crate::endpoint::EndpointFormat;
use crate::object::JsonObject;
use crate::request::InspectedBody;

/// Reads the results of a batch while they pass: one JSON object for each request, in any order.
///
/// Memory is bounded: at most one result of 8 MiB is kept. Of a longer one, the beginning and end are read for its usage.
pub struct BatchResultReader {
    /// The format of the answers to the requests of the batch.
    format: EndpointFormat,
    results: ResultList,
}

/// The place of the results.
enum ResultList {
    /// A body with nothing else.
    Whole(ObjectReader),
    /// In the operation of a batch of Google's.
    InOperation(Box<OperationReader>),
}

impl ResultList {
    fn step(&mut self, bytes: &mut &[u8]) -> bool {
        match self {
            Self::Whole(objects) => objects.step(bytes),
            Self::InOperation(operation) => operation.step(bytes),
        }
    }

    /// The result that has just ended, or the excerpt of one that was too long.
    fn item(&self) -> Result<&[u8], &Excerpt> {
        let (item, long) = match self {
            Self::Whole(objects) => (objects.item(), objects.long_item()),
            Self::InOperation(operation) => (operation.answer(), operation.long_answer()),
        };
        long.map_or(Ok(item), Err)
    }
}

impl BatchResultReader {
    /// A reader of results at `results`, whose answers have the format of the endpoint `answers`.
    pub fn new(results: &EndpointFormat, answers: &EndpointFormat) -> Self {
        let results = match results.answers_operation() {
            true => ResultList::InOperation(Box::default()),
            false => ResultList::Whole(ObjectReader::default()),
        };
        Self { format: answers.clone(), results }
    }

    /// Takes the next piece of the results. `take` gets the reading of each request that was answered. A request that
    /// failed, expired or was cancelled has none, because it costs nothing.
    pub fn feed(&mut self, mut piece: &[u8], mut take: impl FnMut(UsageReading)) {
        while self.results.step(&mut piece) {
            let is_google = self.format.dialect == Dialect::Google;
            let answer = match self.results.item() {
                Ok(result) if is_google => response_in(result),
                Ok(result) => answer_in(result),
                Err(long) if is_google => usage_in(long, "usageMetadata"),
                Err(long) => usage_in(long, "usage"),
            };
            if let Some(answer) = answer {
                take(self.read(answer));
            }
        }
    }

    fn read(&self, answer: Bytes) -> UsageReading {
        let headers = http::HeaderMap::new();
        let request = InspectedBody::empty();
        let mut meter = ResponseMeter::new(&self.format, 200, &headers, &request, false);
        meter.feed(answer);
        meter.finish(ResponseEnd::Complete)
    }
}

/// The answer in a result: `response.body` of OpenAI's with a good status, `result.message` of Anthropic's.
fn answer_in(result: &[u8]) -> Option<Bytes> {
    let result = JsonObject::of(result)?;
    let inner = |outer: &str, key: &str, holds: fn(&JsonObject<'_>) -> bool| {
        let outer = result.object(outer)?;
        let answer = outer.get(key).filter(|_| holds(&outer))?;
        Some(Bytes::copy_from_slice(answer.get().as_bytes()))
    };
    let is_good = |response: &JsonObject<'_>| {
        response.get("status_code").is_none_or(|status| status.get().starts_with('2'))
    };
    inner("response", "body", is_good).or_else(|| inner("result", "message", |_| true))
}

/// The answer in a result of Google's: `response`. A request that failed has `error` there.
fn response_in(result: &[u8]) -> Option<Bytes> {
    let response = JsonObject::of(result)?.get("response")?;
    Some(Bytes::copy_from_slice(response.get().as_bytes()))
}

/// The usage of a result that is too long to be kept, as an answer with that alone.
fn usage_in(long: &Excerpt, key: &str) -> Option<Bytes> {
    long.object(key).map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use http::Method;
    use tollgate_pricing::UsageSource;

    use super::*;

    fn read(
        (results, format): (&EndpointFormat, &EndpointFormat),
        text: &str,
        cut: usize,
    ) -> Vec<UsageReading> {
        let mut reader = BatchResultReader::new(results, format);
        let mut readings = Vec::new();
        let (first, rest) = text.as_bytes().split_at(cut);
        for piece in [first, rest] {
            reader.feed(piece, |reading| readings.push(reading));
        }
        readings
    }

    #[test]
    fn the_answered_requests_of_a_batch_are_read_at_every_cut() {
        let anthropic = EndpointFormat::of(Dialect::Anthropic, Method::POST, "/messages");
        let openai = EndpointFormat::of(Dialect::OpenAi, Method::POST, "/chat/completions");
        let google = EndpointFormat::of(Dialect::Google, Method::POST, "/models/m:generateContent");
        let google_batch = EndpointFormat::of(Dialect::Google, Method::GET, "/batches/b");
        let google_file = EndpointFormat::of(Dialect::Google, Method::GET, "/files/f:download");
        let lines = [
            (
                (&google_file, &google),
                concat!(
                    r#"{"key":"a","response":{"modelVersion":"m","usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2,"totalTokenCount":5},"candidates":[]}}"#,
                    "\n",
                    r#"{"key":"b","error":{"code":3}}"#,
                ),
            ),
            (
                (&google_batch, &google),
                concat!(
                    r#"{"name":"batches/b","metadata":{"output":{"inlinedResponses":{"inlinedResponses":["#,
                    r#"{"response":{"modelVersion":"m","usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2,"totalTokenCount":5},"candidates":[]}},"#,
                    r#"{"error":{"code":3}}]}}},"response":{"inlinedResponses":{"inlinedResponses":["#,
                    r#"{"response":{"modelVersion":"m","usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2,"totalTokenCount":5},"candidates":[]}}]}}}"#,
                ),
            ),
            (
                (&anthropic, &anthropic),
                concat!(
                    r#"{"custom_id":"a","result":{"type":"succeeded","message":{"id":"msg_1","model":"m","usage":{"input_tokens":3,"output_tokens":2}}}}"#,
                    "\n",
                    r#"{"custom_id":"b","result":{"type":"errored","error":{"type":"error"}}}"#,
                    "\n",
                    r#"{"custom_id":"c","result":{"type":"expired"}}"#,
                ),
            ),
            (
                (&openai, &openai),
                concat!(
                    r#"{"id":"1","custom_id":"a","response":{"status_code":200,"body":{"model":"m","usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}},"error":null}"#,
                    "\n",
                    r#"{"id":"2","custom_id":"b","response":{"status_code":400,"body":{"error":{}}},"error":null}"#,
                    "\n",
                    r#"{"id":"3","custom_id":"c","response":null,"error":{"code":"batch_expired"}}"#,
                ),
            ),
        ];
        for (format, text) in lines {
            for cut in 0..=text.len() {
                let readings = read(format, text, cut);
                let [reading] = readings.as_slice() else { panic!("{readings:?}") };
                assert_eq!(reading.model.as_deref(), Some("m"));
                assert_eq!(reading.source, UsageSource::Reported);
                let tokens = (reading.usage.input_tokens(), reading.usage.output_tokens());
                assert_eq!(tokens, (3, 2));
            }
        }
    }
}
