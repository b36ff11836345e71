import { api, ApiError, isAbort, reason } from '../lib/api';
import { both, queryParameters, rememberFilter, recentFilters, type Query } from '../lib/filters';
import { app } from '../lib/state.svelte';
import { MINUTE, MS, SECOND, type Range } from '../lib/time';
import type { Packet, Problem, Scan, Top } from '../lib/types';
import { scope } from './scope.svelte';

/** Rows of the packet list; beyond these, Wireshark is the better tool. */
export const MOST_ROWS = 10_000;
const FIRST_PAGE = 200;
const PAGE = 1000;
/** More packets than this are read only on request. */
const MANY = 3_000_000;
/** A range that moves is read when it has rested for this time, ms. */
const REST_MS = 350;

/** After this time, the recorder knows all packets and losses of a range, ns. */
const SETTLES = 3 * SECOND;

/** The packets of the selected range: the list, the largest hosts, ports and flows. */
class Analysis {
  packets = $state.raw<Packet[]>([]);
  top = $state.raw<Top | null>(null);
  scan = $state.raw<Scan | null>(null);
  isLoading = $state(false);
  trouble = $state('');
  filterProblem = $state.raw<Problem | null>(null);
  recent = $state.raw<string[]>(recentFilters());
  /** The range that was read; null: none. */
  shown = $state.raw<Query | null>(null);
  /** The number of packets that wait for a click, because there are many. */
  waits = $state<number | null>(null);
  private next: string | null = null;
  private abort = new AbortController();
  private checking = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** The range of the lists: the selection, or what a stopped strip shows. */
  get range(): Range | null {
    return app.view.selection ?? app.view.range;
  }

  /** The oldest packets of the ring, if the range begins before these. */
  get past(): number | null {
    const oldest = scope.picture?.oldest ?? null;
    const [range, kept] = [this.range, scope.hold.kept];
    const isKept = kept && range && kept.from <= range.from && range.to <= kept.to;
    return oldest !== null && range && range.from < oldest && !isKept ? oldest : null;
  }

  get query(): Query {
    return { range: this.range, filter: app.view.filter, communityId: app.view.communityId };
  }

  /** Reads the lists again, when the range has rested. */
  follow(): void {
    clearTimeout(this.timer);
    this.abort.abort();
    const { range } = this;
    if (!range) {
      this.clear();
      return;
    }
    const n = this.estimate(range);
    if (n > MANY) {
      this.clear();
      this.waits = n;
      return;
    }
    this.timer = setTimeout(() => void this.read(), REST_MS);
  }

  private clear(): void {
    this.packets = [];
    this.top = this.scan = this.shown = null;
    this.trouble = '';
    this.waits = null;
    this.isLoading = false;
  }

  /** About how many packets the range has, from the strips. */
  private estimate(range: Range): number {
    const columns = scope.picture?.history;
    const packets = columns?.channel('packets');
    if (!columns || !packets) return 0;
    let sum = 0;
    for (let i = Math.max(0, columns.columnOf(range.from)); i <= columns.columnOf(range.to) && i < packets.length; i++) sum += packets[i] || 0;
    return sum;
  }

  async read(isAgain = false): Promise<void> {
    clearTimeout(this.timer);
    const { query } = this;
    this.abort.abort();
    const abort = new AbortController();
    this.abort = abort;
    this.waits = null;
    this.isLoading = true;
    this.trouble = '';
    void this.check('');
    const parameters = queryParameters(query);
    try {
      const page = await api.packets({ ...parameters, limit: FIRST_PAGE }, abort.signal);
      // The list that is read again keeps its place.
      if (!isAgain) this.shown = query;
      this.top = null;
      this.take(page.packets, page.next ?? null, page.scan);
      if (query.filter) this.recent = rememberFilter(query.filter);
      this.top = await api.top({ ...parameters, count: 300 }, abort.signal);
      const rest = (query.range?.to ?? 0) + SETTLES - scope.now;
      if (page.scan.verdict !== 'complete' && rest > 0 && rest < MINUTE) this.timer = setTimeout(() => void this.read(true), rest / MS);
    } catch (error) {
      if (isAbort(error)) return;
      this.packets = [];
      this.top = this.scan = null;
      if (error instanceof ApiError && error.problem.filter !== undefined) this.filterProblem = error.problem;
      else this.trouble = reason(error);
    }
    this.isLoading = false;
  }

  private take(packets: Packet[], next: string | null, scan: Scan): void {
    this.packets = packets;
    this.scan = scan;
    this.next = packets.length < MOST_ROWS ? next : null;
  }

  get hasMore(): boolean {
    return this.next !== null;
  }

  /** The number of matching packets; null: not known yet. */
  get matches(): number | null {
    if (this.top) return this.top.packets;
    return this.shown && !this.hasMore && this.packets.length < MOST_ROWS ? this.packets.length : null;
  }

  /** Appends a page to the list. */
  async more(): Promise<void> {
    if (!this.next || this.isLoading || !this.shown) return;
    this.isLoading = true;
    const limit = Math.min(PAGE, MOST_ROWS - this.packets.length);
    try {
      const page = await api.packets({ ...queryParameters(this.shown), limit, after: this.next }, this.abort.signal);
      this.take([...this.packets, ...page.packets], page.next ?? null, page.scan);
    } catch (error) {
      if (isAbort(error)) return;
      this.trouble = reason(error);
      this.next = null;
    }
    this.isLoading = false;
  }

  /** Checks a filter while it is typed. The answers for earlier texts no longer count. */
  async check(filter: string): Promise<void> {
    this.checking.abort();
    const { signal } = (this.checking = new AbortController());
    if (!filter.trim()) {
      this.filterProblem = null;
      return;
    }
    try {
      const { problem } = await api.checkFilter(filter, signal);
      if (!signal.aborted) this.filterProblem = problem;
    } catch {
      // The reason is shown when the filter is applied.
    }
  }

  /** Applies a filter. A live strip stops, and its visible range is selected. */
  apply(filter: string): void {
    if (!this.range) {
      const range = scope.visible;
      scope.stop();
      app.go({ selection: range, filter: filter.trim(), packet: '' }, true);
    } else {
      app.go({ filter: filter.trim(), packet: '' });
    }
  }

  /** Narrows the filter by a click. */
  narrow(part: string): void {
    if (part) this.apply(both(app.view.filter, part));
  }
}

export const analysis = new Analysis();
