/** Attempts to lock others out with wrong passwords or invalid registrations. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { changePassword } from '../../src/accounts/account.ts';
import { createKnownDevices, type Device } from '../../src/accounts/known_device.ts';
import { signIn } from '../../src/accounts/sign_in.ts';
import { countGuess } from '../../src/accounts/throttle.ts';
import { countRegistration, registrationLimits } from '../../src/oauth/registration/registration_limit.ts';
import {
  authorize,
  createTestAccount,
  createTestClient,
  type TestAccount,
} from '../support/clients/oauth.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';

const server = await startTestServer({ after }, { NUNCIO_TRUST_PROXY: '127.0.0.1' });
const { db } = server;
const devices = createKnownDevices(testSecret, server.baseUrl);
const stranger = '198.51.100.7';

const pairOf = (setCookie: string | undefined) => setCookie?.split(';', 1)[0] ?? '';

/** Returns the device of a browser that has signed in to the account. */
async function knownDevice(account: TestAccount, before?: Device): Promise<Device> {
  const result = await signIn(
    db,
    account.email,
    account.password,
    '203.0.113.5',
    before ?? devices.read(undefined),
  );
  assert.ok(result.outcome === 'signed-in');
  return devices.read(pairOf(result.deviceCookie));
}

async function shutOut(account: TestAccount): Promise<void> {
  // The same as guesses of a hundred strangers, without hashing passwords.
  const counters = [{ subject: `account\n${account.email}`, max: 100 }];
  for (let index = 0; index < 101; index += 1) await countGuess(db, counters);
  assert.equal((await signIn(db, account.email, account.password, stranger)).outcome, 'throttled');
}

test('guesses from many /64 networks of one site do not lock the owner out elsewhere', async () => {
  const owner = await createTestAccount(server);
  for (let index = 0; index < 110; index += 1) {
    await signIn(db, owner.email, 'wrong password', `2001:db8:7:${index}::1`);
  }
  const there = await signIn(db, owner.email, owner.password, '2001:db8:7:ffff::1');
  const elsewhere = await signIn(db, owner.email, owner.password, stranger);
  assert.deepEqual([there.outcome, elsewhere.outcome], ['throttled', 'signed-in']);
});

test('attack: guesses from one /64 do not lock out the rest of its /48', async () => {
  const owner = await createTestAccount(server);
  const other = await createTestAccount(server);
  for (let index = 0; index < 40; index += 1) {
    await signIn(db, owner.email, 'wrong password', '2001:db8:64:1::1');
  }
  const neighbour = await signIn(db, owner.email, owner.password, '2001:db8:64:2::1');
  assert.equal(neighbour.outcome, 'signed-in');
  // One household guesses at many accounts, up to the limit of its site.
  for (let index = 0; index < 320; index += 1) {
    await signIn(db, `nobody-${index}@example.com`, 'wrong password', '2001:db8:65:1::1');
  }
  assert.equal((await signIn(db, other.email, other.password, '2001:db8:65:2::1')).outcome, 'signed-in');
  assert.equal((await signIn(db, other.email, other.password, '2001:db8:65:1::2')).outcome, 'throttled');
});

test('a known browser signs in while strangers have locked the account', async () => {
  const owner = await createTestAccount(server);
  const device = await knownDevice(owner);
  await shutOut(owner);
  assert.equal((await signIn(db, owner.email, owner.password, stranger, device)).outcome, 'signed-in');
  // The device of another account, a forged device and no device all count as strangers.
  const other = await knownDevice(await createTestAccount(server));
  for (const unknown of [other, devices.read('nuncio_device=x'), devices.read(undefined)]) {
    assert.equal((await signIn(db, owner.email, owner.password, stranger, unknown)).outcome, 'throttled');
  }
});

test('a known browser has its own limit of wrong guesses, also concurrently', async () => {
  const owner = await createTestAccount(server);
  const device = await knownDevice(owner);
  const results = await Promise.all(
    Array.from({ length: 30 }, () => signIn(db, owner.email, 'wrong password', stranger, device)),
  );
  assert.equal(results.filter(({ outcome }) => outcome === 'refused').length, 10);
  assert.equal((await signIn(db, owner.email, owner.password, stranger, device)).outcome, 'throttled');
  // Its guesses do not count as a stranger's: the owner can sign in without the device.
  assert.equal((await signIn(db, owner.email, owner.password, stranger)).outcome, 'signed-in');
});

