//! Connections: their number, time limits, and shutdown.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    io,
    pin::{Pin, pin},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{Request, Response},
};
use futures_util::future::{Either, select};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{oneshot, watch},
    time::{Sleep, sleep},
};

use crate::{guard::Transport, metrics::Requests, queries::ConcurrencyPermit};

/// Maximum number of connections of each listening address.
pub(crate) const CONNECTIONS_MAX: usize = 256;
/// Time limit for a connection without a request, and for the head of a request.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum number of bytes of a request's head.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Time in which a slow client must accept [`WRITE_BYTES_MIN`] bytes.
const WRITE_WAIT: Duration = Duration::from_secs(10);
const WRITE_BYTES_MIN: usize = 64 << 10;

/// The connections of one listening address.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    max: usize,
    counts: Arc<Requests>,
    seats: Mutex<ConnectionSlots>,
    /// Notified when a connection ends.
    left: Condvar,
}

#[derive(Debug, Default)]
struct ConnectionSlots {
    next: u64,
    by_number: BTreeMap<u64, ConnectionState>,
}

#[derive(Debug)]
struct ConnectionState {
    /// Start of the idle time, or of the request while the server waits for more of the request's
    /// body. `None`: the server is answering a request.
    idle_since: Option<Instant>,
    /// Dropped to evict the connection.
    _eviction: oneshot::Sender<Infallible>,
}

#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    seats: Arc<ConnectionLimit>,
    number: u64,
}

/// Resolves when the connection is evicted, or when its permit is dropped.
pub(crate) type EvictionNotice = oneshot::Receiver<Infallible>;

