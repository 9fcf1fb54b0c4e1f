package nuncio.verify;

import java.util.Locale;

/** Why a delivery is not verified or handled, with the HTTP status of the response. */
public enum Code {
  /** A header of the delivery is missing. */
  MISSING_HEADER(401),
  /** A header of the delivery does not have its form, occurs twice or is too long. */
  MALFORMED_HEADER(401),
  /** The delivery was signed longer ago than the tolerance allows. */
  TOO_OLD(401),
  /** The delivery was signed in the future, by this machine's clock. */
  TOO_NEW(401),
  /** No secret has made the signature. */
  NO_MATCHING_SECRET(401),
  /** No public key matches the signature. */
  UNKNOWN_KEY(401),
  /** The body has more than 1 MiB. */
  BODY_TOO_LARGE(413),
  /** There is no body: it is null. */
  NO_BODY(500),
  /** The signature needs a secret, and none was given. */
  NO_SECRET(500),
  /** The signature needs public keys, and none were given. */
  NO_PUBLIC_KEYS(500),
  /** A secret is empty, has white space around it or, for {@code standard}, is not {@code whsec_} and base64. */
  MALFORMED_SECRET(500),
  /** A public key is not {@code whpk_} and the base64 of 32 bytes. */
  MALFORMED_PUBLIC_KEY(500),
  /** The public keys could not be loaded. */
  KEYS_UNAVAILABLE(503),
  /** Another request handles the delivery, or another one of the same order, at this moment. */
  BUSY(503),
  /** A later delivery was handled before. */
  OUT_OF_ORDER(409);

  private final int status;

  Code(int status) {
    this.status = status;
  }

  /** The HTTP status of the response. The server sends the delivery again after all of them. */
  public int status() {
    return status;
  }

  /** The code as the libraries of all languages write it, such as {@code missing-header}. */
  @Override
  public String toString() {
    return name().toLowerCase(Locale.ROOT).replace('_', '-');
  }
}
