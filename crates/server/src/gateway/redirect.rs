//! Redirects of destinations. Clients follow them with everything they sent, the Twicesafe-Token too: nobody is led to another
//! host (S19). What leads to the same destination leads through the gateway; of everything else is only said where it leads.

use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};

use super::PREFIX;
use super::pattern::canonical_path;
use super::plan::Destination;
use crate::http::Response;

/// The status of an answer that would have led elsewhere.
const WITHHELD: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;

/// Returns the answer of a destination without a way to another host.
pub(super) fn kept_here(mut response: Response, destination: &Destination) -> Response {
    if !response.status.is_redirection() || !response.headers.contains_key(LOCATION) {
        return response;
    }
    if response.status == StatusCode::NOT_MODIFIED {
        response.headers.remove(LOCATION);
        return response;
    }
    let mut locations = response.headers.get_all(LOCATION).iter();
    let within = match (locations.next(), locations.next()) {
        (Some(only), None) => only.to_str().ok().and_then(|text| within(text, destination)),
        _ => None,
    };
    match within.and_then(|text| HeaderValue::from_str(&text).ok()) {
        Some(through_here) => {
            response.headers.insert(LOCATION, through_here);
            response
        }
        // It was done, and says where more is to be seen.
        None if response.headers.get("twicesafe-status").is_some_and(|status| status == "done") => {
            withheld(response, StatusCode::OK)
        }
        None => withheld(response, WITHHELD),
    }
}

/// Gives an answer another status, which says neither success nor where to go; both are in headers of their own.
pub(super) fn withheld(mut response: Response, status: StatusCode) -> Response {
    response.headers.insert("twicesafe-original-status", HeaderValue::from(response.status.as_u16()));
    response.status = status;
    if let Some(elsewhere) = response.headers.remove(LOCATION) {
        response.headers.insert("twicesafe-original-location", elsewhere);
    }
    response
}

/// The address at this server of what a destination names, if that is below its own base.
fn within(location: &str, destination: &Destination) -> Option<String> {
    through(location, &destination.name, &destination.upstream.base().address())
}

fn through(location: &str, name: &str, base: &str) -> Option<String> {
    // Clients take `\` for `/`, and drop control characters.
    if location.contains(['\\']) || location.contains(|c: char| c.is_control() || c == ' ') {
        return None;
    }
    let base = base.trim_end_matches('/');
    let authority_end =
        base.find("://").and_then(|at| Some(at + 3 + base[at + 3..].find('/')?)).unwrap_or(base.len());
    let (origin, base_path) = base.split_at(authority_end);
    let path = match location.get(..origin.len()) {
        Some(begin) if begin.eq_ignore_ascii_case(origin) => &location[origin.len()..],
        _ if location.starts_with("//") => return None,
        _ => location,
    };
    let below = path.strip_prefix(base_path).filter(|below| below.starts_with('/'))?;
    let below = below.split('#').next().unwrap_or_default();
    let (path, query) = below.split_once('?').map_or((below, None), |(path, query)| (path, Some(query)));
    let path = canonical_path(path)?;
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    Some(format!("{PREFIX}{name}{path}{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s19_a_redirect_leads_through_the_gateway_or_nowhere() {
        let base = "https://api.example.com/v2";
        for (location, expected) in [
            ("https://api.example.com/v2/files/7?a=b#c", Some("/to/crm/files/7?a=b")),
            ("HTTPS://API.example.com/v2/files/7", Some("/to/crm/files/7")),
            ("/v2/files/7", Some("/to/crm/files/7")),
            ("https://api.example.com/v1/files", None),
            ("https://api.example.com.evil.org/v2/files", None),
            ("https://api.example.com@evil.org/v2/files", None),
            ("https://api.example.com:444/v2/files", None),
            ("http://api.example.com/v2/files", None),
            ("//evil.org/v2/files", None),
            ("/\\evil.org/v2", None),
            ("/v2/../v1/files", None),
            ("/v2//evil.org", None),
            ("/v1/approve", None),
            ("files/7", None),
            ("/\tv2/files", None),
            ("", None),
        ] {
            assert_eq!(through(location, "crm", base).as_deref(), expected, "{location}");
        }
        let root = "http://127.0.0.1:9";
        assert_eq!(through("/a", "crm", root).as_deref(), Some("/to/crm/a"));
        assert_eq!(through("http://127.0.0.1:9/a", "crm", root).as_deref(), Some("/to/crm/a"));
        assert_eq!(through("http://127.0.0.1:99/a", "crm", root), None);
        assert_eq!(through("//127.0.0.1:9/a", "crm", root), None);
    }
}
