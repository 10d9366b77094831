//! Several services behind a router that reads the cell from the credential of a request.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_testkit::store::block_on;
use tollgate_testkit::{TestRequest, TestResponse, tools};

use crate::site::{ServiceProcess, Site, assert_audit_clean, merchant_key};

/// A service that is the cell of this number, with the secret key of a merchant.
struct CellService {
    node: ServiceProcess,
    key: String,
    site: Site,
}

impl CellService {
    fn new(number: u16) -> Self {
        let site = Site::new("sqlite:DIR/tollgate.db", None);
        let file = site.path().join("tollgate.toml");
        let config = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("cell = {number}\n{config}")).unwrap();
        let key = merchant_key(&site);
        Self { node: site.serve(), key, site }
    }
}

/// A router that ends with the test.
struct RouterProcess {
    program: Child,
    address: SocketAddr,
}

impl Drop for RouterProcess {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

impl RouterProcess {
    /// Starts a router, and waits until it takes connections.
    fn start(command: &mut Command, address: SocketAddr) -> Self {
        let program = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let router = Self { program, address };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(10), "the router does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        router
    }

    fn call(&self, method: &str, path: &str) -> TestRequest {
        TestRequest::new(self.address, method, path)
    }

    async fn sign_in(&self, path: &str, key: &str) -> TestResponse {
        let body = format!("key={key}");
        let call = self.call("POST", path).header("origin", "http://test");
        call.bytes("application/x-www-form-urlencoded", body.as_bytes()).send().await
    }
}

/// A port that nothing listens on.
fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn program(name: &str) -> Option<String> {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found = places
        .map(|place| format!("{place}/{name}"))
        .into_iter()
        .find(|path| Path::new(path).exists());
    tools::require_tool(name, found)
}

/// The configuration that `tollgate route` prints for these cells.
fn routes(router: &str, cells: &[(u16, &CellService)], listen: SocketAddr) -> String {
    let listen = format!("--listen={listen}");
    let mut arguments = vec!["route".to_owned(), router.to_owned(), listen];
    for (number, cell) in cells {
        arguments.extend(["--cell".to_owned(), format!("{number}={}", cell.node.address)]);
        let moved = cell.site.path().join("moved");
        if moved.exists() {
            arguments.extend(["--moved".to_owned(), moved.to_str().unwrap().to_owned()]);
        }
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = cells[0].1.site.run(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn nginx(cells: &[(u16, &CellService)], folder: &Path) -> Option<RouterProcess> {
    let program = program("nginx")?;
    let address = free_address();
    std::fs::write(folder.join("cells.conf"), routes("nginx", cells, address)).unwrap();
    let config = format!(
        "daemon off; master_process off; pid {0}/pid; error_log {0}/log;
         events {{}}
         http {{
             access_log off;
             client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fastcgi;
             uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;
             include {0}/cells.conf;
         }}",
        folder.display()
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    Some(RouterProcess::start(Command::new(program).arg("-c").arg(file), address))
}

fn haproxy(cells: &[(u16, &CellService)], folder: &Path) -> Option<RouterProcess> {
    let program = program("haproxy")?;
    let address = free_address();
    let file = folder.join("haproxy.cfg");
    std::fs::write(&file, routes("haproxy", cells, address)).unwrap();
    Some(RouterProcess::start(Command::new(program).arg("-db").arg("-f").arg(file), address))
}

/// Runs `test` behind each router, before cell 0 and cell 7.
fn each_router(test: impl AsyncFn(&RouterProcess, &[(u16, &CellService)])) {
    let [zero, seven] = [0, 7].map(CellService::new);
    let cells = [(0, &zero), (7, &seven)];
    block_on(behind_each_router(&cells, test));
}

async fn behind_each_router(
    cells: &[(u16, &CellService)],
    test: impl AsyncFn(&RouterProcess, &[(u16, &CellService)]),
) {
    for start in [nginx, haproxy] {
        let folder = tempfile::tempdir().unwrap();
        let Some(router) = start(cells, folder.path()) else { continue };
        test(&router, cells).await;
    }
}

#[test]
fn a_router_sends_each_credential_to_the_cell_that_made_it() {
    each_router(async |router, cells| {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
        for (number, cell) in cells {
            let mark = if *number == 0 { String::new() } else { format!("{number}_") };
            assert!(cell.key.starts_with(&format!("tgs_{mark}")), "{}", cell.key);
            let path = format!("/v1/forward?u={}", cell.site.chat_url());
            let made = router.call("POST", "/v1/spend_keys").bearer(&cell.key);
            let made = made.json(&json!({"name": "Key"})).send().await.expect(201);
            let key = made["key"].as_str().unwrap();
            assert!(key.starts_with(&format!("tgk_{mark}")), "{key}");
            let call = |path: &str| router.call("POST", path).json(&body);
            for name in ["x-api-key", "x-goog-api-key", "xi-api-key"] {
                call(&path).header(name, key).send().await.expect(200);
            }
            call(&path).bearer(key).send().await.expect(200);
            call(&format!("{path}&key={key}")).send().await.expect(200);
            let token = STANDARD.encode(json!({"secret_key": cell.key}).to_string());
            let token = if *number == 0 { token } else { format!("tgt_{mark}{token}") };
            let answer = call(&path).bearer(&token).send().await;
            assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        }
        let unknown = router.call("GET", "/v1/meters").bearer("tgs_12_x").send().await;
        assert_eq!(unknown.status, 401);

        // The first credential counts, also if it has no number.
        let [(_, zero), (_, seven)] = cells else { panic!("{}", cells.len()) };
        let list =
            router.call("GET", "/v1/meters").bearer(&zero.key).header("x-api-key", &seven.key);
        list.header("cookie", &format!("tollgate_session=tgc_7_{}", "x".repeat(32)))
            .send()
            .await
            .expect(200);
        for (number, cell) in cells {
            let list = router.call("GET", "/v1/operator/merchants").bearer("operator");
            let list = list.header("x-tollgate-cell", &number.to_string()).send().await.expect(200);
            let found = list["data"][0]["merchant_id"].as_str().unwrap();
            let merchant = cell.site.json(&["merchant", "list"]);
            assert_eq!(merchant["merchant_id"], found);
            // Browsers send the key of a WebSocket between other words.
            let words =
                format!("realtime, openai-insecure-api-key.{}, openai-beta.realtime-v1", cell.key);
            let open = |address| {
                let call = TestRequest::new(address, "GET", "/v1/realtime?model=m");
                call.header("sec-websocket-protocol", &words)
            };
            let (direct, routed) = (open(cell.node.address), open(router.address));
            let (direct, routed) = (direct.send().await, routed.send().await);
            assert_eq!(routed.status, direct.status);
            assert_ne!(routed.status, 401, "{}", String::from_utf8_lossy(&routed.body));
        }
    });
}

#[test]
fn a_person_signs_in_to_the_cell_of_the_key() {
    each_router(async |router, cells| {
        for (number, cell) in cells {
            let mut answer = router.sign_in("/dashboard/sign-in", &cell.key).await;
            let location = |answer: &TestResponse| answer.header("location").unwrap().to_owned();
            // A cookie of another cell is no hindrance.
            let other =
                if *number == 0 { "/dashboard/sign-in?cell=7" } else { "/dashboard/sign-in" };
            for _ in 0..12 {
                let led = router.sign_in(other, &cell.key).await;
                assert_eq!(
                    (led.status, location(&led)),
                    (303, format!("/dashboard/sign-in?cell={number}"))
                );
            }
            if *number > 0 {
                let path = format!("/dashboard/sign-in?cell={number}");
                assert_eq!((answer.status, location(&answer)), (303, path.clone()));
                let page = router.call("GET", &path).send().await;
                let form = format!("action=\"{path}\"");
                assert!(String::from_utf8_lossy(&page.body).contains(&form), "{page:?}");
                answer = router.sign_in(&path, &cell.key).await;
            }
            assert_eq!((answer.status, location(&answer).as_str()), (303, "/dashboard"));
            let cookie = answer.header("set-cookie").unwrap();
            let cookie = cookie.split(';').next().unwrap();
            assert_eq!(cookie.contains("tgc_7_"), *number == 7, "{cookie}");
            let page = router.call("GET", "/dashboard").header("cookie", cookie).send().await;
            assert_eq!(page.status, 200);
        }
    });
}

#[test]
fn a_merchant_that_has_moved_keeps_its_keys() {
    let [zero, seven] = [0, 7].map(CellService::new);
    let cells = [(0, &zero), (7, &seven)];
    block_on(async {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
        let made =
            zero.node.call("POST", "/v1/spend_keys", &zero.key).json(&json!({"name": "Key"}));
        let key = made.send().await.expect(201)["key"].as_str().unwrap().to_owned();
        let path = |cell: &CellService| format!("/v1/forward?u={}", cell.site.chat_url());
        let call = |cell: &CellService| cell.node.call("POST", &path(cell), &key).json(&body);
        call(&zero).send().await.expect(200);
        let merchants = zero.site.json(&["merchant", "list"]);
        let merchant_id = merchants["merchant_id"].as_str().unwrap();
        let to = format!("sqlite:{}", seven.site.path().join("tollgate.db").display());
        // The body of an operation comes when the merchant has moved.
        let mut slow = std::net::TcpStream::connect(zero.node.address).unwrap();
        let body_text = r#"{"name": "Late"}"#;
        let head = format!(
            "POST /v1/spend_keys HTTP/1.1\r\nhost: test\r\nconnection: close\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            zero.key,
            body_text.len()
        );
        slow.write_all(head.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let moved = zero.site.json(&["merchant", "move", merchant_id, "--to", &to]);
        assert_eq!((&moved["cell"], &moved["differences"]), (&json!(7), &json!([])), "{moved}");
        assert_eq!(moved["rows"]["requests"], 1, "{moved}");

        slow.write_all(body_text.as_bytes()).unwrap();
        let mut answer = String::new();
        slow.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");

        // The old cell refuses calls and operations, to be sent again.
        let refused = call(&zero).send().await;
        assert_eq!(
            (refused.status, refused.header("retry-after")),
            (503, Some("1")),
            "{refused:?}"
        );
        let refused = zero.node.call("GET", "/v1/requests", &zero.key).send().await;
        assert_eq!(
            (refused.status, refused.header("retry-after")),
            (503, Some("1")),
            "{refused:?}"
        );

        let keys = seven.site.run(&["merchant", "moved-keys"]).stdout;
        let starts = [&zero.key, &key].map(|key| format!("{} 7\n", &key[..12]));
        assert_eq!(String::from_utf8_lossy(&keys), starts.concat());
        std::fs::write(seven.site.path().join("moved"), keys).unwrap();
        behind_each_router(&cells, async |router, _| {
            let call = router.call("POST", &path(&seven)).json(&body);
            call.bearer(&key).send().await.expect(200);
            let list = router.call("GET", "/v1/requests").bearer(&zero.key).send().await;
            assert!(list.expect(200)["data"].as_array().unwrap().len() > 1);
            let stays = router.call("GET", "/v1/requests").bearer(&seven.key).send().await;
            stays.expect(200);
            let signed_in = router.sign_in("/dashboard/sign-in?cell=7", &zero.key).await;
            assert_eq!(signed_in.header("location"), Some("/dashboard"), "{signed_in:?}");
        })
        .await;
        let wallet = merchants["wallet_id"].as_str().unwrap();
        let credit = zero.site.run(&["wallet", "credit", wallet, "5"]);
        assert_eq!(credit.status.code(), Some(1), "{}", String::from_utf8_lossy(&credit.stdout));
        let key_made = zero.site.run(&["key", "create", "--merchant", merchant_id]);
        assert_eq!(key_made.status.code(), Some(1));
        let keys = zero.site.json(&["key", "list", "--merchant", merchant_id]);
        let key_id = keys["secret_key_id"].as_str().unwrap();
        let revoked = zero.site.run(&["key", "revoke", "--merchant", merchant_id, key_id]);
        assert_eq!(revoked.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&revoked.stderr).contains("cell 7"), "{revoked:?}");
        let again = zero.site.json(&["merchant", "move", merchant_id, "--to", &to]);
        assert_eq!((&again["cell"], &again["rows"]), (&json!(7), &Value::Null), "{again}");
        assert_eq!(again["differences"], json!([]));
        assert_eq!(zero.site.json(&["merchant", "list"])["moved_to"], 7);
        let kept = zero.site.run(&["merchant", "move", merchant_id, "--take-back"]);
        assert_eq!(kept.status.code(), Some(1));
        // The database of cell 7 counts as lost from here on.
        let taken = zero.site.json(&["merchant", "move", merchant_id, "--take-back", "--lost"]);
        assert_eq!(taken, json!({"merchant_id": merchant_id}));
        assert_eq!(zero.site.json(&["merchant", "list"])["moved_to"], Value::Null);
        call(&zero).send().await.expect(200);
        let again = zero.site.run(&["merchant", "move", merchant_id, "--take-back"]);
        let why = String::from_utf8_lossy(&again.stderr).into_owned();
        assert_eq!(again.status.code(), Some(1));
        assert!(why.contains("has begun to move"), "{why}");
    });
    drop((zero.node, seven.node));
    assert_audit_clean(&zero.site);
    assert_audit_clean(&seven.site);
}

#[test]
fn a_database_stays_in_its_cell() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    let with_cell = |cell: &str| {
        let mut command = site.command(&["merchant", "create", "Acme", "--json"]);
        command.env("TOLLGATE_CELL", cell).output().unwrap()
    };
    let key = |output: &std::process::Output| {
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        made["secret_key"].as_str().unwrap().to_owned()
    };
    assert!(key(&with_cell("12")).starts_with("tgs_12_"));
    assert!(merchant_key(&site).starts_with("tgs_12_"), "the database knows its cell");
    let other = with_cell("3");
    assert_eq!(other.status.code(), Some(1));
    let why = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(why.contains("of cell 12") && why.contains("`cell = 3`"), "{why}");
    let looking = site.command(&["merchant", "list"]).env("TOLLGATE_CELL", "3").output().unwrap();
    assert_eq!(looking.status.code(), Some(1));
    // A database with merchants and without a number is cell 0.
    let zero = Site::new("sqlite:DIR/tollgate.db", None);
    assert!(merchant_key(&zero).starts_with("tgs_") && !merchant_key(&zero).contains("_7_"));
    let claim = zero.command(&["merchant", "create", "B"]).env("TOLLGATE_CELL", "7").output();
    let why = String::from_utf8_lossy(&claim.unwrap().stderr).into_owned();
    assert!(why.contains("of cell 0") && why.contains("`cell = 7`"), "{why}");
    let wrong = with_cell("10000");
    let why = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(why.contains("from 0 to 9999"), "{why}");
}

#[test]
fn routes_without_cell_0_or_with_a_cell_twice_are_refused() {
    let site = Site::new("sqlite:DIR/tollgate.db", None);
    std::fs::write(site.path().join("a"), "tgk_3_4Kd9Qx2v 0\n").unwrap();
    std::fs::write(site.path().join("b"), "tgk_3_4Kd9Qx2v 7\n").unwrap();
    for (cells, why) in [
        (vec!["--cell", "7=10.0.0.1:80"], "cell 0"),
        (vec!["--cell", "0=10.0.0.1:80", "--cell", "0=10.0.0.2:80"], "twice"),
        (vec!["--cell", "0=10.0.0.1"], "ADDRESS:PORT"),
        (vec!["--cell", "0=x;y:80"], "ADDRESS:PORT"),
        (vec!["--cell", "0=[::1:80"], "ADDRESS:PORT"),
        (vec!["--cell", "0=::1:80"], "ADDRESS:PORT"),
        (vec!["--cell", "0=a:0"], "ADDRESS:PORT"),
        (vec!["--cell", "0=*:80"], "needs an address"),
        (vec!["--cell", "10000=10.0.0.1:80"], "9999"),
        (
            vec!["--cell", "0=a:80", "--cell", "7=b:80", "--moved", "a", "--moved", "b"],
            "make the files again",
        ),
    ] {
        let output = site.run(&[vec!["route", "nginx"], cells].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(why), "{error}");
    }
}
