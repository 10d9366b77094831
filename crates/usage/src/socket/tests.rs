//! Tests of the messages of all protocols.

use http::Method;
use serde_json::json;
use serde_json::value::RawValue;
use tollgate_pricing::UsageSource;

use super::message::AddedInput;
use super::*;
use crate::dialect::Dialect;
use crate::endpoint::EndpointFormat;
use crate::issue::Issue;
use crate::request::OutputBound;
use crate::response::{ResponseEnd, ResponseMeter};

const LIVE: &str = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent";

fn responses() -> Conversation {
    let format = EndpointFormat::of(Dialect::OpenAi, Method::CONNECT, "/responses");
    Conversation::of(&format, true)
}

fn realtime_format() -> EndpointFormat {
    EndpointFormat::of(Dialect::OpenAi, Method::CONNECT, "/realtime?model=gpt-realtime")
}

fn realtime() -> Conversation {
    Conversation::of(&realtime_format(), true)
}

fn live() -> Conversation {
    Conversation::of(&EndpointFormat::of(Dialect::Google, Method::CONNECT, LIVE), true)
}

fn gpt_live_format() -> EndpointFormat {
    EndpointFormat::of(Dialect::OpenAi, Method::CONNECT, "/live/sessions")
}

fn gpt_live() -> Conversation {
    Conversation::of(&gpt_live_format(), true)
}

/// The issues of a message.
fn issues(conversation: &Conversation, text: &str) -> Vec<Issue> {
    conversation.client_message(text.as_bytes()).unwrap_err()
}

fn role(conversation: &Conversation, text: &str) -> ClientRole {
    conversation.client_message(text.as_bytes()).unwrap().role
}

/// Takes a message that is sent on.
fn send(conversation: &mut Conversation, text: &str) {
    let message = conversation.client_message(text.as_bytes()).unwrap();
    conversation.sent(&message);
}

fn facts(conversation: &mut Conversation, text: &str) -> Vec<ProviderFact> {
    let messages = conversation.provider_messages(text.as_bytes());
    messages.into_iter().map(|message| message.fact).collect()
}

