//! Bodies of answers that a thread writes while the client reads, within a bound of memory.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::Bytes,
    http::{HeaderMap, StatusCode, Version},
};
use http_body::{Body, Frame};
use tokio::sync::mpsc;

use crate::problem::Problem;

/// Pieces on their way.
const PIECES: usize = 4;
/// Bytes of a piece that a [`PieceWriter`] makes.
const PIECE_BYTES: usize = 64 << 10;

enum Piece {
    Data(Bytes),
    /// All was sent.
    End(Option<HeaderMap>),
}

/// Where a thread writes a body. One that is dropped without [`Self::end`] leaves a body that ends in the middle: over HTTP/1.1 without its last
/// chunk, so that no client takes it for whole.
#[derive(Debug)]
pub(crate) struct Sender(mpsc::Sender<Piece>);

/// The body.
#[derive(Debug)]
pub(crate) struct Streamed {
    pieces: mpsc::Receiver<Piece>,
    is_over: bool,
    _left: Option<Left>,
}

/// What is done when the body is read or given up.
struct Left(Box<dyn Fn() + Send>);

impl Drop for Left {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Left")
    }
}

impl Streamed {
    /// Does this when the body has been read, or the client has left.
    pub(crate) fn when_left(self, act: impl Fn() + Send + 'static) -> Self {
        Self {
            _left: Some(Left(Box::new(act))),
            ..self
        }
    }
}

/// A body of unknown length, and where it is written.
///
/// # Errors
/// 505: in HTTP/1.0 the end of the connection is that of the body, and one that is cut looks whole.
pub(crate) fn stream(version: Version) -> Result<(Sender, Streamed), Problem> {
    if version < Version::HTTP_11 {
        let why = "by HTTP/1.0 nobody could tell whether this answer is whole: ask by HTTP/1.1";
        return Err(Problem::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, why));
    }
    Ok(self_ending_stream())
}

/// A body whose end is known without HTTP, by its length or because it is one JSON value, and where it is written.
pub(crate) fn self_ending_stream() -> (Sender, Streamed) {
    let (sender, pieces) = mpsc::channel(PIECES);
    let body = Streamed {
        pieces,
        is_over: false,
        _left: None,
    };
    (Sender(sender), body)
}

impl Sender {
    /// Waits until there is room. `false`: the client has left. Not for asynchronous code.
    pub(crate) fn send(&self, data: Bytes) -> bool {
        self.0.blocking_send(Piece::Data(data)).is_ok()
    }

    /// Whether the client has left.
    pub(crate) fn is_left(&self) -> bool {
        self.0.is_closed()
    }

    /// All was sent, but for trailers.
    pub(crate) fn end(self, trailers: Option<HeaderMap>) {
        // Whoever left does not hear of it.
        let _ = self.0.blocking_send(Piece::End(trailers));
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Piece")
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        self.pieces.poll_recv(context).map(|piece| match piece {
            Some(Piece::Data(data)) => Some(Ok(Frame::data(data))),
            Some(Piece::End(trailers)) => {
                self.is_over = true;
                trailers.map(|trailers| Ok(Frame::trailers(trailers)))
            }
            None => {
                self.is_over = true;
                Some(Err(io::Error::other("the answer ended in the middle")))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

/// A [`Sender`] as what can be written to, in pieces of [`PIECE_BYTES`]. The first bytes go out at once.
#[derive(Debug)]
pub(crate) struct PieceWriter<'a> {
    sender: &'a Sender,
    piece: Vec<u8>,
    /// Bytes that were written, sent or not.
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
    use axum::response::IntoResponse;

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
