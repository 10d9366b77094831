//! `tollgate route`: the configuration of a router before several cells.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv6Addr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum, ValueHint};
use serde_json::json;
use tollgate_domain::{CellNumber, Key};

use crate::output::print;

#[derive(Args)]
pub(crate) struct RouteArgs {
    /// The router.
    #[arg(value_enum)]
    router: Router,
    /// A cell and its nodes, such as 7=10.0.7.1:8080,10.0.7.2:8080; repeatable. Cell 0 gets what names no cell.
    #[arg(long = "cell", value_name = "NUMBER=ADDRESS[,ADDRESS…]", required = true)]
    cells: Vec<Cell>,
    /// A file with the keys of merchants that have moved, by `tollgate merchant moved-keys`; repeatable.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    moved: Vec<PathBuf>,
    /// The address at which the router listens.
    #[arg(long, default_value = "*:8080", value_name = "ADDRESS", value_parser = address)]
    listen: String,
}

/// A program that reads the credential of a request and passes the request on.
#[derive(Clone, Copy, ValueEnum)]
enum Router {
    Nginx,
    Haproxy,
}

/// A cell and the addresses of its nodes.
#[derive(Clone)]
struct Cell {
    number: CellNumber,
    nodes: Vec<String>,
}

impl FromStr for Cell {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, nodes) =
            text.split_once('=').ok_or("must be NUMBER=ADDRESS:PORT, such as 7=10.0.7.1:8080")?;
        let number = number.parse().map_err(|why| format!("the number {why}"))?;
        let nodes: Vec<_> = nodes.split(',').map(address).collect::<Result<_, _>>()?;
        if nodes.iter().any(|node| node.starts_with('*')) {
            return Err("a node needs an address".to_owned());
        }
        Ok(Self { number, nodes })
    }
}

/// Parses `ADDRESS:PORT`, where the address may be a name or `*`.
fn address(text: &str) -> Result<String, String> {
    let is_name = |host: &str| {
        !host.is_empty()
            && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    let is_host = |host: &str| {
        let in_brackets = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        host == "*" || in_brackets.is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok()) || is_name(host)
    };
    let parts = text.rsplit_once(':');
    match parts.is_some_and(|(host, port)| is_host(host) && port.parse::<NonZeroU16>().is_ok()) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} must be ADDRESS:PORT")),
    }
}

pub(crate) fn run(route: RouteArgs, as_json: bool) -> anyhow::Result<()> {
    let RouteArgs { router, cells: named, moved: files, listen } = route;
    let mut cells: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for Cell { number, nodes } in named {
        let is_new = cells.insert(number.get(), nodes).is_none();
        ensure!(is_new, "--cell names cell {number} twice: name it once, with all of its nodes");
    }
    ensure!(
        cells.contains_key(&0),
        "--cell must also name cell 0: it gets keys and requests without a number"
    );
    let mut moved = BTreeMap::new();
    for file in files {
        read_moved(&file, &cells, &mut moved)?;
    }
    let text = match router {
        Router::Nginx => nginx(&cells, &moved, &listen),
        Router::Haproxy => haproxy(&cells, &moved, &listen),
    };
    print(as_json, &json!({"configuration": text}), text.trim_end())
}

/// Adds the keys of a file, each with the number of its cell.
fn read_moved(
    file: &Path,
    cells: &BTreeMap<u16, Vec<String>>,
    moved: &mut BTreeMap<String, u16>,
) -> anyhow::Result<()> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    for (place, line) in text.lines().enumerate() {
        let parts = line.split_once(' ').and_then(|(start, cell)| {
            let body = start.rsplit('_').next()?;
            let is_key = Key::cell_of_start(start).is_some()
                && body.len() == 8
                && body.bytes().all(|byte| byte.is_ascii_alphanumeric());
            let cell = cell.parse::<CellNumber>().ok()?.get();
            (is_key && cells.contains_key(&cell)).then(|| (start.to_owned(), cell))
        });
        let (start, cell) = parts.with_context(|| {
            let line = place.saturating_add(1);
            format!(
                "{name}: line {line} must be the beginning of a key and a cell that --cell names"
            )
        })?;
        if let Some(other) = moved.insert(start.clone(), cell).filter(|other| *other != cell) {
            bail!("{start} is in cell {other} and in cell {cell}: make the files again");
        }
    }
    Ok(())
}

/// The pattern of the number in the first credential: of secret and spend keys, forward tokens and the cookie of a session.
/// A key without a number has an empty one, so it precedes the cookie.
const NUMBER: &str = r"\btg[skct]_([0-9]{1,4}(?=_)|(?=[0-9A-Za-z]{38}))";

/// The pattern of the beginning of a key.
const KEY: &str = r"\b(?<tollgate_key_found>tg[sk]_(?:[1-9][0-9]{0,3}_)?[0-9A-Za-z]{8})";

