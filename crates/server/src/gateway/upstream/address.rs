//! Which addresses a name may lead to. A destination on the internet must not become a way to what is inside (metadata
//! services, databases, this machine) because somebody changed a name's records.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address belongs to the inside of some network, or to nobody.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(inner) => is_private_v4(inner),
            None => is_private_v6(address),
        },
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (b == 18 || b == 19))
}

/// Only what is given to the internet is outside (2000::/3), without what leads elsewhere: tunnels end wherever their address says.
fn is_private_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    a & 0xe000 != 0x2000
        // Protocols' own, Teredo (2001::/32) among them.
        || (a == 0x2001 && b < 0x0200)
        // Documentation.
        || (a == 0x2001 && b == 0x0db8)
        || (a == 0x3fff && b < 0x1000)
        // 6to4.
        || a == 0x2002
}

/// The address of the old kind inside one of the new: mapped, or translated by everybody's prefix (64:ff9b::/96).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return Some(mapped);
    }
    let [a, b, c, d, e, f, g, h] = address.segments();
    let is_translated = [a, b, c, d, e, f] == [0x64, 0xff9b, 0, 0, 0, 0];
    is_translated.then(|| Ipv4Addr::from((u32::from(g) << 16) | u32::from(h)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s25_addresses_of_the_inside_are_known() {
        for inside in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "198.18.0.1",
            "224.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            // Anybody's relay would take it wherever it likes.
            "2002:101:101::",
            "::127.0.0.1",
            "::10.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b:1::1",
            "64:ff9b:1:ffff::7f00:1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:db8::1",
            "3fff::1",
            "100::1",
            "5f00::1",
            "fec0::1",
            "ff02::1",
            "192.88.99.1",
        ] {
            assert!(is_private(inside.parse().expect(inside)), "{inside}");
        }
        for outside in [
            "1.1.1.1",
            "93.184.216.34",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "64:ff9b::101:101",
            "100.128.0.1",
        ] {
            assert!(!is_private(outside.parse().expect(outside)), "{outside}");
        }
    }
}
