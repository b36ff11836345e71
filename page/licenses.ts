import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import type { Plugin } from 'vite';

/** Writes a list of the packages whose code is in the built files, with the texts of their licences. */
export function licenses(file: string): Plugin {
  return {
    name: 'licenses',
    generateBundle(_options, bundle) {
      const folders = new Set<string>();
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== 'chunk') continue;
        for (const [id, module] of Object.entries(chunk.modules)) {
          const folder = /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(id.replace(/^\0/, ''))?.[0];
          if (folder && module.renderedLength > 0) folders.add(folder);
        }
      }
      const parts = [...folders].map(describe).sort();
      writeFileSync(file, [HEAD, ...parts].join('\n'));
    },
  };
}

const HEAD = `# Licences of the page's packages

The web page that Retroscope embeds contains code of these packages. \`make page\` writes this list.
`;

function describe(folder: string): string {
  const about = JSON.parse(readFileSync(`${folder}/package.json`, 'utf8')) as { name: string; version: string; license: string };
  const text = readdirSync(folder).find((name) => /^licen[sc]e/i.test(name));
  const full = text ? readFileSync(`${folder}/${text}`, 'utf8').trim() : '(the package has no licence file)';
  return `## ${about.name} ${about.version}: ${about.license}\n\n\`\`\`text\n${full}\n\`\`\`\n`;
}