/// Maps, groups of nodes and a server, for the section `http`.
fn nginx(
    cells: &BTreeMap<u16, Vec<String>>,
    moved: &BTreeMap<String, u16>,
    listen: &str,
) -> String {
    let number = NUMBER.replacen('(', "(?<tollgate_found>", 1);
    let mut text = format!(
        "# The cells of Tollgate, by `tollgate route nginx`. Include this file in `http {{ … }}`.\n\
         map \"tgt_${{http_x_tollgate_cell}}_ tgt_${{arg_cell}}_ $http_authorization $http_x_api_key $http_x_goog_api_key $http_xi_api_key \
         $http_sec_websocket_protocol $arg_key $cookie_tollgate_session\" $tollgate_number {{\n    \
             default 0;\n    \
             \"~{number}\" $tollgate_found;\n\
         }}\n\
         map \"$http_authorization $http_x_api_key $http_x_goog_api_key $http_xi_api_key \
         $http_sec_websocket_protocol $arg_key\" $tollgate_key {{\n    \
             default '';\n    \
             \"~{KEY}\" $tollgate_key_found;\n\
         }}\n\
         map $tollgate_key $tollgate_moved {{\n    \
             default $tollgate_number;\n"
    );
    for (start, cell) in moved {
        let _ = writeln!(text, "    {start} {cell};");
    }
    text.push_str("}\nmap $tollgate_moved $tollgate_cell {\n    default tollgate_0;\n");
    for number in cells.keys() {
        let _ = writeln!(text, "    {number} tollgate_{number};");
    }
    text.push_str("}\n");
    for (number, nodes) in cells {
        let _ = writeln!(text, "upstream tollgate_{number} {{");
        for node in nodes {
            let _ = writeln!(text, "    server {node};");
        }
        // Less than keep_alive_ms of the nodes.
        text.push_str("    keepalive 64;\n    keepalive_timeout 60s;\n}\n");
    }
    text.push_str(NGINX_MAP);
    let _ = writeln!(text, "server {{\n    listen {listen};");
    text.push_str(NGINX_SERVER);
    text
}

const NGINX_MAP: &str = "\
map $http_upgrade $tollgate_connection {
    default upgrade;
    ''      '';
}
";

/// A server without its first lines. Streams pass at once.
const NGINX_SERVER: &str = "    \
    # The nodes limit bodies and heads.
    client_max_body_size 0;
    large_client_header_buffers 4 128k;
    location / {
        proxy_pass http://$tollgate_cell;
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header X-Forwarded-Proto $scheme;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $tollgate_connection;
        proxy_buffering off;
        proxy_request_buffering off;
        proxy_connect_timeout 2s;
        # More than first_byte_timeout_ms.
        proxy_read_timeout 660s;
        # A POST is sent to another node only if no connection could be made.
        proxy_next_upstream error;
    }
}
";

/// A frontend and the backends.
fn haproxy(
    cells: &BTreeMap<u16, Vec<String>>,
    moved: &BTreeMap<String, u16>,
    listen: &str,
) -> String {
    let mut text = format!(
        "# The cells of Tollgate, by `tollgate route haproxy`.\n\
         defaults\n    \
             mode http\n    \
             timeout connect 2s\n    \
             timeout client 660s\n    \
             timeout server 660s\n    \
             # Streams pass at once.\n    \
             option http-no-delay\n    \
             option redispatch\n    \
             retries 1\n\
         frontend tollgate\n    \
             bind {listen}\n    \
             http-request del-header X-Forwarded-Proto\n    \
             http-request set-header X-Forwarded-Proto https if {{ ssl_fc }}\n    \
             http-request set-var-fmt(txn.tollgate) \"tgt_%[req.fhdr(x-tollgate-cell)]_ tgt_%[url_param(cell)]_ %[req.fhdr(authorization)] \
             %[req.fhdr(x-api-key)] %[req.fhdr(x-goog-api-key)] %[req.fhdr(xi-api-key)] \
             %[req.fhdr(sec-websocket-protocol)] %[url_param(key)] %[req.cook(tollgate_session)]\"\n    \
             http-request set-var(txn.tollgate_number) \
             'var(txn.tollgate),regsub(\"^.*?{NUMBER}.*$\",\"\\1\")'\n"
    );
    for (start, number) in moved {
        let _ = writeln!(
            text,
            "    use_backend tollgate_{number} if {{ var(txn.tollgate) -m sub {start} }}"
        );
    }
    for number in cells.keys().filter(|number| **number > 0) {
        let _ = writeln!(
            text,
            "    use_backend tollgate_{number} if {{ var(txn.tollgate_number) -m str {number} }}"
        );
    }
    text.push_str("    default_backend tollgate_0\n");
    for (number, nodes) in cells {
        let _ = writeln!(text, "backend tollgate_{number}");
        text.push_str("    option httpchk GET /readyz\n");
        for (place, node) in nodes.iter().enumerate() {
            let _ = writeln!(text, "    server node_{place} {node} check");
        }
    }
    text
}
