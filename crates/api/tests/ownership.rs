//! Objects of providers belong to wallets: random histories of two merchants with three wallets each, against a model.
//! What a wallet owns is answered by the provider. Everything else is answered as unknown, and the provider is not called.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::{ScriptedResponse, TestRequest};

use crate::support::{Gateway, chat_answer, each_gateway_by_the_stores_clock, text};
use crate::{batches, file_batches, google_jobs, jobs, videos};

/// The steps of a history.
const STEPS: u64 = 90;
/// The wallets of a merchant.
const WALLETS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An answer that the provider keeps, without a job.
    Response,
    File,
    /// A batch of a file.
    Batch,
    /// A batch of messages.
    MessageBatch,
    Video,
    /// A batch of Google's.
    GoogleBatch,
    /// An operation of Google's that makes videos.
    GoogleVideo,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Response,
        Self::File,
        Self::Batch,
        Self::MessageBatch,
        Self::Video,
        Self::GoogleBatch,
        Self::GoogleVideo,
    ];
    /// The kinds that are listed.
    const LISTED: [Self; 5] =
        [Self::File, Self::Batch, Self::MessageBatch, Self::Video, Self::GoogleBatch];
    /// The kinds that can be deleted.
    const DELETED: [Self; 5] =
        [Self::Response, Self::File, Self::MessageBatch, Self::Video, Self::GoogleBatch];

    /// The path of a call that creates one.
    fn creation(self) -> &'static str {
        match self {
            Self::GoogleBatch => "/v1beta/models/g-1:batchGenerateContent",
            Self::GoogleVideo => "/v1beta/models/film-1:predictLongRunning",
            Self::Response | Self::File | Self::Batch | Self::MessageBatch | Self::Video => {
                self.path()
            }
        }
    }

    /// The path below which an object is.
    fn path(self) -> &'static str {
        match self {
            Self::Response => "/v1/responses",
            Self::File => "/v1/files",
            Self::Batch => "/v1/batches",
            Self::MessageBatch => "/v1/messages/batches",
            Self::Video => "/v1/videos",
            Self::GoogleBatch => "/v1beta/batches",
            Self::GoogleVideo => "/v1beta/models/film-1/operations",
        }
    }

    /// The operations of an object that change nothing here.
    fn operations(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Response => &[("GET", ""), ("GET", "/input_items")],
            Self::File | Self::Video => &[("GET", ""), ("GET", "/content")],
            Self::Batch | Self::GoogleVideo => &[("GET", "")],
            Self::MessageBatch => &[("GET", ""), ("GET", "/results")],
            Self::GoogleBatch => &[("GET", ""), ("POST", ":cancel")],
        }
    }

    fn runs(self) -> bool {
        !matches!(self, Self::Response | Self::File)
    }

    /// The answer of the provider to a retrieval.
    fn answer(self, id: &str) -> ScriptedResponse {
        match self {
            Self::Response => jobs::answer(id, "completed"),
            Self::File => file_batches::file(id),
            Self::Batch => file_batches::batch(id, "in_progress", [None; 2]),
            Self::MessageBatch => batches::batch(id, "in_progress", [0; 4]),
            Self::Video => videos::video(id, "in_progress", &json!("4"), "720x1280"),
            Self::GoogleBatch => google_jobs::batch(id, "BATCH_STATE_RUNNING", 0, &[]),
            Self::GoogleVideo => google_jobs::operation(id, None),
        }
    }

    /// The answers of the provider that show the end of a job, which costs nothing, and the state then.
    fn end(self, id: &str) -> (Vec<ScriptedResponse>, &'static str) {
        match self {
            Self::Response | Self::File => (Vec::new(), ""),
            Self::Batch => (vec![file_batches::batch(id, "cancelled", [None; 2])], "cancelled"),
            Self::MessageBatch => (
                vec![batches::batch(id, "ended", [0, 0, 1, 0]), batches::results(&[])],
                "cancelled",
            ),
            Self::Video => (vec![videos::video(id, "failed", &json!("4"), "720x1280")], "failed"),
            Self::GoogleBatch => {
                let ended = || google_jobs::batch(id, "BATCH_STATE_CANCELLED", 0, &[]);
                (vec![ended(), ended()], "cancelled")
            }
            Self::GoogleVideo => {
                let response = json!({"generateVideoResponse": {"raiMediaFilteredCount": 1}});
                (vec![google_jobs::operation(id, Some(response))], "succeeded")
            }
        }
    }
}

/// The id of an object in an answer.
fn id_of(object: &Value) -> String {
    let name = object.get("id").or_else(|| object.get("name")).unwrap();
    name.as_str().unwrap().rsplit('/').next().unwrap().to_owned()
}

