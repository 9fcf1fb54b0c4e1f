/** The grant type of the device authorization grant (RFC 8628). */

export const deviceGrant = 'urn:ietf:params:oauth:grant-type:device_code';
