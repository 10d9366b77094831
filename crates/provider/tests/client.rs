//! The forwarding client against small raw servers.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix_rt::net::{TcpListener, TcpStream};
use awc::http::Method;
use awc::http::header::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tollgate_domain::DeliveryFault;
use tollgate_provider::{
    BodyError, Endpoint, NotSentReason, ProviderClient, ProviderSettings, ProviderTable, Resolver,
    SendError, Timeouts, UpstreamRequest, UpstreamResponse, WebhookClient, WebhookUrlPolicy,
};

const PATIENT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(60);

fn patient() -> Timeouts {
    Timeouts { connect: PATIENT, first_byte: PATIENT, idle: PATIENT }
}

/// An endpoint at `base`, whether or not it may be private.
fn endpoint(base: &str, method: &Method) -> Endpoint {
    let mut table = ProviderTable::builtin();
    let settings = ProviderSettings {
        base_url: Some(base.to_owned()),
        dialect: Some("openai".to_owned()),
        allow_private_network: Some(true),
        ..ProviderSettings::default()
    };
    let configured = table.configure("house", settings);
    assert_eq!(configured, Ok(()));
    let url = format!("{base}/chat/completions?x=%20y");
    let resolved = table.resolve(method, &url);
    resolved.unwrap_or_else(|error| unreachable!("{url}: {error}"))
}

/// As [`endpoint`], with private addresses refused, as if a public name came to point there.
fn public_endpoint(base: &str) -> Endpoint {
    let mut endpoint = endpoint(base, &Method::POST);
    let mut provider = (*endpoint.provider).clone();
    provider.allow_private_network = false;
    endpoint.provider = provider.into();
    endpoint
}

async fn send(
    client: &ProviderClient,
    base: &str,
    body: &str,
) -> Result<UpstreamResponse, SendError> {
    let method = if body.is_empty() { Method::GET } else { Method::POST };
    let mut headers = HeaderMap::new();
    headers.insert(HeaderName::from_static("x-test"), HeaderValue::from_static("1"));
    let body = Bytes::copy_from_slice(body.as_bytes());
    let endpoint = endpoint(base, &method);
    client
        .send(UpstreamRequest {
            endpoint: &endpoint,
            method,
            headers,
            body: body.into(),
            managed: false,
        })
        .await
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.unwrap_or_else(|error| unreachable!("a free port: {error}"));
    let address = listener.local_addr();
    let address = address.unwrap_or_else(|error| unreachable!("its address: {error}"));
    (listener, format!("http://{address}/v1"))
}

async fn accept(listener: &TcpListener) -> TcpStream {
    let accepted = listener.accept().await;
    accepted.unwrap_or_else(|error| unreachable!("a connection: {error}")).0
}

/// Reads one request: its head, and the body that it announces.
async fn read_request(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let (head, body) = bytes.split_at(end + 4);
            let head = String::from_utf8_lossy(head).into_owned();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
            if body.len() >= length {
                let body = body.to_vec();
                return (head, body);
            }
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return (String::from_utf8_lossy(&bytes).into_owned(), Vec::new());
        }
    }
}

async fn write(stream: &mut TcpStream, text: &str) {
    let written = stream.write_all(text.as_bytes()).await;
    written.unwrap_or_else(|error| unreachable!("the client is there: {error}"));
}

/// A server that answers one call with `answer`, then closes.
async fn answer_once(answer: &'static str) -> String {
    let (listener, base) = listen().await;
    actix_rt::spawn(async move {
        let mut stream = accept(&listener).await;
        read_request(&mut stream).await;
        write(&mut stream, answer).await;
    });
    base
}

async fn read_body(incoming: &mut UpstreamResponse) -> (Vec<u8>, Option<BodyError>) {
    let mut body = Vec::new();
    while let Some(piece) = incoming.next().await {
        match piece {
            Ok(piece) => body.extend_from_slice(&piece),
            Err(error) => {
                assert!(incoming.next().await.is_none(), "nothing comes after an error");
                return (body, Some(error));
            }
        }
    }
    assert!(incoming.next().await.is_none(), "nothing comes after the end");
    (body, None)
}

