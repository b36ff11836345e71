import uPlot from 'uplot';
import { bits, si } from '../lib/format';
import type { Ns, Range } from '../lib/time';
import type { Mark } from '../lib/state.svelte';
import { Rates, type Columns, type Unit } from './columns';
import type { Picture } from './feed';
import { niceMax, tickLabel, ticks, tickStep } from '../lib/ticks';
import { hatch, onTheme, PALETTE, theme, type Theme } from './theme';

/** A dump or a pin, above the columns. */
export interface Span extends Range {
  kind: 'dump' | 'pin';
  id: string;
  label: string;
  /** A dump with missing packets, a revoked pin. */
  isBad: boolean;
}

/** A packet, drawn alone if few are visible. */
export interface Stem {
  at: Ns;
  length: number;
  id: string;
}

export interface Overlay {
  unit: Unit;
  /** The link's speed for a series, Mbit/s. */
  speedOf: (series: string) => number;
  utc: boolean;
  selection: Range | null;
  spans: Span[];
  marks: Mark[];
  /** Times of triggers that are known exactly. */
  triggers: Ns[];
  stems: Stem[] | null;
  packet: string;
  /** Why there are no packets before the oldest packets, except in the kept range. */
  gone: string;
  kept: Range | null;
}

/** Heights of the lanes above the columns, CSS pixels. */
const FLAGS = 13;
const LANE = 13;
const LEFT = 66;
const RIGHT = 10;

type Draw = CanvasRenderingContext2D;

/** The strip's canvas: columns by uPlot; losses, flags, spans and the selection by hooks. */
export class Plot {
  private chart: uPlot | null = null;
  private picture: Picture | null = null;
  private overlay: Overlay | null = null;
  private theme: Theme = theme();
  private patterns: { lost: CanvasPattern | string; down: CanvasPattern | string; gone: CanvasPattern | string } | null = null;
  private seriesKey = '';
  private silence: () => void;
  private highest = 1;
  /** Height of the lanes that the chart has room for. */
  private room = 0;
  /** Size of the host. To read the element's size in each frame would force a layout. */
  private size: { width: number; height: number };

  constructor(private host: HTMLElement, private onCursor: (time: Ns | null) => void) {
    this.size = { width: host.clientWidth, height: host.clientHeight };
    this.silence = onTheme(() => {
      this.theme = theme();
      this.patterns = null;
      this.drop();
      this.redraw();
    });
  }

  destroy(): void {
    this.silence();
    this.drop();
  }

  private drop(): void {
    this.chart?.destroy();
    this.chart = null;
  }

  /** The host has another size. */
  resize(): void {
    this.size = { width: this.host.clientWidth, height: this.host.clientHeight };
    this.chart?.setSize(this.size);
  }

  /** The element over the columns, for pointers. */
  get over(): HTMLElement | null {
    return this.chart?.over ?? null;
  }

  /** Width of the columns' area, CSS pixels. */
  get width(): number {
    return Math.max(100, this.size.width - LEFT - RIGHT);
  }

  timeAt(x: number): Ns {
    const { from, to } = this.picture?.visible ?? { from: 0, to: 1 };
    return from + (x / this.width) * (to - from);
  }

  xOf(time: Ns): number {
    const { from, to } = this.picture?.visible ?? { from: 0, to: 1 };
    return ((time - from) / (to - from)) * this.width;
  }

  /** The span under a point, relative to the columns' area. */
  spanAt(x: number, y: number): Span | null {
    const row = Math.floor((y + this.lanes() - FLAGS) / LANE);
    const time = this.timeAt(x);
    const slack = Math.abs(this.timeAt(x + 3) - time);
    return this.laid().find(({ span, row: r }) => r === row && span.from - slack <= time && time <= span.to + slack)?.span ?? null;
  }

