//! Objects of providers belong to wallets: random histories of two merchants with three wallets each, against a model.
//! What a wallet owns is answered by the provider. Everything else is answered as unknown, and the provider is not called.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::{ScriptedResponse, TestRequest};

use crate::support::{Gateway, each_gateway_by_the_stores_clock, text};
use crate::{batches, file_batches, jobs};

/// The steps of a history.
const STEPS: u64 = 60;
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
}

impl Kind {
    const ALL: [Self; 4] = [Self::Response, Self::File, Self::Batch, Self::MessageBatch];

    fn path(self) -> &'static str {
        match self {
            Self::Response => "/responses",
            Self::File => "/files",
            Self::Batch => "/batches",
            Self::MessageBatch => "/messages/batches",
        }
    }

    /// The operations of an object that change nothing here.
    fn operations(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Response => &[("GET", ""), ("GET", "/input_items")],
            Self::File => &[("GET", ""), ("GET", "/content")],
            Self::Batch => &[("GET", "")],
            Self::MessageBatch => &[("GET", ""), ("GET", "/results")],
        }
    }

    fn runs(self) -> bool {
        matches!(self, Self::Batch | Self::MessageBatch)
    }

    /// The answer of the provider to a retrieval.
    fn answer(self, id: &str) -> ScriptedResponse {
        match self {
            Self::Response => jobs::answer(id, "completed"),
            Self::File => file_batches::file(id),
            Self::Batch => file_batches::batch(id, "in_progress", [None; 2]),
            Self::MessageBatch => batches::batch(id, "in_progress", [0; 4]),
        }
    }
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
        let call = self.gateway.call_without_key(method, path);
        match kind {
            Kind::MessageBatch => {
                call.header("x-api-key", &self.keys[key]).header("anthropic-version", "2023-06-01")
            }
            _ => call.bearer(&self.keys[key]),
        }
    }

    async fn run(&mut self) {
        for number in 0..STEPS {
            self.gateway.store.clock.advance_millis(1);
            let key = self.random.index(self.keys.len());
            match self.random.below(5) {
                0 | 1 => self.create(key, number).await,
                2 => self.list(key).await,
                3 => self.delete(key).await,
                _ => self.act(key).await,
            }
        }
        for kind in [Kind::File, Kind::Batch, Kind::MessageBatch] {
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
        let call = self.call(key, kind, "POST", kind.path());
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
        };
        self.gateway.provider.push(kind.answer(&id));
        assert_eq!(call.send().await.expect(200)["id"], id);
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

    async fn delete(&mut self, key: usize) {
        let kind = [Kind::Response, Kind::File, Kind::MessageBatch][self.random.index(3)];
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
        let kind = [Kind::File, Kind::Batch, Kind::MessageBatch][self.random.index(3)];
        self.list_kind(key, kind).await;
    }

    /// A list has one's own objects, the newest first.
    async fn list_kind(&self, key: usize, kind: Kind) {
        let own = self.objects.iter().rev();
        let own = own.filter(|object| object.kind == kind && object.owner == Some(key));
        let own: Vec<_> = own.map(|object| object.id.clone()).collect();
        own.iter().for_each(|id| self.gateway.provider.push(kind.answer(id)));
        let path = format!("{}?limit=100", kind.path());
        let listed = self.call(key, kind, "GET", &path).send().await.expect(200);
        let ids = listed["data"].as_array().unwrap().iter().map(|object| text(object, "id"));
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
            match object.kind {
                Kind::Batch => {
                    let ended = file_batches::batch(&object.id, "cancelled", [None; 2]);
                    self.gateway.provider.push(ended);
                }
                _ => {
                    self.gateway.provider.push(batches::batch(&object.id, "ended", [0, 0, 1, 0]));
                    self.gateway.provider.push(batches::results(&[]));
                }
            }
            let path = format!("/jobs/{}/refresh", text(job, "job_id"));
            let refresh = self.gateway.call_without_key("POST", &path).bearer(key).json(&json!({}));
            assert_eq!(refresh.send().await.expect(200)["state"], "cancelled");
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
