//! The destinations of keys and messages: with any URL, and with any addresses of its name, the service
//! connects to no other host.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_api::Settings;
use tollgate_gateway::CallSettings;
use tollgate_provider::{Resolver, Timeouts, WebhookUrlPolicy};
use tollgate_testkit::urls::{
    NON_PUBLIC_ADDRESSES, NON_PUBLIC_HOSTS, UrlAddresses, VACANT_PUBLIC_ADDRESS, deceptive_urls,
};
use tollgate_testkit::{ScriptedProvider, ScriptedResponse, TestResponse};

use crate::support::{
    self, Gateway, PUBLIC_HOST, assert_refused, chat_answer, chat_body, each_gateway_with,
    each_gateway_with_webhooks_under, settings, text,
};

/// A name server that returns the answers of a test in turn, and then the last one for every further
/// request.
#[derive(Clone, Default)]
struct ScriptedResolver(Arc<Mutex<VecDeque<Vec<IpAddr>>>>);

impl ScriptedResolver {
    /// Sets the answers from now on, for all names.
    fn say(&self, answers: &[&[&str]]) {
        let parse = |answer: &&[&str]| answer.iter().map(|text| text.parse().unwrap()).collect();
        *self.0.lock().unwrap() = answers.iter().map(parse).collect();
    }

    /// Whether all answers but the last were given.
    fn are_spent(&self) -> bool {
        self.0.lock().unwrap().len() <= 1
    }

    fn resolver(&self) -> Resolver {
        let Self(answers) = self.clone();
        Resolver::Names(Arc::new(move |_| {
            let mut answers = answers.lock().unwrap();
            match answers.len() {
                0 | 1 => answers.front().cloned().unwrap_or_default(),
                _ => answers.pop_front().unwrap_or_default(),
            }
        }))
    }
}

fn settings_with(names: &ScriptedResolver, webhooks: WebhookUrlPolicy) -> Settings {
    Settings {
        resolver: names.resolver(),
        webhooks,
        standard_rate_per_minute: 0,
        // A connection to an unused address ends soon.
        calls: CallSettings {
            timeouts: Timeouts { connect: Duration::from_millis(500), ..settings().calls.timeouts },
            ..settings().calls
        },
        ..settings()
    }
}

const OWN_KEY: &str = "sk-of-the-caller";

