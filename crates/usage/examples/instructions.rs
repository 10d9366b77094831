//! Small programs that repeat one operation, for counting its instructions: `scripts/instructions`
//! runs them under callgrind.
//!
//! `instructions NAME TIMES` runs a program. Without arguments, the names are listed.

use std::error::Error;
use std::hint::black_box;

use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use time::macros::{date, time};
use tollgate_domain::{FeeModel, Key, PricingTerms, Quote};
use tollgate_pricing::{
    BaseCost, Catalog, Meter, PriceBook, Rate, RateType, ServedCall, Tier, TierUnit, UnitPrices,
    Usage,
};
use tollgate_usage::{Dialect, EndpointFormat, InspectedBody, ResponseEnd, ResponseMeter};

type ProgramResult = Result<(), Box<dyn Error>>;

/// An operation, repeated a number of times.
type MeasuredProgram = fn(u32) -> ProgramResult;

const PROGRAMS: [(&str, MeasuredProgram); 8] = [
    ("quote-three-tiers", quote),
    ("price-of-usage", price),
    ("highest-prices", highest),
    ("parse-and-hash-key", key),
    ("inspect-chat-request", request),
    ("measure-chat-answer", answer),
    ("measure-chat-stream", stream),
    ("pass-text-event", text),
];

fn main() -> ProgramResult {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(times)) = (arguments.next(), arguments.next()) else {
        PROGRAMS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    let program = PROGRAMS.iter().find(|(known, _)| *known == name);
    let (_, program) = program.ok_or("there is no such program")?;
    program(times.parse()?)
}

/// Prices a usage, and its fee by a meter with three tiers, all of which it reaches.
fn quote(times: u32) -> ProgramResult {
    let prices = UnitPrices {
        input: Some("0.15".parse()?),
        output: Some("0.6".parse()?),
        ..UnitPrices::default()
    };
    let tiers = [(0, "5"), (1_000_000, "3"), (10_000_000, "1")];
    let tiers = tiers.map(|(start, text)| text.parse().map(|rate| Tier { start, rate }));
    let tiers = tiers.into_iter().collect::<Result<_, _>>()?;
    let meter = Meter::new(RateType::Fixed, TierUnit::Tokens, tiers).map_err(|_| "no meter")?;
    let meter = FeeModel::from(meter);
    let service_charge_rate: Rate = "0.019".parse()?;
    let usage = Usage::tokens(4_000_000, 8_000_000);
    for _ in 0..times {
        let base = BaseCost::of(black_box(&usage), black_box(&prices))?;
        let terms = PricingTerms {
            meter: Some(&meter),
            counter: black_box(10),
            service_charge_rate,
            wallet_pays: true,
            base_due: true,
            fee_due: true,
        };
        black_box(Quote::new(&usage, base, &terms)?);
    }
    Ok(())
}

/// Prices a call by the built-in price list.
fn price(times: u32) -> ProgramResult {
    let book = PriceBook::new(Catalog::default(), tollgate_prices::catalog()?);
    let usage = Usage::tokens(2_006, 300);
    for _ in 0..times {
        let served = ServedCall {
            provider: black_box("openai"),
            models: &["gpt-4o-mini-2024-07-18", "gpt-4o-mini"],
            tiers: &[],
            on: date!(2026 - 11 - 21),
            time: Some(time!(12:00)),
            usage: black_box(&usage),
            parts: &[],
        };
        black_box(book.price(&served)?);
    }
    Ok(())
}

/// Finds the highest price of each unit that a call can use.
fn highest(times: u32) -> ProgramResult {
    let book = PriceBook::new(Catalog::default(), tollgate_prices::catalog()?);
    let listed = book.find("openai", "gpt-4o-mini", date!(2026 - 11 - 21)).ok_or("no price")?;
    for _ in 0..times {
        black_box(listed.row.highest_prices::<&str>(black_box(2_006), &[]));
    }
    Ok(())
}

/// Checks a key by its shape and checksum, and hashes it for the look-up.
fn key(times: u32) -> ProgramResult {
    for _ in 0..times {
        let key = Key::parse(black_box("tgk_3qV84z3jJ4tTJASRDDaZJFZdMyW1NrDE1AiS1N"))?;
        black_box(key.hash());
    }
    Ok(())
}

/// Reads the fields of a request that decide about money.
fn request(times: u32) -> ProgramResult {
    let body = concat!(
        r#"{"model":"gpt-4o-mini","max_tokens":64,"temperature":0.2,"stream":true,"messages":["#,
        r#"{"role":"system","content":"You answer questions about roads, and you answer them "#,
        r#"briefly, in one sentence, without any lists."},{"role":"user","content":"A toll is to be "#,
        r#"paid at a gate across an old road that leads over a mountain. Who built such gates, what "#,
        r#"was the money for, and why did most of them disappear again?"}]}"#,
    );
    let endpoint = chat();
    for _ in 0..times {
        let read = InspectedBody::inspect(black_box(body.as_bytes()), &endpoint, true);
        black_box(read.map_err(|_| "it is refused")?);
    }
    Ok(())
}

/// Measures an answer that comes in one piece.
fn answer(times: u32) -> ProgramResult {
    let body =
        Bytes::from_static(include_bytes!("../../provider/tests/golden/openai_chat_details.json"));
    let endpoint = chat();
    for _ in 0..times {
        let mut meter = meter(&endpoint, "application/json");
        black_box(meter.feed(body.clone()));
        black_box(meter.finish(ResponseEnd::Complete));
    }
    Ok(())
}

/// Measures a recorded stream to its end, event by event.
fn stream(times: u32) -> ProgramResult {
    let recorded = include_str!("../../provider/tests/golden/openai_chat_details_stream.sse");
    let events = recorded.split_inclusive("\n\n").map(|event| Bytes::from(event.as_bytes()));
    let events: Vec<_> = events.collect();
    let endpoint = chat();
    for _ in 0..times {
        let mut meter = meter(&endpoint, EVENT_STREAM);
        for event in &events {
            black_box(meter.feed(event.clone()));
        }
        let reading = meter.finish(ResponseEnd::Complete);
        if reading.usage.input_tokens() != 2_006 {
            return Err("it is not what was recorded".into());
        }
    }
    Ok(())
}

/// Passes on an event that reports no usage.
fn text(times: u32) -> ProgramResult {
    let event = Bytes::from_static(
        b"data: {\"id\":\"chatcmpl-9\",\"object\":\"chat.completion.chunk\",\"created\":1763700000,\
          \"model\":\"gpt-4o-mini-2024-07-18\",\"service_tier\":\"default\",\"system_fingerprint\":\
          \"fp_1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" mountain\"},\"logprobs\":null,\
          \"finish_reason\":null}],\"usage\":null}\n\n",
    );
    let mut meter = meter(&chat(), EVENT_STREAM);
    for _ in 0..times {
        black_box(meter.feed(event.clone()));
    }
    Ok(())
}

fn chat() -> EndpointFormat {
    EndpointFormat::of(Dialect::OpenAi, Method::POST, "/chat/completions")
}

const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

fn meter(endpoint: &EndpointFormat, content_type: &'static str) -> ResponseMeter {
    let content_type = HeaderValue::from_static(content_type);
    let headers: HeaderMap = [(CONTENT_TYPE, content_type)].into_iter().collect();
    let request = InspectedBody::empty();
    ResponseMeter::new(endpoint, 200, &headers, &request, false)
}