fn run<F: Future<Output = ()>>(test: F) {
    actix_rt::System::new().block_on(test);
}

#[test]
fn a_call_arrives_byte_for_byte_and_so_does_its_answer() {
    run(async {
        let (listener, base) = listen().await;
        let (seen, request) = oneshot::channel();
        actix_rt::spawn(async move {
            let mut stream = accept(&listener).await;
            let _ = seen.send(read_request(&mut stream).await);
            write(
                &mut stream,
                "HTTP/1.1 201 Created\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\nx-a: 1\r\n\
                 x-a: 2\r\n\r\n\x01\x02abc",
            )
            .await;
        });
        let client = ProviderClient::new(patient());
        let body = "{ \"model\": \"ü\" ,\n\"x\":1.0}".repeat(20_000);
        let mut incoming = send(&client, &base, &body).await.unwrap();
        let (head, sent) = request.await.unwrap();
        assert_eq!(sent, body.as_bytes());
        let host = base.trim_start_matches("http://").trim_end_matches("/v1");
        let mut lines: Vec<_> = head.trim_end().lines().collect();
        // awc writes the date; nothing else is added.
        lines.retain(|line| !line.starts_with("date: "));
        lines[1..].sort_unstable();
        let length = format!("content-length: {}", body.len());
        let host = format!("host: {host}");
        let first = "POST /v1/chat/completions?x=%20y HTTP/1.1";
        assert_eq!(lines, [first, &length, &host, "x-test: 1"], "and no header of our own");

        assert_eq!(incoming.status, 201);
        assert_eq!(incoming.headers.get_all("x-a").count(), 2);
        assert_eq!(read_body(&mut incoming).await, (b"\x01\x02abc".to_vec(), None));
    });
}

#[test]
fn a_redirect_is_an_answer() {
    run(async {
        let base = answer_once(
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/\r\n\
             content-length: 0\r\n\r\n",
        )
        .await;
        let incoming = send(&ProviderClient::new(patient()), &base, "{}").await.unwrap();
        assert_eq!(incoming.status, 307);
        assert!(incoming.headers.contains_key("location"));
    });
}

#[test]
fn what_was_never_sent_is_told_from_what_was_not_answered() {
    run(async {
        let client = ProviderClient::new(patient());
        let failure = async |base: &str, body: &str| send(&client, base, body).await.err();

        let (listener, gone) = listen().await;
        drop(listener);
        assert_eq!(failure(&gone, "{}").await, Some(SendError::NotSent(NotSentReason::Refused)));

        let unknown = "http://tollgate.invalid/v1";
        assert_eq!(failure(unknown, "{}").await, Some(SendError::NotSent(NotSentReason::Dns)));

        let (listener, base) = listen().await;
        actix_rt::spawn(async move {
            let mut stream = accept(&listener).await;
            write(&mut stream, "HTTP/1.1 400 Bad Request\r\n\r\n").await;
        });
        let not_tls = base.replace("http://", "https://");
        assert_eq!(failure(&not_tls, "{}").await, Some(SendError::NotSent(NotSentReason::Tls)));

        for answer in [
            "",
            "HTTP/1.1 200",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n",
            "nonsense\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ] {
            let closes = answer_once(answer).await;
            let lost = Some(SendError::NoAnswer { timed_out: false });
            assert_eq!(failure(&closes, "{}").await, lost, "{answer:?}");
            let closes = answer_once(answer).await;
            assert_eq!(failure(&closes, "").await, lost, "GET, {answer:?}");
        }
    });
}