  stemAt(x: number): Stem | null {
    let best: Stem | null = null;
    for (const stem of this.overlay?.stems ?? []) {
      const distance = Math.abs(this.xOf(stem.at) - x);
      if (distance < 8 && (!best || distance < Math.abs(this.xOf(best.at) - x))) best = stem;
    }
    return best;
  }

  draw(picture: Picture, overlay: Overlay): void {
    this.picture = picture;
    this.overlay = overlay;
    this.redraw();
  }

  private redraw(): void {
    const { picture, overlay } = this;
    if (!picture || !overlay) return;
    const names = picture.columns?.by ? picture.columns.series : [];
    const key = names.join('\n');
    const data = this.data(picture, names);
    if (key !== this.seriesKey) this.drop();
    this.seriesKey = key;
    if (this.chart) this.chart.setData(data, true);
    else this.chart = new uPlot(this.options(names), data, this.host);
    const lanes = this.lanes();
    // uPlot asks for its padding only when the size is set.
    if (lanes !== this.room) this.chart.setSize(this.size);
    this.room = lanes;
  }

  /** x, then peak and mean of each series. The last column is repeated, so that steps have an end. */
  private data(picture: Picture, names: string[]): uPlot.AlignedData {
    const { columns, visible } = picture;
    const { unit, speedOf, stems } = this.overlay!;
    this.highest = 0;
    if (stems) for (const stem of stems) this.highest = Math.max(this.highest, stem.length);
    if (!columns || stems) return [[visible.from, visible.to], ...(names.length ? names : ['']).flatMap(() => [[null, null], [null, null]])];
    const length = columns.length;
    const xs: number[] = [];
    for (let i = 0; i <= length; i++) xs.push(columns.timeOf(i));
    const rows: (number | null)[][] = [];
    for (const name of names.length ? names : ['']) {
      const rates = new Rates(columns, unit, speedOf(name), name && `${name}/`);
      const peaks: (number | null)[] = [];
      const means: (number | null)[] = [];
      for (let i = 0; i <= length; i++) {
        const column = Math.min(i, length - 1);
        const peak = rates.peak(column);
        const isIn = columns.timeOf(column + 1) > visible.from && columns.timeOf(column) < visible.to;
        if (isIn && peak > this.highest) this.highest = peak;
        peaks.push(Number.isNaN(peak) ? null : peak);
        const mean = rates.mean(column);
        means.push(Number.isNaN(mean) ? null : mean);
      }
      rows.push(peaks, means);
    }
    return [xs, ...rows];
  }

  private options(names: string[]): uPlot.Options {
    const stepped = uPlot.paths.stepped!({ align: 1 });
    const series: uPlot.Series[] = [{}];
    for (const [i] of (names.length ? names : ['']).entries()) {
      const own = PALETTE[i % PALETTE.length]!;
      const [max, mean] = names.length ? [`${own}66`, own] : [this.theme.max, this.theme.mean];
      series.push({ paths: stepped, fill: max, stroke: max, width: 1 / devicePixelRatio, points: { show: false } });
      series.push({ paths: stepped, stroke: mean, width: 1.5, points: { show: false }, ...(names.length ? {} : { fill: `${mean}80` }) });
    }
    const axis: uPlot.Axis = {
      stroke: () => this.theme.muted,
      grid: { stroke: () => this.theme.line, width: 1 },
      ticks: { stroke: () => this.theme.line, width: 1, size: 4 },
      font: `11px ${this.theme.font}`,
      labelFont: `11px ${this.theme.font}`,
    };
    return {
      ...this.size,
      padding: [() => this.lanes(), RIGHT, 0, 0],
      legend: { show: false },
      cursor: { x: true, y: false, points: { show: false }, drag: { x: false, y: false, setScale: false } },
      scales: {
        x: { time: false, range: () => [this.picture!.visible.from, this.picture!.visible.to] },
        y: { range: () => [0, this.top()] },
      },
      axes: [
        { ...axis, size: 24, gap: 3, splits: () => this.ticks().at, values: (_, at) => at.map((t) => this.timeLabel(t)) },
        { ...axis, size: LEFT, gap: 4, space: 34, values: (_, values) => values.map((v) => this.valueLabel(v)) },
      ],
      series,
      hooks: {
        drawClear: [(u) => this.drawBelow(u)],
        draw: [(u) => this.drawAbove(u)],
        setCursor: [(u) => this.onCursor(u.cursor.left !== undefined && u.cursor.left >= 0 ? this.timeAt(u.cursor.left) : null)],
      },
    };
  }

