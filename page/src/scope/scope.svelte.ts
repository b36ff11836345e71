import { api } from '../lib/api';
import { onEvent } from '../lib/events';
import { visible as printable } from '../lib/format';
import { app } from '../lib/state.svelte';
import { MS, now, parseRfc3339, rfc3339, SECOND, US, type Ns, type Range } from '../lib/time';
import type { Dump, Pin } from '../lib/types';
import type { Unit } from './columns';
import { Feed, type Picture } from './feed';
import { Hold } from './hold.svelte';
import type { Span, Stem } from './plot';

/** The shortest visible range, and the shortest live range, ns. */
const SHORTEST = 2 * US;
const SHORTEST_LIVE = 100 * MS;
/** Wheel steps within this time are one step for "Undo", ms. */
const ONE_STEP_MS = 800;
/** Up to this number of packets is drawn one by one. */
const STEMS = 500;

const UNIT_KEY = 'retroscope-unit';

/** What the Scope view shows and does: the strip's range, the lists above it, run, freeze, single. */
class Scope {
  private chosenUnit = $state<Unit>((localStorage.getItem(UNIT_KEY) as Unit | null) ?? 'bits');
  by = $state<'' | 'interface' | 'direction'>('');
  picture = $state.raw<Picture | null>(null);
  width = $state(1000);
  spans = $state.raw<Span[]>([]);
  triggers = $state.raw<Ns[]>([]);
  stems = $state.raw<Stem[] | null>(null);
  /** The time under the pointer or of the keyboard's cursor. */
  cursor = $state<Ns | null>(null);
  /** Waits for the next trigger, and stops at it. */
  isSingle = $state(false);
  hold = new Hold();
  private feed = new Feed(() => this.wish(), (picture) => this.take(picture));
  private wheeled = -Infinity;
  private stemsFor = '';

  start(): () => void {
    const stops = [this.feed.start(), onEvent((event) => this.onTrigger(event.event, event.data)), () => this.hold.release()];
    return () => stops.forEach((stop) => stop());
  }

  private wish() {
    if (app.view.tab !== 'scope' || !app.session || app.mayNot('getTimeline')) return null;
    const goal = app.status?.history_goal_seconds;
    return {
      range: app.view.range, last: app.view.last, by: this.by, width: this.width, historyWidth: this.width,
      goal: goal ? goal * SECOND : null,
    };
  }

  private take(picture: Picture): void {
    if (!this.picture && picture.columns) performance.mark('first-strip');
    this.picture = picture;
    void this.readStems();
  }

  poke(): void {
    this.feed.poke();
  }

  get unit(): Unit {
    return this.chosenUnit === 'percent' && this.speedMbit === null ? 'bits' : this.chosenUnit;
  }

  setUnit(unit: Unit): void {
    this.chosenUnit = unit;
    localStorage.setItem(UNIT_KEY, unit);
  }

  /** The sum of the link's speeds, Mbit/s; null: the speed of an interface is unknown. */
  get speedMbit(): number | null {
    const speeds = app.interfaces.map((one) => one.speed_mbit ?? 0);
    return speeds.length && speeds.every((speed) => speed > 0) ? speeds.reduce((a, b) => a + b) : null;
  }

  /** The speed that a series is compared with: its interface's, or the sum. */
  speedOf(series: string): number {
    const own = this.by === 'interface' ? app.interfaces.find((one) => one.name === series)?.speed_mbit : null;
    return own || this.speedMbit || 1;
  }

  get now(): Ns {
    return this.picture ? this.feed.now() : now();
  }

  get visible(): Range {
    return app.view.range ?? this.picture?.visible ?? { from: now() - app.view.last, to: now() };
  }

  /** Packets before this time were overwritten; null: none were. */
  get overwritten(): Ns | null {
    return app.status?.ring.evicted ? (this.picture?.oldest ?? null) : null;
  }

  get isLive(): boolean {
    return app.view.range === null;
  }

  // Range ------------------------------------------------------------------

  look(range: Range, replace = false): void {
    const span = Math.max(SHORTEST, range.to - range.from);
    const middle = (range.from + range.to) / 2;
    const wider = range.to - range.from < SHORTEST ? { from: middle - span / 2, to: middle + span / 2 } : range;
    app.go({ range: { from: Math.round(wider.from), to: Math.round(wider.to) } }, replace);
    this.poke();
  }

  /** Zooms by `factor`; the time `at` keeps its place. A live strip stays live. */
  zoom(factor: number, at: Ns | null = null): void {
    const replace = performance.now() - this.wheeled < ONE_STEP_MS;
    this.wheeled = performance.now();
    if (this.isLive) {
      const whole = Math.max(this.wholeSpan(), SHORTEST_LIVE * 10);
      const last = Math.min(Math.max(app.view.last * factor, SHORTEST_LIVE), whole);
      app.go({ last: Math.round(last / MS) * MS }, replace);
      this.poke();
      return;
    }
    const { from, to } = this.visible;
    const middle = at ?? (from + to) / 2;
    const span = Math.min((to - from) * factor, this.wholeSpan());
    if (span < SHORTEST && factor < 1) return;
    const start = middle - ((middle - from) / (to - from)) * span;
    this.look({ from: start, to: start + span }, replace);
  }

  pan(fraction: number): void {
    const { from, to } = this.visible;
    const step = (to - from) * fraction;
    const replace = performance.now() - this.wheeled < ONE_STEP_MS;
    this.wheeled = performance.now();
    if (from + step >= this.now) return;
    this.look({ from: from + step, to: to + step }, replace);
  }

  private wholeSpan(): number {
    const oldest = this.picture?.oldest ?? this.now - app.view.last;
    return Math.max(this.now - oldest, app.view.last) * 1.05;
  }

