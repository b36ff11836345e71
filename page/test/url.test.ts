import { expect, it } from 'vitest';
import { DEFAULT_LAST, faultyParameters, parseView, writeView } from '../src/lib/url';
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

it('names what cannot be read', () => {
  expect(faultyParameters('?from=yesterday&to=1795202104000&last=5x&tab=dumps&filter=from&tz=CET')).toEqual(['from=yesterday', 'last=5x', 'tz=CET']);
  expect(faultyParameters('?from=2026-02-31T19:15:03Z&to=now-1d/d')).toEqual(['from=2026-02-31T19:15:03Z', 'to=now-1d/d']);
  expect(faultyParameters('?from=2026-11-20T19:15:03Z&last=30s&sel_to=')).toEqual([]);
});

it('reads relative and swapped ends', () => {
  const relative = parseView('?from=now-1h&to=now').range!;
  expect((relative.to - relative.from) / SECOND).toBeCloseTo(3600, 0);
  expect(parseView('?from=1795202104000&to=1795202103000')).toEqual(parseView('?from=1795202103000&to=1795202104000'));
});

it('reads a plus that is not escaped', () => {
  expect(parseView('?community_id=1:LQU9qZlK+B5F3KDmev6m5PMibrg=').communityId).toBe('1:LQU9qZlK+B5F3KDmev6m5PMibrg=');
  expect(parseView('?from=2026-11-20T20:15:03+01:00')).toEqual(parseView('?from=2026-11-20T19:15:03Z'));
});
