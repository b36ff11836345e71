import { expect, test, vi } from 'vitest';
import { eventReader, EventStream } from '../src/lib/events';

test('events arrive in pieces of any length', () => {
  const text = 'retry: 1000\nid: 7\n\nid: 8\nevent: notice\ndata: {"text":"a: b"}\n\n:\n\n';
  for (const size of [1, 3, text.length]) {
    const read = eventReader();
    const events = [];
    for (let at = 0; at < text.length; at += size) events.push(...read(text.slice(at, at + size)));
    expect(events).toEqual([
      { event: '', data: {}, next: 7 },
      { event: 'notice', data: { text: 'a: b' }, next: 8 },
      { event: '', data: {}, next: 8 },
    ]);
  }
});

test('a line without end breaks the connection', () => {
  const read = eventReader();
  expect(() => {
    for (let i = 0; i < 100; i++) read('x'.repeat(100_000));
  }).toThrow(/too long/);
});

/** A recorder whose connections the test feeds. */
class FakeRecorder {
  urls: string[] = [];
  status = 200;
  private send: ((text: string) => void) | undefined;
  private close: (() => void) | undefined;

  fetch = ((url: string, init: RequestInit) => {
    this.urls.push(url);
    if (this.status !== 200) return Promise.resolve(Response.json({ detail: 'no' }, { status: this.status }));
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.send = (text) => controller.enqueue(new TextEncoder().encode(text));
        this.close = () => controller.close();
        init.signal?.addEventListener('abort', () => controller.error(new DOMException('', 'AbortError')));
      },
    });
    return Promise.resolve(new Response(body));
  }) as typeof fetch;

  notice(next: number): void {
    this.send!(`id: ${next}\nevent: notice\ndata: {"text":"${next}"}\n\n`);
  }

  hello(next: number): void {
    this.send!(`id: ${next}\n\n`);
  }

  break(): void {
    this.close!();
  }
}

/** Locks as in a browser: one holder, then the others in their order. */
function fakeLocks(): LockManager {
  let last: Promise<unknown> = Promise.resolve();
  return {
    request: (_name: string, options: LockOptions, then: () => Promise<void>) => {
      const turn = last.then(() => (options.signal?.aborted ? undefined : then()));
      last = turn.catch(() => {});
      return turn;
    },
  } as unknown as LockManager;
}

const texts = (stream: EventStream) => stream.log.map((event) => event.data.text);

test('one tab reads, all tabs get the events, and the next tab goes on', async () => {
  const recorder = new FakeRecorder();
  const locks = fakeLocks();
  const tab = () => {
    const channel = new BroadcastChannel('one tab reads');
    return new EventStream('events', 'one tab reads', { fetch: recorder.fetch, channel, locks });
  };
  const [first, second] = [tab(), tab()];
  first.start();
  await vi.waitFor(() => expect(first.state).toBe('open'));
  recorder.notice(1);
  await vi.waitFor(() => expect(texts(first)).toEqual(['1']));
  second.start();
  await vi.waitFor(() => expect(texts(second)).toEqual(['1']));
  expect(second.state).toBe('open');
  recorder.notice(2);
  await vi.waitFor(() => expect(texts(second)).toEqual(['1', '2']));
  expect(recorder.urls).toEqual(['events?from=0']);

  first.stop();
  await vi.waitFor(() => expect(recorder.urls).toEqual(['events?from=0', 'events?from=2']));
  await vi.waitFor(() => expect(second.state).toBe('open'));
  recorder.notice(3);
  await vi.waitFor(() => expect(texts(second)).toEqual(['1', '2', '3']));
  second.stop();
});

test('a broken connection is resumed, and another recording begins at its first event', async () => {
  vi.useFakeTimers({ shouldAdvanceTime: true, advanceTimeDelta: 100 });
  const recorder = new FakeRecorder();
  const stream = new EventStream('events', 'alone', { fetch: recorder.fetch });
  stream.start();
  await vi.waitFor(() => expect(stream.state).toBe('open'));
  recorder.notice(41);
  await vi.waitFor(() => expect(texts(stream)).toEqual(['41']));
  recorder.break();
  await vi.waitFor(() => expect(stream.state).toBe('broken'));
  await vi.advanceTimersByTimeAsync(6000);
  expect(recorder.urls.at(-1)).toBe('events?from=41');
  recorder.hello(1);
  await vi.advanceTimersByTimeAsync(6000);
  expect(recorder.urls.at(-1)).toBe('events?from=0');
  expect(stream.log).toEqual([]);
  stream.stop();
  vi.useRealTimers();
});

test('a refusal ends the reading', async () => {
  const recorder = new FakeRecorder();
  recorder.status = 401;
  const stream = new EventStream('events', 'refused', { fetch: recorder.fetch });
  stream.start();
  await vi.waitFor(() => expect(stream.state).toBe('refused'));
  expect(stream.why).toBe('no');
});
