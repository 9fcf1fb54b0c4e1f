/** A chart of horizontal bars as SVG, with its numbers as text. Works on light and dark backgrounds. */

export interface Bar {
  label: string;
  value: number;
  /** The text beside the bar. */
  text: string;
  /** Bars of the reference are gray. */
  isReference?: boolean;
}

const width = 720;
const labelWidth = 250;
const barsWidth = 330;
const rowHeight = 26;
const top = 36;

/** @param bars at least one, with values of 0 or more */
export function barChart(title: string, bars: readonly Bar[]): string {
  const largest = Math.max(...bars.map(({ value }) => value), Number.MIN_VALUE);
  const height = top + bars.length * rowHeight + 8;
  const rows = bars.map(({ label, value, text, isReference = false }, index) => {
    const y = top + index * rowHeight;
    const length = Math.max(1, (value / largest) * barsWidth);
    return [
      `<text x="${labelWidth - 8}" y="${y + 15}" text-anchor="end">${escapeText(label)}</text>`,
      `<rect x="${labelWidth}" y="${y + 3}" width="${length.toFixed(1)}" height="16" rx="2" fill="${isReference ? '#8b949e' : '#2f81f7'}"/>`,
      `<text x="${(labelWidth + length + 6).toFixed(1)}" y="${y + 15}">${escapeText(text)}</text>`,
    ].join('\n');
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="${escapeText(title)}">
<style>text { font: 12px system-ui, sans-serif; fill: #6e7681 } .title { font-weight: 600; font-size: 14px }</style>
<text class="title" x="8" y="20">${escapeText(title)}</text>
${rows.join('\n')}
</svg>
`;
}

function escapeText(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;');
}
