//! Answers of AI models, pinned per work: the same question in the same work has one answer, byte for byte, and is paid for
//! once (S33). Whoever asks the same meanwhile follows the same flight; whoever asks later gets what is on record.

mod call;
mod expect;
mod flight;
mod frames;
mod lead;
mod pass;
mod question;
mod record;
pub(crate) mod saved;
mod shape;

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::header::HeaderValue;
use twicesafe_ledger::Code;

use super::plan::Notes;
use super::{Arrival, guarded, observe, reads};
use crate::config::destinations::{Mode, PinRules, Price, Truncated};
use crate::http::request::percent_decoded;
use crate::http::{Problem, Request, Response};
use call::{Call, Wish};
pub(crate) use expect::Expectation;
pub(crate) use flight::Flights;

/// Largest question: pictures travel in them.
pub(super) const REQUEST_BYTES_MAX: usize = 32 << 20;
/// How long a model may take to begin, and from one part of its answer to the next, unless said otherwise.
pub(super) const TIMEOUT_DEFAULT: Duration = Duration::from_secs(600);
/// Questions at the same time, unless said otherwise: each of them is mostly waiting.
pub(super) const CONCURRENCY_DEFAULT: u32 = 10_000;
/// How long a flight is believed to live without a sign of life. Short, because a re-run waits for it after a crash, and what
/// is asked twice does no harm.
const LEASE: Duration = Duration::from_secs(10);
/// How long one answer may take in all.
const ACT_TIME_MAX: Duration = Duration::from_secs(2 * 3600);
/// Every question may be asked again as often as somebody likes.
const ATTEMPTS_MAX: u32 = 1_000_000;
/// Highest number of a sample.
const SAMPLE_MAX: u32 = 1_000_000;
/// What is journalled about calls that were only passed on.
const PASSED_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Rounds in which what is over is dropped and asked anew.
const ROUNDS_MAX: usize = 3;
/// What makes the hash of credentials useless to who does not have the ledger.
const CREDENTIALS_PURPOSE: &str = "twicesafe 2026-11 credentials of pins";

/// Pins of one destination.
#[derive(Debug)]
pub(crate) struct Pins {
    window: Option<Duration>,
    truncated: Truncated,
    ignored: Vec<String>,
    prices: BTreeMap<String, Price>,
}

impl Pins {
    pub(super) fn read(rules: PinRules, notes: &mut Notes) -> Self {
        if rules.window.is_some_and(|span| span.0.is_zero()) {
            notes.take::<()>(
                "pins.window",
                Err("a window has some length; leave it out to pass such calls".to_owned()),
            );
        }
        for (model, price) in &rules.prices {
            let all = [Some(price.input), price.cached_input, Some(price.output)];
            if all.into_iter().flatten().any(|price| !price.is_finite() || price < 0.0) {
                notes.take::<()>(
                    &format!("pins.prices.{model}"),
                    Err("a price is a number from 0 on".to_owned()),
                );
            }
        }
        Self {
            window: rules.window.map(|span| span.0),
            truncated: rules.truncated.unwrap_or(Truncated::Pass),
            ignored: rules.ignore_headers.iter().map(|name| name.to_ascii_lowercase()).collect(),
            prices: rules.prices,
        }
    }

    pub(super) fn has_window(&self) -> bool {
        self.window.is_some()
    }

    /// Headers that do not change the answer.
    fn ignores(&self, name: &str) -> bool {
        matches!(
            name,
            "accept" | "content-type" | "x-client-request-id" | "x-should-retry" | "idempotency-key"
        ) || self.ignored.iter().any(|ignored| ignored == name)
    }
}

/// Whether a scope holds pins.
pub fn is_pin(scope: &str) -> bool {
    scope.rsplit('/').next().is_some_and(|action| action.starts_with("pin."))
}

/// Whether a model is asked by such a request.
pub(super) fn is_prompt(method: &hyper::Method, path: &str) -> bool {
    shape::Shape::of(method, path).is_some()
}

/// How the paths end whose answers are pinned.
pub(super) const LAST_STEPS: [&str; 4] = ["completions", "responses", "embeddings", "messages"];

/// The work in a path, for clients that can set only a base address: `/@order-10492/v1/chat/completions`.
pub(super) fn work_in_path(path: &str) -> Result<(Option<String>, String), Problem> {
    let Some(rest) = path.strip_prefix("/@").or_else(|| path.strip_prefix("/%40")) else {
        return Ok((None, path.to_owned()));
    };
    let (work, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let work = percent_decoded(work);
    // What stands for bytes that are no text.
    match !work.is_empty() && !work.contains('\u{fffd}') {
        true => Ok((Some(work.into_owned()), format!("/{rest}"))),
        false => Err(Problem::bad_request(
            "the work in the path is empty or badly encoded",
            "Write /to/DESTINATION/@WORK/v1, with the work's own name.",
        )),
    }
}

/// Whether a caller got an answer that was paid for before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pinned {
    Hit,
    Miss,
    Pass,
}

impl Pinned {
    fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Pass => "pass",
        }
    }
}

/// Answers a call that may be a question to a model.
pub(super) async fn answer(
    arrival: Arrival<'_>,
    pins: &Pins,
    request: &mut Request,
    work_of_path: Option<String>,
) -> Result<Response, Problem> {
    let (shared, name) = (arrival.shared.clone(), arrival.destination.name.clone());
    let wish = Wish::read(&arrival, request, work_of_path)?;
    let (answered, what) = match Call::read(&arrival, pins, request, &wish)? {
        Call::Question(question) => match Box::pin(question.answered(&arrival, pins, request)).await {
            Ok((response, pinned)) => (Ok(response), pinned.as_str()),
            Err(problem) => (Err(problem), "refused here"),
        },
        Call::Plain => (Box::pin(reads::pass(arrival, request, 1)).await, Pinned::Pass.as_str()),
        Call::Effect => (Box::pin(pass::passed(&arrival, request, wish)).await, Pinned::Pass.as_str()),
        Call::Written => {
            if let Some(work) = wish.work.as_deref().and_then(|work| HeaderValue::from_str(work).ok()) {
                request.headers.insert("twicesafe-work", work);
            }
            return match arrival.route.mode {
                Mode::Guard => Box::pin(guarded::answer(arrival, request)).await,
                Mode::Observe => Box::pin(observe::answer(arrival, request)).await,
            };
        }
    };
    shared.metrics.destination(&name, what);
    match answered {
        Ok(response) => Ok(response.header("twicesafe-pinned", HeaderValue::from_static(what))),
        // SDKs would ask again at once, and be told the same (S27).
        Err(problem) if problem.code == Code::Pending => {
            Ok(problem.into_response().header("x-should-retry", HeaderValue::from_static("false")))
        }
        Err(problem) => Err(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_can_stand_in_the_path() {
        let split = |path: &str| work_in_path(path).map(|(work, rest)| (work.unwrap_or_default(), rest)).ok();
        let named = |work: &str, rest: &str| Some((work.to_owned(), rest.to_owned()));
        assert_eq!(split("/v1/models"), named("", "/v1/models"));
        assert_eq!(split("/@order-10492/v1/chat/completions"), named("order-10492", "/v1/chat/completions"));
        assert_eq!(split("/@a%2Fb%20c/v1"), named("a/b c", "/v1"));
        assert_eq!(split("/%40a/v1"), named("a", "/v1"));
        assert_eq!(split("/@a"), named("a", "/"));
        for wrong in ["/@/v1", "/@%ff/v1"] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }
}
