/**
 * Images that people upload: the type is read from the content, the size from its header, and what is kept is the
 * image alone. Metadata (EXIF, XMP, comments, color profiles, thumbnails), unknown parts and whatever follows the end
 * are left out, so that a file that is two things at once keeps one of them. Pixels are never decoded here: the parts
 * of a file are walked once, from the front to the back.
 */

import type { CleanImage } from './clean_image.ts';
import { cleanJpeg } from './jpeg.ts';
import { cleanPng } from './png.ts';
import { cleanWebp } from './webp.ts';

/** Pixels that an image may be wide or high at most. */
export const imageSideMax = 1_024;

export const imageTypes = ['image/png', 'image/jpeg', 'image/webp'] as const;
export type ImageType = (typeof imageTypes)[number];

export interface Image extends CleanImage {
  type: ImageType;
}

const formats: Readonly<Record<ImageType, { name: string; clean: (given: Buffer) => CleanImage | string }>> =
  {
    'image/png': { name: 'PNG', clean: cleanPng },
    'image/jpeg': { name: 'JPEG', clean: cleanJpeg },
    'image/webp': { name: 'WebP', clean: cleanWebp },
  };

/**
 * @param type the type that the content is said to be of
 * @returns the image, or why it is not taken
 */
export function readImage(type: ImageType, given: Buffer): Image | string {
  const { name, clean } = formats[type];
  const actual = typeOf(given);
  if (actual !== type) {
    return actual === undefined
      ? `The content is not a ${name} image.`
      : `The content is a ${formats[actual].name} image, not ${name}.`;
  }
  const image = clean(given);
  if (typeof image === 'string') return `The ${name} image ${image}.`;
  const { width, height } = image;
  if (width < 1 || height < 1 || width > imageSideMax || height > imageSideMax) {
    return `The image is ${width} by ${height} pixels. It may be ${imageSideMax} by ${imageSideMax} at most.`;
  }
  return { type, ...image };
}

function typeOf(given: Buffer): ImageType | undefined {
  if (given.toString('latin1', 0, 8) === '\x89PNG\r\n\x1a\n') return 'image/png';
  if (given.toString('latin1', 0, 3) === '\xff\xd8\xff') return 'image/jpeg';
  const isWebp = given.toString('latin1', 0, 4) === 'RIFF' && given.toString('latin1', 8, 12) === 'WEBP';
  return isWebp ? 'image/webp' : undefined;
}
