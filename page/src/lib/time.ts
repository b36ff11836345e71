/**
 * Times are numbers of nanoseconds relative to `BASE`. A double is exact for 104 days around the
 * base; epoch nanoseconds would be rounded to 256 ns.
 */
export type Ns = number;

export const US = 1e3;
export const MS = 1e6;
export const SECOND = 1e9;
export const MINUTE = 60 * SECOND;
export const HOUR = 60 * MINUTE;
export const DAY = 24 * HOUR;

/** Milliseconds of the epoch at which relative time is 0: the start of the page's UTC day. */
export const BASE_MS = Math.floor(Date.now() / 86_400_000) * 86_400_000;

export function now(): Ns {
  return Math.round((Date.now() - BASE_MS) * MS);
}

/** The time of a `Date` in milliseconds. */
export function toMs(time: Ns): number {
  return BASE_MS + time / MS;
}

/** A space in front of an offset is the `+` of a URL that was not escaped. */
const RFC3339 =
  /^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s*?([Zz]|UTC|[ +-]\d\d:?\d\d)?$/;

/** Parses RFC 3339. A text without an offset is UTC or local time, as `utc` says. */
export function parseRfc3339(text: string, utc = true): Ns | null {
  const m = RFC3339.exec(text.trim());
  if (!m) return null;
  const [year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0] = m.slice(1, 7).map((part) => Number(part ?? 0));
  // `Date` takes February 31 for March 3.
  const isDate = new Date(Date.UTC(year, month - 1, day)).toISOString().startsWith(m[0].slice(0, 10));
  const [, sign, hours = 0, minutes = 0] = /^(.)(\d\d):?(\d\d)$/.exec(m[8] ?? '') ?? [];
  if (!isDate || year < 1970 || hour > 23 || minute > 59 || second > 60 || Number(hours) > 23 || Number(minutes) > 59) return null;
  const ms =
    m[8] || utc
      ? Date.UTC(year, month - 1, day, hour, minute, second)
      : new Date(year, month - 1, day, hour, minute, second).getTime();
  const offset = (Number(hours) * 60 + Number(minutes)) * (sign === '-' ? -60_000 : 60_000);
  return (ms - offset - BASE_MS) * MS + Number((m[7] ?? '').padEnd(9, '0'));
}

/** RFC 3339 in UTC. All nine digits are written if the time has a fraction. */
export function rfc3339(time: Ns): string {
  const { ms, fraction } = split(time);
  const text = new Date(ms).toISOString().slice(0, 19);
  return fraction ? `${text}.${pad(fraction, 9).replace(/0+$/, '')}Z` : `${text}Z`;
}

/** Whole seconds in milliseconds of the epoch, and the nanoseconds within the second. */
function split(time: Ns): { ms: number; fraction: number } {
  const rounded = Math.round(time);
  const seconds = Math.floor(rounded / SECOND);
  return { ms: BASE_MS + seconds * 1000, fraction: rounded - seconds * SECOND };
}

export function pad(value: number, digits: number): string {
  return String(value).padStart(digits, '0');
}

/** `15:03:04.512` with `digits` decimal places, without a date. */
export function clock(time: Ns, utc: boolean, digits = 3): string {
  const { ms, fraction } = split(time);
  const d = new Date(ms);
  const [h, m, s] = utc
    ? [d.getUTCHours(), d.getUTCMinutes(), d.getUTCSeconds()]
    : [d.getHours(), d.getMinutes(), d.getSeconds()];
  const tail = digits ? `.${pad(fraction, 9).slice(0, digits)}` : '';
  return `${pad(h, 2)}:${pad(m, 2)}:${pad(s, 2)}${tail}`;
}

/** `2026-11-20` */
export function date(time: Ns, utc: boolean): string {
  const d = new Date(split(time).ms);
  return utc ? d.toISOString().slice(0, 10) : `${d.getFullYear()}-${pad(d.getMonth() + 1, 2)}-${pad(d.getDate(), 2)}`;
}

/** `2026-11-20 15:03:04.512` */
export function dateTime(time: Ns, utc: boolean, digits = 3): string {
  return `${date(time, utc)} ${clock(time, utc, digits)}`;
}

/** The name of the time zone: `UTC`, or `local, UTC+01:00`. */
export function zone(utc: boolean, time: Ns = now()): string {
  if (utc) return 'UTC';
  const minutes = -new Date(toMs(time)).getTimezoneOffset();
  const size = Math.abs(minutes);
  return `local, UTC${minutes < 0 ? '−' : '+'}${pad(Math.floor(size / 60), 2)}:${pad(size % 60, 2)}`;
}

const UNITS: Record<string, number> = { ns: 1, us: US, µs: US, ms: MS, s: SECOND, sec: SECOND, m: MINUTE, min: MINUTE, h: HOUR, d: DAY };

