//! What an answer to a GraphQL operation means: the one table for every route that says `graphql: true` (S19).
//!
//! The specification tells two kinds of errors apart. A request error comes before anything is carried out: the answer has no
//! `data`. An error of a field names its `path`, and the field may have acted before it failed; where the field may not be null, the
//! null climbs up to `data` itself.

use serde_json::Value;
use twicesafe_ledger::Meaning;

/// Most answers of one batch that are read.
const BATCH_MAX: usize = 1000;

/// Returns the meaning of an answer, whose status alone means `by_status`. `body` is `None` where it could not be read.
pub(super) fn meaning(status: u16, by_status: Meaning, body: Option<&Value>) -> Meaning {
    let is_sure_of_nothing = matches!(by_status, Meaning::Unknown | Meaning::Partial);
    let Some(body) = body else {
        return match by_status {
            // Their bodies say nothing about the operation.
            Meaning::NotSent | Meaning::PassedOn => by_status,
            _ => Meaning::Unknown,
        };
    };
    let said = of_body(body);
    match said {
        _ if is_sure_of_nothing => by_status,
        Some(said) if (200..300).contains(&status) => said,
        // An answer of another status can only say that more happened than the status tells.
        Some(said @ (Meaning::Unknown | Meaning::Partial)) => said,
        Some(Meaning::Answered) => Meaning::Unknown,
        Some(Meaning::NotSent) if by_status == Meaning::Refused => Meaning::NotSent,
        None if by_status == Meaning::Answered => Meaning::Unknown,
        _ => by_status,
    }
}

/// Returns the meaning of a body, or `None` where it is not an answer to a GraphQL operation.
fn of_body(body: &Value) -> Option<Meaning> {
    match body {
        Value::Array(answers) if answers.is_empty() || answers.len() > BATCH_MAX => Some(Meaning::Unknown),
        Value::Array(answers) => {
            answers.iter().map(|answer| of_one(answer).unwrap_or(Meaning::Unknown)).reduce(both)
        }
        _ => of_one(body),
    }
}

fn of_one(answer: &Value) -> Option<Meaning> {
    let answer = answer.as_object()?;
    let errors = match answer.get("errors") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(errors)) => errors.as_slice(),
        // Some say who the caller is not with a text of that name, and then it is the status that counts.
        Some(_) => return None,
    };
    let fields = match answer.get("data") {
        None if errors.is_empty() => return None,
        None => return Some(of_request_errors(errors)),
        Some(Value::Object(fields)) => fields,
        // The operation was begun, and what it did is not shown.
        Some(_) => return Some(Meaning::Unknown),
    };
    let is_shown = |(name, value): &(&String, &Value)| *name != "__typename" && !value.is_null();
    let mut shown = fields.iter().filter(is_shown).map(|(_, value)| of_payload(value));
    if errors.is_empty() {
        // A field that may be null and is, without an error, says that its work is done.
        return Some(shown.reduce(both).unwrap_or(Meaning::Answered));
    }
    Some(match shown.any(|means| means == Meaning::Answered || means == Meaning::Partial) {
        true => Meaning::Partial,
        false => Meaning::Unknown,
    })
}

/// Returns the meaning of errors that came without `data`. Some servers leave out `data` where it is null, so a `path` counts here, too.
fn of_request_errors(errors: &[Value]) -> Meaning {
    let code = |error: &Value| {
        let code = error.pointer("/extensions/code").and_then(Value::as_str).unwrap_or_default();
        code.to_ascii_uppercase()
    };
    let is_of_a_field = |error: &Value| error.get("path").is_some_and(|path| !path.is_null());
    let is_of_the_server =
        |error: &Value| ["INTERNAL", "TIMEOUT", "UNAVAILABLE"].iter().any(|word| code(error).contains(word));
    let is_too_often =
        |error: &Value| ["THROTTLED", "RATELIMITED", "RATE_LIMITED"].contains(&code(error).as_str());
    if errors.iter().any(|error| is_of_a_field(error) || is_of_the_server(error)) {
        return Meaning::Unknown;
    }
    match errors.iter().all(is_too_often) {
        true => Meaning::NotSent,
        false => Meaning::Refused,
    }
}

/// Returns the meaning of what a mutation gave: `{"userErrors": [...]}` is a no, and `{"success": false}` leaves it open.
fn of_payload(payload: &Value) -> Meaning {
    let Some(fields) = payload.as_object() else { return Meaning::Answered };
    let is_list_of_errors = |name: &str| name == "errors" || name.ends_with("Errors");
    let says_no = fields
        .iter()
        .any(|(name, value)| is_list_of_errors(name) && value.as_array().is_some_and(|all| !all.is_empty()));
    let has_made = fields.iter().any(|(name, value)| {
        !is_list_of_errors(name)
            && !["__typename", "clientMutationId"].contains(&name.as_str())
            && !value.is_null()
    });
    match (says_no, has_made) {
        _ if fields.get("success") == Some(&Value::Bool(false)) => Meaning::Unknown,
        (true, true) => Meaning::Partial,
        (true, false) => Meaning::Refused,
        (false, _) => Meaning::Answered,
    }
}

