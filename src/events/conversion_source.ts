/** Where the thread that converts bodies finds its code, and the functions. */
export interface ConversionSource {
  /** URL of the thread's entry point. */
  thread: string;
  /** Absolute path of the file that declares the platform. */
  file: string;
}