  private top(): number {
    const { unit, stems } = this.overlay!;
    if (unit === 'percent' && !stems && this.highest <= 100 && this.highest > 40) return 100;
    return niceMax(this.highest);
  }

  valueLabel(value: number): string {
    if (this.overlay?.stems) return si(value, 'B');
    return rateLabel(value, this.overlay?.unit ?? 'bits');
  }

  private ticks(): { at: Ns[]; step: Ns } {
    const { from, to } = this.picture!.visible;
    const step = tickStep(to - from, this.width / 84);
    return { at: ticks(from, to, step, this.overlay!.utc), step };
  }

  private px(u: uPlot, time: Ns): number {
    return u.bbox.left + (this.xOf(time) / this.width) * u.bbox.width;
  }

  /** A label that the edge would cut is left out. */
  private timeLabel(at: Ns): string {
    const x = this.xOf(at);
    return x < 10 - LEFT / 2 || x > this.width - 18 ? '' : tickLabel(at, this.ticks().step, this.overlay!.utc);
  }

  /** Time without packets: overwritten, not yet recorded, and interfaces that were down. */
  private drawBelow(u: uPlot): void {
    const c = u.ctx;
    this.patterns ??= { lost: hatch(c, this.theme.bad), down: hatch(c, this.theme.warn, false), gone: hatch(c, this.theme.line, false) };
    const { left, top, width, height } = u.bbox;
    const { visible, oldest: start, now, columns } = this.picture!;
    c.save();
    c.fillStyle = this.theme.sunken;
    c.fillRect(left, top, width, height);
    if (start !== null && start > visible.from) {
      const kept = this.overlay?.kept ?? { from: start, to: start };
      for (const [from, to] of [[visible.from, Math.min(start, kept.from)], [kept.to, start]] as const) this.band(u, from, to, this.patterns.gone);
      this.goneLabel(u, Math.min(start, kept.from));
    }
    if (now < visible.to) {
      c.fillStyle = this.theme.panel;
      const x = Math.max(left, this.px(u, now));
      c.fillRect(x, top, left + width - x, height);
    }
    if (columns) {
      this.runs(columns, (i) => columns.value('down', i) > 0, (from, to) => this.band(u, from, to, this.patterns!.down));
    }
    c.restore();
  }

  private goneLabel(u: uPlot, start: Ns): void {
    const c = u.ctx;
    const r = devicePixelRatio;
    const x = Math.min(this.px(u, start), u.bbox.left + u.bbox.width) - 8 * r;
    if (x - u.bbox.left < 90 * r) return;
    c.font = `${11 * r}px ${this.theme.font}`;
    c.textAlign = 'right';
    c.textBaseline = 'top';
    c.fillStyle = this.theme.muted;
    c.fillText(this.overlay!.gone, x, u.bbox.top + 6 * r);
  }

  private band(u: uPlot, from: Ns, to: Ns, fill: CanvasPattern | string): void {
    const { left, top, width, height } = u.bbox;
    const x = Math.max(left, this.px(u, from));
    const end = Math.min(left + width, this.px(u, to));
    if (end <= x) return;
    u.ctx.fillStyle = fill;
    u.ctx.fillRect(x, top, Math.max(end - x, devicePixelRatio), height);
  }

