const NAMES = ['text', 'muted', 'line', 'sunken', 'panel', 'accent', 'bad', 'warn', 'mean', 'max', 'flag', 'dump', 'pin'] as const;

/** Colours of the style sheet, and its font, for canvases. */
export type Theme = Record<(typeof NAMES)[number] | 'font', string>;

export function theme(): Theme {
  const style = getComputedStyle(document.documentElement);
  const colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  return { ...colours, font: style.fontFamily } as Theme;
}

/** Calls `then` when the system switches between light and dark. */
export function onTheme(then: () => void): () => void {
  const query = matchMedia('(prefers-color-scheme: dark)');
  query.addEventListener('change', then);
  return () => query.removeEventListener('change', then);
}

/** Colours of series by interface or direction, readable on light and dark backgrounds. */
export const PALETTE = ['#1f9e89', '#3f7fd0', '#c9742b', '#9b5fc0', '#c24d7c', '#7f8f2f', '#4f9fb8', '#8d6e5c'];

/** A hatched fill. Losses and missing packets have a pattern, so that they do not depend on colour. */
export function hatch(context: CanvasRenderingContext2D, colour: string, isRising = true): CanvasPattern | string {
  const size = Math.round(6 * devicePixelRatio);
  const tile = document.createElement('canvas');
  tile.width = tile.height = size;
  const c = tile.getContext('2d');
  if (!c) return colour;
  c.strokeStyle = colour;
  c.lineWidth = 1.2 * devicePixelRatio;
  for (const shift of [-size, 0, size]) {
    c.moveTo(shift, isRising ? size : 0);
    c.lineTo(shift + size, isRising ? 0 : size);
  }
  c.stroke();
  return context.createPattern(tile, 'repeat') ?? colour;
}
