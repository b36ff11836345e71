import { api, isAbort, reason } from '../lib/api';
import { MS, now, parseRfc3339, rfc3339, SECOND, type Ns, type Range } from '../lib/time';
import { Columns } from './columns';
import { MAX_SLOTS, roughSlot, slotOf } from '../lib/ticks';

/** Between two requests of the live strip, ms. */
const FRAME_MS = 100;
/** Between two looks at the recorder's clock and the age of its oldest packet, ms. */
const SYNC_MS = 1000;
/** A request may run on for this time after the range has changed, ms. */
const PATIENCE_MS = 300;
/** Packets of the last moments may be on their way to the ring, ns. */
const LAG = 50 * MS;

export interface Wish {
  /** The visible range; null: live. */
  range: Range | null;
  last: number;
  by: string;
  /** Width of the strip, pixels. */
  width: number;
  /** Columns that the whole history needs. */
  historyWidth: number;
  goal: number | null;
}

/** What the strips draw. */
export interface Picture {
  columns: Columns | null;
  history: Columns | null;
  /** Another number: the history has new columns. */
  historyVersion: number;
  visible: Range;
  /** The recorder's time. */
  now: Ns;
  /** From here on every packet is in the ring; null: nothing is recorded. */
  oldest: Ns | null;
  trouble: string;
}

/**
 * Requests columns, one request at a time. A live strip requests only the columns that are new or
 * that may still change. Nothing is requested while the page is hidden.
 */
export class Feed {
  private columns: Columns | null = null;
  private history: Columns | null = null;
  /** The recorder's clock minus the browser's, ns. */
  private offset = 0;
  /** The recorder's time if it stands still, as after a file was read. */
  private standing: Ns | null = null;
  private lastEnd: Ns | null = null;
  private oldest: Ns | null = null;
  private synced = -Infinity;
  private historyDone = -Infinity;
  private wake: () => void = () => {};
  private isDirty = false;
  private abort = new AbortController();
  /** The loop with another number ends. */
  private loops = 0;
  private trouble = '';

  constructor(private wish: () => Wish | null, private draw: (picture: Picture) => void) {}

  start(): () => void {
    void this.loop(++this.loops);
    const poke = (): void => this.poke();
    document.addEventListener('visibilitychange', poke);
    return () => {
      this.loops += 1;
      document.removeEventListener('visibilitychange', poke);
      this.abort.abort();
      this.wake();
    };
  }

  /** The range, the size or the grouping has changed. */
  poke(): void {
    this.isDirty = true;
    this.wake();
    const { abort } = this;
    setTimeout(() => {
      if (this.isDirty && abort === this.abort) abort.abort();
    }, PATIENCE_MS);
  }

  /** The recorder's time. */
  now(): Ns {
    return this.standing ?? now() + this.offset;
  }

  private async loop(own: number): Promise<void> {
    while (own === this.loops) {
      const begun = performance.now();
      const wish = document.hidden ? null : this.wish();
      this.isDirty = false;
      this.abort = new AbortController();
      let isIdle = true;
      try {
        if (wish) isIdle = await this.step(wish);
        this.trouble = '';
      } catch (error) {
        if (isAbort(error)) continue;
        this.trouble = reason(error);
        if (wish) this.show(wish);
      }
      const rest = (isIdle || this.trouble ? SYNC_MS : FRAME_MS) - (performance.now() - begun);
      if (!this.isDirty && own === this.loops) await this.sleep(wish ? Math.max(0, rest) : 60_000);
    }
  }

  private sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Makes at most one request for the strip; returns whether nothing is left to request soon. */
  private async step(wish: Wish): Promise<boolean> {
    if (performance.now() - this.synced > SYNC_MS) await this.sync();
    const visible = this.visible(wish);
    const slot = slotOf(visible.to - visible.from, wish.width);
    const first = Math.floor(visible.from / slot);
    const length = Math.max(1, Math.ceil(visible.to / slot) - first);
    let columns = this.columns;
    if (columns?.slot !== slot || columns.by !== wish.by) columns = new Columns(slot, wish.by);
    columns.move(first, length);
    if (wish.range) this.show(wish);
    const isOpen = await this.fill(columns, wish.by);
    this.columns = columns;
    this.show(wish);
    if (performance.now() - this.historyDone > SYNC_MS) {
      await this.fillHistory(wish);
      this.show(wish);
    }
    return wish.range !== null && !isOpen;
  }

  /** Requests what is missing; returns whether columns may still change. */
  private async fill(columns: Columns, by: string): Promise<boolean> {
    const wanted = columns.wanted();
    if (!wanted) return false;
    const count = Math.min(wanted.count, MAX_SLOTS);
    // The newest columns first: with a live strip these are the ones that change.
    const first = wanted.first + wanted.count - count;
    const from = first * columns.slot;
    const line = await api.timeline(
      { from: rfc3339(from), to: rfc3339(from + count * columns.slot - 1), slots: count, peaks: true, by: by || undefined },
      this.abort.signal,
    );
    columns.apply(line, this.now());
    return columns.wanted() !== null;
  }

  /** The whole history, or the history goal if that is longer. */
  private async fillHistory(wish: Wish): Promise<void> {
    if (this.oldest === null) return;
    const to = this.now();
    const from = Math.min(this.oldest, wish.goal === null ? this.oldest : to - wish.goal);
    const slot = roughSlot((to - from) / wish.historyWidth);
    const history = this.history?.slot === slot ? this.history : new Columns(slot, '');
    const first = Math.floor(from / slot);
    history.move(first, Math.floor(to / slot) + 1 - first);
    await this.fill(history, '');
    this.history = history;
    this.historyDone = performance.now();
  }

  /** One slot over everything tells the recorder's time and the oldest packet. */
  private async sync(): Promise<void> {
    const begun = now();
    const line = await api.timeline({ slots: 1 }, this.abort.signal);
    const middle = (begun + now()) / 2;
    const from = parseRfc3339(line.from)!;
    const end = from + Math.round(line.slot_seconds * SECOND);
    this.standing = end === this.lastEnd ? end : null;
    const offset = end - middle;
    // A small difference is the network's jitter, and would make the strip tremble.
    if (Math.abs(offset - this.offset) > 30 * MS || this.lastEnd === null) this.offset = offset;
    this.lastEnd = end;
    // Single packets may be older, as of an interface with little traffic.
    this.oldest = line.whole_from ? parseRfc3339(line.whole_from) : line.packets[0] === null ? null : from;
    this.synced = performance.now();
  }

  private visible(wish: Wish): Range {
    if (wish.range) return wish.range;
    const slot = slotOf(wish.last, wish.width);
    const to = Math.floor((this.now() - (this.standing === null ? LAG : -slot)) / slot) * slot;
    return { from: to - wish.last, to };
  }

  private show(wish: Wish): void {
    this.draw({
      columns: this.columns,
      history: this.history,
      historyVersion: this.historyDone,
      visible: this.visible(wish),
      now: this.now(),
      oldest: this.oldest,
      trouble: this.trouble,
    });
  }
}
