import type { Timeline } from '../lib/types';
import { parseRfc3339, SECOND, type Ns } from '../lib/time';

/** How much is known of a column. */
const enum Known { No, ForNow, Final }

/** A column keeps its numbers for this time at most before they are taken as final, ns. */
const SETTLES = 5 * SECOND;

/** Columns of pixels: counts in slots of equal length, of which slot `i` starts at `i * slot`. */
export class Columns {
  first = 0;
  length = 0;
  /** Length of the intervals whose largest is a column's peak, seconds. */
  peakSeconds: number;
  /** Numbers by name: `packets`, `bytes`, `lost:CAUSE`, `eth0/packets`. NaN: unknown. */
  private channels = new Map<string, Float64Array>();
  /** The channels of losses. */
  private losses: Float64Array[] = [];
  private known = new Uint8Array(0);
  /** Names of the series, by interface or direction. */
  series: string[] = [];

  constructor(readonly slot: Ns, readonly by: string) {
    this.peakSeconds = slot / SECOND;
  }

  get from(): Ns {
    return this.first * this.slot;
  }

  get to(): Ns {
    return (this.first + this.length) * this.slot;
  }

  /** Moves the window to other slots. What both windows have is kept. */
  move(first: number, length: number): void {
    if (first === this.first && length === this.length) return;
    const shift = first - this.first;
    for (const [name, values] of this.channels) {
      const moved = new Float64Array(length).fill(NaN);
      copy(values, moved, shift);
      this.channels.set(name, moved);
    }
    this.noteLosses();
    const known = new Uint8Array(length);
    copy(this.known, known, shift);
    this.known = known;
    this.first = first;
    this.length = length;
  }

  /** The slots that must be requested, as one range; null: all are final. */
  wanted(): { first: number; count: number } | null {
    const isOpen = (known: number): boolean => known !== Known.Final;
    const start = this.known.findIndex(isOpen);
    if (start < 0) return null;
    const end = this.known.findLastIndex(isOpen) + 1;
    return { first: this.first + start, count: end - start };
  }

  /** Whether any column has numbers. */
  get isDrawn(): boolean {
    return this.known.some((known) => known !== Known.No);
  }

  /** Takes over an answer whose slots are slots of these columns. `now` is the recorder's time. */
  apply(line: Timeline, now: Ns): void {
    const at = Math.round(parseRfc3339(line.from)! / this.slot) - this.first;
    const { peaks } = line;
    this.put('packets', line.packets, at);
    this.put('bytes', peaks?.wire_bytes ?? line.bytes, at);
    this.put('peakPackets', peaks?.packets ?? line.packets, at);
    this.put('peakBytes', peaks?.bytes ?? line.bytes, at);
    this.put('triggers', line.triggers, at);
    this.put('down', line.down.map(Number), at);
    for (const [name] of this.channels) {
      if (name.startsWith('lost:') && !(name.slice(5) in line.lost)) this.put(name, line.packets.map(() => 0), at);
    }
    for (const [cause, counts] of Object.entries(line.lost)) this.put(`lost:${cause}`, counts, at);
    this.peakSeconds = peaks?.seconds ?? this.slot / SECOND;
    for (const one of peaks?.series ?? []) {
      if (!this.series.includes(one.name)) this.series = [...this.series, one.name].sort();
      this.put(`${one.name}/packets`, one.packets, at);
      this.put(`${one.name}/bytes`, one.wire_bytes, at);
      this.put(`${one.name}/peakPackets`, one.peak_packets, at);
      this.put(`${one.name}/peakBytes`, one.peak_bytes, at);
    }
    this.settle(line, at, now);
  }

  private put(name: string, values: (number | null)[], at: number): void {
    let channel = this.channels.get(name);
    if (!channel) {
      this.channels.set(name, (channel = new Float64Array(this.length).fill(NaN)));
      this.noteLosses();
    }
    for (let i = Math.max(0, -at); i < values.length && i + at < this.length; i++) channel[i + at] = values[i] ?? NaN;
  }

  private noteLosses(): void {
    this.losses = [...this.channels].filter(([name]) => name.startsWith('lost:')).map(([, values]) => values);
  }

