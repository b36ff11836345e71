// The main job: see a trigger fire, select, download; the file is what tcpdump captured.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { closeBrowser, download, open, packetsOf, PATIENCE, Recorder, shot, tcpdump, traffic, udp, visit } from './harness.mjs';

let recorder;
let stopTraffic;
before(async () => {
  recorder = await Recorder.start({ options: ['--trigger', 'udp dst port 60000', '--dump', 'udp port 60000', '--past', '5s', '--future', '200ms'] });
  stopTraffic = traffic();
});
after(async () => {
  await stopTraffic?.();
  await closeBrowser();
  await recorder?.stop();
});

test('a trigger fires, and its dump and a selection are what tcpdump captured', async () => {
  const { page, complaints } = await open(recorder);
  const dumper = await tcpdump();
  await udp(60000, ['first', 'second', 'third']);
  await page.getByRole('tab', { name: 'Dumps' }).click();
  const row = page.getByRole('row').filter({ hasText: 'udp dst port 60000' }).first();
  await row.getByText('complete').waitFor();
  await row.getByRole('button').click();
  await page.getByText('Complete. The file has every packet').waitFor();
  await shot(page, 'dump');
  const file = await download(page, () => page.getByRole('link', { name: 'Download' }).click());

  // The selection: the same packets, by filter and time range.
  await page.getByRole('button', { name: 'Show on the scope' }).click();
  await page.getByLabel('Filter', { exact: true }).fill('udp port 60000');
  await page.keyboard.press('Enter');
  await page.getByRole('row').filter({ hasText: '10.9.0.2.60000' }).nth(2).waitFor();
  await shot(page, 'selection');
  const selected = await download(page, () => page.getByRole('link', { name: 'Download pcapng' }).click());

  const expected = packetsOf(await dumper.stop(), 'udp port 60000');
  assert.equal(expected.length, 3);
  assert.deepEqual(packetsOf(file), expected);
  assert.deepEqual(packetsOf(selected), expected);
  assert.deepEqual(complaints.list, []);
});

test('the keyboard alone does the main job', async () => {
  const { page, complaints } = await visit(recorder);
  // The token's field has the focus.
  await page.getByLabel('Token').waitFor();
  await page.keyboard.insertText(recorder.admin);
  await page.keyboard.press('Enter');
  await page.getByRole('tablist').waitFor();
  const reach = async (locator) => {
    for (let i = 0; i < 80; i++) {
      if (await locator.evaluate((element) => element === document.activeElement)) return;
      await page.keyboard.press('Tab');
    }
    assert.fail(`Tab does not reach ${locator}`);
  };
  await reach(page.getByRole('application'));
  await page.keyboard.press('Home');
  await page.keyboard.press('p');
  await reach(page.getByLabel('Filter', { exact: true }));
  await page.keyboard.insertText('udp');
  await page.keyboard.press('Enter');
  await reach(page.getByRole('link', { name: 'Download pcapng' }));
  const file = await download(page, () => page.keyboard.press('Enter'));
  assert.ok(packetsOf(file).length > 0);
  assert.deepEqual(complaints.list, []);
});

test('a filter that was only typed holds for the download', async () => {
  const from = new Date().toISOString();
  await udp(53, ['a query', 'another']);
  // Dates are cut to milliseconds, and the packets may be younger than that.
  const to = new Date(Date.now() + 1).toISOString();
  const { page, complaints } = await open(recorder, { path: `?from=${from}&to=${to}` });
  complaints.expected.push('422');
  const filter = page.getByLabel('Filter', { exact: true });
  await filter.fill('dns');
  await page.getByRole('button', { name: 'Use port 53' }).click();
  await page.getByText(/^2 packets/).waitFor();
  await filter.fill('udp src port 4000 and port 53');
  const file = await download(page, () => page.getByRole('link', { name: 'Download pcapng' }).click());
  assert.equal(packetsOf(file).length, 2);
  await page.getByRole('row').filter({ hasText: '10.9.0.2.53' }).first().click();
  await page.getByRole('button', { name: 'Follow stream' }).click();
  await page.getByText('another').waitFor();
  assert.deepEqual(complaints.list, []);
});