#[test]
fn a_message_is_understood_in_one_way_or_not_at_all() {
    let lane = |text: &str| responses().client_message(text.as_bytes()).map(|read| read.lane);
    assert_eq!(lane(r#"{"type":"response.create","model":"m"}"#), Ok(None));
    assert_eq!(lane(r#"{"stream_id":"a","type":"response.create"}"#), Ok(Some("a".to_owned())));
    assert_eq!(lane(r#"{"stream_id":null,"type":"response.\u0063reate"}"#), Ok(None));
    for (text, path, start) in [
        ("[]", "", "the message must be a JSON object"),
        ("{", "", "the message is not JSON: line 1"),
        ("{}", "type", "is required"),
        (r#"{"type":7}"#, "type", "must be a text"),
        (r#"{"type":null}"#, "type", "must be a text"),
        (r#"{"type":"session.update"}"#, "type", "is not a type"),
        // An error that answers one of these cannot be told from that of a response.
        (r#"{"type":"response.cancel"}"#, "type", "is not a type"),
        (r#"{"type":"response.processed"}"#, "type", "is not a type"),
        (r#"{"type":"response.steer"}"#, "type", "is not a type"),
        (r#"{"type":"response.cancel","type":"response.create"}"#, "type", "must not occur"),
        (r#"{"type":"response.cancel","Type":"response.create"}"#, "Type", "must be written"),
        (r#"{"type":"response.create","STREAM_ID":"a"}"#, "STREAM_ID", "must be written"),
        (r#"{"type":"response.create","\u017ftream_id":"a"}"#, "ſtream_id", "must be written"),
        (
            r#"{"type":"response.create","stream_id":"a","stream_id":"b"}"#,
            "stream_id",
            "must not occur",
        ),
        (
            r#"{"type":"response.create","stream_id":null,"stream_id":"b"}"#,
            "stream_id",
            "must not occur",
        ),
        (r#"{"type":"response.create","stream_id":1}"#, "stream_id", "must be a text"),
    ] {
        let issues = issues(&responses(), text);
        assert_eq!(issues[0].path.join("."), path, "{text}");
        assert!(issues[0].message.starts_with(start), "{text}: {}", issues[0].message);
    }
    for (conversation, text, path) in [
        (realtime(), r#"{"type":"response.create","response":{},"response":{}}"#, "response"),
        (
            realtime(),
            r#"{"type":"response.create","response":{"max_output_tokens":1,"max_output_tokens":9}}"#,
            "response.max_output_tokens",
        ),
        (
            realtime(),
            r#"{"type":"response.create","response":{"max_output_tokens":1,"max_response_output_tokens":9}}"#,
            "response.max_response_output_tokens",
        ),
        (realtime(), r#"{"type":"session.update","Session":{}}"#, "Session"),
        (
            realtime(),
            r#"{"type":"session.update","session":{"audio":{"input":{"turn_detection":null,"Turn_detection":{}}}}}"#,
            "session.audio.input.Turn_detection",
        ),
        (realtime(), r#"{"event_id":"a"}"#, "type"),
        (realtime(), r#"{"type":"response.cancel","event_id":7}"#, "event_id"),
        (live(), r#"{"realtimeInput":{},"realtime_input":{}}"#, "realtime_input"),
        (live(), r#"{"setup":{}}"#, "setup.model"),
    ] {
        let issues = issues(&conversation, text);
        assert_eq!(issues[0].path.join("."), path, "{text}: {}", issues[0].message);
    }
}

#[test]
fn what_the_provider_stores_is_refused_with_the_key_of_the_operator_alone() {
    let own = Conversation::of(&realtime_format(), false);
    for text in [
        r#"{"type":"session.update","session":{"prompt":{"id":"pmpt_1"}}}"#,
        r#"{"type":"response.create","response":{"prompt":{"id":"pmpt_1"}}}"#,
    ] {
        assert_eq!(issues(&realtime(), text)[0].path[1], "prompt");
        assert!(own.client_message(text.as_bytes()).is_ok());
    }
    let text = r#"{"setup":{"model":"models/m","session_resumption":{"handle":"h"}}}"#;
    assert_eq!(issues(&live(), text)[0].path.join("."), "setup.sessionResumption.handle");
    let begins = r#"{"setup":{"model":"models/m","sessionResumption":{}}}"#;
    assert_eq!(role(&live(), begins), ClientRole::Other);
}

#[test]
fn messages_of_responses_say_which_response_begins_and_ends() {
    let read = |text: &str| {
        let [message] = responses().provider_messages(text.as_bytes()).try_into().unwrap();
        let ProviderMessage { lane, fact, .. } = message;
        (lane, fact)
    };
    let id = |text: &str| responses().provider_messages(text.as_bytes())[0].response_id.clone();
    let on = |lane: &str, fact| (Some(lane.to_owned()), fact);
    let begun = r#"{"type":"response.created","stream_id":"a","response":{"id":"resp_1"}}"#;
    assert_eq!(read(begun), on("a", ProviderFact::Begun));
    assert_eq!(id(begun).as_deref(), Some("resp_1"));
    assert_eq!(id(r#"{"type":"response.created","response":7}"#), None);
    for end in ["completed", "incomplete", "failed", "cancelled"] {
        let text = format!(r#"{{"type":"response.{end}","stream_id":"b","response":{{}}}}"#);
        assert_eq!(read(&text), on("b", ProviderFact::Ended));
    }
    let error = r#"{"type":"error","status":400,"error":{"code":"previous_response_not_found"}}"#;
    assert_eq!(read(error), (None, ProviderFact::Failed { status: Some(400) }));
    let error = r#"{"type":"error","error":{},"status":"no"}"#;
    assert_eq!(read(error), (None, ProviderFact::Failed { status: None }));
    for other in [r#"{"type":"response.output_text.delta","delta":"x"}"#, "{}", "x", "[1]"] {
        assert_eq!(read(other), (None, ProviderFact::Other), "{other}");
    }
}

#[test]
fn an_error_has_the_form_of_the_providers() {
    let error = RawValue::from_string(r#"{"code":"c"}"#.to_owned()).unwrap();
    let told = |conversation: Conversation, refused: Option<&ClientMessage>| {
        conversation.error_message(402, &error, refused)
    };
    let message = told(responses(), None).unwrap();
    assert_eq!(message, r#"{"type":"error","status":402,"error":{"code":"c"}}"#);
    let refused = ClientMessage { lane: Some("a\"".to_owned()), ..ClientMessage::default() };
    let message = told(responses(), Some(&refused)).unwrap();
    assert_eq!(message, r#"{"type":"error","status":402,"error":{"code":"c"},"stream_id":"a\""}"#);
    assert_eq!(facts(&mut responses(), &message), [ProviderFact::Failed { status: Some(402) }]);
    let refused = ClientMessage { event_id: Some("e".to_owned()), ..ClientMessage::default() };
    let message = told(realtime(), Some(&refused)).unwrap();
    let message: serde_json::Value = serde_json::from_str(&message).unwrap();
    assert_eq!(message["error"], json!({"code": "c", "event_id": "e"}));
    assert!(message["event_id"].is_string());
    assert!(told(live(), Some(&refused)).is_none());
    let refused = ProviderFact::Refused { event_id: Some("e".to_owned()) };
    assert_eq!(facts(&mut realtime(), &message.to_string()), [refused]);
}

#[test]
fn messages_of_a_realtime_client_ask_or_add_or_neither() {
    use ClientRole::{Adds, Asks, Other};
    for (kind, expected) in [
        ("response.create", Asks),
        ("input_audio_buffer.append", Adds),
        ("input_audio_buffer.commit", Adds),
        ("conversation.item.create", Adds),
        ("a.newer.one", Adds),
        ("session.update", Other),
        ("response.cancel", Other),
        ("input_audio_buffer.clear", Other),
        ("conversation.item.truncate", Other),
        ("conversation.item.delete", Other),
        ("conversation.item.retrieve", Other),
        ("output_audio_buffer.clear", Other),
    ] {
        assert_eq!(role(&realtime(), &json!({ "type": kind }).to_string()), expected, "{kind}");
    }
}

#[test]
fn the_facts_of_a_realtime_provider_name_their_response() {
    let read = |text: &str| {
        let [message] = realtime().provider_messages(text.as_bytes()).try_into().unwrap();
        let ProviderMessage { response_id, fact, .. } = message;
        (response_id, fact)
    };
    let id = || Some("resp_1".to_owned());
    let created = r#"{"type":"response.created","event_id":"e","response":{"id":"resp_1"}}"#;
    assert_eq!(read(created), (id(), ProviderFact::Begun));
    let done = r#"{"type":"response.done","response":{"id":"resp_1","status":"cancelled"}}"#;
    assert_eq!(read(done), (id(), ProviderFact::Ended));
    let delta = r#"{"type":"response.output_audio.delta","response_id":"resp_1","delta":"AA=="}"#;
    assert_eq!(read(delta), (id(), ProviderFact::Other));
    let refused = |event_id: Option<&str>| {
        (None, ProviderFact::Refused { event_id: event_id.map(str::to_owned) })
    };
    let error = |error: serde_json::Value| json!({"type": "error", "error": error}).to_string();
    assert_eq!(read(&error(json!({"event_id": "e1"}))), refused(Some("e1")));
    let busy = json!({"code": "conversation_already_has_active_response", "event_id": null});
    assert_eq!(read(&error(busy)), refused(None));
    let of_another = json!({"code": "input_audio_buffer_commit_empty", "event_id": null});
    assert_eq!(read(&error(of_another)), (None, ProviderFact::Unrelated));
    let begun = r#"{"type":"input_audio_buffer.speech_started"}"#;
    assert_eq!(read(begun), (None, ProviderFact::Unrelated));
    let transcribed = r#"{"type":"conversation.item.input_audio_transcription.completed"}"#;
    assert_eq!(read(transcribed), (None, ProviderFact::Transcribed));
}

/// Settings of the client count from the moment when they are sent, and beside those of before until the provider has
/// stated them.
#[test]
fn the_settings_that_cost_more_count_until_the_provider_has_stated_them() {
    let mut conversation = realtime();
    let created = |detection: serde_json::Value| {
        json!({"type": "session.created", "session": {"type": "realtime", "model": "gpt-realtime",
            "max_output_tokens": 100,
            "audio": {"input": {"format": {"type": "audio/pcm", "rate": 24000},
                "turn_detection": detection, "transcription": null}}}})
        .to_string()
    };
    let most = |conversation: &Conversation| {
        conversation.response(None, conversation.input(), 0).max_output_tokens
    };
    assert!(!conversation.begins_responses());
    assert_eq!(facts(&mut conversation, &created(json!(null))), [ProviderFact::Settings]);
    assert!(!conversation.begins_responses() && !conversation.transcribes());
    assert_eq!(most(&conversation), Some(100));
    // More tokens, voice activity and transcription.
    send(
        &mut conversation,
        &json!({"type": "session.update", "session": {"max_output_tokens": "inf", "audio": {"input": {
            "turn_detection": {"type": "server_vad"}, "transcription": {"model": "whisper-1"}}}}})
        .to_string(),
    );
    assert!(conversation.begins_responses() && conversation.transcribes());
    assert_eq!(most(&conversation), None);
    assert_eq!(conversation.transcriber(), Some("whisper-1"));
    // The provider has refused it, and states what holds for another change.
    send(&mut conversation, r#"{"type":"session.update","session":{"max_output_tokens":7}}"#);
    facts(&mut conversation, &created(json!(null)));
    assert!(conversation.begins_responses(), "one of the two changes is not stated");
    facts(&mut conversation, &created(json!(null)));
    assert!(!conversation.begins_responses() && !conversation.transcribes());
    assert_eq!(most(&conversation), Some(100));
    // What asks for a response may state its own.
    let asks = r#"{"type":"response.create","response":{"max_output_tokens":5}}"#;
    let asks = conversation.client_message(asks.as_bytes()).unwrap();
    let body = conversation.response(Some(&asks), conversation.input_with(&asks), 0);
    assert_eq!(body.max_output_tokens, Some(5));
}

#[test]
fn the_earlier_form_of_realtime_is_read_as_well() {
    let mut conversation = realtime();
    let created = json!({"type": "session.created", "session": {"max_response_output_tokens": 50,
        "input_audio_format": "g711_ulaw", "turn_detection": {"type": "server_vad"},
        "input_audio_transcription": {"model": "whisper-1"}}});
    facts(&mut conversation, &created.to_string());
    assert!(conversation.begins_responses() && conversation.transcribes());
    let sound = "A".repeat(32_000);
    send(
        &mut conversation,
        &json!({"type": "input_audio_buffer.append", "audio": sound}).to_string(),
    );
    assert_eq!(conversation.input(), SocketInput { bytes: 0, micros: 3_000_000 });
    let body = conversation.response(None, conversation.input(), 0);
    assert_eq!((body.max_output_tokens, body.audio_micros), (Some(50), 3_000_000));
    // A session for transcription alone makes no responses.
    let created = json!({"type": "session.updated", "session": {"type": "transcription",
        "audio": {"input": {"turn_detection": {"type": "server_vad"}}}}});
    facts(&mut conversation, &created.to_string());
    assert!(!conversation.begins_responses() && conversation.transcribes());
}

#[test]
fn the_bound_of_a_response_has_all_that_was_sent_before() {
    let mut conversation = realtime();
    let format = realtime_format();
    let input = |conversation: &Conversation, open_tokens| {
        let body = conversation.response(None, conversation.input(), open_tokens);
        body.bound(&format).input_tokens
    };
    // The provider adds some around it.
    let around = 100;
    assert_eq!(input(&conversation, 0), around);
    let item = r#"{"content":[{"type":"input_text","text":"Hello"}]}"#;
    let create = format!(r#"{{"type":"conversation.item.create","item":{item}}}"#);
    send(&mut conversation, &create);
    let of_item = u64::try_from(item.len()).unwrap() - 2;
    assert_eq!(input(&conversation, 0), around + of_item);
    // The format of the sound is not known yet, so it may be 6 seconds.
    let sound = json!({"type": "input_audio_buffer.append", "audio": "A".repeat(64_000)});
    send(&mut conversation, &sound.to_string());
    assert_eq!(input(&conversation, 0), around + of_item + 60);
    let pcm = json!({"type": "session.updated",
        "session": {"audio": {"input": {"format": {"type": "audio/pcm"}}}}});
    facts(&mut conversation, &pcm.to_string());
    send(&mut conversation, &sound.to_string());
    assert_eq!(input(&conversation, 0), around + of_item + 70);
    // Sound in an item counts by its length.
    let part = json!({"type": "conversation.item.create", "item": {"content": [
        {"type": "input_audio", "audio": "A".repeat(64_000)}]}});
    let message = conversation.client_message(part.to_string().as_bytes()).unwrap();
    assert!(message.input.bytes < 100, "{:?}", message.input);
    assert_eq!(message.input.sound, 64_000);
    // A response that is open is input of the next one. What was sent since its beginning is, too.
    let before = conversation.input();
    send(&mut conversation, &sound.to_string());
    assert_eq!(input(&conversation, 1_000), around + of_item + 1_080);
    conversation.ended(Some((400, 100)), 9_999, before);
    assert_eq!(input(&conversation, 0), around + 510);
    // One that was cancelled before it began says nothing, and one without usage may be as long as it can.
    conversation.ended(Some((0, 0)), 9_999, conversation.input());
    assert_eq!(input(&conversation, 0), around + 510);
    conversation.ended(None, 9_999, conversation.input());
    assert_eq!(input(&conversation, 0), around + 9_999 + 10);
}

#[test]
fn tools_that_run_at_the_provider_leave_a_response_without_a_bound() {
    let mut conversation = realtime();
    let unbounded = |conversation: &Conversation, message: Option<&ClientMessage>| {
        let body = conversation.response(message, conversation.input(), 0);
        body.bound(&realtime_format()).unbounded
    };
    let tools = |kind: &str| json!([{ "type": kind }]);
    let with = |kind: &str| {
        json!({"type": "session.updated", "session": {"tools": tools(kind)}}).to_string()
    };
    facts(&mut conversation, &with("function"));
    assert_eq!(unbounded(&conversation, None), None);
    facts(&mut conversation, &with("mcp"));
    assert_eq!(unbounded(&conversation, None), Some(vec!["tools".to_owned()]));
    let asks = json!({"type": "response.create", "response": {"tools": tools("function")}});
    let asks = conversation.client_message(asks.to_string().as_bytes()).unwrap();
    assert_eq!(unbounded(&conversation, Some(&asks)), None);
}

#[test]
fn a_realtime_response_is_measured_by_its_last_message() {
    let conversation = realtime();
    let body = conversation.response(None, conversation.input(), 0);
    let mut meter = ResponseMeter::of_socket(&realtime_format(), &body);
    meter.message(br#"{"type":"response.created","response":{"id":"resp_1","usage":null}}"#);
    let sound =
        format!(r#"{{"type":"response.output_audio.delta","delta":"{}"}}"#, "A".repeat(9_000));
    meter.message(sound.as_bytes());
    meter.message(br#"{"type":"response.output_audio_transcript.delta","delta":"Hello"}"#);
    let done = json!({"type": "response.done", "response": {"id": "resp_1", "status": "cancelled",
        "usage": {"total_tokens": 253, "input_tokens": 132, "output_tokens": 121,
            "input_token_details": {"text_tokens": 119, "audio_tokens": 13, "cached_tokens": 64,
                "cached_tokens_details": {"text_tokens": 60, "audio_tokens": 4}},
            "output_token_details": {"text_tokens": 30, "audio_tokens": 91}}}});
    let cut = {
        let mut cut = ResponseMeter::of_socket(&realtime_format(), &body);
        cut.message(sound.as_bytes());
        cut.message(br#"{"type":"response.output_audio_transcript.delta","delta":"Hello"}"#);
        cut.finish(ResponseEnd::Left)
    };
    assert_eq!((cut.usage.output_tokens(), cut.source), (2, UsageSource::Partial));
    meter.message(done.to_string().as_bytes());
    let read = meter.finish(ResponseEnd::Complete);
    assert_eq!(
        (read.source, read.complete, read.total_differs),
        (UsageSource::Reported, true, false)
    );
    assert_eq!(read.response_id.as_deref(), Some("resp_1"));
    let of = read.usage.quantities;
    assert_eq!((of.input, of.input_audio), (59, 9));
    assert_eq!((of.cached_input, of.cached_input_audio), (60, 4));
    assert_eq!((of.output, of.output_audio), (30, 91));
}

#[test]
fn a_transcription_is_measured_in_tokens_or_seconds() {
    let mut conversation = realtime();
    let format = realtime_format().of_transcriptions();
    let session = json!({"type": "session.updated", "session": {"audio": {"input": {
        "format": {"type": "audio/pcm"}, "transcription": {"model": "whisper-1"}}}}});
    facts(&mut conversation, &session.to_string());
    let sound = json!({"type": "input_audio_buffer.append", "audio": "A".repeat(128_000)});
    send(&mut conversation, &sound.to_string());
    let body = conversation.transcription(Some("whisper-1"), conversation.input());
    let bound = body.bound(&format);
    assert_eq!((bound.others.input_second, bound.unbounded), (2_000_000, None));
    let measured = |usage: serde_json::Value| {
        let mut meter = ResponseMeter::of_socket(&format, &body);
        let message = json!({"type": "conversation.item.input_audio_transcription.completed",
            "transcript": "Hello", "usage": usage});
        meter.message(message.to_string().as_bytes());
        meter.finish(ResponseEnd::Complete)
    };
    let read = measured(json!({"type": "duration", "seconds": 1.5}));
    assert_eq!(
        (read.usage.quantities.input_second, read.source),
        (1_500_000, UsageSource::Reported)
    );
    assert!(read.complete);
    let read = measured(json!({"type": "tokens", "input_tokens": 12, "output_tokens": 3,
        "total_tokens": 15, "input_token_details": {"audio_tokens": 12, "text_tokens": 0}}));
    let of = read.usage.quantities;
    assert_eq!((of.input_audio, of.output, read.source), (12, 3, UsageSource::Reported));
    // The last but one transcription bounds what the next one may have.
    conversation.transcribed();
    assert_eq!(conversation.transcription(None, conversation.input()).audio_micros, 2_000_000);
    send(&mut conversation, &sound.to_string());
    conversation.transcribed();
    assert_eq!(conversation.transcription(None, conversation.input()).audio_micros, 2_000_000);
}

#[test]
fn live_input_counts_by_its_kind() {
    let mut conversation = live();
    let setup = json!({"setup": {"model": "models/gemini-live", "generationConfig":
        {"maxOutputTokens": 99}}});
    send(&mut conversation, &setup.to_string());
    assert!(conversation.begins_responses());
    let before = conversation.input();
    let body = conversation.response(None, before, 0);
    assert_eq!((body.max_output_tokens, body.model.as_deref()), (Some(99), Some("gemini-live")));
    let added = |text: serde_json::Value| {
        conversation.client_message(text.to_string().as_bytes()).unwrap().input
    };
    let media = |kind: &str| json!({"mimeType": kind, "data": "A".repeat(8_000)});
    for (text, expected) in [
        (
            json!({"realtimeInput": {"audio": media("audio/pcm;rate=16000")}}),
            AddedInput { bytes: 0, sound: 8_000, bytes_per_second: Some(32_000) },
        ),
        (
            json!({"realtime_input": {"media_chunks": [{"mime_type": "audio/pcm", "data": "AAAA"}]}}),
            AddedInput { bytes: 0, sound: 4, bytes_per_second: Some(32_000) },
        ),
        (
            json!({"realtimeInput": {"video": media("image/jpeg")}}),
            AddedInput { bytes: 1_200, sound: 0, bytes_per_second: None },
        ),
        (
            json!({"realtimeInput": {"text": "Hello"}}),
            AddedInput { bytes: 5, sound: 0, bytes_per_second: None },
        ),
    ] {
        assert_eq!(added(text.clone()), expected, "{text}");
    }
    assert_eq!(
        role(&conversation, r#"{"client_content":{"turnComplete":true}}"#),
        ClientRole::Adds
    );
    assert_eq!(role(&conversation, r#"{"toolResponse":{}}"#), ClientRole::Adds);
}

#[test]
fn a_turn_ends_with_its_usage() {
    use ProviderFact::{Begun, Ended, EndedBefore, Other, Settings};
    let content = r#"{"serverContent":{"modelTurn":{"parts":[{"text":"Hi"}]}}}"#;
    let complete = r#"{"serverContent":{"turnComplete":true}}"#;
    let interrupted = r#"{"serverContent":{"interrupted":true}}"#;
    let usage = r#"{"usageMetadata":{"promptTokenCount":3,"responseTokenCount":2}}"#;
    let both = r#"{"serverContent":{"turnComplete":true},"usageMetadata":{"promptTokenCount":3}}"#;
    let cut = r#"{"serverContent":{"interrupted":true},"usageMetadata":{"promptTokenCount":3}}"#;
    let call = r#"{"toolCall":{"functionCalls":[{"name":"f"}]}}"#;
    let generated = r#"{"serverContent":{"generationComplete":true}}"#;
    let cases: [(&[&str], &[&[ProviderFact]]); 8] = [
        // Usage behind the end, with it, and before it.
        (&[content, complete, usage], &[&[Begun], &[Other], &[Ended]]),
        (&[content, generated, both], &[&[Begun], &[Other], &[Ended]]),
        (&[content, usage, both], &[&[Begun], &[Other], &[Ended]]),
        // An interruption has a completion behind it, which is of no other turn.
        (&[content, interrupted, both, content], &[&[Begun], &[Other], &[Ended], &[Begun]]),
        (&[content, cut, both, usage], &[&[Begun], &[Ended], &[Other], &[Other]]),
        // A turn without usage ends when the next one begins.
        (
            &[content, complete, content, both],
            &[&[Begun], &[Other], &[EndedBefore, Begun], &[Ended]],
        ),
        // A call of a tool is a turn, also without an answer.
        (&[call, both], &[&[Begun], &[Ended]]),
        // The model has nothing to say, and has read the input.
        (&[complete, usage, complete], &[&[Other], &[Begun, Ended], &[Other]]),
    ];
    for (messages, expected) in cases {
        let mut conversation = live();
        assert_eq!(facts(&mut conversation, r#"{"setupComplete":{}}"#), [Settings]);
        let read: Vec<_> = messages.iter().map(|text| facts(&mut conversation, text)).collect();
        assert_eq!(read, expected, "{messages:?}");
    }
    let mut conversation = live();
    facts(&mut conversation, content);
    assert!(!conversation.waits_for_usage());
    facts(&mut conversation, complete);
    assert!(conversation.waits_for_usage());
    conversation.give_up_usage();
    assert_eq!(facts(&mut conversation, content), [Begun]);
}

#[test]
fn a_turn_is_measured_by_its_last_usage() {
    let mut conversation = live();
    send(&mut conversation, r#"{"setup":{"model":"models/gemini-3.8-live"}}"#);
    let body = conversation.response(None, conversation.input(), 0);
    let format = EndpointFormat::of(Dialect::Google, Method::CONNECT, LIVE);
    let mut meter = ResponseMeter::of_socket(&format, &body);
    meter.message(br#"{"serverContent":{"modelTurn":{"parts":[{"inlineData":{"mimeType":"audio/pcm","data":"AAAA"}}]}}}"#);
    meter.message(
        br#"{"usageMetadata":{"promptTokenCount":3,"responseTokenCount":1,"totalTokenCount":4}}"#,
    );
    let last = json!({"serverContent": {"turnComplete": true}, "usageMetadata": {
        "promptTokenCount": 120, "responseTokenCount": 50, "totalTokenCount": 170,
        "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 100},
            {"modality": "TEXT", "tokenCount": 20}],
        "responseTokensDetails": [{"modality": "AUDIO", "tokenCount": 45},
            {"modality": "TEXT", "tokenCount": 5}]}});
    meter.message(last.to_string().as_bytes());
    let read = meter.finish(ResponseEnd::Complete);
    assert_eq!((read.source, read.complete), (UsageSource::Reported, true));
    let of = read.usage.quantities;
    assert_eq!((of.input, of.input_audio, of.output, of.output_audio), (20, 100, 5, 45));
}

/// The attempts of a client to be bounded by less than it uses.
#[test]
fn no_message_makes_a_bound_too_small() {
    let most = |conversation: &Conversation, message: Option<&ClientMessage>| {
        conversation.response(message, conversation.input(), 0).max_output_tokens
    };
    let update = |most: serde_json::Value| {
        json!({"type": "session.update", "session": {"max_output_tokens": most}}).to_string()
    };
    let stated = |most: serde_json::Value| {
        json!({"type": "session.updated", "session": {"max_output_tokens": most}}).to_string()
    };
    // Before the provider has stated anything, there is no maximum.
    let mut conversation = realtime();
    send(&mut conversation, &update(json!(1)));
    assert_eq!(most(&conversation, None), None);
    // Its first message answers no change, and null is no maximum.
    facts(&mut conversation, &stated(json!(9)));
    send(&mut conversation, &update(json!(null)));
    assert_eq!(most(&conversation, None), None);
    // A response that is asked for may pay for the one of a speaker, who was before it.
    let mut conversation = realtime();
    let voice = json!({"type": "session.created", "session": {"max_output_tokens": 500,
        "instructions": "Be brief.", "tools": [], "turn_detection": {"type": "server_vad"}}});
    facts(&mut conversation, &voice.to_string());
    assert_eq!(conversation.input().bytes, 9, "its instructions are input");
    let asks = |most: u64| {
        let text = json!({"type": "response.create", "response": {"max_output_tokens": most}});
        realtime().client_message(text.to_string().as_bytes()).unwrap()
    };
    assert_eq!(most(&conversation, Some(&asks(1))), Some(500));
    // An error may be about another message, so the response that was asked for may come.
    conversation.refused(&asks(4_000));
    assert_eq!(most(&conversation, None), Some(4_000));
    // A model, an id and a setup stand once.
    let other = r#"{"type":"session.update","session":{"model":"gpt-4o-mini-realtime"}}"#;
    assert_eq!(issues(&conversation, other)[0].path.join("."), "session.model");
    send(&mut conversation, r#"{"type":"response.cancel","event_id":"a"}"#);
    let again = r#"{"type":"response.create","event_id":"a"}"#;
    assert_eq!(issues(&conversation, again)[0].path, ["event_id"]);
    let mut conversation = live();
    send(&mut conversation, r#"{"setup":{"model":"models/m"}}"#);
    assert_eq!(issues(&conversation, r#"{"setup":{"model":"models/m"}}"#)[0].path, ["setup"]);
    // Names of models with a date do not replace that of the URL.
    let mut conversation = realtime();
    let dated = r#"{"type":"session.created","session":{"model":"gpt-realtime-2025-08-28"}}"#;
    facts(&mut conversation, dated);
    let body = conversation.response(None, conversation.input(), 0);
    assert_eq!(body.model.as_deref(), Some("gpt-realtime"));
}

#[test]
fn live_content_is_checked_as_that_of_other_calls() {
    let file = json!({"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/x"}});
    let text = json!({"clientContent": {"turns": [{"parts": [file]}]}}).to_string();
    let found = issues(&live(), &text);
    assert_eq!(found[0].path[..2], ["clientContent", "turns"], "{found:?}");
    for (text, path) in [
        (r#"{"setup":{"model":"m","tools":{"googleSearch":{}}}}"#, "setup.tools"),
        (r#"{"realtimeInput":{"audio":{"data":"AAAA","data":""}}}"#, "data"),
    ] {
        assert_eq!(issues(&live(), text)[0].path.join("."), path);
    }
    let input = |text: &str| live().client_message(text.as_bytes()).unwrap().input;
    let one = input(
        r#"{"realtimeInput":{"mediaChunks":{"mimeType":"audio/pcm;rate=4000000000","data":"AAAA"}}}"#,
    );
    assert_eq!((one.sound, one.bytes_per_second), (4, Some(96_000)));
}

const START: &str = r#"{"type":"session.start","event_id":"e","session":{"model":"gpt-live","delegation":
    {"type":"responses","responses":{"model":"gpt","max_output_tokens":50,"instructions":"Be brief."}}}}"#;

#[test]
fn the_session_of_gpt_live_is_asked_for_once() {
    let mut conversation = gpt_live();
    let start = conversation.client_message(START.as_bytes()).unwrap();
    assert_eq!((start.role, start.begins_session), (ClientRole::Asks, true));
    let body = conversation.session(Some(&start), 60_000_000);
    let bound = body.bound(&gpt_live_format());
    assert_eq!(body.model.as_deref(), Some("gpt-live"));
    assert_eq!((bound.others.input_second, bound.unbounded), (60_000_000, None));
    conversation.sent(&start);
    assert_eq!(conversation.session(None, 1).model.as_deref(), Some("gpt-live"));
    let issues = issues(&conversation, START);
    assert_eq!(issues[0].path, ["type"]);
}

#[test]
fn a_session_that_delegates_has_responses_of_another_model() {
    let mut conversation = gpt_live();
    send(&mut conversation, r#"{"type":"session.start","session":{"model":"gpt-live"}}"#);
    assert!(!conversation.begins_responses());

    let mut conversation = gpt_live();
    send(&mut conversation, START);
    assert!(conversation.begins_responses());
    let of_responses = gpt_live_format().of_responses();
    let bound = |conversation: &Conversation| {
        let body = conversation.response(None, conversation.input(), 0);
        assert_eq!(body.model.as_deref(), Some("gpt"));
        body.bound(&of_responses)
    };
    let first = bound(&conversation);
    assert_eq!((first.output, first.unbounded.clone()), (OutputBound::Stated(50), None));
    assert!(first.input_tokens > 100, "the instructions are input");
    let sound = "A".repeat(64_000);
    send(
        &mut conversation,
        &json!({"type": "session.input_audio.append", "audio": sound}).to_string(),
    );
    assert!(bound(&conversation).input_tokens > first.input_tokens, "so is the speech");

    // A larger maximum counts from its message on, and a smaller one when the provider has stated it.
    let update = |most: u64| {
        json!({"type": "session.update", "session": {"delegation": {"type": "responses",
            "responses": {"max_output_tokens": most}}}})
        .to_string()
    };
    let state = |kind: &str, most: u64| {
        json!({"type": kind, "session": {"id": "sess_1", "model": "gpt-live", "delegation":
            {"type": "responses", "responses": {"model": "gpt-2026", "max_output_tokens": most}}}})
        .to_string()
    };
    let started = facts(&mut conversation, &state("session.started", 50));
    assert_eq!(started, [ProviderFact::Begun, ProviderFact::Settings]);
    send(&mut conversation, &update(80));
    assert_eq!(bound(&conversation).output, OutputBound::Stated(80));
    facts(&mut conversation, &state("session.updated", 80));
    send(&mut conversation, &update(10));
    assert_eq!(bound(&conversation).output, OutputBound::Stated(80));
    facts(&mut conversation, &state("session.updated", 10));
    assert_eq!(bound(&conversation).output, OutputBound::Stated(10));
}

#[test]
fn work_of_gpt_live_that_no_message_reports_is_refused() {
    let start = |session: &serde_json::Value| {
        let mut session = session.clone();
        session["model"] = "gpt-live".into();
        json!({"type": "session.start", "session": session}).to_string()
    };
    let path =
        |conversation: &Conversation, text: &str| issues(conversation, text)[0].path.join(".");
    for (session, expected) in [
        (json!({"delegation": {"type": "decisions", "decisions": {}}}), "session.delegation"),
        (json!({"delegation": {"type": "new"}}), "session.delegation"),
        (json!({"delegation": {"type": 5}}), "session.delegation.type"),
        (json!({"delegation": {"responses": {"model": "m"}}}), "session.delegation.type"),
        (json!({"delegation": {"type": "client", "decisions": {}}}), "session.delegation"),
        (
            json!({"delegation": {"type": "client", "responses": {"model": "m"}}}),
            "session.delegation.responses",
        ),
        (json!({"triggers": {"on": "session.input_transcript"}}), "session.triggers"),
        (json!({"triggers": [{"on": "session.input_transcript"}]}), "session.triggers"),
        (json!({"delegation": {"type": "responses"}}), "session.delegation.responses"),
        (
            json!({"delegation": {"type": "responses", "responses": {}}}),
            "session.delegation.responses.model",
        ),
    ] {
        assert_eq!(path(&gpt_live(), &start(&session)), expected, "{session}");
    }
    assert_eq!(path(&gpt_live(), r#"{"type":"session.start","session":{}}"#), "session.model");
    let twice = r#"{"type":"session.start","session":{"model":"a","model":"b"}}"#;
    assert_eq!(path(&gpt_live(), twice), "session.model");

    let mut conversation = gpt_live();
    send(&mut conversation, START);
    let update = |config: &serde_json::Value| {
        json!({"type": "session.update", "session": {"delegation":
            {"type": "responses", "responses": config}}})
        .to_string()
    };
    for (config, field) in [
        (json!({"model": "other"}), "model"),
        (json!({"service_tier": "priority"}), "service_tier"),
        (json!({"tools": [{"type": "function"}, {"type": "web_search"}]}), "tools"),
        (json!({"tools": {"type": "function"}}), "tools"),
    ] {
        let expected = format!("session.delegation.responses.{field}");
        assert_eq!(path(&conversation, &update(&config)), expected);
    }
    let twice =
        update(&json!({"tools": []})).replace("[]", r#"[{"type":"web_search","type":"function"}]"#);
    assert_eq!(path(&conversation, &twice), "session.delegation.responses.tools");
    let tools = json!({"tools": [{"type": "function", "name": "f"}]});
    assert_eq!(role(&conversation, &update(&tools)), ClientRole::Other);
    let other = r#"{"type":"session.update","session":{"delegation":{"type":"client"}}}"#;
    assert_eq!(path(&conversation, other), "session.delegation.type");

    let item = |content: &serde_json::Value| {
        json!({"type": "response.item.create", "item": {"type": "message", "role": "user",
            "content": [content]}})
        .to_string()
    };
    let text = item(&json!({"type": "input_text", "text": "Hello"}));
    assert_eq!(role(&conversation, &text), ClientRole::Adds);
    for content in [
        json!({"type": "input_file", "file_url": "https://files.invalid/a.pdf"}),
        json!({"type": "input_file", "file_id": "file-1"}),
        json!({"type": "input_image", "image_url": "https://files.invalid/a.png"}),
    ] {
        assert!(path(&conversation, &item(&content)).starts_with("item"), "{content}");
    }
    let reference = r#"{"type":"response.item.create","item":{"type":"item_reference","id":"m"}}"#;
    assert!(path(&conversation, reference).starts_with("item"));
    for text in [r#"{"type":"decision.create"}"#, r#"{"type":"session.fork"}"#, r#"{"type":"new"}"#]
    {
        assert_eq!(path(&conversation, text), "type", "{text}");
    }
    let create = r#"{"type":"response.create","response":{"model":"m"}}"#;
    assert_eq!(path(&conversation, create), "response");
    // Nothing passes before the session.
    let sound = r#"{"type":"session.input_audio.append","audio":"AAAA"}"#;
    assert_eq!(path(&gpt_live(), sound), "type");
}

#[test]
fn the_messages_of_gpt_live_are_of_the_session_or_of_a_response() {
    let mut conversation = gpt_live();
    send(&mut conversation, START);
    let mut read = |text: &str| {
        let messages = conversation.provider_messages(text.as_bytes());
        let of = |message: ProviderMessage| {
            (message.of_session, message.fact, message.response_id, message.lane)
        };
        messages.into_iter().map(of).collect::<Vec<_>>()
    };
    let refused = |id: Option<&str>| ProviderFact::Refused { event_id: id.map(str::to_owned) };
    let (id, lane) = (Some("resp_1".to_owned()), Some("d".to_owned()));
    for (text, expected) in [
        (r#"{"type":"session.output_audio.delta","delta":"AAAA"}"#, vec![]),
        (
            r#"{"type":"session.usage.updated","usage":{"seconds":1.5}}"#,
            vec![(true, ProviderFact::Other, None, None)],
        ),
        (
            r#"{"type":"session.closed","session":{"id":"sess_1"},"usage":{"seconds":2}}"#,
            vec![(true, ProviderFact::Ended, Some("sess_1".to_owned()), None)],
        ),
        (
            r#"{"type":"error","error":{"client_event_id":"e"}}"#,
            vec![(true, refused(Some("e")), None, None)],
        ),
        // It can be about nothing but the message that begins the session, as long as no other was sent.
        (r#"{"type":"error","error":{}}"#, vec![(true, refused(Some("e")), None, None)]),
        (
            r#"{"type":"response.event","delegation_id":"d","event":{"type":"response.created","response":{"id":"resp_1"}}}"#,
            vec![(false, ProviderFact::Begun, id.clone(), lane.clone())],
        ),
        (
            r#"{"type":"response.event","delegation_id":null,"event":{"type":"response.completed","response":{"id":"resp_1"}}}"#,
            vec![(false, ProviderFact::Ended, id, None)],
        ),
        (
            r#"{"type":"response.event","delegation_id":"d","event":{"type":"response.output_text.delta","delta":"session.closed"}}"#,
            vec![(false, ProviderFact::Other, None, lane)],
        ),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
    assert_eq!(conversation.session_micros(), 2_000_000);
}

#[test]
fn the_time_of_a_session_is_the_last_that_is_reported() {
    let measure = |messages: &[&str]| {
        let body = gpt_live().session(None, 60_000_000);
        let mut meter = ResponseMeter::of_socket(&gpt_live_format(), &body);
        for message in messages {
            meter.message(message.as_bytes());
        }
        meter.passed(7_000_000);
        let reading = meter.finish(ResponseEnd::Left);
        (reading.usage.quantities.input_second, reading.source)
    };
    let started = r#"{"type":"session.started","session":{"id":"sess_1","model":"gpt-live"}}"#;
    let usage = r#"{"type":"session.usage.updated","usage":{"seconds":1.5}}"#;
    let later = r#"{"type":"session.usage.updated","usage":{"seconds":90.25}}"#;
    let closed = r#"{"type":"session.closed","session":{"id":"sess_1"},"usage":{"seconds":91}}"#;
    let all = [started, usage, later, closed];
    assert_eq!(measure(&all), (91_000_000, UsageSource::Reported));
    assert_eq!(measure(&all[..3]), (90_250_000, UsageSource::Partial));
    assert_eq!(measure(&all[..1]), (7_000_000, UsageSource::Partial));
    let silent = r#"{"type":"session.closed","session":{"id":"sess_1"}}"#;
    assert_eq!(measure(&[started, silent]), (7_000_000, UsageSource::Estimated));
}
