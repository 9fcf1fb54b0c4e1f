/** The frame of the example's pages. */

const style =
  'body{font:1rem/1.5 system-ui;max-width:32rem;margin:2rem auto;padding:0 1rem}label,button{display:block;margin:.5rem 0}input{font:inherit;width:100%;box-sizing:border-box}';

export function page(title: string, content: string): string {
  return `<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>${escapeHtml(title)}</title>
<style>${style}</style></head><body><h1>${escapeHtml(title)}</h1>${content}</body></html>`;
}

export function escapeHtml(text: string): string {
  return text.replaceAll(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
