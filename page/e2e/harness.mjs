// What the tests in Chromium share: recorders, traffic, and a browser.

import { execFileSync, spawn } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const program = process.env.RETROSCOPE ?? 'retroscope';

/** Longest wait for anything that the recorder or the page does, ms. A loaded machine is slow. */
export const PATIENCE = 30_000;

/** Starts a program and resolves when its output has `words`. */
function startAndWait(command, args, words) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  child.log = '';
  return new Promise((resolve, reject) => {
    const hear = (data) => {
      child.log += data;
      if (words.test(child.log)) resolve(child);
    };
    child.stdout.on('data', hear);
    child.stderr.on('data', hear);
    child.on('error', reject);
    child.on('exit', (code) => reject(new Error(`${command} ended with ${code}: ${child.log}`)));
  });
}

function ended(child) {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
  return new Promise((resolve) => child.on('exit', resolve));
}

let nextPort = 8100;

export class Recorder {
  /**
   * A recorder of `interfaces` with the options `options`. Records when the promise resolves, and knows its `admin`
   * token and the tokens `others`: names, and options of `retroscope token`.
   */
  static async start({ interfaces = ['rs1'], options = [], others = {} } = {}) {
    const recorder = new Recorder();
    recorder.folder = mkdtempSync(join(tmpdir(), 'retroscope-page-'));
    recorder.tokens = join(recorder.folder, 'tokens');
    recorder.socket = join(recorder.folder, 'socket');
    recorder.address = `127.0.0.1:${nextPort++}`;
    recorder.url = `http://${recorder.address}/`;
    recorder.admin = recorder.token('admin', '--role', 'admin');
    recorder.others = {};
    for (const [name, options] of Object.entries(others)) recorder.others[name] = recorder.token(name, ...options);
    recorder.args = [
      'record', ...interfaces.flatMap((name) => ['-i', name]), ...(options.includes('--ring') ? [] : ['--ring', '32MiB']), '-w', join(recorder.folder, 'dumps'),
      '--api', recorder.address, '--api', `unix:${recorder.socket}`, '--tokens', recorder.tokens, ...options,
    ];
    await recorder.begin();
    return recorder;
  }

  async begin() {
    // The address is printed before the recording begins.
    this.child = await startAndWait(program, this.args, /recording on[^]*HTTP at|HTTP at[^]*recording on/);
  }

  /** Makes a token and returns it. */
  token(name, ...options) {
    return this.command('token', '--tokens', this.tokens, '--name', name, ...options).trim();
  }

  /** Removes the line of a token, which revokes the token. */
  removeToken(name) {
    const lines = readFileSync(this.tokens, 'utf8').split('\n');
    writeFileSync(this.tokens, lines.filter((line) => !line.includes(name)).join('\n'));
  }

  command(...args) {
    return execFileSync(program, args, { encoding: 'utf8' });
  }

  /** Calls the API without the page. */
  async api(path, init = {}) {
    const headers = { authorization: `Bearer ${this.admin}`, 'content-type': 'application/json' };
    const answer = await fetch(this.url + path, { headers, ...init });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.headers.get('content-type')?.includes('json') ? answer.json() : answer;
  }

  /** The packets in the dumps of a rule, as texts of `packetsOf`. Waits until the dumps are finished. */
  async dumped(rule, filter) {
    const deadline = Date.now() + PATIENCE;
    let dumps;
    do ({ dumps } = await this.api(`v1/dumps?rule=${encodeURIComponent(rule)}`));
    while (!(dumps.length && dumps.every((dump) => dump.report)) && Date.now() < deadline);
    const files = dumps.map(async ({ number }) => {
      const file = join(this.folder, `${number}.pcapng`);
      writeFileSync(file, Buffer.from(await (await this.api(`v1/dumps/${number}/file`)).arrayBuffer()));
      return packetsOf(file, filter);
    });
    return (await Promise.all(files)).flat();
  }

  async kill() {
    this.child.kill('SIGKILL');
    await ended(this.child);
  }

