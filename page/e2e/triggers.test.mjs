// Triggers: backtest, arm, single, off, force, and what was suppressed.

import assert from 'node:assert/strict';
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
