import { api, reason, ApiError, whenUnauthorized } from './api';
import type { Interface, RecorderStatus, Role, Session } from './types';
import { parseView, writeView, type Tab, type View } from './url';
import type { Range } from './time';

const ZONE_KEY = 'retroscope-zone';

/** Time ranges that another view shows on the strip, such as the hits of a backtest. */
export interface Mark {
  at: number;
  label: string;
}

class State {
  /** undefined: not known yet; null: logged out. */
  session = $state.raw<Session | null | undefined>(undefined);
  status = $state.raw<RecorderStatus | null>(null);
  /** Why the last request for the status failed; empty: it succeeded. */
  trouble = $state('');
  interfaces = $state.raw<Interface[]>([]);
  view = $state.raw<View>(parseView(location.search, localStorage.getItem(ZONE_KEY) !== 'local'));
  /** Hits of a backtest; drawn on the strip. */
  marks = $state.raw<Mark[]>([]);

  get utc(): boolean {
    return this.view.utc;
  }

  can(role: Role): boolean {
    const roles = this.session?.roles ?? [];
    return roles.includes('admin') || roles.includes(role);
  }

  /** Why the session may not do what needs `role` and all packets; empty: it may. */
  refusal(role: Role, allPackets = false): string {
    if (!this.can(role)) return `Your token lacks the role “${role}”.`;
    if (allPackets && this.session?.restricted) return 'Your token sees only a part of the packets.';
    return '';
  }

  /** Changes the view and the page's address. Back returns to the earlier view, unless `replace`. */
  go(change: Partial<View>, replace = false): void {
    const before = writeView(this.view);
    this.view = { ...this.view, ...change };
    const after = writeView(this.view);
    if (after === before) return;
    const address = location.pathname + after;
    if (replace) history.replaceState(null, '', address);
    else history.pushState(null, '', address);
  }

  show(tab: Tab): void {
    this.go({ tab });
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
    whenUnauthorized(() => (this.session = null));
    addEventListener('popstate', () => (this.view = parseView(location.search, this.utc)));
    await this.enter();
  }

  /** Reads the session, after a start of the page or a login. */
  async enter(): Promise<void> {
    try {
      this.session = await api.session();
      this.trouble = '';
    } catch (error) {
      if (import.meta.env.DEV && error instanceof ApiError && error.status === 404) this.session = DEVELOPER;
      else if (error instanceof ApiError && error.status === 401) this.session = null;
      else this.trouble = reason(error);
    }
    if (this.session) await Promise.all([this.refresh(), this.readInterfaces()]);
  }

  async refresh(): Promise<void> {
    try {
      this.status = await api.status();
      this.trouble = '';
    } catch (error) {
      this.trouble = reason(error);
    }
  }

  async readInterfaces(): Promise<void> {
    try {
      this.interfaces = (await api.interfaces()).interfaces;
    } catch (error) {
      this.trouble = reason(error);
    }
  }
}

const DEVELOPER: Session = {
  caller: 'developer', roles: ['admin'], restricted: null, expires: null, version: 'development', recording: null, page: { details: true },
};

export const app = new State();
