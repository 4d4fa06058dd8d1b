//! What is said about heads of requests that cannot be read. hyper answers those itself, with a status and nothing else, or
//! closes the connection; here they get a code and a hint like everything else.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::header::TRANSFER_ENCODING;
use hyper::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use twicesafe_ledger::Code;

use super::connections::Answering;
use super::{Body, Cut, Problem};

/// How long, and how much, somebody who was refused is still listened to: closed before, the answer could be lost on its way.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1 << 20;

/// Where a connection stands. What is written while it is quiet is not ours.
#[derive(Default)]
pub(super) struct Talk(AtomicU8);

/// Nobody has asked anything yet.
const FRESH: u8 = 0;
/// Everything that was asked is answered, and has left.
const QUIET: u8 = 1;
/// A request is being answered.
const BUSY: u8 = 2;
/// hyper has all of the answer, and what it has leaves next.
const LEAVING: u8 = 3;

impl Talk {
    pub(super) fn asked(&self) {
        self.0.store(BUSY, Ordering::Relaxed);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed) != FRESH
    }

    fn flushed(&self) {
        let _ = self.0.compare_exchange(LEAVING, QUIET, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn is_quiet(&self) -> bool {
        matches!(self.0.load(Ordering::Relaxed), FRESH | QUIET)
    }
}

/// The body of an answer, which tells when all of it was taken.
pub(super) struct Ours {
    pub(super) body: Body,
    pub(super) talk: Arc<Talk>,
    pub(super) _answering: Option<Answering>,
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.talk.0.store(LEAVING, Ordering::Relaxed);
    }
}