/// Returns the meaning of two parts of one answer.
fn both(one: Meaning, other: Meaning) -> Meaning {
    match (one, other) {
        (one, other) if one == other => one,
        (Meaning::Answered | Meaning::Partial, _) | (_, Meaning::Answered | Meaning::Partial) => {
            Meaning::Partial
        }
        (Meaning::Unknown, _) | (_, Meaning::Unknown) => Meaning::Unknown,
        // One was refused and the other one was not taken: together they are one request, which is not to be sent again by itself.
        _ => Meaning::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(status: u16, body: &Value, expected: Meaning) {
        let by_status = Meaning::of_http_status(status, false);
        assert_eq!(meaning(status, by_status, Some(body)), expected, "{status} {body}");
    }

    #[test]
    fn s19_graphql_answers_mean_what_they_mean() {
        use Meaning::{Answered, NotSent, Partial, PassedOn, Refused, Unknown};
        let field = json!({ "message": "cannot return null", "path": ["orderCreate", "order", "name"] });
        let request = json!({ "message": "syntax error", "locations": [{ "line": 1, "column": 1 }] });
        let coded = |code: &str| json!({ "message": "no", "extensions": { "code": code } });
        let no = json!({ "order": null, "userErrors": [{ "message": "too many" }] });
        let yes = json!({ "order": { "id": 1 }, "userErrors": [] });
        for (status, body, expected) in [
            (200, json!({ "data": { "a": yes } }), Answered),
            (200, json!({ "data": { "a": null } }), Answered),
            (200, json!({ "data": null, "errors": [field] }), Unknown),
            (200, json!({ "data": null, "errors": [request] }), Unknown),
            (200, json!({ "errors": [field] }), Unknown),
            (200, json!({ "data": { "a": null }, "errors": [field] }), Unknown),
            (200, json!({ "data": { "a": null }, "errors": [request] }), Unknown),
            (200, json!({ "data": { "a": yes, "b": null }, "errors": [field] }), Partial),
            (200, json!({ "data": { "a": no, "b": null }, "errors": [field] }), Unknown),
            (200, json!({ "errors": [request] }), Refused),
            (200, json!({ "errors": [request, field] }), Unknown),
            (200, json!({ "errors": [coded("INTERNAL_SERVER_ERROR")] }), Unknown),
            (200, json!({ "errors": [coded("THROTTLED")] }), NotSent),
            (200, json!({ "errors": [coded("THROTTLED"), request] }), Refused),
            (200, json!({ "errors": "no" }), Unknown),
            (200, json!({ "errors": [] , "data": { "a": yes } }), Answered),
            (200, json!({ "data": { "a": no } }), Refused),
            (200, json!({ "data": { "a": yes, "b": no } }), Partial),
            (
                200,
                json!({ "data": { "a": { "order": { "id": 1 }, "userErrors": [{ "message": "late" }] } } }),
                Partial,
            ),
            (200, json!({ "data": { "a": { "orderCancelUserErrors": [{ "message": "no" }] } } }), Refused),
            (200, json!({ "data": { "a": { "success": false } } }), Unknown),
            (200, json!({ "data": null }), Unknown),
            (200, json!({}), Unknown),
            (200, json!("words"), Unknown),
            (200, Value::Null, Unknown),
            (200, json!([{ "data": { "a": yes } }, { "errors": [request] }]), Partial),
            (200, json!([{ "errors": [request] }, { "errors": [request] }]), Refused),
            (200, json!([{ "errors": [request] }, {}]), Unknown),
            (200, json!([]), Unknown),
            (400, json!({ "errors": [request] }), Refused),
            (400, json!({ "errors": [coded("RATELIMITED")] }), NotSent),
            (400, json!({ "data": null, "errors": [field] }), Unknown),
            (400, json!({ "data": { "a": yes } }), Unknown),
            (400, json!({ "error": "no GraphQL" }), Refused),
            (401, json!({ "errors": [request] }), PassedOn),
            (401, json!({ "errors": "no token" }), PassedOn),
            (429, json!({ "errors": [request] }), NotSent),
            (500, json!({ "errors": [request] }), Unknown),
        ] {
            check(status, &body, expected);
        }
        for (status, expected) in
            [(200, Unknown), (400, Unknown), (403, PassedOn), (429, NotSent), (502, Unknown)]
        {
            assert_eq!(meaning(status, Meaning::of_http_status(status, false), None), expected, "{status}");
        }
    }
}
