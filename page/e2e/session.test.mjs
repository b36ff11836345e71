// Login, roles, and a recorder that goes away and returns.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { closeBrowser, login, open, Recorder, shot, traffic, udp, visit } from './harness.mjs';

let recorder;
let stopTraffic;
before(async () => {
  recorder = await Recorder.start({
    options: ['--trigger', 'udp port 60000', '--past', '1s', '--future', '100ms'],
    // The recorder reads a token file that changes only once a second.
    others: { viewer: ['--role', 'view'], dns: ['--role', 'packets', '--filter', 'udp port 53'], 'short-lived': ['--role', 'view'] },
  });
  stopTraffic = traffic({ rate: '500pps', flows: 5 });
});
after(async () => {
  await stopTraffic?.();
  await closeBrowser();
  await recorder?.stop();
});

test('a wrong token is refused with the reason', async () => {
  const { page, complaints } = await visit(recorder);
  complaints.expected.push('401');
  await page.getByLabel('Token').fill('wrong');
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByRole('alert').filter({ hasText: 'token' }).waitFor();
  await shot(page, 'login');
  await login(page, recorder.admin);
  // The token is nowhere in the page or its storage.
  const kept = await page.evaluate(() => document.documentElement.outerHTML + JSON.stringify({ ...localStorage, ...sessionStorage }) + document.cookie);
  assert.ok(!kept.includes(recorder.admin));
  assert.deepEqual(complaints.list, []);
});

test('a link logs in once', async () => {
  const link = recorder.command('open', '--print', '--socket', recorder.socket).trim().split(/\s/).at(-1);
  const path = link.slice(link.indexOf('#'));
  const { page, complaints } = await visit(recorder, { path });
  await page.getByRole('tablist').waitFor();
  assert.ok(!page.url().includes('link='));
  const again = await visit(recorder, { path });
  again.complaints.expected.push('401');
  await again.page.getByRole('alert').filter({ hasText: 'link' }).waitFor();
  assert.deepEqual(complaints.list, []);
});

test('buttons that a role may not use are absent, with the reason', async () => {
  const { page, complaints } = await open(recorder, { token: recorder.others.viewer, path: '?tab=triggers' });
  await page.getByText(/Adding, editing and arming are not possible with this login: .*admin/).waitFor();
  for (const name of ['New trigger', 'Force a trigger', 'Normal']) assert.equal(await page.getByRole('button', { name }).count(), 0, name);
  await udp(60000, 'a dump');
  await page.getByRole('tab', { name: 'Dumps' }).click();
  await page.getByRole('button', { name: '#1' }).click();
  await page.getByText(/Not possible with this login: .*packets/).waitFor();
  for (const name of ['Hold', 'Delete…']) assert.equal(await page.getByRole('button', { name }).count(), 0, name);
  assert.equal(await page.getByRole('link', { name: 'Download' }).count(), 0);
  assert.deepEqual(complaints.list, []);
});

test('a restricted token sees its packets, and why the rest is absent', async () => {
  const { page, complaints } = await open(recorder, { token: recorder.others.dns });
  for (const name of ['Triggers', 'Dumps']) {
    await page.getByRole('tab', { name }).click();
    await page.getByText(/are not shown: .*restricted/).waitFor();
  }
  await page.getByRole('tab', { name: 'Health' }).click();
  assert.deepEqual(complaints.list, []);
});

test('the tabs of a browser share one event stream', async () => {
  const { context, page } = await visit(recorder, { path: '?tab=dumps' });
  const first = context.waitForEvent('request', (request) => request.url().includes('v1/events'));
  await login(page, recorder.admin);
  await first;
  const streams = [];
  context.on('request', (request) => request.url().includes('v1/events') && streams.push(request.url()));
  const second = await context.newPage();
  await second.goto(`${recorder.url}?tab=dumps`);
  await second.getByRole('tablist').waitFor();
  await udp(60000, 'a dump');
  await second.getByRole('row').filter({ hasText: 'complete' }).first().waitFor();
  assert.deepEqual(streams, []);
  const resumed = context.waitForEvent('request', (request) => request.url().includes('v1/events'));
  await page.close();
  assert.match((await resumed).url(), /from=[1-9]/);
});

test('a logout ends the session in all tabs', async () => {
  const { context, page } = await open(recorder);
  const second = await context.newPage();
  await second.goto(recorder.url);
  await second.getByRole('tablist').waitFor();
  await page.getByRole('button', { name: 'Log out' }).click();
  await second.getByLabel('Token').waitFor();
});

test('a revoked token ends its session', async () => {
  const name = 'short-lived';
  const { page } = await open(recorder, { token: recorder.others[name] });
  recorder.removeToken(name);
  await page.getByLabel('Token').waitFor();
});

test('the page says that the recorder is gone, and goes on when it is back', async () => {
  const { page, complaints } = await open(recorder, { path: '?tab=triggers' });
  complaints.expected.push('ERR_CONNECTION', 'ERR_INCOMPLETE', 'ERR_EMPTY', 'ERR_SOCKET', '401');
  await page.getByRole('heading', { name: 'Triggers' }).waitFor();
  await recorder.kill();
  await page.getByText('The recorder does not answer.').first().waitFor();
  await recorder.begin();
  // Sessions end with the recorder.
  await page.getByText('Your session has ended').waitFor();
  await login(page, recorder.admin);
  await page.getByRole('heading', { name: 'Triggers' }).waitFor();
  await page.getByRole('tab', { name: 'Dumps' }).click();
  await udp(60000, 'after the restart');
  await page.getByRole('row').filter({ hasText: '#1' }).filter({ hasText: 'complete' }).waitFor();
  assert.deepEqual(complaints.list, []);
});