impl Gateway<'_> {
    /// One token for calls with the operator's key, and one for calls with the caller's own.
    fn both_tokens(&self) -> [String; 2] {
        [self.token(&json!({})), self.token(&json!({"provider_key": OWN_KEY}))]
    }

    async fn ask(&self, u: &str, token: &str) -> TestResponse {
        self.forward_to(u).bearer(token).json(&chat_body()).send().await
    }

    /// A chat URL of the provider that must be public, with the port of the scripted one.
    fn public(&self) -> String {
        format!("https://{PUBLIC_HOST}:{}/v1/chat/completions", self.provider.addr().port())
    }

    /// Creates a webhook and sends a test message to it; returns its path and the delivery's.
    async fn hook(&self, url: &str) -> (String, String) {
        let new = json!({"name": "Hook", "url": url, "events": null});
        let made = self.post("/webhooks", &new).await.expect(201);
        let path = format!("/webhooks/{}", text(&made, "webhook_id"));
        let test = self.post(&format!("{path}/test"), &json!({})).await.expect(200);
        let delivery = format!("{path}/deliveries/{}", text(&test, "delivery_id"));
        (path, delivery)
    }

    /// A delivery, once this number of attempts has ended.
    async fn tried(&self, delivery: &str, attempts: u64) -> Value {
        let look = async {
            loop {
                let shown = self.get(delivery).await.expect(200);
                if shown["attempts"] == attempts && !shown["duration_ms"].is_null() {
                    return shown;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let tried = tokio::time::timeout(Duration::from_secs(30), look).await;
        tried.unwrap_or_else(|_| panic!("attempt {attempts} of {delivery} never ended"))
    }
}

#[test]
fn a_public_name_that_leads_inside_is_not_followed() {
    let names = ScriptedResolver::default();
    each_gateway_with(settings_with(&names, WebhookUrlPolicy::default()), async |gateway| {
        let tokens = gateway.both_tokens();
        for (count, address) in NON_PUBLIC_ADDRESSES.into_iter().enumerate() {
            names.say(&[&[address]]);
            let token = &tokens[count % 2];
            let answer = gateway.ask(&gateway.public(), token).await;
            assert_refused(&answer, 502, "provider_unreachable");
            assert!(!answer.text().contains(address), "{}", answer.text());
        }
        // Several addresses at once, none of which is public.
        names.say(&[&NON_PUBLIC_ADDRESSES]);
        for token in &tokens {
            let answer = gateway.ask(&gateway.public(), token).await;
            assert_refused(&answer, 502, "provider_unreachable");
        }
        assert_eq!(gateway.provider.connections(), 0);
        for record in gateway.records().await {
            assert_eq!(record["status"], "error");
            assert_eq!(record["total_request_cost"], "0.0000000000");
        }
        assert_eq!(gateway.wallet().await.1, "0.0000000000", "nothing is held");
    });
}

#[test]
fn addresses_are_judged_as_they_are_connected_to_and_not_before() {
    let names = ScriptedResolver::default();
    each_gateway_with(settings_with(&names, WebhookUrlPolicy::default()), async |gateway| {
        for token in gateway.both_tokens() {
            // First a public address, which an early check would accept, then a private one.
            names.say(&[&[VACANT_PUBLIC_ADDRESS], &["127.0.0.1"]]);
            let first = gateway.ask(&gateway.public(), &token).await;
            assert!(names.are_spent(), "the name was asked for");
            assert!([502, 504].contains(&first.status), "{}", first.text());
            let second = gateway.ask(&gateway.public(), &token).await;
            assert_refused(&second, 502, "provider_unreachable");
            // Both at once, in both orders: the service connects only to the public one.
            for both in [[VACANT_PUBLIC_ADDRESS, "127.0.0.1"], ["127.0.0.1", VACANT_PUBLIC_ADDRESS]]
            {
                names.say(&[&both]);
                let mixed = gateway.ask(&gateway.public(), &token).await;
                assert!([502, 504].contains(&mixed.status), "{}", mixed.text());
            }
        }
        assert_eq!(gateway.provider.connections(), 0);
        // Checks the count itself: where the operator allows private addresses, the call connects.
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        gateway.chat().send().await.expect(200);
        assert_eq!(gateway.provider.connections(), 1);
    });
}

#[test]
fn a_webhooks_name_is_judged_at_every_attempt() {
    let names = ScriptedResolver::default();
    let settings = settings_with(&names, WebhookUrlPolicy { http: true, private_network: false });
    each_gateway_with_webhooks_under(settings, async |gateway| {
        let port = gateway.provider.addr().port();
        for scheme in ["http", "https"] {
            // The address of the name is not known when the webhook is created.
            names.say(&[&["127.0.0.1"]]);
            let url = format!("{scheme}://receiver.test:{port}/hooks");
            let (_, delivery) = gateway.hook(&url).await;
            let mut attempts = 1;
            assert_eq!(gateway.tried(&delivery, attempts).await["error"], "address_private");
            for address in NON_PUBLIC_ADDRESSES.into_iter().step_by(11) {
                names.say(&[&[address]]);
                gateway.post(&format!("{delivery}/redeliver"), &json!({})).await.expect(200);
                attempts += 1;
                let tried = gateway.tried(&delivery, attempts).await;
                assert_eq!(tried["error"], "address_private", "{address}: {tried}");
            }
        }
        assert_eq!(gateway.provider.connections(), 0);
    });
}

#[test]
fn a_webhook_reaches_a_name_inside_where_the_operator_allows_it() {
    let names = ScriptedResolver::default();
    let settings = settings_with(&names, WebhookUrlPolicy { http: true, private_network: true });
    each_gateway_with_webhooks_under(settings, async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, "{}"));
        names.say(&[&["127.0.0.1"]]);
        let url = format!("http://receiver.test:{}/hooks", gateway.provider.addr().port());
        let (_, delivery) = gateway.hook(&url).await;
        assert_eq!(gateway.tried(&delivery, 1).await["status"], "delivered");
        let host = format!("receiver.test:{}", gateway.provider.addr().port());
        assert_eq!(gateway.provider.requests()[0].header("host"), Some(host.as_str()));
    });
}

#[test]
fn no_trick_with_a_url_carries_a_key_elsewhere() {
    let names = ScriptedResolver::default();
    each_gateway_with(settings_with(&names, WebhookUrlPolicy::default()), async |gateway| {
        // Every name resolves to the attacker's address.
        names.say(&[&["127.0.0.1"]]);
        let attacker = ScriptedProvider::start().always(ScriptedResponse::json(200, chat_answer()));
        let ground = UrlAddresses { listed: gateway.provider.addr(), attacker: attacker.addr() };
        let tokens = gateway.both_tokens();
        let tricks = deceptive_urls(ground);
        assert!(tricks.len() > 140);
        for trick in &tricks {
            for token in &tokens {
                let answer = gateway.ask(trick, token).await;
                assert_eq!(answer.status, 400, "{trick:?}: {}", answer.text());
                assert_eq!(answer.error(), "forward_endpoint_not_supported", "{trick:?}");
                assert!(!answer.text().contains("evil"), "what was sent is not repeated");
            }
        }
        assert_eq!((attacker.connections(), gateway.provider.connections()), (0, 0));

        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        for (token, key) in tokens.iter().zip(["managed-provider-key", OWN_KEY]) {
            let u = gateway.provider.url("/v1/chat/completions");
            gateway.ask(&u, token).await.expect(200);
            let requests = gateway.provider.requests();
            let authorization = requests.last().unwrap().header("authorization");
            assert_eq!(authorization, Some(format!("Bearer {key}").as_str()));
        }
    });
}