  /** Calls `then` for each run of columns for which `is` holds. */
  private runs(columns: Columns, is: (column: number) => boolean, then: (from: Ns, to: Ns) => void): void {
    for (let i = 0; i < columns.length; i++) {
      if (!is(i)) continue;
      const start = i;
      while (i < columns.length && is(i)) i += 1;
      then(columns.timeOf(start), columns.timeOf(i));
    }
  }

  private drawAbove(u: uPlot): void {
    const c = u.ctx;
    const { columns } = this.picture!;
    const { selection } = this.overlay!;
    c.save();
    if (columns) {
      const causes = columns.causes();
      const isLost = (i: number): boolean => causes.length > 0 && columns.lost(i) > 0;
      this.runs(columns, isLost, (from, to) => this.drawLoss(u, from, to));
    }
    if (this.overlay!.stems) this.drawStems(u);
    if (selection) this.drawSelection(u, selection);
    this.drawSpans(u);
    this.drawFlags(u);
    c.restore();
  }

  private drawLoss(u: uPlot, from: Ns, to: Ns): void {
    const { left, top, width, height } = u.bbox;
    this.band(u, from, to, this.patterns!.lost);
    const x = Math.max(left, this.px(u, from));
    const end = Math.min(left + width, this.px(u, to));
    const bar = 4 * devicePixelRatio;
    u.ctx.fillStyle = this.theme.bad;
    if (end > x) u.ctx.fillRect(x, top + height - bar, Math.max(end - x, devicePixelRatio), bar);
  }

  private drawStems(u: uPlot): void {
    const { top, height } = u.bbox;
    const scale = height / this.top();
    for (const stem of this.overlay!.stems!) {
      const x = Math.round(this.px(u, stem.at));
      const isChosen = stem.id === this.overlay!.packet;
      u.ctx.fillStyle = isChosen ? this.theme.flag : this.theme.mean;
      const size = Math.max(2, (isChosen ? 3 : 2) * devicePixelRatio);
      const high = stem.length * scale;
      u.ctx.fillRect(x - size / 2, top + height - high, size, high);
    }
  }

  private drawSelection(u: uPlot, selection: Range): void {
    const { left, top, width, height } = u.bbox;
    const c = u.ctx;
    const x = this.px(u, selection.from);
    const end = this.px(u, selection.to);
    if (end < left || x > left + width) return;
    c.fillStyle = `${this.theme.accent}2e`;
    const start = Math.max(left, x);
    c.fillRect(start, top, Math.min(left + width, end) - start, height);
    c.fillStyle = this.theme.accent;
    for (const edge of [x, end]) {
      if (edge < left - 1 || edge > left + width + 1) continue;
      c.fillRect(edge - devicePixelRatio / 2, top, devicePixelRatio, height);
      c.fillRect(edge - 2.5 * devicePixelRatio, top + height / 2 - 10 * devicePixelRatio, 5 * devicePixelRatio, 20 * devicePixelRatio);
    }
  }

  /** Dumps in one or two rows, pins in the next. */
  private laid(): { span: Span; row: number }[] {
    let end = -Infinity;
    const dumps = this.overlay!.spans.filter((span) => span.kind === 'dump').map((span) => {
      const row = span.from < end ? 1 : 0;
      if (row === 0) end = span.to;
      return { span, row };
    });
    const row = dumps.reduce((rows, one) => Math.max(rows, one.row + 1), 0);
    return [...dumps, ...this.overlay!.spans.filter((span) => span.kind === 'pin').map((span) => ({ span, row }))];
  }

  /** Height of the lanes for flags, dumps and pins, CSS pixels. */
  private lanes(): number {
    return FLAGS + LANE * this.laid().reduce((rows, one) => Math.max(rows, one.row + 1), 0) + 2;
  }

