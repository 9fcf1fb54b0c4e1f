/** An image of which nothing but the picture is left. */
export interface CleanImage {
  width: number;
  height: number;
  content: Buffer;
}