test('a frozen range is pinned until its tab ends', async () => {
  const { page, complaints } = await open(recorder);
  const pins = async () => (await recorder.api('v1/pins')).pins.filter((pin) => pin.name.startsWith('page-'));
  const kept = page.waitForResponse((response) => response.url().includes('v1/pins/') && response.ok());
  await page.getByRole('button', { name: 'Freeze' }).click();
  await kept;
  assert.equal((await pins()).length, 1);
  await page.close({ runBeforeUnload: true });
  // A busy browser may not send the last request. Then the lease ends by itself, after 30 s.
  const deadline = Date.now() + 30_000 + PATIENCE;
  while ((await pins()).length && Date.now() < deadline);
  assert.deepEqual(await pins(), []);
  assert.deepEqual(complaints.list, []);
});

test('a frozen range is not overwritten, and does not look so', async () => {
  const small = await Recorder.start({ options: ['--ring', '64MiB'] });
  await udp(7, 'kept in the ring');
  const { page, complaints } = await open(small, { path: '?last=5s' });
  const kept = page.waitForResponse((response) => response.url().includes('v1/pins/') && response.ok());
  await page.getByRole('button', { name: 'Freeze' }).click();
  const until = JSON.parse((await kept).request().postData()).to;
  const stopFlood = traffic({ rate: '200kpps' });
  while (!(Date.parse((await small.api('v1/timeline?slots=1')).whole_from) > Date.parse(until)));
  await stopFlood();
  await page.getByRole('row').filter({ hasText: 'UDP' }).first().waitFor();
  await page.waitForResponse((response) => response.url().includes('v1/timeline'));
  assert.equal(await page.getByText(/overwritten/).count(), 0);
  assert.deepEqual(complaints.list, []);
  await shot(page, 'frozen');
  await small.stop();
});

test('a link shows the same range, filter and time zone', async () => {
  const { page } = await open(recorder);
  const to = new Date(Date.now() - 1000).toISOString();
  const from = new Date(Date.now() - 3000).toISOString();
  await page.goto(`${recorder.url}?from=${from}&to=${to}&filter=udp&tz=local`);
  await page.getByRole('row').filter({ hasText: 'UDP' }).nth(1).waitFor();
  assert.equal(await page.getByLabel('Filter', { exact: true }).inputValue(), 'udp');
  await page.getByRole('button', { name: /^local/ }).waitFor();
  await page.getByRole('tab', { name: 'Health' }).click();
  await page.goBack();
  await page.getByRole('row').filter({ hasText: 'UDP' }).nth(1).waitFor();
});

test('a link answers when the ring has moved on', async () => {
  const small = await Recorder.start({ options: ['--ring', '16MiB', '--trigger', 'udp dst port 60000', '--dump', 'udp port 60000', '--past', '1s', '--future', '100ms'] });
  const from = new Date(Date.now() - 1000).toISOString();
  await udp(60000, 'kept in a dump');
  const { page } = await open(small);
  await page.getByRole('tab', { name: 'Dumps' }).click();
  await page.getByRole('row').filter({ hasText: 'complete' }).waitFor();
  const to = new Date().toISOString();
  const stopFlood = traffic({ rate: '200kpps' });
  while (Date.parse((await small.api('v1/timeline?slots=1')).whole_from) < Date.parse(to));
  await stopFlood();
  await page.goto(`${small.url}?from=${from}&to=${to}&filter=${encodeURIComponent('udp port 60000')}`);
  await page.getByText(/overwritten these packets about .* ago/).waitFor();
  const file = await download(page, () => page.getByRole('link', { name: 'Download pcapng' }).click());
  assert.equal(packetsOf(file).length, 1);
  await shot(page, 'overwritten');
  await small.stop();
});
