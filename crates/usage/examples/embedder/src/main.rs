//! Prices a stream of OpenAI's that was recorded: `cargo run --manifest-path crates/usage/examples/embedder/Cargo.toml`.

use http::{HeaderMap, Method};
use tollgate_pricing::Catalog;
use tollgate_usage::{InspectedBody, Dialect, ResponseEnd, EndpointFormat, ResponseMeter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let answer = include_bytes!("../../../../provider/tests/golden/openai_chat_details_stream.sse");
    let endpoint = EndpointFormat::of(Dialect::OpenAi, Method::POST, "/chat/completions");
    let mut headers = HeaderMap::new();
    headers.insert("content-type", "text/event-stream".parse()?);
    let mut meter = ResponseMeter::new(&endpoint, 200, &headers, &InspectedBody::empty(), false);
    for piece in answer.chunks(100) {
        meter.feed(piece.to_vec().into());
    }
    let reading = meter.finish(ResponseEnd::Complete);
    let model = reading.model.ok_or("the answer names no model")?;
    let day = time::macros::date!(2026 - 11 - 01);
    let prices = r#"{"rows": [{"provider": "openai", "models": ["gpt-4o*"], "prices": {"input": "2.5", "output": "10"}}]}"#;
    let cost = Catalog::from_json(prices)?.cost("openai", &model, day, &reading.usage)?;
    println!("{model}: {:?} tokens, {} USD", reading.usage.input_tokens(), cost.total()?);
    Ok(())
}
