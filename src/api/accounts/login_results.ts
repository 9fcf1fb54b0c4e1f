/** The application's response to a login request: its schemas, and the checks against the authorization request. */

import Type, { type Static } from 'typebox';
import type { ExternalAccount } from '../../accounts/external_account.ts';
import { type LoginRequest, unknownAuthTime } from '../../accounts/login_request.ts';
import type { ErrorList } from '../../http/problem.ts';
import type { ProblemCode } from '../../http/problem_codes.ts';
import { Nullable, named, StringEnum, strict, worded } from '../../http/schema.ts';
import { GivenExternalId, profileMembers, readExternalAccount } from './schemas.ts';

/** Tolerance between the clocks of the application and of this server, in seconds. */
const clockToleranceSeconds = 60;
/** Maximum number of `amr` values, and maximum lengths of `amr` and `acr` values in characters. */
const amrMax = 10;
const amrCharactersMax = 64;
const acrCharactersMax = 255;
/** Maximum length of an error description in characters. */
const descriptionCharactersMax = 200;

/** Errors that the application may return to the app (RFC 6749 section 4.1.2.1, OpenID Connect Core section 3.1.2.6). */
const loginErrors = [
  'access_denied',
  'login_required',
  'interaction_required',
  'account_selection_required',
  'temporarily_unavailable',
  'unmet_authentication_requirements',
] as const;

const Visible = (maxLength: number) =>
  worded(
    `a string of 1 to ${maxLength} visible ASCII characters`,
    Type.String({ pattern: '^[!-~]+$', minLength: 1, maxLength }),
  );

export const LoginAcceptance = named(
  'LoginAcceptance',
  Type.Object(
    {
      account: Type.Object({ external_id: GivenExternalId(), ...profileMembers }, strict),
      auth_time: Type.Optional(
        worded('the time of the sign-in in seconds since 1970', Type.Integer({ minimum: 0 })),
      ),
      amr: Type.Optional(Nullable(Type.Array(Visible(amrCharactersMax), { maxItems: amrMax }))),
      acr: Type.Optional(Nullable(Visible(acrCharactersMax))),
    },
    strict,
  ),
);

export const LoginRejection = named(
  'LoginRejection',
  Type.Object(
    {
      error: Type.Optional(StringEnum(...loginErrors)),
      error_description: Type.Optional(
        Nullable(
          worded(
            // RFC 6749 section 4.1.2.1 excludes quotation marks and backslashes.
            `a string of 1 to ${descriptionCharactersMax} printable ASCII characters except " and \\`,
            Type.String({ pattern: '^[ !#-\\[\\]-~]+$', minLength: 1, maxLength: descriptionCharactersMax }),
          ),
        ),
      ),
    },
    strict,
  ),
);

export interface Acceptance {
  account: ExternalAccount;
  /** Seconds since the epoch; `unknownAuthTime` if the application does not provide it. */
  authTime: number;
  amr: string[] | null;
  acr: string | null;
}

export function readAcceptance(body: Static<typeof LoginAcceptance>): Acceptance {
  const { account, auth_time: authTime = unknownAuthTime, amr = null, acr = null } = body;
  return { account: readExternalAccount(account), authTime, amr, acr };
}

/** Checks when the user signed in against what the authorization request demands. */
export function checkAuthTime(
  authTime: number | undefined,
  { parameters, createdAt }: LoginRequest,
  errors: ErrorList,
): void {
  const add = (message: string, code?: ProblemCode) => errors.add(['auth_time'], message, code);
  const now = Math.floor(Date.now() / 1_000);
  const isFresh = parameters.prompt?.split(' ').includes('login') === true;
  if (authTime === undefined) {
    if (isFresh || parameters.maxAge !== null) {
      add('is required because the request has prompt=login or max_age');
    }
    return;
  }
  const startedAt = Math.floor(createdAt.getTime() / 1_000);
  const earliest = Math.max(
    isFresh ? startedAt : 0,
    parameters.maxAge === null ? 0 : Math.min(now - parameters.maxAge, startedAt),
  );
  if (authTime > now + clockToleranceSeconds) {
    add('must be the time of the sign-in in seconds since 1970, and not in the future');
  } else if (authTime < earliest - clockToleranceSeconds) {
    add(
      'is too far in the past for prompt=login or max_age of the request: sign the user in again',
      'login-too-old',
    );
  }
}