  async stop() {
    this.child.kill('SIGINT');
    await ended(this.child);
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Sends background traffic on rs0 until the returned function is called. */
export function traffic({ rate = '2kpps', flows = 20 } = {}) {
  const child = spawn(program, ['generate', '-i', 'rs0', '--yes', '-q', '--rate', rate, '--flows', String(flows)]);
  return async () => {
    child.kill('SIGINT');
    await ended(child);
  };
}

/** Sends UDP packets from 10.9.0.1 to 10.9.0.2. */
export async function udp(port, payloads, from = 4000) {
  const socket = createSocket('udp4');
  await new Promise((resolve) => socket.bind(from, '10.9.0.1', resolve));
  for (const payload of [payloads].flat()) {
    await new Promise((resolve, reject) =>
      socket.send(payload, port, '10.9.0.2', (error) => (error ? reject(error) : resolve())),
    );
  }
  await new Promise((resolve) => socket.close(resolve));
}

/** Captures rs1 with tcpdump. `stop` resolves with a function that counts and lists packets. */
export async function tcpdump() {
  const file = join(mkdtempSync(join(tmpdir(), 'retroscope-tcpdump-')), 'all.pcap');
  const args = ['-i', 'rs1', '-U', '-w', file, '--time-stamp-precision=nano', '-B', '16384'];
  const child = await startAndWait('tcpdump', args, /listening on/);
  return {
    async stop() {
      child.kill('SIGINT');
      await ended(child);
      return file;
    },
  };
}

/** The packets of a capture that a filter matches: bytes and time, one text each. */
export function packetsOf(file, filter = '') {
  const args = ['-nn', '-tt', '-xx', '--time-stamp-precision=nano', '-r', file, ...(filter ? [filter] : [])];
  const text = execFileSync('tcpdump', args, { encoding: 'utf8', maxBuffer: 1 << 30, stdio: ['ignore', 'pipe', 'ignore'] });
  return text.split(/\n(?=\d)/).filter(Boolean).map((packet) => packet.trim());
}

let shared;

export async function browser() {
  shared ??= await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    // Chromium's own sandbox does not work for root.
    args: process.getuid() === 0 ? ['--no-sandbox'] : [],
  });
  return shared;
}

export async function closeBrowser() {
  await shared?.close();
  shared = undefined;
}

/** What the page must never do: errors in the console, and requests to other hosts. */
export class Complaints {
  list = [];
  /** Texts of console errors that a test provokes. */
  expected = [];

  constructor(context, recorder) {
    context.on('console', (message) => {
      if (message.type() === 'error' || /Content.Security.Policy/i.test(message.text())) this.add(message.text());
    });
    context.on('weberror', (error) => this.add(String(error.error())));
    context.on('dialog', (dialog) => {
      this.add(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    context.on('request', (request) => {
      if (!/^(blob|data):/.test(request.url()) && new URL(request.url()).host !== recorder.address) {
        this.add(`request to ${request.url()}`);
      }
    });
  }

  add(text) {
    if (!this.expected.some((expected) => text.includes(expected))) this.list.push(text);
  }
}

/** A new browser profile on the page of `recorder`, without a session. */
export async function visit(recorder, { path = '', ...options } = {}) {
  const context = await (await browser()).newContext({ viewport: { width: 1280, height: 800 }, acceptDownloads: true, ...options });
  context.setDefaultTimeout(PATIENCE);
  const complaints = new Complaints(context, recorder);
  const page = await context.newPage();
  await page.goto(recorder.url + path);
  return { context, page, complaints };
}

export async function login(page, token) {
  await page.getByLabel('Token').fill(token);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByRole('tablist').waitFor();
}

/** `visit`, and log in. */
export async function open(recorder, { token = recorder.admin, ...options } = {}) {
  const visited = await visit(recorder, options);
  await login(visited.page, token);
  return visited;
}

export async function download(page, click) {
  const [file] = await Promise.all([page.waitForEvent('download'), click()]);
  return file.path();
}

/** Puts a screenshot into the folder $SHOTS, if there is one. */
export async function shot(page, name) {
  if (process.env.SHOTS) await page.screenshot({ path: join(process.env.SHOTS, `${name}.png`) });
}

export { readFileSync };
