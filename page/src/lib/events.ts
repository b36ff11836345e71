/**
 * The recorder's events. One tab of a browser reads the stream and passes the events to the other
 * tabs, because a browser has few connections to a server and the recorder has few listeners.
 *
 * The tab that has the lock reads. When this tab closes, the browser gives the lock to the next
 * tab, which resumes at the event after the last one that it got.
 */

/** An event: its name in the API, its data, and the number to resume from. */
export interface RecorderEvent {
  event: string;
  // The shape depends on the name: docs/api-reference.md, "Events".
  data: Record<string, any>;
  next: number;
}

/**
 * `open`: events arrive. `broken`: no connection, the reader tries again. `refused`: the session
 * ended, or the token may not read events.
 */
export type StreamState = 'connecting' | 'open' | 'broken' | 'refused';

/** Events that a tab keeps: as many as the recorder. */
const KEPT = 1024;
/** Longest line of the stream, in characters. A longer line breaks the connection. */
const LINE_MAX = 4 << 20;
/** The recorder sends a comment after 15 s of silence. */
const SILENCE_MAX_MS = 40_000;
const RETRY_MIN_MS = 1000;
const RETRY_MAX_MS = 5000;

/** Reads server-sent events (HTML, section 9.2.6) piece by piece. */
export function eventReader(): (piece: string) => RecorderEvent[] {
  let rest = '';
  let name = '';
  let data = '';
  let next = 0;
  return (piece) => {
    const lines = (rest + piece).split('\n');
    rest = lines.pop() ?? '';
    if (rest.length > LINE_MAX) throw new Error('a line of the event stream is too long');
    const events: RecorderEvent[] = [];
    for (const line of lines) {
      if (line === '') {
        // The first message, and comments, have only the number to resume from.
        events.push({ event: name, data: data ? JSON.parse(data) : {}, next });
        name = data = '';
        continue;
      }
      const colon = line.indexOf(':');
      const field = line.slice(0, colon);
      const value = line.slice(colon + 1).replace(/^ /, '');
      if (field === 'event') name = value;
      else if (field === 'data') data += value;
      else if (field === 'id') next = Number(value);
    }
    return events;
  };
}

/** What tabs tell each other. */
type Message =
  | { hello: string }
  | { replay: string; log: RecorderEvent[]; state: StreamState }
  | { event: RecorderEvent }
  | { state: StreamState; why: string | undefined }
  | { session: true };

/** The parts of the browser that tests replace. */
export interface Surroundings {
  fetch: typeof fetch;
  channel?: BroadcastChannel;
  locks?: LockManager;
}

export class EventStream {
  state: StreamState = 'connecting';
  /** The reason of `refused`, if the recorder gave one. */
  why = '';
  /** The last events, oldest first. */
  log: RecorderEvent[] = [];
  private readonly tab = Math.random().toString(36).slice(2);
  private next: number | undefined;
  private leads = false;
  /** Whether this tab has the events of before it began to listen. */
  private caughtUp = false;
  private stopped = new AbortController();
  private readonly hearers = new Set<(event: RecorderEvent) => void>();
  private readonly watchers = new Set<() => void>();
  private readonly sessionWatchers = new Set<() => void>();

  /** `name` is the same in all tabs that show this recorder. */
  constructor(
    private readonly url: string,
    private readonly name: string,
    private readonly around: Surroundings = {
      fetch: (...request) => fetch(...request),
      channel: new BroadcastChannel(name),
      // Only in secure contexts: by plain HTTP from another machine, each tab reads.
      locks: navigator.locks,
    },
  ) {
    around.channel?.addEventListener('message', ({ data }) => this.hear(data as Message));
  }

  /** Calls `hearer` for each event from now on. Returns the function that ends this. */
  on(hearer: (event: RecorderEvent) => void): () => void {
    return join(this.hearers, hearer);
  }

  /** Calls `watcher` when another tab has logged in or out. */
  onSession(watcher: () => void): () => void {
    return join(this.sessionWatchers, watcher);
  }

  /** Calls `watcher` when the state changes. */
  watch(watcher: () => void): () => void {
    return join(this.watchers, watcher);
  }

  /** Begins with the oldest event that the recorder has: at the start, and after a login. */
  start(): void {
    this.stop();
    this.stopped = new AbortController();
    this.log = [];
    this.next = undefined;
    this.caughtUp = false;
    this.become('connecting');
    void this.compete(this.stopped.signal);
    this.post({ hello: this.tab });
  }

