/** Uploaded images: what is accepted, what is kept of it, and what is refused. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { type ImageType, imageTypes, readImage } from '../../../src/apps/images/image.ts';
import {
  jpeg,
  losslessWebp,
  png,
  pngChunk,
  pngHeader,
  pngSignature,
  transparentWebp,
  webp,
} from '../../support/values/images.ts';

const samples: readonly (readonly [ImageType, Buffer])[] = [
  ['image/png', png(24, 16)],
  ['image/jpeg', jpeg],
  ['image/webp', webp],
  ['image/webp', transparentWebp],
  ['image/webp', losslessWebp],
];

function taken(type: ImageType, given: Buffer) {
  const image = readImage(type, given);
  assert(typeof image !== 'string', String(image));
  return image;
}

function refused(type: ImageType, given: Buffer): string {
  const image = readImage(type, given);
  assert.equal(typeof image, 'string', 'taken');
  return image as string;
}

/** Inserts a segment behind the first two bytes of a JPEG. */
function withSegment(code: number, content: string | Buffer): Buffer {
  const body = Buffer.from(content);
  const head = Buffer.from([0xff, code, (body.length + 2) >> 8, (body.length + 2) & 0xff]);
  return Buffer.concat([jpeg.subarray(0, 2), head, body, jpeg.subarray(2)]);
}

function webpOf(...chunks: readonly [name: string, content: Buffer][]): Buffer {
  const parts = chunks.flatMap(([name, content]) => {
    const length = Buffer.alloc(4);
    length.writeUInt32LE(content.length);
    return [Buffer.from(name, 'latin1'), length, content, Buffer.alloc(content.length % 2)];
  });
  const body = Buffer.concat([Buffer.from('WEBP'), ...parts]);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(body.length);
  return Buffer.concat([Buffer.from('RIFF'), length, body]);
}

/** The content of the image chunk of a lossless WebP. */
const lossless = losslessWebp.subarray(losslessWebp.indexOf('VP8L') + 8);

test('an image keeps its size and loses color profile, metadata and trailing bytes', () => {
  for (const [type, given] of samples) {
    const image = taken(type, Buffer.concat([given, Buffer.from('<script>alert(1)</script>')]));
    assert.deepEqual([image.type, image.width, image.height], [type, 24, 16]);
    for (const part of ['ICC_PROFILE', 'ICCP', 'Google Inc', 'script']) {
      assert.equal(image.content.indexOf(part), -1, `${type} ${part}`);
    }
    assert.ok(image.content.length <= given.length);
    assert.deepEqual(taken(type, image.content), image, 'a cleaned image stays the same');
  }
});

test('an image loses location, comment and thumbnail', () => {
  const place = Buffer.from('Exif\0\0 GPSLatitude 51.4779');
  const photo = taken('image/jpeg', withSegment(0xe1, place));
  assert.equal(photo.content.indexOf('GPS'), -1);
  assert.deepEqual(photo.content, taken('image/jpeg', jpeg).content);
  assert.equal(taken('image/jpeg', withSegment(0xfe, '<?php ?>')).content.indexOf('php'), -1);
  const texts = ['tEXt', 'zTXt', 'iTXt', 'eXIf', 'iCCP', 'tIME', 'prVt'].map((name) =>
    pngChunk(name, Buffer.from('secret')),
  );
  const drawn = taken('image/png', png(8, 8, [1, 2, 3], texts));
  assert.deepEqual(drawn.content, png(8, 8, [1, 2, 3]));
});

test('content of another type is refused, whatever type it claims', () => {
  const others: Record<string, string> = {
    svg: '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
    'svg with a declaration': '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
    html: '<!doctype html><script>alert(1)</script>',
    gif: 'GIF89a/*\x01\x00\x01\x00*/=alert(1)//',
    bitmap: 'BM\x3a\x00\x00\x00\x00\x00\x00\x00',
    icon: '\x00\x00\x01\x00\x01\x00',
    'a JPEG’s first bytes': '\xff\xd8',
    nothing: '',
  };
  for (const type of imageTypes) {
    for (const [name, text] of Object.entries(others)) {
      assert.match(refused(type, Buffer.from(text, 'latin1')), /^The content is not a/, `${name} as ${type}`);
    }
    for (const [other, given] of samples.filter(([each]) => each !== type)) {
      assert.match(refused(type, given), / image, not /, `${other} as ${type}`);
    }
  }
});

test('a file that is an image and something else keeps at most the image', () => {
  const page = Buffer.from('<html><script>alert(1)</script>');
  // Where polyglots hide a page: a comment in a JPEG, a text chunk in a PNG, an unknown chunk in a WebP.
  const hidden: readonly (readonly [ImageType, Buffer])[] = [
    ['image/jpeg', withSegment(0xfe, page)],
    ['image/jpeg', withSegment(0xe5, page)],
    ['image/png', png(8, 8, [0, 0, 0], [pngChunk('tEXt', page)])],
    ['image/webp', webpOf(['VP8L', lossless], ['XMP ', page])],
  ];
  for (const [type, given] of hidden) assert.equal(taken(type, given).content.indexOf('<'), -1, type);
  for (const type of imageTypes) {
    const signature = samples.find(([each]) => each === type)?.[1].subarray(0, 12) as Buffer;
    assert.match(refused(type, Buffer.concat([signature, page])), /^The (PNG|JPEG|WebP) image /);
  }
});

