/** The article that is posted, and the body of its event. */

export const secret = Buffer.from('a secret for measuring, 32 bytes or more');

export const article = {
  id: '01981f6e-6b1f-7a02-8c44-90d7e2f1ab30',
  title: 'On carrying messages',
  body: 'An envoy says what was said, and no more. '.repeat(10),
  state: 'draft',
  published_at: null,
  author: '01981f6d-0f3c-7e1b-a6d5-4c2b1a0f9e88',
  created_at: '2026-01-02T03:04:05.678Z',
  updated_at: '2026-01-02T03:04:05.678Z',
  _links: {
    self: { href: '/articles/01981f6e-6b1f-7a02-8c44-90d7e2f1ab30' },
    comments: { href: '/articles/01981f6e-6b1f-7a02-8c44-90d7e2f1ab30/comments' },
    publish: { href: '/articles/01981f6e-6b1f-7a02-8c44-90d7e2f1ab30/publish', method: 'POST' },
  },
};