#[test]
fn a_redirect_is_passed_on_and_never_followed() {
    each_gateway_with(settings(), async |gateway| {
        let attacker = ScriptedProvider::start().always(ScriptedResponse::json(200, chat_answer()));
        for token in gateway.both_tokens() {
            for status in [300, 301, 302, 303, 305, 307, 308] {
                for target in [attacker.url("/v1/chat/completions"), "//evil.test/".to_owned()] {
                    let redirect = ScriptedResponse::json(status, "{}").header("location", &target);
                    gateway.provider.push(redirect);
                    let u = gateway.provider.url("/v1/chat/completions");
                    let answer = gateway.ask(&u, &token).await;
                    assert_eq!(answer.status, status);
                    assert_eq!(answer.header("location"), Some(target.as_str()));
                }
            }
        }
        assert_eq!(attacker.connections(), 0);
        gateway.provider.assert_calls(2 * 7 * 2);
    });
}

#[test]
fn no_trick_with_a_webhooks_url_reaches_the_inside() {
    let names = ScriptedResolver::default();
    each_gateway_with_webhooks_under(
        settings_with(&names, WebhookUrlPolicy::default()),
        async |gateway| {
            names.say(&[&["127.0.0.1"]]);
            let attacker = ScriptedProvider::start().always(ScriptedResponse::json(200, "{}"));
            let ground =
                UrlAddresses { listed: gateway.provider.addr(), attacker: attacker.addr() };
            let (good, _) = gateway.hook("https://receiver.test/hooks").await;
            let mut taken = Vec::new();
            for trick in deceptive_urls(ground) {
                // With https, too, which is the allowed scheme.
                for url in [trick.clone(), trick.replacen("http:", "https:", 1)] {
                    let new = json!({"name": "Hook", "url": url, "events": null});
                    let made = gateway.post("/webhooks", &new).await;
                    let changed = gateway.patch(&good, &json!({"url": url})).await;
                    assert_eq!(made.status == 201, changed.status == 200, "{url:?}");
                    if made.status != 201 {
                        support::assert_issues(&made, &["url"]);
                        support::assert_issues(&changed, &["url"]);
                        continue;
                    }
                    // An accepted URL appears to name a public host. Its private address is found when a
                    // message is sent.
                    let path = format!("/webhooks/{}", text(&made.json(), "webhook_id"));
                    let test = gateway.post(&format!("{path}/test"), &json!({})).await.expect(200);
                    let delivery = format!("{path}/deliveries/{}", text(&test, "delivery_id"));
                    let tried = gateway.tried(&delivery, 1).await;
                    assert_eq!(tried["error"], "address_private", "{url:?}: {tried}");
                    gateway.delete(&path).await.expect(200);
                    taken.push(url);
                }
            }
            for url in &taken {
                assert!(url.starts_with("https://"), "{url:?}");
                let host = url.trim_start_matches("https://").split(':').next().unwrap();
                assert!(!NON_PUBLIC_HOSTS.contains(&host), "{url:?}");
            }
            assert!(!taken.is_empty() && taken.len() < 10, "{taken:?}");
            assert_eq!((attacker.connections(), gateway.provider.connections()), (0, 0));
        },
    );
}

#[test]
fn a_webhooks_redirect_is_not_followed() {
    let webhooks = WebhookUrlPolicy { http: true, private_network: true };
    let settings = Settings { webhooks, standard_rate_per_minute: 0, ..settings() };
    each_gateway_with_webhooks_under(settings, async |gateway| {
        let attacker = ScriptedProvider::start().always(ScriptedResponse::json(200, "{}"));
        let statuses = [301, 302, 303, 307, 308];
        for status in statuses {
            let elsewhere = attacker.url("/hooks");
            gateway.provider.push(ScriptedResponse::status(status).header("location", &elsewhere));
        }
        let (_, delivery) = gateway.hook(&gateway.provider.url("/hooks")).await;
        for (count, status) in (1..).zip(statuses) {
            let tried = gateway.tried(&delivery, count).await;
            assert_eq!(tried["response_status"], status);
            if count < 5 {
                gateway.post(&format!("{delivery}/redeliver"), &json!({})).await.expect(200);
            }
        }
        assert_eq!(attacker.connections(), 0);
    });
}
