/**
 * Scopes (RFC 6749 section 3.3): `<action>:<object>`, each with the description that users read on the consent page.
 * `write` does not imply `read`.
 */

export interface Scope {
  name: string;
  /** Completes "This app will be able to …". Addresses the user, as the consent page does. */
  description: string;
  /** Whether a user can consent to it. Other scopes are for the operator's machine clients. */
  isForUsers: boolean;
  /** Manages apps or the server. Only the console and clients that the operator names can have it. */
  isManagement?: boolean;
  /** Only machine clients that the operator names can use it, through client credentials. */
  isForMachines?: boolean;
}

export type ScopeCatalogue = ReadonlyMap<string, Scope>;

/** Lets a resource server introspect tokens of other clients. */
export const introspectionScope = 'read:tokens';

/** Opens `/admin`: for administrators, and for machine clients of the operator. */
export const adminScope = 'admin';

/** For an existing application that manages its users as accounts of this server. */
export const readAccountsScope = 'read:accounts';
export const writeAccountsScope = 'write:accounts';
/** Lets that application tell the server which user a browser belongs to. */
export const loginScope = 'write:logins';

const fixedScopes: readonly Scope[] = [
  { name: 'read:profile', description: 'see your profile: name and email address', isForUsers: true },
  { name: 'write:profile', description: 'change your profile', isForUsers: true },
  { name: 'read:posts', description: 'read your articles and comments, drafts included', isForUsers: true },
  {
    name: 'write:posts',
    description: 'write, change, publish and delete your articles and comments',
    isForUsers: true,
  },
  {
    name: 'read:webhooks',
    description: 'see its subscriptions to your events and their deliveries',
    isForUsers: true,
  },
  { name: 'write:webhooks', description: 'receive your events as they happen', isForUsers: true },
  { name: 'write:events', description: 'publish events', isForUsers: false },
  { name: introspectionScope, description: 'check other apps’ access tokens', isForUsers: false },
  {
    name: readAccountsScope,
    description: 'see all accounts and the apps that act for them',
    isForUsers: false,
    isForMachines: true,
  },
  {
    name: writeAccountsScope,
    description: 'create, change and delete accounts, and withdraw the access of apps',
    isForUsers: false,
    isForMachines: true,
  },
  { name: loginScope, description: 'sign users in', isForUsers: false, isForMachines: true },
  {
    name: 'read:apps',
    description: 'see your apps as their developer',
    isForUsers: false,
    isManagement: true,
  },
  {
    name: 'write:apps',
    description: 'create, change and delete your apps as their developer',
    isForUsers: false,
    isManagement: true,
  },
  {
    name: adminScope,
    description: 'administer this server: accounts, apps, subscriptions and the audit log',
    isForUsers: false,
    isManagement: true,
  },
];

/** Only the operator gives them to clients, which act for themselves. */
export const operatorScopes: readonly string[] = fixedScopes
  .filter(({ isForUsers }) => !isForUsers)
  .map(({ name }) => name);

/** OpenID Connect scopes, with the descriptions that users read. */
export const openidScopes: readonly Scope[] = [
  { name: 'openid', description: 'know who you are', isForUsers: true },
  { name: 'profile', description: 'see your name', isForUsers: true },
  { name: 'email', description: 'see your email address', isForUsers: true },
  { name: 'offline_access', description: 'keep this access while you are away', isForUsers: true },
];

/**
 * Claims that each scope provides (OpenID Connect Core section 5.4). `email_verified` is absent for an account whose address
 * nobody verified, because many clients treat `false` as a refusal.
 */
export const scopeClaims: Readonly<Record<string, readonly string[]>> = {
  openid: ['sub'],
  profile: ['name'],
  email: ['email', 'email_verified'],
  'read:profile': ['name', 'email', 'email_verified'],
};

/** A description for app developers, who read about the user in the third person. */
export function describeForDevelopers({ description }: Scope): string {
  return description.replaceAll(/\byour\b/g, 'the user’s');
}

const scopeName = /^(?:read|write):[a-z][a-z0-9_-]{0,62}$/;

/**
 * @param objects objects of the platform's collections; each adds `read:<object>` and `write:<object>`
 * @throws Error if an object's name cannot be part of a scope
 */
export function createScopeCatalogue(objects: Iterable<string>): ScopeCatalogue {
  const catalogue = new Map(fixedScopes.map((scope) => [scope.name, scope]));
  for (const object of objects) {
    const words = object.replaceAll(/[_-]/g, ' ');
    const declared: Scope[] = [
      { name: `read:${object}`, description: `read your ${words}`, isForUsers: true },
      { name: `write:${object}`, description: `create, change and delete your ${words}`, isForUsers: true },
    ];
    for (const scope of declared) {
      if (!scopeName.test(scope.name)) throw new Error(`not a valid object name: ${JSON.stringify(object)}`);
      if (!catalogue.has(scope.name)) catalogue.set(scope.name, scope);
    }
  }
  return catalogue;
}

/**
 * Whether the granted scopes provide a claim. A client cannot get a claim by name without the scope that the user
 * consented to.
 */
export function isClaimAllowed(claim: string, scopes: readonly string[]): boolean {
  const giving = Object.keys(scopeClaims).filter((scope) => scopeClaims[scope]?.includes(claim));
  return giving.length === 0 || giving.some((scope) => scopes.includes(scope));
}

/**
 * Whether two scope parameters are equal, in any order (RFC 6749 section 3.3). An absent one equals the empty string.
 */
export function isSameScope(one = '', other = ''): boolean {
  return one.split(' ').sort().join(' ') === other.split(' ').sort().join(' ');
}
