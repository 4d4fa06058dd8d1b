//! Asking a destination whether it happened (S24). An error is no answer, and neither is an answer that is not understood.

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use twicesafe_ledger::{Attempt, Body, Finding, Meaning};

use super::act::{Errand, drop_credentials, request};
use super::answer::{Whole, received};
use super::expression::Sight;
use super::gate;
use super::outcome::Seen;
use super::route::Asking;
use super::sending::{Sending, selects_account};
use super::upstream::{Care, Failure};
use crate::credentials::is_credential;

/// Largest answer of a lookup.
const LOOKUP_BYTES_MAX: usize = 4 << 20;

impl Errand {
    /// Asks, under a permit of its own.
    pub(crate) async fn look_up(self, attempt: Attempt) -> Finding {
        // What is asked about is what may have been sent, not what somebody brings along now.
        let errand = match self.on_record(&attempt).await {
            Ok(on_record) => on_record.unwrap_or(self),
            Err(why) => return Finding::Silent { reason: why.into() },
        };
        let destination_key = errand.destination_key(&attempt);
        match &errand.route.lookup {
            Some(asking) => errand.ask(asking, attempt.name().key.as_str(), &destination_key).await,
            None => Finding::Silent { reason: "the route says no more how to ask".into() },
        }
    }

    pub(super) async fn ask(&self, asking: &Asking, key: &str, destination_key: &str) -> Finding {
        let silent = |why: String| Finding::Silent { reason: why.into() };
        let sight = Sight {
            event: None,
            request: Some(&self.view),
            answer: None,
            key: Some(key),
            destination_key: Some(destination_key),
        };
        let asked = tokio::time::timeout(self.route.timeout, self.asked(asking, &sight)).await;
        let whole = match asked.unwrap_or_else(|_| Err("it did not answer in time".to_owned())) {
            Ok(whole) => whole,
            Err(why) => return silent(why),
        };
        let status = whole.status.as_u16();
        if status == 404 && asking.asks_for_itself {
            return Finding::NotFound;
        }
        if !whole.status.is_success() {
            return silent(format!("it answered {status}"));
        }
        let view = whole.view();
        let sight = Sight { answer: Some(&view), ..sight };
        let has_read_body = whole.has_read_body(&view);
        let seen = Seen { status, retry_after: None, sight, has_read_body, in_doubt: false };
        let is_success = self.route.table.meaning(&seen) == Meaning::Answered;
        let sight = seen.sight;
        let no_success = || silent(format!("it answered {status}, which is no success here"));
        match asking.found.as_ref().map_or(Ok(true), |found| found.holds(&sight)) {
            // What is no success for an act says nothing by itself; what shows the thing itself does.
            Ok(_) if !is_success && asking.found.is_none() => no_success(),
            Ok(false) if !is_success => no_success(),
            Ok(true) => {
                let id = asking.external_id.as_ref().and_then(|expression| expression.name(&sight).ok());
                Finding::Found(whole.kept(id.map(|id| id.to_string()).as_deref()))
            }
            Ok(false) => match asking.conclusive.as_ref().map_or(Ok(true), |all| all.holds(&sight)) {
                Ok(true) => Finding::NotFound,
                Ok(false) => silent("it did not show everything there is".to_owned()),
                Err(why) => silent(why),
            },
            Err(why) => silent(why),
        }
    }

    async fn asked(&self, asking: &Asking, sight: &Sight<'_>) -> Result<Whole, String> {
        let request = request(&self.destination, &self.question(asking, sight)?).await?;
        let pass =
            self.destination.gate.enter(gate::Errand::Lookup).await.map_err(|shut| shut.why.to_owned())?;
        let exchanged = self.destination.upstream.exchange(request, Care::Little, || Ok(())).await;
        pass.went(exchanged.as_ref().is_ok_and(|(response, _)| !response.status().is_server_error()));
        let (response, lent) = exchanged.map_err(|failure| match failure {
            Failure::NotSent(why) | Failure::Unknown(why) => why,
        })?;
        let masks = self.destination.masks();
        let (head, body) = received(response, &masks).into_parts();
        let collected = Limited::new(body, LOOKUP_BYTES_MAX).collect().await;
        let body = collected.map_err(|_| "the lookup's answer was cut short or too large".to_owned())?;
        lent.give_back();
        Ok(Whole::of(head.status, &head.headers, Body::Kept(masks.mask(body.to_bytes()))))
    }

    /// The request that asks.
    fn question(&self, asking: &Asking, sight: &Sight<'_>) -> Result<Sending, String> {
        let address = asking.address.filled_in_address(sight)?;
        let (path, query) = match address.split_once('?') {
            Some((path, query)) => (path.to_owned(), Some(query.to_owned())),
            None => (address, None),
        };
        // A destination that versions its API, or acts for several accounts, is asked the same way.
        let is_same = |name: &HeaderName| {
            name.as_str().ends_with("-version")
                || selects_account(name)
                || self.route.acts_for.contains(name)
                || is_credential(name)
        };
        let same = self.sending.headers.iter().filter(|(name, _)| is_same(name));
        let mut headers: HeaderMap = same.map(|(name, value)| (name.clone(), value.clone())).collect();
        drop_credentials(&self.destination, &mut headers);
        for (name, template) in &asking.headers {
            let text = template.filled(sight)?;
            let value = HeaderValue::from_str(&text).map_err(|_| format!("`{name}` cannot hold that"))?;
            headers.insert(name.clone(), value);
        }
        let body = match &asking.body {
            Some(document) => {
                headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
                Bytes::from(document.filled(sight)?.to_string())
            }
            None => Bytes::new(),
        };
        Ok(Sending {
            method: asking.method.clone(),
            path,
            query,
            whole_query: None,
            headers,
            body,
            callback: None,
        })
    }
}
