//! What a TLS connection was ended with. Under TLS 1.3 we have sent our certificate, or none, and may go on before the other side
//! has looked at it: its refusal comes when the request has been written already. Nothing of that was looked at, because a
//! handshake comes before what it protects (S16).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a connection was ended with.
#[derive(Debug, Default)]
pub(super) struct Goodbye {
    alert: OnceLock<AlertDescription>,
    /// An answer came: the handshake was finished, and no alert says anything about it any more.
    is_answered: AtomicBool,
}

impl Goodbye {
    pub(super) fn answered(&self) {
        self.is_answered.store(true, Ordering::Relaxed);
    }

    /// Why the handshake was never finished, if that is known.
    pub(super) fn refusal(&self) -> Option<String> {
        let alert = self.alert.get().filter(|_| !self.is_answered.load(Ordering::Relaxed))?;
        Some(format!(
            "the destination does not take the client certificate, or wants one (TLS alert {}): see `tls.certificate`",
            alert.as_str().unwrap_or("without a name")
        ))
    }

    fn hear(&self, error: &io::Error) {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(alert)) = inner
            && is_about_certificates(*alert)
        {
            let _ = self.alert.set(*alert);
        }
    }
}

/// Whether an alert is only sent while a certificate is looked at.
fn is_about_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}

/// A connection whose goodbye is listened for, also when it is noticed by a write that fails.
pub(super) struct Listening<S> {
    stream: S,
    goodbye: Arc<Goodbye>,
    failed: Option<io::Error>,
}

impl<S> Listening<S> {
    pub(super) fn new(stream: S, goodbye: Arc<Goodbye>) -> Self {
        Self { stream, goodbye, failed: None }
    }
}

impl<S: AsyncRead + Unpin> Listening<S> {
    /// A write that failed is told only when everything that came before has been read: nobody reads on afterwards.
    fn heard_out<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.failed.is_none() {
            match ready!(write(Pin::new(&mut self.stream), context)) {
                Ok(written) => return Poll::Ready(Ok(written)),
                Err(error) => self.failed = Some(error),
            }
        }
        loop {
            let mut space = [0; 1024];
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) => break,
                Err(error) => {
                    self.goodbye.hear(&error);
                    break;
                }
            }
        }
        Poll::Ready(Err(self.failed.take().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Listening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        Poll::Ready(read.inspect_err(|error| self.goodbye.hear(error)))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Listening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.heard_out(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.heard_out(context, |stream, context| stream.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.heard_out(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s16_only_a_certificate_that_was_not_taken_before_any_answer_says_that_nothing_was_looked_at() {
        let heard = |alert| {
            let goodbye = Goodbye::default();
            goodbye.hear(&io::Error::other(rustls::Error::AlertReceived(alert)));
            goodbye
        };
        for alert in [AlertDescription::CertificateRequired, AlertDescription::UnknownCA] {
            let goodbye = heard(alert);
            assert!(goodbye.refusal().is_some_and(|why| why.contains("client certificate")));
            goodbye.answered();
            assert_eq!(goodbye.refusal(), None);
        }
        for other in [AlertDescription::InternalError, AlertDescription::CloseNotify] {
            assert_eq!(heard(other).refusal(), None);
        }
        let goodbye = Goodbye::default();
        goodbye.hear(&io::ErrorKind::ConnectionReset.into());
        assert_eq!(goodbye.refusal(), None);
    }
}
