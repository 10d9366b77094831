//! Bodies in neither of the two common formats: the formats of single providers, and of speech and
//! images. Each is read for the same few facts: the most output, the input that is not counted in
//! tokens, and the stored things that it names.

use crate::issue::Issue;
use serde_json::Value;
use serde_json::value::RawValue;

use super::body::{GOOGLE_VIDEO, InspectedBody, OPENAI_VIDEO};
use super::scan::STORED_STATE;
use crate::dialect::{Api, Dialect};
use crate::endpoint::EndpointFormat;
use crate::number::count;
use crate::object::JsonObject;

/// The number of images that Imagen makes by default.
const IMAGES_BY_DEFAULT: u64 = 4;

/// Reads the fields of a body that the common formats do not have.
pub(super) fn read(
    call: &mut InspectedBody,
    body: &[u8],
    endpoint: &EndpointFormat,
    managed: bool,
    issues: &mut Vec<Issue>,
) {
    let api = endpoint.api();
    if matches!(
        api,
        Api::Chat
            | Api::Responses
            | Api::Realtime
            | Api::GptLive
            | Api::Messages
            | Api::Embeddings
            | Api::Batch
            | Api::File
            | Api::Conversation
            | Api::Opaque
    ) {
        return;
    }
    let Some(body) = JsonObject::of(body) else { return };
    if let Some(key) = body.duplicate() {
        issues.push(Issue::at([key], "must not occur more than once"));
    }
    let mut fields = NativeFields { body: &body, issues, stored: Vec::new(), endless: None };
    match api {
        Api::GenerateContent | Api::Live => fields.google(call, endpoint),
        Api::EmbedContent => {}
        Api::Predict => {
            let parameters = body.object("parameters");
            call.choices = parameters
                .and_then(|parameters| count(parameters.get("sampleCount")?.get()))
                .unwrap_or(IMAGES_BY_DEFAULT)
                .max(1);
        }
        Api::Converse => fields.converse(call, endpoint),
        Api::Invoke => fields.invoke(call, endpoint),
        Api::Cohere => fields.cohere(call),
        Api::Speech => {
            call.characters = characters(body.get("input"));
            // These are billed by the length of the speech, and the body may slow it down.
            if call.model.as_deref().is_some_and(|model| model.contains("gpt-")) {
                fields.without_length("input");
            }
        }
        Api::Video if endpoint.dialect == Dialect::Google => fields.google_video(call, endpoint),
        Api::Video => {
            let seconds = body.get("seconds").map(RawValue::get);
            call.set_video(&OPENAI_VIDEO, seconds, body.text("size").as_deref());
        }
        Api::ElevenLabs => fields.elevenlabs(call),
        Api::Deepgram => {
            call.characters = characters(body.get("text"));
        }
        Api::Ocr => fields.without_length("document"),
        _ => {}
    }
    let NativeFields { stored, endless, issues, .. } = fields;
    if managed && !endpoint.provider.allow_stored_state {
        let message = STORED_STATE;
        issues.extend(stored.into_iter().map(|path| Issue { path, message: message.to_owned() }));
    } else if let Some(path) = stored.into_iter().next() {
        call.open_ended.get_or_insert(path);
    }
    if let Some(path) = endless {
        call.open_ended.get_or_insert(path);
    }
}

struct NativeFields<'a, 'b> {
    body: &'b JsonObject<'a>,
    issues: &'b mut Vec<Issue>,
    /// The paths to fields that name something stored.
    stored: Vec<Vec<String>>,
    /// The first field whose length is not known.
    endless: Option<Vec<String>>,
}

impl NativeFields<'_, '_> {
    fn google(&mut self, call: &mut InspectedBody, endpoint: &EndpointFormat) {
        call.stream = endpoint.path.ends_with(":streamGenerateContent");
        // The other spelling is read with the common fields.
        if let Some(tier) = self.body.text("serviceTier") {
            call.add_tier("serviceTier", &tier);
        }
        for key in ["generationConfig", "generation_config"] {
            let Some(config) = self.body.object(key) else { continue };
            if let Some(twice) = config.duplicate() {
                self.issues.push(Issue::at([key, twice], "must not occur more than once"));
            }
            for name in ["maxOutputTokens", "max_output_tokens"] {
                call.max_output_tokens = self.count(&config, key, name).max(call.max_output_tokens);
            }
            for name in ["candidateCount", "candidate_count"] {
                let candidates = self.count(&config, key, name).unwrap_or(1);
                call.choices = call.choices.max(candidates);
            }
        }
    }

