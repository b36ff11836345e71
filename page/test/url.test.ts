import { expect, it } from 'vitest';
import { DEFAULT_LAST, faultyTimes, parseView, writeView } from '../src/lib/url';
import { SECOND } from '../src/lib/time';

it('writes what it reads', () => {
  const search =
    '?tab=dumps&from=2026-11-20T19%3A15%3A03.5Z&to=2026-11-20T19%3A15%3A04Z&filter=tcp+port+80&community_id=1%3ALQU9qZlK%2BB5F3KDmev6m5PMibrg%3D&tz=local';
  expect(writeView(parseView(search))).toBe(search);
});

it('is empty by default', () => {
  const view = parseView('');
  expect(view).toMatchObject({ tab: 'scope', range: null, last: DEFAULT_LAST, filter: '', utc: true });
  expect(writeView(view)).toBe('');
});

it('reads the milliseconds of a Grafana link', () => {
  const range = parseView('?from=1795202103000&to=1795202104000').range!;
  expect(range.to - range.from).toBe(SECOND);
});

it('names times that cannot be read', () => {
  expect(faultyTimes('?from=yesterday&to=1795202104000&last=5x&tab=dumps&filter=from')).toEqual(['from=yesterday', 'last=5x']);
  expect(faultyTimes('?from=2026-11-20T19:15:03Z&last=30s&sel_to=')).toEqual([]);
});
