/**
 * What a mail says, without its looks. All texts may contain what strangers wrote, such as an app's name: rendering
 * escapes and shortens them (render.ts).
 */

export interface MailContent {
  subject: string;
  /** The heading, in the words of the person who reads it. */
  title: string;
  paragraphs: readonly string[];
  /** What the mail lists, such as subscriptions. */
  sections?: readonly MailSection[];
  /** The button. */
  action?: MailLink;
  /** Paragraphs after the button. */
  closing?: readonly string[];
}

export interface MailSection {
  heading: string;
  facts: readonly MailFact[];
  link?: MailLink;
}

/** A name and its value. */
export type MailFact = readonly [label: string, value: string];

/** Leads to a page of this server only. */
export interface MailLink {
  text: string;
  /** Begins with `/`. */
  path: string;
}

/** Lets the reader stop mails of one kind. */
export interface Unsubscribing {
  /** What the mails are about, as `a subscription is failing`. */
  about: string;
  /** Responds to GET with a page and to POST by stopping the mails (RFC 8058). Begins with `/`. */
  path: string;
  /** The page of all choices. */
  settingsPath: string;
}

/** Maximum characters of a name, a description or another text of strangers. */
const textMax = 160;
const subjectMax = 120;

/**
 * Makes one line of a text: without control characters, without marks that reverse the direction of text, and not longer
 * than the maximum.
 */
export function oneLine(text: string, max = textMax): string {
  const line = text
    .replaceAll(/[\p{Cf}\p{Co}\p{Cn}\p{Cs}]/gu, '')
    .replaceAll(/[\s\p{Cc}\u2028\u2029]+/gu, ' ')
    .trim();
  const characters = [...line];
  return characters.length <= max
    ? line
    : `${characters
        .slice(0, max - 1)
        .join('')
        .trimEnd()}…`;
}

export function subjectLine(subject: string): string {
  return oneLine(subject, subjectMax);
}
