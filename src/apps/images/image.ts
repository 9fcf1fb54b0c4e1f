/**
 * Uploaded images. The type is detected from the content, the size is read from the header, and only the parts needed to
 * show the image are stored. Metadata (EXIF, XMP, comments, color profiles, thumbnails), unknown parts and trailing data
 * are removed, which also defuses polyglot files. Pixels are not decoded: each parser makes one pass over the parts.
 */

import type { CleanImage } from './clean_image.ts';
import { cleanJpeg } from './jpeg.ts';
import { cleanPng } from './png.ts';
import { cleanWebp } from './webp.ts';

/** Maximum width and height in pixels. */
export const imageSideMax = 1_024;

export const imageTypes = ['image/png', 'image/jpeg', 'image/webp'] as const;
export type ImageType = (typeof imageTypes)[number];

export interface Image extends CleanImage {
  type: ImageType;
}

const formats: Readonly<Record<ImageType, { name: string; clean: (bytes: Buffer) => CleanImage | string }>> =
  {
    'image/png': { name: 'PNG', clean: cleanPng },
    'image/jpeg': { name: 'JPEG', clean: cleanJpeg },
    'image/webp': { name: 'WebP', clean: cleanWebp },
  };

/**
 * @param type the declared type of the content
 * @returns the cleaned image, or the reason why it is rejected
 */
export function readImage(type: ImageType, bytes: Buffer): Image | string {
  const { name, clean } = formats[type];
  const actual = typeOf(bytes);
  if (actual !== type) {
    return actual === undefined
      ? `The content is not a ${name} image.`
      : `The content is a ${formats[actual].name} image, not ${name}.`;
  }
  const image = clean(bytes);
  if (typeof image === 'string') return `The ${name} image ${image}.`;
  const { width, height } = image;
  if (width < 1 || height < 1 || width > imageSideMax || height > imageSideMax) {
    return `The image is ${width} by ${height} pixels. The maximum is ${imageSideMax} by ${imageSideMax}.`;
  }
  return { type, ...image };
}

function typeOf(bytes: Buffer): ImageType | undefined {
  if (bytes.toString('latin1', 0, 8) === '\x89PNG\r\n\x1a\n') return 'image/png';
  if (bytes.toString('latin1', 0, 3) === '\xff\xd8\xff') return 'image/jpeg';
  const isWebp = bytes.toString('latin1', 0, 4) === 'RIFF' && bytes.toString('latin1', 8, 12) === 'WEBP';
  return isWebp ? 'image/webp' : undefined;
}
