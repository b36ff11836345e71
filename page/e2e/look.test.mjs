// Hostile strings, narrow screens, and what axe-core finds.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { closeBrowser, open, readFileSync, Recorder, shot, traffic, udp, visit } from './harness.mjs';

const VIEWS = ['scope', 'triggers', 'dumps', 'health'];
/** A name that Linux accepts: HTML, and a character that turns the text around. */
const INTERFACE = '<b>x&"\u202egnp';
const HTML = '<img src=x onerror=alert(1)><script>alert(2)</script>';
const HOSTILE = [HTML, `\u001b]0;title\u0007\u001b[31mred`, '\u202eexe.gnp', '"><svg onload=alert(3)>', '{@html 1}${7*7}'];

/** The time before the first packet. */
const begun = new Date().toISOString();
let recorder;
let stopTraffic;
before(async () => {
  execFileSync('ip', ['link', 'add', INTERFACE, 'type', 'veth', 'peer', 'name', 'rs2']);
  execFileSync('ip', ['link', 'set', INTERFACE, 'up']);
  recorder = await Recorder.start({
    interfaces: ['rs1', INTERFACE],
    options: ['--trigger', 'udp port 60000', '--past', '2s', '--future', '100ms'],
  });
  stopTraffic = traffic({ rate: '500pps', flows: 5 });
  const rule = { filter: 'udp port 60003', dump: 'host $srcIP', asked_by: HTML };
  await recorder.api(`v1/rules/${encodeURIComponent(`<b onmouseover=alert(4)>${HOSTILE[2]}`)}`, { method: 'PUT', body: JSON.stringify(rule) });
  await udp(60000, HOSTILE);
  await udp(60003, [HTML + 'x'.repeat(1300)]);
  // Queries over HTTP in the payload, so that a dissector shows the strings too.
  await udp(53, HOSTILE.map((text) => Buffer.concat([Buffer.from('123401000001000000000000', 'hex'), Buffer.from([Math.min(Buffer.from(text).length, 63)]), Buffer.from(text).subarray(0, 63), Buffer.from('0000010001', 'hex')])));
  await recorder.api('v1/triggers', { method: 'POST', body: JSON.stringify({ past: '1h', future: '0s', asked_by: HTML }) });
});
after(async () => {
  await stopTraffic?.();
  await closeBrowser();
  await recorder?.stop();
  execFileSync('ip', ['link', 'del', INTERFACE]);
});

async function show(page, view) {
  await page.goto(`${recorder.url}?tab=${view}`);
  await page.getByRole('tab', { selected: true }).waitFor();
  await page.waitForLoadState('load');
  // Each view has a panel with a heading when its first answer is drawn.
  await page.getByRole('heading', { level: 2 }).first().waitFor();
}

test('strings of packets, filters and names are text', async () => {
  const { page, complaints } = await open(recorder);
  // The faulty filter, and a machine without tshark.
  complaints.expected.push('422', '501');
  for (const view of VIEWS) await show(page, view);
  await page.goto(`${recorder.url}?tab=dumps`);
  await page.getByRole('button', { name: '#1' }).click();
  await page.getByRole('button', { name: 'Close the details' }).waitFor();
  await page.goto(`${recorder.url}?last=1h&filter=${encodeURIComponent(HTML)}`);
  await page.getByRole('tab', { selected: true }).waitFor();
  const filter = encodeURIComponent('udp port 60000 or udp port 60003 or udp port 53');
  await page.goto(`${recorder.url}?from=${begun}&to=${new Date().toISOString()}&filter=${filter}`);
  const rows = page.getByRole('row').filter({ hasText: '10.9.0.2' });
  await rows.first().waitFor();
  for (let i = 0; i < Math.min(await rows.count(), 12); i++) {
    await rows.nth(i).click();
    await page.getByRole('button', { name: 'Packet', pressed: true }).waitFor();
  }
  assert.equal(await page.locator('main img, main script, main b[onmouseover], main svg[onload]').count(), 0);
  // Bidirectional controls are shown as their code.
  assert.ok(!(await page.locator('body').innerText()).includes('\u202e'));
  assert.deepEqual(complaints.list, []);
});

test('nothing is wider than 390 pixels', async () => {
  for (const colorScheme of ['light', 'dark']) {
    const { page, context } = await open(recorder, { viewport: { width: 390, height: 844 }, colorScheme });
    for (const view of VIEWS) {
      await show(page, view);
      const [width, widest] = await page.evaluate(() => {
        const element = [...document.querySelectorAll('main *')].sort((a, b) => b.getBoundingClientRect().right - a.getBoundingClientRect().right)[0];
        return [document.documentElement.scrollWidth, `${element?.className} ${element?.outerHTML.slice(0, 200)}`];
      });
      assert.ok(width <= 390, `${view} is ${width} pixels wide: ${widest}`);
      await shot(page, `${view}-390-${colorScheme}`);
    }
    await context.close();
  }
});

test('axe-core finds nothing serious', async () => {
  const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
  for (const colorScheme of ['light', 'dark']) {
    const visited = await visit(recorder, { colorScheme, bypassCSP: true });
    const check = async (what) => {
      await visited.page.evaluate(axe);
      const { violations } = await visited.page.evaluate(() => globalThis.axe.run());
      const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
      const told = serious.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.html.slice(0, 160)} ${node.any[0]?.message ?? ''}`).join('\n  ')}`);
      assert.deepEqual(told, [], `${what}, ${colorScheme}`);
    };
    await visited.page.getByLabel('Token').waitFor();
    await check('login');
    await visited.context.close();
    const { page, context } = await open(recorder, { colorScheme, bypassCSP: true });
    visited.page = page;
    for (const view of VIEWS) {
      await show(page, view);
      await check(view);
      await shot(page, `${view}-1280-${colorScheme}`);
    }
    await page.goto(`${recorder.url}?tab=triggers`);
    await page.getByRole('button', { name: 'New trigger' }).click();
    await page.getByLabel('Trigger filter').fill('udp port 60000');
    await page.getByText(/Would have fired/).waitFor();
    await check('editor');
    await page.goto(`${recorder.url}?tab=dumps`);
    await page.getByRole('button', { name: '#1' }).click();
    await page.getByRole('button', { name: 'Close the details' }).waitFor();
    await check('dump');
    await context.close();
  }
});
