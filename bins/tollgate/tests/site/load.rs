//! Callers that call without pause.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinHandle;
use tollgate_testkit::{Answer, Call};

use super::Service;

const CALLERS: usize = 8;

/// Callers of all nodes, by turns with each credential; every other one asks for streams. One whose
/// node moves goes on where it is then.
pub struct Load {
    nodes: Arc<Mutex<Vec<SocketAddr>>>,
    heard: Arc<Mutex<Heard>>,
    callers: Vec<JoinHandle<()>>,
}

/// What callers were told.
#[derive(Debug, Default)]
pub struct Heard {
    /// The ids of the calls whose answers came to their end.
    pub answered: Vec<String>,
    /// How often something else came.
    pub others: usize,
}

impl Load {
    /// Starts them; `other` looks at whatever is no whole answer, or at nothing if there was none, and
    /// panics if it must not be.
    pub fn start(
        services: &[Service],
        credentials: &[&str],
        u: &str,
        other: fn(Option<&Answer>),
    ) -> Self {
        let nodes = services.iter().map(|service| service.address).collect();
        let nodes: Arc<Mutex<Vec<SocketAddr>>> = Arc::new(Mutex::new(nodes));
        let heard = Arc::<Mutex<Heard>>::default();
        let callers = (0..CALLERS).map(|number| {
            // Each credential meets every node, in both forms.
            let credential = credentials[number / 2 % credentials.len()].to_owned();
            let (nodes, heard, u) = (nodes.clone(), heard.clone(), u.to_owned());
            tokio::spawn(async move {
                loop {
                    let address = {
                        let nodes = nodes.lock().unwrap();
                        nodes[number % nodes.len()]
                    };
                    let body = json!({"model": "m", "stream": number / 4 % 2 == 0,
                                      "messages": [{"role": "user", "content": "Hello"}]});
                    let call = Call::new(address, "POST", &format!("/v1/forward?u={u}"));
                    match call.bearer(&credential).json(&body).try_send().await {
                        Some(answer) if answer.status == 200 && answer.complete => {
                            let id = answer.header("x-service-request-id").unwrap().to_owned();
                            heard.lock().unwrap().answered.push(id);
                        }
                        answer => {
                            other(answer.as_ref());
                            heard.lock().unwrap().others += 1;
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                }
            })
        });
        let callers = callers.collect();
        Self { nodes, heard, callers }
    }

    /// Where this node is now.
    pub fn moved(&self, node: usize, service: &Service) {
        self.nodes.lock().unwrap()[node] = service.address;
    }

    /// How many calls were answered so far, and how often something else came.
    pub fn counts(&self) -> (usize, usize) {
        let heard = self.heard.lock().unwrap();
        (heard.answered.len(), heard.others)
    }

    /// Ends them; the ids of the calls whose answers came to their end.
    pub async fn stop(self) -> Vec<String> {
        for caller in self.callers {
            caller.abort();
            if let Err(cause) = caller.await {
                assert!(cause.is_cancelled(), "{cause}");
            }
        }
        std::mem::take(&mut self.heard.lock().unwrap().answered)
    }
}
