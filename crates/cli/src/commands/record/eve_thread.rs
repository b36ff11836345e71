//! The thread that writes EVE lines about ended flows and about events of the recorder.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::RecvTimeoutError,
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use retroscope_api::{EventBody, StatusBody};
use retroscope_recorder::{
    Clock, FlowReceiver, RecorderEvent, RecorderHandle, Subscription, SystemClock,
};
use serde::Serialize;

use crate::eve::{Counters, EveWriter};

/// Maximum time for which the thread waits for ended flows before it checks for events and
/// requests.
const WAIT: Duration = Duration::from_millis(100);
/// Time between two lines of statistics of a live recording.
const STATISTICS_EVERY: Duration = Duration::from_secs(30);

/// Handle of the EVE thread.
#[derive(Debug)]
pub(crate) struct EveThread {
    thread: JoinHandle<Counters>,
    shared: Arc<EveSignals>,
}

/// The body of a line of statistics.
#[derive(Serialize)]
struct Statistics<'a> {
    kind: &'static str,
    #[serde(flatten)]
    status: StatusBody<'a>,
}

#[derive(Debug, Default)]
struct EveSignals {
    /// Request to reopen the file.
    rotate: AtomicBool,
    /// Whether the process that reads stdout has closed the pipe.
    has_left: AtomicBool,
}

/// State of the thread.
struct Writing {
    writer: EveWriter,
    flows: FlowReceiver,
    /// Whether the writer knows the name of an interface, by interface number.
    named: Vec<bool>,
    events: Subscription,
    handle: RecorderHandle,
    offline: bool,
    shared: Arc<EveSignals>,
}

impl EveThread {
    /// Starts the thread. For an output to a file (`is_file`), the analyzer waits up to 10 ms for
    /// this thread before it overwrites an unread event. `offline`: the packets come from files.
    ///
    /// # Errors
    /// The system's error about the thread.
    pub(crate) fn start(
        writer: EveWriter,
        flows: FlowReceiver,
        handle: RecorderHandle,
        (offline, is_file): (bool, bool),
    ) -> io::Result<Self> {
        let shared = Arc::<EveSignals>::default();
        let mut events = handle.subscribe(Some(0));
        if is_file {
            events.hold(flows.waker());
        }
        let writing = Writing {
            writer,
            flows,
            named: Vec::new(),
            events,
            handle,
            offline,
            shared: Arc::clone(&shared),
        };
        let builder = Builder::new().name("eve-writer".to_owned());
        let thread = builder.spawn(move || writing.run())?;
        Ok(Self { thread, shared })
    }

    /// Requests that the thread reopen the file by its name.
    pub(crate) fn rotate(&self) {
        self.shared.rotate.store(true, Ordering::SeqCst);
    }

    /// Whether the process that reads stdout has closed the pipe.
    pub(crate) fn has_left(&self) -> bool {
        self.shared.has_left.load(Ordering::SeqCst)
    }

    /// Waits until the thread has handled all flows and events of the ended recorder. `None`: the
    /// thread panicked.
    pub(crate) fn join(self) -> Option<Counters> {
        self.thread.join().ok()
    }
}

impl Writing {
    fn run(mut self) -> Counters {
        let mut told_at = Instant::now();
        loop {
            match self.flows.take(WAIT) {
                Ok(ended) => {
                    if !self.offline {
                        let numbers = ended.iter().map(|ended| ended.flow.interface());
                        numbers.for_each(|number| self.name(number));
                    }
                    self.writer.flows(&ended);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while let Ok(event) = self.events.take(Duration::ZERO) {
                self.event(&event);
            }
            if !self.offline && told_at.elapsed() >= STATISTICS_EVERY {
                told_at = Instant::now();
                self.statistics();
            }
            self.writer.flush();
            if self.shared.rotate.swap(false, Ordering::SeqCst) {
                self.writer.rotate();
            }
            let has_left = self.writer.has_left();
            self.shared.has_left.store(has_left, Ordering::SeqCst);
        }
        // Dumps may finish after the last flows.
        loop {
            match self.events.take(WAIT) {
                Ok(event) => self.event(&event),
                Err(RecvTimeoutError::Timeout) => self.writer.flush(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let has_left = self.writer.has_left();
        let counters = self.writer.close();
        // If the reader of stdout has left, missing lines are no loss.
        let lost = if has_left { 0 } else { counters.lost };
        Counters { lost, ..counters }
    }

    /// Tells the writer the name of a live interface, once.
    fn name(&mut self, number: u16) {
        let place = usize::from(number);
        if self.named.len() <= place {
            self.named.resize(place + 1, false);
        }
        if !self.named[place]
            && let Some(name) = self.flows.interface(number)
        {
            self.writer.interface(number, name);
            self.named[place] = true;
        }
    }

    /// Writes an event with the current time. When reading files, the start and the end of a dump
    /// have the time of the trigger instead.
    fn event(&mut self, event: &RecorderEvent) {
        let (_, body) = EventBody::of(event);
        let time_ns = match event {
            RecorderEvent::Triggered { trigger_ns, .. } if self.offline => *trigger_ns,
            RecorderEvent::Finished(report) if self.offline => report.trigger_ns,
            _ => SystemClock.now().wall_ns,
        };
        self.writer.event(time_ns, &body);
    }

    fn statistics(&mut self) {
        if let Ok(status) = self.handle.status() {
            let now_ns = SystemClock.now().wall_ns;
            let kind = "statistics";
            let status = StatusBody::from(&status);
            self.writer.event(now_ns, &Statistics { kind, status });
        }
    }
}
