//! URLs that lead elsewhere than they appear to.
//!
//! They lead to an attacker, or to an internal address. The list is for all code that takes a URL from a
//! client.

use std::net::SocketAddr;

/// Addresses outside the public internet, as a name server may return them.
pub const NON_PUBLIC_ADDRESSES: [&str; 26] = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "fd00:ec2::254",
    "fe80::1",
    "ff02::1",
];

/// An address that looks public and where no host is: its network was given back in 2006.
pub const VACANT_PUBLIC_ADDRESS: &str = "3ffe::1";

/// Hosts that are loopback or a machine's metadata, in all notations that have been seen.
pub const NON_PUBLIC_HOSTS: [&str; 28] = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "127.0.0.1.",
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "0",
    "0.0.0.0",
    "0x0",
    "localhost",
    "LOCALHOST",
    "LocalHost.",
    "a.localhost",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "%31%32%37.0.0.1",
    "127.0.0.%31",
    "169.254.169.254",
    "0xa9fea9fe",
    "[fd00:ec2::254]",
];

/// The addresses of a listed provider and of an attacker.
#[derive(Clone, Copy, Debug)]
pub struct UrlAddresses {
    /// The address of the listed provider, at `http://{listed}/v1`.
    pub listed: SocketAddr,
    /// The address of the attacker. All other names are assumed to resolve to it.
    pub attacker: SocketAddr,
}

