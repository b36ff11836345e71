import { expect, it } from 'vitest';
import { scanWords } from '../src/lib/causes';

it('says what a scan of the past found, and what it missed', () => {
  const scan = { verdict: 'complete', reasons: 'complete; nothing matched of 7 packets', missing: [], inspected: 7 };
  const whole = { past: '60s', running: false, stopped: null, hits: 0, dumps: 0, waited: 0, scan };
  expect(scanWords(whole)).toBe('scanned the last 60s: 0 hits, 0 dumps in 7 packets: complete');
  expect(scanWords({ ...whole, running: true, hits: 1, scan: null })).toBe('scanning the last 60s: 1 hit, 0 dumps');
  expect(scanWords({ ...whole, stopped: 'the rule was removed', scan: null })).toBe('scanned the last 60s: 0 hits, 0 dumps in 0 packets; ended early: the rule was removed');
  const missing = [{ cause: 'evicted', from: '', to: '', at_most: 1200 }];
  expect(scanWords({ ...whole, hits: 2, dumps: 1, waited: 3, scan: { ...scan, verdict: 'incomplete', missing } })).toBe(
    'scanned the last 60s: 2 hits, 1 dump in 7 packets: incomplete: up to 1\u202f200 packets overwritten in the ring before they were read; 3 new hits waited for the scan',
  );
});
