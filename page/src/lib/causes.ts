import { count, plural, si } from './format';
import type { Missing, RuleScan } from './types';

/** What each cause of a loss means, and what helps: docs/verdicts.md. */
const CAUSES: Record<string, [what: string, helps: string]> = {
  evicted: ['overwritten in the ring before they were read', 'a larger --ring, a shorter past, or when-full protect'],
  'interface-down': ['passed while the interface was down or removed', ''],
  kernel: ['dropped by the kernel before the recorder read them', 'a larger capture-buffer, more rx-threads, a capture filter, a snap length; see the findings in Health'],
  nic: ['dropped by the network card', 'a larger receive ring; see the findings in Health'],
  damaged: ['refused by the network card as damaged or too long', 'check the cable and the MTU'],
  'no-buffer': ['found no free buffer', 'capture-buffer, more memory in eal-args'],
  upstream: ['lost by the sender of the capture stream', ''],
  oversize: ['longer than the buffer of the capture engine', 'a smaller MTU, or the engine af-packet'],
  unseen: ['arrived at a receive queue that the recorder does not serve', 'restart the recorder after the interface got more queues'],
  'no-free-bucket': ['found no room in the ring', 'a larger --ring'],
  shed: ['shed under overload or by a cutoff', 'a larger cutoff, or one by class'],
  cutoff: ['shed, because the flow exceeded its cutoff', 'a larger cutoff, or one by class'],
  'history-goal': ['shed, so that the ring reaches the history goal', 'a larger --ring, or a shorter history goal'],
  ted: ['shed by tail early drop under overload', 'a less loaded machine'],
  shunt: ['shed by the network card or driver, because the flow exceeded its cutoff', 'a larger cutoff, or one by class'],
  'interface-limit': ['came from interfaces beyond the limit of a recording', 'fewer files at once'],
  unknown: ['may have been lost without a counter that says so', 'a less loaded machine'],
  fragments: ['may be later IP fragments of the flow', 'a simpler dump filter'],
  late: ['arrived too late for the file', 'a longer reorder-window'],
  'clock-step': ['have stamps from the other side of a clock step', ''],
  disk: ['could not be written to the disk', 'disk space and speed'],
  restamped: ['are in the file with another stamp, which the format can hold', '--format pcapng'],
  script: ['not dumped, because the dump script failed', 'see the notes'],
  unmatched: ['of an alert are not in the recording', ''],
  stopped: ['not written, because a second signal ended everything', ''],
  'not-recorded': ['passed before or after the recording', ''],
  truncated: ['cut by a snap length', ''],
  unpublished: ['not yet published by the recorder', ''],
};

export const causeWords = (cause: string): string => CAUSES[cause]?.[0] ?? cause;
export const causeHelp = (cause: string): string => CAUSES[cause]?.[1] ?? '';

/** `12 packets`, `up to 12 packets`, `an unknown number of packets`. */
export function howMany(missing: Missing): string {
  const n = missing.packets ?? missing.at_most;
  if (n === null || n === undefined) return 'an unknown number of packets';
  return `${missing.packets === null || missing.packets === undefined ? 'up to ' : ''}${plural(n, 'packet')}`;
}

/** A rule's scan of the past in words. */
export function scanWords({ past, running, hits, dumps, waited, stopped, scan }: RuleScan): string {
  const found = `the last ${past}: ${plural(hits, 'hit')}, ${plural(dumps, 'dump')}`;
  if (running) return `scanning ${found}`;
  const missing = scan?.missing.map((it) => `${howMany(it)} ${causeWords(it.cause)}`).join(', ');
  const verdict = scan && (missing ? `: incomplete: ${missing}` : `: ${scan.verdict === 'complete' ? scan.verdict : scan.reasons}`);
  const waiting = waited ? `; ${plural(waited, 'new hit')} waited for the scan` : '';
  return `scanned ${found} in ${plural(scan?.inspected ?? 0, 'packet')}${verdict ?? ''}${waiting}${stopped ? `; ended early: ${stopped}` : ''}`;
}

/** Why a hit starts no dump: docs/triggers.md. */
const SUPPRESSED: Record<string, string> = {
  open: 'a dump of the same flow or filter was open',
  'hold-off': 'the hold-off had not passed',
  'dumps-per-minute': 'too many dumps in a minute',
  'bytes-per-hour': 'the dumps of the last hour reached their bytes',
  'max-dumps': 'too many dumps were open',
  unfilled: 'the packet lacks a field of the dump filter',
  single: 'the single shot was taken',
  'queue-full': 'hits came faster than dumps can start',
};

/** The reasons why hits started no dump, most frequent first. */
export function suppressedReasons(by: Record<string, number> | undefined): { n: number; key: string; why: string }[] {
  return Object.entries(by ?? {})
    .filter(([, n]) => n > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([key, n]) => ({ n, key, why: SUPPRESSED[key] ?? key }));
}

export const short = (n: number): string => (n < 10_000 ? count(n) : si(n, ''));