#[test]
fn an_answer_without_a_length_ends_with_its_connection() {
    run(async {
        let client = ProviderClient::new(patient());
        for (head, status, body) in [
            ("HTTP/1.1 200 OK\r\nconnection: close", 200, "abc"),
            ("HTTP/1.1 200 OK", 200, ""),
            ("HTTP/1.0 200 OK", 200, "abc"),
            ("HTTP/1.1 500 Internal Server Error", 500, "abc"),
        ] {
            let answer = format!("{head}\r\n\r\n{body}");
            for sent in ["{}", ""] {
                let base = answer_once(answer.clone().leak()).await;
                let mut incoming = send(&client, &base, sent).await.unwrap();
                assert_eq!(incoming.status, status, "{answer:?}");
                let mut came = Vec::new();
                while let Some(piece) = incoming.next().await {
                    came.extend_from_slice(&piece.unwrap());
                }
                assert_eq!(came, body.as_bytes(), "{answer:?}");
            }
        }
    });
}

#[test]
fn a_slow_connection_was_not_sent_and_a_slow_answer_was() {
    run(async {
        // A server that accepts in the kernel and never answers in TLS.
        let (_listener, base) = listen().await;
        let client = ProviderClient::new(Timeouts { connect: SHORT, ..patient() });
        let silent_tls = base.replace("http://", "https://");
        let error = send(&client, &silent_tls, "{}").await.err();
        assert_eq!(error, Some(SendError::NotSent(NotSentReason::TimedOut)));

        for body in ["{}", ""] {
            let (listener, base) = listen().await;
            let (release, released) = oneshot::channel::<()>();
            actix_rt::spawn(async move {
                let mut stream = accept(&listener).await;
                read_request(&mut stream).await;
                let _ = released.await;
            });
            let timeouts = Timeouts { first_byte: SHORT, connect: SHORT, ..patient() };
            let error = send(&ProviderClient::new(timeouts), &base, body).await.err();
            assert_eq!(error, Some(SendError::NoAnswer { timed_out: true }), "{body:?}");
            drop(release);
        }
    });
}

#[test]
fn a_cut_answer_is_not_taken_for_a_whole_one() {
    run(async {
        let client = ProviderClient::new(patient());
        let table = [
            ("content-length: 5\r\n\r\nabc", "abc", Some(BodyError::Broken)),
            ("content-length: 3\r\n\r\nabc", "abc", None),
            ("transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", "abc", Some(BodyError::Broken)),
            ("transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", "abc", Some(BodyError::Broken)),
            ("transfer-encoding: chunked\r\n\r\n5\r\nabc", "abc", Some(BodyError::Broken)),
            ("transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc", None),
            ("transfer-encoding: chunked\r\n\r\nzz\r\n", "", Some(BodyError::Broken)),
        ];
        for (rest, body, error) in table {
            let answer: &'static str = format!("HTTP/1.1 200 OK\r\n{rest}").leak();
            let base = answer_once(answer).await;
            let mut incoming = send(&client, &base, "{}").await.unwrap();
            assert_eq!(read_body(&mut incoming).await, (body.into(), error), "{rest:?}");
        }
        let base = answer_once("HTTP/1.0 200 OK\r\n\r\nabc").await;
        let mut incoming = send(&client, &base, "{}").await.unwrap();
        assert_eq!(read_body(&mut incoming).await, (b"abc".to_vec(), None), "HTTP/1.0");
        let base = answer_once("HTTP/1.1 204 No Content\r\n\r\n").await;
        let mut incoming = send(&client, &base, "{}").await.unwrap();
        assert_eq!(read_body(&mut incoming).await, (Vec::new(), None));
    });
}

