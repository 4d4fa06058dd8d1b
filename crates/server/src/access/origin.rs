//! Browsers carry requests of other sites: those are refused. So are names that somebody else's DNS made point here.

use hyper::header::{HOST, HeaderName, ORIGIN};
use twicesafe_ledger::Code;

use crate::http::{Problem, Request};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses what a page of another site sends. Programs that are not browsers send none of these headers. `base` is what
/// browsers find this server at, where a proxy stands before it.
pub(crate) fn check(request: &Request, base: Option<&str>) -> Result<(), Problem> {
    check_sent_here(request, base, true)
}

/// The same where nobody follows links: what is behind them is sent elsewhere, with the server's own credentials.
pub(crate) fn check_without_links(request: &Request) -> Result<(), Problem> {
    check_sent_here(request, None, false)
}

fn check_sent_here(request: &Request, base: Option<&str>, has_links: bool) -> Result<(), Problem> {
    let host = request.header(HOST).unwrap_or_default();
    if let Some(origin) = request.header(ORIGIN) {
        let same =
            origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
        let is_ours = base.is_some_and(|base| {
            let end = base.find("://").map_or(0, |at| at + 3);
            let end = base[end..].find('/').map_or(base.len(), |at| end + at);
            origin.eq_ignore_ascii_case(&base[..end])
        });
        if !same && !is_ours {
            return Err(other_site("a page of another site sent this"));
        }
    }
    let from_elsewhere = matches!(request.header(SEC_FETCH_SITE), Some("cross-site" | "same-site"));
    // Following a link is how people come here; it changes nothing.
    let follows_link = has_links
        && request.method == hyper::Method::GET
        && request.header("sec-fetch-mode") == Some("navigate");
    match from_elsewhere && !follows_link {
        true => Err(other_site("a page of another site sent this")),
        false => Ok(()),
    }
}

/// Where nobody needs a token, the name in the URL must be one of this machine: a page could otherwise come in under a name of
/// its own that points here.
pub(super) fn check_host(request: &Request) -> Result<(), Problem> {
    let host = request.header(HOST).or_else(|| request.uri.host()).unwrap_or_default();
    match is_loopback_name(host) {
        true => Ok(()),
        false => Err(other_site("the host name in the request is not one of this machine")),
    }
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn other_site(message: &str) -> Problem {
    Problem::new(
        Code::OtherSite,
        message,
        "Send it from a program, or from a page of this server; use 127.0.0.1 or localhost in the URL, or a token.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_do_without_a_token() {
        for host in [
            "localhost",
            "localhost:4080",
            "127.0.0.1:4080",
            "127.9.9.9",
            "[::1]:4080",
            "[::1]",
            "LOCALHOST:1",
        ] {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:4080",
            "127.0.0.1.evil.example",
            "localhost.evil.example:80",
            "10.0.0.1",
        ] {
            assert!(!is_loopback_name(host), "{host}");
        }
    }
}