    /// Reads a request for videos, or for the operation that makes them.
    fn google_video(&mut self, call: &mut InspectedBody, endpoint: &EndpointFormat) {
        if !endpoint.creates_video() {
            let name = ["operationName", "operation_name"].iter();
            let names: Vec<_> = name.filter_map(|key| self.body.text(key)).collect();
            match names.as_slice() {
                [name] => call.operation = name.rsplit('/').next().map(str::to_owned),
                _ => {
                    self.issues.push(Issue::at(["operationName"], "required: the operation, once"))
                }
            }
            return;
        }
        let instances = self.body.objects("instances");
        for (position, instance) in instances.iter().enumerate() {
            let names_stored = instance.members().any(|(_, value)| {
                let value = value.and_then(|value| serde_json::from_str(value.get()).ok());
                value.is_some_and(|value| names_address(&value))
            });
            if names_stored {
                self.stored.push(vec!["instances".to_owned(), position.to_string()]);
            }
        }
        let parameters = self.body.object("parameters").unwrap_or_default().into_owned();
        if let Some(twice) = parameters.duplicate() {
            self.issues.push(Issue::at(["parameters", twice], "must not occur more than once"));
        }
        // The videos would be sent elsewhere.
        for key in ["storageUri", "storage_uri"] {
            if parameters.has(key) {
                self.stored.push(vec!["parameters".to_owned(), key.to_owned()]);
            }
        }
        let counts = ["sampleCount", "sample_count", "numberOfVideos", "number_of_videos"];
        let counts: Vec<_> =
            counts.iter().filter_map(|key| self.count(&parameters, "parameters", key)).collect();
        let samples = counts.iter().max().copied();
        let each = u64::try_from(instances.len()).unwrap_or(u64::MAX).max(1);
        call.choices = samples.unwrap_or(1).max(1).saturating_mul(each);
        let lengths = ["durationSeconds", "duration_seconds"];
        let lengths: Vec<_> = lengths.iter().filter_map(|key| parameters.get(key)).collect();
        if lengths.len() > 1 {
            let issue = "must not occur more than once";
            self.issues.push(Issue::at(["parameters", "durationSeconds"], issue));
        }
        let length = lengths.first().map(|length| length.get());
        let size = parameters.text("resolution");
        call.set_video(&GOOGLE_VIDEO, length, size.as_deref());
        if samples.is_none() {
            call.leave_open(&["parameters", "sampleCount"]);
        }
    }

    fn converse(&mut self, call: &mut InspectedBody, endpoint: &EndpointFormat) {
        call.stream = endpoint.path.ends_with("/converse-stream");
        if let Some(config) = self.body.object("inferenceConfig") {
            if let Some(twice) = config.duplicate() {
                let issue = "must not occur more than once";
                self.issues.push(Issue::at(["inferenceConfig", twice], issue));
            }
            call.max_output_tokens = self.count(&config, "inferenceConfig", "maxTokens");
        }
        // The vendors' own fields may contain anything, a guard is billed too, and the length of a
        // stored prompt is not known.
        for key in [
            "additionalModelRequestFields",
            "guardrailConfig",
            "performanceConfig",
            "promptVariables",
        ] {
            self.without_length(key);
        }
        if let Some(tier) = self.body.object("serviceTier").and_then(|tier| tier.text("type")) {
            call.add_tier("serviceTier", &tier);
        }
    }

    /// Reads a body in the format of the model's vendor. Each has its own name for the same field.
    fn invoke(&mut self, call: &mut InspectedBody, endpoint: &EndpointFormat) {
        call.stream = endpoint.path.ends_with("/invoke-with-response-stream");
        let mut most = None;
        for name in ["max_tokens", "max_completion_tokens", "max_gen_len", "max_tokens_to_sample"] {
            most = self.count(self.body, "", name).max(most);
        }
        let nested = [
            ("textGenerationConfig", "maxTokenCount"),
            ("inferenceConfig", "maxTokens"),
            ("inferenceConfig", "max_new_tokens"),
        ];
        for (key, name) in nested {
            if let Some(config) = self.body.object(key) {
                most = self.count(&config, key, name).max(most);
            }
        }
        call.max_output_tokens = most;
    }

    fn cohere(&mut self, call: &mut InspectedBody) {
        call.stream |= self.body.get("stream").is_some_and(|stream| stream.get() == "true");
        self.stores("conversation_id");
        self.without_length("connectors");
    }

    fn elevenlabs(&mut self, call: &mut InspectedBody) {
        call.characters = characters(self.body.get("text"));
        for key in ["cloud_storage_url", "source_url"] {
            self.without_length(key);
        }
        // The answer would be sent elsewhere.
        self.stores("webhook");
    }

    /// Notes a field that names something stored.
    fn stores(&mut self, key: &str) {
        if self.body.get(key).is_some() {
            self.stored.push(vec![key.to_owned()]);
        }
    }

    /// Notes a field that leaves the cost without a bound.
    fn without_length(&mut self, key: &str) {
        if self.body.get(key).is_some() {
            self.endless.get_or_insert_with(|| vec![key.to_owned()]);
        }
    }

    fn count(&mut self, object: &JsonObject<'_>, within: &str, name: &str) -> Option<u64> {
        let value = object.get(name)?;
        let number = count(value.get());
        if number.is_none() {
            let path = [within, name].into_iter().filter(|step| !step.is_empty());
            let message = "must be a whole number that is not negative";
            let path = path.map(str::to_owned).collect();
            self.issues.push(Issue { path, message: message.to_owned() });
        }
        number
    }
}

/// Unicode scalar values of a text, or of all texts in a list.
fn characters(value: Option<&RawValue>) -> u64 {
    let Some(value) = value else { return 0 };
    let texts = match serde_json::from_str::<String>(value.get()) {
        Ok(text) => vec![text],
        Err(_) => serde_json::from_str::<Vec<String>>(value.get()).unwrap_or_default(),
    };
    let all = texts.iter().map(|text| u64::try_from(text.chars().count()).unwrap_or(u64::MAX));
    all.fold(0, u64::saturating_add)
}

/// Whether a value names the address of something stored, such as a film or an image in a bucket, in any spelling.
fn names_address(value: &Value) -> bool {
    const KEYS: [&str; 3] = ["uri", "gcsuri", "fileuri"];
    let is_address = |key: &str| KEYS.contains(&&*key.to_ascii_lowercase().replace('_', ""));
    match value {
        Value::Object(members) => {
            members.iter().any(|(key, value)| is_address(key) || names_address(value))
        }
        Value::Array(items) => items.iter().any(names_address),
        _ => false,
    }
}
