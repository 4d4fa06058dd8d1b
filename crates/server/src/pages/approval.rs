//! The page behind an approval link: exactly what would be sent, and two buttons. Looking never decides (S30).

use std::fmt::Write;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use twicesafe_ledger::{Actor, Dossier, Error, Noted, Refusal, Status, Stored};

use super::{escaped, page};
use crate::access::{Right, Seen};
use crate::api::SHOWN_BYTES_MAX;
use crate::config::Person;
use crate::gateway::sending::Sending;
use crate::http::request::SMALL_BODY_BYTES_MAX;
use crate::http::{Problem, Request, Response, request};
use crate::server::Shared;
use crate::wire::time;

/// What the address of such a page begins with.
pub(crate) const PREFIX: &str = "/approve/";

/// Answers GET and POST of a link.
pub(crate) async fn answer(shared: &Shared, asked: &mut Request) -> Result<Response, Problem> {
    let text = asked.path().strip_prefix(PREFIX).unwrap_or_default();
    // Whoever guesses does not get as far as the ledger.
    let Some(seen) = shared.links().read(text) else {
        return Ok(told(
            StatusCode::FORBIDDEN,
            "Not a link of ours",
            "This link was not made here, or was changed on its way. Nothing was decided. (TS0076)",
        ));
    };
    let store = shared.ledger.store();
    if seen.is_expired(store.now().await?) {
        return Ok(told(
            StatusCode::GONE,
            "The link has expired",
            "Nothing was decided. Ask for another link. (TS0076)",
        ));
    }
    let Some(stored) = store.find_id(seen.intent()).await? else {
        return Ok(told(StatusCode::GONE, "Gone", "There is no such intent any more."));
    };
    let name = stored.record.name.clone();
    let scope = name.as_ref().map_or("", |name| name.scope.as_str());
    let may = |person: &Person| person.rights.contains(&Right::Approve) && person.cares_for(scope);
    if !shared.configuration().people.get(&seen.person).is_some_and(may) {
        let words = format!("{} may not approve this any more.", seen.person);
        return Ok(told(StatusCode::FORBIDDEN, "Not allowed", &words));
    }
    let stored = match &name {
        // Whoever meets what time has decided, decides it (S24).
        Some(name) => shared.ledger.look(name).await?.map_or(stored, |stored| (*stored).clone()),
        None => stored,
    };
    if !seen.is_of(&stored) {
        return Ok(told(
            StatusCode::CONFLICT,
            "It has changed",
            "What was asked for has changed since this link was made. There is another link for what is asked for now.",
        ));
    }
    let who = Actor::new(&format!("person:{}", seen.person))?;
    match asked.method {
        Method::GET => match name {
            Some(name) => match shared.ledger.dossier(&name).await? {
                Some(dossier) => Ok(shown(&dossier, &seen)),
                None => Ok(told(StatusCode::GONE, "Gone", "There is no such intent any more.")),
            },
            None => Ok(told(StatusCode::GONE, "Forgotten", "This intent was forgotten.")),
        },
        Method::POST => {
            asked.read_body(SMALL_BODY_BYTES_MAX).await?;
            decide(shared, asked, &stored, &who).await
        }
        _ => Err(crate::api::wrong_method("GET, POST")),
    }
}

async fn decide(shared: &Shared, asked: &Request, stored: &Stored, who: &Actor) -> Result<Response, Problem> {
    let form = request::pairs(std::str::from_utf8(&asked.body).unwrap_or_default());
    let field = |wanted: &str| form.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    let reason = field("reason").unwrap_or_default();
    if reason.contains('\0') {
        let words = "The reason has a character that cannot be kept (NUL). Say it without.";
        return Ok(told(StatusCode::BAD_REQUEST, "Nothing was decided", words));
    }
    let noted = match field("decision") {
        Some("yes") if !can_be_shown(shared, stored).await? => {
            let words = "Not all of what would be sent can be shown here. Look at it elsewhere, then use twicesafe approve.";
            return Ok(told(StatusCode::CONFLICT, "Nothing was decided", words));
        }
        Some("yes") => shared.ledger.approve(who, stored).await,
        Some("no") => shared.ledger.reject(who, stored, reason).await,
        _ => {
            return Ok(told(
                StatusCode::BAD_REQUEST,
                "Nothing was decided",
                "The form says neither yes nor no.",
            ));
        }
    };
    match noted {
        Ok(noted) => Ok(decided(noted)),
        Err(Error::Ledger(refusal)) => Ok(refused(&refusal)),
        Err(error) => Err(error.into()),
    }
}

