import { describe, expect, it } from 'vitest';
import { Columns, Rates, reduce } from '../src/scope/columns';
import { niceMax, roughSlot, slotOf, tickLabel, ticks, tickStep } from '../src/lib/ticks';
import { BASE_MS, MS, rfc3339, SECOND } from '../src/lib/time';
import type { Timeline } from '../src/lib/types';

/** An answer with slots of 10 ms from slot `first` on. */
function line(first: number, packets: (number | null)[], more: Partial<Timeline> = {}): Timeline {
  return {
    from: rfc3339(first * 10 * MS), slot_seconds: 0.01, packets, bytes: packets.map((n) => n && n * 100),
    lost: {}, down: packets.map(() => false), triggers: packets.map(() => 0), losses_known_to: rfc3339(100 * SECOND), ...more,
  };
}

describe('columns', () => {
  it('request only what is missing, and keep what stays visible', () => {
    const columns = new Columns(10 * MS, '');
    columns.move(0, 4);
    expect(columns.wanted()).toEqual({ first: 0, count: 4 });
    columns.apply(line(0, [1, 2, 3, 4]), 100 * SECOND);
    expect(columns.wanted()).toBeNull();
    columns.move(2, 4);
    expect(columns.wanted()).toEqual({ first: 4, count: 2 });
    expect(columns.value('packets', 0)).toBe(3);
    expect(columns.value('packets', 3)).toBeNaN();
    columns.move(-1, 4);
    expect(columns.value('packets', 3)).toBe(3);
  });
  it('request the newest columns again until losses and peaks are known', () => {
    const columns = new Columns(10 * MS, '');
    columns.move(0, 4);
    columns.apply(line(0, [1, 2, 3, null], { losses_known_to: rfc3339(20 * MS) }), 1 * SECOND);
    expect(columns.wanted()).toEqual({ first: 2, count: 2 });
    const peaks = { seconds: 0.001, known_from: rfc3339(10 * MS), packets: [null, 1, 1, 1], bytes: [null, 1, 1, 1], wire_bytes: [100, 200, 300, 400] };
    columns.apply(line(0, [1, 2, 3, 4], { peaks }), 100 * SECOND);
    expect(columns.wanted()).toEqual({ first: 0, count: 1 });
  });
  it('keep the height of a burst', () => {
    const columns = new Columns(10 * MS, '');
    columns.move(0, 2);
    const peaks = { seconds: 0.001, packets: [10, null], bytes: [1000, null], wire_bytes: [1500, 300] };
    columns.apply(line(0, [15, 3], { peaks }), 100 * SECOND);
    const rates = new Rates(columns, 'packets', 1);
    expect(rates.mean(0)).toBeCloseTo(1500);
    expect(rates.peak(0)).toBeCloseTo(10_000);
    expect(rates.peak(1)).toBeCloseTo(300);
    expect(new Rates(columns, 'bits', 1).peak(0)).toBeCloseTo(8_000_000);
    // 1000 bytes and 10 frames of 24 more bytes in a millisecond, at 100 Mbit/s.
    expect(new Rates(columns, 'percent', 100).peak(0)).toBeCloseTo(9.92);
  });
  it('reduce to rows: the mean of means, the maximum of peaks, the sum of losses', () => {
    const columns = new Columns(10 * MS, '');
    columns.move(0, 5);
    columns.apply(line(0, [1, 3, null, 5, 7], { lost: { kernel: [0, 2, 3, 0, 1] }, triggers: [1, 0, null, 0, 1] }), 100 * SECOND);
    const rows = reduce(columns, new Rates(columns, 'packets', 1), 2);
    expect(rows.map((row) => [row.mean, row.peak, row.lost, row.triggers])).toEqual([[200, 300, 5, 1], [600, 700, 1, 1]]);
  });
  it('are whole milliseconds wide, except in a short range', () => {
    expect(slotOf(60 * SECOND, 1100)).toBe(55 * MS);
    expect(slotOf(1 * MS, 1000)).toBe(1000);
    expect(slotOf(500, 1000)).toBe(1);
    expect(roughSlot(1.2 * SECOND)).toBe(1.5 * SECOND);
  });
});

describe('ticks', () => {
  it('are at round times', () => {
    expect(tickStep(60 * SECOND, 12)).toBe(5 * SECOND);
    expect(tickStep(1 * MS, 10)).toBe(100_000);
    expect(ticks(3 * SECOND, 21 * SECOND, 10 * SECOND, true)).toEqual([10 * SECOND, 20 * SECOND]);
  });
  it('show the digits that change', () => {
    const at = (Date.UTC(2026, 10, 20, 15, 3, 4) - BASE_MS) * MS;
    expect(tickLabel(at + 512 * MS, 2 * MS, true)).toBe('.512');
    expect(tickLabel(at, 2 * MS, true)).toBe('15:03:04');
    expect(tickLabel(at + 512_000_100, 100, true)).toBe('.5120001');
  });
  it('end above the largest value', () => {
    expect(niceMax(0)).toBe(1);
    expect(niceMax(9.4)).toBe(10);
    expect(niceMax(1e9)).toBe(1.2e9);
  });
});