impl hyper::body::Body for Ours {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream on which what hyper says by itself becomes a problem with a code.
pub(super) struct Coded<S> {
    stream: S,
    talk: Arc<Talk>,
    /// Something was heard that is not a whole head yet.
    heard: bool,
    /// What is said in place of what hyper says, and how much of it has left.
    said: Option<(Vec<u8>, usize)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Coded<S> {
    pub(super) fn new(stream: S, talk: Arc<Talk>) -> Self {
        Self { stream, talk, heard: false, said: None }
    }

    /// Says what is left to say once the connection has ended, and listens until it can have been heard.
    pub(super) async fn end(&mut self, ended: &hyper::Result<()>) {
        let Err(error) = ended else { return };
        let ending = async {
            if error.is_timeout() && self.heard && self.talk.is_quiet() {
                self.stream.write_all(&too_slow()).await?;
            } else if self.said.is_none() {
                return Ok(());
            }
            self.stream.shutdown().await?;
            let mut heard = 0;
            let mut buffer = vec![0; 8 << 10];
            while heard < LINGER_BYTES_MAX {
                match self.stream.read(&mut buffer).await? {
                    0 => break,
                    bytes => heard += bytes,
                }
            }
            io::Result::Ok(())
        };
        let _ = tokio::time::timeout(LINGER_TIME_MAX, Box::pin(ending)).await;
    }

    /// Writes a problem in place of these bytes.
    fn say_instead(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<()>> {
        let (said, done) = self.said.get_or_insert_with(|| (not_understood(bytes), 0));
        while *done < said.len() {
            *done += match ready!(Pin::new(&mut self.stream).poll_write(context, &said[*done..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => written,
            };
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Coded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.heard |= buffer.filled().len() > before;
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Coded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.talk.is_quiet() {
            return self.say_instead(context, bytes).map_ok(|()| bytes.len());
        }
        self.heard = false;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.talk.is_quiet() {
            let first = parts.iter().find(|part| !part.is_empty());
            return self.poll_write(context, first.map_or(&[], |part| part));
        }
        self.heard = false;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.talk.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The head has more lines, or longer ones, than are read.
pub(super) fn too_large() -> Problem {
    let message = format!(
        "the head of the request has more than {} lines or {} bytes",
        super::listen::HEADERS_MAX,
        super::listen::HEAD_BYTES_MAX
    );
    Problem::new(Code::InputTooLarge, message, "Send fewer or shorter headers.")
        .with_status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
}

/// A body is packed in a way that is not known here: it would be taken for what it is not. A length beside `chunked` is dropped by
/// hyper before anybody sees it, as RFC 9112 (6.3) has it.
pub(super) fn badly_framed(headers: &HeaderMap) -> Option<Problem> {
    let codings: Vec<_> = headers.get_all(TRANSFER_ENCODING).iter().collect();
    match codings.as_slice() {
        [] => None,
        [only] if only.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => None,
        _ => {
            let message = "the only `Transfer-Encoding` that is read is `chunked`";
            let hint = "Send the body as it is, with `Content-Length` or `Transfer-Encoding: chunked`.";
            Some(Problem::bad_request(message, hint).with_status(StatusCode::NOT_IMPLEMENTED))
        }
    }
}

fn too_slow() -> Vec<u8> {
    let message = "the head of the request did not arrive in time";
    written_out(Problem::new(Code::TooSlow, message, "Send the request again, all at once."))
}

/// What is said in place of hyper's own answer, which is known by its status.
fn not_understood(bare: &[u8]) -> Vec<u8> {
    written_out(match bare.get(9..12) {
        Some(b"431") => too_large(),
        Some(b"414") => {
            let message = "the address of the request is too long";
            Problem::new(Code::InputTooLarge, message, "Put what is long into the body.")
                .with_status(StatusCode::URI_TOO_LONG)
        }
        _ => {
            let message = "the head of the request is not HTTP/1.1 or HTTP/2 as it should be";
            let hint = "Check the address: is https:// spoken to a listener without TLS? Are all header lines well-formed?";
            Problem::bad_request(message, hint)
        }
    })
}

fn written_out(problem: Problem) -> Vec<u8> {
    let response = problem.into_response();
    let Body::Whole(Some(body)) = response.body else { return Vec::new() };
    let date =
        jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&jiff::Timestamp::now());
    let mut text = format!("HTTP/1.1 {}\r\n", response.status).into_bytes();
    for (name, value) in &response.headers {
        text.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    text.extend(format!("content-length: {}\r\nconnection: close\r\n", body.len()).into_bytes());
    text.extend(date.map(|date| format!("date: {date}\r\n")).unwrap_or_default().into_bytes());
    text.extend(b"\r\n");
    text.extend(body);
    text
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioIo, TokioTimer};
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::http::Response;

    const HEAD_TIME: Duration = Duration::from_millis(200);

    /// Answers every request with its path, in parts or after a long head where the path says so.
    async fn serve(stream: DuplexStream) {
        let talk = Arc::new(Talk::default());
        let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
            talk.asked();
            let talk = talk.clone();
            async move {
                let path = request.uri().path().to_owned();
                let mut response = Response::whole(StatusCode::OK, "text/plain", path.clone());
                if path == "/parts" {
                    let parts = ["HTTP/1.1 200 OK\r\n\r\n", "/parts"];
                    let parts = parts.map(|part| Ok(Bytes::from_static(part.as_bytes())));
                    response.body = Body::stream(futures_util::stream::iter(parts));
                }
                if path == "/long-head" {
                    response = response.header("x", "y".repeat(40_000).parse().expect("a value"));
                }
                Ok::<_, Infallible>(response.into_hyper().map(|body| Ours { body, talk, _answering: None }))
            }
        });
        let mut stream = Coded::new(stream, talk.clone());
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(8 << 10);
        let ended = builder.serve_connection(TokioIo::new(&mut stream), service).await;
        stream.end(&ended).await;
    }

    /// What is heard by somebody who sends these, one after the other, and then waits.
    async fn heard(sent: &[&str]) -> String {
        let (ours, mut theirs) = duplex(1 << 20);
        let serving = tokio::spawn(serve(ours));
        for text in sent {
            theirs.write_all(text.as_bytes()).await.expect("there is room");
            tokio::time::sleep(HEAD_TIME / 4).await;
        }
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).await.expect("it is ended");
        drop(theirs);
        serving.await.expect("it ends");
        String::from_utf8(heard).expect("text")
    }

    fn get(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
    }

    #[tokio::test]
    async fn half_a_head_is_told_that_it_took_too_long() {
        let told = heard(&["GET / HT"]).await;
        assert!(told.starts_with("HTTP/1.1 408 ") && told.contains("TS0077"), "{told}");
        let told = heard(&[&get("/first"), "GET / HT"]).await;
        assert!(told.contains("/first") && told.contains("TS0077"), "{told}");
    }

    #[tokio::test]
    async fn who_says_nothing_more_is_told_nothing() {
        assert_eq!(heard(&[]).await, "");
        let post = "POST /first HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
        let told = heard(&[post]).await;
        assert!(told.ends_with("/first"), "{told}");
    }

    #[tokio::test]
    async fn what_is_ours_stays_as_it_is() {
        for path in ["/whole", "/parts", "/long-head"] {
            let twice = get(path).repeat(2);
            let told = heard(&[&twice, &get(path), "nonsense\r\n\r\n"]).await;
            let (ours, last) = told.rsplit_once("HTTP/1.1 400 ").expect("what is not understood");
            assert!(!ours.contains("TS0") && last.contains("TS0070"), "{told}");
            assert_eq!(ours.matches(path).count(), 3, "{ours}");
        }
    }
}
