/** A number with an SI prefix: `1.25 G`, with a narrow space before the unit. */
export function si(value: number, unit: string, digits = 3): string {
  const [n, prefix] = scaled(value, 1000, ['', 'k', 'M', 'G', 'T', 'P']);
  return `${prefix || !Number.isInteger(n) ? Number(n.toPrecision(digits)) : n}\u202f${prefix}${unit}`.trimEnd();
}

function scaled(value: number, step: number, prefixes: string[]): [number, string] {
  let i = 0;
  for (; Math.abs(value) >= step - 0.5 && i < prefixes.length - 1; i++) value /= step;
  return [value, prefixes[i]!];
}

export function bits(perSecond: number): string {
  return si(perSecond, 'bit/s');
}

/** Bytes in binary units: `1.5 MiB`. */
export function bytes(value: number): string {
  const [n, prefix] = scaled(value, 1024, ['', 'Ki', 'Mi', 'Gi', 'Ti']);
  return `${prefix ? Number(n.toPrecision(3)) : n}\u202f${prefix}B`;
}

/** A whole number with thin spaces between groups of three digits. */
export function count(value: number): string {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, '\u202f');
}

export function plural(n: number, noun: string): string {
  return `${count(n)} ${noun}${n === 1 ? '' : 's'}`;
}

/** Characters that change the direction or the look of a text are shown as their code. */
export function visible(text: string, longest = 4096): string {
  const cut = text.length > longest ? `${text.slice(0, longest)}…` : text;
  return cut.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => `\\u{${c.charCodeAt(0).toString(16)}}`);
}

const SIZES: Record<string, number> = { '': 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12, ki: 2 ** 10, mi: 2 ** 20, gi: 2 ** 30, ti: 2 ** 40 };

/** Parses `10 MiB`, `1.5GB`, `4096`; NaN: not a size. */
export function parseSize(text: string): number {
  const m = /^(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?$/i.exec(text.trim());
  return m ? Math.round(Number(m[1]) * SIZES[(m[2] ?? '').toLowerCase()]!) : NaN;
}
