//! Public addresses, and the URI by which a connection is kept.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use awc::http::Uri;

/// Whether an address belongs to the public internet, so that a provider may be there.
///
/// Every address that could be in the operator's own network, or its metadata service, is not
/// public: a name that resolves to such an address would give callers access to that network. An
/// IPv6 address that carries an IPv4 address is judged by the latter.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => embedded_v4(v6).map_or_else(|| is_public_v6(v6), is_public_v4),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let reserved = match (a, b, c) {
        // "This network", and the unspecified address.
        (0, ..) => true,
        // Shared by a carrier's customers (100.64.0.0/10).
        (100, 64..=127, _) => true,
        // Protocol assignments, the old 6to4 relays, and benchmarks.
        (192, 0, 0) | (192, 88, 99) | (198, 18..=19, _) => true,
        // Looks public, but is the address at which Azure's machines reach their host
        // (168.63.129.16).
        (168, 63, 129) => true,
        // Multicast, and the ranges reserved for the future, broadcast included.
        (224.., ..) => true,
        _ => false,
    };
    !(reserved
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    // Only 2000::/3 is global unicast. This excludes loopback, unspecified, unique-local,
    // link-local, site-local and multicast addresses.
    let global = first & 0xe000 == 0x2000;
    // Protocol assignments (Teredo, ORCHID and others), and documentation.
    let special = (first == 0x2001 && (second < 0x0200 || second == 0x0db8))
        || (first == 0x3fff && second < 0x1000);
    global && !special
}

/// The IPv4 address inside a mapped, compatible, translated (NAT64) or 6to4 address.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let pair = |high: u16, low: u16| {
        let ([p, q], [r, s]) = (high.to_be_bytes(), low.to_be_bytes());
        Some(Ipv4Addr::new(p, q, r, s))
    };
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff) => pair(g, h),
        // `::` and `::1` are not compatible addresses, but as IPv4 addresses they are not public
        // either.
        (0, 0, 0, 0, 0, 0) => pair(g, h),
        (0x64, 0xff9b, 0, 0, 0, 0) => pair(g, h),
        (0x2002, ..) => pair(b, c),
        _ => None,
    }
}

/// The URI by which awc keeps its connections. Its scheme is always `http`, so that awc leaves the
/// whole connection, TLS included, to the connector. The port is explicit for the same reason.
pub(crate) fn pool_uri(uri: &Uri) -> Option<Uri> {
    let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let authority = format!("{}:{}", uri.host()?, uri.port_u16().unwrap_or(default_port));
    Uri::builder()
        .scheme("http")
        .authority(authority)
        .path_and_query(uri.path_and_query()?.clone())
        .build()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_inside_is_not_public() {
        let inside = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:0a00:0001::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "2001:10::1",
            "100::1",
            "3fff::1",
        ];
        for address in inside {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn the_rest_is_public() {
        let outside = [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "198.17.0.1",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2606:4700::6810:84e5",
            "2a00:1450:4001:80b::200e",
            "2001:4860:4860::8888",
        ];
        for address in outside {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
