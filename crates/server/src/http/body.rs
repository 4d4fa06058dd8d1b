//! Bodies of answers: whole, a stream of events, or parts as they arrive from elsewhere.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, Stream};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::sync::mpsc;

/// Events that wait for a slow reader; one that is slower still is cut off.
const EVENTS_WAITING_MAX: usize = 256;

/// The body of an answer.
pub(crate) enum Body {
    Whole(Option<Bytes>),
    /// With whatever must last as long as somebody listens.
    Events {
        events: mpsc::Receiver<Bytes>,
        _kept: Box<dyn std::any::Any + Send>,
    },
    Parts(mpsc::Receiver<Part>),
    Elsewhere(Box<Elsewhere>),
    Stream(BoxStream<'static, Result<Bytes, Cut>>),
}

/// A body as it comes from elsewhere, with what is done when it has come to its end.
pub(crate) struct Elsewhere {
    pub(crate) body: Incoming,
    pub(crate) at_end: Option<Box<dyn FnOnce() + Send>>,
}

/// Of a body that arrives from elsewhere.
pub(crate) enum Part {
    Data(Bytes),
    /// That was all. Without it the body was cut short.
    End,
}

/// A body was cut short, and is not ended as if it were whole (S21).
#[derive(Debug, thiserror::Error)]
#[error("the body was cut short")]
pub(crate) struct Cut;

impl Body {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// Parts as they arrive.
    pub(crate) fn parts(parts: mpsc::Receiver<Part>) -> Self {
        Self::Parts(parts)
    }

    /// Parts as they are made, until one cannot be.
    pub(crate) fn stream(parts: impl Stream<Item = Result<Bytes, Cut>> + Send + 'static) -> Self {
        Self::Stream(parts.boxed())
    }

    /// A stream of events, and where to put them. It ends when the sender goes.
    pub(crate) fn events(kept: impl std::any::Any + Send) -> (mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(EVENTS_WAITING_MAX);
        (sender, Self::Events { events: receiver, _kept: Box::new(kept) })
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Events { events, .. } => {
                events.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Parts(parts) => parts.poll_recv(context).map(|part| match part {
                Some(Part::Data(bytes)) => Some(Ok(Frame::data(bytes))),
                Some(Part::End) => None,
                None => Some(Err(Cut)),
            }),
            Self::Stream(parts) => {
                parts.poll_next_unpin(context).map(|part| part.map(|part| part.map(Frame::data)))
            }
            Self::Elsewhere(elsewhere) => {
                let frame = ready!(Pin::new(&mut elsewhere.body).poll_frame(context));
                let is_cut = matches!(frame, Some(Err(_)));
                // Who knows the length does not ask for more after the last part.
                if !is_cut
                    && (frame.is_none() || elsewhere.body.is_end_stream())
                    && let Some(at_end) = elsewhere.at_end.take()
                {
                    at_end();
                }
                Poll::Ready(frame.map(|frame| frame.map_err(|_| Cut)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Elsewhere(elsewhere) => elsewhere.body.is_end_stream(),
            Self::Events { .. } | Self::Parts(_) | Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Events { .. } | Self::Parts(_) | Self::Stream(_) => SizeHint::default(),
            Self::Elsewhere(elsewhere) => elsewhere.body.size_hint(),
        }
    }
}