  stop(): void {
    this.stopped.abort();
  }

  /** Reports a login or logout to the other tabs. */
  sessionChanged(): void {
    this.post({ session: true });
  }

  private async compete(signal: AbortSignal): Promise<void> {
    const { locks, channel } = this.around;
    if (!locks || !channel) return this.lead(signal);
    try {
      await locks.request(this.name, { signal }, () => this.lead(signal));
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  private async lead(signal: AbortSignal): Promise<void> {
    this.leads = this.caughtUp = true;
    if (this.state === 'refused') this.become('connecting');
    let wait = RETRY_MIN_MS;
    while (!signal.aborted) {
      // A broken connection is tried again.
      await this.read(signal).catch(() => {});
      if (this.state === 'refused' || signal.aborted) break;
      if (this.state === 'open') wait = RETRY_MIN_MS;
      this.spread('broken');
      await pause(wait, signal);
      wait = Math.min(2 * wait, RETRY_MAX_MS);
    }
    this.leads = false;
  }

  /** Reads a connection to its end. */
  private async read(signal: AbortSignal): Promise<void> {
    const connection = new AbortController();
    const abort = () => connection.abort();
    signal.addEventListener('abort', abort);
    let watchdog = setTimeout(abort, SILENCE_MAX_MS);
    try {
      const answer = await this.around.fetch(`${this.url}?from=${this.next ?? 0}`, {
        signal: connection.signal,
        headers: { accept: 'text/event-stream' },
      });
      if (answer.status === 401 || answer.status === 403) {
        const problem = await answer.json().catch(() => ({}));
        return this.spread('refused', problem.detail);
      }
      if (!answer.ok || !answer.body) return;
      const decoder = new TextDecoder();
      const parse = eventReader();
      const reader = answer.body.getReader();
      this.spread('open');
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(abort, SILENCE_MAX_MS);
        for (const event of parse(decoder.decode(value, { stream: true }))) {
          if (event.event === '' && this.next !== undefined && event.next < this.next) {
            // Another recording with fewer events: begin at its first event.
            this.log = [];
            this.next = undefined;
            return;
          }
          if (event.event !== '') {
            this.take(event);
            this.post({ event });
          }
          if (event.event === 'end' && event.data.why) {
            return this.spread('refused', String(event.data.why));
          }
        }
      }
    } finally {
      clearTimeout(watchdog);
      connection.abort();
      signal.removeEventListener('abort', abort);
    }
  }

  private hear(message: Message): void {
    if ('session' in message) {
      for (const watcher of this.sessionWatchers) watcher();
    } else if (this.leads) {
      if ('hello' in message) {
        this.post({ replay: message.hello, log: this.log, state: this.state });
      }
    } else if ('replay' in message) {
      if (message.replay !== this.tab) return;
      message.log.forEach((event) => this.take(event));
      this.caughtUp = true;
      this.become(message.state);
    } else if ('event' in message) {
      // The replay that this tab waits for has this event too.
      if (this.caughtUp) this.take(message.event);
    } else if ('state' in message) {
      this.become(message.state, message.why);
    }
  }

  private take(event: RecorderEvent): void {
    // A reader that resumes may get an event twice.
    if (this.next !== undefined && event.next <= this.next) return;
    this.next = event.next;
    this.log.push(event);
    if (this.log.length > KEPT) this.log.splice(0, this.log.length - KEPT);
    for (const hearer of this.hearers) hearer(event);
  }

  private spread(state: StreamState, why?: string): void {
    this.become(state, why);
    this.post({ state, why });
  }

  private become(state: StreamState, why = ''): void {
    this.state = state;
    this.why = why;
    for (const watcher of this.watchers) watcher();
  }

  private post(message: Message): void {
    this.around.channel?.postMessage(message);
  }
}

function join<T>(set: Set<T>, member: T): () => void {
  set.add(member);
  return () => set.delete(member);
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
  });
}

let shared: EventStream | undefined;

/** The stream of this page. */
export function events(): EventStream {
  const url = new URL('v1/events', new URL('.', document.baseURI)).href;
  return (shared ??= new EventStream(url, `retroscope ${url}`));
}

/** Calls `then` for each event of the recorder; returns a function that ends this. */
export function onEvent(then: (event: RecorderEvent) => void): () => void {
  return events().on(then);
}
