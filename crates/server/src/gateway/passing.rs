//! Answers that are passed on while they arrive: reads, and what is too large to keep. An answer that is cut short on the way
//! is cut short for the caller too, never ended as if it were whole (S21).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{HeaderMap, StatusCode};
use tokio::sync::{mpsc, oneshot};

use super::mask::{Masking, Masks};
use super::upstream::Lent;
use crate::http::{Body, Elsewhere, Part, Response};

/// Most of an answer that is passed on.
pub(super) const PASSED_BYTES_MAX: u64 = 1 << 30;
/// Parts that wait for a slow reader.
const PARTS_WAITING_MAX: usize = 64;
/// How long a reader may keep an answer from being read on; who is slower gets no more of it.
const READER_STALL_MAX: Duration = Duration::from_secs(5);

/// The way of a large answer to the caller who is there.
pub(crate) struct Passed(Option<mpsc::Sender<Part>>);

impl Passed {
    /// Passes a part on. A caller who left or does not read misses it; the answer is read all the same (S13).
    pub(crate) async fn pass(&mut self, data: Bytes) {
        if let Some(parts) = &self.0
            && !matches!(
                tokio::time::timeout(READER_STALL_MAX, parts.send(Part::Data(data))).await,
                Ok(Ok(()))
            )
        {
            self.0 = None;
        }
    }

    /// That was all of it.
    pub(crate) fn end(self) {
        if let Some(parts) = self.0 {
            tokio::spawn(async move { parts.send_timeout(Part::End, READER_STALL_MAX).await });
        }
    }
}

/// Where a large answer is handed to a caller.
pub(crate) struct Handover(Mutex<Option<oneshot::Sender<Response>>>);

impl Handover {
    /// A place to hand over, and where it arrives.
    pub(crate) fn new() -> (Self, oneshot::Receiver<Response>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Mutex::new(Some(sender))), receiver)
    }

    /// Begins to hand over an answer: once.
    pub(crate) fn begin(&self, status: StatusCode, headers: HeaderMap) -> Option<Passed> {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let (parts, receiver) = mpsc::channel(PARTS_WAITING_MAX);
        sender.send(Response { status, headers, body: Body::parts(receiver) }).ok()?;
        Some(Passed(Some(parts)))
    }
}

/// Passes a body on as it arrives; the connection goes back when it ends, and is closed when nobody reads on. A body that is too
/// large, or silent for too long, is cut short.
pub(crate) fn streamed(body: Incoming, lent: Lent, silence_max: Duration, masks: Masks) -> Body {
    if hyper::body::Body::is_end_stream(&body) {
        lent.give_back();
        return Body::whole(Bytes::new());
    }
    let mut elsewhere = Elsewhere::new(body, PASSED_BYTES_MAX, silence_max, move || lent.give_back());
    if !masks.is_empty() {
        let mut masking = Masking::new(masks);
        elsewhere = elsewhere.through(move |part| match part {
            Some(part) => masking.push(part),
            None => masking.end(),
        });
    }
    Body::Elsewhere(Box::new(elsewhere))
}