  private drawSpans(u: uPlot): void {
    const c = u.ctx;
    const r = devicePixelRatio;
    const { left, width, top } = u.bbox;
    c.font = `${10 * r}px ${this.theme.font}`;
    c.textBaseline = 'middle';
    c.textAlign = 'left';
    const laid = this.laid();
    for (const { span, row } of laid) {
      const x = Math.max(left, this.px(u, span.from));
      const end = Math.min(left + width, Math.max(this.px(u, span.to), this.px(u, span.from) + 2 * r));
      if (end <= x) continue;
      const y = top - this.lanes() * r + (FLAGS + row * LANE + 1) * r;
      const high = (LANE - 2) * r;
      const colour = span.isBad ? this.theme.bad : span.kind === 'dump' ? this.theme.dump : this.theme.pin;
      c.fillStyle = `${colour}40`;
      c.fillRect(x, y, end - x, high);
      if (span.isBad) {
        c.fillStyle = this.patterns!.lost;
        c.fillRect(x, y, end - x, high);
      }
      c.fillStyle = colour;
      c.fillRect(x, y + high - 1.5 * r, end - x, 1.5 * r);
      // A label may be longer than its span, up to the next span of the row.
      const next = Math.min(left + width, ...laid.filter((it) => it.row === row && it.span.from > span.from).map((it) => this.px(u, it.span.from)));
      const room = Math.max(end, next) - x - 8 * r;
      if (room > 24 * r) {
        c.fillStyle = this.theme.text;
        const text = fit(c, span.label, room);
        // A halo, so that the hatching does not hide the label.
        c.strokeStyle = this.theme.panel;
        c.lineWidth = 3 * r;
        c.strokeText(text, x + 4 * r, y + high / 2);
        c.fillText(text, x + 4 * r, y + high / 2);
      }
    }
  }

  /** Triggers as flags, hits of a backtest as hollow flags. */
  private drawFlags(u: uPlot): void {
    const { columns } = this.picture!;
    const { triggers, marks } = this.overlay!;
    const exact = new Set<number>();
    for (const at of triggers) {
      if (columns) exact.add(columns.columnOf(at));
      this.drawFlag(u, at, true);
    }
    if (columns) {
      for (let i = 0; i < columns.length; i++) {
        if (columns.value('triggers', i) > 0 && !exact.has(i)) this.drawFlag(u, columns.timeOf(i), true);
      }
    }
    for (const mark of marks) this.drawFlag(u, mark.at, false);
  }

  private drawFlag(u: uPlot, at: Ns, isSolid: boolean): void {
    const c = u.ctx;
    const r = devicePixelRatio;
    const { left, top, width, height } = u.bbox;
    const x = Math.round(this.px(u, at));
    if (x < left || x > left + width) return;
    const y = top - this.lanes() * r + r;
    c.strokeStyle = c.fillStyle = this.theme.flag;
    c.lineWidth = r;
    c.setLineDash(isSolid ? [] : [3 * r, 3 * r]);
    c.beginPath();
    c.moveTo(x + 0.5, y);
    c.lineTo(x + 0.5, top + height);
    c.stroke();
    c.setLineDash([]);
    c.beginPath();
    c.moveTo(x, y);
    c.lineTo(x + 9 * r, y + 4.5 * r);
    c.lineTo(x, y + 9 * r);
    c.closePath();
    if (isSolid) c.fill();
    else c.stroke();
  }
}

export function rateLabel(value: number, unit: Unit): string {
  if (Number.isNaN(value)) return '–';
  if (unit === 'percent') return `${Number(value.toPrecision(3))}\u202f%`;
  return unit === 'packets' ? si(value, 'packets/s') : bits(value);
}

/** Cuts a text to a width. */
function fit(c: Draw, text: string, room: number): string {
  if (c.measureText(text).width <= room) return text;
  let length = Math.floor((text.length * room) / c.measureText(text).width);
  while (length > 1 && c.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return length > 1 ? `${text.slice(0, length)}…` : '';
}
