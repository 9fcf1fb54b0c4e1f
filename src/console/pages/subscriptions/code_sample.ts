/** A program, or a part of one, in a language. */
export interface Sample {
  language: string;
  code: string;
}
