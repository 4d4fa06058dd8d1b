//! Bodies of answers: whole, a stream of events, or parts as they arrive from elsewhere.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, Stream};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

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

/// A body as it comes from elsewhere, with what is done when it has come to its end. One that is too long, or silent for too
/// long, is cut short.
pub(crate) struct Elsewhere {
    body: Incoming,
    at_end: Option<Box<dyn FnOnce() + Send>>,
    bytes_left: u64,
    silence: Silence,
    /// Makes of each part what is passed on, and of the end what was held back.
    through: Option<Box<dyn FnMut(Option<Bytes>) -> Bytes + Send>>,
}

/// How long nothing may come.
struct Silence {
    max: Duration,
    since: Instant,
    /// Runs once something was waited for, and then goes on: most parts come before it is looked at.
    alarm: Option<Pin<Box<Sleep>>>,
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

impl Elsewhere {
    pub(crate) fn new(
        body: Incoming,
        bytes_max: u64,
        silence_max: Duration,
        at_end: impl FnOnce() + Send + 'static,
    ) -> Self {
        let silence = Silence { max: silence_max, since: Instant::now(), alarm: None };
        Self { body, at_end: Some(Box::new(at_end)), bytes_left: bytes_max, silence, through: None }
    }

    /// Passes its parts through something that changes no lengths, and that may hold back the end of a part.
    #[must_use]
    pub(crate) fn through(mut self, through: impl FnMut(Option<Bytes>) -> Bytes + Send + 'static) -> Self {
        self.through = Some(Box::new(through));
        self
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        loop {
            let part = match ready!(self.poll_arrived(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => Some(data),
                    // What follows a body is for the connection.
                    Err(_) => continue,
                },
                Some(Err(cut)) => return Poll::Ready(Some(Err(cut))),
                None => None,
            };
            let Some(through) = &mut self.through else {
                return Poll::Ready(part.map(|data| Ok(Frame::data(data))));
            };
            let is_last = part.is_none() || self.body.is_end_stream();
            let mut passed = part.map_or_else(Bytes::new, |data| through(Some(data)));
            if is_last {
                // Once: nothing is held back any more.
                let held = through(None);
                passed = match (passed.is_empty(), held.is_empty()) {
                    (true, _) => held,
                    (_, true) => passed,
                    _ => [passed, held].concat().into(),
                };
            }
            match (passed.is_empty(), is_last) {
                (false, _) => return Poll::Ready(Some(Ok(Frame::data(passed)))),
                (true, true) => return Poll::Ready(None),
                (true, false) => {}
            }
        }
    }

    fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let frame = match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return self.silence.poll_over(context).map(|()| Some(Err(Cut))),
        };
        self.silence.since = Instant::now();
        let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        let Some(left) = self.bytes_left.checked_sub(bytes as u64) else {
            return Poll::Ready(Some(Err(Cut)));
        };
        self.bytes_left = left;
        let is_cut = matches!(frame, Some(Err(_)));
        // Who knows the length does not ask for more after the last part.
        if !is_cut
            && (frame.is_none() || self.body.is_end_stream())
            && let Some(at_end) = self.at_end.take()
        {
            at_end();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(|_| Cut)))
    }
}

impl Silence {
    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let alarm =
            self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(self.since + self.max)));
        loop {
            ready!(alarm.as_mut().poll(context));
            if self.since.elapsed() >= self.max {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(self.since + self.max);
        }
    }
}

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
            Self::Elsewhere(elsewhere) => elsewhere.poll_part(context),
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
