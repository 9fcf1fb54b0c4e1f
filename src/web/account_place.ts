/** Which part of the account page is shown: a page of the connected apps, or one app. Forms carry it, so that a user comes back to it. */

import { isId } from '../crypto/ids.ts';
import { type Html, html } from '../http/html.ts';

export interface AccountPlace {
  /** A grant of the app that is shown alone; null for the list. */
  app: string | null;
  /** As of `AppsPlace`. */
  from: string | null;
  /** As of `AppsPlace`. */
  to: string | null;
  /** As of `AppsPlace`; of an app that is shown alone, the last subscription of the page before. */
  after: string | null;
}

export const firstPlace: AccountPlace = { app: null, from: null, to: null, after: null };

/** Reads it from the query of the page or the body of a form. What is not valid is left out. */
export function readPlace(values: unknown): AccountPlace {
  const { app, from, to, after } = (values ?? {}) as Record<string, unknown>;
  return { app: idOf(app), from: idOf(from), to: idOf(to), after: idOf(after) };
}

function idOf(value: unknown): string | null {
  return typeof value === 'string' && isId(value) ? value : null;
}

export function isFirst(place: AccountPlace): boolean {
  return Object.values(place).every((value) => value === null);
}

/** @param others further parameters */
export function placeUrl(place: AccountPlace, others: Readonly<Record<string, string>> = {}): string {
  const query = new URLSearchParams([...valuesOf(place), ...Object.entries(others)]);
  return query.size === 0 ? '/account' : `/account?${query}`;
}

/** The hidden fields of a form. */
export function placeFields(place: AccountPlace): Html {
  return html`${valuesOf(place).map(([name, value]) => html`<input type="hidden" name="${name}" value="${value}">\n`)}`;
}

function valuesOf(place: AccountPlace): [name: string, value: string][] {
  return Object.entries(place).filter((entry): entry is [string, string] => entry[1] !== null);
}
