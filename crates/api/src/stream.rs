//! Bodies of answers that a thread writes while the client reads, in bounded memory.

use std::io;

use axum::{
    body::{Body, Bytes},
    http::Version,
};
use futures_util::stream::unfold;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;

use crate::problem::{Cause, Problem};

/// Capacity of the channel between the writing thread and the connection, pieces.
const PIECES: usize = 4;
/// Maximum number of bytes of a piece.
const PIECE_BYTES: usize = 64 << 10;

/// The writing end of a body. If dropped without [`Self::end`], the body is cut: over HTTP/1.1 a
/// cut body lacks its last chunk, or bytes that `Content-Length` counts. `None` in the channel
/// marks the end.
#[derive(Debug)]
pub(crate) struct Sender(mpsc::Sender<Option<Frame<Bytes>>>);

struct OnDisconnect<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDisconnect<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Calls `act` when the body is dropped: after its end, or because the client has disconnected.
pub(crate) fn on_disconnect(body: Body, act: impl FnMut() + Send + 'static) -> Body {
    let left = OnDisconnect(act);
    Body::new(body.inspect_frame(move |_| _ = &left))
}

/// A body of unknown length, and its writing end.
///
/// # Errors
///
/// 505: in HTTP/1.0 the end of the connection is the end of the body, so a cut body looks complete.
pub(crate) fn stream(version: Version) -> Result<(Sender, Body), Problem> {
    if version < Version::HTTP_11 {
        let why = "by HTTP/1.0 nobody could tell whether this answer is whole: ask by HTTP/1.1";
        return Err(Problem::new(Cause::HttpVersion, why));
    }
    Ok(framed_stream())
}

/// An empty body of unknown length, for answers to HEAD. An empty body of known length would add
/// `Content-Length: 0`.
pub(crate) fn no_body() -> Body {
    Body::from_stream(futures_util::stream::empty::<io::Result<Bytes>>())
}

/// A body and its writing end, also for HTTP/1.0. To make a cut body detectable, the answer must
/// have a `Content-Length` or be one JSON value.
pub(crate) fn framed_stream() -> (Sender, Body) {
    let (sender, frames) = mpsc::channel(PIECES);
    let frames = unfold(Some(frames), |frames| async {
        let mut frames: mpsc::Receiver<_> = frames?;
        match frames.recv().await {
            Some(Some(frame)) => Some((Ok(frame), Some(frames))),
            Some(None) => None,
            None => Some((
                Err(io::Error::other("the answer ended in the middle")),
                None,
            )),
        }
    });
    (Sender(sender), Body::new(StreamBody::new(frames)))
}

impl Sender {
    /// Sends data, and waits until there is room. `false`: the client has disconnected. Panics in
    /// asynchronous code.
    pub(crate) fn send(&self, data: Bytes) -> bool {
        self.0.blocking_send(Some(Frame::data(data))).is_ok()
    }

    pub(crate) fn is_disconnected(&self) -> bool {
        self.0.is_closed()
    }

    pub(crate) fn end(self) {
        // If the client has disconnected, nobody needs the end.
        let _ = self.0.blocking_send(None);
    }
}

/// Writes to a [`Sender`] in pieces of [`PIECE_BYTES`] bytes. A flush may send a shorter piece.
#[derive(Debug)]
pub(crate) struct PieceWriter<'a> {
    sender: &'a Sender,
    piece: Vec<u8>,
    /// Bytes written, sent or still buffered.
    pub(crate) bytes: u64,
}

impl<'a> PieceWriter<'a> {
    pub(crate) fn new(sender: &'a Sender) -> Self {
        Self {
            sender,
            piece: Vec::new(),
            bytes: 0,
        }
    }
}

impl io::Write for PieceWriter<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = PIECE_BYTES - self.piece.len();
        let taken = data.len().min(room);
        self.piece.extend_from_slice(&data[..taken]);
        self.bytes += taken as u64;
        if self.piece.len() == PIECE_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece);
        if self.sender.send(piece.into()) {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the client has left",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::{http::StatusCode, response::IntoResponse};

    use super::*;

    #[test]
    fn an_old_client_gets_no_body_that_may_be_cut_unseen() {
        assert!(stream(Version::HTTP_11).is_ok());
        for version in [Version::HTTP_09, Version::HTTP_10] {
            let refused = stream(version).unwrap_err().into_response();
            assert_eq!(refused.status(), StatusCode::HTTP_VERSION_NOT_SUPPORTED);
        }
    }
}