/// The patterns of URLs. `L` is the listed provider's host and port, `H` its host, `P` its port; `E` is the
/// attacker's host and port, `Q` the attacker's port.
const URL_PATTERNS: &[&str] = &[
    // Another host that looks like the listed one.
    "http://E/v1/chat/completions",
    "http://evil.test:Q/v1/chat/completions",
    "http://H.evil.test:Q/v1/chat/completions",
    "http://evil.test:Q/L/v1/chat/completions",
    "http://evil.test:Q/v1/chat/completions?http://L/v1/chat/completions",
    "http://metadata.google.internal:Q/v1/chat/completions",
    "http://xn--pple-43d.test:Q/v1/chat/completions",
    "http://\u{430}pple.test:Q/v1/chat/completions",
    "http://\u{24d4}vil.test:Q/v1/chat/completions",
    "http://\u{ff11}\u{ff12}\u{ff17}.0.0.1:Q/v1/chat/completions",
    "http://127\u{3002}0\u{3002}0\u{3002}1:Q/v1/chat/completions",
    "http://evil.test\u{2044}:Q/v1/chat/completions",
    "http://evil\u{ad}.test:Q/v1/chat/completions",
    // User info: the host follows it.
    "http://L@E/v1/chat/completions",
    "http://L@evil.test:Q/v1/chat/completions",
    "http://L:x@E/v1/chat/completions",
    "http://L%40E/v1/chat/completions",
    "http://L%2540E/v1/chat/completions",
    "http://x@L@E/v1/chat/completions",
    "http://E@L/v1/chat/completions",
    "http://user:word@L/v1/chat/completions",
    "http://@L/v1/chat/completions",
    "http://:@L/v1/chat/completions",
    "http:L@E/v1/chat/completions",
    // Characters that parsers read differently.
    "http://L\\@E/v1/chat/completions",
    "http://E\\@L/v1/chat/completions",
    "http://E\\.L/v1/chat/completions",
    "http:\\\\E\\v1\\chat\\completions",
    "http:/\\E/v1/chat/completions",
    "http://L\\v1\\chat\\completions",
    "http://L/v1\\..\\..\\chat/completions",
    "http://E\t@L/v1/chat/completions",
    "http://L\t@E/v1/chat/completions",
    "http://E\n/v1/chat/completions",
    "http://L/v1/chat/completions\r\nHost: E",
    "http://L/v1/chat/completions HTTP/1.1\r\nHost: E\r\n\r\n",
    "http://L/v1/chat/completions\n",
    "\nhttp://L/v1/chat/completions",
    " http://L/v1/chat/completions",
    "http://L/v1/chat/completions ",
    "http://L /v1/chat/completions",
    "ht\ttp://E/v1/chat/completions",
    "http://L\0.E/v1/chat/completions",
    "http://L/v1/chat/completions\0",
    "http://L,E/v1/chat/completions",
    "http://L;E/v1/chat/completions",
    "http://L&@E/v1/chat/completions",
    "http://[L]@E/v1/chat/completions",
    "http://[E]/v1/chat/completions",
    "http://E#@L/v1/chat/completions",
    "http://E?@L/v1/chat/completions",
    "http://E/?@L/v1/chat/completions",
    "http://E;@L/v1/chat/completions",
    "http://L#@E/v1/chat/completions",
    "http://L/v1/chat/completions#",
    "http://L/v1/chat/completions#@E",
    "http://L/v1/\"chat\"/completions",
    "http://L/v1/<chat>/completions",
    // Schemes.
    "https://L/v1/chat/completions",
    "https://E/v1/chat/completions",
    "ftp://L/v1/chat/completions",
    "gopher://E/_POST",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "data:text/plain,x",
    "ws://L/v1/chat/completions",
    "unix:/run/x.sock",
    "jar:http://E/x!/",
    "//E/v1/chat/completions",
    "//L/v1/chat/completions",
    "E/v1/chat/completions",
    "L/v1/chat/completions",
    "http:/E/v1/chat/completions",
    "http:///E/v1/chat/completions",
    "http:E/v1/chat/completions",
    "http://",
    "http:",
    "HTTP://L/v1/chat/completions",
    "url:http://L/v1/chat/completions",
    // Ports.
    "http://H/v1/chat/completions",
    "http://H:Q/v1/chat/completions",
    "http://H:0P/v1/chat/completions",
    "http://H:P:Q/v1/chat/completions",
    "http://H:P@H:Q/v1/chat/completions",
    "http://H:+P/v1/chat/completions",
    "http://H:P.Q/v1/chat/completions",
    "http://H:/v1/chat/completions",
    "http://H:99999/v1/chat/completions",
    "http://H:-1/v1/chat/completions",
    "http://H.:P/v1/chat/completions",
    // Paths that leave the prefix, or do so for another parser.
    "http://L/",
    "http://L",
    "http://L/dashboard",
    "http://L/v1/../dashboard",
    "http://L/v1/..",
    "http://L/v1/./chat/completions",
    "http://L/v1/%2e%2e/dashboard",
    "http://L/v1/.%2e/dashboard",
    "http://L/v1/..%2fdashboard",
    "http://L/v1/%2e%2e%2fdashboard",
    "http://L/v1%2fchat%2fcompletions",
    "http://L/v1/chat%2Fcompletions",
    "http://L/v1/chat%5ccompletions",
    "http://L/v1/%252e%252e/dashboard",
    "http://L/v1/%u002e%u002e/dashboard",
    "http://L/v1/%c0%ae%c0%ae%2fdashboard",
    "http://L/v1/chat/completions%00",
    "http://L/v1/chat/completions%0d%0aHost:%20E",
    "http://L/v1/chat/completions%",
    "http://L/v1/chat/completions%2",
    "http://L/v1/chat/completions%zz",
    "http://L//v1/chat/completions",
    "http://L/v1//chat/completions",
    "http://L/v1/chat/completions/..",
    "http://L//E/v1/chat/completions",
    "http://L/http://E/v1/chat/completions",
    "http://L/v1x/chat/completions",
    "http://L/v10/chat/completions",
    "http://L/V1/chat/completions",
];

/// All deceptive URLs for these addresses. None of them is a URL of the listed provider.
pub fn deceptive_urls(ground: UrlAddresses) -> Vec<String> {
    let UrlAddresses { listed, attacker } = ground;
    let fill = |trick: &&str| {
        let mut text = String::new();
        // A letter is replaced if it is alone; in a word it stays.
        let letters: Vec<_> = trick.chars().collect();
        for (at, &letter) in letters.iter().enumerate() {
            let word = |at: Option<usize>| {
                at.and_then(|at| letters.get(at)).is_some_and(char::is_ascii_alphabetic)
            };
            match letter {
                _ if word(at.checked_sub(1)) || word(Some(at + 1)) => text.push(letter),
                'L' => text.push_str(&listed.to_string()),
                'H' => text.push_str(&listed.ip().to_string()),
                'P' => text.push_str(&listed.port().to_string()),
                'E' => text.push_str(&attacker.to_string()),
                'Q' => text.push_str(&attacker.port().to_string()),
                _ => text.push(letter),
            }
        }
        text
    };
    let inside = NON_PUBLIC_HOSTS
        .iter()
        .map(|host| format!("http://{host}:{}/v1/chat/completions", attacker.port()));
    URL_PATTERNS.iter().map(fill).chain(inside).collect()
}