  /** The whole history. */
  whole(): void {
    this.look({ from: this.picture?.oldest ?? this.visible.from, to: this.now });
  }

  /** A newly chosen length of the live strip. */
  setLast(last: number): void {
    app.go({ range: null, last });
    this.hold.release();
    this.poke();
  }

  run(): void {
    this.isSingle = false;
    this.hold.release();
    app.go({ range: null, selection: null, packet: '' });
    this.poke();
  }

  /** Stops at the visible range, and keeps its packets in the ring. */
  freeze(): void {
    this.isSingle = false;
    if (this.hold.range) {
      this.hold.release();
      return;
    }
    const range = this.visible;
    if (this.isLive) this.look(range);
    void this.hold.freeze(range);
  }

  /** Stops the live strip without keeping its packets, as for a selection. */
  stop(): void {
    if (this.isLive) this.look(this.visible);
  }

  single(): void {
    const arms = !this.isSingle;
    if (arms) this.run();
    this.isSingle = arms;
  }

  private onTrigger(event: string, data: Record<string, unknown>): void {
    if (event !== 'triggered' || !this.isSingle) return;
    const at = parseRfc3339(String(data.trigger_time));
    if (at === null) return;
    // As on an oscilloscope, the trigger is where a fifth of the screen is left.
    const { last } = app.view;
    const range = { from: at - 0.8 * last, to: at + 0.2 * last };
    this.isSingle = false;
    setTimeout(() => {
      if (!this.isLive) return;
      this.look(range);
      void this.hold.freeze(range);
    }, Math.max(0, (range.to - this.now) / MS) + 200);
  }

  // Selection --------------------------------------------------------------

  select(selection: Range | null, replace = false): void {
    const rounded = selection && { from: Math.round(selection.from), to: Math.round(selection.to) };
    app.go({ selection: rounded, packet: '' }, replace);
  }

  /** Selects `span` around the largest column that is visible. */
  selectPeak(span: number): void {
    const at = this.peakAt();
    if (at === null) return;
    this.stop();
    // Near the live edge, the selection ends there.
    const to = Math.min(at + span / 2, Math.max(this.visible.to, at));
    this.select({ from: to - span, to });
  }

  peakAt(): Ns | null {
    const columns = this.picture?.columns;
    const values = columns?.channel(this.unit === 'packets' ? 'peakPackets' : 'peakBytes');
    if (!columns || !values) return null;
    let best = -1;
    for (let i = 0; i < values.length; i++) if (values[i]! > (best < 0 ? 0 : values[best]!)) best = i;
    return best < 0 ? null : columns.timeOf(best) + columns.slot / 2;
  }

  // Lists ------------------------------------------------------------------

  /** Reads the dumps and pins that are drawn above the columns. */
  async readSpans(): Promise<void> {
    const since = this.picture?.oldest ?? null;
    const [dumps, pins] = await Promise.all([
      app.mayNot('listDumps') ? [] : api.dumps({ limit: 1000, since: since === null ? undefined : rfc3339(since) }).then((all) => all.dumps, () => []),
      app.mayNot('listPins') ? [] : api.pins().then((all) => all.pins, () => []),
    ]);
    const found = dumps.map((dump) => this.dumpSpan(dump)).filter((span) => span !== null);
    this.triggers = dumps.map((dump) => parseRfc3339((dump.report ?? dump.stored)?.trigger_time ?? '')).filter((at) => at !== null);
    this.spans = [...found, ...pins.map((pin) => this.pinSpan(pin))].sort((a, b) => a.from - b.from);
  }

  private dumpSpan(dump: Dump): Span | null {
    const told = dump.report ?? dump.stored;
    const at = parseRfc3339(told?.trigger_time ?? '');
    if (!told || at === null) return null;
    const from = parseRfc3339(told.from) ?? at;
    const to = parseRfc3339(told.to) ?? at;
    const name = printable(told.rule_name && !/^\d+$/.test(told.rule_name) ? told.rule_name : told.rule, 60);
    const id = dump.stored?.id ?? told.id;
    const verdict = told.verdict ?? null;
    return { kind: 'dump', id, from, to, label: `${dump.number ?? ''} ${name}`.trim(), isBad: verdict !== null && verdict !== 'complete' };
  }

  private pinSpan(pin: Pin): Span {
    const from = (pin.from && parseRfc3339(pin.from)) || (this.picture?.oldest ?? 0);
    return { kind: 'pin', id: pin.name, from, to: parseRfc3339(pin.to) ?? from, label: pin.name.startsWith('page-') ? 'frozen' : printable(pin.name, 60), isBad: pin.revoked };
  }

  /** Few visible packets are drawn one by one. */
  private async readStems(): Promise<void> {
    const { columns, visible } = this.picture!;
    const range = app.view.range;
    const packets = columns?.channel('packets');
    const isFine = range && columns && packets && columns.slot < MS && visible.from === range.from && columns.from <= range.from && columns.to >= range.to;
    if (!isFine || packets.reduce((sum, n) => sum + (n || 0), 0) > STEMS) {
      this.stems = null;
      this.stemsFor = '';
      return;
    }
    const key = `${range.from} ${range.to}`;
    if (key === this.stemsFor) return;
    this.stemsFor = key;
    try {
      const page = await api.packets({ from: rfc3339(range.from), to: rfc3339(range.to), limit: 2 * STEMS });
      if (this.stemsFor !== key) return;
      const stems = page.packets.map((packet) => ({ at: parseRfc3339(packet.time)!, length: packet.length, id: packet.id ?? '' }));
      this.stems = stems.length ? stems : null;
    } catch {
      this.stems = null;
    }
  }
}

export const scope = new Scope();
