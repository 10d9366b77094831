//! The scripted provider, checked by a client on plain sockets.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use tollgate_testkit::{Gate, ScriptedProvider, ScriptedResponse};

const GET: &str = "GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

fn send(provider: &ScriptedProvider, request: &str) -> TcpStream {
    let mut socket = TcpStream::connect(provider.addr()).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    socket
}

/// All bytes until the connection ends.
fn receive(mut socket: TcpStream) -> (String, io::Result<usize>) {
    let mut answer = Vec::new();
    let end = socket.read_to_end(&mut answer);
    (String::from_utf8(answer).unwrap(), end)
}

fn body_of(reply: ScriptedResponse) -> String {
    let provider = ScriptedProvider::start().answer(reply);
    let (answer, _) = receive(send(&provider, GET));
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn it_answers_in_the_order_of_the_script_and_then_always_the_same() {
    let provider = ScriptedProvider::start()
        .answer(ScriptedResponse::status(429).header("retry-after", "1"))
        .then(ScriptedResponse::json(200, r#"{"n":1}"#))
        .always(ScriptedResponse::json(200, serde_json::json!({"n": 2})));

    let answers: Vec<_> = (0..4).map(|_| receive(send(&provider, GET)).0).collect();

    assert_eq!(answers[0], "HTTP/1.1 429 Scripted\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n");
    assert!(answers[1].ends_with("\r\ncontent-length: 7\r\n\r\n{\"n\":1}"));
    assert!(answers[2].ends_with("{\"n\":2}"));
    assert_eq!(answers[2], answers[3]);
    provider.assert_calls(4);
}

#[test]
fn without_a_script_it_is_an_error_and_still_a_call() {
    let provider = ScriptedProvider::start();
    assert_eq!((provider.calls(), provider.connections()), (0, 0));

    assert!(receive(send(&provider, GET)).0.starts_with("HTTP/1.1 500 "));

    provider.assert_calls(1);
    provider.push(ScriptedResponse::status(204));
    assert_eq!(receive(send(&provider, GET)).0, "HTTP/1.1 204 Scripted\r\n\r\n");
}

#[test]
fn it_records_what_it_was_asked_to_the_byte() {
    let provider = ScriptedProvider::start().always(ScriptedResponse::status(200));
    let head = "POST /v1/x?y=%20 HTTP/1.1\r\nHost: h\r\nX-One: a:b\r\nconnection: close\r\n";

    let _ = receive(send(&provider, &format!("{head}content-length: 9\r\n\r\n{{\"a\":1.0}}")));
    let _ = receive(send(
        &provider,
        &format!(
            "{head}transfer-encoding: chunked\r\n\r\n3\r\n{{\"a\r\n6;x=y\r\n\":1.0}}\r\n0\r\n\r\n"
        ),
    ));

    let requests = provider.requests();
    for request in &requests {
        assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/v1/x?y=%20"));
        assert_eq!(request.header("x-one"), Some("a:b"));
        assert_eq!(request.headers[1].0, "X-One");
        assert_eq!(request.text(), "{\"a\":1.0}");
        assert_eq!(request.json()["a"], 1.0);
        assert!(request.complete);
    }
    assert_eq!(requests.len(), 2);
}

#[test]
fn one_connection_serves_many_calls() {
    let provider = ScriptedProvider::start().always(ScriptedResponse::json(200, "{}"));
    let two = GET.replace("connection: close\r\n", "") + GET;

    let (answers, _) = receive(send(&provider, &two));

    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 2);
    assert_eq!((provider.calls(), provider.connections(), provider.answered()), (2, 1, 2));
}

#[test]
fn events_are_a_chunk_each_unless_cut_elsewhere() {
    assert_eq!(
        body_of(ScriptedResponse::events(["1", "2"])),
        "9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"
    );
    assert_eq!(
        body_of(ScriptedResponse::named_events([("ping", "{}")])),
        "16\r\nevent: ping\ndata: {}\n\n\r\n0\r\n\r\n"
    );
    assert_eq!(
        body_of(ScriptedResponse::events(["1"]).chunked_at([3, 5])),
        "3\r\ndat\r\n2\r\na:\r\n4\r\n 1\n\n\r\n0\r\n\r\n"
    );
    assert_eq!(
        body_of(ScriptedResponse::bytes(200, "text/plain", "abc").chunked_every(2)),
        "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    );
}

#[test]
fn a_compressed_body_is_sent_as_given() {
    let provider = ScriptedProvider::start()
        .answer(ScriptedResponse::json(200, "").encoded("gzip", "\u{1f}not really"));

    let (answer, _) = receive(send(&provider, GET));

    assert!(answer.contains("\r\ncontent-encoding: gzip\r\ncontent-length: 11\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n\u{1f}not really"));
}

#[test]
fn a_body_can_end_with_the_connection() {
    let reply = || ScriptedResponse::bytes(200, "text/plain", "abc").until_close();
    let provider = ScriptedProvider::start().answer(reply()).then(reply().cut());

    let (answer, end) = receive(send(&provider, GET));
    assert!(answer.ends_with("connection: close\r\n\r\nabc"));
    assert!(end.is_ok());

    let (_, end) = receive(send(&provider, GET));
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn the_connection_can_break_at_any_byte() {
    let reply = || ScriptedResponse::bytes(200, "text/plain", "abcdef");
    for (reply, end) in [
        (reply().cut(), "content-length: 7\r\n\r\nabcdef"),
        (reply().cut_at(2), "content-length: 6\r\n\r\nab"),
        (reply().cut_at(0), "content-length: 6\r\n\r\n"),
        (reply().chunked_at([3]).cut(), "3\r\nabc\r\n3\r\ndef\r\n"),
        (reply().chunked_at([3]).cut_at(3), "3\r\nabc\r\n"),
        (reply().chunked_at([3]).cut_at(4), "3\r\nabc\r\n3\r\nd"),
        (reply().cut_in_head_at(10), "HTTP/1.1 2"),
    ] {
        let provider = ScriptedProvider::start().answer(reply);
        let (answer, _) = receive(send(&provider, GET));
        assert!(answer.ends_with(end), "{answer:?} {end:?}");
    }
    let provider = ScriptedProvider::start().answer(ScriptedResponse::hang_up());
    assert_eq!(receive(send(&provider, GET)).0, "");
}

#[tokio::test]
async fn a_gate_holds_each_piece_back_until_the_test_says_so() {
    let gate = Gate::new();
    let provider =
        ScriptedProvider::start().answer(ScriptedResponse::events(["1", "2", "3"]).gate(&gate));
    let mut answer = BufReader::new(send(&provider, GET));
    let mut line_with = |text: &str| {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(answer.read_line(&mut line).unwrap() > 0, "no {text}");
        }
    };

    line_with("transfer-encoding");
    gate.wait_for_arrivals(1).await;
    gate.pass(1);
    line_with("data: 1");
    gate.wait_for_arrivals(2).await;
    assert_eq!((gate.arrivals(), provider.answered()), (2, 0));
    gate.open();
    line_with("data: 3");
    provider.wait_for_answered(1).await;
    assert_eq!(provider.hang_ups(), 0);
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed() {
    let gate = Gate::new();
    let provider = ScriptedProvider::start()
        .answer(ScriptedResponse::silence())
        .then(ScriptedResponse::json(200, "{}").gate_head(&gate))
        .then(ScriptedResponse::status(200));

    let silent = send(&provider, GET);
    provider.wait_for_calls(1).await;
    drop(silent);
    provider.wait_for_hang_ups(1).await;

    let held = send(&provider, GET);
    gate.wait_for_arrivals(1).await;
    drop(held);
    provider.wait_for_hang_ups(2).await;

    drop(send(&provider, "POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc"));
    provider.wait_for_hang_ups(3).await;
    let last = provider.requests().pop().unwrap();
    assert_eq!((last.text(), last.complete), ("abc", false));
    assert_eq!(provider.answered(), 0);
}

#[test]
fn a_client_may_wait_for_leave_to_send_its_body() {
    let provider = ScriptedProvider::start().answer(ScriptedResponse::status(200));
    let head = "POST / HTTP/1.1\r\nexpect: 100-continue\r\nconnection: close\r\n";
    let mut socket = send(&provider, &format!("{head}content-length: 2\r\n\r\n"));
    let mut leave = [0; 25];
    socket.read_exact(&mut leave).unwrap();
    assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(b"ab").unwrap();
    assert!(receive(socket).0.starts_with("HTTP/1.1 200 "));
    assert_eq!(provider.request().text(), "ab");
}
