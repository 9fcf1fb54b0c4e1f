/** An image without metadata. */
export interface CleanImage {
  width: number;
  height: number;
  content: Buffer;
}
