//! Ends connections whose other end does not read: an answer that cannot be written must not be kept for ever.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long the other end may go without taking a byte.
pub(super) const STALL_MAX: Duration = Duration::from_secs(30);

/// A stream that fails when it cannot be written for too long.
pub(super) struct Stalling<S> {
    stream: S,
    stall_max: Duration,
    /// Runs while a write waits.
    since: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalling<S> {
    pub(super) fn new(stream: S, stall_max: Duration) -> Self {
        Self { stream, stall_max, since: None }
    }

    fn judged<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.since = None;
            return result;
        }
        let stall_max = self.stall_max;
        let since = self.since.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall_max)));
        ready!(since.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judged(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judged(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.judged(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judged(context, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);

    fn connected() -> (Stalling<DuplexStream>, DuplexStream) {
        let (ours, theirs) = duplex(1000);
        (Stalling::new(ours, LIMIT), theirs)
    }

    #[tokio::test]
    async fn who_does_not_read_is_cut_off() {
        let (mut ours, theirs) = connected();
        let started = std::time::Instant::now();
        let written = ours.write_all(&[0; 1001]).await;
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        assert!(started.elapsed() >= LIMIT);
        drop(theirs);
    }

    #[tokio::test]
    async fn who_reads_slowly_is_not() {
        let (mut ours, mut theirs) = connected();
        let reading = tokio::spawn(async move {
            let mut read = 0;
            while read < 3000 {
                tokio::time::sleep(LIMIT / 3).await;
                read += theirs.read(&mut [0; 500]).await.unwrap_or(0);
            }
            read
        });
        // Longer in all than it may go without a byte.
        assert!(ours.write_all(&[0; 3000]).await.is_ok());
        assert_eq!(reading.await.ok(), Some(3000));
    }

    #[tokio::test]
    async fn who_has_nothing_to_read_may_wait_for_as_long_as_it_likes() {
        let (mut ours, mut theirs) = connected();
        assert!(ours.write_all(&[0; 10]).await.is_ok());
        tokio::time::sleep(LIMIT * 2).await;
        assert!(ours.write_all(&[0; 10]).await.is_ok());
        assert_eq!(theirs.read(&mut [0; 100]).await.ok(), Some(20));
    }
}