/** Parses `30s`, `1.5 min`, `250ms`. A number without a unit is seconds, as in the API. */
export function parseDuration(text: string): number | null {
  const m = /^(\d+(?:\.\d+)?)\s*([a-zµ]*)$/i.exec(text.trim());
  const unit = m && (UNITS[m[2]!] ?? UNITS[m[2]!.toLowerCase().replace(/^(sec|min|hour|day)\w*$/, (w) => w.slice(0, w.startsWith('s') || w.startsWith('m') ? 3 : 1))] ?? (m[2] ? undefined : SECOND));
  return m && unit ? Number(m[1]) * unit : null;
}

/** `30s`, `250ms`, `2h`: a duration as the API and the commands accept it. */
export function durationParameter(ns: number): string {
  for (const [unit, size] of [['d', DAY], ['h', HOUR], ['m', MINUTE], ['s', SECOND], ['ms', MS], ['us', US]] as const) {
    if (ns >= size && ns % size === 0) return `${ns / size}${unit}`;
  }
  return `${Math.round(ns)}ns`;
}

/** A duration for people: `4 min 10 s`, `2.5 ms`. */
export function duration(ns: number): string {
  const size = Math.abs(ns);
  if (size < 0.9995 * US) return `${Math.round(ns)} ns`;
  if (size < 0.9995 * MS) return `${short(ns / US)} µs`;
  if (size < 0.9995 * SECOND) return `${short(ns / MS)} ms`;
  if (size < MINUTE - SECOND / 20) return `${short(ns / SECOND)} s`;
  const seconds = Math.round(size / SECOND);
  const parts: [number, string][] = [
    [Math.floor(seconds / 86400), 'd'], [Math.floor(seconds / 3600) % 24, 'h'], [Math.floor(seconds / 60) % 60, 'min'], [seconds % 60, 's'],
  ];
  const first = parts.findIndex(([n]) => n > 0);
  return parts.slice(first, first + 2).filter(([n]) => n > 0).map(([n, unit]) => `${n} ${unit}`).join(' ');
}

function short(value: number): string {
  return String(Number(value.toPrecision(3)));
}

export interface Range { from: Ns; to: Ns }

/** What a pasted text means: a moment, a range, or the time before now. */
export type Pasted = { at: Ns } | Range | { last: number } | null;

/** Examples of the times that `parseMoment` reads, for messages. */
export const TIMES = '2026-11-30T15:03:04Z, 15:03:04, seconds or milliseconds since 1970, now-1h';

/**
 * Reads a pasted time: a moment, `last 30s`, or two moments with `to`, `–` or `/` between them, in
 * any order.
 */
export function parsePasted(text: string, utc: boolean): Pasted {
  const trimmed = text.trim().replace(/^["'[(]+|["'\])]+$/g, '');
  const last = /^(?:last|-)?\s*(\d.*[a-zµ])$/i.exec(trimmed);
  const span = last && parseDuration(last[1]!);
  if (span) return { last: span };
  const at = parseMoment(trimmed, utc);
  if (at !== null) return { at };
  const ends = trimmed.split(/\s+to\s+|\s*(?:–|—|\.\.|\/)\s*|\s+-\s+/);
  const [from, to] = ends.map((end) => parseMoment(end, utc));
  if (ends.length !== 2 || typeof from !== 'number' || typeof to !== 'number') return null;
  return from === to ? { at: from } : { from: Math.min(from, to), to: Math.max(from, to) };
}

/**
 * Reads RFC 3339, a number since 1970 in s, ms, µs or ns, the last `15:03:04`, `now`, `now-1h` or
 * `5 min ago`.
 */
export function parseMoment(text: string, utc: boolean): Ns | null {
  const trimmed = text.trim();
  if (trimmed === 'now') return now();
  const ago = /^(?:now)?\s*-\s*(\d.*)$|^(\d.*)\s+ago$/.exec(trimmed);
  const span = ago && parseDuration(ago[1] ?? ago[2]!);
  if (span) return now() - span;
  const epoch = /^(\d{9,19})(?:\.(\d+))?$/.exec(trimmed);
  if (epoch) return parseEpoch(epoch[1]!, epoch[2] ?? '');
  if (/^\d\d:\d\d/.test(trimmed)) {
    const today = parseRfc3339(`${date(now(), utc)}T${trimmed}`, utc);
    // Shortly after midnight, 23:50 is yesterday's.
    return today !== null && today > now() + MINUTE ? today - DAY : today;
  }
  return parseRfc3339(trimmed, utc);
}

/** The unit follows from the number of digits, as in the API: up to 11 are seconds. */
function parseEpoch(whole: string, fraction: string): Ns {
  const unit = whole.length <= 11 ? 9 : whole.length <= 14 ? 6 : whole.length <= 17 ? 3 : 0;
  const ns = BigInt(whole + fraction.slice(0, unit).padEnd(unit, '0'));
  return Number(ns - BigInt(BASE_MS) * 1_000_000n);
}
