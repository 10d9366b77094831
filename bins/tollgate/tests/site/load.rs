//! Callers that send calls without a pause.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinHandle;
use tollgate_testkit::{TestRequest, TestResponse};

use super::ServiceProcess;

const CALLERS: usize = 8;

/// Callers of all nodes, in turn with each credential; every other one requests streams. When its node
/// moves to another address, a caller continues there.
pub struct Load {
    nodes: Arc<Mutex<Vec<SocketAddr>>>,
    results: Arc<Mutex<CallerResults>>,
    callers: Vec<JoinHandle<()>>,
}

/// The results of all callers.
#[derive(Debug, Default)]
pub struct CallerResults {
    /// The ids of the calls whose answers were complete.
    pub answered: Vec<String>,
    /// The number of other results.
    pub others: usize,
}

impl Load {
    /// Starts the callers. `other` gets each incomplete or failed answer, `None` if there was none, and
    /// panics if that is an error.
    pub fn start(
        services: &[ServiceProcess],
        credentials: &[&str],
        u: &str,
        other: fn(Option<&TestResponse>),
    ) -> Self {
        let nodes = services.iter().map(|service| service.address).collect();
        let nodes: Arc<Mutex<Vec<SocketAddr>>> = Arc::new(Mutex::new(nodes));
        let results = Arc::<Mutex<CallerResults>>::default();
        let callers = (0..CALLERS).map(|number| {
            // Each credential calls every node, with and without streams.
            let credential = credentials[number / 2 % credentials.len()].to_owned();
            let (nodes, heard, u) = (nodes.clone(), results.clone(), u.to_owned());
            tokio::spawn(async move {
                loop {
                    let address = {
                        let nodes = nodes.lock().unwrap();
                        nodes[number % nodes.len()]
                    };
                    let body = json!({"model": "m", "stream": number / 4 % 2 == 0,
                                      "messages": [{"role": "user", "content": "Hello"}]});
                    let call = TestRequest::new(address, "POST", &format!("/v1/forward?u={u}"));
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
        Self { nodes, results, callers }
    }

    /// Sets the new address of a node.
    pub fn set_address(&self, node: usize, service: &ServiceProcess) {
        self.nodes.lock().unwrap()[node] = service.address;
    }

    /// The number of complete answers so far, and of other results.
    pub fn counts(&self) -> (usize, usize) {
        let heard = self.results.lock().unwrap();
        (heard.answered.len(), heard.others)
    }

    /// Ends the callers; returns the ids of the calls whose answers were complete.
    pub async fn stop(self) -> Vec<String> {
        for caller in self.callers {
            caller.abort();
            if let Err(cause) = caller.await {
                assert!(cause.is_cancelled(), "{cause}");
            }
        }
        std::mem::take(&mut self.results.lock().unwrap().answered)
    }
}