/// An object at the provider.
#[derive(Clone, Debug)]
struct Object {
    id: String,
    kind: Kind,
    /// The wallet that owns it. `None` once it is deleted, and for one that never was.
    owner: Option<usize>,
}

struct History<'a> {
    gateway: &'a Gateway<'a>,
    random: Random,
    seed: u64,
    /// The secret key of each merchant.
    secrets: [String; 2],
    /// A spend key of each wallet, those of the first merchant first.
    keys: Vec<String>,
    objects: Vec<Object>,
}

impl History<'_> {
    fn call(&self, key: usize, kind: Kind, method: &str, path: &str) -> TestRequest {
        let call = TestRequest::new(self.gateway.address, method, path);
        match kind {
            Kind::MessageBatch => {
                call.header("x-api-key", &self.keys[key]).header("anthropic-version", "2023-06-01")
            }
            Kind::GoogleBatch | Kind::GoogleVideo => call.header("x-goog-api-key", &self.keys[key]),
            Kind::Response | Kind::File | Kind::Batch | Kind::Video => call.bearer(&self.keys[key]),
        }
    }

    async fn run(&mut self) {
        for number in 0..STEPS {
            self.gateway.store.clock.advance_millis(1);
            let key = self.random.index(self.keys.len());
            match self.random.below(6) {
                0 | 1 => self.create(key, number).await,
                2 => self.list(key).await,
                3 => self.delete(key).await,
                4 => self.name_file(key).await,
                _ => self.act(key).await,
            }
        }
        for kind in Kind::LISTED {
            for key in 0..self.keys.len() {
                self.list_kind(key, kind).await;
            }
        }
        self.end_jobs().await;
    }

    /// Creates an object. A batch of a file takes a random file, which must be one's own.
    async fn create(&mut self, key: usize, number: u64) {
        let kind = Kind::ALL[self.random.index(Kind::ALL.len())];
        let id = format!("{kind:?}-{}-{number}", self.seed);
        let call = self.call(key, kind, "POST", kind.creation());
        let call = match kind {
            Kind::Response => {
                let mut body = jobs::body();
                body["background"] = json!(false);
                call.json(&body)
            }
            Kind::File => {
                let form = file_batches::form("batch", &[file_batches::line("a", "m-1")]);
                call.bytes("multipart/form-data; boundary=x", &form)
            }
            Kind::Batch => {
                let file = self.random_object(Kind::File);
                let body = json!({"input_file_id": file.id, "endpoint": "/v1/chat/completions"});
                if file.owner != Some(key) {
                    let calls = self.gateway.provider.calls();
                    jobs::assert_body_issues(&call.json(&body).send().await, &["input_file_id"]);
                    self.gateway.provider.assert_calls(calls);
                    return;
                }
                call.json(&body)
            }
            Kind::MessageBatch => call.json(&json!({"requests": [batches::request("a", "m-1")]})),
            Kind::Video => call.json(&videos::body("film-1", &json!("4"), "720x1280")),
            Kind::GoogleBatch => call.json(&google_jobs::body(&[google_jobs::request("a")])),
            Kind::GoogleVideo => call.json(&google_jobs::film(&json!({"durationSeconds": 4}))),
        };
        self.gateway.provider.push(kind.answer(&id));
        assert_eq!(id_of(&call.send().await.expect(200)), id);
        self.objects.push(Object { id, kind, owner: Some(key) });
    }

    /// A random object of a kind, or one that does not exist.
    fn random_object(&mut self, kind: Kind) -> Object {
        let known: Vec<_> = self.objects.iter().filter(|object| object.kind == kind).collect();
        match self.random.index(known.len() + 1) {
            0 => Object { id: format!("{kind:?}-unknown"), kind, owner: None },
            number => known[number - 1].clone(),
        }
    }

    async fn act(&mut self, key: usize) {
        let kind = Kind::ALL[self.random.index(Kind::ALL.len())];
        let object = self.random_object(kind);
        let (method, tail) = kind.operations()[self.random.index(kind.operations().len())];
        let call = self.call(key, kind, method, &format!("{}/{}{tail}", kind.path(), object.id));
        let calls = self.gateway.provider.calls();
        if object.owner == Some(key) {
            self.gateway.provider.push(kind.answer(&object.id));
            call.send().await.expect(200);
            self.gateway.provider.assert_calls(calls + 1);
        } else {
            assert_eq!(call.send().await.status, 404, "{method} {tail} of {object:?} by {key}");
            self.gateway.provider.assert_calls(calls);
        }
    }

    /// Names a file in a message.
    async fn name_file(&mut self, key: usize) {
        let file = self.random_object(Kind::File);
        let content = json!([{"type": "file", "file": {"file_id": file.id}}]);
        let body = json!({"model": "m-1", "max_tokens": 9,
            "messages": [{"role": "user", "content": content}]});
        let call = self.call(key, Kind::File, "POST", "/v1/chat/completions").json(&body);
        let calls = self.gateway.provider.calls();
        if file.owner == Some(key) {
            self.gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
            call.send().await.expect(200);
        } else {
            let path = "messages.0.content.0.file.file_id";
            jobs::assert_body_issues(&call.send().await, &[path]);
            self.gateway.provider.assert_calls(calls);
        }
    }

    async fn delete(&mut self, key: usize) {
        let kind = Kind::DELETED[self.random.index(Kind::DELETED.len())];
        let object = self.random_object(kind);
        let path = format!("{}/{}", kind.path(), object.id);
        let call = self.call(key, kind, "DELETE", &path);
        let calls = self.gateway.provider.calls();
        let is_own = object.owner == Some(key);
        if is_own && !kind.runs() {
            self.gateway.provider.push(ScriptedResponse::json(200, json!({"deleted": true})));
            call.send().await.expect(200);
            let deleted = self.objects.iter_mut().find(|one| one.id == object.id);
            deleted.unwrap().owner = None;
            return;
        }
        // The job of a batch runs.
        let expected = if is_own { 409 } else { 404 };
        assert_eq!(call.send().await.status, expected, "{object:?} by {key}");
        self.gateway.provider.assert_calls(calls);
    }

    async fn list(&mut self, key: usize) {
        let kind = Kind::LISTED[self.random.index(Kind::LISTED.len())];
        self.list_kind(key, kind).await;
    }

    /// A list has one's own objects, the newest first.
    async fn list_kind(&self, key: usize, kind: Kind) {
        let own = self.objects.iter().rev();
        let own = own.filter(|object| object.kind == kind && object.owner == Some(key));
        let own: Vec<_> = own.map(|object| object.id.clone()).collect();
        own.iter().for_each(|id| self.gateway.provider.push(kind.answer(id)));
        let (limit, data) = match kind {
            Kind::GoogleBatch => ("pageSize", "operations"),
            _ => ("limit", "data"),
        };
        let path = format!("{}?{limit}=100", kind.path());
        let listed = self.call(key, kind, "GET", &path).send().await.expect(200);
        let ids = listed[data].as_array().unwrap().iter().map(id_of);
        // They are retrieved at once, so the scripted answers may be in another order.
        let (mut ids, mut own) = (ids.collect::<Vec<_>>(), own);
        ids.sort();
        own.sort();
        assert_eq!(ids, own, "{kind:?} of {key}");
    }

    /// Ends all jobs, by a refresh each.
    async fn end_jobs(&self) {
        for object in self.objects.iter().filter(|object| object.kind.runs()) {
            let key = &self.secrets[object.owner.unwrap() / WALLETS];
            let path = "/jobs?limit=100&state=running";
            let jobs = self.gateway.call_without_key("GET", path).bearer(key).send().await;
            let jobs = jobs.expect(200);
            let is_of = |job: &&Value| job["provider_object_id"] == object.id;
            let job = jobs["data"].as_array().unwrap().iter().find(is_of).unwrap();
            let (answers, state) = object.kind.end(&object.id);
            answers.into_iter().for_each(|answer| self.gateway.provider.push(answer));
            let path = format!("/jobs/{}/refresh", text(job, "job_id"));
            let refresh = self.gateway.call_without_key("POST", &path).bearer(key).json(&json!({}));
            assert_eq!(refresh.send().await.expect(200)["state"], state, "{object:?}");
        }
    }
}

