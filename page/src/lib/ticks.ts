import { clock, date, DAY, HOUR, MINUTE, MS, SECOND, toMs, type Ns } from './time';

const COARSE = [1, 2, 5, 10, 15, 30].map((n) => n * SECOND)
  .concat([1, 2, 5, 10, 15, 30].map((n) => n * MINUTE))
  .concat([1, 2, 3, 6, 12].map((n) => n * HOUR))
  .concat([1, 2, 7, 14, 28].map((n) => n * DAY));

/** The distance between ticks, so that at most `count` are in `span`. */
export function tickStep(span: number, count: number): Ns {
  const least = span / Math.max(1, count);
  if (least > SECOND / 2) return COARSE.find((step) => step >= least) ?? 28 * DAY;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((f) => f * power).find((step) => step >= least) ?? power * 10;
}

/** Ticks at round times of the zone. */
export function ticks(from: Ns, to: Ns, step: Ns, utc: boolean): Ns[] {
  const zone = utc || step < 15 * MINUTE ? 0 : -new Date(toMs(from)).getTimezoneOffset() * MINUTE;
  const found: Ns[] = [];
  for (let at = Math.ceil((from + zone) / step) * step - zone; at <= to && found.length < 100; at += step) found.push(at);
  return found;
}

/** `15:03:04`; below a second the digits that change, `.512`, and the whole time at full seconds. */
export function tickLabel(at: Ns, step: Ns, utc: boolean): string {
  if (step >= DAY) return date(at, utc);
  if (step >= SECOND) return clock(at, utc, 0);
  const digits = 9 - Math.floor(Math.log10(step) + 1e-9);
  const text = clock(at, utc, digits);
  return /\.0+$/.test(text) ? text.slice(0, 8) : text.slice(8);
}

/** The largest value of an axis: 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten. */
export function niceMax(value: number): number {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((f) => f * power >= value * 1.02);
  return (factor ?? 12) * power;
}

/** The API's limit of slots. */
export const MAX_SLOTS = 2000;

/** The length of a column: a whole number of ms where it is longer, as the peaks are aligned to ms. */
export function slotOf(span: number, width: number): Ns {
  const exact = Math.max(1, span / Math.min(Math.max(width, 50), MAX_SLOTS));
  return exact > MS ? Math.ceil(exact / MS) * MS : Math.ceil(exact);
}

/** A length that seldom changes while the history grows: 1, 1.5, 2, 3, 5 or 7 times a power of ten. */
export function roughSlot(exact: number): Ns {
  const least = Math.max(MS, exact);
  const power = 10 ** Math.floor(Math.log10(least));
  const factor = [1, 1.5, 2, 3, 5, 7, 10].find((f) => f * power >= least * 0.999999) ?? 10;
  return Math.ceil((factor * power) / MS) * MS;
}