test('a changed password makes every known browser unknown', async () => {
  const owner = await createTestAccount(server);
  const device = await knownDevice(owner);
  await db.transaction().execute((tx) => changePassword(tx, owner.id, 'another password'));
  await shutOut({ ...owner, password: 'another password' });
  assert.equal((await signIn(db, owner.email, 'another password', stranger, device)).outcome, 'throttled');
});

test('a browser is known to several accounts, and a changed token to none', async () => {
  const [ann, bob] = [await createTestAccount(server), await createTestAccount(server)];
  const annOnly = await signIn(db, ann.email, ann.password, stranger, devices.read(undefined));
  assert.ok(annOnly.outcome === 'signed-in');
  const both = await signIn(
    db,
    bob.email,
    bob.password,
    stranger,
    devices.read(pairOf(annOnly.deviceCookie)),
  );
  assert.ok(both.outcome === 'signed-in');
  const cookie = pairOf(both.deviceCookie);
  await shutOut(ann);
  const ofAnn = pairOf(annOnly.deviceCookie);
  const yesterday = ofAnn.replace(/=(\d+)/, (_, day) => `=${Number(day) - 1}`);
  for (const forged of [yesterday, ofAnn.slice(0, -5), ofAnn.toLowerCase()]) {
    const device = devices.read(forged);
    assert.equal((await signIn(db, ann.email, ann.password, stranger, device)).outcome, 'throttled', forged);
  }
  assert.equal(
    (await signIn(db, ann.email, ann.password, stranger, devices.read(cookie))).outcome,
    'signed-in',
  );
});

test('the cookie is bound to this host over https and does not name the account', async () => {
  const owner = { accountId: 'account', passwordHash: 'hash' };
  const secure = createKnownDevices(testSecret, 'https://auth.example').read(undefined).remember(owner);
  assert.match(
    secure,
    /^__Host-nuncio_device=\d+\.[\w-]{22}\.[\w-]{43}; Path=\/; Max-Age=31536000; HttpOnly; SameSite=Lax; Secure$/,
  );
  // Without the prefix, another host of the site could set the cookie. It is ignored.
  const planted = secure.replace('__Host-', '').split(';', 1)[0];
  assert.equal(createKnownDevices(testSecret, 'https://auth.example').read(planted).mayBeKnown, false);
  const old = secure.replace(/=\d+/, `=${Math.floor(Date.now() / 86_400_000) - 366}`).split(';', 1)[0];
  assert.equal(createKnownDevices(testSecret, 'https://auth.example').read(old).mayBeKnown, false);
});

test('signing in for an app makes the browser known', async () => {
  const owner = await createTestAccount(server);
  const { browser } = await authorize(server, {
    client: await createTestClient(server),
    account: owner,
    scopes: ['read:posts'],
  });
  const cookie = browser.cookies.find(({ name }) => name === 'nuncio_device')?.value;
  assert.ok(cookie !== undefined);
  await shutOut(owner);
  const device = devices.read(`nuncio_device=${cookie}`);
  assert.equal((await signIn(db, owner.email, owner.password, stranger, device)).outcome, 'signed-in');
});

test('invalid registrations lock nobody else out and count for their own network', async () => {
  const register = async (address: string, redirectUri: string) => {
    const { status } = await fetch(`${server.baseUrl}/oauth/register`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-forwarded-for': address },
      body: JSON.stringify({ redirect_uris: [redirectUri], token_endpoint_auth_method: 'none' }),
    });
    return status;
  };
  // A site with many networks has a limit.
  const ofSite: number[] = [];
  for (let index = 0; index < registrationLimits.remote * 3 + 10; index += 1) {
    ofSite.push(await register(`2001:db8:aaaa:${index}::1`, 'javascript:alert(1)'));
  }
  assert.deepEqual([...new Set(ofSite)], [400, 429]);
  // Nearly reaches the limit for all valid registrations.
  for (let index = 0; index < registrationLimits.all - 5; index += 1) {
    assert.equal(await countRegistration(db, `2001:db8:${index}::1`), undefined);
  }
  for (let index = 0; index < 30; index += 1) {
    assert.equal(await register(`2001:db9:${index}::1`, 'javascript:alert(1)'), 400);
  }
  assert.equal(await register(stranger, 'https://app.example/callback'), 201);
});