fn decided(noted: Noted) -> Response {
    let words = match (noted.status, noted.changed) {
        (Status::Held, true) => "That was a yes. More people must say yes before anything is sent.",
        (Status::Held, false) => "You said yes before. More people must say yes before anything is sent.",
        (Status::Rejected, true) => "That was a no. Nothing is sent.",
        (Status::Rejected, false) => "It was rejected before. Nothing is sent.",
        (_, true) => "That was a yes. It goes on now.",
        (_, false) => "It was approved before. Nothing changed.",
    };
    told(StatusCode::OK, "Thank you", words)
}

fn refused(refusal: &Refusal) -> Response {
    let words = match refusal {
        Refusal::OwnRequest => "Who asked for it may not approve it. Ask somebody else.".to_owned(),
        Refusal::DecidedOtherwise(by) => {
            format!("{by} decided otherwise before, and the first decision stands.")
        }
        Refusal::WrongStatus(status) => format!("It does not wait for anybody any more: it is {status}."),
        other => format!("This was not taken: {other}."),
    };
    told(StatusCode::CONFLICT, "Not taken", &words)
}

fn told(status: StatusCode, title: &str, words: &str) -> Response {
    page(status, title, &format!("<p>{}</p>", escaped(words)))
}

/// Returns whether the page shows all of what would be sent: nobody says yes to what they have not seen.
async fn can_be_shown(shared: &Shared, stored: &Stored) -> Result<bool, Problem> {
    let Some(name) = &stored.record.name else { return Ok(false) };
    let request = shared.ledger.dossier(name).await?.and_then(|dossier| dossier.request);
    Ok(request.is_some_and(|request| is_shown_whole(&request)))
}

fn is_shown_whole(request: &Bytes) -> bool {
    request.len() <= SHOWN_BYTES_MAX && is_readable(request)
}

/// Returns whether a person can read the request: a body that is packed or binary would be shown as garbage.
fn is_readable(request: &Bytes) -> bool {
    let is_packed = Sending::from_kept(request).is_some_and(|sending| sending.is_packed());
    std::str::from_utf8(request).is_ok() && !is_packed
}

fn shown(dossier: &Dossier, seen: &Seen) -> Response {
    let record = &dossier.stored.record;
    let mut html = String::from("<dl>");
    let mut fact = |what: &str, value: &str| {
        let _ = write!(html, "<dt>{what}</dt><dd>{}</dd>", escaped(value));
    };
    if let Some(name) = &record.name {
        fact("What", name.scope.as_str());
        fact("Key", name.key.as_str());
    }
    fact("Asked by", record.requested_by.as_str());
    fact("Since", &time(record.created_at));
    if let Some(approval) = &record.approval {
        fact("Until", &time(approval.expires_at));
        let people = record.policy.approval.as_ref().map_or(1, |rule| rule.people);
        if people > 1 {
            fact("Said yes", &format!("{} of {people}", approval.approved_by.len()));
        }
    }
    fact("You are", &seen.person);
    html.push_str("</dl>");
    let is_whole = match &dossier.request {
        Some(request) => {
            let shown = String::from_utf8_lossy(&request[..request.len().min(SHOWN_BYTES_MAX)]);
            let _ = write!(html, "<p>What would be sent:</p><pre>{}</pre>", escaped(&shown));
            is_shown_whole(request)
        }
        None => false,
    };
    match record.status {
        Status::Held => {
            html.push_str(match is_whole {
                true => "<form method=post><button class=yes name=decision value=yes>Yes, send it</button></form>",
                // Nobody should say yes to what they have not seen.
                false => {
                    "<p class=note>Not all of what would be sent can be shown here. To say yes, look at it elsewhere, then \
                     use <code>twicesafe approve</code>.</p>"
                }
            });
            html.push_str(
                "<form method=post><input name=reason maxlength=1000 placeholder=\"Why not?\" aria-label=\"Why not\">\
                 <button name=decision value=no>No</button></form>",
            );
        }
        status => {
            let _ = write!(html, "<p>It does not wait for anybody any more: it is {status}.</p>");
        }
    }
    page(StatusCode::OK, "Should this happen?", &html)
}
