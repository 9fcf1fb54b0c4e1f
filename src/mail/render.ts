/** Renders the content of a mail in the operator's brand, as text and as HTML. Nothing in a mail is loaded from elsewhere. */

import { type Html, html } from '../http/html.ts';
import { type MailContent, type MailSection, oneLine, subjectLine, type Unsubscribing } from './content.ts';

/** The operator's brand in mails, which have a light ground. */
export interface MailBrand {
  readonly name: string;
  /** A color like `#3949c6` that is readable on white, and the color of text on it. */
  readonly accent: string;
  readonly onAccent: string;
  readonly supportUrl: string | null;
}

export interface RenderedMail {
  subject: string;
  text: string;
  html: string;
}

interface Frame {
  brand: MailBrand;
  /** Origin of all links. */
  baseUrl: string;
  unsubscribing: Unsubscribing | null;
}

/** Maximum characters of a paragraph, which may contain a name. */
const paragraphMax = 1_000;
/** Columns of a line of text (RFC 5322 section 2.1.1). */
const columns = 76;

export function renderMail(content: MailContent, frame: Frame): RenderedMail {
  return {
    subject: subjectLine(content.subject),
    text: renderText(content, frame),
    html: renderHtml(content, frame),
  };
}

const paragraph = (text: string) => oneLine(text, paragraphMax);

function renderText(content: MailContent, { brand, baseUrl, unsubscribing }: Frame): string {
  const blocks = [
    oneLine(content.title).toUpperCase(),
    ...content.paragraphs.map((text) => wrap(paragraph(text))),
  ];
  for (const { heading, facts, link } of content.sections ?? []) {
    const lines = [
      oneLine(heading),
      ...facts.map(([label, value]) => `  ${oneLine(label)}: ${oneLine(value)}`),
    ];
    if (link !== undefined) lines.push(`  ${baseUrl}${link.path}`);
    blocks.push(lines.join('\n'));
  }
  if (content.action !== undefined)
    blocks.push(`${oneLine(content.action.text)}:\n${baseUrl}${content.action.path}`);
  blocks.push(...(content.closing ?? []).map((text) => wrap(paragraph(text))));
  const end = [oneLine(brand.name)];
  if (brand.supportUrl !== null) end.push(`Help: ${brand.supportUrl}`);
  if (unsubscribing !== null) {
    end.push(
      '',
      wrap(`You get this mail when ${unsubscribing.about}. To stop these mails:`),
      baseUrl + unsubscribing.path,
      'All settings:',
      baseUrl + unsubscribing.settingsPath,
    );
  }
  // A line of two dashes and a space begins the signature (RFC 3676 section 4.3).
  blocks.push(`-- \n${end.join('\n')}`);
  return `${blocks.join('\n\n')}\n`;
}

/** Breaks lines at spaces. A longer word, such as a URL, keeps its line. */
function wrap(text: string): string {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    if (line !== '' && line.length + 1 + word.length > columns) {
      lines.push(line);
      line = word;
    } else line = line === '' ? word : `${line} ${word}`;
  }
  return [...lines, line].join('\n');
}

const font = "font-family:-apple-system,BlinkMacSystemFont,'Segoe UI',Roboto,Helvetica,Arial,sans-serif";
const ink = '#171b26';
const soft = '#5a6172';
const line = '#dfe3ec';
const broken = 'overflow-wrap:anywhere;word-break:break-word';

/** Mail programs know little CSS: styles are inline, and the frame is a table. */
function renderHtml(content: MailContent, { brand, baseUrl, unsubscribing }: Frame): string {
  const { title, paragraphs, sections = [], action, closing = [] } = content;
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light">
<title>${subjectLine(content.subject)}</title>
</head>
<body style="margin:0;padding:0;background:#f4f5f8">
<table role="presentation" width="100%" cellpadding="0" cellspacing="0" style="background:#f4f5f8">
<tr><td align="center" style="padding:24px 12px">
<table role="presentation" width="100%" cellpadding="0" cellspacing="0" style="max-width:560px;background:#ffffff;border:1px solid ${line};border-radius:12px">
<tr><td style="padding:28px 24px;text-align:left;${font};font-size:16px;line-height:1.5;color:${ink};${broken}">
<p style="margin:0 0 20px;font-size:15px;font-weight:600"><span style="display:inline-block;width:12px;height:12px;margin-right:8px;border-radius:4px;background:${brand.accent}"></span>${oneLine(brand.name)}</p>
<h1 style="margin:0 0 12px;font-size:22px;line-height:1.3;font-weight:650">${oneLine(title)}</h1>
${paragraphs.map((text) => html`<p style="margin:0 0 16px">${paragraph(text)}</p>`)}
${sections.map((section) => sectionHtml(section, brand, baseUrl))}
${
  action !== undefined &&
  html`<p style="margin:24px 0 4px"><a href="${baseUrl}${action.path}" style="display:inline-block;padding:12px 20px;border-radius:8px;background:${brand.accent};color:${brand.onAccent};font-weight:600;text-decoration:none">${oneLine(action.text)}</a></p>`
}
${closing.map((text) => html`<p style="margin:16px 0 0;color:${soft}">${paragraph(text)}</p>`)}
</td></tr>
</table>
<p style="max-width:560px;margin:16px auto 0;padding:0 12px;text-align:left;${font};font-size:13px;line-height:1.5;color:${soft};${broken}">
${
  unsubscribing !== null &&
  html`You get this mail when ${unsubscribing.about}. <a href="${baseUrl}${unsubscribing.path}" style="color:${soft}">Stop these mails</a> or <a href="${baseUrl}${unsubscribing.settingsPath}" style="color:${soft}">change your settings</a>.`
}
${brand.supportUrl !== null && html`<a href="${brand.supportUrl}" style="color:${soft}">Help</a>`}
</p>
</td></tr>
</table>
</body>
</html>
`.toString();
}

function sectionHtml({ heading, facts, link }: MailSection, brand: MailBrand, baseUrl: string): Html {
  return html`<div style="margin:0 0 12px;padding:14px 16px;border:1px solid ${line};border-radius:8px">
<p style="margin:0 0 4px;font-weight:600">${oneLine(heading)}</p>
${facts.map(([label, value]) => html`<p style="margin:0;font-size:14px"><span style="color:${soft}">${oneLine(label)}:</span> ${oneLine(value)}</p>`)}
${link !== undefined && html`<p style="margin:8px 0 0;font-size:14px"><a href="${baseUrl}${link.path}" style="color:${brand.accent}">${oneLine(link.text)}</a></p>`}
</div>`;
}
