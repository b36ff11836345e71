import { api, reason, request, send, troubleOf, ApiError, whenUnauthorized } from './api';
import { events } from './events';
import type { Interface, RecorderStatus, Session } from './types';
import { faultyParameters, parseView, writeView, type View } from './url';
import type { Range } from './time';

const ZONE_KEY = 'retroscope-zone';
const ENDED = 'Your session has ended. Log in to continue where you were.';

/** Time ranges that another view shows on the strip, such as the hits of a backtest. */
export interface Mark {
  at: number;
  label: string;
}

class State {
  /** undefined: not known yet; null: logged out. */
  session = $state.raw<Session | null | undefined>(undefined);
  /** Whether tokens can log in. If not, only links of `retroscope open` can. */
  tokens = $state(true);
  /** Why the login view is shown; empty: nobody has logged in yet. */
  loginTrouble = $state('');
  status = $state.raw<RecorderStatus | null>(null);
  /** Why the last request for the status failed; empty: it succeeded. */
  trouble = $state('');
  interfaces = $state.raw<Interface[]>([]);
  view = $state.raw<View>(parseView(location.search, localStorage.getItem(ZONE_KEY) !== 'local'));
  /** Parameters of the page's address that cannot be read, until the view changes. */
  faulty = $state.raw(faultyParameters(location.search));
  /** Hits of a backtest; drawn on the strip. */
  marks = $state.raw<Mark[]>([]);

  get utc(): boolean {
    return this.view.utc;
  }

  /** Why the session may not use an operation of the API; empty: it may. */
  mayNot(operation: string): string {
    return this.session?.may_not[operation] ?? '';
  }

  /** Changes the view and the page's address. Back returns to the earlier view, unless `replace`. */
  go(change: Partial<View>, replace = false): void {
    const before = writeView(this.view);
    this.view = { ...this.view, ...change };
    const after = writeView(this.view);
    if (after === before) return;
    this.faulty = [];
    const address = location.pathname + after;
    const depth = this.depth;
    if (replace) history.replaceState({ depth }, '', address);
    else history.pushState({ depth: depth + 1 }, '', address);
  }

  /** The number of earlier views of this page that “back” leads to. */
  private get depth(): number {
    return Number((history.state as { depth?: number } | null)?.depth ?? 0);
  }

  /** Returns to the earlier view, and never leaves the page. */
  undo(): void {
    if (this.depth > 0) history.back();
  }

  /** Shows a time range in the Scope view. */
  look(range: Range, change: Partial<View> = {}): void {
    this.go({ tab: 'scope', range, ...change });
  }

  setUtc(utc: boolean): void {
    localStorage.setItem(ZONE_KEY, utc ? 'utc' : 'local');
    this.go({ utc }, true);
  }

  async open(): Promise<void> {
    whenUnauthorized(() => this.session && this.leave(ENDED));
    addEventListener('popstate', () => (this.view = parseView(location.search, this.utc)));
    events().watch(() => {
      if (events().state === 'refused' && this.session && !this.mayNot('followEvents')) void this.enter();
    });
    events().onSession(() => void this.enter());
    const link = new URLSearchParams(location.hash.slice(1)).get('link');
    if (link) {
      // The code works once, but it must not stay in the browser's history.
      history.replaceState(null, '', location.pathname + location.search);
      await this.login({ link });
    } else {
      await this.enter();
    }
  }

  /** Reads the session, after a start of the page or a login. */
  async enter(): Promise<void> {
    let isNew: boolean;
    try {
      const answer = await api.session();
      this.trouble = '';
      if (answer.caller === null) {
        this.tokens = answer.tokens;
        this.leave(this.session ? ENDED : this.loginTrouble);
        return;
      }
      this.loginTrouble = '';
      isNew = this.session?.caller !== answer.caller;
      this.session = answer;
    } catch (error) {
      this.trouble = reason(error);
      setTimeout(() => void this.enter(), 2000);
      return;
    }
    if (isNew && !this.mayNot('followEvents')) events().start();
    const interfaces = troubleOf(async () => (this.interfaces = (await api.interfaces()).interfaces));
    await this.refresh();
    this.trouble ||= await interfaces;
  }

  /** Exchanges a token or the code of a link for a session. */
  async login(by: { token: string } | { link: string }): Promise<void> {
    this.loginTrouble = '';
    try {
      if ('token' in by) await request('POST', 'v1/session', { headers: { Authorization: `Bearer ${by.token}` } });
      else await send('POST', 'v1/session', by);
    } catch (error) {
      const failed = error instanceof ApiError ? error.problem.detail : reason(error);
      await this.enter();
      this.loginTrouble = failed;
      return;
    }
    await this.enter();
    events().sessionChanged();
  }

  async logout(): Promise<void> {
    try {
      await send('DELETE', 'v1/session');
    } catch (error) {
      // 404: the session had ended.
      if (!(error instanceof ApiError && (error.status === 404 || error.status === 401))) {
        this.trouble = reason(error);
        return;
      }
    }
    this.leave('');
    events().sessionChanged();
  }

  /** Forgets the session and what it showed. */
  private leave(why: string): void {
    events().stop();
    this.loginTrouble = why;
    this.session = null;
    this.status = null;
    this.interfaces = [];
    this.marks = [];
  }

  async refresh(): Promise<void> {
    try {
      this.status = await api.status();
      this.trouble = '';
    } catch (error) {
      // 401: the login view has the reason.
      this.trouble = error instanceof ApiError && error.status === 401 ? '' : reason(error);
    }
  }
}

export const app = new State();
