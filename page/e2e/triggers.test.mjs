// Triggers: backtest, arm, single, off, force, and what was suppressed.

import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { closeBrowser, open, Recorder, shot, traffic, udp } from './harness.mjs';

let recorder;
let stopTraffic;
before(async () => {
  recorder = await Recorder.start({ options: ['--past', '1s', '--future', '100ms'] });
  stopTraffic = traffic({ rate: '500pps', flows: 5 });
});
after(async () => {
  await stopTraffic?.();
  await closeBrowser();
  await recorder?.stop();
});

/** The refusal at the field of the scan. */
const refusal = (page, text) => page.locator('label:has-text("Also scan the past") + [role=alert]').filter({ hasText: text }).waitFor();
const ruleRow = (page, name) => page.getByRole('row').filter({ has: page.getByRole('group', { name: `Arm ${name}` }) });

test('a trigger is tried on the history, armed, and fires', async () => {
  const { page, complaints } = await open(recorder, { path: '?tab=triggers' });
  await udp(60001, Array.from({ length: 14 }, (_, i) => `before ${i}`));
  await page.getByRole('button', { name: 'New trigger' }).click();
  await page.keyboard.insertText('odd port');
  const filter = page.getByLabel('Trigger filter');
  const arm = page.getByRole('button', { name: 'Arm', exact: true });

  complaints.expected.push('422');
  await filter.fill('udp port 60001 and');
  await page.getByText('syntax error').waitFor();
  assert.ok(await arm.isDisabled());

  await filter.fill('udp port 60001');
  await page.getByText(/Would have fired 14 times in the last/).waitFor();
  await page.getByRole('img', { name: /14 hits/ }).waitFor();
  await shot(page, 'backtest');
  await page.getByLabel('Dump filter').fill('udp port 60001');
  await page.getByLabel('before').fill('2s');
  await page.getByText('Hold-off and limits', { exact: true }).click();
  await page.getByLabel('Hold-off', { exact: true }).fill('1h');
  await arm.click();
  const row = ruleRow(page, 'odd port');
  await row.waitFor();

  await udp(60001, 'fires');
  await row.getByRole('button', { name: /ago$/ }).waitFor();
  // The next hit is within the hold-off, or the dump is still open.
  await udp(60001, 'suppressed');
  await row.getByText(/hold-off had not passed|was open/).waitFor();
  const rule = await recorder.api('v1/rules/odd%20port');
  assert.deepEqual([rule.past, rule.hold_off, rule.dump], ['2s', '1h', 'udp port 60001']);
  assert.deepEqual(complaints.list, []);
});

test('a new trigger scans the past', async () => {
  await udp(60003, Array.from({ length: 5 }, (_, i) => `before ${i}`));
  const { page, complaints } = await open(recorder, { path: '?tab=triggers' });
  await page.getByRole('button', { name: 'New trigger' }).click();
  await page.getByLabel('Name').fill('late');
  await page.getByLabel('Trigger filter').fill('udp port 60003');
  await page.getByLabel('Dump filter').fill('udp port 60003');
  await page.getByLabel('before').fill('30s');
  const past = page.getByLabel('Also scan the past');
  const arm = page.getByRole('button', { name: 'Arm', exact: true });

  complaints.expected.push('422');
  await past.fill('soon');
  await refusal(page, '"soon" is not a duration');
  assert.ok(await arm.isDisabled());
  assert.equal(await past.getAttribute('aria-invalid'), 'true');
  await past.fill('10m');
  await page.getByText(/Would have fired 5 times in the last/).waitFor();
  await shot(page, 'scan-editor');
  const asked = Date.now();
  await arm.click();
  const row = ruleRow(page, 'late');
  await row.getByText(/^scanned the last 10m: 5 hits, 1 dump in [\d\u202f]+ packets: complete/).waitFor();
  await shot(page, 'scan-done');
  const rule = await recorder.api('v1/rules/late');
  assert.deepEqual([rule.hits, rule.scan.hits, rule.scan.stopped], [5, 5, null]);
  const [dump] = (await recorder.api('v1/dumps?rule=late')).dumps;
  assert.ok(Date.parse((dump.report ?? dump.stored).trigger_time) < asked);
  assert.equal((await recorder.dumped('late', 'udp port 60003')).length, 5);
  // The scan was no window: new packets are hits too.
  await udp(60003, 'after');
  while ((await recorder.api('v1/rules/late')).hits < 6);
  assert.deepEqual(complaints.list, []);
});

