import { durationParameter, parseDuration, parseMoment, rfc3339, SECOND, type Range } from './time';

export const TABS = ['scope', 'triggers', 'dumps', 'health'] as const;
export type Tab = (typeof TABS)[number];

/** What the address of the page says: a link shows the same view to somebody else. */
export interface View {
  tab: Tab;
  /** The visible time range; null: live. */
  range: Range | null;
  /** Length of the visible range while live, ns. */
  last: number;
  filter: string;
  communityId: string;
  /** The selected time range within the visible range. */
  selection: Range | null;
  /** The ID of the selected packet. */
  packet: string;
  /** The ID of the selected dump. */
  dump: string;
  utc: boolean;
}

export const DEFAULT_LAST = 60 * SECOND;

export function parseView(search: string, utcByDefault = true): View {
  const p = new URLSearchParams(search);
  const text = (name: string): string => p.get(name) ?? '';
  const utc = p.has('tz') ? text('tz') !== 'local' : utcByDefault;
  return {
    tab: TABS.find((tab) => tab === text('tab')) ?? 'scope',
    range: rangeOf(text('from'), text('to')),
    last: parseDuration(text('last')) || DEFAULT_LAST,
    filter: text('filter'),
    // A space is the `+` of a URL that was not escaped.
    communityId: text('community_id').trim().replaceAll(' ', '+'),
    selection: rangeOf(text('sel_from'), text('sel_to')),
    packet: text('packet'),
    dump: text('dump'),
    utc,
  };
}

/** The parameters of the URL that cannot be read, and that the view ignores. */
export function faultyParameters(search: string): string[] {
  const readers: Record<string, (text: string) => unknown> = {
    last: (text) => (parseDuration(text) ?? 0) > 0,
    tab: (text) => TABS.some((tab) => tab === text),
    tz: (text) => text === 'utc' || text === 'local',
  };
  for (const name of ['from', 'to', 'sel_from', 'sel_to']) readers[name] = (text) => moment(text) !== null;
  return [...new URLSearchParams(search)].filter(([name, text]) => text && readers[name]?.(text) === false).map(([name, text]) => `${name}=${text}`);
}

/** One end alone gives a minute before or after this end, a moment the second before and after. */
function rangeOf(from: string, to: string): Range | null {
  const [a, b] = [moment(from), moment(to)];
  if (a === null && b === null) return null;
  const start = a ?? b! - DEFAULT_LAST;
  const end = b ?? a! + DEFAULT_LAST;
  return end === start ? { from: start - SECOND, to: start + SECOND } : { from: Math.min(start, end), to: Math.max(start, end) };
}

const moment = (text: string): number | null => parseMoment(text, true);

/** The query of the URL; fields with their default are left out. */
export function writeView(view: View): string {
  const p = new URLSearchParams();
  if (view.tab !== 'scope') p.set('tab', view.tab);
  if (view.range) {
    p.set('from', rfc3339(view.range.from));
    p.set('to', rfc3339(view.range.to));
  } else if (view.last !== DEFAULT_LAST) {
    p.set('last', durationParameter(view.last));
  }
  if (view.filter) p.set('filter', view.filter);
  if (view.communityId) p.set('community_id', view.communityId);
  if (view.selection) {
    p.set('sel_from', rfc3339(view.selection.from));
    p.set('sel_to', rfc3339(view.selection.to));
  }
  if (view.packet) p.set('packet', view.packet);
  if (view.dump) p.set('dump', view.dump);
  if (!view.utc) p.set('tz', 'local');
  const text = p.toString();
  return text ? `?${text}` : '';
}
