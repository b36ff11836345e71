import { api, ApiError, reason, request } from '../lib/api';
import { app } from '../lib/state.svelte';
import { rfc3339, type Range } from '../lib/time';

/** The lease of a frozen range. Browsers run timers of a hidden tab once a minute. */
const LEASE = '30s';
const HIDDEN_LEASE = '150s';
/** Between two renewals. */
const RENEW_MS = 10_000;

/** Keeps the packets of a frozen range in the ring, until the page lets go or is gone. */
export class Hold {
  /** The range that is kept, or that the page tries to keep. */
  range = $state.raw<Range | null>(null);
  /** Why the packets are not kept, or are in danger; empty: these are kept. */
  trouble = $state('');
  /** The range whose packets are all in the ring, however old. */
  readonly kept = $derived(this.trouble ? null : this.range);
  /** In mode `protect` a pin may stop the recording, so the page asks first. */
  asks = $state.raw<Range | null>(null);
  private name = `page-${crypto.getRandomValues(new Uint32Array(1))[0]!.toString(16)}`;
  private timer: ReturnType<typeof setInterval> | undefined;

  async freeze(range: Range): Promise<void> {
    const refusal = app.mayNot('putPin');
    if (refusal) {
      this.range = range;
      this.trouble = `Not kept in the ring: ${refusal}`;
    } else if (app.status?.when_full === 'protect') {
      this.asks = range;
    } else {
      await this.keep(range);
    }
  }

  /** Makes the pin, and renews its lease. */
  async keep(range: Range): Promise<void> {
    this.asks = null;
    this.range = range;
    this.trouble = '';
    clearInterval(this.timer);
    this.timer = setInterval(() => void this.renew(), RENEW_MS);
    addEventListener('pagehide', this.leave);
    document.addEventListener('visibilitychange', this.again);
    await this.renew();
  }

  private async renew(): Promise<void> {
    const { range } = this;
    if (!range) return;
    try {
      const pin = await api.pin(this.name, { from: rfc3339(range.from), to: rfc3339(range.to), lease: document.hidden ? HIDDEN_LEASE : LEASE });
      if (this.range !== range) return;
      this.trouble = pin.revoked
        ? 'The ring needed the space: packets of the frozen range are being overwritten'
        : pin.evicted_before > 0 ? 'The oldest packets of the frozen range were overwritten before' : '';
    } catch (error) {
      if (this.range !== range) return;
      this.trouble = `Not kept in the ring: ${reason(error)}`;
      // The recorder refuses the pin; a lost connection may return before the lease ends.
      if (error instanceof ApiError && error.status >= 400 && error.status < 500) clearInterval(this.timer);
    }
  }

  release(): void {
    this.asks = null;
    if (!this.range) return;
    const wasKept = this.timer !== undefined;
    this.range = null;
    this.trouble = '';
    clearInterval(this.timer);
    this.timer = undefined;
    removeEventListener('pagehide', this.leave);
    document.removeEventListener('visibilitychange', this.again);
    if (wasKept) void api.unpin(this.name).catch(() => {});
  }

  /** A tab that closes is hidden first, and must not get the long lease. */
  private again = (): void => void setTimeout(() => void this.renew(), 1000);

  /** The lease ends by itself; this ends the lease at once, if the browser still sends the request. */
  private leave = (): void => {
    void request('DELETE', `v1/pins/${this.name}`, { keepalive: true }).catch(() => {});
  };
}