test('a trigger that cannot scan the past says why', async () => {
  await recorder.api('v1/rules/tried', { method: 'PUT', body: JSON.stringify({ filter: 'udp port 60004' }) });
  await udp(60005, 'before');
  const { page, complaints } = await open(recorder, { path: '?tab=triggers' });
  const past = page.getByLabel('Also scan the past');
  const row = ruleRow(page, 'tried');
  const edit = page.getByRole('button', { name: 'Edit tried' });
  await edit.click();
  complaints.expected.push('409', '412', '422');
  // The trigger has tried the packets since it was armed.
  await past.fill('60s');
  await page.getByRole('button', { name: 'Arm', exact: true }).click();
  await refusal(page, "rule 'tried' has this filter already");
  await page.getByRole('button', { name: 'Off', exact: true }).last().click();
  await page.getByRole('button', { name: 'Save without arming' }).click();
  await refusal(page, 'a disabled rule has no hits');
  await past.fill('1 week');
  await page.getByRole('button', { name: 'Save without arming' }).click();
  await refusal(page, '"1 week" is not a duration');
  await shot(page, 'scan-refused');

  // Without a time there is no scan.
  await past.fill(' ');
  await page.getByRole('button', { name: 'Save without arming' }).click();
  await past.waitFor({ state: 'detached' });
  assert.equal((await recorder.api('v1/rules/tried')).scan, null);

  // Another client changes the trigger, with a scan, while it is edited.
  await edit.click();
  await page.getByLabel('Trigger filter').fill('udp port 60005 or udp port 60006');
  await past.fill('60s');
  await page.getByRole('button', { name: 'Normal' }).last().click();
  await page.getByText('Would have fired once').waitFor();
  await recorder.api('v1/rules/tried', { method: 'PUT', body: JSON.stringify({ filter: 'udp port 60005', scan_past: '10m' }) });
  await page.getByRole('button', { name: 'Arm', exact: true }).click();
  await page.getByText('Somebody else changed this rule').waitFor();
  assert.equal((await recorder.api('v1/rules/tried')).filter, 'udp port 60005');
  await row.getByText(/^scanned the last 10m: 1 hit, 1 dump/).waitFor();

  // Opened again, the editor changes and scans.
  await page.getByRole('button', { name: 'Close', exact: true }).click();
  await edit.click();
  await page.getByLabel('Trigger filter').fill('udp port 60005 or udp port 60006');
  await past.fill('5m');
  await page.getByText('Would have fired once').waitFor();
  await page.getByRole('button', { name: 'Arm', exact: true }).click();
  await row.getByText(/^scanned the last 5m: 1 hit/).waitFor();
  assert.deepEqual(complaints.list, []);
});

test('a scan says what was overwritten, also in mode protect', async () => {
  const script = join(tmpdir(), `retroscope-page-${process.pid}.lua`);
  writeFileSync(script, 'return function(trigger) return "udp" end');
  const small = await Recorder.start({ options: ['--ring', '16MiB', '--set', 'when-full=protect', '--past', '1s', '--future', '100ms', '--dump-lua', script] });
  const stopFlood = traffic({ rate: '200kpps' });
  while (!(await small.api('v1/status')).ring.evicted);
  await stopFlood();
  await udp(60007, ['one', 'two']);
  const { page, complaints } = await open(small, { path: '?tab=triggers' });
  await page.getByRole('button', { name: 'New trigger' }).click();
  await page.getByLabel('Name').fill('all');
  await page.getByLabel('Trigger filter').fill('udp port 60007');
  await page.getByLabel('Also scan the past').fill('1000d');
  await page.getByText('Would have fired 2 times').waitFor();
  const arm = page.getByRole('button', { name: 'Arm', exact: true });
  complaints.expected.push('409');
  await arm.click();
  await refusal(page, 'the dump script may keep state from packet to packet');
  await page.getByLabel('Dump filter').fill('udp port 60007');
  await arm.click();
  await ruleRow(page, 'all').getByText(/^scanned the last 1000d: 2 hits, 1 dump in .* packets: incomplete: .* packets overwritten in the ring/).waitFor();
  await shot(page, 'scan-evicted');
  assert.equal((await small.dumped('all', 'udp port 60007')).length, 2);
  assert.deepEqual(complaints.list, []);
  await small.stop();
  rmSync(script);
});

test('single disarms itself after a dump, and off ignores packets', async () => {
  await recorder.api('v1/rules/once', { method: 'PUT', body: JSON.stringify({ filter: 'udp port 60002', enabled: false }) });
  const { page, complaints } = await open(recorder, { path: '?tab=triggers' });
  const row = ruleRow(page, 'once');
  await row.getByRole('button', { name: 'Off', pressed: true }).waitFor();
  await udp(60002, 'ignored');
  await row.getByRole('button', { name: 'Single' }).click();
  await row.getByRole('button', { name: 'Single', pressed: true }).waitFor();
  assert.equal((await recorder.api('v1/dumps?rule=once')).dumps.length, 0);
  await udp(60002, 'fires');
  await row.getByRole('button', { name: 'Off', pressed: true }).waitFor();
  assert.equal((await recorder.api('v1/dumps?rule=once')).dumps.length, 1);
  assert.deepEqual(complaints.list, []);
});

test('a trigger is forced', async () => {
  const { page, complaints } = await open(recorder, { path: '?tab=triggers' });
  await page.getByRole('button', { name: 'Force a trigger' }).click();
  const form = page.getByRole('form', { name: 'Force a trigger' });
  await form.getByLabel('Past').fill('1s');
  await form.getByLabel('Future').fill('0s');
  await form.getByLabel('Dump filter').fill('udp');
  await form.getByRole('button', { name: 'Trigger now' }).click();
  await form.getByRole('button', { name: /^Show dump/ }).click();
  await page.getByText('Complete. The file has every packet').waitFor();
  const { dumps } = await recorder.api('v1/dumps?rule=manual');
  assert.equal(dumps.length, 1);
  assert.equal(dumps[0].report.caller, 'admin');
  assert.deepEqual(complaints.list, []);
});

test('a dump is held and deleted', async () => {
  const { dump } = await recorder.api('v1/triggers', { method: 'POST', body: JSON.stringify({ past: '100ms', future: '0s' }) });
  const { page, complaints } = await open(recorder, { path: `?tab=dumps&dump=${dump}` });
  const details = page.getByRole('region', { name: `Dump ${dump}` });
  await details.getByRole('button', { name: 'Hold' }).click();
  await details.getByRole('button', { name: 'Held' }).waitFor();
  assert.ok(await details.getByRole('button', { name: 'Delete…' }).isDisabled());
  await details.getByRole('button', { name: 'Held' }).click();
  await details.getByRole('button', { name: 'Delete…' }).click();
  await details.getByRole('button', { name: 'Delete the files' }).click();
  await details.getByText('The files of this dump were deleted.').waitFor();
  assert.deepEqual(complaints.list, []);
});
