//! Pages for people: where they are, and the page behind an approval link. No scripts, nothing from elsewhere.

mod approval;

pub(crate) use approval::{PREFIX, answer as approval};

use hyper::StatusCode;
use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

use twicesafe_ledger::legible;

use crate::http::Response;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
h1{font-size:1.4rem}dl{display:grid;grid-template-columns:max-content 1fr;gap:.3rem 1rem}dt{color:#666}dd{margin:0;overflow-wrap:anywhere}
pre{background:#f4f4f2;padding:1rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;border-radius:.4rem}
button{font:inherit;padding:.7rem 1.4rem;border-radius:.4rem;border:1px solid #888;background:#fff;cursor:pointer}
button.yes{background:#14532d;border-color:#14532d;color:#fff}input{font:inherit;padding:.6rem;width:100%;box-sizing:border-box;margin:.4rem 0}
form{margin:1rem 0}.note{color:#666}
@media(prefers-color-scheme:dark){body{background:#161616;color:#eee}pre{background:#242424}button{background:#222;color:#eee}dt,.note{color:#aaa}}";

/// A page with that title. The content is HTML already.
pub(crate) fn page(status: StatusCode, title: &str, content: &str) -> Response {
    let title = escaped(title);
    let html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <meta name=robots content=noindex><title>{title} · Twicesafe</title><style>{STYLE}</style><h1>{title}</h1>{content}"
    );
    let mut response = Response::whole(status, "text/html; charset=utf-8", html);
    let headers = &mut response.headers;
    let policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // The address of the page is a secret; but without any, browsers do not say either whose page sends its form.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

/// The front page: what this is, and where to go.
pub(crate) fn front(is_admin: bool) -> Response {
    let content = match is_admin {
        true => {
            "<p>This is a Twicesafe server.</p><ul><li><a href=/openapi.json>The API</a>, as OpenAPI 3.1\
                 <li><a href=/healthz>Health</a> and <a href=/readyz>readiness</a><li><a href=/metrics>Metrics</a></ul>\
                 <p class=note>What waits for people: <code>twicesafe approvals</code>, <code>twicesafe review</code>.</p>"
        }
        false => "<p>This is a Twicesafe server. Approval links lead here.</p>",
    };
    page(StatusCode::OK, "Twicesafe", content)
}

/// Returns text as it may stand in HTML, inside and outside of attributes, with what would change how it is shown as escapes.
pub(crate) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in legible::block(text).chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callers_wrote_cannot_change_the_page() {
        assert_eq!(escaped("<b a='1' c=\"2\">&"), "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;");
        assert_eq!(escaped("100\u{202e}01"), "100\\u{202e}01");
    }
}