#[test]
fn pieces_come_as_they_are_sent_and_silence_ends_the_body() {
    run(async {
        let (listener, base) = listen().await;
        let (go_on, told) = oneshot::channel::<()>();
        let (release, released) = oneshot::channel::<()>();
        actix_rt::spawn(async move {
            let mut stream = accept(&listener).await;
            read_request(&mut stream).await;
            write(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc").await;
            let _ = told.await;
            write(&mut stream, "def").await;
            let _ = released.await;
        });
        let client =
            ProviderClient::new(Timeouts { idle: Duration::from_millis(300), ..patient() });
        let mut incoming = send(&client, &base, "{}").await.unwrap();
        assert_eq!(incoming.next().await, Some(Ok(Bytes::from_static(b"abc"))));
        let _ = go_on.send(());
        assert_eq!(incoming.next().await, Some(Ok(Bytes::from_static(b"def"))));
        assert_eq!(incoming.next().await, Some(Err(BodyError::TimedOut)));
        assert_eq!(incoming.next().await, None);
        drop(release);
    });
}

#[test]
fn connections_are_reused_and_one_that_closes_is_not_tried_twice() {
    run(async {
        const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        let (listener, base) = listen().await;
        let (count, counted) = oneshot::channel();
        actix_rt::spawn(async move {
            let mut stream = accept(&listener).await;
            for _ in 0..2 {
                read_request(&mut stream).await;
                write(&mut stream, OK).await;
            }
            // The third call on this connection is read and then dropped.
            read_request(&mut stream).await;
            drop(stream);
            let mut stream = accept(&listener).await;
            let (head, _) = read_request(&mut stream).await;
            write(&mut stream, OK).await;
            let _ = count.send(head.contains("POST"));
        });
        let client = ProviderClient::new(patient());
        for _ in 0..2 {
            let mut incoming = send(&client, &base, "{}").await.unwrap();
            assert_eq!(read_body(&mut incoming).await, (b"ok".to_vec(), None));
        }
        let error = send(&client, &base, "{}").await.err();
        assert_eq!(error, Some(SendError::NoAnswer { timed_out: false }));
        let mut incoming = send(&client.clone(), &base, "{}").await.unwrap();
        assert_eq!(read_body(&mut incoming).await, (b"ok".to_vec(), None));
        assert!(counted.await.unwrap(), "the next connection brought the next call, no repetition");
    });
}

#[test]
fn interim_heads_are_no_answers_and_leave_none_to_the_next_call() {
    run(async {
        const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
        let (listener, base) = listen().await;
        let (hinted, seen) = oneshot::channel();
        let (go_on, told) = oneshot::channel::<()>();
        actix_rt::spawn(async move {
            let mut stream = accept(&listener).await;
            read_request(&mut stream).await;
            write(&mut stream, HINTS).await;
            let _ = hinted.send(());
            let _ = told.await;
            write(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirst").await;
            read_request(&mut stream).await;
            let next = "HTTP/1.1 201 Created\r\ncontent-length: 6\r\n\r\nsecond";
            write(&mut stream, &format!("HTTP/1.1 100 Continue\r\n\r\n{HINTS}{next}")).await;
        });
        let client = ProviderClient::new(patient());
        let mut first = Box::pin(send(&client, &base, "{}"));
        tokio::select! {
            biased;
            _ = &mut first => unreachable!("no answer was sent yet"),
            hinted = seen => assert!(hinted.is_ok()),
        }
        let waited = tokio::time::timeout(SHORT, &mut first).await;
        assert!(waited.is_err(), "an interim head was taken for the answer");
        let _ = go_on.send(());
        let mut incoming = first.await.unwrap();
        assert_eq!(incoming.status, 200);
        assert_eq!(read_body(&mut incoming).await, (b"first".to_vec(), None));
        // The server accepts no second connection, so this one was kept.
        let mut incoming = send(&client, &base, "{}").await.unwrap();
        assert_eq!(incoming.status, 201);
        assert_eq!(read_body(&mut incoming).await, (b"second".to_vec(), None));
    });
}

#[test]
fn a_provider_that_may_not_be_private_is_not_connected_to_there() {
    run(async {
        let (listener, base) = listen().await;
        let port = base.rsplit(':').next().unwrap().trim_end_matches("/v1").to_owned();
        let client = ProviderClient::new(patient());
        for host in ["localhost", "127.0.0.1", "[::1]", "[::ffff:7f00:1]", "0.0.0.0"] {
            let base = format!("https://{host}:{port}/v1");
            let endpoint = public_endpoint(&base);
            let call = UpstreamRequest {
                endpoint: &endpoint,
                method: Method::POST,
                headers: HeaderMap::new(),
                body: Bytes::from_static(b"{}").into(),
                managed: false,
            };
            let error = client.send(call).await.err();
            assert_eq!(error, Some(SendError::NotSent(NotSentReason::PrivateAddress)), "{host}");
        }
        let untouched = tokio::time::timeout(Duration::from_millis(1), listener.accept()).await;
        assert!(untouched.is_err(), "nobody connected");
    });
}

/// A name server with these answers in order, the last one repeated, and the number of queries.
fn names(answers: &[&[&str]]) -> (Resolver, Arc<AtomicUsize>) {
    let address =
        |text: &&str| text.parse().unwrap_or_else(|error| unreachable!("{text}: {error}"));
    let answers: Vec<Vec<IpAddr>> =
        answers.iter().map(|answer| answer.iter().map(address).collect()).collect();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let answer = move |_: &str| {
        let at = count.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
        answers.get(at).cloned().unwrap_or_default()
    };
    (Resolver::Names(Arc::new(answer)), asked)
}

/// Looks like a public address, but is not in use: it was returned in 2006.
const PUBLIC_AND_VACANT: &str = "3ffe::1";

#[test]
fn a_name_that_is_public_at_first_is_not_followed_inside() {
    run(async {
        let (listener, base) = listen().await;
        let port = base.rsplit(':').next().unwrap().trim_end_matches("/v1").to_owned();
        let vacant: &[&str] = &[PUBLIC_AND_VACANT];
        let inside: &[&str] = &["127.0.0.1", "::1"];
        let answers = [vacant, inside, &[PUBLIC_AND_VACANT, "127.0.0.1"]];
        let (resolver, asked) = names(&answers);
        let timeouts = Timeouts { connect: Duration::from_millis(500), ..patient() };
        let client = ProviderClient::with_resolver(timeouts, &resolver);
        let endpoint = public_endpoint(&format!("https://provider.test:{port}/v1"));
        let mut errors = Vec::new();
        for _ in answers {
            let call = UpstreamRequest {
                endpoint: &endpoint,
                method: Method::POST,
                headers: HeaderMap::new(),
                body: Bytes::from_static(b"{}").into(),
                managed: false,
            };
            errors.push(client.send(call).await.err());
        }
        // For an unused address, some networks report an error, and others are silent.
        let vacant = [NotSentReason::Refused, NotSentReason::TimedOut]
            .map(|why| Some(SendError::NotSent(why)));
        assert!(vacant.contains(&errors[0]) && vacant.contains(&errors[2]), "{errors:?}");
        assert_eq!(errors[1], Some(SendError::NotSent(NotSentReason::PrivateAddress)));
        assert_eq!(asked.load(Ordering::Relaxed), 3, "no answer is kept from one call to the next");

        let (resolver, asked) = names(&[&[PUBLIC_AND_VACANT], inside]);
        let client =
            WebhookClient::new(WebhookUrlPolicy { http: true, private_network: false }, &resolver);
        let url = format!("http://receiver.test:{port}/hooks");
        let post = async || client.post(&url, HeaderMap::new(), Bytes::new()).await.err();
        let (first, second) = (post().await, post().await);
        let vacant = [DeliveryFault::Unreachable, DeliveryFault::TimedOut].map(Some);
        assert!(vacant.contains(&first), "{first:?}");
        assert_eq!(second, Some(DeliveryFault::AddressPrivate));
        assert_eq!(asked.load(Ordering::Relaxed), 2);

        let untouched = tokio::time::timeout(Duration::from_millis(1), listener.accept()).await;
        assert!(untouched.is_err(), "nobody connected");
    });
}

#[test]
fn a_name_leads_where_the_resolver_says() {
    run(async {
        let base = answer_once("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        let (resolver, _) = names(&[&["127.0.0.1"]]);
        let client = ProviderClient::with_resolver(patient(), &resolver);
        let named = base.replace("127.0.0.1", "provider.test");
        assert_eq!(send(&client, &named, "{}").await.unwrap().status, 200);
        let (resolver, _) = names(&[&[]]);
        let client = ProviderClient::with_resolver(patient(), &resolver);
        let error = send(&client, &named, "{}").await.err();
        assert_eq!(error, Some(SendError::NotSent(NotSentReason::Dns)));
    });
}
