/** A shop with users, a login and orders. Its integration is in `login.ts`, `orders.ts` and `settings.ts`. */

import express, { type Express, type NextFunction, type Request, type Response } from 'express';
import type { Pool } from 'pg';
import { registerLogin } from './login.ts';
import { type Nuncio, NuncioError } from './nuncio.ts';
import { placeOrder } from './orders.ts';
import { escapeHtml, page } from './page.ts';
import { registerSettings } from './settings.ts';
import { currentUser, endSession } from './users.ts';

export function createShop(pool: Pool, nuncio: Nuncio): Express {
  const app = express();
  app.disable('x-powered-by');
  app.use(express.urlencoded({ extended: false, limit: '16kb' }));

  app.get('/', async (request, response) => {
    const user = await currentUser(pool, request);
    if (user === null) return response.redirect('/login');
    const { rows } = await pool.query('select item from shop.orders where user_id = $1 order by id', [
      user.id,
    ]);
    const items = rows.map(({ item }) => `<li>${escapeHtml(item)}</li>`).join('');
    return response.send(
      page(
        'Your orders',
        `<p>Signed in as ${escapeHtml(user.name)}</p><ul>${items}</ul>
<form method="post" action="/orders"><label>Item <input name="item" required maxlength="100"></label>
<button>Place order</button></form>
<p><a href="/settings">Settings</a></p><form method="post" action="/logout"><button>Sign out</button></form>`,
      ),
    );
  });

  app.post('/orders', async (request, response) => {
    const user = await currentUser(pool, request);
    if (user === null) return response.redirect(303, '/login');
    await placeOrder(pool, user, String(request.body.item ?? '').slice(0, 100));
    return response.redirect(303, '/');
  });

  app.post('/logout', async (request, response) => {
    await endSession(pool, request, response);
    response.redirect(303, '/login');
  });

  registerLogin(app, pool, nuncio);
  registerSettings(app, pool, nuncio);

  app.use((error: Error, _request: Request, response: Response, _next: NextFunction) => {
    process.stderr.write(`${error.stack}\n`);
    const isOver = error instanceof NuncioError && (error.status === 404 || error.status === 409);
    response
      .status(isOver ? 400 : 500)
      .send(
        page(
          'Something went wrong',
          isOver ? '<p>This sign-in has expired. Start again in the app.</p>' : '',
        ),
      );
  });
  return app;
}