  private settle(line: Timeline, at: number, now: Ns): void {
    const losses = line.losses_known_to ? parseRfc3339(line.losses_known_to)! : -Infinity;
    const peaks = line.peaks?.known_from ? parseRfc3339(line.peaks.known_from)! : -Infinity;
    const settled = Math.max(Math.min(losses, now - SECOND / 2), now - SETTLES);
    for (let i = Math.max(0, at); i < at + line.packets.length && i < this.length; i++) {
      const start = (this.first + i) * this.slot;
      this.known[i] = start + this.slot <= settled && start >= peaks ? Known.Final : Known.ForNow;
    }
  }

  /** The numbers of a channel; null: no answer had it. */
  channel(name: string): Float64Array | null {
    return this.channels.get(name) ?? null;
  }

  value(name: string, column: number): number {
    return this.channels.get(name)?.[column] ?? NaN;
  }

  /** Causes of losses with a count above 0 anywhere. */
  causes(): string[] {
    const names = [...this.channels.keys()].filter((name) => name.startsWith('lost:'));
    return names.map((name) => name.slice(5)).sort();
  }

  /** Packets lost in a column, all causes. */
  lost(column: number): number {
    let sum = 0;
    for (const values of this.losses) sum += values[column] || 0;
    return sum;
  }

  columnOf(time: Ns): number {
    return Math.floor(time / this.slot) - this.first;
  }

  timeOf(column: number): Ns {
    return (this.first + column) * this.slot;
  }
}

function copy(from: Float64Array | Uint8Array, to: Float64Array | Uint8Array, shift: number): void {
  const start = Math.max(0, shift);
  const end = Math.min(from.length, to.length + shift);
  if (end > start) to.set(from.subarray(start, end), start - shift);
}

/** A unit of the strip's vertical axis. */
export type Unit = 'bits' | 'packets' | 'percent';

/** Bytes of FCS, preamble and gap of an Ethernet frame, which packets on a link take too. */
const OVERHEAD = 24;

/** Packets and bytes of the columns. */
type Pair = [Float64Array | null, Float64Array | null];

/** Calculates a column's rates. */
export class Rates {
  private factor: number;
  private sums: Pair;
  private peaks: Pair;
  private slotSeconds: number;
  private peakSeconds: number;

  constructor(columns: Columns, private unit: Unit, speedMbit: number, prefix = '') {
    this.factor = unit === 'packets' ? 1 : unit === 'bits' ? 8 : 800 / (speedMbit * 1e6);
    const channel = (name: string): Float64Array | null => columns.channel(prefix + name);
    this.sums = [channel('packets'), channel('bytes')];
    this.peaks = [channel('peakPackets'), channel('peakBytes')];
    this.slotSeconds = columns.slot / SECOND;
    this.peakSeconds = columns.peakSeconds;
  }

  mean(column: number): number {
    return this.rate(this.sums, column, this.slotSeconds);
  }

  /** The peak is never below the mean, also where peaks are not known yet. */
  peak(column: number): number {
    const peak = this.rate(this.peaks, column, this.peakSeconds);
    const mean = this.mean(column);
    return peak >= mean ? peak : mean;
  }

  private rate([packets, bytes]: Pair, column: number, seconds: number): number {
    const n = packets?.[column] ?? NaN;
    if (this.unit === 'packets') return n / seconds;
    const size = bytes?.[column] ?? NaN;
    return ((this.unit === 'percent' ? size + OVERHEAD * n : size) * this.factor) / seconds;
  }
}

/** A row of the table: some columns together. */
export interface Row {
  from: Ns;
  to: Ns;
  mean: number;
  peak: number;
  lost: number;
  triggers: number;
}

/** Reduces the columns to at most `rows` rows: the mean of means, the maximum of peaks, sums. */
export function reduce(columns: Columns, rates: Rates, rows: number): Row[] {
  const size = Math.max(1, Math.ceil(columns.length / rows));
  const reduced: Row[] = [];
  for (let start = 0; start < columns.length; start += size) {
    const end = Math.min(columns.length, start + size);
    const row: Row = { from: columns.timeOf(start), to: columns.timeOf(end), mean: NaN, peak: NaN, lost: 0, triggers: 0 };
    let sum = 0;
    let n = 0;
    for (let i = start; i < end; i++) {
      const mean = rates.mean(i);
      const peak = rates.peak(i);
      if (!Number.isNaN(mean)) {
        sum += mean;
        n += 1;
      }
      if (!(peak <= row.peak) && !Number.isNaN(peak)) row.peak = peak;
      row.lost += columns.lost(i);
      row.triggers += columns.value('triggers', i) || 0;
    }
    if (n) row.mean = sum / n;
    reduced.push(row);
  }
  return reduced;
}