/// A spend key of a new wallet with credit.
async fn new_wallet(gateway: &Gateway<'_>, secret: &str, reference_id: &str) -> String {
    let made = async |path: &str, body: Value| {
        let call = gateway.call_without_key("POST", path).bearer(secret).json(&body);
        call.send().await.expect(201)
    };
    let customer = made("/connections", json!({"reference_id": reference_id})).await;
    let wallet = text(&customer, "wallet_id");
    made(&format!("/wallets/{wallet}/credits"), json!({"amount": "100"})).await;
    text(&made("/spend_keys", json!({"name": "Key", "wallet_id": wallet})).await, "key")
}

#[test]
fn in_a_random_history_each_wallet_reaches_its_own_objects_only() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let other = gateway.store.merchant().await;
        let secrets = [gateway.key().to_owned(), other.key.reveal().to_owned()];
        for seed in 0..seeds(4) {
            let mut keys = Vec::new();
            for (merchant, secret) in secrets.iter().enumerate() {
                for number in 0..WALLETS {
                    let reference_id = format!("owner-{seed}-{merchant}-{number}");
                    keys.push(new_wallet(gateway, secret, &reference_id).await);
                }
            }
            let random = Random(seed);
            let secrets = secrets.clone();
            let objects = Vec::new();
            History { gateway, random, seed, secrets, keys, objects }.run().await;
        }
    });
}