impl ConnectionLimit {
    pub(crate) fn new(max: usize, counts: Arc<Requests>) -> Arc<Self> {
        Arc::new(Self {
            max,
            counts,
            seats: Mutex::default(),
            left: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionSlots> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection. At the limit, evicts the connection that was idle for longest. `None`:
    /// no connection is idle.
    pub(crate) fn take(self: &Arc<Self>) -> Option<(ConnectionPermit, EvictionNotice)> {
        let mut taken = self.lock();
        if taken.by_number.len() >= self.max {
            let idle = taken.by_number.iter();
            let idle = idle.filter_map(|(number, state)| Some((state.idle_since?, *number)));
            let Some((_, number)) = idle.min() else {
                self.counts.turned_away.fetch_add(1, Ordering::Relaxed);
                return None;
            };
            taken.by_number.remove(&number);
        }
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let number = taken.next;
        taken.next += 1;
        let (eviction, evicted) = oneshot::channel();
        let state = ConnectionState {
            idle_since: Some(Instant::now()),
            _eviction: eviction,
        };
        taken.by_number.insert(number, state);
        let seats = Arc::clone(self);
        Some((ConnectionPermit { seats, number }, evicted))
    }

    /// Waits until all connections have ended, or until `deadline`. Returns whether all have ended.
    pub(crate) fn is_empty_until(&self, deadline: Instant) -> bool {
        let wait = deadline.saturating_duration_since(Instant::now());
        let is_used = |taken: &mut ConnectionSlots| !taken.by_number.is_empty();
        let waited = self.left.wait_timeout_while(self.lock(), wait, is_used);
        let (taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        taken.by_number.is_empty()
    }
}

impl ConnectionPermit {
    fn set(&self, idle_since: Option<Instant>) {
        // An evicted connection has no entry.
        if let Some(state) = self.seats.lock().by_number.get_mut(&self.number) {
            state.idle_since = idle_since;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.seats.counts.ended.fetch_add(1, Ordering::Relaxed);
        self.seats.lock().by_number.remove(&self.number);
        self.seats.left.notify_all();
    }
}

/// Keeps a connection busy until the body of an answer has ended.
#[derive(Debug)]
struct InFlight(Arc<ConnectionPermit>);

impl InFlight {
    fn new(seat: &Arc<ConnectionPermit>) -> Self {
        seat.set(None);
        Self(Arc::clone(seat))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.set(Some(Instant::now()));
    }
}

/// The result of a future, or `None` if the connection is evicted first.
pub(crate) async fn unless_evicted<T>(
    future: impl Future<Output = T>,
    evicted: &mut EvictionNotice,
) -> Option<T> {
    match select(evicted, pin!(future)).await {
        Either::Left(_) => None,
        Either::Right((result, _)) => Some(result),
    }
}

/// Answers the requests of a connection. When `closing` becomes true, the current request is still
/// answered.
pub(crate) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    (seat, mut evicted): (Arc<ConnectionPermit>, EvictionNotice),
    transport: Transport,
    router: Router,
    mut closing: watch::Receiver<bool>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        seat.set(None);
        request.extensions_mut().insert(transport);
        let receiver = Arc::clone(&seat);
        let request = request.map(|body| RequestBody {
            body,
            seat: receiver,
            since: Instant::now(),
        });
        let seat = Arc::clone(&seat);
        let answering = hyper::service::Service::call(&router, request);
        async move {
            let mut response: Response<Body> = answering.await?;
            let permit: Option<Arc<ConcurrencyPermit>> = response.extensions_mut().remove();
            // Until the body ends, the connection is busy and the caller keeps its concurrency
            // permit.
            let kept = (InFlight::new(&seat), permit);
            let keep = move |_: &Frame<Bytes>| _ = &kept;
            Ok::<_, Infallible>(response.map(|body| body.inspect_frame(keep)))
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(HEAD_BYTES_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let talk = async {
        let closed = pin!(closing.wait_for(|is| *is));
        let is_closing = matches!(select(closed, connection.as_mut()).await, Either::Left(_));
        if is_closing {
            connection.as_mut().graceful_shutdown();
            // Errors need no action: for example, the client has disconnected.
            let _ = connection.await;
        }
    };
    unless_evicted(talk, &mut evicted).await;
}

/// The body of a request. While the handler waits for more data, the connection counts as idle.
#[derive(Debug)]
struct RequestBody {
    body: Incoming,
    seat: Arc<ConnectionPermit>,
    since: Instant,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.seat.set(frame.is_pending().then_some(self.since));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream on which a write fails if the reader is too slow.
#[derive(Debug)]
pub(crate) struct MinRateStream<S> {
    stream: S,
    /// The deadline, and the bytes that the reader must accept before the deadline.
    due: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> MinRateStream<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, due: None }
    }

    /// Checks the result of a write against the minimum rate.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
        bytes: usize,
    ) -> Poll<io::Result<usize>> {
        let taken = match &written {
            Poll::Ready(Ok(taken)) => *taken,
            Poll::Ready(Err(_)) => return written,
            Poll::Pending => 0,
        };
        if written.is_ready() && taken == bytes {
            self.due = None;
            return written;
        }
        let due = self
            .due
            .get_or_insert_with(|| (Box::pin(sleep(WRITE_WAIT)), WRITE_BYTES_MIN));
        due.1 = due.1.saturating_sub(taken);
        if due.1 == 0 {
            self.due = None;
        } else if written.is_pending() {
            ready!(due.0.as_mut().poll(context));
            let slow = "the client does not take what is written";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, slow)));
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MinRateStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MinRateStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        self.judge(context, written, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        runtime::Builder,
    };

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(test);
    }

    #[test]
    fn a_reader_that_does_not_keep_up_is_given_up() {
        run(async {
            let (stream, mut reader) = duplex(1024);
            let mut paced = MinRateStream::new(stream);
            let begun = tokio::time::Instant::now();
            // 512 bytes every 2.5 s are less than the minimum rate.
            tokio::spawn(async move {
                loop {
                    sleep(WRITE_WAIT / 4).await;
                    let _ = reader.read(&mut [0; 512]).await;
                }
            });
            let refused = paced.write_all(&[0; 1 << 20]).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
            assert_eq!(begun.elapsed().as_secs(), WRITE_WAIT.as_secs());
        });
    }

    #[test]
    fn a_reader_that_keeps_up_has_its_time() {
        run(async {
            let (stream, mut reader) = duplex(1024);
            let mut paced = MinRateStream::new(stream);
            let reading = tokio::spawn(async move {
                let mut piece = vec![0; WRITE_BYTES_MIN + 1024];
                for _ in 0..10 {
                    sleep(WRITE_WAIT * 9 / 10).await;
                    reader.read_exact(&mut piece).await.unwrap();
                }
                reader
            });
            let bytes = vec![0; 10 * (WRITE_BYTES_MIN + 1024)];
            paced.write_all(&bytes).await.unwrap();
            // Time in which nothing is written does not count against the reader.
            sleep(WRITE_WAIT * 100).await;
            paced.write_all(&[0; 1000]).await.unwrap();
            drop(reading.await.unwrap());
        });
    }

    #[test]
    fn the_longest_idle_makes_room_and_the_busy_do_not() {
        let seats = ConnectionLimit::new(2, Arc::default());
        let (first, mut first_out) = seats.take().unwrap();
        let (second, mut second_out) = seats.take().unwrap();
        let first = Arc::new(first);
        let busy = InFlight::new(&first);
        let (third, mut third_out) = seats.take().unwrap();
        assert!(
            second_out
                .try_recv()
                .is_err_and(|it| it == oneshot::error::TryRecvError::Closed)
        );
        drop(second);
        drop(busy);
        let third = Arc::new(third);
        let busy = InFlight::new(&third);
        assert!(
            first_out
                .try_recv()
                .is_err_and(|it| it == oneshot::error::TryRecvError::Empty)
        );
        let (fourth, _) = seats.take().unwrap();
        assert!(
            first_out
                .try_recv()
                .is_err_and(|it| it == oneshot::error::TryRecvError::Closed)
        );
        let fourth = Arc::new(fourth);
        let also_busy = InFlight::new(&fourth);
        assert!(seats.take().is_none());
        drop((busy, also_busy));
        assert!(
            third_out
                .try_recv()
                .is_err_and(|it| it == oneshot::error::TryRecvError::Empty)
        );
        drop((first, third, fourth));
        assert!(seats.is_empty_until(Instant::now()));
    }
}
