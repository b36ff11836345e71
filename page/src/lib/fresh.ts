import { onEvent } from './events';

/** Shortest time between two loads, ms. Events may arrive in bursts. */
const GAP = 250;

/**
 * Calls `load` now, every `period` ms, and after an event of one of the `names`. Loads nothing
 * while the tab is hidden: requests would keep the session alive. Returns the function that ends
 * this.
 */
export function keepFresh(load: () => Promise<void>, period: number, names: string[] = []): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let running = false;
  let again = false;
  let stopped = false;

  async function run(): Promise<void> {
    clearTimeout(timer);
    if (running || stopped || document.hidden) return;
    running = true;
    again = false;
    await load();
    running = false;
    if (!stopped) timer = setTimeout(run, again ? GAP : period);
  }
  function soon(): void {
    again = true;
    if (running) return;
    clearTimeout(timer);
    timer = setTimeout(run, GAP);
  }
  const shown = (): void => void run();
  document.addEventListener('visibilitychange', shown);
  const silence = onEvent((event) => names.includes(event.event) && soon());
  void run();
  return () => {
    stopped = true;
    clearTimeout(timer);
    silence();
    document.removeEventListener('visibilitychange', shown);
  };
}
