import type { Details, Stream, Packets, Problem, RecorderStatus, Interface, NoSession, Session, Timeline, Top, Pin, Dumps } from './types';

/** The API is next to the page, also below a proxy's path prefix. */
export const base = new URL('.', document.baseURI);

/** A refused request. `problem` is the API's answer; status 0: the recorder did not answer. */
export class ApiError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail);
  }
  get status(): number {
    return this.problem.status;
  }
}

export type Parameters = Record<string, string | number | boolean | undefined | null>;

export function url(path: string, parameters: Parameters = {}): URL {
  const target = new URL(path, base);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== '' && value !== false) target.searchParams.set(name, String(value));
  }
  return target;
}

export interface Options {
  parameters?: Parameters;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** The request outlives the page. */
  keepalive?: boolean;
}

/** Called when a session is missing or has ended. */
let onUnauthorized: () => void = () => {};
export function whenUnauthorized(then: () => void): void {
  onUnauthorized = then;
}

export async function request(method: string, path: string, options: Options = {}, tries = 20): Promise<Response> {
  const headers: Record<string, string> = { ...options.headers };
  const init: RequestInit = { method, headers, credentials: 'same-origin', cache: 'no-store', signal: options.signal ?? null, keepalive: options.keepalive ?? false };
  if (options.body !== undefined) {
    headers['Content-Type'] = 'application/json';
    init.body = JSON.stringify(options.body);
  }
  let response: Response;
  try {
    response = await fetch(url(path, options.parameters), init);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError({ type: 'unreachable', title: 'No answer', status: 0, detail: 'The recorder does not answer.' });
  }
  if (response.ok) return response;
  // This client's limit: requests that it gave up are still ending.
  if (response.status === 429 && options.signal && tries > 0) {
    await new Promise((then) => setTimeout(then, 500));
    options.signal.throwIfAborted();
    return request(method, path, options, tries - 1);
  }
  // A wrong token at a login is not the end of a session.
  if (response.status === 401 && path !== 'v1/session') onUnauthorized();
  throw new ApiError(await problemOf(response));
}

async function problemOf(response: Response): Promise<Problem> {
  try {
    const problem: unknown = await response.json();
    if (problem && typeof problem === 'object' && 'detail' in problem) return problem as Problem;
  } catch {
    // A proxy's error page is not JSON.
  }
  return { type: 'http', title: response.statusText, status: response.status, detail: `The server answered ${response.status} ${response.statusText}.` };
}

export async function get<T>(path: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<T> {
  const response = await request('GET', path, { parameters, signal });
  return (await response.json()) as T;
}

export async function send<T>(method: 'POST' | 'PUT' | 'PATCH' | 'DELETE', path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
  const response = await request(method, path, { body, headers });
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

export const api = {
  session: () => get<Session | NoSession>('v1/session'),
  status: () => get<RecorderStatus>('v1/status'),
  interfaces: () => get<{ interfaces: Interface[] }>('v1/interfaces'),
  timeline: (parameters: Parameters, signal?: AbortSignal) => get<Timeline>('v1/timeline', parameters, signal),
  top: (parameters: Parameters, signal?: AbortSignal) => get<Top>('v1/top', parameters, signal),
  packets: (parameters: Parameters, signal?: AbortSignal) => get<Packets>('v1/packets', parameters, signal),
  details: (parameters: Parameters, signal?: AbortSignal) => get<Details>('v1/details', parameters, signal),
  stream: (parameters: Parameters, signal?: AbortSignal) => get<Stream>('v1/stream', parameters, signal),
  checkFilter: (filter: string, signal: AbortSignal) => get<{ problem: Problem | null }>('v1/filters', { filter }, signal),
  pins: () => get<{ pins: Pin[] }>('v1/pins'),
  pin: (name: string, body: unknown) => send<Pin>('PUT', `v1/pins/${encodeURIComponent(name)}`, body),
  unpin: (name: string) => send<void>('DELETE', `v1/pins/${encodeURIComponent(name)}`),
  dumps: (parameters: Parameters) => get<Dumps>('v1/dumps', parameters),
};

/** Starts a dump by hand, and returns its number. The same key again would return the same dump. */
export async function forceTrigger(body: Record<string, unknown>): Promise<number> {
  const key = `page-${crypto.getRandomValues(new Uint32Array(2)).join('-')}`;
  return (await send<{ dump: number }>('POST', 'v1/triggers', body, { 'Idempotency-Key': key })).dump;
}

/** Copies a text; returns what the page says about this. Without TLS, browsers refuse the clipboard on other hosts. */
export const copyText = (text: string): Promise<string> => navigator.clipboard?.writeText(text).then(() => `Copied: ${text}`, () => text) ?? Promise.resolve(text);

/** `v1/rules/test` is an operation, so a rule called `test` is written with an escape. */
export const rulePath = (name: string): string => `v1/rules/${name === 'test' ? '%74est' : encodeURIComponent(name)}`;

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === 'AbortError';
}

/** Runs an action; returns why it failed, or an empty text. */
export const troubleOf = (action: () => Promise<unknown>): Promise<string> => action().then(() => '', reason);

/** The text of an error for people. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
