/** The device authorization grant (RFC 8628), by its long name. */

export const deviceGrant = 'urn:ietf:params:oauth:grant-type:device_code';
