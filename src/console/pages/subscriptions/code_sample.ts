/** A code sample in one language. */
export interface Sample {
  language: string;
  code: string;
}
