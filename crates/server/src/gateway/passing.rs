//! Answers that are passed on while they arrive: reads, and what is too large to keep. An answer that is cut short on the way
//! is cut short for the caller too, never ended as if it were whole (S21).

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use tokio::sync::{mpsc, oneshot};

use super::upstream::Lent;
use crate::http::{Body, Part};

/// Parts that wait for a slow reader.
const PARTS_WAITING_MAX: usize = 16;

/// The way of a large answer to the caller who is there.
pub(crate) struct Passed(mpsc::Sender<Part>);

impl Passed {
    /// Passes a part on. A caller who left misses it; the answer is read all the same (S13).
    pub(crate) async fn pass(&mut self, data: Bytes) {
        let _ = self.0.send(Part::Data(data)).await;
    }

    pub(crate) async fn end(&mut self) {
        let _ = self.0.send(Part::End).await;
    }
}

/// Where a large answer is handed to a caller, if one is there.
#[derive(Clone, Default)]
pub(crate) struct Handover(Arc<Mutex<Option<oneshot::Sender<Handed>>>>);

/// The head of an answer, and its body as it arrives.
type Handed = (Response<()>, Body);

impl Handover {
    /// A place to hand over, and where it arrives.
    pub(crate) fn new() -> (Self, oneshot::Receiver<Handed>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    /// Begins to hand over an answer: once.
    pub(crate) fn begin(&self, head: &Response<()>) -> Option<Passed> {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let (parts, receiver) = mpsc::channel(PARTS_WAITING_MAX);
        let mut shown = Response::new(());
        *shown.status_mut() = head.status();
        *shown.headers_mut() = head.headers().clone();
        sender.send((shown, Body::parts(receiver))).ok()?;
        Some(Passed(parts))
    }
}

/// Passes a body on as it arrives; the connection goes back when it ends.
pub(crate) fn streamed(mut body: Incoming, lent: Lent) -> Body {
    let (parts, receiver) = mpsc::channel(PARTS_WAITING_MAX);
    tokio::spawn(async move {
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return };
            let Ok(data) = frame.into_data() else { continue };
            if parts.send(Part::Data(data)).await.is_err() {
                // Nobody reads it any more: the connection is closed, and the destination need not go on.
                return;
            }
        }
        lent.give_back();
        let _ = parts.send(Part::End).await;
    });
    Body::parts(receiver)
}
