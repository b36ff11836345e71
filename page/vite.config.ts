import { defineConfig } from 'vitest/config';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { licenses } from './licenses.ts';

// scripts/page.sh builds into another folder and compares.
const out = process.env.OUT;

// The built files are compiled into the recorder, so their names are fixed. URLs are relative,
// because a proxy may serve the page below a path prefix.
export default defineConfig({
  base: './',
  plugins: [svelte(), licenses(out ? `${out}/LICENSES.md` : 'LICENSES.md')],
  build: {
    outDir: out ? `${out}/page` : '../crates/api/page',
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: true,
    rollupOptions: {
      checks: { pluginTimings: false },
      output: {
        codeSplitting: false,
        entryFileNames: 'app.js',
        assetFileNames: (asset) => (asset.names[0]?.endsWith('.css') ? 'app.css' : '[name][extname]'),
      },
    },
  },
  server: { proxy: devProxy() },
  test: { include: ['test/**/*.test.ts'] },
});

/** `npm run dev` forwards API requests to RETROSCOPE_URL with the token of RETROSCOPE_TOKEN. */
function devProxy() {
  const target = process.env.RETROSCOPE_URL ?? 'http://127.0.0.1:8080';
  const token = process.env.RETROSCOPE_TOKEN;
  const headers: Record<string, string> = token ? { Authorization: `Bearer ${token}` } : {};
  return { '/v1': { target, changeOrigin: true, headers } };
}
