import { describe, expect, it } from 'vitest';
import { BASE_MS, clock, duration, durationParameter, MS, now, parseDuration, parsePasted, parseRfc3339, rfc3339, SECOND } from '../src/lib/time';

const at = (ms: number, ns = 0): number => (ms - BASE_MS) * MS + ns;

describe('RFC 3339', () => {
  it('keeps nanoseconds of recent times', () => {
    const text = rfc3339(now()).slice(0, 19);
    expect(rfc3339(parseRfc3339(`${text}.123456789Z`)!)).toBe(`${text}.123456789Z`);
  });
  it('reads offsets and refuses nonsense', () => {
    expect(parseRfc3339('2026-11-20T19:15:03.5Z')).toBe(parseRfc3339('2026-11-20T20:45:03.5+01:30'));
    for (const text of ['2026-13-20T19:15:03Z', '2026-02-31T19:15:03Z', '2026-11-20T24:15:03Z', '0026-11-20T19:15:03Z', '2026-11-20T19:15:03+99:00']) expect(parseRfc3339(text)).toBeNull();
    expect(parseRfc3339('yesterday')).toBeNull();
  });
});

describe('durations', () => {
  it('reads and writes', () => {
    expect(parseDuration('30s')).toBe(30 * SECOND);
    expect(parseDuration('1.5 min')).toBe(90 * SECOND);
    expect(parseDuration('250ms')).toBe(250 * MS);
    expect(parseDuration('2 hours')).toBe(7200 * SECOND);
    expect(parseDuration('2 parsecs')).toBeNull();
    expect(durationParameter(90 * SECOND)).toBe('90s');
    expect(durationParameter(1500 * MS)).toBe('1500ms');
  });
  it('are short for people', () => {
    expect(duration(250 * SECOND)).toBe('4 min 10 s');
    expect(duration(2.5 * MS)).toBe('2.5 ms');
    expect(duration(3600 * SECOND)).toBe('1 h');
    expect(duration(59.99 * SECOND)).toBe('1 min');
  });
});

describe('pasted times', () => {
  const ms = Date.UTC(2026, 10, 20, 19, 15, 3);
  it('reads epochs by their number of digits', () => {
    expect(parsePasted('1795202103', true)).toEqual({ at: at(1795202103000) });
    expect(parsePasted('1795202103.000000007', true)).toEqual({ at: at(1795202103000, 7) });
    expect(parsePasted(String(ms), true)).toEqual({ at: at(ms) });
  });
  it('reads ranges and spans', () => {
    expect(parsePasted('last 30s', true)).toEqual({ last: 30 * SECOND });
    expect(parsePasted('-5m', true)).toEqual({ last: 300 * SECOND });
    expect(parsePasted('2026-11-20T19:15:03Z to 2026-11-20T19:15:04Z', true)).toEqual({ from: at(ms), to: at(ms + 1000) });
    expect(parsePasted('2026-11-20 19:15:03', true)).toEqual({ at: at(ms) });
    expect(parsePasted('2026-11-20T19:15:04Z - 2026-11-20T19:15:03Z', true)).toEqual({ from: at(ms), to: at(ms + 1000) });
    expect(parsePasted('last night', true)).toBeNull();
    for (const text of ['now-1h', 'now - 1h', '1h ago']) expect(parsePasted(text, true)).toHaveProperty('at');
  });
});

it('writes clock times', () => {
  expect(clock(at(Date.UTC(2026, 10, 20, 19, 15, 3), 5), true, 9)).toBe('19:15:03.000000005');
});
