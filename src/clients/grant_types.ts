/** Names of grant types that are not words of RFC 6749. */

/** RFC 8628 section 3.4. */
export const deviceCodeGrantType = 'urn:ietf:params:oauth:grant-type:device_code';