test('an oversized image is refused by its header, however few bytes it has', () => {
  const bomb = (width: number, height: number) =>
    Buffer.concat([
      pngSignature,
      pngHeader(width, height),
      pngChunk('IDAT', Buffer.from('x')),
      pngChunk('IEND'),
    ]);
  for (const [width, height] of [
    [1_025, 1],
    [1, 1_025],
    [65_535, 65_535],
    [0xffff_ffff, 0xffff_ffff],
    [0, 16],
  ] as const) {
    assert.match(refused('image/png', bomb(width, height)), /The maximum is 1024 by 1024/);
  }
  assert.equal(taken('image/png', bomb(1_024, 1_024)).width, 1_024);
  const frame = jpeg.indexOf(Buffer.from([0xff, 0xc0]));
  const wide = Buffer.from(jpeg);
  wide.writeUInt16BE(65_535, frame + 7);
  assert.match(refused('image/jpeg', wide), /65535 by 16/);
  const high = Buffer.from(lossless);
  high.writeUInt32LE((high.readUInt32LE(1) | (0x3fff << 14)) >>> 0, 1);
  assert.match(refused('image/webp', webpOf(['VP8L', high])), /by 16384/);
});

test('a WebP whose canvas and picture differ in size is refused', () => {
  const canvas = Buffer.alloc(10);
  canvas.writeUIntLE(23, 4, 3);
  canvas.writeUIntLE(15, 7, 3);
  assert.equal(taken('image/webp', webpOf(['VP8X', canvas], ['VP8L', lossless])).width, 24);
  canvas.writeUIntLE(9_999, 4, 3);
  assert.match(refused('image/webp', webpOf(['VP8X', canvas], ['VP8L', lossless])), /canvas of another size/);
});

test('an animation is refused', () => {
  assert.match(refused('image/png', png(8, 8, [0, 0, 0], [pngChunk('acTL', Buffer.alloc(8))])), /animated/);
  const canvas = Buffer.from([2, 0, 0, 0, 23, 0, 0, 15, 0, 0]);
  assert.match(refused('image/webp', webpOf(['VP8X', canvas], ['VP8L', lossless])), /animated/);
  canvas[0] = 0;
  const frames = webpOf(['VP8X', canvas], ['ANMF', lossless], ['VP8L', lossless]);
  assert.match(refused('image/webp', frames), /animated/);
});

test('a JPEG with very many scans is refused, because each scan covers the whole picture', () => {
  const image = taken('image/jpeg', jpeg).content;
  const scan = image.subarray(image.indexOf(Buffer.from([0xff, 0xda])), -2);
  const repeated = (count: number) =>
    Buffer.concat([image.subarray(0, -2), ...Array.from({ length: count }, () => scan), image.subarray(-2)]);
  assert.equal(taken('image/jpeg', repeated(63)).width, 24);
  assert.match(refused('image/jpeg', repeated(64)), /more than 64 scans/);
});

test('an image truncated anywhere is refused, and a damaged one does not break the reader', () => {
  for (const [type, given] of samples) {
    const { content } = taken(type, given);
    for (let length = 0; length < content.length; length += 1) {
      refused(type, content.subarray(0, length));
    }
  }
  assert.match(refused('image/png', Buffer.concat([png().subarray(0, 45), png().subarray(46)])), /^The PNG/);
});

test('any bytes are an image that stays the same or a refusal with a reason', () => {
  const changed = fc
    .tuple(
      fc.constantFrom(...samples),
      fc.array(fc.tuple(fc.nat(4_000), fc.integer({ min: 0, max: 255 })), { maxLength: 8 }),
    )
    .map(([[type, given], changes]): [ImageType, Buffer] => {
      const content = Buffer.from(given);
      for (const [place, value] of changes) content[place % content.length] = value;
      return [type, content];
    });
  const random = fc
    .tuple(fc.constantFrom(...samples), fc.nat(40), fc.uint8Array({ maxLength: 300 }))
    .map(([[type, given], length, bytes]): [ImageType, Buffer] => [
      type,
      Buffer.concat([given.subarray(0, length), bytes]),
    ]);
  fc.assert(
    fc.property(fc.oneof(changed, random), ([type, given]) => {
      const image = readImage(type, given);
      if (typeof image === 'string') {
        assert.match(image, /^The .+\.$/);
        return;
      }
      assert.ok(image.width >= 1 && image.width <= 1_024 && image.height >= 1 && image.height <= 1_024);
      assert.ok(image.content.length <= given.length);
      assert.deepEqual(readImage(type, image.content), image);
    }),
    { numRuns: 5_000 },
  );
});
